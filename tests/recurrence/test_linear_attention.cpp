// Linear attention: golden cases, random problems of all architectures against plain loops, jumps and strong decays,
// elements that are not finite, slots, threads, errors.
#include "ejk/linear_attention.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>

#include "support/arrays.hpp"
#include "support/failure.hpp"
#include "support/instruction_sets.hpp"
#include "support/linear_problems.hpp"
#include "support/threads.hpp"

using namespace ejk;
using plain::Architecture, plain::Doubles, plain::doubles, plain::kAll, plain::Problem, plain::random_problem,
    plain::settings_of;

namespace {

using Layout = LinearAttentionLayout;

// A problem of one sequence: decays as factors, everything as numbers of each head of the state.
struct Recurrence {
  std::int64_t tokens, keys, values;
  bool delta = false, l2norm = false;
  double scale = 1;
  std::function<double(std::int64_t t, std::int64_t d)> q, k, v, decay;
  std::function<double(std::int64_t t)> beta;
  std::function<double(std::int64_t c)> skip;
};

// out (tokens, values); `state` (keys, values) is updated.
Doubles loops(const Recurrence& r, Doubles& state) {
  const auto at = [&](std::int64_t d, std::int64_t c) -> double& {
    return state[static_cast<std::size_t>(d * r.values + c)];
  };
  const auto norm = [&](const auto& x, std::int64_t t) {
    double squares = 1e-6;
    for (std::int64_t d = 0; d < r.keys; ++d) squares += x(t, d) * x(t, d);
    return r.l2norm ? std::sqrt(squares) : 1.0;
  };
  Doubles out;
  for (std::int64_t t = 0; t < r.tokens; ++t) {
    const double k_norm = norm(r.k, t), q_norm = norm(r.q, t);
    for (std::int64_t c = 0; c < r.values; ++c) {
      double read = 0, result = 0;
      for (std::int64_t d = 0; d < r.keys; ++d) read += (at(d, c) *= r.decay(t, d)) * r.k(t, d) / k_norm;
      const double u = r.beta(t) * (r.v(t, c) - (r.delta ? read : 0));
      for (std::int64_t d = 0; d < r.keys; ++d) {
        at(d, c) += r.k(t, d) / k_norm * u;
        result += at(d, c) * r.q(t, d) / q_norm;
      }
      out.push_back(r.scale * result + r.skip(c) * r.v(t, c));
    }
  }
  return out;
}

// "" where all are within the tolerance of an arithmetic and the rounding of a type.
std::string far_from(const Doubles& actual, const Doubles& expected, DType dtype, bool is_wide,
                     double largest = 0) {
  for (const double e : expected)
    if (std::isfinite(e)) largest = std::max(largest, std::abs(e));
  const double unit = dtype == DType::bfloat16 ? 0x1p-8 : dtype == DType::float16 ? 0x1p-11 : 0x1p-24;
  if (actual.size() != expected.size()) return fmt::format("{} and {}", actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double e = expected[i];
    const double allowed =
        (is_wide ? 1e-12 : 0x1p-17) * largest +
        (dtype == DType::float64 ? 0 : unit * std::abs(e) + (dtype == DType::float16 ? 0x1p-25 : 0));
    if (!std::isfinite(e) ? std::isnan(e) == std::isnan(actual[i]) && (std::isnan(e) || e == actual[i])
                          : std::abs(actual[i] - e) <= allowed)
      continue;
    return fmt::format("element {}: {} for {}, of {}", i, actual[i], e, largest);
  }
  return "";
}

}  // namespace

TEST_CASE("linear attention gives the golden results, in chunks of any size, and passes its own check") {
  int seen = 0;
  for (const golden::Case& c : golden::load("linear_attention")) {
    CAPTURE(c.name);
    LinearAttentionArrays arrays;
    for_each_linear_operand(
        [&](const char* name, auto& array) {
          if (c.in.contains(name)) array = c.in.at(name).view();
        },
        arrays);
    const bool is_wide = c.params.at("dtype") == "float64";
    for (const std::int64_t size : {0, 1, 5, 16, 64}) {
      CAPTURE(size);
      LinearAttentionSettings settings = settings_of(c);
      if (size > 0 && !settings.states) settings.chunk_size = size;
      const LinearAttentionPlan plan(types_of(arrays), settings);
      const LinearAttention got = plan.run(arrays);
      REQUIRE(got.out.shape() == c.out.at("out").shape());
      REQUIRE(got.final_state.shape() == c.out.at("final_state").shape());
      CHECK(far_from(doubles(got.out.view()), doubles(c.out.at("out").view()), got.out.dtype(), is_wide) ==
            "");
      CHECK(far_from(doubles(got.final_state.view()), doubles(c.out.at("final_state").view()),
                     got.final_state.dtype(), is_wide) == "");
      if (got.states)
        CHECK(far_from(doubles(got.states->view()), doubles(c.out.at("states").view()), got.states->dtype(),
                       is_wide) == "");
      CHECK(plan.check(arrays, got).passed());
    }
    ++seen;
  }
  CHECK(seen > 20);
}

// --- Random problems

namespace {

double softplus(double x) { return std::log1p(std::exp(x)); }

// The results of a sequence and an out head, by plain loops over the definition.
Recurrence recurrence_of(const Problem& p, std::int64_t sequence, std::int64_t out_head) {
  const std::int64_t begin = p.cu[static_cast<std::size_t>(sequence)], h = out_head * p.heads / p.out_heads;
  const auto element = [begin](const Array& array, std::int64_t of, std::int64_t heads_of) {
    const std::int64_t heads = array.shape()[1], size = array.shape().size() > 2 ? array.shape()[2] : 1;
    return [all = doubles(array.view()), begin, heads, size, head = of * heads / heads_of](std::int64_t t,
                                                                                           std::int64_t d) {
      return all[static_cast<std::size_t>(((begin + t) * heads + head) * size + d)];
    };
  };
  Recurrence r;
  r.tokens = p.cu[static_cast<std::size_t>(sequence) + 1] - begin;
  r.keys = p.keys, r.values = p.values;
  r.delta = p.settings.delta, r.l2norm = p.settings.l2norm;
  r.scale = p.settings.scale.value_or(1 / std::sqrt(static_cast<double>(p.keys)));
  r.q = element(*p.in.q, out_head, p.out_heads);
  r.k = element(*p.in.k, h, p.heads);
  r.v = element(*p.in.v, h, p.heads);
  r.decay = [](std::int64_t, std::int64_t) { return 1; };
  r.beta = [](std::int64_t) { return 1; };
  r.skip = [](std::int64_t) { return 0; };
  const auto of_head = [h](const Array& array) { return doubles(array.view())[static_cast<std::size_t>(h)]; };
  if (p.in.decay && p.in.decay->shape().size() == 1)
    r.decay = [g = of_head(*p.in.decay)](std::int64_t, std::int64_t) { return std::exp(g); };
  else if (p.in.decay)
    r.decay = [g = element(*p.in.decay, h, p.heads), by = p.by_channel](std::int64_t t, std::int64_t d) {
      return std::exp(g(t, by ? d : 0));
    };
  if (p.in.beta) r.beta = [b = element(*p.in.beta, h, p.heads)](std::int64_t t) { return b(t, 0); };
  if (p.in.dt) {
    r.beta = [x = element(*p.in.dt, h, p.heads), bias = of_head(*p.in.dt_bias)](std::int64_t t) {
      return softplus(x(t, 0) + bias);
    };
    r.decay = [dt = r.beta, a = of_head(*p.in.a_log)](std::int64_t t, std::int64_t) {
      return std::exp(-std::exp(a) * dt(t));
    };
    r.skip = [x = of_head(*p.in.skip)](std::int64_t) { return x; };
  }
  return r;
}

// "" where all results of a problem are right.
std::string fault_of(const Problem& p, const LinearAttention& got) {
  const bool is_wide = p.in.q->dtype() == DType::float64;
  const Doubles out = doubles(got.out.view()), states = doubles(got.final_state.view()),
                initial = doubles(p.in.initial_state->view());
  const std::int64_t size = p.keys * p.values;
  const auto n = std::ssize(p.cu) - 1;
  for (std::int64_t s = 0; s < n; ++s)
    for (std::int64_t o = 0; o < p.out_heads; ++o) {
      const std::int64_t at = (s * p.heads + o * p.heads / p.out_heads) * size;
      Doubles state(initial.begin() + at, initial.begin() + at + size), actual;
      const Recurrence r = recurrence_of(p, s, o);
      const Doubles expected = loops(r, state);
      for (std::int64_t t = 0; t < r.tokens; ++t)
        for (std::int64_t c = 0; c < p.values; ++c)
          actual.push_back(out[static_cast<std::size_t>(
              ((p.cu[static_cast<std::size_t>(s)] + t) * p.out_heads + o) * p.values + c)]);
      if (const std::string far = far_from(actual, expected, got.out.dtype(), is_wide); !far.empty())
        return fmt::format("sequence {}, head {}: {}", s, o, far);
      const Doubles final_state(states.begin() + at, states.begin() + at + size);
      if (const std::string far = far_from(final_state, state, got.final_state.dtype(), is_wide);
          !far.empty())
        return fmt::format("state of sequence {}, head {}: {}", s, o, far);
    }
  return "";
}

}  // namespace

TEST_CASE(
    "random problems of all architectures and types are as plain loops have them, with empty sequences") {
  std::mt19937_64 engine(7);
  for (const kernels::Kernels* row : test::instruction_sets()) {
    kernels::force(row);
    CAPTURE(row->name);
    for (const Architecture kind : kAll)
      for (const DType dtype : plain::kFloats) {
        CAPTURE(static_cast<int>(kind));
        CAPTURE(name_of(dtype));
        const Problem p = random_problem(kind, dtype, {70, 0, 1, 3, 133}, engine);
        const LinearAttentionPlan plan(types_of(p.arrays()), p.settings);
        const LinearAttention got = plan.run(p.arrays());
        CHECK(fault_of(p, got) == "");
        CHECK(plan.check(p.arrays(), got).passed());
      }
  }
  kernels::force(nullptr);
}

TEST_CASE("a sequence has the same bits alone and among others, on any number of threads, for any strides") {
  std::mt19937_64 engine(11);
  for (const Architecture kind : kAll) {
    const Problem p = random_problem(kind, DType::float32, {130, 65}, engine);
    std::vector<LinearAttention> all;
    for (const int count : {1, 3}) {
      const Threads threads(count);
      all.push_back(linear_attention(p.arrays(), p.settings));
    }
    CHECK(plain::same_bytes(all[0].out, all[1].out));
    CHECK(plain::same_bytes(all[0].final_state, all[1].final_state));
    LinearAttentionArrays some = p.arrays();
    const plain::Laid q(*p.in.q, 1), v(*p.in.v, 2), state(*p.in.initial_state, 1);
    some.q = q.view(), some.v = v.view(), some.initial_state = state.view();
    CHECK(plain::same_bytes(linear_attention(some, p.settings).out, all[0].out));
    LinearAttentionSettings settings = p.settings;
    settings.cu_seqlens = std::vector<std::int64_t>{0, 65};
    some = p.arrays();
    for_each_linear_operand(
        [&](const char*, auto& array) {
          if (!array || array->shape[0] != 195) return;
          Shape start(array->shape.size(), 0), count = array->shape;
          start[0] = 130, count[0] = 65;
          array = box_of(*array, start, count);
        },
        some);
    some.initial_state = (*some.initial_state)[1];
    some.initial_state->shape.insert(some.initial_state->shape.begin(), 1);
    some.initial_state->strides.insert(some.initial_state->strides.begin(), 0);
    const LinearAttention alone = linear_attention(some, settings);
    CHECK(std::memcmp(alone.out.data(), all[0].out.data() + all[0].out.bytes() / 195 * 130,
                      static_cast<std::size_t>(alone.out.bytes())) == 0);
  }
}

TEST_CASE("NaN and infinities flow as the formula has them, and stay in their sequence and head") {
  std::mt19937_64 engine(13);
  for (const Architecture kind : kAll)
    for (const char* name : {"q", "k", "v", "initial_state"})
      for (const float value :
           {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        Problem p = random_problem(kind, DType::float32, {100, 40}, engine);
        for_each_linear_operand(
            [&](const char* one, auto& array) {
              if (std::string_view(one) == name)
                array->template elements<float>()[static_cast<std::size_t>(array->size() / 3)] = value;
            },
            p.in);
        CAPTURE(static_cast<int>(kind));
        CAPTURE(name);
        CAPTURE(value);
        CHECK(fault_of(p, linear_attention(p.arrays(), p.settings)) == "");
      }
}

TEST_CASE("decays of 0 empty the state; factors, logarithms and base 2 are the same decays") {
  std::mt19937_64 engine(17);
  for (const Architecture kind : {Architecture::gla, Architecture::gdn, Architecture::kda}) {
    Problem p = random_problem(kind, DType::float32, {80}, engine);
    Doubles factors = doubles(p.in.decay->view()), logs;
    for (std::size_t i = 0; i < factors.size(); ++i) factors[i] = i % 7 == 0 ? 0 : std::exp(factors[i]);
    for (const double f : factors) logs.push_back(std::log(f));
    p.in.decay = plain::array_of(DType::float64, p.in.decay->shape(), logs);
    const LinearAttention ln = linear_attention(p.arrays(), p.settings);
    CHECK(fault_of(p, ln) == "");
    LinearAttentionSettings other = p.settings;
    const auto check = [&](DecaySpace space, const Doubles& values) {
      other.decay_space = space;
      const Array decay = plain::array_of(DType::float64, p.in.decay->shape(), values);
      LinearAttentionArrays arrays = p.arrays();
      arrays.decay = decay.view();
      CHECK(far_from(doubles(linear_attention(arrays, other).out.view()), doubles(ln.out.view()),
                     DType::float32, true) == "");
    };
    check(DecaySpace::linear, factors);
    for (double& g : logs) g /= std::log(2.0);
    check(DecaySpace::log2, logs);
  }
}

TEST_CASE(
    "slots of a pool: sequences read and write theirs, padding writes nothing, other slots keep their bits") {
  std::mt19937_64 engine(19);
  const Problem p = random_problem(Architecture::gdn, DType::bfloat16, {5, 70, 1, 9}, engine);
  const Array pool = plain::random(DType::float16, {7, p.heads, p.values, p.keys}, engine);
  LinearAttentionSettings settings = p.settings;
  settings.state_layout = StateLayout::vk;
  settings.slots.read = std::vector<std::int64_t>{3, -1, 6, -1};
  settings.slots.write = std::vector<std::int64_t>{0, 5, -1, -1};
  settings.slots.has_initial_state = std::vector<std::int64_t>{1, 1, 0, 1};
  LinearAttentionArrays arrays = p.arrays();
  arrays.initial_state = pool.view();
  const LinearAttention got = linear_attention(arrays, settings);
  CHECK(got.final_state.dtype() == DType::float16);
  REQUIRE(got.final_state.shape() == pool.shape());

  const std::int64_t slot_bytes = pool.bytes() / 7;
  Array initial(DType::float16, {4, p.heads, p.values, p.keys});
  std::memcpy(initial.data(), pool.data() + 3 * slot_bytes, static_cast<std::size_t>(slot_bytes));
  LinearAttentionSettings plain_settings = p.settings;
  plain_settings.state_layout = StateLayout::vk;
  plain_settings.state_dtype = DType::float16;
  arrays.initial_state = initial.view();
  const LinearAttention expected = linear_attention(arrays, plain_settings);
  const std::int64_t token_bytes = got.out.bytes() / 85;
  CHECK(std::memcmp(got.out.data(), expected.out.data(), static_cast<std::size_t>(76 * token_bytes)) == 0);
  for (std::int64_t b = 76 * token_bytes; b < got.out.bytes(); ++b)
    REQUIRE(got.out.data()[b] == std::byte{0});
  const auto same = [&](std::int64_t slot, const Array& from, std::int64_t at) {
    return std::memcmp(got.final_state.data() + slot * slot_bytes, from.data() + at * slot_bytes,
                       static_cast<std::size_t>(slot_bytes)) == 0;
  };
  CHECK(same(0, expected.final_state, 0));
  CHECK(same(5, expected.final_state, 1));
  for (const std::int64_t slot : {1, 2, 3, 4, 6}) CHECK(same(slot, pool, slot));
}

TEST_CASE("the rounding of decays near 1 does not add up over a long sequence") {
  std::mt19937_64 engine(29);
  const auto positive = [&](const Shape& shape) {
    Doubles values = doubles(plain::random(DType::float64, shape, engine).view());
    for (double& x : values) x = std::abs(x);
    return plain::array_of(DType::float32, shape, values);
  };
  constexpr std::int64_t kTokens = 32768;
  const Shape shape{1, kTokens, 1, 8};
  const Array q = positive(shape), k = positive(shape), v = positive(shape);
  for (const Shape& of_decay : {Shape{1}, shape}) {
    const Array decay = plain::filled(DType::float32, of_decay, -1e-5);
    LinearAttentionArrays arrays{.q = q.view(), .k = k.view(), .v = v.view()};
    arrays.decay = decay.view();
    const LinearAttentionPlan plan(types_of(arrays), {});
    CHECK(plan.check(arrays, plan.run(arrays)).passed());
  }
}

TEST_CASE("a state that decays by much in a block keeps its digits, in results and gradients") {
  // Values and keys are small beside the state, so that what is left of it is most of the results.
  std::mt19937_64 engine(7);
  for (const bool by_channel : {false, true})
    for (const double decay : {-0.2, -0.5, -1.0}) {
      CAPTURE(by_channel);
      CAPTURE(decay);
      const auto small = [&](Shape shape) {
        Array array = plain::random(DType::float32, std::move(shape), engine);
        for (float& x : array.elements<float>()) x *= 1e-8F;
        return array;
      };
      const Array q = plain::random(DType::float32, {1, 64, 1, 16}, engine), k = small({1, 64, 1, 16}),
                  v = small({1, 64, 1, 16}), state = plain::random(DType::float32, {1, 1, 16, 16}, engine),
                  g = plain::filled(DType::float32, by_channel ? Shape{1, 64, 1, 16} : Shape{1, 64, 1},
                                    decay);
      LinearAttentionArrays arrays{.q = q.view(), .k = k.view(), .v = v.view(), .decay = g.view()};
      arrays.initial_state = state.view();
      const LinearAttentionPlan plan(types_of(arrays), {});
      CHECK(plan.check(arrays, plan.run(arrays)).passed());
      const Array dout = small({1, 64, 1, 16}),
                  dstate = plain::random(DType::float32, {1, 1, 16, 16}, engine);
      const LinearAttentionCotangents<ArrayView> cotangents{dout.view(), dstate.view()};
      const LinearAttentionGradPlan backward(types_of(arrays), types_of(cotangents), {});
      CHECK(backward.check(arrays, cotangents, backward.run(arrays, cotangents)).passed());
    }
}

TEST_CASE("linear attention names the array and the index at fault") {
  std::mt19937_64 engine(23);
  const auto array = [&](Shape shape) { return plain::random(DType::float32, std::move(shape), engine); };
  const Array q = array({2, 6, 2, 4}), v = array({2, 6, 4, 3}), gate = array({2, 6, 4}),
              odd = array({2, 6, 3}), state = array({2, 4, 3, 4}), short_k = array({2, 5, 2, 4}),
              wide_k = array({2, 6, 2, 5}), channels = array({2, 6, 4, 3});
  const auto fault =
      [&](const std::function<void(LinearAttentionArrays&, LinearAttentionSettings&)>& change) {
        LinearAttentionArrays arrays{.q = q.view(), .k = q.view(), .v = v.view()};
        LinearAttentionSettings settings;
        change(arrays, settings);
        return plain::failure_and_hint([&] { linear_attention(arrays, settings); });
      };
  CHECK(fault([](auto&, auto&) {}) == "no error");
  CHECK(fault([&](auto& a, auto&) { a.k = short_k.view(); }) == "k has 5 tokens, and q 6");
  CHECK(fault([&](auto& a, auto&) { a.k = wide_k.view(); }) == "keys have the size 5, and queries 4");
  CHECK(fault([&](auto& a, auto&) { a.beta = odd.view(); }) ==
        "beta has 3 heads, which do not divide the 4 of the state");
  CHECK(
      fault([&](auto& a, auto&) { a.decay = channels.view(); }) ==
      "decay has 3 channels, and keys have 4 | a decay by channel has one number for each element of a key");
  CHECK(fault([&](auto& a, auto&) { a.beta = q.view(); }) ==
        "beta has the shape of q without its last axis, not (2, 6, 2, 4)");
  CHECK(fault([&](auto& a, auto&) { a.initial_state = state.view(); }) ==
        "initial_state is (2, 4, 4, 3) in the layout kv, not of shape (2, 4, 3, 4) | vk");
  CHECK(fault([&](auto& a, auto& s) {
          a.decay = gate.view();
          s.decay_space = DecaySpace::linear;
        }).starts_with("decay(0, "));
  Array nan = array({2, 6, 4});
  nan.elements<float>()[29] = std::numeric_limits<float>::quiet_NaN();
  CHECK(fault([&](auto& a, auto&) { a.decay = nan.view(); }) == "decay(1, 1, 1) is NaN");
  const Array one = array({}), few = plain::filled(DType::float32, {4}, std::nan(""));
  CHECK(fault([&](auto& a, auto&) { a.decay = gate.view(), a.a_log = few.view(); }) == "a_log holds NaN");
  const Array rates = plain::filled(DType::float32, {4}, 0);
  CHECK(fault([&](auto& a, auto&) {
          a.decay = gate.view(), a.a_log = rates.view(), a.dt_bias = few.view();
        }) == "dt_bias holds NaN");
  CHECK(fault([&](auto& a, auto&) {
          a.decay = gate.view(), a.a_log = rates.view(), a.dt_bias = one.view();
        }).starts_with("dt_bias is (heads,)"));
  CHECK(fault([&](auto& a, auto&) { a.dt = gate.view(); }) ==
        "dt comes with a_log: decays are -exp(a_log) dt");
  CHECK(fault([&](auto&, auto& s) { s.chunk_size = 0; }) == "chunks have at least 1 token, not 0");
  CHECK(fault([&](auto& a, auto& s) { a.decay = gate.view(), s.lower_bound = 1; }) ==
        "the lower bound of decays is below 0, not 1");
  CHECK(fault([&](auto&, auto& s) { s.layout = Layout::thd; }) ==
        "packed tokens (thd) and cu_seqlens come together");
}
