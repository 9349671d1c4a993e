// Softmax kernels: on every instruction set of this machine within the stated error of plain loops in long
// double, at every length, with masked scores separate.
#include "kernels/softmax.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "ejk/dtype.hpp"
#include "kernels/kernels.hpp"
#include "support/instruction_sets.hpp"

using namespace ejk::kernels;

namespace {

template <class Real>
constexpr Real kInfinity = std::numeric_limits<Real>::infinity();

// A row with room for whole vectors, filled with something that would be seen.
template <class Real>
std::vector<Real> row_of(const std::vector<Real>& values) {
  std::vector<Real> row = values;
  row.resize(values.size() + 64, Real(77));
  return row;
}

// The same with −∞ up to a whole vector.
template <class Real>
std::vector<Real> scores_of(std::vector<Real> values, std::int64_t lanes) {
  while (std::ssize(values) % lanes != 0) values.push_back(-kInfinity<Real>);
  return row_of(values);
}

template <class Real>
std::vector<Real> random_row(std::mt19937_64& engine, std::int64_t n, double width) {
  std::uniform_real_distribution<double> among(-width, width);
  std::vector<Real> row(static_cast<std::size_t>(n));
  for (Real& x : row) x = static_cast<Real>(among(engine));
  return row;
}

// |got − wanted| in units of the last place of a normal `wanted`.
template <class Real>
double ulps(Real got, long double wanted) {
  if (wanted == 0) return got == 0 ? 0 : 1e9;
  int exponent = 0;
  std::frexp(wanted, &exponent);
  const long double ulp = std::ldexp(1.0L, exponent - std::numeric_limits<Real>::digits);
  return static_cast<double>(std::abs(static_cast<long double>(got) - wanted) / ulp);
}

template <class Real>
void check_weights(const Softmax<Real>& softmax) {
  std::mt19937_64 engine(1);
  double worst = 0;
  for (std::int64_t n = 0; n < 150; ++n) {
    std::vector<Real> s = random_row<Real>(engine, n, n % 3 == 0 ? 1 : 40);
    for (std::size_t j = 0; j < s.size(); j += 7) s[j] = -kInfinity<Real>;
    const Real most = n == 0 ? Real{0} : std::max(Real{-50}, *std::max_element(s.begin(), s.end()));
    std::vector<Real> row = scores_of(s, softmax.lanes);
    const Real sum = softmax.weights(row.data(), n, most, row.data());
    long double all = 0;
    for (std::size_t j = 0; j < s.size(); ++j) {
      // The difference is rounded once; what follows from that is not exp's error.
      const Real difference = s[j] - most;
      const long double wanted = std::exp(static_cast<long double>(difference));
      worst = std::max(worst, ulps(row[j], wanted));
      all += wanted;
    }
    CHECK(std::abs(static_cast<long double>(sum) - all) <=
          1e-2L * std::sqrt(std::numeric_limits<Real>::epsilon()) * all);
    const std::int64_t whole = (n + softmax.lanes - 1) / softmax.lanes * softmax.lanes;
    CHECK(row[static_cast<std::size_t>(whole)] == 77);
  }
  CHECK(worst <= 1.5);
  // The ends, and what is no number.
  const Real least = sizeof(Real) == 4 ? Real(-87.5) : Real(-708.5),
             nan = std::numeric_limits<Real>::quiet_NaN();
  std::vector<Real> row = scores_of<Real>({0, least, -kInfinity<Real>, nan, -1}, softmax.lanes);
  CHECK(std::isnan(softmax.weights(row.data(), 5, Real{0}, row.data())));
  CHECK(row[0] == 1);
  CHECK(row[1] == 0);
  CHECK(row[2] == 0);
  CHECK(std::isnan(row[3]));
  CHECK(row[4] == doctest::Approx(std::exp(-1.0)));
}

template <class Real>
void check_scores(const Softmax<Real>& softmax) {
  std::mt19937_64 engine(2);
  double worst = 0, worst_slope = 0;
  for (std::int64_t n = 0; n < 150; ++n)
    for (const double cap : {0.0, 3.0, 50.0})
      for (const bool biased : {false, true})
        for (const bool masked : {false, true}) {
          const std::vector<Real> products = random_row<Real>(engine, n, n % 4 == 0 ? 0.1 : 60);
          const std::vector<Real> bias = row_of(random_row<Real>(engine, n, 4));
          std::vector<std::uint64_t> bits{engine(), engine(), engine(), engine(), 0};
          const std::int64_t first = n % 3 * 32;
          std::vector<Real> row = row_of(products), slope = row;
          const Real scale = Real(0.25);
          const Real most =
              softmax.scores({scale, static_cast<Real>(cap)}, row.data(), n, biased ? bias.data() : nullptr,
                             masked ? bits.data() : nullptr, first, cap > 0 ? slope.data() : nullptr);
          Real wanted_most = -kInfinity<Real>;
          std::int64_t hidden_wrong = 0;
          for (std::int64_t j = 0; j < n; ++j) {
            const auto at = static_cast<std::size_t>(j);
            const auto bit = static_cast<std::size_t>(first + j);
            wanted_most = std::max(wanted_most, row[at]);
            if (masked && (bits[bit / 64] >> (bit % 64) & 1u) == 0) {
              hidden_wrong += row[at] != -kInfinity<Real>;
              continue;
            }
            const Real s = products[at] * scale;  // exact
            long double wanted = s;
            if (cap > 0) {
              const long double t = std::tanh(static_cast<long double>(s) / cap);
              const long double c = std::cosh(static_cast<long double>(s) / cap);
              worst_slope = std::max(worst_slope, ulps(slope[at], 1 / (c * c)));
              wanted = cap * t;
            }
            if (biased) wanted += bias[at];
            const double size = std::max(1e-30, std::max<double>(static_cast<double>(std::abs(wanted)),
                                                                 biased ? std::abs(bias[at]) : 0));
            worst = std::max(worst, static_cast<double>(std::abs(row[at] - wanted)) / size /
                                        std::numeric_limits<Real>::epsilon());
          }
          CHECK(most == wanted_most);
          CHECK(hidden_wrong == 0);
          const std::int64_t whole = (n + softmax.lanes - 1) / softmax.lanes * softmax.lanes;
          for (std::int64_t j = n; j < std::ssize(row); ++j)
            CHECK(row[static_cast<std::size_t>(j)] == (j < whole ? -kInfinity<Real> : Real(77)));
        }
  CHECK(worst <= 4);
  CHECK(worst_slope <= 12);  // of which the quotient s / cap, |s| ≤ 5 cap, has half

  const Real nan = std::numeric_limits<Real>::quiet_NaN();
  std::vector<Real> row = row_of<Real>({-kInfinity<Real>, nan, -kInfinity<Real>});
  CHECK(std::isnan(softmax.scores({1, 0}, row.data(), 3, nullptr, nullptr, 0, nullptr)));
  const std::uint64_t none = 0b101;  // hides the NaN
  row = row_of<Real>({-kInfinity<Real>, nan, -kInfinity<Real>});
  CHECK(softmax.scores({1, 0}, row.data(), 3, nullptr, &none, 0, nullptr) == -kInfinity<Real>);
}

template <class Real>
void check_gradients(const Softmax<Real>& softmax) {
  std::mt19937_64 engine(3);
  for (std::int64_t n = 0; n < 150; ++n)
    for (const bool sloped : {false, true}) {
      std::vector<Real> s = random_row<Real>(engine, n, 5), dp = random_row<Real>(engine, n, 2),
                        lse = random_row<Real>(engine, n, 5), delta = random_row<Real>(engine, n, 2);
      const std::vector<Real> slope = row_of(random_row<Real>(engine, n, 1));
      for (std::size_t j = 0; j < s.size(); ++j) {
        if (j % 5 == 0) s[j] = -kInfinity<Real>, dp[j] = std::numeric_limits<Real>::quiet_NaN();
        if (j % 7 == 0) lse[j] = -kInfinity<Real>, delta[j] = kInfinity<Real>;
      }
      std::vector<Real> weight = row_of(s), gradient = row_of(dp);
      const std::vector<Real> of = row_of(lse), less = row_of(delta);
      softmax.gradients(weight.data(), gradient.data(), n, of.data(), less.data(),
                        sloped ? slope.data() : nullptr, Real(0.5), weight.data(), gradient.data());
      for (std::size_t j = 0; j < s.size(); ++j) {
        CAPTURE(j);
        if (j % 5 == 0 || j % 7 == 0) {
          CHECK(weight[j] == 0);
          CHECK(gradient[j] == 0);
          continue;
        }
        const Real p = std::exp(s[j] - lse[j]);
        const double fine = 8 * static_cast<double>(std::numeric_limits<Real>::epsilon());
        CHECK(weight[j] == doctest::Approx(p).epsilon(fine).scale(0));
        const Real expected = p * (dp[j] - delta[j]) * Real(0.5) * (sloped ? slope[j] : Real{1});
        CHECK(gradient[j] == doctest::Approx(expected).epsilon(fine).scale(std::abs(p)));
      }
    }
  // An lse that is far too small is not taken for one without keys.
  std::vector<Real> s = row_of<Real>({800}), dp = row_of<Real>({1});
  const std::vector<Real> lse = row_of<Real>({0}), delta = row_of<Real>({0});
  softmax.gradients(s.data(), dp.data(), 1, lse.data(), delta.data(), nullptr, Real{1}, s.data(), dp.data());
  CHECK(s[0] == kInfinity<Real>);
}

template <class Real>
void check_scale(const Softmax<Real>& softmax) {
  for (std::int64_t n = 0; n < 70; ++n) {
    std::vector<Real> row(static_cast<std::size_t>(n + 1), Real{3});
    softmax.scale(row.data(), n, Real{-2});
    CHECK(std::count(row.begin(), row.end(), Real{-6}) == n);
    CHECK(row.back() == 3);
  }
}

double widened(std::uint16_t bits) {
  ejk::bfloat16 x;
  x.bits = bits;
  return static_cast<double>(static_cast<float>(x));
}

void check_split(const Softmax<float>& softmax) {
  std::mt19937_64 engine(4);
  for (std::int64_t n = 0; n < 70; ++n) {
    std::vector<float> weights = random_row<float>(engine, n, 1);
    for (std::size_t j = 0; j < weights.size(); j += 3) weights[j] *= 1e-20F;
    std::vector<std::uint16_t> parts[3];
    for (auto& part : parts) part.assign(static_cast<std::size_t>(n) + 64, 7);
    std::uint16_t* const to[3] = {parts[0].data(), parts[1].data(), parts[2].data()};
    softmax.split(row_of(weights).data(), n, to);
    for (std::size_t j = 0; j < weights.size(); ++j) {
      double sum = 0;
      for (const auto& part : parts) sum += widened(part[j]);
      CHECK(sum == static_cast<double>(weights[j]));
    }
  }
}

template <class Real>
void check_all(const Softmax<Real>& softmax) {
  check_weights(softmax);
  check_scores(softmax);
  check_gradients(softmax);
  check_scale(softmax);
}

}  // namespace

TEST_CASE("rows of scores are finished as plain loops do on every instruction set at hand") {
  for (const Kernels* row : test::instruction_sets()) {
    CAPTURE(row->name);
    check_all(*row->products.softmax_f32);
    check_split(*row->products.softmax_f32);
    check_all(*row->products.softmax_f64);
  }
}
