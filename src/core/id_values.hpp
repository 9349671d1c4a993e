// What an array of integers can be, by its elements: a mask, position ids or segment ids.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include "ejk/dtype.hpp"

namespace ejk::core {

/// The index of the first of n elements that a mask does not hold, or n. A mask of integers holds 0 and 1; one of
/// uint8 may hold 255 as well, as pictures do.
inline std::int64_t first_beyond_mask(const std::byte* elements, std::int64_t n, DType dtype) {
  std::int64_t first = n;
  dispatch(dtype, [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      const T* values = reinterpret_cast<const T*>(elements);
      const auto beyond = [](T x) {
        return std::is_same_v<T, std::uint8_t> ? x != 0 && x != 1 && x != 255 : x != 0 && x != 1;
      };
      constexpr std::int64_t kAtOnce =
          4096;  // without a branch, so that the loop becomes vector instructions
      for (std::int64_t begin = 0; begin < n; begin += kAtOnce) {
        const std::int64_t end = std::min(n, begin + kAtOnce);
        bool any = false;
        for (std::int64_t i = begin; i < end; ++i) any |= beyond(values[i]);
        if (!any) continue;
        first = std::find_if(values + begin, values + end, beyond) - values;
        return;
      }
    }
  });
  return first;
}

/// Whether a row is position ids of sequences that follow one another: it begins with 0, and each element is 0 or
/// one more than the one before. Negative elements at the end are padding.
template <class T>
bool are_positions(std::span<const T> row) {
  std::size_t n = row.size();
  while (n > 0 && row[n - 1] < 0) --n;
  if (n == 0 || row[0] != 0) return false;
  for (std::size_t i = 1; i < n; ++i)
    if (row[i] != 0 && (row[i - 1] == std::numeric_limits<T>::max() || row[i] != row[i - 1] + 1))
      return false;
  return true;
}

/// Whether a row is segment ids: runs of equal elements that are numbered in the order of their first elements, from 0
/// or 1 on, and hold two elements or more on average.
inline bool are_labels(std::span<const std::int64_t> row) {
  if (row.size() < 4 || row[0] < 0 || row[0] > 1) return false;
  std::size_t runs = 1;
  std::int64_t largest = row[0];
  for (std::size_t i = 1; i < row.size(); ++i) {
    if (row[i] == row[i - 1]) continue;
    if (row[i] < 0 || row[i] > largest + 1) return false;
    largest = std::max(largest, row[i]);
    ++runs;
  }
  return runs > 1 && 2 * runs <= row.size();
}

}  // namespace ejk::core
