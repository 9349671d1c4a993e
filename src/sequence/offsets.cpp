// tests: tests/sequence/test_sequence.cpp
#include "sequence/offsets.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace ejk::sequence {

namespace {

Error invalid(const ArraySource& source, std::string why) {
  return std::move(Error(Error::Kind::input, std::move(why)).at(source.name()));
}

}  // namespace

std::vector<std::int64_t> read_integers(const ArraySource& source, const char* what) {
  if (source.shape().size() != 1)
    throw invalid(source, fmt::format("{} is a 1-D array, not of shape {}", what, to_string(source.shape())));
  if (!is_integer(source.dtype()))
    throw invalid(source, fmt::format("{} is of an integer dtype, not {}", what, name_of(source.dtype())));
  const Array raw = read_all(source);
  std::vector<std::int64_t> values(static_cast<std::size_t>(raw.size()));
  dispatch(raw.dtype(), [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      const auto from = raw.elements<T>();
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (!std::in_range<std::int64_t>(from[i]))
          throw invalid(source, fmt::format("{}[{}] is {}, beyond 63 bits", what, i, from[i]));
        values[i] = static_cast<std::int64_t>(from[i]);
      }
    }
  });
  return values;
}

std::vector<std::int64_t> read_offsets(const ArraySource& source) {
  std::vector<std::int64_t> cu = read_integers(source, "cu_seqlens");
  if (cu.empty()) throw invalid(source, "cu_seqlens has no element; it begins with 0");
  if (cu[0] != 0) throw invalid(source, fmt::format("cu_seqlens[0] is {}, not 0", cu[0]));
  for (std::size_t i = 1; i < cu.size(); ++i)
    if (cu[i] < cu[i - 1])
      throw invalid(source,
                    fmt::format("cu_seqlens decreases at index {}: {} after {}", i, cu[i], cu[i - 1]));
  return cu;
}

Array to_array(const std::vector<std::int64_t>& values, DType dtype, const char* what) {
  Array result(dtype, {static_cast<std::int64_t>(values.size())});
  dispatch(dtype, [&]<class T>(std::type_identity<T>) {
    const auto refuse = [&](std::size_t i) {
      throw Error(Error::Kind::input,
                  fmt::format("{}[{}] is {}, which {} cannot hold", what, i, values[i], name_of(dtype)))
          .hint("--dtype int64 holds more");
    };
    const auto to = result.elements<T>();
    for (std::size_t i = 0; i < values.size(); ++i) {
      if constexpr (std::is_same_v<T, bool>) {
        throw Error(Error::Kind::usage, fmt::format("{} cannot be bool", what));
      } else if constexpr (std::is_integral_v<T>) {
        if (!std::in_range<T>(values[i])) refuse(i);
        to[i] = static_cast<T>(values[i]);
      } else {
        // Rounded, an offset would name another token.
        const auto rounded = static_cast<double>(values[i]);
        to[i] = static_cast<T>(
            static_cast<std::conditional_t<std::is_same_v<T, double>, double, float>>(rounded));
        const auto back = static_cast<double>(
            static_cast<std::conditional_t<std::is_same_v<T, double>, double, float>>(to[i]));
        if (!(back < 9.3e18) || static_cast<std::int64_t>(back) != values[i]) refuse(i);
      }
    }
  });
  return result;
}

}  // namespace ejk::sequence
