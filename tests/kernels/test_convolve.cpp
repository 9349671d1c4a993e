// Rows of short convolutions: on every instruction set of this machine as plain loops have them, at every length.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernels.hpp"
#include "support/instruction_sets.hpp"

using namespace ejk::kernels;

namespace {

template <class Real>
void check_convolve(Convolve<Real>* convolve, bool by_channel, bool silu, std::int64_t width) {
  std::mt19937_64 engine(1);
  std::normal_distribution<double> normal(0, 3);
  const auto random = [&](std::int64_t n) {
    std::vector<Real> values(static_cast<std::size_t>(n));
    for (Real& x : values) x = static_cast<Real>(normal(engine));
    return values;
  };
  constexpr std::int64_t kMost = 67;
  const std::vector<Real> bias = random(kMost), weights = random(width * kMost), x = random(width * kMost);
  std::vector<const Real*> rows;
  for (std::int64_t j = 0; j < width; ++j) rows.push_back(x.data() + j * kMost);
  for (std::int64_t n = 0; n <= kMost; ++n) {
    std::vector<Real> out(kMost, Real(77));
    convolve({bias.data(), weights.data(), kMost, width, by_channel, silu, rows.data()}, n, out.data());
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (static_cast<std::int64_t>(i) >= n) {
        REQUIRE(out[i] == Real(77));
        continue;
      }
      long double sum = bias[by_channel ? i : 0], size = std::abs(sum);
      for (std::size_t j = 0; j < rows.size(); ++j) {
        const long double product =
            static_cast<long double>(weights[j * kMost + (by_channel ? i : 0)]) * rows[j][i];
        sum += product, size += std::abs(product);
      }
      const long double expected = silu ? sum / (1 + std::exp(-sum)) : sum;
      CAPTURE(n);
      CAPTURE(i);
      REQUIRE(std::abs(out[i] - expected) <= 4 * (size + 1) * std::numeric_limits<Real>::epsilon());
    }
  }
}

template <class Real>
void check_silu(Convolve<Real>* convolve) {
  constexpr Real kInfinity = std::numeric_limits<Real>::infinity(),
                 kLargest = std::numeric_limits<Real>::max();
  const std::vector<Real> x{0,         -0.0, 100,  800,       kLargest,
                            kInfinity, -100, -800, -kLargest, std::numeric_limits<Real>::quiet_NaN()};
  const Real zero = 0, one = 1, *row = x.data();
  std::vector<Real> out(x.size());
  convolve({&zero, &one, 1, 1, false, true, &row}, std::ssize(x), out.data());
  for (std::size_t i = 0; i < 2; ++i) CHECK(out[i] == 0);
  for (std::size_t i = 2; i < 6; ++i) CHECK(out[i] == x[i]);
  for (std::size_t i = 6; i < 9; ++i) CHECK(std::abs(out[i]) < 1e-30);
  CHECK(std::isnan(out.back()));
}

template <class Real>
void check_all(Convolve<Real>* convolve) {
  for (const bool by_channel : {false, true})
    for (const bool silu : {false, true})
      for (const std::int64_t width : {1, 2, 4, 7}) check_convolve(convolve, by_channel, silu, width);
  check_silu(convolve);
}

}  // namespace

TEST_CASE("rows of convolutions are as plain loops have them on every instruction set at hand") {
  for (const Kernels* row : test::instruction_sets()) {
    const std::string name = row->name;
    CAPTURE(name);
    check_all(row->products.convolve_f32);
    check_all(row->products.convolve_f64);
  }
}
