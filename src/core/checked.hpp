// Arithmetic on sizes that detects overflow.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>

namespace ejk::core {

inline std::optional<std::int64_t> checked_mul(std::int64_t a, std::int64_t b) {
  std::int64_t r = 0;
  if (__builtin_mul_overflow(a, b, &r)) return std::nullopt;
  return r;
}

inline std::optional<std::int64_t> checked_add(std::int64_t a, std::int64_t b) {
  std::int64_t r = 0;
  if (__builtin_add_overflow(a, b, &r)) return std::nullopt;
  return r;
}

/// Upper limit of memory estimates: more than any machine has, but sums and doubles of it do not overflow.
inline constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;

/// An estimate computed as a double, at most kMostBytes.
inline std::int64_t bytes_of_estimate(double bytes) {
  return static_cast<std::int64_t>(std::min(bytes, static_cast<double>(kMostBytes)));
}

/// The sum of sizes in bytes, at most kMostBytes.
inline std::int64_t sum_of_bytes(std::initializer_list<std::int64_t> sizes) {
  std::int64_t all = 0;
  for (const std::int64_t size : sizes) all = std::min(kMostBytes, all + std::min(kMostBytes, size));
  return all;
}

/// ceil(a / b) for a ≥ 0, b ≥ 1.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

/// The smallest multiple of b that is at least a, for a ≥ 0, b ≥ 1.
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

}  // namespace ejk::core
