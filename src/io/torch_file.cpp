// Files of torch.save: members PREFIX/data.pkl, PREFIX/byteorder and PREFIX/data/KEY for each storage, all
// stored. A tensor is a view of its storage, compared with the storage's size before it is one.
// tests: tests/io/test_torch_file.cpp
#include "io/torch_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <unordered_map>

#include "core/checked.hpp"
#include "core/named.hpp"
#include "core/require.hpp"
#include "ejk/program/text.hpp"
#include "io/mapped_source.hpp"
#include "io/pickle.hpp"
#include "io/zip.hpp"

namespace ejk::io {

namespace {

constexpr std::string_view kPickle = "/data.pkl",
                           kTensorsAlone = "torch.save(model.state_dict(), FILE) saves tensors alone";

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

class TorchFile final : public ShardContainer {
 public:
  TorchFile(const std::string& path, const OpenOptions& options) : path_(path), untyped_(options.untyped) {
    const std::string name = printable(path);
    constexpr std::string_view kWanted = "a file of torch.save";
    zip_ = std::make_shared<const ZipFile>(open_regular_file(path, name, kWanted), name, kWanted);
    const auto pickle = std::find_if(zip_->entries.begin(), zip_->entries.end(),
                                     [](const ZipEntry& entry) { return entry.name.ends_with(kPickle); });
    if (pickle == zip_->entries.end())
      throw core::invalid("{}: not a file of torch.save (the archive has no data.pkl)", name);
    prefix_ = pickle->name.substr(0, pickle->name.size() - kPickle.size() + 1);
    for (const ZipEntry& entry : zip_->entries)
      if (!members_.emplace(entry.name, &entry).second)
        throw core::invalid("{}: two members are named '{}'", name, printable(entry.name, 60));
    core::named(name, [&] {
      if (const auto order = members_.find(prefix_ + "byteorder"); order != members_.end())
        byte_order_ = byte_order_of(read_member(zip_, *order->second));
      contents_ = tensors_in_pickle(read_member(zip_, *pickle), options.max_memory);
      if (contents_.named.empty() && contents_.tensors_in_objects > 0)
        throw core::invalid("all {} tensors are in objects of {}, which are not read",
                            format_count(contents_.tensors_in_objects), contents_.objects[0].name)
            .hint(std::string(kTensorsAlone));
      mapping_ = std::make_shared<const Mapping>(Mapping::of_file(zip_->file.fd(), zip_->size, name));
    });
  }

  std::shared_ptr<const ArraySource> array(const std::string& wanted) const override {
    const bool is_only = wanted.empty() && contents_.named.size() == 1;
    const NamedTensor* found = is_only ? &contents_.named.front() : contents_.find(wanted);
    if (found == nullptr) throw no_such_array(path_, wanted, names(""));
    return open(*found, printable(found->path.empty() ? path_ : fmt::format("{}:{}", path_, found->path)));
  }

  std::shared_ptr<const ArraySource> open(const std::string& path, const std::string& shown) const override {
    return open(*contents_.find(path), shown);
  }

  std::optional<StoredArray> stored_array(const std::string& path) const override {
    const NamedTensor* found = contents_.find(path);
    return found == nullptr ? std::nullopt : std::optional(stored(*found));
  }

  // A group is a dict or list on the path.
  std::vector<std::string> names(const std::string& group) const override {
    std::vector<std::string> names;
    for (const NamedTensor& tensor : contents_.named)
      if (is_in(group, tensor.path)) names.push_back(tensor.path);
    return names;
  }

  std::optional<std::vector<StoredArray>> stored_arrays() const override {
    std::vector<StoredArray> arrays;
    for (const NamedTensor& tensor : contents_.named) arrays.push_back(stored(tensor));
    return arrays;
  }

  // Objects that were stepped over, and tensors that stand for more than the file has.
  std::vector<std::string> remarks() const override {
    std::vector<std::string> lines, words;
    for (const auto& [name, count, first] : contents_.objects) {
      const std::string at = printable(first, 60);
      words.push_back(count == 1 ? fmt::format("{}{}", name, at.empty() ? "" : fmt::format(" ({})", at))
                                 : fmt::format("{} ({}, the first is {})", name, format_count(count), at));
    }
    if (!words.empty())
      lines.push_back(fmt::format("{}: objects are left out: {}", printable(path_), fmt::join(words, ", ")));
    if (contents_.tensors_in_objects > 0)
      lines.back() += fmt::format(", with {} tensors in them; {}", format_count(contents_.tensors_in_objects),
                                  kTensorsAlone);
    for (const NamedTensor& named : contents_.named) {
      const PickledTensor& tensor = contents_.tensors[named.tensor];
      if (is_too_expanded(tensor))
        lines.push_back(
            fmt::format("{}:{} is an {}", printable(path_), printable(named.path, 60), expanded(tensor)));
    }
    return lines;
  }

  // In x.pt:a[0] the brackets are a slice of a, or an index on the path.
  ArrayReference resolved(const ArrayReference& named) const override {
    if (named.slice.size() != 1 || named.slice[0].kind != SliceItem::Kind::index ||
        contents_.find(named.member) != nullptr)
      return named;
    ArrayReference found = named;
    found.member += fmt::format("[{}]", named.slice[0].index);
    found.slice.clear();
    return names(found.member).empty() ? named : found;
  }

 private:
  std::shared_ptr<const ArraySource> open(const NamedTensor& tensor, const std::string& shown) const {
    const ArrayLayout layout =
        core::named(shown, [&] { return layout_of(contents_.tensors[tensor.tensor]); });
    return make_mapped_source(mapping_, layout, shown, {zip_, &zip_->file});
  }

  StoredArray stored(const NamedTensor& named) const {
    const PickledTensor& tensor = contents_.tensors[named.tensor];
    const TorchType& type = *tensor.type;
    return {named.path, std::string(type.dtype ? name_of(*type.dtype) : type.name), tensor.shape,
            bytes_of(tensor)};
  }

  static std::int64_t bytes_of(const PickledTensor& tensor) {
    return core::checked_mul(element_count(tensor.shape), tensor.type->bytes).value_or(INT64_MAX);
  }

  // x.expand(...): elements of stride 0 are stored once. Such tensors are read where they are small, or not
  // much larger than the file.
  bool is_too_expanded(const PickledTensor& tensor) const {
    constexpr std::int64_t kSmall = std::int64_t{64} << 20, kMostTimes = 16;
    const std::int64_t bytes = bytes_of(tensor);
    return bytes > kSmall && bytes / kMostTimes > zip_->size;
  }

  static std::string expanded(const PickledTensor& tensor) {
    std::int64_t stored = 1;
    for (std::size_t d = 0; d < tensor.shape.size(); ++d)
      if (tensor.strides[d] != 0) stored = core::checked_mul(stored, tensor.shape[d]).value_or(INT64_MAX);
    return fmt::format("expanded tensor: {} elements, {} of them stored",
                       format_count(element_count(tensor.shape)), format_count(stored));
  }

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
    if (is_too_expanded(tensor))
      throw core::invalid("is an {}", expanded(tensor))
          .hint("save what was expanded, or x.contiguous() where it fits");
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
  PickleContents contents_;
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

std::shared_ptr<const ShardContainer> open_torch_shard(const std::string& path, const OpenOptions& options) {
  return std::make_shared<TorchFile>(path, options);
}

std::shared_ptr<const OpenContainer> open_torch(const std::string& path, const OpenOptions& options) {
  return open_torch_shard(path, options);
}

}  // namespace ejk::io
