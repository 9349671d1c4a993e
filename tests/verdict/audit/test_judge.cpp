// Measures of the rules of tests, each against its formula over all elements.
#include "verdict/audit/judge.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "support/arrays.hpp"

using namespace ejk;
using audits::Judge;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Pair {
  std::vector<double> actual, expected;
  DType dtype;

  std::int64_t size() const { return std::ssize(actual); }
  double measured(const PassRule& rule, const audits::RuleScale& scale = {}) const {
    Judge first(rule, dtype, size()), second(rule, dtype, size());
    const std::int64_t half = size() / 2;
    first.see(0, half, actual.data(), expected.data());
    second.see(half, size() - half, actual.data() + half, expected.data() + half);
    first.join(second);
    return first.largest(scale);
  }
  // The element of rank `nth`, from 0, of a measure of (a, e).
  double loop(const std::function<double(double, double)>& of, std::size_t nth = 0) const {
    std::vector<double> all;
    for (std::size_t n = 0; n < actual.size(); ++n) all.push_back(of(actual[n], expected[n]));
    std::sort(all.rbegin(), all.rend());
    return all[nth];
  }
  double sum(const std::function<double(double, double)>& of) const {
    double all = 0;
    for (std::size_t n = 0; n < actual.size(); ++n) all += of(actual[n], expected[n]);
    return all;
  }
};

Pair pair_of(DType dtype) {
  std::mt19937_64 engine(5);
  std::normal_distribution<double> normal;
  Pair pair{{}, {}, dtype};
  for (int n = 0; n < 3000; ++n) {
    const double e = normal(engine) * (n % 7 == 0 ? 1e-3 : 1);
    pair.expected.push_back(plain::rounded(e, dtype));
    pair.actual.push_back(n % 3 == 0 ? pair.expected.back()
                                     : plain::rounded(e * (1 + 0.05 * normal(engine)), dtype));
  }
  return pair;
}

PassRule rule_of(PassRule::Form form) {
  PassRule rule;
  rule.form = form;
  return rule;
}

PassRule metric(Metric of, double limit) {
  PassRule rule = rule_of(PassRule::Form::metric);
  rule.metric = {of, limit};
  return rule;
}

}  // namespace

TEST_CASE("the named tolerances of tests measure what their libraries do") {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    CAPTURE(name_of(dtype));
    const Pair pair = pair_of(dtype);
    const bool is_float32 = dtype == DType::float32;
    const double r = is_float32                 ? 1.3e-6
                     : dtype == DType::bfloat16 ? 1.6e-2
                                                : 1e-3,
                 t = is_float32 ? 1e-4 : 1e-2;
    const auto is = [&](const char* name, double expected) {
      CAPTURE(name);
      CHECK(pair.measured(named_rule(name, dtype)) == doctest::Approx(expected));
    };
    is("torch.testing",
       pair.loop([&](double a, double e) { return std::abs(a - e) / (1e-5 + r * std::abs(e)); }));
    is("kernelbench", pair.loop([&](double a, double e) { return std::abs(a - e) / (t + t * std::abs(a)); }));
    is("hf-kernels",
       pair.loop([](double a, double e) { return std::abs(a - e) / (1e-2 + 1e-5 * std::abs(e)); }));
    is("flashinfer-bench", pair.loop([](double a, double e) {
      return std::min(std::abs(a - e), std::abs(a - e) / (std::abs(e) + 1e-8)) / 1e-2;
    }));
    const double n = static_cast<double>(pair.size()),
                 dd = pair.sum([](double a, double e) { return (a - e) * (a - e); }),
                 ee = pair.sum([](double, double e) { return e * e; });
    is("fla", std::sqrt(dd / n) / (std::sqrt(ee / n) + 1e-8) / 0.005);
    const double most = pair.loop([](double a, double e) { return std::abs(a - e); });
    CHECK(pair.measured(named_rule("flash-attn", dtype), {0.02, 0.001, false}) ==
          doctest::Approx(most / 0.042));
    CHECK(pair.measured(named_rule("flash-attn", dtype), {0.02, 0.001, true}) ==
          doctest::Approx(most / 0.062));
    PassRule beside;
    beside.form = PassRule::Form::no_worse_than;
    beside.factor = 3;
    audits::RuleScale scale;
    for (const double e : {0.5, -2.0}) scale.see_other(e + 0.25, e);
    scale.see_other(1, kInfinity);
    const double step = is_float32 ? 0x1p-23 : dtype == DType::bfloat16 ? 0x1p-7 : 0x1p-10;
    CHECK(pair.measured(beside, scale) == doctest::Approx(most / (3 * (0.25 + step * 2))));
    CHECK_NOTHROW(scale.require_other("out"));
    scale.see_other(kInfinity, 1);
    CHECK_THROWS_AS(scale.require_other("out"), const Error&);
  }
}

TEST_CASE("metrics of tests are those of a loop, over their limits") {
  const Pair pair = pair_of(DType::float32);
  const double dd = pair.sum([](double a, double e) { return (a - e) * (a - e); }),
               aa = pair.sum([](double a, double) { return a * a; }),
               ee = pair.sum([](double, double e) { return e * e; }),
               ae = pair.sum([](double a, double e) { return a * e; });
  CHECK(pair.measured(metric(Metric::rel, 1e-3)) == doctest::Approx(dd / (aa + ee) / 1e-3));
  CHECK(pair.measured(metric(Metric::snr, 40)) ==
        doctest::Approx(std::pow(10, (40 - 10 * std::log10(ee / dd)) / 20)));
  CHECK(pair.measured(metric(Metric::cosine, 0.999)) ==
        doctest::Approx((1 - ae / std::sqrt(aa * ee)) / 1e-3));
}

TEST_CASE("units in the last place are counted across powers of 2 and across 0") {
  PassRule rule = rule_of(PassRule::Form::max_ulp);
  rule.max_ulp = 4;
  const auto units = [&](double a, double e, DType dtype) {
    return 4 * Pair{{a, a}, {a, e}, dtype}.measured(rule);
  };
  CHECK(units(1 + 0x1p-7, 1 - 0x1p-8, DType::bfloat16) == 2);
  CHECK(units(2.5, 1.5, DType::float16) == 512 + 256);
  CHECK(units(0x1p-149, -0x1p-149, DType::float32) == 2);
  CHECK(units(0x1p-126, 0x1p-126 - 0x1p-149, DType::float32) == 1);
  CHECK(units(0, -0.0, DType::float32) == 0);
}

TEST_CASE("an allowance leaves out the largest measures") {
  const Pair pair = pair_of(DType::float32);
  PassRule rule = rule_of(PassRule::Form::allclose);
  rule.atol = 1e-3, rule.rtol = 1e-2;
  const auto loop = [&](std::size_t nth) {
    return pair.loop([](double a, double e) { return std::abs(a - e) / (1e-3 + 1e-2 * std::abs(e)); }, nth);
  };
  rule.allowed_count = 7;
  CHECK(pair.measured(rule) == doctest::Approx(loop(7)));
  rule.allowed_share = 0.05;
  CHECK(pair.measured(rule) == doctest::Approx(loop(150)));
  rule.allowed_share = 0.9;  // more than differ
  CHECK(pair.measured(rule) == 0);
}

TEST_CASE("numbers that are not finite fail, but where both sides have the same") {
  const double nan = std::nan("");
  for (const std::string_view name : rule_names()) {
    CAPTURE(name);
    const PassRule rule = named_rule(name, DType::float32);
    const audits::RuleScale scale{1, 1, false};
    CHECK(Pair{{1, nan}, {1, 2}, DType::float32}.measured(rule, scale) == kInfinity);
    CHECK(Pair{{1, 2}, {1, kInfinity}, DType::float32}.measured(rule, scale) == kInfinity);
    CHECK(Pair{{1, nan, -kInfinity}, {1, nan, -kInfinity}, DType::float32}.measured(rule, scale) == 0);
  }
  CHECK(Pair{{0, 0}, {1, 2}, DType::float32}.measured(metric(Metric::cosine, 0.9)) == kInfinity);
  CHECK(Pair{{0, 0}, {0, 0}, DType::float32}.measured(metric(Metric::cosine, 0.9)) == 0);
}
