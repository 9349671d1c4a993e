// Verdicts on gradients of linear attention: right ones agree in every type, and those of other arrays or settings are
// named.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "ejk/recurrence_check.hpp"
#include "support/arrays.hpp"
#include "support/linear_problems.hpp"

using namespace ejk;

namespace {

constexpr std::int64_t kLength = 150, kOf = 16;

// Gated DeltaNet of packed sequences of 70, 0 and 80 tokens, a head of queries and keys, two of values.
struct PackedGradients : plain::NamedOperands {
  std::mt19937_64 random{17};
  std::vector<std::int64_t> cu_seqlens{0, 70, 70, kLength};
  Array dout, dfinal_state;
  LinearAttentionCotangents<ArrayView> cotangents;
  LinearAttentionSettings settings;

  explicit PackedGradients(DType dtype)
      : dout(plain::random(dtype, {kLength, 2, kOf}, random)),
        dfinal_state(plain::random(DType::float32, {3, 2, kOf, kOf}, random)) {
    add("q", plain::random(dtype, {kLength, 1, kOf}, random));
    add("k", plain::random(dtype, {kLength, 1, kOf}, random));
    add("v", plain::random(dtype, {kLength, 2, kOf}, random));
    add("decay", plain::mapped(plain::random(DType::float32, {kLength, 2}, random),
                               [](double x) { return -0.2 * std::abs(x); }));
    add("beta", plain::random(DType::float32, {kLength, 2}, random));
    add("initial_state", plain::random(DType::float32, {3, 2, kOf, kOf}, random));
    cotangents = {dout.view(), dfinal_state.view()};
    settings.layout = LinearAttentionLayout::thd;
    settings.cu_seqlens = cu_seqlens;
    settings.delta = settings.l2norm = true;
    settings.beta_sigmoid = 1;
  }

  Against judged(const LinearAttentionOperands<Array>& gradients, Explain explain = Explain::yes) const {
    LinearAttentionOperands<ArrayView> given;
    for_each_linear_operand(
        [](const char*, const auto& from, auto& to) {
          if (from) to = from->view();
        },
        gradients, given);
    return compare_linear_attention_grad(operands, cotangents, settings, given, {}, explain);
  }
  /// Texts of the explanations, each once, if they account for all.
  std::string explained(const LinearAttentionOperands<Array>& wrong) const {
    const Against against = judged(wrong);
    std::string text;
    for (const Against::Explained& one : against.explanations)
      if (text.find(one.text) == std::string::npos) text += one.text + "; ";
    const bool is_all = std::all_of(against.unexplained.begin(), against.unexplained.end(),
                                    [](const auto& one) { return one.share < 0.01; });
    return text + (is_all ? "" : "and more");
  }
  LinearAttentionOperands<Array> gradients() const {
    return linear_attention_grad(operands, cotangents, settings);
  }
};

}  // namespace

TEST_CASE("right gradients agree with their reference, in any type") {
  for (const DType dtype : plain::kFloats)
    for (const bool delta : {true, false}) {
      CAPTURE(name_of(dtype));
      PackedGradients p(dtype);
      p.settings.delta = delta;
      const Against against = p.judged(p.gradients());
      CHECK(against.agrees());
      CHECK(against.largest <= 1);
      CHECK(against.arrays.size() == 6);
      CHECK(against.not_given.empty());
    }
}

TEST_CASE("gradients of 16 bits and of float32 have bounds in proportion to their precision") {
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16}) {
    CAPTURE(name_of(dtype));
    const PackedGradients p(dtype);
    const double relative = dtype == DType::float64 ? 1e-7 : dtype == DType::float32 ? 1e-3 : 0.5;
    const auto grown = [&](double factor) {
      LinearAttentionOperands<Array> other = p.gradients();
      other.v = plain::mapped(*other.v, [&](double x) { return x * (1 + factor); });
      return p.judged(other, Explain::no).agrees();
    };
    CHECK_FALSE(grown(relative));
    CHECK(grown(relative * 1e-4));
  }
}

TEST_CASE("faults of gradients are named, in float32 and bfloat16") {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    CAPTURE(name_of(dtype));
    const PackedGradients p(dtype);
    const auto of = [&](const LinearAttentionArrays& arrays, const LinearAttentionSettings& settings) {
      return p.explained(linear_attention_grad(arrays, p.cotangents, settings));
    };
    LinearAttentionOperands<Array> wrong = p.gradients();
    wrong.decay = plain::mapped(*wrong.decay, [](double x) { return x / std::log(2); });
    CHECK(p.explained(wrong) == "logarithms of decays are divided by ln 2 in their gradient; ");

    LinearAttentionArrays arrays = p.operands;
    const Array none = plain::filled(DType::float32, {kLength, 2}, 0);
    arrays.decay = none.view();
    CHECK(of(arrays, p.settings) == "decays are missing; ");
    arrays = p.operands;
    const Array zeros(DType::float32, {3, 2, kOf, kOf});
    arrays.initial_state = zeros.view();
    CHECK(of(arrays, p.settings) == "the initial state is dropped; ");
    // Gradients of some operands of a sequence's last tokens are then 0 altogether.
    const LinearAttentionCotangents<ArrayView> dout{p.dout.view(), {}};
    CHECK(p.explained(linear_attention_grad(p.operands, dout, p.settings))
              .starts_with("the gradient of the final state is left out; "));

    // Sequence 0's state and the last gradient of a final state are those of the row.
    LinearAttentionSettings settings = p.settings;
    settings.cu_seqlens = std::vector<std::int64_t>{0, kLength};
    const auto state = [](const Array& all, std::ptrdiff_t index) {
      std::vector<double> values = plain::doubles(all.view());
      values = {values.begin() + index * 2 * kOf * kOf, values.begin() + (index + 1) * 2 * kOf * kOf};
      return plain::array_of(DType::float32, {1, 2, kOf, kOf}, values);
    };
    const Array first = state(p.arrays.at("initial_state"), 0), last = state(p.dfinal_state, 2);
    arrays = p.operands;
    arrays.initial_state = first.view();
    wrong = linear_attention_grad(arrays, {p.dout.view(), last.view()}, settings);
    wrong.initial_state.reset();
    CHECK(p.explained(wrong) == "the state of each sequence runs on into the next: cu_seqlens is ignored; ");

    settings = p.settings;
    settings.delta = false;
    CHECK(of(p.operands, settings) == "the correction of the delta rule is missing; ");
    settings = p.settings;
    settings.scale = 1;
    CHECK(of(p.operands, settings).find("the scale of the output is missing; ") == 0);
    wrong = p.gradients();
    const std::vector<double> logits = plain::doubles(p.operands.beta.value());
    std::size_t i = 0;
    wrong.beta = plain::mapped(*wrong.beta, [&](double x) {
      const double beta = 1 / (1 + std::exp(-logits[i++]));
      return x / (beta * (1 - beta));
    });
    CHECK(p.explained(wrong) == "the sigmoid of beta is not differentiated; ");
  }
}

TEST_CASE("a gradient that is not given is listed, and one of another shape is refused") {
  const PackedGradients p(DType::float32);
  LinearAttentionOperands<Array> some = p.gradients();
  some.beta.reset();
  const Against against = p.judged(some, Explain::no);
  CHECK(against.agrees());
  CHECK(against.not_given == std::vector<std::string>{"dbeta"});
  some.k = Array(DType::float32, {kLength, 2, kOf});
  CHECK_THROWS_AS(p.judged(some, Explain::no), Error);
}
