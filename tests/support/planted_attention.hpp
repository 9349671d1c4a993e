// Attention by plain loops, forward and backward, in which tests plant the faults of kernels.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ejk/against.hpp"
#include "ejk/attention.hpp"
#include "ejk/attention_check.hpp"
#include "support/arrays.hpp"

namespace plain {

using namespace ejk;

using Index = std::int64_t;
using Row = std::vector<double>;

/// A problem of attention, and a kernel by plain loops whose members faults replace. Layout bshd.
struct PlantedAttention {
  Index batch = 2, heads = 4, kv_heads = 2, queries = 24, keys = 24, size = 8, value_size = 6;
  DType type = DType::float32;
  double scale = 0, softcap = 0;
  std::shared_ptr<Array> q, k, v, dout, bias;
  std::vector<double> qs, ks, vs, gs, bs;
  AttentionOptions options;

  std::function<double(double dot, double bias)> score;
  std::function<bool(Index b, Index h, Index i, Index j)> allowed = [](Index, Index, Index, Index) {
    return true;
  };
  std::function<Index(Index h)> kv_head;
  std::function<double(double)> weight = [](double p) { return p; };
  std::function<Index(Index h)> value_head = [](Index h) { return h; };  // of a head of keys
  // Factors of a loop over tiles: of the accumulator and of the sum, by key; and keys of zeros.
  std::function<void(const Row& scores, Row& of_out, Row& of_sum)> loop = [](const Row&, Row&, Row&) {};
  std::function<double(Index h)> more = [](Index) {
    return 0.0;
  };  // e^score of a head's sink, of keys of zeros
  std::function<double(Index h, Index i, Index j)> alibi = [](Index, Index, Index) { return 0.0; };
  std::function<Index(Index b)> kv_entry = [](Index b) { return b; };
  // Masked pairs have a score, or their own and no weight.
  std::optional<double> masked_score;
  bool masks_weights = false;
  std::function<double(double most, double sum)> lse = [](double most, double sum) {
    return most + std::log(sum);
  };

  void make(std::uint64_t seed) {
    std::mt19937_64 engine(seed);
    q = std::make_shared<Array>(random(type, {batch, queries, heads, size}, engine));
    k = std::make_shared<Array>(random(type, {batch, keys, kv_heads, size}, engine));
    v = std::make_shared<Array>(random(type, {batch, keys, kv_heads, value_size}, engine));
    dout = std::make_shared<Array>(random(type, {batch, queries, heads, value_size}, engine));
    qs = doubles(q->view()), ks = doubles(k->view()), vs = doubles(v->view()), gs = doubles(dout->view());
    scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(size)));
    softcap = options.softcap.value_or(0);
    if (options.bias) bs = doubles(*options.bias);
    score = [s = scale, c = softcap](double dot, double b) {
      return (c > 0 ? c * std::tanh(s * dot / c) : s * dot) + b;
    };
    kv_head = [group = heads / kv_heads](Index h) { return h / group; };
  }
  static std::size_t at(Index a, Index b, Index c, Index d, Index nb, Index nc, Index nd) {
    return static_cast<std::size_t>(((a * nb + b) * nc + c) * nd + d);
  }
  double bias_at(Index b, Index h, Index i, Index j) const {
    return bs.empty() ? 0 : bs[at(b, h, i, j, heads, queries, keys)];
  }
  double raw_score(Index b, Index h, Index i, Index j) const {
    double dot = 0;
    for (Index d = 0; d < size; ++d)
      dot += qs[at(b, i, h, d, queries, heads, size)] *
             ks[at(kv_entry(b), j, kv_head(h), d, keys, kv_heads, size)];
    return score(dot, bias_at(b, h, i, j)) + alibi(h, i, j);
  }

  struct Made {
    std::vector<double> out, lse;
  };
  Made forward() const {
    Made made{std::vector<double>(static_cast<std::size_t>(batch * queries * heads * value_size)),
              std::vector<double>(static_cast<std::size_t>(batch * heads * queries))};
    for (Index b = 0; b < batch; ++b)
      for (Index h = 0; h < heads; ++h)
        for (Index i = 0; i < queries; ++i) {
          double& l = made.lse[static_cast<std::size_t>((b * heads + h) * queries + i)];
          l = -HUGE_VAL;
          Row s(static_cast<std::size_t>(keys), -HUGE_VAL), of_out(s.size(), 1), of_sum(s.size(), 1);
          for (Index j = 0; j < keys; ++j)
            if (allowed(b, h, i, j) || masks_weights)
              s[static_cast<std::size_t>(j)] = raw_score(b, h, i, j);
            else if (masked_score)
              s[static_cast<std::size_t>(j)] = *masked_score;
          const double most = *std::max_element(s.begin(), s.end());
          if (most == -HUGE_VAL) continue;
          loop(s, of_out, of_sum);
          double sum = more(h) * std::exp(-most);
          for (std::size_t j = 0; j < s.size(); ++j) sum += std::exp(s[j] - most) * of_sum[j];
          l = lse(most, sum);
          for (Index j = 0; j < keys; ++j) {
            const auto n = static_cast<std::size_t>(j);
            if (s[n] == -HUGE_VAL || (masks_weights && !allowed(b, h, i, j))) continue;
            const double p = weight(std::exp(s[n] - most)) * of_out[n] / sum;
            for (Index d = 0; d < value_size; ++d)
              made.out[at(b, i, h, d, queries, heads, value_size)] +=
                  p * vs[at(kv_entry(b), j, value_head(kv_head(h)), d, keys, kv_heads, value_size)];
          }
        }
    return made;
  }
  std::string explanation(const Made& made, DType result) const {
    std::vector<std::optional<Array>> actual;
    actual.emplace_back(array_of(result, dout->shape(), made.out));
    actual.emplace_back(array_of(DType::float32, {batch, heads, queries}, made.lse));
    return told(compare(actual, DType::float32));
  }

  struct Gradient {
    std::vector<double> dq, dk, dv;
  };
  // Faults of a backward pass by these scores.
  struct Backward {
    bool slope = true;
    const PlantedAttention* right = nullptr;                // whose lse and delta; null: their own
    double delta = 1, lse = 1, dq_scale = 1, dk_scale = 1;  // factors
    std::function<double(Index h)> counts = [](Index) { return 1.0; };  // how often a head is added
    std::function<Index(Index h)> key_head = {};  // that dk and dv of a head are added to
    bool has_delta_of_first = false;              // of entry 0, for all
  };
  Gradient backward(const Backward& how) const {
    const PlantedAttention& of = how.right ? *how.right : *this;
    const Made made = of.forward();
    Gradient g{std::vector<double>(qs.size()), std::vector<double>(ks.size()),
               std::vector<double>(vs.size())};
    for (Index b = 0; b < batch; ++b)
      for (Index h = 0; h < heads; ++h)
        for (Index i = 0; i < queries; ++i) {
          const Index delta_entry = how.has_delta_of_first ? 0 : b;
          double delta = 0;
          for (Index d = 0; d < value_size; ++d)
            delta += gs[at(delta_entry, i, h, d, queries, heads, value_size)] *
                     made.out[at(delta_entry, i, h, d, queries, heads, value_size)];
          for (Index j = 0; j < keys; ++j) {
            if (!allowed(b, h, i, j)) continue;
            const double p =
                std::exp(raw_score(b, h, i, j) -
                         how.lse * made.lse[static_cast<std::size_t>((b * heads + h) * queries + i)]);
            const Index kv = kv_head(h), to = how.key_head ? how.key_head(h) : kv;
            const double counts = how.counts(h);
            double dp = 0, dot = 0;
            for (Index d = 0; d < value_size; ++d) {
              const double dout_at = gs[at(b, i, h, d, queries, heads, value_size)];
              dp += dout_at * vs[at(b, j, kv, d, keys, kv_heads, value_size)];
              g.dv[at(b, j, to, d, keys, kv_heads, value_size)] += counts * weight(p) * dout_at;
            }
            for (Index d = 0; d < size; ++d)
              dot += qs[at(b, i, h, d, queries, heads, size)] * ks[at(b, j, kv, d, keys, kv_heads, size)];
            const double t = softcap > 0 && how.slope ? std::tanh(scale * dot / softcap) : 0;
            const double slope = score(1, 0) - score(0, 0),
                         ds = weight(p * (dp - how.delta * delta) * (1 - t * t)) *
                              (slope > 0 && softcap == 0 ? slope : scale);
            for (Index d = 0; d < size; ++d) {
              g.dq[at(b, i, h, d, queries, heads, size)] +=
                  how.dq_scale * ds * ks[at(b, j, kv, d, keys, kv_heads, size)];
              g.dk[at(b, j, to, d, keys, kv_heads, size)] +=
                  counts * how.dk_scale * ds * qs[at(b, i, h, d, queries, heads, size)];
            }
          }
        }
    return g;
  }
  std::string explanation(const Gradient& made) const {
    return told(compare(made, DType::float32, DType::float32));
  }

  /// The library's comparison of results: out and lse, or gradients. `weights`: the type to which P is
  /// rounded.
  Against compare(const std::vector<std::optional<Array>>& actual, std::optional<DType> weights = {}) const {
    AttentionArrays arrays{q->view(), k->view(), v->view(), options.bias};
    if (actual.size() > 2) arrays.dout = dout->view();
    const AttentionPlan plan(types_of(arrays), options);
    std::vector<Array> own;
    std::vector<MutableArrayView> into;
    std::vector<ArrayView> views;
    for (const PlannedArray& result : plan.results()) {
      own.emplace_back(result.type.dtype, result.type.shape);
      into.push_back(own.back().mutable_view());
      views.push_back(own.back().view());
    }
    plan.run(arrays, into);
    std::vector<std::optional<ArrayView>> given;
    for (const auto& array : actual) given.push_back(array ? std::optional(array->view()) : std::nullopt);
    return compare_results(plan, arrays, views, given, Explain::yes, {weights});
  }
  Against compare(const Gradient& made, DType result, std::optional<DType> weights = {}) const {
    std::vector<std::optional<Array>> actual;
    actual.emplace_back(array_of(result, q->shape(), made.dq));
    actual.emplace_back(array_of(result, k->shape(), made.dk));
    actual.emplace_back(array_of(result, v->shape(), made.dv));
    return compare(actual, weights);
  }

  // The explanations of results whose weights are not rounded, as one text.
  static std::string told(const Against& against) {
    std::string text = against.agrees() ? "agrees" : "";
    std::map<std::string, double> shares;
    // What is said of several arrays alike is one text, of some of them with their names.
    for (std::size_t n = 0; n < against.explanations.size(); ++n) {
      const auto& e = against.explanations[n];
      shares[e.array] += e.share_explained;
      const auto is_same = [&](const auto& other) { return other.kind == e.kind && other.text == e.text; };
      const auto begin = against.explanations.begin(), at = begin + static_cast<std::ptrdiff_t>(n);
      if (std::any_of(begin, at, is_same)) continue;
      std::string names;
      std::size_t arrays_of = 0;
      for (auto other = at; other != against.explanations.end(); ++other)
        if (is_same(*other)) names += (names.empty() ? "" : ", ") + other->array, ++arrays_of;
      const bool is_said = e.text.starts_with("lse ") || e.text.starts_with(e.array + " ");
      text +=
          e.kind + ": " + (arrays_of < against.arrays.size() && !is_said ? names + ": " : "") + e.text + "; ";
    }
    for (const auto& u : against.unexplained) shares[u.array] += u.share;
    for (const auto& [array, share] : shares) CHECK(share == doctest::Approx(1));
    return text;
  }
};

}  // namespace plain
