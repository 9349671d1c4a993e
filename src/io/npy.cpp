// .npy files. The header, a Python literal, is checked against the file's size before mapping. A stream is
// read once, into memory that grows with the data. Large arrays are written by several threads at known
// offsets.
// tests: tests/io/test_npy.cpp
#include "io/npy.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdio>

#include "core/checked.hpp"
#include "core/element_types.hpp"
#include "core/named.hpp"
#include "ejk/program/text.hpp"
#include "ejk/threads.hpp"
#include "io/other_content.hpp"
#include "io/parallel_write.hpp"

namespace ejk::io {

namespace {

[[noreturn]] void refuse(std::string why, Error::Code code = Error::Code::other) {
  throw Error(Error::Kind::input, std::move(why), code);
}

// What NumPy reads and we do not.
[[noreturn]] void refuse_type(const std::string& what) {
  refuse(what + ", which is not supported", Error::Code::unsupported);
}

Error untyped_bytes(const std::string& what, DType may_be) {
  return Error(Error::Kind::input, what + ", a byte without a type of ejk", Error::Code::untyped_bytes)
      .hint(std::string(name_of(may_be)));
}

// The types that NumPy has beside ours, by a letter and a size; nothing where it has none of that code.
std::string_view kind_of_refused(std::string_view code) {
  const char letter = code.empty() ? '\0' : code[0];
  const bool is_time = letter == 'M' || letter == 'm';  // followed by a unit, "[ns]"
  std::string_view size = code.substr(std::min<std::size_t>(code.size(), 1));
  if (is_time) size = size.substr(0, 1);
  if (size.find_first_not_of("0123456789") != std::string_view::npos) return "";
  constexpr std::pair<char, std::string_view> kKinds[] = {
      {'O', "Python objects"}, {'S', "byte strings"},     {'a', "byte strings"},
      {'U', "strings"},        {'c', "complex numbers"},  {'M', "datetimes"},
      {'V', "raw bytes"},      {'m', "time differences"}, {'f', "floats of another size"}};
  for (const auto& [code_letter, kind] : kKinds)
    if (letter == code_letter) return kind;
  return "";
}

void parse_descr(std::string_view descr, ArrayLayout& layout, UntypedBytes untyped) {
  std::string_view code = descr;
  char order = '|';
  if (!code.empty() && std::string_view("<>|=").find(code[0]) != std::string_view::npos) {
    order = code[0];
    code.remove_prefix(1);
  }
  const std::string named = fmt::format("the elements have dtype '{}'", printable(descr, 40));
  const bool is_e5m2 = code == "f1";  // as ml_dtypes writes it; NumPy does not load it
  for (const core::ElementType& type : core::kElementTypes) {
    if (is_e5m2 ? type.dtype != DType::float8_e5m2 : type.npy != code) continue;
    layout.dtype = type.dtype;
    if (is_8_bit_float(type.dtype)) {  // or another that is written so
      if (untyped == UntypedBytes::refuse) throw untyped_bytes(named, type.dtype);
      layout.dtype = DType::uint8;
    }
    constexpr char kOther = std::endian::native == std::endian::little ? '>' : '<';
    if (order == kOther && type.size > 1) layout.byte_order = ByteOrder::swapped;
    return;
  }
  const std::string_view kind = kind_of_refused(code);
  if (kind.empty()) refuse(named + ", which NumPy does not know");
  refuse_type(fmt::format("{} ({})", named, kind));
}

// The header's text, a Python literal of which just so much is understood:
//   header  := '{' [pair {',' pair} [',']] '}' blanks
//   pair    := string ':' (string | 'True' | 'False' | '(' [integer {',' integer} [',']] ')')
//   integer := ['-'] digit {['_'] digit} ['L'], without leading zeros
// The L is Python 2's, whose NumPy wrote versions 1 and 2 only.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, int version, UntypedBytes untyped)
      : text_(text), may_have_l_(version <= 2), untyped_(untyped) {}

  void parse(ArrayLayout& layout) {
    bool descr = false, order = false, shape = false;
    const auto once = [](bool& seen, std::string_view key) {
      if (seen) refuse(fmt::format("the header has the key '{}' twice", key));
      seen = true;
    };
    expect('{');
    while (!accept('}')) {
      const std::string_view key = string();
      expect(':');
      if (key == "descr") {
        once(descr, key);
        if (peek() == '[') refuse_type("the elements are structured (a dtype with fields)");
        if (peek() == '(') refuse_type("the elements are small arrays (a subarray dtype)");
        parse_descr(string(), layout, untyped_);
      } else if (key == "fortran_order") {
        once(order, key);
        layout.element_order = boolean() ? ElementOrder::fortran : ElementOrder::c;
      } else if (key == "shape") {
        once(shape, key);
        layout.shape = tuple();
      } else {
        refuse(fmt::format("the header has an unknown key '{}'", printable(key, 40)));
      }
      if (!accept(',') && peek() != '}') malformed();
    }
    if (peek() != '\0' || at_ != text_.size()) malformed();
    if (!descr || !order || !shape)
      refuse(fmt::format("the header lacks '{}'", !descr ? "descr" : !order ? "fortran_order" : "shape"));
  }

 private:
  [[noreturn]] void malformed() const {
    refuse(fmt::format("the header is malformed at byte {}: '{}'", at_,
                       printable(text_.substr(std::min(at_, text_.size())), 20)));
  }
  // The next character that is no blank; NUL at the end.
  char peek() {
    while (at_ < text_.size() && std::string_view(" \t\n\r\f").find(text_[at_]) != std::string_view::npos)
      ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool accept(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) malformed();
  }
  std::string_view string() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') malformed();
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) malformed();
    const std::string_view s = text_.substr(at_ + 1, end - at_ - 1);
    if (s.find('\\') != std::string_view::npos) malformed();
    at_ = end + 1;
    return s;
  }
  bool boolean() {
    peek();
    for (const std::string_view word : {"True", "False"}) {
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += word.size();
      return word == "True";
    }
    malformed();
  }
  std::int64_t length() {
    peek();
    const std::size_t begin = at_;
    const auto is_digit = [&](std::size_t i) {
      return i < text_.size() && text_[i] >= '0' && text_[i] <= '9';
    };
    std::string digits;
    if (text_.substr(at_).starts_with('-')) digits += text_[at_++];
    const std::size_t first = at_;
    while (is_digit(at_)) {
      digits += text_[at_++];
      if (at_ < text_.size() && text_[at_] == '_' && is_digit(at_ + 1)) ++at_;
    }
    const std::string_view number = text_.substr(first, at_ - first);
    if (number.empty() || (number[0] == '0' && number.find_first_not_of("0_") != std::string_view::npos)) {
      at_ = begin;
      malformed();
    }
    if (may_have_l_ && at_ < text_.size() && text_[at_] == 'L') ++at_;
    const auto value = parse_integer(digits);
    if (!value) refuse("the shape has a length that does not fit 64 bits");
    if (*value < 0) refuse(fmt::format("the shape has a negative length, {}", *value));
    return *value;
  }
  Shape tuple() {
    Shape shape;
    expect('(');
    while (!accept(')')) {
      shape.push_back(length());
      const bool comma = accept(',');
      if (!comma && (peek() != ')' || shape.size() == 1)) malformed();  // (3) is a number, (3,) a tuple
    }
    if (shape.size() > kMaxRank)
      refuse(fmt::format("the shape has {} axes, more than NumPy's {}", shape.size(), kMaxRank));
    return shape;
  }

  std::string_view text_;
  bool may_have_l_;
  UntypedBytes untyped_;
  std::size_t at_ = 0;
};

// What the file is instead, by its first bytes.
std::string_view looks_like(std::string_view bytes) {
  if (bytes.starts_with("PK\x03\x04") || bytes.starts_with("PK\x05\x06")) return "; it begins like an .npz";
  if (bytes.starts_with("\x89HDF\r\n")) return "; it begins like an HDF5 file";
  if (bytes.starts_with("MATLAB")) return "; it begins like a file of MATLAB";
  return "";
}

// For data whose end is known: the promise must be kept to the byte.
void check_size(const ArrayLayout& layout, std::int64_t stored) {
  const std::int64_t promised = byte_count(layout.shape, layout.dtype);
  if (promised != stored)
    refuse(fmt::format("header promises {} bytes of data, the file holds {}", promised, stored));
}

}  // namespace

ArrayLayout read_npy_header(const ReadBytes& read, UntypedBytes untyped) {
  std::array<char, 8> start{};
  const std::size_t got = read(start.data(), start.size());
  const std::string_view bytes(start.data(), got);
  if (got == 0) refuse("the file is empty");
  if (!bytes.starts_with(kNpyMagic.substr(0, std::min(got, kNpyMagic.size())))) {
    std::array<char, kFirstBytes> more{};
    std::copy_n(start.data(), got, more.data());
    const std::size_t rest = got < start.size() ? 0 : read(more.data() + got, more.size() - got);
    if (auto other = other_content({more.data(), got + rest}, "a NumPy file")) throw Error(std::move(*other));
    refuse(fmt::format("not a NumPy file (no NumPy magic at its start{})", looks_like(bytes)));
  }
  if (got < start.size()) refuse("the file ends within its header");
  const int major = static_cast<unsigned char>(start[6]), minor = static_cast<unsigned char>(start[7]);
  if (major < 1 || major > 3 || minor != 0)
    refuse(fmt::format("header version {}.{} is unknown (1.0, 2.0 and 3.0 are)", major, minor));

  const std::size_t width = major == 1 ? 2 : 4;
  std::array<unsigned char, 4> length_bytes{};
  if (read(length_bytes.data(), width) != width) refuse("the file ends within its header");
  std::size_t length = 0;
  for (std::size_t i = width; i-- > 0;) length = length << 8 | length_bytes[i];
  if (length > kMaxNpyHeader)
    refuse(fmt::format("the header claims {} bytes, more than the {} allowed", length, kMaxNpyHeader));
  std::string text(length, '\0');
  if (const std::size_t stored = read(text.data(), length); stored != length)
    refuse(fmt::format("the header claims {} bytes, the file holds {} of them", length, stored));

  ArrayLayout layout;
  HeaderParser(text, major, untyped).parse(layout);
  byte_count(layout.shape, layout.dtype);  // an Error when the product does not fit
  layout.offset = static_cast<std::int64_t>(start.size() + width + length);
  return layout;
}

std::string npy_header(DType dtype, std::span<const std::int64_t> shape) {
  const char order = size_of(dtype) == 1 ? '|' : std::endian::native == std::endian::little ? '<' : '>';
  std::string text = fmt::format("{{'descr': '{}{}', 'fortran_order': False, 'shape': {}, }}", order,
                                 core::element_type(dtype).npy, to_string(shape));
  // NumPy leaves room for the first length to grow to 21 digits, then fills up to a multiple of 64.
  if (!shape.empty()) text.append(21 - fmt::formatted_size("{}", shape[0]), ' ');
  constexpr std::size_t kBefore = 10, kAlign = 64;
  text.append(kAlign - (kBefore + text.size() + 1) % kAlign, ' ');
  text += '\n';
  std::string header(kNpyMagic);
  header += '\1';
  header += '\0';
  header += static_cast<char>(text.size() & 0xFF);
  header += static_cast<char>(text.size() >> 8);
  return header + text;
}

void write_npy(const ArraySource& source, const Sink& sink) {
  stream_elements(source, sink, npy_header(source.dtype(), source.shape()));
}

void write_npy(const ArraySource& source, AtomicFile& file, const FillElements& fill) {
  const std::int64_t bytes = byte_count(source.shape(), source.dtype());
  file.reserve(bytes);
  if (fill && file.is_temporary() && bytes > 0) {
    const std::string header = npy_header(source.dtype(), source.shape());
    const auto before = static_cast<std::int64_t>(header.size());
    file.write(header.data(), before);
    fill({file.path(), file.name(), before, false});
    return;
  }
  if (file.is_temporary() && threads() > 1 && is_written_in_parallel(source)) {
    write_in_parallel(source, npy_header(source.dtype(), source.shape()), file.fd(), 0, file.name());
    return;
  }
  write_npy(source, [&](const void* data, std::int64_t n) { file.write(data, n); });
}

void write_npy_file(const WriteJob& job) {
  AtomicFile file(job.path, job.options.sync);
  write_npy(*job.arrays[0].source, file, job.fill_of(0));
  file.commit();
}

void check_npy_file(const WriteJob& job) { check_can_write(job.path); }

void write_stdout(const WriteJob& job) {
  if (std::fflush(stdout) != 0) throw system_error(Error::Kind::output, "standard output", errno);
  write_npy(*job.arrays[0].source,
            [](const void* data, std::int64_t n) { write_all(STDOUT_FILENO, data, n, "standard output"); });
  if (job.options.sync == Sync::now) sync_now(STDOUT_FILENO, "standard output");
}

void check_stdout(const WriteJob&) {}

namespace {

// All of a regular file.
std::shared_ptr<const ArraySource> map_npy(File file, const std::string& name, UntypedBytes untyped) {
  const std::int64_t size = size_of_file(file.fd(), name);
  const ArrayLayout layout = core::named(name, [&] {
    ArrayLayout found = read_npy_header(
        [&](void* to, std::size_t n) { return read_some(file.fd(), to, n, "reading the header"); }, untyped);
    check_size(found, size - found.offset);
    return found;
  });
  MappedFile mapped(std::move(file), size, name);
  return make_mapped_source(std::move(mapped.mapping), layout, name, std::move(mapped.file));
}

}  // namespace

std::shared_ptr<const ArraySource> open_npy(const std::string& path, const OpenOptions& options) {
  const std::string name = printable(path);
  File file = open_for_reading(path, name);
  if (!is_regular(file.fd(), name))
    return read_npy_stream(file.fd(), name, options.max_memory, options.untyped);
  return map_npy(std::move(file), name, options.untyped);
}

std::shared_ptr<const ArraySource> open_npy_in_folder(const std::string& path, const OpenOptions& options) {
  const std::string name = printable(path);
  return map_npy(open_regular_file(path, name, "an array of a folder"), name, options.untyped);
}

std::shared_ptr<const ArraySource> read_npy_stream(int fd, const std::string& name, std::int64_t max_memory,
                                                   UntypedBytes untyped) {
  return core::named(name, [&] {
    const auto read = [&](void* to, std::size_t n) { return read_some(fd, to, n, "reading"); };
    ArrayLayout layout = read_npy_header(read, untyped);
    layout.offset = 0;
    const std::int64_t promised = byte_count(layout.shape, layout.dtype);
    if (max_memory > 0 && promised > max_memory)
      throw Error(Error::Kind::budget,
                  fmt::format("a stream is held in memory, and its {} are more than the {} allowed",
                              format_bytes(promised), format_bytes(max_memory)));
    // Twice as much room whenever it is full, so that a header alone can claim nothing.
    constexpr std::int64_t kFirst = std::int64_t{1} << 20;
    Mapping data =
        Mapping::of_memory(std::max<std::int64_t>(1, std::min(promised, kFirst)), Mapping::Sharing::own);
    std::int64_t stored = 0;
    while (stored < promised) {
      if (stored == data.bytes()) data.grow(stored <= promised / 2 ? 2 * stored : promised);
      const std::int64_t space = std::min(data.bytes(), promised) - stored;
      const auto got = static_cast<std::int64_t>(read(data.data() + stored, static_cast<std::size_t>(space)));
      stored += got;
      if (got < space) check_size(layout, stored);
    }
    char extra = 0;
    if (read(&extra, 1) != 0)
      refuse(fmt::format("more follows the {} bytes that the header promises", promised));
    return make_mapped_source(std::make_shared<const Mapping>(std::move(data)), layout, name);
  });
}

int take_stdin() {
  static std::atomic<bool> taken = false;
  if (taken.exchange(true)) throw Error(Error::Kind::usage, "-: standard input can be read only once");
  return STDIN_FILENO;
}

std::shared_ptr<const ArraySource> open_stdin(const std::string&, const OpenOptions& options) {
  return read_npy_stream(take_stdin(), "-", options.max_memory, options.untyped);
}

}  // namespace ejk::io
