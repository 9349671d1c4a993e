// Every instruction set this machine has says of all pairs together what a plain loop says of each, at every
// length, and counts its zeros.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
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

// `values`: what elements may be, `value` what one of them stands for. Arrays of close pairs, of all lengths,
// into which every other pair is put at every place of the last vectors.
template <class Element, class V, class Value>
void check_close(bool (*kernel)(const Element*, const Element*, std::int64_t, V, V, std::int64_t*),
                 const std::vector<Element>& values, Value&& value) {
  std::vector<std::pair<Element, Element>> close, far;
  for (const Element x : values)
    for (const Element y : values) (is_close(value(x), value(y)) ? close : far).emplace_back(x, y);
  REQUIRE(close.size() > values.size() / 2);
  REQUIRE(far.size() > values.size());
  std::size_t next_far = 0;
  for (std::int64_t n = 0; n < 140; ++n) {
    std::vector<Element> a, e;
    std::int64_t wanted_zeros = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const auto& [x, y] = close[static_cast<std::size_t>(i * 7 + n) % close.size()];
      a.push_back(x);
      e.push_back(y);
      wanted_zeros += value(x) == 0 && value(y) == 0;
    }
    std::int64_t zeros = -1;
    CHECK(kernel(a.data(), e.data(), n, V(0.25), V(1.5), &zeros));
    CHECK(zeros == wanted_zeros);
    for (std::size_t i = 0; i < a.size(); ++i) {
      const auto& [x, y] = far[next_far++ % far.size()];
      const auto was = std::pair(std::exchange(a[i], x), std::exchange(e[i], y));
      CHECK_FALSE(kernel(a.data(), e.data(), n, V(0.25), V(1.5), &zeros));
      a[i] = was.first, e[i] = was.second;
    }
  }
  std::vector<Element> many(3'000'001, Element{0});
  std::int64_t zeros = 0;
  CHECK(kernel(many.data(), many.data(), 3'000'001, V{0}, V{0}, &zeros));
  CHECK(zeros == 3'000'001);
  many.back() = far[0].first;
  const std::vector<Element> others(3'000'001, far[0].second);
  CHECK_FALSE(kernel(&many.back(), &others.back(), 1, V{0}, V{0}, &zeros));
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
template <class Kernel>
void check_every_half(Kernel* kernel, int fraction_bits) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    for (const int step : {0, 1, 2}) {
      const auto x = static_cast<std::uint16_t>(bits), y = static_cast<std::uint16_t>(bits + step);
      const double p = value_of(x, fraction_bits), q = value_of(y, fraction_bits);
      const bool wanted = std::isfinite(p) && std::isfinite(q) && std::abs(p - q) <= std::abs(q) / 64;
      std::int64_t zeros = -1;
      const bool found = kernel(&x, &y, 1, 0x1p-6F, 0.0F, &zeros);
      if (found != wanted || (wanted && zeros != (p == 0 && q == 0))) {
        CAPTURE(bits);
        CAPTURE(step);
        CHECK(found == wanted);
        CHECK(zeros == (p == 0 && q == 0));
      }
    }
  }
}

}  // namespace

TEST_CASE("pairs are all close where a plain loop says so of each on every instruction set at hand") {
  const std::vector<std::uint16_t> f16 = {0,      0x8000, 1,      0x3C00, 0xBC00, 0x4200, 0x5640, 0x57C0,
                                          0xD7C0, 0x7C00, 0xFC00, 0x7E00, 0x7C01, 0x7BFF, 0xFBFF};
  const std::vector<std::uint16_t> bf16 = {0,      0x8000, 1,      0x3F80, 0xBF80, 0x4040, 0x42C8, 0x42F8,
                                           0xC2F8, 0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0x7F7F, 0xFF7F};
  for (const Kernels* row : test::instruction_sets()) {
    CAPTURE(row->name);
    const auto itself = [](double x) { return x; };
    check_close(row->all_close_32, floats<float>(), itself);
    check_close(row->all_close_64, floats<double>(), itself);
    check_close(row->all_close_f16, f16, [](std::uint16_t x) { return value_of(x, 10); });
    check_close(row->all_close_bf16, bf16, [](std::uint16_t x) { return value_of(x, 7); });
    check_every_half(row->all_close_f16, 10);
    check_every_half(row->all_close_bf16, 7);
  }
}
