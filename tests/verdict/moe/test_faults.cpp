// Known faults of a layer of experts, planted in plain loops, are named with their place and share.
#include <doctest/doctest.h>

#include <functional>
#include <map>
#include <string>

#include "ejk/matmul_check.hpp"
#include "support/moe.hpp"

using namespace ejk;

namespace {

using Rows = std::vector<plain::MoeLayer::Row>;

void check_named(const plain::MoeLayer& layer, const Rows& rows, const std::vector<double>& weights,
                 const std::string& text, const std::vector<OtherWeights>& others = {}) {
  CAPTURE(text);
  const Array out = layer.combined(rows, weights);
  const Against against = compare_moe(layer.operands(), Activation::silu, out.view(), others, Explain::yes);
  CHECK_FALSE(against.agrees());
  REQUIRE(against.explanations.size() >= 1);
  CHECK(against.explanations[0].text.find(text) != std::string::npos);
  if (against.explanations[0].text.find(text) == std::string::npos) MESSAGE(against.explanations[0].text);
  CHECK(against.explanations[0].share_explained > 0.95);
}

// The choices of each expert, in the order of tokens.
std::map<std::int64_t, std::vector<std::size_t>> rows_of_experts(const plain::MoeLayer& layer) {
  std::map<std::int64_t, std::vector<std::size_t>> rows;
  for (std::size_t f = 0; f < layer.id_values.size(); ++f) rows[layer.id_values[f]].push_back(f);
  return rows;
}

}  // namespace

TEST_CASE("faults of a layer of experts are named, in every type") {
  for (const DType type : {DType::float32, DType::bfloat16, DType::float16})
    for (const std::uint64_t seed : {11U, 12U}) {
      CAPTURE(name_of(type));
      CAPTURE(seed);
      const plain::MoeLayer layer = plain::moe_layer(type, 60, seed == 11 ? 2 : 3, seed);
      const auto n = static_cast<std::size_t>(layer.k);
      const Rows right = layer.expert_rows();
      const auto weights = [&](const std::function<double(std::size_t f)>& of) {
        std::vector<double> all;
        for (std::size_t f = 0; f < layer.weight_values.size(); ++f) all.push_back(of(f));
        return all;
      };
      const std::vector<double>& w = layer.weight_values;
      check_named(layer, right, weights([&](auto f) { return w[f] * w[f]; }),
                  "the weights are applied twice");
      check_named(layer, right, weights([&](auto) { return 1; }), "the weights are not applied");
      check_named(layer, right, weights([&](auto f) { return w[f / n * n + n - 1 - f % n]; }),
                  "in reverse order");
      check_named(layer, right,
                  weights([&](auto f) { return w[f] * (0.4 + 0.5 / (1 + static_cast<double>(f / n % 7))); }),
                  "each token has a factor of its own, of some tokens from ");
      const auto biased =
          weights([&](auto f) { return 0.5 * w[f] + 0.1 * static_cast<double>(layer.id_values[f] + 1); });
      std::vector<OtherWeights> others;
      others.push_back({"the weights are those with the bias",
                        plain::array_of(DType::float64, {layer.tokens, layer.k}, biased)});
      check_named(layer, right, biased, "the weights are those with the bias", others);

      const auto expert = [&](const std::function<void(plain::MoeLayer::Expert&, std::size_t f)>& change) {
        return layer.expert_rows([&](std::int64_t t, std::int64_t j) {
          plain::MoeLayer::Expert how;
          change(how, layer.choice(t, j));
          return how;
        });
      };
      check_named(layer, expert([](auto& how, auto) { how.exchanges_halves = true; }), w,
                  "the activation is on the other half");
      const Rows weighed = expert([&](auto& how, auto f) { how.input = w[f]; });
      check_named(layer, weighed, w, "the weights are applied twice: to the input and to the output");
      check_named(layer, weighed, weights([](auto) { return 1; }),
                  "the weights are applied to the input instead of the output");

      const auto experts = rows_of_experts(layer);
      Rows rows = right;
      for (const auto& [e, own] : experts)
        for (std::size_t i = 0; i + 1 < own.size(); ++i)
          if (e == 3) rows[own[i]] = right[own[i + 1]];
      check_named(layer, rows, w, "choices have the row after theirs, of another token in expert 3");
      rows = right;
      for (const auto& [e, own] : experts)
        for (std::size_t i = 9; i < own.size(); ++i) rows[own[i]].assign(rows[own[i]].size(), 0);
      check_named(layer, rows, w, "choices are missing in experts 0-4, after 9 rows: its capacity");
    }
}
