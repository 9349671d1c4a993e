// safetensors files. The header is read value by value, then sorted by position and by name, which detects
// holes, overlaps and duplicates in n log n. A writer knows all positions before it writes an element. Names of
// element types: core/element_types.hpp.
// tests: tests/io/test_safetensors.cpp
#include "io/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <optional>
#include <tuple>

#include "core/checked.hpp"
#include "core/element_types.hpp"
#include "core/json.hpp"
#include "core/json_reader.hpp"
#include "core/named.hpp"
#include "core/require.hpp"
#include "core/utf8.hpp"
#include "ejk/program/text.hpp"
#include "ejk/threads.hpp"
#include "io/atomic_file.hpp"
#include "io/element_stream.hpp"
#include "io/other_content.hpp"
#include "io/parallel_write.hpp"

namespace ejk::io {

struct TensorType {
  std::string_view name;
  int bits;
  std::optional<DType> dtype = std::nullopt;
};

namespace {

// Types of the format without arrays of ejk, then those with. Elements of less than a byte are packed.
constexpr auto kTensorTypes = [] {
  constexpr std::size_t kOthers = 4;
  std::array<TensorType, kOthers + core::kElementTypes.size()> all{
      {{"F4", 4}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"C64", 64}}};
  for (std::size_t i = kOthers; i < all.size(); ++i) {
    const core::ElementType& type = core::kElementTypes[i - kOthers];
    all[i] = {type.safetensors, static_cast<int>(8 * type.size), type.dtype};
  }
  return all;
}();

constexpr std::string_view kMetadata = "__metadata__";
constexpr std::int64_t kLengthBytes = 8, kMostHeader = 100'000'000;

const TensorType* type_named(std::string_view name) {
  const auto* const type = std::find_if(kTensorTypes.begin(), kTensorTypes.end(),
                                        [&](const TensorType& t) { return t.name == name; });
  return type == kTensorTypes.end() ? nullptr : type;
}

std::uint64_t header_length(std::string_view bytes) {
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) length = length << 8 | static_cast<unsigned char>(bytes[i]);
  return length;
}

// UTF-8 that the package reads: without halves of surrogate pairs.
bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto c = core::take_utf8(text, at);
    if (!c || core::is_surrogate(*c)) return false;
  }
  return true;
}

// Bytes of a shape's elements; nothing where they are no whole bytes or too many. Lengths of 0 do not hide
// products that overflow.
std::optional<std::int64_t> packed_bytes(const Shape& shape, int bits) {
  std::optional<std::int64_t> all = bits;
  bool is_empty = false;
  for (const std::int64_t length : shape) {
    is_empty = is_empty || length == 0;
    if (all) all = core::checked_mul(*all, std::max<std::int64_t>(length, 1));
  }
  if (!all || (!is_empty && *all % 8 != 0)) return std::nullopt;
  return is_empty ? 0 : *all / 8;
}

std::int64_t whole_number_in(core::JsonReader& reader, std::string_view what) {
  const char first = reader.next();
  const std::string_view text = first >= '0' && first <= '9' ? reader.number() : "";
  if (!is_whole_number(text)) throw core::invalid("the {} has an entry that is no whole number", what);
  const auto value = parse_integer(text);
  if (!value) throw core::invalid("the {} has the entry {}, beyond 64 bits", what, text);
  return *value;
}

std::string string_in(core::JsonReader& reader, std::string_view what) {
  if (reader.next() != '"') throw core::invalid("{} is not a string", what);
  return reader.string();
}

// {"dtype": ..., "shape": [...], "data_offsets": [begin, end]}; other members are ignored, as the package
// does.
void parse_tensor(core::JsonReader& reader, Tensor& tensor) {
  constexpr std::size_t kMostAxes = 64;  // NumPy's limit
  constexpr std::array<std::string_view, 3> kMembers{"dtype", "shape", "data_offsets"};
  std::array<bool, 3> seen{};
  if (reader.next() != '{') throw core::invalid("its entry in the header is no object");
  reader.object([&](const std::string& member) {
    const auto known =
        static_cast<std::size_t>(std::find(kMembers.begin(), kMembers.end(), member) - kMembers.begin());
    if (known == kMembers.size()) return reader.skip();
    if (std::exchange(seen[known], true)) throw core::invalid("its entry has '{}' twice", member);
    if (known == 0) {
      const std::string name = string_in(reader, "the dtype");
      tensor.type = type_named(name);
      if (tensor.type == nullptr)
        throw core::invalid("the dtype is '{}', which safetensors does not have", printable(name, 40));
      return;
    }
    if (reader.next() != '[') throw core::invalid("'{}' is no list", member);
    if (known == 1)
      return reader.list([&] {
        if (tensor.shape.size() == kMostAxes)
          throw core::invalid("the shape has more than {} axes", kMostAxes);
        tensor.shape.push_back(whole_number_in(reader, "shape"));
      });
    std::size_t count = 0;
    reader.list([&] {
      std::int64_t& offset = count++ == 0 ? tensor.begin : tensor.end;
      if (count <= 2)
        offset = whole_number_in(reader, "list of offsets");
      else
        reader.skip();
    });
    if (count != 2) throw core::invalid("there are {} data_offsets, not two", count);
  });
  for (std::size_t i = 0; i < seen.size(); ++i)
    if (!seen[i]) throw core::invalid("its entry lacks '{}'", kMembers[i]);
  if (tensor.end < tensor.begin)
    throw core::invalid("the offsets are reversed, {} to {}", tensor.begin, tensor.end);
  const auto bytes = packed_bytes(tensor.shape, tensor.type->bits);
  if (!bytes)
    throw core::invalid("{} of shape {} has no size in whole bytes of 64 bits", tensor.type->name,
                        to_string(tensor.shape));
  if (*bytes != tensor.end - tensor.begin)
    throw core::invalid("{} of shape {} takes {} bytes, the offsets {} to {} contain {}", tensor.type->name,
                        to_string(tensor.shape), *bytes, tensor.begin, tensor.end, tensor.end - tensor.begin);
}

class SafetensorsContainer final : public ShardContainer {
 public:
  SafetensorsContainer(const std::string& path, const OpenOptions& options) : file_(path, options.untyped) {}

  std::shared_ptr<const ArraySource> array(const std::string& wanted) const override {
    const Tensor* tensor = file_.find(wanted);
    if (tensor == nullptr && wanted.empty() && file_.tensors().size() == 1) tensor = file_.tensors().data();
    if (tensor == nullptr) throw no_such_array(file_.path(), wanted, names(""));
    return file_.open(*tensor, printable(file_.path() + ":" + tensor->name));
  }
  std::vector<std::string> names(const std::string&) const override {
    std::vector<std::string> names;
    for (const Tensor& tensor : file_.tensors()) names.push_back(tensor.name);
    return names;
  }
  std::optional<StoredArray> stored_array(const std::string& name) const override {
    const Tensor* tensor = file_.find(name);
    return tensor == nullptr ? std::nullopt : std::optional(io::stored_array(*tensor));
  }
  std::shared_ptr<const ArraySource> open(const std::string& name, const std::string& shown) const override {
    return file_.open(*file_.find(name), shown);
  }
  std::optional<std::vector<StoredArray>> stored_arrays() const override {
    std::vector<StoredArray> arrays;
    for (const Tensor& tensor : file_.tensors()) arrays.push_back(io::stored_array(tensor));
    return arrays;
  }
  std::map<std::string, std::string> attributes(const std::string& object) const override {
    return object.empty() ? file_.metadata() : std::map<std::string, std::string>();
  }

 private:
  SafetensorsFile file_;
};

}  // namespace

SafetensorsFile::SafetensorsFile(std::string path, UntypedBytes untyped)
    : path_(std::move(path)), untyped_(untyped) {
  const std::string name = printable(path_);
  constexpr std::string_view kWanted = "a safetensors file";
  File file = open_regular_file(path_, name, kWanted);
  const std::int64_t size = size_of_file(file.fd(), name);
  std::array<char, kLengthBytes> start{};
  if (size < kLengthBytes)
    throw core::invalid("{}: {}", name,
                        size == 0 ? "the file is empty" : "the file ends within its first 8 bytes");
  read_all_at(file.fd(), start.data(), kLengthBytes, 0, name);
  const std::uint64_t length = header_length({start.data(), start.size()});
  if (length > kMostHeader) {
    refuse_other_content(file.fd(), name, kWanted);  // the last byte of a length is 0, that of text is not
    throw core::invalid("{}: the header claims {} bytes, more than the {} allowed", name, length,
                        kMostHeader);
  }
  const auto header_bytes = static_cast<std::int64_t>(length);
  if (header_bytes > size - kLengthBytes)
    throw core::invalid("{}: the header claims {} bytes, the file has {} of them", name, length,
                        size - kLengthBytes);
  data_at_ = kLengthBytes + header_bytes;
  {
    std::string text(static_cast<std::size_t>(header_bytes), '\0');
    read_all_at(file.fd(), text.data(), header_bytes, kLengthBytes, name);
    parse_header(text);
  }
  check_positions(size - data_at_);
  data_ = std::make_shared<const MappedFile>(std::move(file), size, name);
}

void SafetensorsFile::parse_header(std::string_view text) {
  core::JsonReader reader(text);
  bool has_metadata = false;
  const auto parse_metadata = [&] {
    if (std::exchange(has_metadata, true)) throw core::invalid("the header has {} twice", kMetadata);
    if (reader.take_word("null")) return;  // as the package reads it
    if (reader.next() != '{') throw core::invalid("{} is no object of strings", kMetadata);
    reader.object([&](const std::string& key) {
      std::string value = string_in(reader, fmt::format("'{}' in {}", printable(key, 60), kMetadata));
      if (!metadata_.emplace(key, std::move(value)).second)
        throw core::invalid("{} has '{}' twice", kMetadata, printable(key, 60));
    });
  };
  std::string at = path_;
  try {
    if (!text.starts_with('{')) throw core::invalid("the header does not begin with '{'");
    reader.object([&](const std::string& name) {
      if (name == kMetadata) return parse_metadata();
      if (!is_utf8(name)) throw core::invalid("a name in the header is not UTF-8");
      at = path_ + ":" + name;
      parse_tensor(reader, tensors_.emplace_back(Tensor{name}));
      at = path_;
    });
    reader.end();
  } catch (Error& error) {
    error.at(printable(at));
    throw;
  }
}

// All data bytes belong to exactly one tensor, and names are distinct.
void SafetensorsFile::check_positions(std::int64_t data_bytes) {
  const auto fault = [&](const Tensor& tensor, const std::string& why) {
    return core::invalid("{}: {}", printable(path_ + ":" + tensor.name), why);
  };
  std::stable_sort(tensors_.begin(), tensors_.end(), [](const Tensor& a, const Tensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::int64_t end = 0;
  for (const Tensor& tensor : tensors_) {
    if (tensor.begin != end)
      throw fault(tensor, fmt::format("its data begins at byte {}, the data before it ends at {}: {}",
                                      tensor.begin, end, tensor.begin < end ? "they overlap" : "a hole"));
    end = tensor.end;
  }
  if (end != data_bytes)
    throw core::invalid("{}: the header describes {} bytes of data, the file has {}", printable(path_), end,
                        data_bytes);
  by_name_.resize(tensors_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0U);
  std::sort(by_name_.begin(), by_name_.end(),
            [&](std::uint32_t a, std::uint32_t b) { return tensors_[a].name < tensors_[b].name; });
  for (std::size_t i = 1; i < by_name_.size(); ++i)
    if (tensors_[by_name_[i]].name == tensors_[by_name_[i - 1]].name)
      throw fault(tensors_[by_name_[i]], "two tensors have this name");
}

const Tensor* SafetensorsFile::find(std::string_view name) const {
  const auto found =
      std::lower_bound(by_name_.begin(), by_name_.end(), name,
                       [&](std::uint32_t i, std::string_view wanted) { return tensors_[i].name < wanted; });
  return found == by_name_.end() || tensors_[*found].name != name ? nullptr : &tensors_[*found];
}

std::shared_ptr<const ArraySource> SafetensorsFile::open(const Tensor& tensor,
                                                         const std::string& name) const {
  ArrayLayout layout;
  layout.shape = tensor.shape;
  layout.offset = data_at_ + tensor.begin;
  if (std::endian::native == std::endian::big && tensor.type->bits > 8)
    layout.byte_order = ByteOrder::swapped;
  if (tensor.type->dtype) {
    layout.dtype = *tensor.type->dtype;
  } else {
    const bool is_packed = tensor.type->bits < 8;
    if (!is_packed || untyped_ == UntypedBytes::refuse)
      throw Error(
          Error::Kind::input,
          fmt::format("{}: the elements have dtype {} ({}), which is not supported", name, tensor.type->name,
                      is_packed ? fmt::format("packed, {} bits each", tensor.type->bits) : "complex numbers"),
          Error::Code::unsupported);
    layout.dtype = DType::uint8;
    if (!layout.shape.empty()) {
      std::int64_t& last = layout.shape.back();
      if (last * tensor.type->bits % 8 != 0)
        throw core::invalid("{}: rows of {} elements of {} bits are no whole bytes", name, last,
                            tensor.type->bits);
      last = *packed_bytes({last}, tensor.type->bits);
    }
  }
  return make_mapped_source(data_->mapping, layout, name, data_->file);
}

StoredArray stored_array(const Tensor& tensor) {
  const std::string_view dtype = tensor.type->dtype ? name_of(*tensor.type->dtype) : tensor.type->name;
  return {tensor.name, std::string(dtype), tensor.shape, tensor.end - tensor.begin};
}

bool begins_as_safetensors(std::string_view begin, std::int64_t size) {
  if (begin.size() <= kLengthBytes || begin[kLengthBytes] != '{') return false;
  const std::uint64_t length = header_length(begin);
  return length >= 2 && length <= kMostHeader && static_cast<std::int64_t>(length) <= size - kLengthBytes;
}

std::shared_ptr<const ShardContainer> open_safetensors_shard(const std::string& path,
                                                             const OpenOptions& options) {
  return std::make_shared<SafetensorsContainer>(path, options);
}

std::shared_ptr<const OpenContainer> open_safetensors(const std::string& path, const OpenOptions& options) {
  return open_safetensors_shard(path, options);
}

namespace {

void check_tensor_names(const WriteJob& job) {
  const auto fault = [&](const std::string& name, std::string_view why) {
    return Error(Error::Kind::output,
                 fmt::format("{}: the array name '{}' {}", printable(job.path), printable(name), why));
  };
  for (const NamedArray& array : job.arrays) {
    if (array.name == kMetadata) throw fault(array.name, "is that of the file's metadata");
    if (!is_utf8(array.name)) throw fault(array.name, "is not UTF-8");
  }
}

// The arrays in the order of the file: large elements first, which keeps all aligned, types of a size as in the
// format's enumeration, and then by name.
std::vector<std::size_t> order_in_file(const std::vector<NamedArray>& arrays) {
  std::vector<std::size_t> order(arrays.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto key = [&](std::size_t i) {
    const core::ElementType& type = core::element_type(arrays[i].source->dtype());
    return std::tuple(-type.size, -type.safetensors_order, std::string_view(arrays[i].name));
  };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
  return order;
}

std::string header_of(const WriteJob& job, const std::vector<std::size_t>& order) {
  core::JsonWriter json(core::JsonStyle::report);
  std::int64_t at = 0;
  json.object([&] {
    for (const std::size_t i : order) {
      const ArraySource& source = *job.arrays[i].source;
      const std::int64_t begin = at;
      at += byte_count(source.shape(), source.dtype());
      json.key(job.arrays[i].name).object([&] {
        json.key("dtype").put(core::element_type(source.dtype()).safetensors);
        json.key("shape").put(source.shape());
        json.key("data_offsets").put(std::vector{begin, at});
      });
    }
  });
  std::string text = json.take();
  text.resize(static_cast<std::size_t>(core::round_up(std::ssize(text), kLengthBytes)), ' ');
  if (std::ssize(text) > kMostHeader)
    throw Error(Error::Kind::output, fmt::format("{}: the header takes {} bytes, more than the {} allowed",
                                                 printable(job.path), text.size(), kMostHeader));
  std::string length;
  for (std::size_t i = 0; i < kLengthBytes; ++i) length += static_cast<char>(text.size() >> (8 * i) & 0xFF);
  return length + text;
}

}  // namespace

void write_safetensors(const WriteJob& job, AtomicFile& file) {
  if constexpr (std::endian::native == std::endian::big)
    throw core::usage("{}: big-endian machines only read safetensors files", printable(job.path));
  check_tensor_names(job);
  const std::vector<std::size_t> order = order_in_file(job.arrays);
  const std::string header = header_of(job, order);
  auto at = std::ssize(header);
  file.reserve(core::checked_add(at, job.bytes()).value_or(INT64_MAX));
  file.write(header.data(), at);
  for (const std::size_t i : order) {
    const ArraySource& source = *job.arrays[i].source;
    const std::int64_t bytes = byte_count(source.shape(), source.dtype());
    const auto fill = job.fill_of(i);
    if (!file.is_temporary()) {
      stream_elements(source, [&](const void* data, std::int64_t n) { file.write(data, n); });
    } else if (fill && bytes > 0) {
      fill({file.path(), file.name(), at, false});
    } else if (threads() > 1 && is_written_in_parallel(source)) {
      write_in_parallel(source, "", file.fd(), at, file.name());
    } else {
      std::int64_t next = at;
      stream_elements(source, [&](const void* data, std::int64_t n) {
        write_all_at(file.fd(), data, n, next, file.name());
        next += n;
      });
    }
    at += bytes;
  }
}

void write_safetensors(const WriteJob& job) {
  AtomicFile file(job.path, job.options.sync);
  write_safetensors(job, file);
  file.commit();
}

void check_safetensors(const WriteJob& job) {
  check_tensor_names(job);
  check_can_write(job.path);
}

}  // namespace ejk::io
