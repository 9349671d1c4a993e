// Recognition of integer arrays by their elements: masks, position ids, segment ids.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>

namespace ejk::core {

/// The only value other than 0; 0 if there is none, nothing if there are several. If it is a power of two,
/// the "or" of all elements decides.
template <class T>
std::optional<T> only_value(const T* in, std::int64_t n) {
  T any = 0;
  for (std::int64_t i = 0; i < n; ++i) any = static_cast<T>(any | in[i]);
  if ((any & (any - 1)) == 0) return any;
  const T value = *std::find_if(in, in + n, [](T v) { return v != 0; });
  const bool is_only = std::all_of(in, in + n, [&](T v) { return v == 0 || v == value; });
  return is_only ? std::optional(value) : std::nullopt;
}

/// Whether integers are a mask: 0 and one other value in all pieces. Thread-safe.
class OnlyValue {
 public:
  /// For unsigned types. False: these elements, or those of an earlier piece, contain a third value.
  template <class T>
  bool holds(const T* in, std::int64_t n) {
    const auto value = only_value(in, n);
    if (value == T{0}) return true;
    std::uint64_t known = 0;
    return value && (value_ == *value || value_.compare_exchange_strong(known, *value) || known == *value);
  }
  /// 0: none yet.
  std::uint64_t value() const { return value_; }

 private:
  std::atomic<std::uint64_t> value_ = 0;
};

/// Whether a row is position ids of consecutive sequences: it begins with 0, and each element is 0 or its
/// predecessor plus one. Negative elements at the end are padding.
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

/// Whether a row is position ids that begin within a sequence, as those of a later chunk: positions from one
/// above 0 up, then consecutive sequences. A single 1 before those is left padding instead.
template <class T>
bool are_later_positions(std::span<const T> row) {
  std::size_t n = 1;
  if (row.empty() || row[0] <= 0) return false;
  while (n < row.size() && row[n - 1] < std::numeric_limits<T>::max() && row[n] == row[n - 1] + 1) ++n;
  if (n == 1 && row[0] == 1) return false;
  return n == row.size() || are_positions(row.subspan(n)) ||
         std::all_of(row.begin() + static_cast<std::ptrdiff_t>(n), row.end(), [](T id) { return id < 0; });
}

/// Whether a row is segment ids: runs of equal elements, numbered from 0 or 1 on in the order of their first
/// elements, of at least two elements on average.
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
