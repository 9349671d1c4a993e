// Counter-based random words, and elementary functions whose every step is one rounded operation:
// bit-identical on every machine.
// tests: tests/arrays/test_generate.cpp
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace ejk::arrays {

using Key = std::array<std::uint32_t, 2>;

/// Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror and Shaw, SC 2011): two words for each counter.
inline Key threefry(const Key& key, std::uint32_t high, std::uint32_t low) {
  constexpr int kRotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const std::uint32_t keys[3] = {key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDAu};
  std::uint32_t a = high + keys[0], b = low + keys[1];
  for (std::uint32_t round = 0; round < 5; ++round) {
    for (const int rotation : kRotations[round % 2]) {
      a += b;
      b = std::rotl(b, rotation) ^ a;
    }
    a += keys[(round + 1) % 3];
    b += keys[(round + 2) % 3] + round + 1;
  }
  return {a, b};
}

/// The words for element n, which are its number's upper and lower half.
inline Key words_of(const Key& key, std::int64_t n) {
  const auto u = static_cast<std::uint64_t>(n);
  return threefry(key, static_cast<std::uint32_t>(u >> 32), static_cast<std::uint32_t>(u));
}

/// ln x for finite x > 0, to some 1e-16.
double log_of(double x);

/// e^x for |x| < 700.
double exp_of(double x);

/// The inverse of the error function, for -1 < x < 1, to some 3e-7 of it: M. Giles, "Approximating the erfinv
/// function", GPU Computing Gems, 2011, single precision.
double erfinv(double x);

/// Draws in order: uniform numbers, whole numbers below a bound, normal numbers.
class Draws {
 public:
  /// `stream` keeps apart what is drawn for different purposes from one seed.
  Draws(std::int64_t seed, std::uint32_t stream) : key_(words(seed, stream)) {}

  std::uint64_t bits() {
    const Key words = words_of(key_, next_++);
    return static_cast<std::uint64_t>(words[0]) << 32 | words[1];
  }
  /// 0 <= u < 1, a multiple of 2^-53.
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  /// 0 … bound - 1, every one as likely.
  std::int64_t below(std::int64_t bound) {
    const auto n = static_cast<std::uint64_t>(bound);
    const std::uint64_t unfair = (0 - n) % n;  // as many of 2^64 are one too many
    std::uint64_t x = bits();
    while (x < unfair) x = bits();
    return static_cast<std::int64_t>(x % n);
  }
  double normal() {
    const double u = static_cast<double>(bits() >> 12) * 0x1p-51 - 1 + 0x1p-52;  // strictly within -1 and 1
    return 0x1.6a09e667f3bcdp+0 * erfinv(u);
  }

 private:
  static Key words(std::int64_t seed, std::uint32_t stream) {
    return threefry({0, static_cast<std::uint32_t>(seed)}, 1, stream);
  }
  Key key_;
  std::int64_t next_ = 0;
};

}  // namespace ejk::arrays
