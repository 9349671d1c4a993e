// Files of torch.save: members PREFIX/data.pkl, PREFIX/byteorder and PREFIX/data/KEY for each storage, all
// stored. A tensor is a view of its storage, compared with the storage's size before it is one.
// tests: tests/io/test_torch_file.cpp
#include "io/torch_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <unordered_map>

#include "core/checked.hpp"
#include "core/named.hpp"
#include "core/require.hpp"
#include "ejk/text.hpp"
#include "io/mapped_source.hpp"
#include "io/pickle.hpp"
#include "io/zip.hpp"

namespace ejk::io {

namespace {

constexpr std::string_view kPickle = "/data.pkl";

std::string read_member(const std::shared_ptr<const ZipFile>& zip, const ZipEntry& entry) {
  constexpr std::int64_t kMost = 100'000'000;
  ZipReader reader(zip, entry);
  if (!reader.is_stored()) throw DamagedMember("the member is compressed, and torch.save only stores");
  if (reader.bytes() > kMost)
    throw DamagedMember(
        fmt::format("the member has {} bytes, more than the {} allowed", reader.bytes(), kMost));
  std::string text(static_cast<std::size_t>(reader.bytes()), '\0');
  reader.read(0, reader.bytes(), reinterpret_cast<std::byte*>(text.data()));
  return text;
}

// Bytes from a storage's first on that a tensor takes; nothing where they exceed 64 bits.
std::optional<std::int64_t> bytes_needed(const PickledTensor& tensor) {
  std::optional<std::int64_t> last = tensor.offset;
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    if (tensor.shape[d] == 0) return 0;
    const auto step = core::checked_mul(tensor.shape[d] - 1, tensor.strides[d]);
    last = last && step ? core::checked_add(*last, *step) : std::nullopt;
  }
  const auto count = last ? core::checked_add(*last, 1) : std::nullopt;
  return count ? core::checked_mul(*count, tensor.type->bytes) : std::nullopt;
}

class TorchFile final : public OpenContainer {
 public:
  TorchFile(const std::string& path, const OpenOptions& options) : path_(path), untyped_(options.untyped) {
    const std::string name = printable(path);
    File file = open_for_reading(path, name);
    if (!is_regular(file.fd(), name))
      throw core::invalid("{}: a file of torch.save must be a regular file", name)
          .hint("copy it to a file first");
    zip_ = std::make_shared<const ZipFile>(std::move(file), name, "a file of torch.save");
    const auto pickle = std::find_if(zip_->entries.begin(), zip_->entries.end(),
                                     [](const ZipEntry& entry) { return entry.name.ends_with(kPickle); });
    if (pickle == zip_->entries.end())
      throw core::invalid("{}: not a file of torch.save (the archive has no data.pkl)", name);
    prefix_ = pickle->name.substr(0, pickle->name.size() - kPickle.size() + 1);
    for (const ZipEntry& entry : zip_->entries) members_.emplace(entry.name, &entry);
    core::named(name, [&] {
      if (const auto order = members_.find(prefix_ + "byteorder"); order != members_.end())
        byte_order_ = byte_order_of(read_member(zip_, *order->second));
      tensors_ = tensors_in_pickle(read_member(zip_, *pickle));
      for (const NamedTensor& tensor : tensors_) by_path_.emplace(tensor.path, tensor.tensor.get());
      mapping_ = std::make_shared<const Mapping>(Mapping::of_file(zip_->file.fd(), zip_->size, name));
    });
  }

  std::shared_ptr<const ArraySource> array(const std::string& wanted) const override {
    const bool is_only = wanted.empty() && tensors_.size() == 1;
    const auto found = by_path_.find(is_only ? tensors_[0].path : wanted);
    if (found == by_path_.end()) throw no_such_array(path_, wanted, names(""));
    const std::string name =
        printable(found->first.empty() ? path_ : fmt::format("{}:{}", path_, found->first));
    const ArrayLayout layout = core::named(name, [&] { return layout_of(*found->second); });
    return make_mapped_source(mapping_, layout, name, {zip_, &zip_->file});
  }

  // A group is a dict or list on the path.
  std::vector<std::string> names(const std::string& group) const override {
    std::vector<std::string> names;
    for (const NamedTensor& tensor : tensors_)
      if (is_in(group, tensor.path)) names.push_back(tensor.path);
    return names;
  }

  std::optional<std::vector<StoredArray>> stored_arrays() const override {
    std::vector<StoredArray> arrays;
    for (const auto& [path, tensor] : tensors_) {
      const TorchType& type = *tensor->type;
      const auto bytes = core::checked_mul(element_count(tensor->shape), type.bytes);
      arrays.push_back({path, std::string(type.dtype ? name_of(*type.dtype) : type.name), tensor->shape,
                        bytes.value_or(INT64_MAX)});
    }
    return arrays;
  }

  // In x.pt:a[0] the brackets are a slice of a, or an index on the path.
  ArrayReference resolved(const ArrayReference& named) const override {
    if (named.slice.size() != 1 || named.slice[0].kind != SliceItem::Kind::index ||
        by_path_.contains(named.member))
      return named;
    ArrayReference found = named;
    found.member += fmt::format("[{}]", named.slice[0].index);
    found.slice.clear();
    return names(found.member).empty() ? named : found;
  }

 private:
  static bool is_in(std::string_view group, std::string_view path) {
    if (group.empty() || path == group) return true;
    return path.starts_with(group) && (path[group.size()] == '.' || path[group.size()] == '[');
  }

  static ByteOrder byte_order_of(const std::string& word) {
    constexpr bool kIsLittle = std::endian::native == std::endian::little;
    if (word != "little" && word != "big")
      throw core::invalid("the byte order is '{}', neither little nor big", printable(word, 40));
    return (word == "little") == kIsLittle ? ByteOrder::native : ByteOrder::swapped;
  }

  ArrayLayout layout_of(const PickledTensor& tensor) const {
    const TorchType& type = *tensor.type;
    if (!type.dtype && !(type.is_packed && untyped_ == UntypedBytes::read))
      throw Error(Error::Kind::input,
                  fmt::format("the elements have dtype {}, which is not supported", type.name),
                  Error::Code::unsupported);
    const auto member = members_.find(prefix_ + "data/" + tensor.storage);
    if (member == members_.end())
      throw core::invalid("the archive lacks its storage '{}'", printable(tensor.storage, 40));
    const ZipReader storage(zip_, *member->second);
    if (!storage.is_stored())
      throw core::invalid("its storage '{}' is compressed, and torch.save only stores",
                          printable(tensor.storage, 40));
    const auto needed = bytes_needed(tensor);
    if (tensor.offset < 0 || !needed || *needed > storage.bytes())
      throw core::invalid("shape {}, strides {} and offset {} are outside its storage of {} bytes",
                          to_string(tensor.shape), to_string(tensor.strides), tensor.offset, storage.bytes());
    ArrayLayout layout;
    layout.dtype = type.dtype.value_or(DType::uint8);
    layout.shape = tensor.shape;
    (void)byte_count(layout.shape, layout.dtype);  // an Error where it exceeds 64 bits
    layout.offset = storage.position() + (*needed == 0 ? 0 : tensor.offset * type.bytes);
    if (type.bytes > 1) layout.byte_order = byte_order_;
    set_order(tensor, layout);
    return layout;
  }

  static void set_order(const PickledTensor& tensor, ArrayLayout& layout) {
    Shape strides;
    for (const std::int64_t stride : tensor.strides)
      strides.push_back(core::checked_mul(stride, tensor.type->bytes).value_or(0));  // of an axis of length 1
    const auto is_c_order = [&](Shape shape, Shape steps) {
      return ArrayView(nullptr, layout.dtype, std::move(shape), std::move(steps)).is_c_contiguous();
    };
    if (element_count(layout.shape) == 0 || is_c_order(layout.shape, strides)) return;
    if (is_c_order({layout.shape.rbegin(), layout.shape.rend()}, {strides.rbegin(), strides.rend()})) {
      layout.element_order = ElementOrder::fortran;
      return;
    }
    layout.strides = strides;
    layout.storage = "strided";
  }

  std::string path_;
  UntypedBytes untyped_;
  std::shared_ptr<const ZipFile> zip_;
  std::string prefix_;  // with its slash
  std::unordered_map<std::string_view, const ZipEntry*> members_;
  ByteOrder byte_order_ = std::endian::native == std::endian::little ? ByteOrder::native : ByteOrder::swapped;
  std::vector<NamedTensor> tensors_;
  std::unordered_map<std::string_view, const PickledTensor*> by_path_;
  std::shared_ptr<const Mapping> mapping_;
};

}  // namespace

bool begins_as_torch(std::string_view begin, std::int64_t) {
  constexpr std::size_t kHeader = 30, kNameLength = 26;
  if (!begin.starts_with("PK\3\4") || begin.size() < kHeader) return false;
  const auto byte = [&](std::size_t i) {
    return static_cast<std::size_t>(static_cast<unsigned char>(begin[i]));
  };
  const std::size_t length = byte(kNameLength) | byte(kNameLength + 1) << 8;
  return length <= begin.size() - kHeader && begin.substr(kHeader, length).ends_with(kPickle);
}

std::shared_ptr<const OpenContainer> open_torch(const std::string& path, const OpenOptions& options) {
  return std::make_shared<TorchFile>(path, options);
}

}  // namespace ejk::io
