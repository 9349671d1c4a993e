// Roundings that a kernel should not have are named in a loop over tiles of keys, where weights are rounded over another
// maximum than the row's: those of inputs to TF32 and to 16 bits, sums of 16 bits, and scores of 16 bits.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "ejk/attention.hpp"
#include "ejk/attention_check.hpp"
#include "support/arrays.hpp"

using namespace ejk;

namespace roundings {

using Rounding = std::function<double(double)>;

constexpr std::int64_t kTokens = 200, kHeads = 2, kSize = 32, kTile = 64;

double to_bfloat16(double x) {
  return static_cast<double>(static_cast<float>(bfloat16(static_cast<float>(x))));
}
double to_float16(double x) {
  return static_cast<double>(static_cast<float>(float16(static_cast<float>(x))));
}
double to_tf32(double x) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(x));
  return static_cast<double>(std::bit_cast<float>((bits + 0xfffU + (bits >> 13 & 1U)) & ~0x1fffU));
}
double cut_to_tf32(double x) {
  return static_cast<double>(
      std::bit_cast<float>(std::bit_cast<std::uint32_t>(static_cast<float>(x)) & ~0x1fffU));
}

// What a kernel rounds: q, k, v and e^(s − most) before products; the accumulator after each tile; scores before
// and after the scale.
struct Kernel {
  Rounding products, sums, scores;
};

// out (1, tokens, heads, size) of causal attention in a loop over tiles of keys.
std::vector<double> by_tiles(const std::vector<double>& q, const std::vector<double>& k,
                             const std::vector<double>& v, const Kernel& kernel) {
  const auto rounded = [](const Rounding& to, double x) { return to ? to(x) : x; };
  const auto at = [](std::int64_t i, std::int64_t h, std::int64_t d) {
    return static_cast<std::size_t>((i * kHeads + h) * kSize + d);
  };
  const double scale = 1 / std::sqrt(static_cast<double>(kSize));
  std::vector<double> out(q.size());
  for (std::int64_t h = 0; h < kHeads; ++h)
    for (std::int64_t i = 0; i < kTokens; ++i) {
      double most = -1e30, sum = 0;
      std::vector<double> row(kSize), scores(kTile);
      for (std::int64_t begin = 0; begin <= i; begin += kTile) {
        const std::int64_t end = std::min(begin + kTile, i + 1);
        double next = most;
        for (std::int64_t j = begin; j < end; ++j) {
          double s = 0;
          for (std::int64_t d = 0; d < kSize; ++d)
            s += rounded(kernel.products, q[at(i, h, d)]) * rounded(kernel.products, k[at(j, h, d)]);
          s = rounded(kernel.scores, rounded(kernel.scores, s) * scale);
          next = std::max(next, scores[static_cast<std::size_t>(j - begin)] = s);
        }
        const double kept = std::exp(most - next);
        sum *= kept;
        for (double& x : row) x *= kept;
        for (std::int64_t j = begin; j < end; ++j) {
          const double weight = std::exp(scores[static_cast<std::size_t>(j - begin)] - next);
          sum += weight;
          for (std::int64_t d = 0; d < kSize; ++d)
            row[static_cast<std::size_t>(d)] +=
                rounded(kernel.products, weight) * rounded(kernel.products, v[at(j, h, d)]);
        }
        for (double& x : row) x = rounded(kernel.sums, x);
        most = next;
      }
      for (std::int64_t d = 0; d < kSize; ++d) out[at(i, h, d)] = row[static_cast<std::size_t>(d)] / sum;
    }
  return out;
}

// The verdict on such a kernel of inputs and a result of a type: "agrees", or the cause with its share in percent.
std::string verdict(DType type, const Kernel& kernel, std::uint64_t seed, double deviation = 1,
                    const SoftmaxTypes& types = {}) {
  std::mt19937_64 engine(seed);
  const Shape shape{1, kTokens, kHeads, kSize};
  Array q = plain::random(type, shape, engine), k = plain::random(type, shape, engine),
        v = plain::random(type, shape, engine);
  std::vector<double> queries = plain::doubles(q.view());
  for (double& x : queries) x *= deviation;
  q = plain::array_of(type, shape, queries);
  queries = plain::doubles(q.view());
  const Array out = plain::array_of(
      type, shape, by_tiles(queries, plain::doubles(k.view()), plain::doubles(v.view()), kernel));
  AttentionOptions options;
  options.masks.push_back(head_masks({causal_mask(kTokens, kTokens)}));
  const AttentionArrays arrays{q.view(), k.view(), v.view()};
  const AttentionPlan plan(types_of(arrays), options);
  const Attention own = attention(q.view(), k.view(), v.view(), options);
  const Against against = compare_results(plan, arrays, {own.out.view(), own.lse.view()},
                                          {out.view(), std::nullopt}, Explain::yes, types);
  if (against.agrees()) return "agrees";
  if (against.explanations.size() != 1) return "no cause, or several";
  return against.explanations[0].share_explained < 0.98 ? "a part" : against.explanations[0].text;
}

TEST_CASE("roundings of float32 kernels are named in a loop over tiles") {
  struct Row {
    Kernel kernel;
    std::string text;  // a part of it
  };
  const Row rows[] = {
      {{to_tf32, {}, {}}, "rounded to float16 or TF32"},
      {{cut_to_tf32, {}, {}}, "rounded to TF32, by cutting bits off"},
      {{to_float16, {}, {}}, "rounded to float16 or TF32"},
      {{to_bfloat16, {}, {}}, "rounded to bfloat16"},
      {{{}, to_bfloat16, {}}, "the sums of a loop over keys are kept in bfloat16"},
      {{{}, to_float16, {}}, "the sums of a loop over keys are kept in float16"},
      {{}, "agrees"},
  };
  for (const std::uint64_t seed : {201U, 202U})
    for (const Row& row : rows) {
      const std::string text = verdict(DType::float32, row.kernel, seed);
      CAPTURE(text);
      CHECK(text.find(row.text) != std::string::npos);
    }
}

TEST_CASE("rounded scores are named, and allowed where they are stated") {
  for (const std::uint64_t seed : {203U, 204U})
    for (const DType type : {DType::bfloat16, DType::float16}) {
      CAPTURE(name_of(type));
      const Kernel eager{{}, {}, type == DType::bfloat16 ? to_bfloat16 : to_float16};
      CHECK(verdict(type, eager, seed, 4) == "the scores are rounded to " + std::string(name_of(type)));
      CHECK(verdict(type, eager, seed, 4, {std::nullopt, type}) == "agrees");
      CHECK(verdict(type, {}, seed, 4) == "agrees");
    }
}

}  // namespace roundings
