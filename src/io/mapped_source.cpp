// tests: tests/io/test_npy.cpp
#include "io/mapped_source.hpp"

#include <algorithm>
#include <bit>

#include "io/byte_order.hpp"

namespace ejk::io {

namespace {

class MappedSource final : public ArraySource {
 public:
  MappedSource(Mapping mapping, const ArrayLayout& layout, std::string name, File file)
      : mapping_(std::move(mapping)),
        file_(std::move(file)),
        byte_order_(layout.byte_order),
        storage_(storage_of(layout)),
        name_(std::move(name)) {
    view_ = {mapping_.data() + layout.offset, layout.dtype, layout.shape};
    if (layout.element_order == ElementOrder::fortran) {
      view_.strides = c_strides(Shape(layout.shape.rbegin(), layout.shape.rend()), layout.dtype);
      std::reverse(view_.strides.begin(), view_.strides.end());
    }
    usable_in_place_ =
        byte_order_ == ByteOrder::native &&
        reinterpret_cast<std::uintptr_t>(view_.data) % static_cast<std::uintptr_t>(size_of(layout.dtype)) ==
            0;
  }

  DType dtype() const override { return view_.dtype; }
  const Shape& shape() const override { return view_.shape; }
  const std::string& name() const override { return name_; }
  bool random_access() const override { return true; }
  std::string storage() const override { return storage_; }

  std::optional<ArrayView> mapped() const override {
    return usable_in_place_ ? std::optional(view_) : std::nullopt;
  }

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    ArrayView box = view_;
    for (std::size_t d = 0; d < box.shape.size(); ++d) {
      box.data += start[d] * box.strides[d];
      box.shape[d] = count[d];
    }
    // The kernel copies from its pages without mapping them; for little that is not worth the call.
    constexpr std::int64_t kWorthACall = std::int64_t{64} << 10;
    const std::int64_t bytes = byte_count(box.shape, box.dtype);
    if (file_.is_open() && bytes >= kWorthACall && box.is_c_contiguous())
      read_all_at(file_.fd(), out, bytes, box.data - mapping_.data(), name_);
    else
      copy_elements(box, out);
    if (byte_order_ == ByteOrder::swapped) swap_bytes(out, element_count(box.shape), size_of(box.dtype));
  }

  bool prefers_read() const override { return file_.is_open() && view_.is_c_contiguous(); }

  void release(const std::byte* data, std::int64_t bytes) const override { mapping_.release(data, bytes); }

 private:
  Mapping mapping_;
  File file_;
  ByteOrder byte_order_;
  std::string storage_;
  std::string name_;
  ArrayView view_;
  bool usable_in_place_ = false;
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

std::shared_ptr<const ArraySource> make_mapped_source(Mapping mapping, const ArrayLayout& layout,
                                                      std::string name, File file) {
  // Descriptors are few, and the system hands out the lowest that is free.
  constexpr int kMany = 256;
  if (file.fd() >= kMany) file = File();
  return std::make_shared<MappedSource>(std::move(mapping), layout, std::move(name), std::move(file));
}

}  // namespace ejk::io
