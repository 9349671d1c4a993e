// Tolerances of libraries, each against a plain loop over all elements.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/elements.hpp"
#include "core/splitmix64.hpp"
#include "ejk/compare.hpp"

using namespace ejk;

namespace {

struct Pair {
  Array actual, expected;
  std::vector<double> a, e;  // their elements
};

double uniform(std::uint64_t n) { return static_cast<double>(core::splitmix64(n) >> 11) * 0x1p-53 * 2 - 1; }

// Rounds values to the type of an array, which they become the elements of.
void round_into(Array& array, std::vector<double>& values) {
  dispatch_wide(array.dtype(), [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_floating_point_v<T> || is_small_float<T>)
      for (std::size_t i = 0; i < values.size(); ++i) {
        array.elements<T>()[i] = T(static_cast<float>(values[i]));
        values[i] = static_cast<double>(static_cast<float>(array.elements<T>()[i]));
      }
  });
}

// `error`: of the largest differences, relative to 1 + |expected|.
Pair pair_of(DType dtype, std::int64_t n, std::uint64_t seed, double error) {
  Pair pair{Array(dtype, {n}), Array(dtype, {n}), {}, {}};
  for (std::int64_t i = 0; i < n; ++i) {
    const auto at = seed * 1000003 + static_cast<std::uint64_t>(i) * 3;
    const double e = uniform(at) * std::exp2(4 * uniform(at + 1));
    pair.e.push_back(e);
    pair.a.push_back(e + error * (1 + std::abs(e)) * uniform(at + 2));
  }
  round_into(pair.actual, pair.a);
  round_into(pair.expected, pair.e);
  return pair;
}

Comparison compared(const Pair& pair, std::string_view library, std::int64_t allowed = 0) {
  Tolerance tolerance;
  tolerance.library = library;
  tolerance.allowed_count = allowed;
  return compare_arrays(*make_source(pair.actual.view()), *make_source(pair.expected.view()), tolerance);
}

constexpr DType kTypes[] = {DType::float32, DType::bfloat16, DType::float16};

}  // namespace

TEST_CASE("tolerances of libraries by element are those of a loop") {
  for (const DType dtype : kTypes)
    for (const char* const library : {"kernelbench", "flashinfer-bench"})
      for (std::uint64_t seed = 0; seed < 12; ++seed) {
        const PassRule rule = named_rule(library, dtype);
        const bool is_actual = rule.form == PassRule::Form::allclose_actual;
        const Pair pair = pair_of(dtype, 5000, seed, rule.rtol * (0.6 + 0.1 * static_cast<double>(seed)));
        std::int64_t beyond = 0, at = -1;
        double worst = 0;
        for (std::size_t i = 0; i < pair.a.size(); ++i) {
          const double off = std::abs(pair.a[i] - pair.e[i]);
          const double size = is_actual ? off / (rule.atol + rule.rtol * std::abs(pair.a[i]))
                                        : std::min(off, off / (std::abs(pair.e[i]) + 1e-8)) / rule.rtol;
          if (size <= 1) continue;
          ++beyond;
          if (off > worst) worst = off, at = static_cast<std::int64_t>(i);
        }
        CAPTURE(library);
        CAPTURE(seed);
        const Comparison found = compared(pair, library);
        CHECK(found.differing == beyond);
        CHECK(found.close == (beyond == 0));
        REQUIRE(found.violation.has_value() == (beyond > 0));
        if (beyond > 0) CHECK(found.violation->index == Shape{at});
        CHECK(compared(pair, library, beyond).close);
        if (beyond > 0) CHECK_FALSE(compared(pair, library, beyond - 1).close);
      }
}

TEST_CASE("fla compares root mean squares") {
  for (const DType dtype : kTypes)
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
      const Pair pair = pair_of(dtype, 5000, seed, 0.003 + 0.001 * static_cast<double>(seed));
      double d = 0, e = 0, most = 0;
      for (std::size_t i = 0; i < pair.a.size(); ++i) {
        const double off = pair.a[i] - pair.e[i];
        d += off * off, e += pair.e[i] * pair.e[i], most = std::max(most, std::abs(off));
      }
      const double ratio = std::sqrt(d / 5000) / (std::sqrt(e / 5000) + 1e-8);
      const Comparison found = compared(pair, "fla");
      REQUIRE(found.rms_ratio.has_value());
      CHECK(*found.rms_ratio == doctest::Approx(ratio).epsilon(1e-6));
      CHECK(found.close == (most <= 1e-6 || ratio <= 0.005));
    }
  CHECK(compared(pair_of(DType::float32, 100, 1, 1e-8), "fla").close);
}

TEST_CASE("tolerances of libraries are allclose of the coarser type") {
  const auto rtol_of = [](DType actual, DType expected) {
    Tolerance tolerance;
    tolerance.library = "torch.testing";
    return compare_arrays(*make_source(Array(actual, {4}).view()), *make_source(Array(expected, {4}).view()),
                          tolerance)
        .rtol;
  };
  CHECK(rtol_of(DType::float32, DType::float32) == 1.3e-6);
  CHECK(rtol_of(DType::float32, DType::bfloat16) == 1.6e-2);
  CHECK(rtol_of(DType::float64, DType::float64) == 1e-7);
  CHECK(rtol_of(DType::int32, DType::int32) == 0);
}

TEST_CASE("a tolerance of a library is in the place of others") {
  const Pair pair = pair_of(DType::float32, 8, 0, 0.1);
  Tolerance tolerance;
  tolerance.library = "kernelbench";
  tolerance.rtol = 1;
  CHECK_THROWS_AS(
      compare_arrays(*make_source(pair.actual.view()), *make_source(pair.expected.view()), tolerance),
      const Error&);
  CHECK_THROWS_AS(compared(pair, "flash-attn"), const Error&);
  CHECK_THROWS_AS(compared(pair, "numpy"), const Error&);
}
