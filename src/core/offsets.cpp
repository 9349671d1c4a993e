// 1-D integer arrays, widened to 64 bits. Cost: 8 bytes an element.
// tests: tests/core/test_offsets.cpp
#include "core/offsets.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>

#include "core/axis.hpp"
#include "core/id_values.hpp"
#include "core/require.hpp"

namespace ejk::core {

namespace {

Error invalid(const ArraySource& source, std::string why, Error::Code code = Error::Code::other) {
  return std::move(Error(Error::Kind::input, std::move(why), code).at(source.name()));
}

void check_kind(const ArraySource& source, const char* what) {
  if (source.shape().size() != 1) {
    const bool rows = source.shape().size() == 2;
    const bool perhaps_mask = rows && source.shape()[0] > 1 && std::string_view(what) == "cu_seqlens";
    Error error = invalid(
        source, fmt::format("{} must be a 1-D array, not of shape {}", what, to_string(source.shape())),
        perhaps_mask ? Error::Code::not_offsets : Error::Code::other);
    if (rows) error.hint(fmt::format("take one row with a slice: \"{}[0]\"", source.name()));
    throw error;
  }
  const bool takes_flags =
      std::string_view(what) == "segment ids" || std::string_view(what) == "has_initial_state";
  const bool is_flag = source.dtype() == DType::boolean && takes_flags;
  if (!is_integer(source.dtype()) && !is_flag)
    throw invalid(source, fmt::format("{} must be integers, not {}", what, name_of(source.dtype())),
                  is_float(source.dtype()) ? Error::Code::not_integers : Error::Code::other);
}

// The elements of an integer array; `first` is the index of the first one.
std::vector<std::int64_t> widened(const ArraySource& source, const char* what, const Array& raw,
                                  std::int64_t first) {
  std::vector<std::int64_t> values;
  values.reserve(static_cast<std::size_t>(raw.size()));
  dispatch(raw.dtype(), [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_same_v<T, bool>)
      for (const std::byte value : std::span(raw.data(), static_cast<std::size_t>(raw.size())))
        values.push_back(value != std::byte{0} ? 1 : 0);
    else if constexpr (std::is_integral_v<T>)
      for (const T value : raw.elements<T>()) {
        if (!std::in_range<std::int64_t>(value))
          throw invalid(source, fmt::format("{}[{}] is {}, beyond 63 bits", what,
                                            first + static_cast<std::int64_t>(values.size()), value));
        values.push_back(static_cast<std::int64_t>(value));
      }
  });
  return values;
}

}  // namespace

void read_integer_box(const ArraySource& source, const Shape& start, const Shape& count,
                      std::vector<std::byte>& raw, std::int64_t* out) {
  const std::int64_t n = element_count(count);
  raw.resize(static_cast<std::size_t>(n * size_of(source.dtype())));
  source.read(start, count, raw.data());
  dispatch(source.dtype(), [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_same_v<T, bool>) {
      std::transform(raw.begin(), raw.end(), out, [](std::byte b) { return b != std::byte{0} ? 1 : 0; });
    } else if constexpr (std::is_integral_v<T>) {
      const T* values = reinterpret_cast<const T*>(raw.data());
      bool fits = true;
      for (std::int64_t i = 0; i < n; ++i) {
        out[i] = static_cast<std::int64_t>(values[i]);
        fits &= std::in_range<std::int64_t>(values[i]);
      }
      if (fits) return;
      const std::int64_t at =
          std::find_if(values, values + n, [](T x) { return !std::in_range<std::int64_t>(x); }) - values;
      Shape index = index_of(count, at);
      for (std::size_t d = 0; d < index.size(); ++d) index[d] += start[d];
      throw invalid(source, fmt::format("element {} is {}, beyond 63 bits", to_string(index), values[at]));
    }
  });
}

std::vector<std::int64_t> read_integers(const ArraySource& source, const char* what) {
  check_kind(source, what);
  return widened(source, what, read_all(source), 0);
}

namespace {

std::vector<std::int64_t> read_offsets_from(const ArraySource& cu_seqlens, FirstOffset first) {
  std::vector<std::int64_t> cu = read_integers(cu_seqlens, "cu_seqlens");
  if (cu.empty()) throw invalid(cu_seqlens, "cu_seqlens has no element; it begins with 0");
  if (cu[0] < 0 || (cu[0] > 0 && first == FirstOffset::zero))
    throw invalid(cu_seqlens, fmt::format("cu_seqlens[0] is {}, not 0", cu[0]),
                  are_labels(cu) ? Error::Code::segment_ids
                  : cu[0] > 0    ? Error::Code::not_offsets
                                 : Error::Code::other);
  const auto decrease = std::adjacent_find(cu.begin(), cu.end(), std::greater<>());
  if (decrease == cu.end()) return cu;
  const std::size_t i = static_cast<std::size_t>(decrease - cu.begin()) + 1;
  // -1 or 0 to the end are no offsets: the array is a buffer for more sequences than there are.
  const bool is_filled =
      (cu[i] == -1 || cu[i] == 0) &&
      std::all_of(decrease + 1, cu.end(), [&](std::int64_t offset) { return offset == cu[i]; });
  const bool are_ids = are_positions<std::int64_t>(cu);
  if (is_filled && !are_ids)
    throw std::move(
        invalid(cu_seqlens, fmt::format("cu_seqlens is filled up with {} from index {} on", cu[i], i))
            .hint(fmt::format("the offsets are \"{}[:{}]\"", cu_seqlens.name(), i)));
  throw invalid(cu_seqlens, fmt::format("cu_seqlens decreases at index {}: {} after {}", i, cu[i], cu[i - 1]),
                are_ids ? Error::Code::position_ids : Error::Code::other);
}

}  // namespace

std::vector<std::int64_t> read_offsets(const ArraySource& cu_seqlens) {
  return read_offsets_from(cu_seqlens, FirstOffset::zero);
}

PaddedSequences read_padded_sequences(const ArraySource& cu_seqlens, const ArraySource& padded,
                                      FirstOffset first) {
  const std::vector<std::int64_t> cu = read_offsets(cu_seqlens);
  PaddedSequences sequences{read_offsets_from(padded, first), {}};
  const std::vector<std::int64_t>& begins = sequences.begins;
  if (cu.size() != begins.size())
    throw invalid(padded, fmt::format("with padding there are {} sequences, and {} by {}", begins.size() - 1,
                                      cu.size() - 1, cu_seqlens.name()));
  for (std::size_t i = 0; i + 1 < cu.size(); ++i) {
    const std::int64_t length = cu[i + 1] - cu[i], space = begins[i + 1] - begins[i];
    if (length > space)
      throw invalid(padded, fmt::format("sequence {} has {} tokens with its padding, and {} without by {}", i,
                                        space, length, cu_seqlens.name()));
    sequences.lengths.push_back(length);
  }
  return sequences;
}

std::int64_t read_last_offset(const ArraySource& cu_seqlens) {
  check_kind(cu_seqlens, "cu_seqlens");
  const std::int64_t n = cu_seqlens.shape()[0];
  if (n == 0) throw invalid(cu_seqlens, "cu_seqlens has no element; it begins with 0");
  Array last(cu_seqlens.dtype(), {1});
  cu_seqlens.read(Shape{n - 1}, Shape{1}, last.data());
  return widened(cu_seqlens, "cu_seqlens", last, n - 1)[0];
}

Array to_array(const std::vector<std::int64_t>& values, DType dtype, const char* what) {
  Array result(dtype, {static_cast<std::int64_t>(values.size())});
  dispatch(dtype, [&]<class T>(std::type_identity<T>) {
    const auto refuse = [&](std::size_t i) {
      throw Error(Error::Kind::input,
                  fmt::format("{}[{}] is {}, which {} cannot hold", what, i, values[i], name_of(dtype)),
                  Error::Code::exceeds_dtype);
    };
    const auto to = result.elements<T>();
    for (std::size_t i = 0; i < values.size(); ++i) {
      if constexpr (std::is_same_v<T, bool>) {
        throw core::usage("{} cannot be bool", what);
      } else if constexpr (std::is_integral_v<T>) {
        if (!std::in_range<T>(values[i])) refuse(i);
        to[i] = static_cast<T>(values[i]);
      } else {
        // Rounded, an offset would name another token.
        const auto rounded = static_cast<double>(values[i]);
        to[i] = static_cast<T>(static_cast<Computed<T>>(rounded));
        const auto back = static_cast<double>(static_cast<Computed<T>>(to[i]));
        if (!(back < 9.3e18) || static_cast<std::int64_t>(back) != values[i]) refuse(i);
      }
    }
  });
  return result;
}

}  // namespace ejk::core
