// Mutants of grouped products against loops that have the fault.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <map>

#include "ejk/audit.hpp"
#include "support/matmul.hpp"

using namespace ejk;

namespace {

struct Product {
  std::int64_t m, k, n;
  plain::Sizes sizes;
  Array lhs, rhs;
  std::map<std::string, Array> mutants = {};

  Product(DType dtype, plain::Lengths lengths, plain::Sizes of_groups)
      : m(lengths.m), k(lengths.k), n(lengths.n), sizes(std::move(of_groups)) {
    std::mt19937_64 engine(2);
    lhs = plain::random(dtype, {m, k}, engine);
    rhs = plain::random(dtype, {std::ssize(sizes), k, n}, engine);
  }

  Audit audited(const PassRule& rule = {}) {
    GroupedMatmulSettings settings;
    settings.dtype = lhs.dtype();
    AuditOptions options;
    options.rule = rule;
    options.mutant = [this](const std::string& name, Array array) { mutants[name] = std::move(array); };
    return audit(lhs.view(), rhs.view(), IntegerArray(sizes), settings, options);
  }

  std::int64_t group_of(std::int64_t row) const {
    std::int64_t end = 0;
    for (std::size_t g = 0; g < sizes.size(); ++g)
      if (row < (end += sizes[g])) return static_cast<std::int64_t>(g);
    return -1;
  }

  // Rows times the weights of `group`, of them the first `depth` terms.
  void check(const std::string& name, const std::function<std::int64_t(std::int64_t)>& group,
             std::int64_t depth, bool is_transposed = false) const {
    CAPTURE(name);
    REQUIRE(mutants.contains(name));
    const auto mutant = plain::doubles(mutants.at(name).view()), a = plain::doubles(lhs.view()),
               b = plain::doubles(rhs.view());
    const auto at = [](std::int64_t index) { return static_cast<std::size_t>(index); };
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t c = 0; c < n; ++c) {
        double sum = 0;
        const std::int64_t g = group(i);
        for (std::int64_t t = 0; t < depth && g >= 0; ++t)
          sum += a[at(i * k + t)] * b[at(is_transposed ? (g * k + c) * n + t : (g * k + t) * n + c)];
        CHECK(std::abs(mutant[at(i * n + c)] - sum) <= 0.01 * std::abs(sum) + 1e-4);
      }
  }
};

}  // namespace

TEST_CASE("mutants of grouped products are those of loops with the fault") {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    Product p(dtype, {300, 70, 70}, {100, 0, 130, 40});
    p.audited();
    const auto own = [&](std::int64_t row) { return p.group_of(row); };
    p.check("expected", own, 70);
    p.check(
        "tail-rows", [&](std::int64_t row) { return row >= 270 ? 3 : own(row); }, 70);
    p.check("weights-transposed", own, 70, true);
    p.check(
        "tile-label.128", [&](std::int64_t row) { return own(row / 128 * 128); }, 70);
    p.check("k-tail.64", own, 64);
    p.check(
        "expert-next", [&](std::int64_t row) { return own(row) < 0 ? -1 : (own(row) + 1) % 4; }, 70);
    for (const double value : plain::doubles(p.mutants.at("zeros").view())) CHECK(value == 0);
    CHECK(p.mutants.contains("inputs-tf32") == (dtype == DType::float32));
    CHECK_FALSE(p.mutants.contains("k-tail.128"));
  }
}

TEST_CASE("sizes of whole tiles are missed") {
  Product p(DType::float32, {256, 64, 48}, {128, 128});
  const Audit audit = p.audited(named_rule("torch.testing", DType::float32));
  CHECK(audit.missed() == std::vector<std::string>{"tile-label", "k-tail"});
  CHECK(audit.faults.size() + audit.not_tried.size() == 7);
  for (const AuditedFault& one : audit.faults)
    if (!one.caught) {
      CHECK(one.why == AuditedFault::Why::inert);
      CHECK_FALSE(one.remedy.empty());
    }
}
