// The model of right kernels in 16 bits beside the recurrence in float64, token by token.
#include "verdict/recurrence/rounded_chunks.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "support/arrays.hpp"
#include "support/instruction_sets.hpp"

using namespace ejk;
using recurrence::DecayKind;
using recurrence_verdict::RoundedChunks;

namespace {

using Doubles = std::vector<double>;

// Packed tokens of sequences; 4 heads of queries, 1 of keys, 2 of values and of the state.
struct Problem {
  LinearAttentionSettings settings;
  LinearAttentionOperands<Array> in;
  std::vector<std::int64_t> cu{0};  // settings refer to it

  LinearAttentionArrays arrays() const {
    LinearAttentionArrays views;
    for_each_linear_operand(
        [](const char*, const auto& array, auto& view) {
          if (array) view = array->view();
        },
        in, views);
    return views;
  }
};

double log_sigmoid(double x) { return -std::log1p(std::exp(-x)); }

// Gates as fla's tests have them.
Problem random_problem(DecayKind decay, bool delta, DType dtype, std::int64_t size,
                       const std::vector<std::int64_t>& lengths, std::mt19937_64& engine) {
  Problem p;
  for (const std::int64_t length : lengths) p.cu.push_back(p.cu.back() + length);
  const std::int64_t t = p.cu.back();
  p.settings.layout = LinearAttentionLayout::thd;
  p.settings.cu_seqlens = p.cu;
  p.settings.delta = p.settings.l2norm = delta;
  const auto random = [&](DType type, const Shape& shape) { return plain::random(type, shape, engine); };
  p.in.q = random(dtype, {t, 4, size});
  p.in.k = random(dtype, {t, 1, size});
  p.in.v = random(dtype, {t, 2, size});
  p.in.initial_state = random(DType::float32, {std::ssize(lengths), 2, size, size});
  const auto uniform = [&](Shape shape, auto&& f) {
    Doubles values(static_cast<std::size_t>(element_count(shape)));
    for (double& x : values) x = f(std::uniform_real_distribution<double>(0, 1)(engine));
    return plain::array_of(DType::float32, std::move(shape), values);
  };
  if (delta) p.in.beta = uniform({t, 2}, [](double x) { return 1 / (1 + std::exp(-x)); });
  if (decay == DecayKind::fixed) p.in.decay = uniform({2}, [](double x) { return -0.1 * x; });
  if (decay == DecayKind::head) p.in.decay = uniform({t, 2}, log_sigmoid);
  if (decay == DecayKind::channel) p.in.decay = uniform({t, 2, size}, log_sigmoid);
  return p;
}

// out (sequences and heads, tokens of each, V), and the states.
struct Results {
  std::vector<Doubles> out, states;
};

template <class Real, class Head>
Results results_of(const recurrence::LinearPlan& plan, Head head) {
  Results all;
  for (std::int64_t n = 0; n < std::ssize(plan.sequences); ++n)
    for (std::int64_t h = 0; h < plan.state_heads; ++h) {
      const std::int64_t shared = plan.out_heads / plan.state_heads;
      std::vector<Doubles> out(static_cast<std::size_t>(shared));
      recurrence::LinearSink<Real> sink;
      sink.out = [&](std::int64_t out_head, std::int64_t token, std::int64_t count, const Real* rows) {
        Doubles& to = out[static_cast<std::size_t>(out_head - h * shared)];
        REQUIRE(std::ssize(to) == token * plan.value_size);
        to.insert(to.end(), rows, rows + count * plan.value_size);
      };
      sink.final_state = [&](std::int64_t slot, const Real* state) {
        REQUIRE(slot == n);
        all.states.emplace_back(state, state + plan.key_size * plan.value_size);
      };
      head.run(n, h, sink);
      all.out.insert(all.out.end(), out.begin(), out.end());
    }
  return all;
}

struct Pair {
  Results actual, truth;
};

Pair results_of(const Problem& p, FactorType factors, std::int64_t chunk) {
  const LinearAttentionPlan plan(types_of(p.arrays()), p.settings);
  const recurrence::LinearPlan& internal = plan.internal();
  const recurrence::LinearInputs in(internal, p.arrays());
  return {results_of<float>(internal, RoundedChunks(internal, in, factors, chunk)),
          results_of<double>(internal,
                             recurrence::LinearHead<double>(internal, in, recurrence::LinearForm::tokens))};
}

// The largest difference of a row, as a share of the row's largest element; NaN differs by infinity.
double difference(const std::vector<Doubles>& actual, const std::vector<Doubles>& truth) {
  REQUIRE(actual.size() == truth.size());
  double worst = 0;
  for (std::size_t n = 0; n < truth.size(); ++n) {
    REQUIRE(actual[n].size() == truth[n].size());
    double largest = 0, most = 0;
    for (std::size_t i = 0; i < truth[n].size(); ++i) {
      const double error = std::abs(actual[n][i] - truth[n][i]);
      most = error == error ? std::max(most, error) : std::numeric_limits<double>::infinity();
      largest = std::max(largest, std::abs(truth[n][i]));
    }
    if (most > 0) worst = std::max(worst, most / largest);
  }
  return worst;
}

// Of results rounded to a type, as kernels write them.
double relative_rms(const std::vector<Doubles>& actual, const std::vector<Doubles>& truth, DType dtype) {
  double errors = 0, all = 0;
  for (std::size_t n = 0; n < truth.size(); ++n)
    for (std::size_t i = 0; i < truth[n].size(); ++i) {
      errors += std::pow(plain::rounded(actual[n][i], dtype) - truth[n][i], 2);
      all += std::pow(truth[n][i], 2);
    }
  return std::sqrt(errors / all);
}

constexpr DecayKind kDecays[] = {DecayKind::none, DecayKind::fixed, DecayKind::head, DecayKind::channel};

}  // namespace

TEST_CASE("without rounding the model is the recurrence, for all decays, with and without the delta rule") {
  std::mt19937_64 engine(3);
  for (const kernels::Kernels* row : test::instruction_sets()) {
    kernels::force(row);
    const std::string name = row->name;
    CAPTURE(name);
    for (const DecayKind decay : kDecays)
      for (const bool delta : {false, true})
        for (const std::int64_t chunk : {16, 64, 100}) {
          CAPTURE(static_cast<int>(decay));
          CAPTURE(delta);
          CAPTURE(chunk);
          Problem p = random_problem(decay, delta, DType::float32, 37, {70, 0, 1, 133}, engine);
          p.in.skip = plain::filled(DType::float32, {4}, 0.5);
          if (chunk == 16) p.settings.state_layout = StateLayout::vk;
          const Pair pair = results_of(p, FactorType::f32, chunk);
          CHECK(difference(pair.actual.out, pair.truth.out) < 0x1p-16);
          CHECK(difference(pair.actual.states, pair.truth.states) < 0x1p-16);
        }
  }
  kernels::force(nullptr);
}

TEST_CASE("rounded factors are as far from the recurrence as fla's kernels") {
  struct Expected {
    DecayKind decay;
    bool delta;
    double least, most;  // relative RMS of out in bfloat16: 0.0036 to 0.0041, 0.0024 to 0.0028
  };
  std::mt19937_64 engine(5);
  for (const Expected& e : {Expected{DecayKind::head, true, 0.00355, 0.00415},
                            Expected{DecayKind::channel, false, 0.00235, 0.00285}}) {
    const auto rms = [&](DType dtype, FactorType factors, std::int64_t chunk) {
      const Problem p = random_problem(e.decay, e.delta, dtype, 128, {256}, engine);
      const Pair pair = results_of(p, factors, chunk);
      return relative_rms(pair.actual.out, pair.truth.out, dtype);
    };
    for (const std::int64_t chunk : {16, 64}) {
      CAPTURE(e.delta);
      CAPTURE(chunk);
      const double bf16 = rms(DType::bfloat16, FactorType::bf16, chunk);
      CHECK(bf16 > e.least);
      CHECK(bf16 < e.most);
      const double f16 = rms(DType::float16, FactorType::f16, chunk);
      CHECK(f16 > e.least / 8);
      CHECK(f16 < e.most / 8);
      const double tf32 = rms(DType::float32, FactorType::tf32, chunk);  // inputs are rounded, too
      CHECK(tf32 > e.least / 8);
      CHECK(tf32 < 2 * e.most / 8);
      CHECK(rms(DType::float32, FactorType::f32, chunk) < 0x1p-19);
    }
  }
}

TEST_CASE("strong decays give no NaN; elements that are not finite stay in their sequence and head") {
  std::mt19937_64 engine(7);
  for (const DecayKind decay : {DecayKind::head, DecayKind::channel})
    for (const bool delta : {false, true})
      for (const std::int64_t chunk : {16, 64}) {
        CAPTURE(static_cast<int>(decay));
        CAPTURE(delta);
        CAPTURE(chunk);
        Problem p = random_problem(decay, delta, DType::float32, 24, {100, 40}, engine);
        const auto decays = p.in.decay->elements<float>();
        for (std::size_t i = 0; i < decays.size(); ++i)
          if (i % 5 == 0) decays[i] = i % 3 == 0 ? -1e4F : -30;
        const Pair pair = results_of(p, FactorType::bf16, chunk);
        CHECK(difference(pair.actual.out, pair.truth.out) < 0.02);
        CHECK(difference(pair.actual.states, pair.truth.states) < 0.02);
        p.in.v->elements<float>()[24 * (2 * 50 + 1)] = std::numeric_limits<float>::quiet_NaN();
        const Results one = results_of(p, FactorType::bf16, chunk).actual;
        for (const std::size_t n : {0U, 1U, 4U, 5U, 6U, 7U}) CHECK(one.out[n] == pair.actual.out[n]);
        for (const std::size_t n : {2U, 3U}) CHECK(std::isnan(one.out[n][50 * 24]));
      }
}
