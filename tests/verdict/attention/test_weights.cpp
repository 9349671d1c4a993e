// Error bounds of rounded softmax weights: kernels (plain loops) that round them to 16 bits are within the
// bounds, forward and backward, and larger errors are not. The same of float32 loops over tiles.
#include "verdict/attention/weights.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "attention/plan.hpp"
#include "ejk/attention_check.hpp"
#include "support/attention_loops.hpp"
#include "verdict/attention/against.hpp"

using namespace ejk;

namespace rounded_weights {

namespace {

using Row = std::vector<double>;

// The results of a kernel that rounds P and dS to `weights`, and results to their own type.
struct Kernel {
  Array out, dq, dk, dv, dsinks;
};
Kernel made_by_kernel(const plain::RandomAttention& r, DType weights, DType scores = DType::float64) {
  const DType type = r.q.dtype();
  const plain::Expected e = plain::by_loops(r, {[=](double x) { return plain::rounded(x, weights); },
                                                [=](double x) { return plain::rounded(x, type); },
                                                [=](double x) { return plain::rounded(x, scores); }});
  const auto array = [&](const Array& like, const plain::Heads& heads) {
    return plain::array_of(type, like.shape(), heads, r.options.layout);
  };
  return {array(r.dout, e.out), array(r.q, e.dq), array(r.k, e.dk), array(r.v, e.dv),
          plain::array_of(type, {std::ssize(e.dsinks)}, e.dsinks)};
}

// Those of the library, and of the kernel without dbias, in the order of a plan's results.
struct Gradients {
  std::vector<ArrayView> own;
  std::vector<std::optional<ArrayView>> given;
};
Gradients gradients_of(const AttentionGradients& own, const Kernel& given) {
  Gradients all{{own.dq.view(), own.dk.view(), own.dv.view()},
                {given.dq.view(), given.dk.view(), given.dv.view()}};
  if (own.dbias) all.own.push_back(own.dbias->view()), all.given.emplace_back();
  if (own.dsinks) all.own.push_back(own.dsinks->view()), all.given.emplace_back(given.dsinks.view());
  return all;
}

}  // namespace

TEST_CASE(
    "a kernel that rounds weights to the type of the values agrees, and by the strict bound it does not") {
  plain::Random random(91);
  int refused = 0, bounds = 0;
  for (int n = 0; n < 150; ++n) {
    CAPTURE(n);
    const auto r = plain::random_attention(random, {DType::bfloat16, DType::float16});
    if (r->v.shape().back() == 0) continue;
    if (n % 3 == 0) plain::add_dropout(*r, random);
    const DType weights = r->v.dtype();
    const ArrayView q = r->q.view(), k = r->k.view(), v = r->v.view(), dout = r->dout.view();
    AttentionArrays forward{q, k, v, r->options.bias}, backward{q, k, v, r->options.bias, dout};
    forward.dropout = backward.dropout = r->options.dropout;
    const Kernel given = made_by_kernel(*r, weights);
    const Attention own = attention(q, k, v, r->options);
    const AttentionGradients g = attention_grad(q, k, v, dout, r->options);
    const Gradients both = gradients_of(g, given);
    const attn::Plan plan(types_of(forward), r->options), of_gradients(types_of(backward), r->options);
    for (const double effort : {attn::kCheckEffort, 0.5}) {
      CAPTURE(effort);
      const Against of_out =
          attn::compare(plan, forward, {own.out.view(), own.lse.view()}, {given.out.view(), own.lse.view()},
                        {weights}, Explain::no, effort);
      CHECK(of_out.largest <= 1);
      const Against of_grad =
          attn::compare(of_gradients, backward, both.own, both.given, {weights}, Explain::no, effort);
      CHECK(of_grad.largest <= 1);
      const Against strict =
          attn::compare(plan, forward, {own.out.view(), own.lse.view()}, {given.out.view(), own.lse.view()},
                        {DType::float32}, Explain::no, effort);
      refused += !strict.agrees();
      ++bounds;
    }
    // A value that is off by a twentieth of the largest is not let through.
    Array wrong = Array::copy_of(given.out.view());
    Row values = plain::doubles(wrong.view());
    const auto largest = std::max_element(values.begin(), values.end(),
                                          [](double a, double b) { return std::abs(a) < std::abs(b); });
    if (values.empty() || std::abs(*largest) < 0.1) continue;
    *largest *= 1.1;
    wrong = plain::array_of(weights, wrong.shape(), values);
    CHECK(attn::compare(plan, forward, {own.out.view(), own.lse.view()}, {wrong.view(), own.lse.view()},
                        {weights}, Explain::no, attn::kCheckEffort)
              .beyond == 1);
  }
  CHECK(2 * refused > bounds);
}

TEST_CASE("results of rounded scores agree where these are stated, and often not elsewhere") {
  plain::Random random(93);
  int refused = 0, tried = 0;
  double largest = 0;
  for (int n = 0; n < 150; ++n) {
    CAPTURE(n);
    const auto r = plain::random_attention(random, {DType::bfloat16, DType::float16});
    if (r->v.shape().back() == 0) continue;
    r->scale *= 4;
    r->options.scale = r->scale;
    const DType weights = r->v.dtype(), scores = r->q.dtype();
    const ArrayView q = r->q.view(), k = r->k.view(), v = r->v.view(), dout = r->dout.view();
    const AttentionArrays forward{q, k, v, r->options.bias}, backward{q, k, v, r->options.bias, dout};
    const Kernel given = made_by_kernel(*r, weights, scores);
    const Attention own = attention(q, k, v, r->options);
    const AttentionGradients g = attention_grad(q, k, v, dout, r->options);
    const Gradients both = gradients_of(g, given);
    const AttentionPlan plan(types_of(forward), r->options), of_gradients(types_of(backward), r->options);
    const auto compared = [&](const SoftmaxTypes& types) {
      return std::array{compare_results(plan, forward, {own.out.view(), own.lse.view()},
                                        {given.out.view(), std::nullopt}, Explain::no, types),
                        compare_results(of_gradients, backward, both.own, both.given, Explain::no, types)};
    };
    for (const Against& against : compared({weights, scores})) {
      CHECK(against.largest <= 1);
      largest = std::max(largest, against.largest);
    }
    refused += !compared({weights})[0].agrees();
    ++tried;
  }
  CHECK(4 * refused > tried);
  CHECK(largest > 0.2);
}

TEST_CASE("the weights of decoded values are those of 16-bit queries") {
  plain::Random random(92);
  for (int n = 0; n < 40; ++n) {
    CAPTURE(n);
    const auto r = plain::random_attention(random, {DType::bfloat16, DType::float16});
    const DType type = r->q.dtype();
    // As a decoded cache is: float32 values that a kernel decodes to the type of the queries, exactly.
    for (Array* decoded : {&r->k, &r->v})
      *decoded = plain::array_of(DType::float32, decoded->shape(), plain::doubles(decoded->view()));
    const Kernel given = made_by_kernel(*r, type);
    AttentionArrays arrays{r->q.view(), r->k.view(), r->v.view(), r->options.bias};
    arrays.dropout = r->options.dropout;
    const AttentionPlan plan(types_of(arrays), r->options);
    CHECK(weights_dtype(plan) == type);
    const Attention own = attention(r->q.view(), r->k.view(), r->v.view(), r->options);
    const Against found = compare_results(plan, arrays, {own.out.view(), own.lse.view()},
                                          {given.out.view(), std::nullopt}, Explain::no);
    CHECK(found.agrees());
  }
}

TEST_CASE("the bound of a sum goes by the squares of its terms, those of equal keys together") {
  plain::Random random(92);
  constexpr std::int64_t kQueries = 6, kKeys = 40, kSize = 8;
  for (const DType type : {DType::bfloat16, DType::float16}) {
    const double u = type == DType::bfloat16 ? 0x1p-8 : 0x1p-11, least = type == DType::float16 ? 0x1p-25 : 0;
    const Array q = plain::random(type, {1, kQueries, 1, kSize}, random),
                v = plain::random(type, {1, kKeys, 1, kSize}, random);
    // Key 0 five times, key 1 twice.
    Row keys = plain::doubles(plain::random(type, {1, kKeys, 1, kSize}, random).view());
    for (const auto& [to, from] : {std::pair{3, 0}, {7, 0}, {8, 0}, {39, 0}, {12, 1}})
      std::copy_n(keys.begin() + from * kSize, kSize, keys.begin() + to * kSize);
    const Array k = plain::array_of(type, {1, kKeys, 1, kSize}, keys);
    Row count(kKeys, 1);
    for (const int j : {0, 3, 7, 8, 39}) count[static_cast<std::size_t>(j)] = 5;
    count[1] = count[12] = 2;
    const AttentionArrays arrays{q.view(), k.view(), v.view()};
    const attn::Plan plan(types_of(arrays), {});
    const attn::CheckedArguments setup = attn::bound(plan.setup, plan.types, arrays);
    const attn::WeightRounding made = attn::rounding_of_weights(setup, plan.blocks(), {type}, {});
    REQUIRE(made.terms.size() == 1);
    CHECK(made.unit == u);
    const Row queries = plain::doubles(q.view()), values = plain::doubles(v.view());
    for (std::size_t i = 0; i < kQueries; ++i) {
      Row weights(kKeys);
      for (std::size_t j = 0; j < kKeys; ++j) {
        double s = 0;
        for (std::size_t d = 0; d < kSize; ++d) s += queries[i * kSize + d] * keys[j * kSize + d];
        weights[j] = std::exp(s / std::sqrt(8.0));
      }
      const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
      for (std::size_t d = 0; d < kSize; ++d) {
        double squares = 0;
        for (std::size_t j = 0; j < kKeys; ++j) {
          const double value = values[j * kSize + d], weight = weights[j] / sum;
          squares += count[j] * value * value * (u * u * weight * weight + least * least);
        }
        const double bound = static_cast<double>(made.terms[0].elements<float>()[i * kSize + d]);
        CHECK(bound == doctest::Approx(4 * std::sqrt(squares)).epsilon(1e-3));
      }
    }
  }
  // It goes with the size of the values, however far that is from 1, and what a mask hides from all says
  // nothing.
  for (const DType type : {DType::bfloat16, DType::float16}) {
    const Array q = plain::random(type, {1, 9, 2, 4}, random),
                dout = plain::random(type, {1, 9, 2, 4}, random);
    const Row keys = plain::doubles(plain::random(type, {1, 9, 2, 4}, random).view()),
              values = plain::doubles(plain::random(type, {1, 9, 2, 4}, random).view());
    AttentionOptions options;
    options.masks.push_back(head_masks({prefix_mask(9, 9, 6)}));
    const auto terms = [&](double size, double hidden, bool gradients) {
      Row of_k = keys, of_v = values;
      for (double& x : of_v) x *= size;
      for (std::size_t n = 6 * 2 * 4; n < of_v.size(); ++n) of_k[n] = of_v[n] = hidden;
      const Array k = plain::array_of(type, {1, 9, 2, 4}, of_k),
                  v = plain::array_of(type, {1, 9, 2, 4}, of_v);
      AttentionArrays arrays{q.view(), k.view(), v.view()};
      if (gradients) arrays.dout = dout.view();
      const attn::Plan plan(types_of(arrays), options);
      const attn::CheckedArguments setup = attn::bound(plan.setup, plan.types, arrays);
      Row all;
      for (const Array& array : attn::rounding_of_weights(setup, plan.blocks(), {type}, arrays.dout).terms)
        for (const double x : plain::doubles(array.view())) all.push_back(x);
      return all;
    };
    for (const bool gradients : {false, true}) {
      const Row right = terms(1, 0, gradients);
      for (const double hidden : {std::nan(""), HUGE_VAL, 6e4}) CHECK(terms(1, hidden, gradients) == right);
    }
    if (type == DType::float16) continue;
    const Row right = terms(1, 0, false);
    for (const double size : {0x1p80, 0x1p-80}) {
      const Row other = terms(size, 0, false);
      REQUIRE(other.size() == right.size());
      for (std::size_t n = 0; n < right.size(); ++n)
        CHECK(other[n] == doctest::Approx(size * right[n]).epsilon(1e-6));
    }
  }
  // Weights of float32 are not rounded.
  const Array x = plain::random(DType::bfloat16, {1, 4, 1, 4}, random);
  const AttentionArrays arrays{x.view(), x.view(), x.view()};
  const attn::Plan plan(types_of(arrays), {});
  const attn::CheckedArguments setup = attn::bound(plan.setup, plan.types, arrays);
  CHECK(attn::rounding_of_weights(setup, plan.blocks(), {DType::float32}, {}).terms.empty());
}

}  // namespace rounded_weights

namespace float32_loops {

namespace {

using plain::rounded;
using Row = std::vector<float>;

float to_tf32(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>((bits + 0xfff + ((bits >> 13) & 1)) & ~0x1fffU);
}

// One key head; (heads, positions, size) in a row.
struct Inputs {
  std::int64_t heads, queries, keys, size;
  Row q, k, v, dout;

  Inputs(std::int64_t head_count, std::int64_t query_count, std::int64_t key_count, std::int64_t row_size,
         plain::Random& random)
      : heads(head_count), queries(query_count), keys(key_count), size(row_size) {
    std::normal_distribution<float> normal;
    for (auto [row, count] :
         {std::pair{&q, heads * queries}, {&k, keys}, {&v, keys}, {&dout, heads * queries}})
      for (std::int64_t n = 0; n < count * size; ++n) row->push_back(normal(random));
  }
  std::int64_t offset() const { return std::max<std::int64_t>(0, keys - queries); }
  bool attends(std::int64_t i, std::int64_t j) const { return j <= i + offset(); }
};

// A loop over tiles of keys in float32: exponentials relative to a running maximum, and P from lse again in the
// backward pass.
struct Loop {
  std::int64_t tile = 32;
  bool is_backwards = false, is_base_2 = false;
  std::function<float(float)> factor = [](float x) { return x; };  // rounding of the factors of products
  std::function<float(float)> sum = [](float x) { return x; };     // of accumulators
};

struct Results {
  Row out, lse, dq, dk, dv;
};

Results by_tiles(const Inputs& in, const Loop& loop) {
  const auto size = static_cast<std::size_t>(in.size);
  const auto& f = loop.factor;
  const float unit = loop.is_base_2 ? 1.44269504F : 1, scale = 1 / std::sqrt(static_cast<float>(in.size));
  const auto power = [&](float x) { return loop.is_base_2 ? std::exp2(x) : std::exp(x); };
  const auto dot = [&](const float* a, const float* b) {
    float sum = 0;
    for (std::size_t d = 0; d < size; ++d) sum = loop.sum(sum + f(a[d]) * f(b[d]));
    return sum;
  };
  const auto add = [&](float factor, const float* row, float* to) {
    for (std::size_t d = 0; d < size; ++d) to[d] = loop.sum(to[d] + f(factor) * f(row[d]));
  };
  std::vector<std::vector<std::int64_t>> tiles;
  for (std::int64_t j = 0; j < in.keys; ++j) {
    if (j % loop.tile == 0) tiles.emplace_back();
    tiles.back().push_back(j);
  }
  if (loop.is_backwards) std::reverse(tiles.begin(), tiles.end());
  Results r{Row(in.q.size()), {}, Row(in.q.size()), Row(in.k.size()), Row(in.k.size())};
  for (std::int64_t n = 0; n < in.heads * in.queries; ++n) {
    const float *const q = in.q.data() + n * in.size, *const dout = in.dout.data() + n * in.size;
    float *const out = r.out.data() + n * in.size, *const dq = r.dq.data() + n * in.size;
    const auto score = [&](std::int64_t j) {
      return in.attends(n % in.queries, j) ? dot(q, in.k.data() + j * in.size) * (scale * unit)
                                           : -std::numeric_limits<float>::infinity();
    };
    float most = -1e30F, sum = 0;
    for (const auto& tile : tiles) {
      float before = most;
      for (const std::int64_t j : tile) most = std::max(most, score(j));
      before = power(before - most);
      sum *= before;
      for (std::size_t d = 0; d < size; ++d) out[d] *= before;
      for (const std::int64_t j : tile) {
        const float weight = power(score(j) - most);
        sum += weight;
        add(weight, in.v.data() + j * in.size, out);
      }
    }
    for (std::size_t d = 0; d < size; ++d) out[d] /= sum;
    const float lse = most + (loop.is_base_2 ? std::log2(sum) : std::log(sum));
    r.lse.push_back(lse / unit);
    float delta = 0;
    for (std::size_t d = 0; d < size; ++d) delta += dout[d] * out[d];
    for (const auto& tile : tiles)
      for (const std::int64_t j : tile) {
        if (!in.attends(n % in.queries, j)) continue;
        const float weight = power(score(j) - lse),
                    ds = weight * (dot(dout, in.v.data() + j * in.size) - delta);
        add(weight, dout, r.dv.data() + j * in.size);
        add(ds, q, r.dk.data() + j * in.size);
        add(ds, in.k.data() + j * in.size, dq);
      }
  }
  for (Row* gradient : {&r.dq, &r.dk})
    for (float& x : *gradient) x *= scale;
  return r;
}

// The verdicts on out and lse, and on the gradients.
std::pair<Against, Against> judged(const Inputs& in, const Results& given, double effort) {
  const auto array = [](const Row& row, Shape shape) { return Array::from<float>(std::move(shape), row); };
  const Shape of_q{1, in.heads, in.queries, in.size}, of_k{1, 1, in.keys, in.size};
  const Array q = array(in.q, of_q), k = array(in.k, of_k), v = array(in.v, of_k),
              dout = array(in.dout, of_q), out = array(given.out, of_q),
              lse = array(given.lse, {1, in.heads, in.queries}), dq = array(given.dq, of_q),
              dk = array(given.dk, of_k), dv = array(given.dv, of_k);
  AttentionOptions options;
  options.layout = AttentionLayout::bhsd;
  options.masks.push_back(head_masks({causal_mask(in.queries, in.keys, in.offset())}));
  const AttentionArrays forward{q.view(), k.view(), v.view()};
  AttentionArrays backward = forward;
  backward.dout = dout.view();
  const Attention own = attention(q.view(), k.view(), v.view(), options);
  const AttentionGradients g = attention_grad(q.view(), k.view(), v.view(), dout.view(), options);
  const attn::Plan plan(types_of(forward), options), of_gradients(types_of(backward), options);
  return {attn::compare(plan, forward, {own.out.view(), own.lse.view()}, {out.view(), lse.view()},
                        {DType::float32}, Explain::no, effort),
          attn::compare(of_gradients, backward, {g.dq.view(), g.dk.view(), g.dv.view()},
                        {dq.view(), dk.view(), dv.view()}, {DType::float32}, Explain::no, effort)};
}

}  // namespace

TEST_CASE("a loop over tiles in float32 is within the bound of float32, and not far below it") {
  plain::Random random(93);
  for (const auto& shape : {std::array<std::int64_t, 3>{1, 1, 8},
                            {5, 40, 64},
                            {7, 1000, 16},
                            {300, 30, 32},
                            {40, 40, 128},
                            {2, 3000, 8}})
    for (int kind = 0; kind < 5; ++kind) {
      const std::int64_t queries = shape[0], keys = shape[1], size = shape[2];
      CAPTURE(queries);
      CAPTURE(keys);
      CAPTURE(kind);
      Inputs in(2, queries, keys, size, random);
      if (kind == 1)
        for (float& x : in.v) x += 3;
      if (kind == 2) std::fill(in.dout.begin(), in.dout.end(), 1.0F);
      if (kind == 3)
        for (float& x : in.q) x *= 6;
      if (kind == 4) std::copy_n(in.k.begin(), in.keys / 2 * in.size, in.k.end() - in.keys / 2 * in.size);
      double largest = 0;
      for (const Loop& loop : {Loop{}, Loop{16, true, true}}) {
        const Results given = by_tiles(in, loop);
        for (const double effort : {attn::kCheckEffort, 0.5}) {
          const auto [of_out, of_grad] = judged(in, given, effort);
          CHECK(of_out.largest <= 1);
          CHECK(of_grad.largest <= 1);
          largest = std::max({largest, of_out.largest, of_grad.largest});
        }
      }
      CHECK(largest > 0.02);
    }
}

TEST_CASE("the library's float32 results are within it, in every layout and with every option") {
  plain::Random random(95);
  for (int n = 0; n < 200; ++n) {
    CAPTURE(n);
    const auto r = plain::random_attention(random, {DType::float32});
    if (n % 3 == 0) plain::add_dropout(*r, random);
    const ArrayView q = r->q.view(), k = r->k.view(), v = r->v.view(), dout = r->dout.view();
    AttentionArrays forward{q, k, v, r->options.bias};
    forward.dropout = r->options.dropout;
    AttentionArrays backward = forward;
    backward.dout = dout;
    const Attention a = attention(q, k, v, r->options);
    const AttentionGradients g = attention_grad(q, k, v, dout, r->options);
    std::vector<ArrayView> gradients{g.dq.view(), g.dk.view(), g.dv.view()};
    for (const auto* more : {&g.dbias, &g.dsinks})
      if (*more) gradients.push_back((*more)->view());
    const attn::Plan plan(types_of(forward), r->options), of_gradients(types_of(backward), r->options);
    const std::vector<ArrayView> results{a.out.view(), a.lse.view()};
    const auto given = [](const std::vector<ArrayView>& views) {
      return std::vector<std::optional<ArrayView>>(views.begin(), views.end());
    };
    CHECK(attn::compare(plan, forward, results, given(results), {DType::float32}, Explain::no,
                        attn::kCheckEffort)
              .largest <= 1);
    CHECK(attn::compare(of_gradients, backward, gradients, given(gradients), {DType::float32}, Explain::no,
                        attn::kCheckEffort)
              .largest <= 1);
  }
}

TEST_CASE("products of TF32, of 16 bits, sums of 16 bits and a small factor are beyond it") {
  plain::Random random(94);
  Loop tf32, bfloat, half, sums;
  tf32.factor = to_tf32;
  bfloat.factor = sums.sum = [](float x) { return static_cast<float>(rounded(x, DType::bfloat16)); };
  half.factor = [](float x) { return static_cast<float>(rounded(x, DType::float16)); };
  for (const auto& shape : {std::pair<std::int64_t, std::int64_t>{16, 30}, {2, 300}, {100, 20}}) {
    const std::int64_t queries = shape.first, keys = shape.second;
    CAPTURE(keys);
    const Inputs in(2, queries, keys, 64, random);
    for (const Loop& loop : {tf32, bfloat, half, sums})
      for (const double effort : {attn::kCheckEffort, 0.5}) {
        const auto [of_out, of_grad] = judged(in, by_tiles(in, loop), effort);
        for (const Against* verdict : {&of_out, &of_grad})
          for (const Against::Compared& array : verdict->arrays) CHECK(array.beyond > 0);
      }
    Results off = by_tiles(in, {});
    for (float& x : off.dk) x *= 1.003F;
    const auto [of_out, of_grad] = judged(in, off, attn::kCheckEffort);
    CHECK(of_out.agrees());
    CHECK(of_grad.arrays[0].beyond == 0);
    CHECK(10 * of_grad.arrays[1].beyond > 9 * of_grad.arrays[1].elements);
    CHECK(of_grad.arrays[2].beyond == 0);
  }
}

}  // namespace float32_loops
