// Difference statistics: on every instruction set of this machine those of a plain loop, at every length.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "kernels/kernels.hpp"
#include "support/instruction_sets.hpp"

using namespace ejk::kernels;

namespace {

// A 16-bit float by its definition: a sign, an exponent, a fraction.
double value_of(std::uint16_t bits, int fraction_bits) {
  const int exponent_bits = 15 - fraction_bits, most = (1 << exponent_bits) - 1, bias = most / 2;
  const int exponent = bits >> fraction_bits & most, fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = bits >> 15 != 0 ? -1 : 1;
  if (exponent == most)
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

// rtol 1/4 and atol 1.5: with them no value below is near the edge.
bool is_close(double x, double y) {
  return std::isfinite(x) && std::isfinite(y) && std::abs(x - y) <= 1.5 + std::abs(y) / 4;
}

// The kernel that counts, of one instruction set.
template <class Element, class V>
using Kernel = PairStats<V>(const Element*, const Element*, std::int64_t, V, V, V);

// What a plain loop says of pairs of finite numbers, in V.
template <class Element, class V, class Value>
PairStats<V> plain(const std::vector<Element>& a, const std::vector<Element>& e, Value&& value) {
  PairStats<V> stats;
  stats.close = true;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const V x = static_cast<V>(value(a[i])), y = static_cast<V>(value(e[i])), apart = std::abs(x - y);
    stats.close = stats.close && is_close(static_cast<double>(x), static_cast<double>(y));
    stats.zeros += x == 0 && y == 0;
    stats.difference = std::max(stats.difference, apart);
    if (y != 0) stats.relative = std::max(stats.relative, apart / std::abs(y));
    stats.difference_squares += apart * apart;
    stats.actual_squares += x * x;
    stats.expected_squares += y * y;
  }
  return stats;
}

// `values`: what elements may be, `value` what one of them stands for. Arrays of close pairs, of all lengths,
// into which every other pair is put at every place of the last vectors.
template <class Element, class V, class Value>
void check_close(Kernel<Element, V>* kernel, const std::vector<Element>& values, Value&& value) {
  std::vector<std::pair<Element, Element>> close, far;
  for (const Element x : values)
    for (const Element y : values) (is_close(value(x), value(y)) ? close : far).emplace_back(x, y);
  REQUIRE(close.size() > values.size() / 2);
  REQUIRE(far.size() > values.size());
  std::size_t next_far = 0;
  for (std::int64_t n = 0; n < 140; ++n) {
    std::vector<Element> a, e;
    for (std::int64_t i = 0; i < n; ++i) {
      const auto& [x, y] = close[static_cast<std::size_t>(i * 7 + n) % close.size()];
      const bool large =
          !(std::abs(value(x)) < 1e4) || !(std::abs(value(y)) < 1e4);  // whose squares overflow
      a.push_back(large ? Element{0} : x);
      e.push_back(large ? Element{0} : y);
    }
    const PairStats<V> wanted = plain<Element, V>(a, e, value);
    const PairStats<V> got = kernel(a.data(), e.data(), n, V(0.25), V(1.5), V{0});
    CHECK(got.finite);
    CHECK(got.close);
    CHECK(got.zeros == wanted.zeros);
    CHECK(got.difference == wanted.difference);
    CHECK(got.relative == wanted.relative);
    CHECK(got.difference_squares == doctest::Approx(wanted.difference_squares).epsilon(1e-5));
    CHECK(got.actual_squares == doctest::Approx(wanted.actual_squares).epsilon(1e-5));
    CHECK(got.expected_squares == doctest::Approx(wanted.expected_squares).epsilon(1e-5));
    for (std::size_t i = 0; i < a.size(); ++i) {
      const auto& [x, y] = far[next_far++ % far.size()];
      const auto was = std::pair(std::exchange(a[i], x), std::exchange(e[i], y));
      const PairStats<V> found = kernel(a.data(), e.data(), n, V(0.25), V(1.5), V{0});
      CHECK_FALSE(found.close);
      if (!std::isfinite(value(x)) || !std::isfinite(value(y))) CHECK_FALSE(found.finite);
      a[i] = was.first, e[i] = was.second;
    }
  }
  const std::vector<Element> many(60'001, Element{0});
  CHECK(kernel(many.data(), many.data(), 60'001, V{0}, V{0}, V{0}).zeros == 60'001);
  const std::vector<Element> one(1, far[0].first), other(1, far[0].second);
  CHECK_FALSE(kernel(one.data(), other.data(), 1, V{0}, V{0}, V{0}).close);
}

template <class V>
std::vector<V> floats() {
  const V inf = std::numeric_limits<V>::infinity(), most = std::numeric_limits<V>::max();
  return {0,
          -V{0},
          1,
          -1,
          3,
          100,
          124,
          127,
          -124,
          inf,
          -inf,
          most,
          -most,
          std::numeric_limits<V>::quiet_NaN(),
          std::numeric_limits<V>::denorm_min()};
}

// Everything that a 16-bit float can be: each value with itself and with its neighbours.
void check_every_half(Kernel<std::uint16_t, float>* kernel, int fraction_bits) {
  const auto place = [](std::uint16_t bits) { return bits >> 15 != 0 ? -(bits & 0x7FFF) : bits & 0x7FFF; };
  for (int bits = 0; bits < 0x10000; ++bits) {
    for (const int step : {0, 1, 2}) {
      const auto x = static_cast<std::uint16_t>(bits), y = static_cast<std::uint16_t>(bits + step);
      const double p = value_of(x, fraction_bits), q = value_of(y, fraction_bits);
      const bool finite = std::isfinite(p) && std::isfinite(q) && p * p + q * q + (p - q) * (p - q) < 0x1p128;
      const bool close = finite && std::abs(p - q) <= std::abs(q) / 64;
      const PairStats<float> found = kernel(&x, &y, 1, 0x1p-6F, 0.0F, 0.0F);
      const bool right =
          found.finite == finite && found.close == close &&
          (!finite || (found.zeros == (p == 0 && q == 0) && found.difference == std::abs(p - q) &&
                       found.steps == static_cast<std::uint64_t>(std::abs(place(x) - place(y)))));
      if (!right) {
        CAPTURE(bits);
        CAPTURE(step);
        CHECK(right);
      }
    }
  }
}

template <class V, class Bits>
void check_steps(Kernel<V, V>* kernel) {
  const auto steps = [&](V x, V y) { return kernel(&x, &y, 1, V{0}, V{0}, V{0}).steps; };
  CHECK(steps(1, 1) == 0);
  CHECK(steps(0, -V{0}) == 0);
  CHECK(steps(1, std::nextafter(V{1}, V{2})) == 1);
  CHECK(steps(std::nextafter(V{-1}, V{-2}), -1) == 1);
  const V least = std::numeric_limits<V>::denorm_min();
  CHECK(steps(least, -least) == 2);
  CHECK(steps(-1, 1) == 2 * std::uint64_t{std::bit_cast<Bits>(V{1})});
}

// The largest quotient is told where it is above what is known, to the last bit, and nothing else depends on
// that. Of pairs of all sizes, subnormal ones too, a few steps apart; `next` makes one.
template <class Element, class V, class Next, class Value>
void check_known(Kernel<Element, V>* kernel, Next&& next, Value&& value) {
  for (int round = 0; round < 3000; ++round) {
    std::vector<Element> a, e;
    for (int i = 0; i < 1 + round % 70; ++i) {
      const auto [x, y] = next();
      a.push_back(x), e.push_back(round % 5 == 0 ? x : y);
    }
    const auto n = static_cast<std::int64_t>(a.size());
    const PairStats<V> all = kernel(a.data(), e.data(), n, V(0.01), V(0), V(0));
    if (!all.finite) continue;
    CHECK(all.relative == plain<Element, V>(a, e, value).relative);
    for (const V known : {all.relative, std::nextafter(all.relative, V{0}), all.relative / 2,
                          all.relative * 2, V{0x1p-7F}, V{0x3p-9F}, std::numeric_limits<V>::max()}) {
      const PairStats<V> got = kernel(a.data(), e.data(), n, V(0.01), V(0), known);
      CHECK(got.finite);
      CHECK(got.close == all.close);
      CHECK(got.zeros == all.zeros);
      CHECK(got.steps == all.steps);
      CHECK(got.difference == all.difference);
      if (all.relative > known)
        CHECK(got.relative == all.relative);
      else
        CHECK(got.relative <= known);
    }
  }
}

template <class V, class Bits>
void check_known_floats(Kernel<V, V>* kernel) {
  std::mt19937_64 random(5);
  check_known<V, V>(
      kernel,
      [&] {
        const auto exponent =
            static_cast<int>(random() % 3) == 0 ? std::numeric_limits<V>::min_exponent - 10 : -3;
        const V x = std::ldexp(V(static_cast<double>(random() % 4096) / 4096 + 0.5), exponent);
        auto bits = std::bit_cast<Bits>(x);
        bits += static_cast<Bits>(random() % 4);
        return std::pair(x, random() % 3 == 0 ? x : std::bit_cast<V>(bits));
      },
      [](V x) { return x; });
}

void check_known_halves(Kernel<std::uint16_t, float>* kernel, int fraction_bits) {
  std::mt19937_64 random(6);
  check_known<std::uint16_t, float>(
      kernel,
      [&] {
        const auto x = static_cast<std::uint16_t>(random() % 3 == 0 ? random() % 64 : random() % 0x7000);
        return std::pair(x, static_cast<std::uint16_t>(x + random() % 3));
      },
      [&](std::uint16_t bits) { return value_of(bits, fraction_bits); });
}

void check_sums_64(const Kernels& row) {
  std::mt19937_64 engine(5);
  std::normal_distribution<double> normal;
  for (std::int64_t n = 0; n < 40; ++n) {
    std::vector<double> a(static_cast<std::size_t>(n)), b(a), to(a), sums(a);
    double dot = 0, sizes = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      a[i] = normal(engine), b[i] = normal(engine), to[i] = normal(engine);
      dot += a[i] * b[i];
      sizes += std::abs(a[i] * b[i]);
      sums[i] = to[i] + 1.5 * a[i];
    }
    CHECK(std::abs(row.dot_64(a.data(), b.data(), n) - dot) <= 1e-15 * static_cast<double>(n + 1) * sizes);
    row.add_64(to.data(), 1.5, a.data(), n);
    for (std::size_t i = 0; i < a.size(); ++i) CHECK(to[i] == doctest::Approx(sums[i]).epsilon(1e-15));
  }
}

void check_same_bytes(const Kernels& row) {
  std::vector<unsigned char> a(1700), e(1700);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = e[i] = static_cast<unsigned char>(i * 7);
  for (const std::int64_t n : {0, 1, 63, 511, 512, 513, 1024, 1698}) {
    CHECK(row.same_bytes(a.data() + 1, e.data() + 1, n));
    for (std::int64_t i = 0; i <= n; i += 1 + n / 40) {
      unsigned char& byte = e[static_cast<std::size_t>(i) + 1];  // the last one stands behind the end
      byte ^= 0x10;
      CHECK(row.same_bytes(a.data() + 1, e.data() + 1, n) == (i == n));
      byte ^= 0x10;
    }
  }
}

// Of all kinds of numbers beside each other, at every length.
void check_marks(const Kernels& row) {
  const std::vector<double> values = floats<double>();
  std::vector<double> a, e;
  for (const double x : values)
    for (const double y : values) a.push_back(x), e.push_back(y);
  for (const bool nan_agrees : {false, true})
    for (std::size_t begin = 0; begin < a.size(); begin += 7) {
      const std::size_t n = a.size() - begin;
      std::vector<std::uint8_t> flags(n + 1, 9);
      std::int64_t wanted = 0;
      const std::int64_t found =
          row.mark_differences(a.data() + begin, e.data() + begin, static_cast<std::int64_t>(n), 0.25, 1.5,
                               nan_agrees, flags.data());
      for (std::size_t i = 0; i < n; ++i) {
        const double x = a[begin + i], y = e[begin + i];
        const bool agree = x == y || is_close(x, y) || (nan_agrees && std::isnan(x) && std::isnan(y));
        wanted += !agree;
        CHECK(flags[i] == (agree ? 0 : 1));
      }
      CHECK(found == wanted);
      CHECK(flags[n] == 9);
    }
}

}  // namespace

TEST_CASE("pairs are counted as a plain loop does on every instruction set at hand") {
  const std::vector<std::uint16_t> f16 = {0,      0x8000, 1,      0x3C00, 0xBC00, 0x4200, 0x5640, 0x57C0,
                                          0xD7C0, 0x7C00, 0xFC00, 0x7E00, 0x7C01, 0x7BFF, 0xFBFF};
  const std::vector<std::uint16_t> bf16 = {0,      0x8000, 1,      0x3F80, 0xBF80, 0x4040, 0x42C8, 0x42F8,
                                           0xC2F8, 0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0x7F7F, 0xFF7F};
  for (const Kernels* row : test::instruction_sets()) {
    CAPTURE(row->name);
    const auto itself = [](double x) { return x; };
    check_close(row->pair_stats_32, floats<float>(), itself);
    check_close(row->pair_stats_64, floats<double>(), itself);
    check_close(row->pair_stats_f16, f16, [](std::uint16_t x) { return value_of(x, 10); });
    check_close(row->pair_stats_bf16, bf16, [](std::uint16_t x) { return value_of(x, 7); });
    check_every_half(row->pair_stats_f16, 10);
    check_every_half(row->pair_stats_bf16, 7);
    check_steps<float, std::uint32_t>(row->pair_stats_32);
    check_steps<double, std::uint64_t>(row->pair_stats_64);
    check_known_floats<float, std::uint32_t>(row->pair_stats_32);
    check_known_floats<double, std::uint64_t>(row->pair_stats_64);
    check_known_halves(row->pair_stats_f16, 10);
    check_known_halves(row->pair_stats_bf16, 7);
    check_same_bytes(*row);
    check_sums_64(*row);
    check_marks(*row);
  }
}
