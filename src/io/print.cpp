// Text of arrays for numpy.loadtxt, in one pass.
// tests: tests/io/test_print.cpp
#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>

#include "ejk/io.hpp"
#include "io/element_stream.hpp"
#include "io/file.hpp"

namespace ejk {

namespace {

// The shortest decimal number that rounds to the same 16-bit float (fmt knows it for float and double), of 8 bits to
// the same float32, except that whole numbers stay what they are: 2048 is not 2.05e+03 to someone who reads it as a wider type.
template <class Half>
void append_half(fmt::memory_buffer& out, Half value) {
  const auto exact = static_cast<float>(value);
  if (std::trunc(exact) == exact && std::abs(exact) < 1e6f) {
    fmt::format_to(std::back_inserter(out), "{}", exact);
    return;
  }
  std::array<char, 32> digits{};
  for (int precision = 1; precision <= 9; ++precision) {
    const auto end = fmt::format_to_n(digits.data(), digits.size() - 1, "{:.{}g}", exact, precision);
    *end.out = '\0';
    if (Half(std::strtof(digits.data(), nullptr)).bits == value.bits) break;
  }
  fmt::format_to(std::back_inserter(out), "{}", digits.data());
}

template <class T>
void append(fmt::memory_buffer& out, const std::byte* element) {
  if constexpr (std::is_same_v<T, bool>) {
    out.push_back(*element != std::byte{0} ? '1' : '0');  // a file may contain any byte
  } else {
    T value;
    std::memcpy(&value, element, sizeof value);
    if constexpr (is_small_float<T>) {
      if (sizeof(T) == 1 || !std::isfinite(static_cast<float>(value)))
        append<float>(out, reinterpret_cast<const std::byte*>(std::array{static_cast<float>(value)}.data()));
      else
        append_half(out, value);
    } else if constexpr (std::is_floating_point_v<T>) {
      fmt::format_to(std::back_inserter(out), "{}", std::isnan(value) ? std::abs(value) : value);
    } else {
      fmt::format_to(std::back_inserter(out), "{}", value);
    }
  }
}

}  // namespace

void write_text(std::FILE* out, std::string_view text, std::string_view name) {
  if (std::fflush(out) != 0) throw io::system_error(Error::Kind::output, name, errno);
  io::write_all(fileno(out), text.data(), static_cast<std::int64_t>(text.size()), name);
}

void print_array(std::FILE* out, const ArraySource& array) {
  const Shape& shape = array.shape();
  const std::int64_t line = shape.empty() ? 1 : shape.back();
  const std::int64_t slice = shape.size() < 3 ? 0 : line * shape[shape.size() - 2];  // 0: no blank lines
  std::int64_t printed = 0;
  fmt::memory_buffer text;
  const auto flush = [&] {
    write_text(out, {text.data(), text.size()}, "standard output");
    text.clear();
  };
  const std::int64_t size = size_of(array.dtype());
  io::stream_elements(array, [&](const void* data, std::int64_t bytes) {
    dispatch(array.dtype(), [&]<class T>(std::type_identity<T>) {
      for (std::int64_t i = 0; i < bytes; i += size) {
        if (slice > 0 && printed > 0 && printed % slice == 0) text.push_back('\n');
        append<T>(text, static_cast<const std::byte*>(data) + i);
        text.push_back(++printed % line == 0 ? '\n' : ' ');
        if (text.size() > (std::size_t{1} << 16)) flush();
      }
    });
  });
  flush();
}

}  // namespace ejk
