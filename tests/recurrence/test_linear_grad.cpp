// Gradients of linear attention: golden cases, differences of the forward pass in float64, elements from float64 token
// by token on every instruction set, decays that empty the state, elements that are not finite, threads, errors.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "ejk/linear_attention.hpp"
#include "support/arrays.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"
#include "support/instruction_sets.hpp"
#include "support/linear_problems.hpp"
#include "support/threads.hpp"

using namespace ejk;
using plain::Architecture, plain::Doubles, plain::doubles, plain::kAll, plain::Problem, plain::random_problem,
    plain::settings_of;

namespace {

using Gradients = LinearAttentionOperands<Array>;

// A problem with gradients of its results.
struct GradProblem : Problem {
  LinearAttentionCotangents<Array> from;

  GradProblem(Problem problem, DType dtype, std::mt19937_64& engine) : Problem(std::move(problem)) {
    const LinearAttentionPlan plan(types_of(arrays()), settings);
    from.dout = plain::random(dtype, plan.out().shape, engine);
    from.dfinal_state = plain::random(DType::float32, plan.final_state().shape, engine);
  }
  LinearAttentionCotangents<ArrayView> cotangents() const {
    return {from.dout->view(), from.dfinal_state->view()};
  }
  LinearAttentionGradPlan plan() const { return {types_of(arrays()), types_of(cotangents()), settings}; }
  Gradients run() const { return plan().run(arrays(), cotangents()); }
};

// "" where a check passes.
std::string fault_of(const LinearAttentionGradCheck& check) {
  for (const auto& [name, d] : check.differences)
    if (!(d.size <= d.allowed))
      return fmt::format("{}{}: {:.3g} of {:.3g}", name, to_string(d.index), d.size, d.allowed);
  return check.differences.empty() ? "nothing is compared" : "";
}

double dot(const Array& a, const Array& b) {
  const Doubles x = doubles(a.view()), y = doubles(b.view());
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

// The sum that gradients are of, by the forward pass.
double loss(const GradProblem& p) {
  const LinearAttention results = linear_attention(p.arrays(), p.settings);
  return dot(results.out, *p.from.dout) + dot(results.final_state, *p.from.dfinal_state);
}

// Everything in float64, with mild decays.
void widen(GradProblem& p) {
  for_each_linear_operand(
      [](const std::string& name, auto& array) {
        if (!array) return;
        Doubles values = doubles(array->view());
        if (name == "decay")
          for (double& x : values) x = std::max(x, -3.0);
        array = plain::array_of(DType::float64, array->shape(), values);
      },
      p.in);
  for (auto* array : {&p.from.dout, &p.from.dfinal_state})
    *array = plain::array_of(DType::float64, (*array)->shape(), doubles((*array)->view()));
}

// The gradients of a problem beside differences of the forward pass, in a random direction of each array.
void check_directions(GradProblem p, std::mt19937_64& engine) {
  widen(p);
  const Gradients gradients = p.run();
  for_each_linear_operand(
      [&](const std::string& name, auto& array, const auto& gradient) {
        REQUIRE(array.has_value() == gradient.has_value());
        if (!array) return;
        CAPTURE(name);
        REQUIRE(gradient->shape() == array->shape());
        const Doubles at = doubles(array->view()), slopes = doubles(gradient->view());
        const Doubles direction = doubles(plain::random(DType::float64, array->shape(), engine).view());
        const auto moved = [&](double step) {
          Doubles values = at;
          for (std::size_t i = 0; i < at.size(); ++i) values[i] += step * direction[i];
          array = plain::array_of(DType::float64, array->shape(), values);
          return loss(p);
        };
        constexpr double kStep = 1e-5;
        // Richardson's extrapolation: errors of the fourth order.
        const double near = (moved(kStep) - moved(-kStep)) / (2 * kStep),
                     far = (moved(2 * kStep) - moved(-2 * kStep)) / (4 * kStep);
        moved(0);
        double expected = 0, squares = 0;
        for (std::size_t i = 0; i < at.size(); ++i) {
          expected += slopes[i] * direction[i];
          squares += std::pow(slopes[i] * direction[i], 2);
        }
        CHECK(squares > 0);
        CHECK(std::abs((4 * near - far) / 3 - expected) <= 1e-7 * std::sqrt(squares) + 1e-9);
      },
      p.in, gradients);
}

}  // namespace

TEST_CASE("gradients are the golden ones, in blocks of any size, and pass their own check") {
  int seen = 0;
  for (const golden::Case& c : golden::load("linear_attention_grad")) {
    CAPTURE(c.name);
    LinearAttentionArrays arrays;
    const auto input = [&](const std::string& name, auto& array) {
      if (c.in.contains(name)) array = c.in.at(name).view();
    };
    for_each_linear_operand(input, arrays);
    LinearAttentionCotangents<ArrayView> cotangents;
    input("dout", cotangents.dout);
    input("dfinal_state", cotangents.dfinal_state);
    for (const std::int64_t size : {1, 5, 16, 64})
      for (const std::optional<DType> dtype : {std::optional<DType>(), std::optional(DType::float64)}) {
        CAPTURE(size);
        LinearAttentionSettings settings = settings_of(c);
        settings.chunk_size = size;
        const LinearAttentionGradPlan plan(types_of(arrays), types_of(cotangents), settings, dtype);
        const Gradients got = plan.run(arrays, cotangents);
        CHECK(fault_of(plan.check(arrays, cotangents, got)) == "");
        for_each_linear_operand(
            [&](const std::string& name, const auto& gradient) {
              REQUIRE(gradient.has_value() == c.out.contains("d" + name));
              if (!gradient) return;
              CAPTURE(name);
              CHECK(gradient->dtype() == dtype.value_or(c.in.at(name).dtype()));
              const Doubles actual = doubles(gradient->view()),
                            expected = doubles(c.out.at("d" + name).view());
              REQUIRE(actual.size() == expected.size());
              double largest = 0, worst = 0;
              for (std::size_t i = 0; i < actual.size(); ++i) {
                largest = std::max(largest, std::abs(expected[i]));
                worst = std::max(worst, std::abs(expected[i] - actual[i]));
              }
              CHECK(worst <= 0x1p-15 * largest);
            },
            got);
      }
    ++seen;
  }
  CHECK(seen >= 7);
}

TEST_CASE("gradients of all architectures are those of differences of the forward pass") {
  std::mt19937_64 engine(31);
  for (const Architecture kind : kAll)
    for (int i = 0; i < 3; ++i) {
      CAPTURE(static_cast<int>(kind));
      check_directions(
          {random_problem(kind, DType::float64, {70, 0, 1, 3, 33}, engine), DType::float64, engine}, engine);
    }
}

TEST_CASE("gradients of gates pass their spaces, activations and limits; those of states their layout") {
  std::mt19937_64 engine(37);
  const auto random = [&](Shape shape) { return plain::random(DType::float64, std::move(shape), engine); };
  for (const Architecture kind : {Architecture::retention, Architecture::gla, Architecture::gdn,
                                  Architecture::kda, Architecture::mamba2})
    for (int variant = 0; variant < 5; ++variant) {
      CAPTURE(static_cast<int>(kind));
      CAPTURE(variant);
      Problem p = random_problem(kind, DType::float64, {40, 21}, engine);
      p.settings.state_layout = StateLayout::vk;
      p.in.initial_state = random({2, p.heads, p.values, p.keys});
      p.in.skip = variant % 2 == 0 ? random({p.out_heads}) : random({1, p.values});
      if (p.in.beta && variant > 1) p.settings.beta_sigmoid = variant - 1;
      if (kind == Architecture::mamba2) {
        if (variant == 1) p.settings.dt_limit = std::pair(0.4, 1.1);
        if (variant == 2) p.settings.dt_softplus = false;
      } else if (variant == 0) {
        p.settings.decay_space = DecaySpace::log2;
      } else if (variant == 1) {
        Doubles factors = doubles(p.in.decay->view());
        for (double& x : factors) x = std::exp(std::max(x, -2.0));
        p.in.decay = plain::array_of(DType::float64, p.in.decay->shape(), factors);
        p.settings.decay_space = DecaySpace::linear;
      } else {
        p.in.decay = random(p.in.decay->shape());
        if (variant > 2) p.settings.lower_bound = -5;
        if (variant != 3) p.in.a_log = random({variant == 2 ? p.heads : 1});
        p.in.dt_bias = p.by_channel && variant == 3   ? random({p.heads, p.keys})
                       : p.by_channel && variant == 4 ? random({p.heads * p.keys})
                                                      : random({p.heads});
      }
      check_directions({std::move(p), DType::float64, engine}, engine);
    }
}

TEST_CASE("gradients of all architectures and types are within their tolerance of float64, token by token") {
  std::mt19937_64 engine(41);
  for (const kernels::Kernels* row : test::instruction_sets()) {
    kernels::force(row);
    CAPTURE(row->name);
    for (const Architecture kind : kAll)
      for (const DType dtype : plain::kFloats) {
        CAPTURE(static_cast<int>(kind));
        CAPTURE(name_of(dtype));
        const GradProblem p(random_problem(kind, dtype, {70, 0, 1, 3, 133}, engine), dtype, engine);
        CHECK(fault_of(p.plan().check(p.arrays(), p.cotangents(), p.run())) == "");
      }
  }
  kernels::force(nullptr);
}

TEST_CASE("decays that empty the state leave gradients finite, of factors those of the state before") {
  std::mt19937_64 engine(43);
  for (const Architecture kind :
       {Architecture::simple_gla, Architecture::gla, Architecture::gdn, Architecture::kda})
    for (const auto space : {DecaySpace::ln, DecaySpace::linear}) {
      CAPTURE(static_cast<int>(kind));
      Problem p = random_problem(kind, DType::float32, {80}, engine);
      Doubles values = doubles(p.in.decay->view());
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = i % 7 == 0 ? -std::numeric_limits<double>::infinity() : values[i];
        if (space == DecaySpace::linear) values[i] = std::exp(values[i]);
      }
      p.in.decay = plain::array_of(DType::float32, p.in.decay->shape(), values);
      p.settings.decay_space = space;
      const GradProblem all(std::move(p), DType::float32, engine);
      const Gradients got = all.run();
      CHECK(fault_of(all.plan().check(all.arrays(), all.cotangents(), got)) == "");
      const Doubles slopes = doubles(got.decay->view());
      for (std::size_t i = 0; i < slopes.size(); ++i) {
        REQUIRE(std::isfinite(slopes[i]));
        if (i % 7 == 0) REQUIRE((slopes[i] != 0) == (space == DecaySpace::linear));
      }
    }
}

TEST_CASE("all decays strong: their gradients keep their digits, though they are small") {
  std::mt19937_64 engine(45);
  for (const Architecture kind : {Architecture::simple_gla, Architecture::kda}) {
    Problem p = random_problem(kind, DType::float32, {100}, engine);
    p.in.decay = plain::filled(DType::float32, p.in.decay->shape(), -30);
    const GradProblem all(std::move(p), DType::float32, engine);
    CHECK(fault_of(all.plan().check(all.arrays(), all.cotangents(), all.run())) == "");
  }
}

TEST_CASE("the norm of one channel leaves little of its gradients, and that in all digits") {
  std::mt19937_64 engine(46);
  Problem p;
  p.cu = {0, 50};
  p.settings.layout = LinearAttentionLayout::thd;
  p.settings.cu_seqlens = p.cu;
  p.settings.l2norm = true;
  const auto random = [&](Shape shape) { return plain::random(DType::float32, std::move(shape), engine); };
  p.in.q = random({50, 1, 1}), p.in.k = random({50, 1, 1}), p.in.v = random({50, 1, 8});
  const GradProblem all(std::move(p), DType::float32, engine);
  CHECK(fault_of(all.plan().check(all.arrays(), all.cotangents(), all.run())) == "");
}

TEST_CASE("a sequence longer than the states that are kept begins again from checkpoints") {
  std::mt19937_64 engine(47);
  Problem p;
  p.cu = {0, 4000};
  p.settings.layout = LinearAttentionLayout::thd;
  p.settings.cu_seqlens = p.cu;
  p.settings.chunk_size = 8;  // 500 blocks in three stretches
  p.settings.delta = p.settings.l2norm = true;
  const auto random = [&](Shape shape) { return plain::random(DType::float64, std::move(shape), engine); };
  p.in.q = random({4000, 1, 96}), p.in.k = random({4000, 1, 96}), p.in.v = random({4000, 1, 96});
  p.in.beta = plain::filled(DType::float64, {4000, 1}, 0.5);
  p.in.decay = plain::filled(DType::float64, {4000, 1}, -0.01);
  GradProblem all(std::move(p), DType::float64, engine);
  const Gradients got = all.run();
  all.settings.chunk_size = 64;  // one stretch
  CHECK(fault_of(all.plan().check(all.arrays(), all.cotangents(), got)) == "");
}

TEST_CASE("gradients have the same bits on any number of threads and for any strides") {
  std::mt19937_64 engine(53);
  for (const Architecture kind : kAll) {
    CAPTURE(static_cast<int>(kind));
    const GradProblem p(random_problem(kind, DType::bfloat16, {130, 65, 40}, engine), DType::float32, engine);
    std::vector<Gradients> all;
    for (const int count : {1, 3}) {
      const Threads threads(count);
      all.push_back(p.run());
    }
    LinearAttentionArrays arrays = p.arrays();
    LinearAttentionCotangents<ArrayView> cotangents = p.cotangents();
    const plain::Laid q(*p.in.q, 1), v(*p.in.v, 2), state(*p.in.initial_state, 1), dout(*p.from.dout, 3),
        dstate(*p.from.dfinal_state, 2);
    arrays.q = q.view(), arrays.v = v.view(), arrays.initial_state = state.view();
    cotangents.dout = dout.view(), cotangents.dfinal_state = dstate.view();
    all.push_back(linear_attention_grad(arrays, cotangents, p.settings));
    for (const std::size_t other : {std::size_t{1}, std::size_t{2}})
      for_each_linear_operand(
          [](const std::string& name, const auto& one, const auto& two) {
            CAPTURE(name);
            if (one) CHECK(plain::same_bytes(*one, *two));
          },
          all[0], all[other]);
  }
}

TEST_CASE("NaN and infinities flow as the formula has them, and stay in their sequence") {
  std::mt19937_64 engine(59);
  for (const Architecture kind : kAll)
    for (const std::string_view name : {"q", "k", "v", "initial_state", "dout"})
      for (const float value :
           {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        CAPTURE(static_cast<int>(kind));
        CAPTURE(name);
        CAPTURE(value);
        GradProblem p(random_problem(kind, DType::float32, {100, 40}, engine), DType::float32, engine);
        const Gradients clean = p.run();
        const auto spoil = [&](Array& array) {
          array.elements<float>()[static_cast<std::size_t>(array.size() / 3)] = value;
        };
        if (name == "dout") spoil(*p.from.dout);
        for_each_linear_operand(
            [&](const char* one, auto& array) {
              if (one == name) spoil(*array);
            },
            p.in);
        const Gradients got = p.run();
        CHECK(fault_of(p.plan().check(p.arrays(), p.cotangents(), got)) == "");
        for_each_linear_operand(
            [&](const char* one, const auto& before, const auto& after) {
              if (!before || before->shape()[0] != 140) return;
              CAPTURE(one);
              const std::int64_t begin = before->bytes() / 140 * 100;
              CHECK(std::equal(before->data() + begin, before->data() + before->bytes(),
                               after->data() + begin));
            },
            clean, got);
      }
}

TEST_CASE("gradients name the array at fault") {
  std::mt19937_64 engine(61);
  const auto array = [&](Shape shape) { return plain::random(DType::float32, std::move(shape), engine); };
  const Array q = array({2, 6, 2, 4}), v = array({2, 6, 4, 3}), dout = array({2, 6, 4, 3}),
              state = array({2, 4, 4, 3}), turned = array({2, 4, 3, 4});
  const auto fault = [&](const ArrayView& of_out, const std::optional<ArrayView>& of_state,
                         bool has_slots = false) {
    LinearAttentionArrays arrays{.q = q.view(), .k = q.view(), .v = v.view()};
    LinearAttentionSettings settings;
    arrays.initial_state = state.view();
    if (has_slots) settings.slots.read = std::vector<std::int64_t>{0, 1};
    return plain::failure_and_hint([&] { linear_attention_grad(arrays, {of_out, of_state}, settings); });
  };
  CHECK(fault(dout.view(), state.view()) == "no error");
  CHECK(fault(q.view(), {}) == "dout has the shape of out, (2, 6, 4, 3), not (2, 6, 2, 4)");
  CHECK(fault(dout.view(), turned.view()) ==
        "dfinal_state has the shape of final_state, (2, 4, 4, 3), not (2, 4, 3, 4) | vk");
  CHECK(fault(dout.view(), {}, true) == "gradients are not of states in slots");
}
