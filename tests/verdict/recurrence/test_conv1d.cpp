// Verdicts on short convolutions: right results agree in every layout and type, and each known fault is named.
#include <doctest/doctest.h>

#include <algorithm>

#include "ejk/recurrence_check.hpp"
#include "support/arrays.hpp"
#include "support/failure.hpp"

using namespace ejk;

namespace {

// Packed sequences of 40, 1, 2, 0 and 57 tokens with a bias, silu and initial states.
struct PackedConvolution {
  std::mt19937_64 random{5};
  std::vector<std::int64_t> cu_seqlens{0, 40, 41, 43, 43, 100};
  Array x, weight, bias, state;
  Conv1dOperands operands;
  Conv1dSettings settings;

  explicit PackedConvolution(DType dtype, Conv1dLayout layout = Conv1dLayout::td)
      : x(plain::random(dtype, layout == Conv1dLayout::td ? Shape{100, 24} : Shape{24, 100}, random)),
        weight(plain::random(dtype, {24, 4}, random)),
        bias(plain::random(dtype, {24}, random)),
        state(plain::random(dtype, {5, 24, 4}, random)) {
    operands.x = x.view();
    operands.weight = weight.view();
    operands.bias = bias.view();
    operands.initial_state = state.view();
    operands.cu_seqlens = cu_seqlens;
    settings.layout = layout;
    settings.activation = Conv1dActivation::silu;
  }

  Against judged(const Conv1dResult& result, Explain explain = Explain::yes) const {
    return compare_conv1d(operands, settings, {result.out.view(), result.final_state.view()}, explain);
  }
  /// Array and text of each explanation of what `wrong` computes, if nothing is left.
  std::string explained(const Conv1dResult& wrong) const {
    const Against against = judged(wrong);
    std::string text;
    for (const Against::Explained& one : against.explanations) {
      CHECK(one.kind == "conv");
      text += one.array + ": " + one.text + "; ";
    }
    return text + (against.unexplained.empty() ? "" : "and more");
  }
  std::string explained(const Conv1dOperands& changed) const { return explained(conv1d(changed, settings)); }
};

Array reversed_last_axis(const Array& array) {
  ArrayView view = array.view();
  const std::size_t last = view.shape.size() - 1;
  view.data += (view.shape[last] - 1) * view.strides[last];
  view.strides[last] = -view.strides[last];
  return Array::copy_of(view);
}

}  // namespace

TEST_CASE("a right convolution agrees with its reference, in any type of the result") {
  for (const Conv1dLayout layout : {Conv1dLayout::td, Conv1dLayout::dt})
    for (const DType dtype : plain::kFloats)
      for (const DType out : plain::kFloats) {
        CAPTURE(name_of(dtype));
        CAPTURE(name_of(out));
        PackedConvolution c(dtype, layout);
        c.settings.dtype = out;
        const Against against = c.judged(conv1d(c.operands, c.settings));
        CHECK(against.agrees());
        CHECK(against.elements == 100 * 24 + 5 * 24 * 4);
        CHECK((against.largest > 0 && against.largest <= 1));
      }
}

TEST_CASE("a pool of slots is compared whole, and one changed element is found") {
  PackedConvolution c(DType::bfloat16);
  const Array pool = plain::random(DType::float32, {7, 24, 4}, c.random);
  c.operands.initial_state = pool.view();
  c.operands.slots.read = std::vector<std::int64_t>{6, -1, 0, 2, 3};
  Conv1dResult result = conv1d(c.operands, c.settings);
  CHECK(c.judged(result).agrees());
  result.final_state.elements<float>()[24 * 4 + 5] += 1;  // slot 1, which no sequence writes
  const Against against = c.judged(result, Explain::no);
  CHECK(against.beyond == 1);
  REQUIRE_FALSE(against.worst.empty());
  CHECK(against.worst[0].array == "final_state");
  CHECK(against.worst[0].index == Shape{1, 1, 1});
}

TEST_CASE("known faults of short convolutions are named, in float32 and bfloat16") {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    const PackedConvolution c(dtype);
    const Conv1dResult right = conv1d(c.operands, c.settings);
    Conv1dOperands changed = c.operands;
    const Array turned = reversed_last_axis(c.weight);
    changed.weight = turned.view();
    CHECK(c.explained(changed) == "out: the weights are reversed; ");
    changed = c.operands;
    changed.bias.reset();
    CHECK(c.explained(changed) == "out: the bias is left out; ");

    Conv1dSettings plain_sum = c.settings;
    plain_sum.activation = Conv1dActivation::none;
    CHECK(c.explained(conv1d(c.operands, plain_sum)) == "out: the activation is left out; ");

    std::vector<double> later(24 * 5);
    const std::vector<double> weight = plain::doubles(c.weight.view());
    for (std::size_t d = 0; d < 24; ++d)
      std::copy_n(weight.begin() + static_cast<std::ptrdiff_t>(4 * d), 4,
                  later.begin() + static_cast<std::ptrdiff_t>(5 * d));
    const Array late = plain::array_of(dtype, {24, 5}, later);
    changed = c.operands;
    changed.weight = late.view();
    CHECK(c.explained(changed) == "out: every token is one token late; ");

    const Array zeros(dtype, {5, 24, 4}), old = reversed_last_axis(c.state);
    changed = c.operands;
    changed.initial_state = zeros.view();
    CHECK(
        c.explained(changed) ==
        "out: the initial state is ignored; final_state: the final state of a short sequence is filled up with 0; ");
    changed.initial_state = old.view();
    CHECK(c.explained(changed) ==
          "out: the initial state is read with its newest token first; final_state: the initial "
          "state is read with its newest token first; ");

    Conv1dResult state;
    state.out = Array::copy_of(right.out.view());
    state.final_state = reversed_last_axis(right.final_state);
    CHECK(c.explained(state) == "final_state: the final state has its newest token first; ");
  }
}

TEST_CASE("a sequence that runs on into the next one is named with its place") {
  PackedConvolution c(DType::float32);
  c.operands.initial_state.reset();
  Conv1dOperands changed = c.operands;
  const std::vector<std::int64_t> one{0, 100};
  changed.cu_seqlens = one;
  Conv1dResult wrong = conv1d(changed, c.settings);
  wrong.final_state = conv1d(c.operands, c.settings).final_state;
  CHECK(c.explained(wrong) == "out: the last tokens of a sequence run on into the next one; ");
  changed.cu_seqlens = std::vector<std::int64_t>{0, 43, 100};
  Conv1dResult some = conv1d(changed, c.settings);
  some.final_state = std::move(wrong.final_state);
  CHECK(c.explained(some).starts_with("out: the last tokens of a sequence run on into the next one in "));
}

TEST_CASE("results of another shape, or of no float type, are refused") {
  const PackedConvolution c(DType::float32);
  const Array shape(DType::float32, {100, 23}), integers(DType::int32, {100, 24});
  const auto why = [&](const Array& out) {
    return plain::failure([&] { compare_conv1d(c.operands, c.settings, {out.view(), {}}, Explain::no); });
  };
  CHECK(why(shape) != "no error");
  CHECK(why(integers) != "no error");
}
