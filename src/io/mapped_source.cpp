// Elements of a mapped file. While the file is open, large boxes in C order are copied by pread, without
// page faults; others from the mapping, in place if possible.
// tests: tests/io/test_npy.cpp
#include "io/mapped_source.hpp"

#include <algorithm>
#include <bit>

#include "io/byte_order.hpp"

namespace ejk::io {

namespace {

// All elements, as the file has them.
ArrayView elements_in(const Mapping& mapping, const ArrayLayout& layout) {
  if (!layout.strides.empty())
    return {mapping.data() + layout.offset, layout.dtype, layout.shape, layout.strides};
  ArrayView view(mapping.data() + layout.offset, layout.dtype, layout.shape);
  if (layout.element_order == ElementOrder::fortran) {
    view.strides = c_strides(Shape(layout.shape.rbegin(), layout.shape.rend()), layout.dtype);
    std::reverse(view.strides.begin(), view.strides.end());
  }
  return view;
}

ArrayAccess access_to(const ArrayView& elements, const ArrayLayout& layout, bool is_open) {
  const auto address = reinterpret_cast<std::uintptr_t>(elements.data);
  const bool usable_in_place = layout.byte_order == ByteOrder::native &&
                               address % static_cast<std::uintptr_t>(size_of(elements.dtype)) == 0;
  if (!usable_in_place) return ArrayAccess(ArrayAccess::Order::any, storage_of(layout));
  const bool copy = is_open && elements.is_c_contiguous();
  return ArrayAccess(elements, copy ? ArrayAccess::Prefer::read : ArrayAccess::Prefer::view,
                     storage_of(layout));
}

class MappedSource final : public ArraySource {
 public:
  MappedSource(std::shared_ptr<const Mapping> mapping, const ArrayLayout& layout, std::string name,
               std::shared_ptr<const File> file)
      : ArraySource({layout.dtype, layout.shape}, std::move(name),
                    access_to(elements_in(*mapping, layout), layout, file != nullptr)),
        elements_(elements_in(*mapping, layout)),
        mapping_(std::move(mapping)),
        file_(std::move(file)),
        byte_order_(layout.byte_order) {}

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    const ArrayView box = box_of(elements_, start, count);
    // The kernel copies from its pages without mapping them; for little that is not worth the call.
    constexpr std::int64_t kWorthACall = std::int64_t{64} << 10;
    const std::int64_t bytes = byte_count(box.shape, box.dtype);
    if (file_ && bytes >= kWorthACall && box.is_c_contiguous())
      read_all_at(file_->fd(), out, bytes, box.data - mapping_->data(), name());
    else
      copy_elements(box, out);
    if (byte_order_ == ByteOrder::swapped) swap_bytes(out, element_count(box.shape), size_of(box.dtype));
  }

  void release(const std::byte* data, std::int64_t bytes) const override { mapping_->release(data, bytes); }

 private:
  ArrayView elements_;
  std::shared_ptr<const Mapping> mapping_;
  std::shared_ptr<const File> file_;
  ByteOrder byte_order_;
};

}  // namespace

std::string storage_of(const ArrayLayout& layout) {
  std::string words = layout.storage;
  const auto add = [&](std::string_view word) { words.append(words.empty() ? "" : ", ").append(word); };
  if (layout.element_order == ElementOrder::fortran)
    add("Fortran order");
  else if (words.empty())
    add("C order");
  if (layout.byte_order == ByteOrder::swapped)
    add(std::endian::native == std::endian::little ? "big-endian" : "little-endian");
  return words;
}

std::shared_ptr<const ArraySource> make_mapped_source(std::shared_ptr<const Mapping> mapping,
                                                      const ArrayLayout& layout, std::string name,
                                                      std::shared_ptr<const File> file) {
  return std::make_shared<MappedSource>(std::move(mapping), layout, std::move(name), std::move(file));
}

MappedFile::MappedFile(File opened, std::int64_t size, std::string_view name)
    : mapping(std::make_shared<const Mapping>(Mapping::of_file(opened.fd(), size, name))) {
  // Descriptors are few, and the system hands out the lowest that is free.
  constexpr int kMany = 256;
  if (opened.fd() < kMany) file = std::make_shared<const File>(std::move(opened));
}

}  // namespace ejk::io
