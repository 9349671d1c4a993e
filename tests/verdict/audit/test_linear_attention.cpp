// Audits of linear attention: which faults a tolerance lets pass, by mutants that other arrays make.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "ejk/audit.hpp"
#include "ejk/program/text.hpp"
#include "support/arrays.hpp"

using namespace ejk;

namespace {

// Gated DeltaNet: 2 x 96 tokens, 2 heads.
struct Recurrence {
  std::mt19937_64 random{3};
  Array q, k, v, decay, beta;
  LinearAttentionArrays arrays;
  LinearAttentionSettings settings;

  explicit Recurrence(DType dtype)
      : q(plain::random(dtype, {2, 96, 2, 16}, random)),
        k(plain::random(dtype, {2, 96, 2, 16}, random)),
        v(plain::random(dtype, {2, 96, 2, 16}, random)),
        decay(plain::filled(DType::float32, {2, 96, 2}, -0.05)),
        beta(plain::filled(DType::float32, {2, 96, 2}, 0.5)) {
    arrays.q = q.view(), arrays.k = k.view(), arrays.v = v.view();
    arrays.decay = decay.view(), arrays.beta = beta.view();
    settings.delta = settings.l2norm = true;
  }
};

const AuditedFault& audited_fault(const Audit& audit, std::string_view name) {
  const auto found = std::find_if(audit.faults.begin(), audit.faults.end(),
                                  [&](const AuditedFault& one) { return one.fault->name == name; });
  REQUIRE(found != audit.faults.end());
  return *found;
}

}  // namespace

TEST_CASE("an audit by the bound catches the faults that change a result, and right kernels pass") {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    CAPTURE(name_of(dtype));
    const Recurrence p(dtype);
    const Audit found = audit(p.arrays, p.settings, {}, {});
    REQUIRE(found.right);
    CHECK((*found.right > 0 && *found.right < 1));
    CHECK(found.right_weights == name_of(dtype));
    for (const char* name :
         {"zeros", "linear-runs-on", "linear-chunk-lost", "linear-decay-missing", "linear-decay-log2",
          "linear-beta-missing", "linear-delta", "linear-norm", "linear-scale", "linear-final-transposed"})
      CHECK(audited_fault(found, name).caught);
    // All decays are the same: those of head 0, of the next token, too.
    CHECK_FALSE(audited_fault(found, "linear-decay-head").caught);
    CHECK(audited_fault(found, "linear-decay-head").why == AuditedFault::Why::inert);
    for (const Audit::NotTried& one : found.not_tried) {
      CAPTURE(one.fault->name);
      CHECK_FALSE(one.why.empty());
      CHECK(std::none_of(found.faults.begin(), found.faults.end(),
                         [&](const AuditedFault& other) { return other.fault == one.fault; }));
    }
  }
}

TEST_CASE("mutants are the results of other arrays, and measures of a tolerance are theirs") {
  const Recurrence p(DType::float32);
  std::map<std::string, Array> mutants;
  AuditOptions options;
  options.rule.form = PassRule::Form::allclose, options.rule.rtol = 0, options.rule.atol = 1e-2;
  options.mutant = [&](const std::string& name, Array array) { mutants[name] = std::move(array); };
  const Audit found = audit(p.arrays, p.settings, {}, options);

  const auto largest_difference = [&](const LinearAttention& other) {
    double largest = 0;
    for (const auto& [name, array] : {std::pair("out", &other.out), {"final_state", &other.final_state}}) {
      const std::vector<double> a = plain::doubles(array->view()),
                                b = plain::doubles(mutants.at(std::string("expected.") + name).view());
      for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
    }
    return largest;
  };
  const auto agrees = [&](const char* name, const LinearAttention& other) {
    const double expected = largest_difference(other) / 1e-2;
    CHECK(audited_fault(found, name).largest == doctest::Approx(expected).epsilon(1e-3));
    const std::vector<double> a = plain::doubles(mutants.at(std::string(name) + ".out").view()),
                              b = plain::doubles(other.out.view());
    for (std::size_t i = 0; i < a.size(); ++i) CHECK(a[i] == doctest::Approx(b[i]).epsilon(1e-4));
  };
  CHECK(largest_difference(linear_attention(p.arrays, p.settings)) < 1e-5);
  const Array none = plain::filled(DType::float32, {2, 96, 2}, 0),
              ones = plain::filled(DType::float32, {2, 96, 2}, 1);
  LinearAttentionArrays other = p.arrays;
  other.decay = none.view();
  agrees("linear-decay-missing", linear_attention(other, p.settings));
  other = p.arrays;
  other.beta = ones.view();
  agrees("linear-beta-missing", linear_attention(other, p.settings));
  LinearAttentionSettings settings = p.settings;
  settings.delta = false;
  agrees("linear-delta", linear_attention(p.arrays, settings));
}
