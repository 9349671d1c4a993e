// Faults of what a kernel reads and of how it masks and joins, planted in plain loops: each is named in float32,
// bfloat16 and float16, with its place and its fraction of the wrong elements.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "ejk/against.hpp"
#include "ejk/attention.hpp"
#include "support/planted_attention.hpp"

using namespace ejk;

namespace planted_operands {

namespace {

using plain::Index;
using plain::Row;
using Kernel = plain::PlantedAttention;

constexpr Index kQueries = 40, kKeys = 100, kHeads = 4;

enum class With { mask, sinks, alibi, softcap, no_mask };

const std::vector<float> kNumbers{1.5F, -0.5F, 0.75F, 2.25F};  // sinks, or slopes of ALiBi

void set_sinks(Kernel& kernel, const std::function<double(Index h)>& sink) {
  kernel.more = [sink](Index h) { return std::exp(sink(h)); };
}
void set_slopes(Kernel& kernel, const std::function<double(Index h)>& slope) {
  kernel.alibi = [slope](Index h, Index i, Index j) {
    return -slope(h) * std::abs(static_cast<double>(i + kKeys - kQueries - j));
  };
}
double number(Index h) { return static_cast<double>(kNumbers[static_cast<std::size_t>(h)]); }

// The softmax of parts of `length` keys, or of the first and the others, and what these are joined with.
std::function<void(const Row&, Row&, Row&)> joined(std::size_t length,
                                                   const std::function<double(double own)>& weight,
                                                   std::size_t parts = 2) {
  return [=](const Row& scores, Row& of_out, Row&) {
    const double most = *std::max_element(scores.begin(), scores.end());
    Row own(parts);
    const auto part = [=](std::size_t j) { return std::min(j / length, parts - 1); };
    for (std::size_t j = 0; j < scores.size(); ++j) own[part(j)] += std::exp(scores[j] - most);
    double all = 0;
    for (const double x : own) all += x > 0 ? weight(x) : 0;
    const double sum = std::accumulate(own.begin(), own.end(), 0.0);
    for (std::size_t j = 0; j < scores.size(); ++j)
      of_out[j] = sum * weight(own[part(j)]) / own[part(j)] / all;
  };
}
double by_lse_base_2(double own) { return std::exp(std::log2(own)); }
double by_mean(double) { return 1; }

double to_e4m3(double x) {
  return static_cast<double>(static_cast<float>(float8_e4m3fn(static_cast<float>(x))));
}

struct Planted {
  std::string wanted;
  std::function<void(Kernel&)> change;
  With with = With::mask;
};

const std::vector<Planted>& planted() {
  static const std::vector<Planted> all{
      {"batch entry 1 holds the keys and values of batch entry 0",
       [](Kernel& k) { k.kv_entry = [](Index) { return 0; }; }},
      {"all query heads use key/value head 0", [](Kernel& k) { k.kv_head = [](Index) { return 0; }; }},
      {"masked pairs have a score of 0, not -inf", [](Kernel& k) { k.masked_score = 0; }},
      {"masked pairs have a score of -2, not -inf", [](Kernel& k) { k.masked_score = -2; }, With::softcap},
      {"the mask comes after the softmax", [](Kernel& k) { k.masks_weights = true; }},
      {"heads 2-3 hold the sink of the head 2 before them",
       [](Kernel& k) { set_sinks(k, [](Index h) { return number(h % 2); }); }, With::sinks},
      {"heads 0-3 hold the sink of the head just after them",
       [](Kernel& k) { set_sinks(k, [](Index h) { return number((h + 1) % kHeads); }); }, With::sinks},
      {"it is as if sinks were 1.5", [](Kernel& k) { set_sinks(k, number); }},
      {"heads 2-3 hold the ALiBi slope of the head 2 before them",
       [](Kernel& k) { set_slopes(k, [](Index h) { return 0.1 * number(h % 2); }); }, With::alibi},
      {"keys before the first query and the others are joined with an lse to base 2 that is taken for base e",
       [](Kernel& k) { k.loop = joined(kKeys - kQueries, by_lse_base_2); }},
      {"of the keys before the first query and the others the mean is taken",
       [](Kernel& k) { k.loop = joined(kKeys - kQueries, by_mean); }},
      {"of 2 parts of the keys the mean is taken", [](Kernel& k) { k.loop = joined(kKeys / 2, by_mean); },
       With::no_mask},
      {"keys before 64 and the others are joined with an lse to base 2 that is taken for base e",
       [](Kernel& k) { k.loop = joined(64, by_lse_base_2); }, With::no_mask},
      {"keys before 23 and the others are joined with an lse to base 2 that is taken for base e",
       [](Kernel& k) { k.loop = joined(23, by_lse_base_2); }},
      {"of the keys before 64 and the others the mean is taken",
       [](Kernel& k) { k.loop = joined(64, by_mean); }, With::no_mask},
      {"parts of 34 keys are joined with an lse to base 2 that is taken for base e",
       [](Kernel& k) { k.loop = joined(34, by_lse_base_2, 3); }, With::no_mask},
      {"of parts of 34 keys the mean is taken", [](Kernel& k) { k.loop = joined(34, by_mean, 3); },
       With::no_mask},
      {"keys from 37 on are not read",
       [](Kernel& k) { k.allowed = [](Index, Index, Index, Index j) { return j < 37; }; }, With::no_mask},
      {"keys from 83 on are not read",
       [](Kernel& k) {
         k.allowed = [own = k.allowed](Index b, Index h, Index i, Index j) {
           return j < 83 && own(b, h, i, j);
         };
       }},
      {"the soft cap is applied to scores that are multiplied by log2(e)",
       [](Kernel& k) {
         k.score = [s = k.scale / std::log(2)](double dot, double) {
           return 2 * std::tanh(s * dot / 2) * std::log(2);
         };
       },
       With::softcap},
      {"powers of 2 are taken of capped scores that are meant for powers of e",
       [](Kernel& k) {
         k.score = [s = k.scale](double dot, double) { return 2 * std::tanh(s * dot / 2) * std::log(2); };
       },
       With::softcap},
      {"queries of entry b begin at token b of all, not after those of the entries before it",
       [](Kernel& k) {  // of entry 1
         const auto first = k.qs.begin(), token = first + kHeads * k.size;
         const Row read(token, token + kQueries * kHeads * k.size);
         std::copy(read.begin(), read.end(), first + kQueries * kHeads * k.size);
       }},
      {"the keys before the first query are left out",
       [](Kernel& k) {
         k.allowed = [](Index, Index, Index i, Index j) {
           return j >= kKeys - kQueries && j <= i + kKeys - kQueries;
         };
       }},
      {"scores are 3.33 times and values 1.67 times what they should be, as where scales of 0.3 and 0.6 are left out",
       [](Kernel& k) {
         k.score = [s = k.scale](double dot, double) { return s / 0.3 * dot; };
         k.weight = [own = k.weight](double p) { return own(p) / 0.6; };
       }},
      {"scores are 1.2 times what they should be",
       [](Kernel& k) { k.score = [s = k.scale](double dot, double) { return 1.2 * s * dot; }; }},
      {"the weights are rounded to float8_e4m3fn", [](Kernel& k) { k.weight = to_e4m3; }},
  };
  return all;
}

Kernel problem(DType type, std::uint64_t seed, With with) {
  Kernel right;
  right.heads = kHeads;
  right.queries = kQueries;
  right.keys = kKeys;
  right.size = right.value_size = 16;
  right.type = type;
  if (with != With::no_mask) {
    right.options.masks.push_back(head_masks({causal_mask(kQueries, kKeys, kKeys - kQueries)}));
    right.allowed = [](Index, Index, Index i, Index j) { return j <= i + kKeys - kQueries; };
  }
  if (with == With::softcap) right.options.softcap = 2;
  const auto numbers = [](float factor) {
    std::vector<float> all = kNumbers;
    for (float& x : all) x *= factor;
    return make_source(Array::from<float>({kHeads}, all));
  };
  if (with == With::sinks) right.options.sinks = numbers(1);
  if (with == With::alibi) right.options.alibi = numbers(0.1F);
  right.make(seed);
  right.weight = [type](double p) { return plain::rounded(p, type); };
  if (with == With::sinks) set_sinks(right, number);
  if (with == With::alibi) set_slopes(right, [](Index h) { return 0.1 * number(h); });
  return right;
}

Against against(const Kernel& right, const Row& out) {
  std::vector<std::optional<Array>> actual(2);
  actual[0] = plain::array_of(right.type, right.dout->shape(), out);
  return right.compare(actual);
}

}  // namespace

TEST_CASE("faults of operands, masked pairs, sinks and parts are named in every type") {
  for (const DType type : {DType::float32, DType::bfloat16, DType::float16})
    for (const std::uint64_t seed : {21U, 22U})
      for (const Planted& p : planted()) {
        CAPTURE(name_of(type));
        CAPTURE(p.wanted);
        const Kernel right = problem(type, seed, p.with);
        CHECK(against(right, right.forward().out).agrees());
        Kernel wrong = right;
        p.change(wrong);
        const Against found = against(right, wrong.forward().out);
        CHECK_FALSE(found.agrees());
        REQUIRE(found.explanations.size() == 1);
        CHECK(found.explanations[0].text.starts_with(p.wanted));
        CHECK(found.explanations[0].share_explained > 0.98);
      }
}

TEST_CASE("factors of many heads are named as such, and the keys of one other head with its head") {
  for (const DType type : {DType::float32, DType::bfloat16, DType::float16})
    for (const Index heads : {6, 16}) {
      CAPTURE(name_of(type));
      CAPTURE(heads);
      Kernel right;
      right.heads = right.kv_heads = heads;
      right.queries = right.keys = 64;
      right.type = type;
      right.make(27);
      Row out = right.forward().out;
      for (std::size_t n = 0; n < out.size(); ++n)
        out[n] *= 1 + static_cast<double>(static_cast<Index>(n) / right.value_size % heads);
      const Against factors = against(right, out);
      REQUIRE(factors.explanations.size() == 1);
      CHECK(factors.explanations[0].text.starts_with("each head has a factor of its own"));
      Kernel wrong = right;
      wrong.kv_head = [](Index h) { return h == 4 ? 2 : h; };
      const Against one = against(right, wrong.forward().out);
      REQUIRE(one.explanations.size() == 1);
      CHECK(one.explanations[0].text == "head 4 holds the keys and values of head 2");
    }
}

TEST_CASE("weights that a loop over tiles rounds to float8 are named with the tile") {
  for (const DType type : {DType::float32, DType::bfloat16, DType::float16})
    for (const std::uint64_t seed : {25U, 26U}) {
      CAPTURE(name_of(type));
      const Kernel right = problem(type, seed, With::no_mask);
      Kernel wrong = right;
      wrong.loop = [](const Row& scores, Row& of_out, Row&) {
        const double all = *std::max_element(scores.begin(), scores.end());
        double most = -HUGE_VAL;
        for (std::size_t j = 0; j < scores.size(); ++j) {
          if (j % 32 == 0)
            most = std::max(
                most, *std::max_element(scores.begin() + static_cast<std::ptrdiff_t>(j),
                                        scores.begin() + std::min<std::ptrdiff_t>(
                                                             static_cast<std::ptrdiff_t>(j) + 32, kKeys)));
          of_out[j] = to_e4m3(std::exp(scores[j] - most)) * std::exp(most - all) / std::exp(scores[j] - all);
        }
      };
      wrong.weight = [](double p) { return p; };
      const Against found = against(right, wrong.forward().out);
      REQUIRE(found.explanations.size() == 1);
      CHECK(found.explanations[0].text == "the weights are rounded to float8_e4m3fn in tiles of 32 keys");
      CHECK(found.explanations[0].share_explained > 0.98);
    }
}

TEST_CASE("keys of queries that were never written, which no other query attends to, are named") {
  for (const DType type : {DType::float32, DType::bfloat16, DType::float16})
    for (const std::uint64_t seed : {23U, 24U}) {
      CAPTURE(name_of(type));
      const Kernel right = problem(type, seed, With::mask);
      Kernel wrong = right;
      const auto is_padding = [](Index b, Index i) { return b == 1 && i >= 10 && i < 14; };
      wrong.allowed = [&](Index b, Index, Index i, Index j) {
        const Index own = j - (kKeys - kQueries);
        return own <= i && !is_padding(b, own) && !is_padding(b, i);
      };
      const Against found = against(right, wrong.forward().out);
      REQUIRE(found.explanations.size() == 2);
      double share = 0;
      for (const auto& e : found.explanations) {
        share += e.share_explained;
        CHECK((e.text == "elements are 0, as if never written in batch entry 1, queries 10-13" ||
               e.text.starts_with("the keys of the queries that were never written are left out")));
      }
      CHECK(share > 0.98);
    }
}

TEST_CASE("sinks that are those of no head, in one head, are no other fault within wide bounds") {
  for (const DType type : {DType::bfloat16, DType::float16})
    for (std::uint64_t seed = 30; seed < 36; ++seed) {
      CAPTURE(name_of(type));
      const Kernel right = problem(type, seed, With::sinks);
      std::mt19937_64 engine(seed);
      std::normal_distribution<double> normal;
      Kernel wrong = right;
      set_sinks(wrong, [&](Index h) { return number(h) + 0.3 * normal(engine); });  // another one in each row
      CHECK(against(right, wrong.forward().out).explanations.empty());
    }
}

}  // namespace planted_operands
