// Verdicts on linear attention: right results agree in every layout and type, and faults that are made by other arrays or
// settings of the same computation, by no model of the verdict, are named.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "ejk/recurrence_check.hpp"
#include "support/arrays.hpp"
#include "support/failure.hpp"
#include "support/linear_problems.hpp"

using namespace ejk;

namespace {

constexpr std::int64_t kTokens = 230, kHeads = 4, kSize = 16;

// Gated DeltaNet of packed sequences of 70, 1, 0, 97 and 62 tokens, two heads of queries and keys, four of values.
struct Packed : plain::NamedOperands {
  std::mt19937_64 random{11};
  std::vector<std::int64_t> cu_seqlens{0, 70, 71, 71, 168, kTokens};
  LinearAttentionSettings settings;

  explicit Packed(DType dtype) {
    add("q", plain::random(dtype, {kTokens, 2, kSize}, random));
    add("k", plain::random(dtype, {kTokens, 2, kSize}, random));
    add("v", plain::random(dtype, {kTokens, kHeads, kSize}, random));
    add("decay", plain::mapped(plain::random(DType::float32, {kTokens, kHeads}, random),
                               [](double x) { return -0.2 * std::abs(x); }));
    add("beta", plain::mapped(plain::random(DType::float32, {kTokens, kHeads}, random),
                              [](double x) { return 1 / (1 + std::exp(-x)); }));
    add("initial_state", plain::random(DType::float32, {5, kHeads, kSize, kSize}, random));
    settings.layout = LinearAttentionLayout::thd;
    settings.cu_seqlens = cu_seqlens;
    settings.delta = settings.l2norm = true;
  }

  Against judged(const LinearAttention& result, Explain explain = Explain::yes) const {
    return compare_linear_attention(operands, settings, {result.out.view(), result.final_state.view()}, {},
                                    explain)
        .against;
  }
  /// Texts of the explanations of `wrong`, each once, if they account for all.
  std::string explained(const LinearAttention& wrong) const {
    const Against against = judged(wrong);
    std::string text;
    double least = 1;
    for (const Against::Explained& one : against.explanations) {
      if (text.find(one.text) == std::string::npos) text += one.kind + ": " + one.text + "; ";
    }
    for (const Against::Unexplained& one : against.unexplained) least = std::min(least, 1 - one.share);
    return text + (least > 0.99 ? "" : "and more");
  }
  std::string explained(const LinearAttentionArrays& other) const {
    return explained(linear_attention(other, settings));
  }
  std::string explained(const LinearAttentionSettings& other) const {
    return explained(linear_attention(operands, other));
  }
};

Array transposed_states(const Array& array) {
  ArrayView view = array.view();
  std::swap(view.strides[2], view.strides[3]);
  return Array::copy_of(view);
}

}  // namespace

TEST_CASE("a right result agrees with its reference, in any type of inputs and results") {
  for (const DType dtype : plain::kFloats)
    for (const DType out : plain::kFloats)
      for (const bool delta : {true, false}) {
        CAPTURE(name_of(dtype));
        CAPTURE(name_of(out));
        Packed p(dtype);
        p.settings.dtype = out;
        p.settings.delta = delta;
        const Against against = p.judged(linear_attention(p.operands, p.settings));
        CHECK(against.agrees());
        CHECK(against.elements == (kTokens + 5 * kSize) * kHeads * kSize);
        CHECK(against.largest <= 1);
      }
}

TEST_CASE(
    "the bound of float64 results is near their precision, and one of 16 bits is in proportion to its unit") {
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16}) {
    CAPTURE(name_of(dtype));
    Packed p(dtype);
    LinearAttention result = linear_attention(p.operands, p.settings);
    const double relative = dtype == DType::float64 ? 1e-9 : dtype == DType::float32 ? 1e-4 : 0.2;
    const auto grown = [&](double factor) {
      LinearAttention other = linear_attention(p.operands, p.settings);
      other.out = plain::mapped(result.out, [&](double x) { return x * (1 + factor); });
      return p.judged(other, Explain::no).agrees();
    };
    CHECK_FALSE(grown(relative));
    CHECK(grown(relative * 1e-3));
  }
}

TEST_CASE("boundaries that are ignored, or a token late, are named with their place") {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    CAPTURE(name_of(dtype));
    Packed p(dtype);
    const Array one = plain::array_of(DType::float32, {1, kHeads, kSize, kSize}, [&] {
      std::vector<double> all = plain::doubles(p.operands.initial_state.value());
      all.resize(static_cast<std::size_t>(kHeads * kSize * kSize));
      return all;
    }());
    LinearAttentionArrays arrays = p.operands;
    arrays.initial_state = one.view();
    LinearAttentionSettings settings = p.settings;
    const std::vector<std::int64_t> all{0, kTokens};
    settings.cu_seqlens = all;
    LinearAttention wrong = linear_attention(arrays, settings);
    const LinearAttention right = linear_attention(p.operands, p.settings);
    wrong.final_state = Array::copy_of(right.final_state.view());
    CHECK(p.explained(wrong) ==
          "boundary: the state of each sequence runs on into the next: cu_seqlens is ignored; ");

    // Sequence 4 alone begins with the state of sequence 3.
    std::vector<double> states = plain::doubles(p.operands.initial_state.value());
    const std::vector<double> finals = plain::doubles(right.final_state.view());
    const std::size_t size = kHeads * kSize * kSize;
    std::copy_n(finals.begin() + 3 * size, size, states.begin() + 4 * size);
    const Array carried = plain::array_of(DType::float32, {5, kHeads, kSize, kSize}, states);
    arrays.initial_state = carried.view();
    CHECK(p.explained(arrays) == "boundary: the state of sequence 3 runs on into sequence 4; ");

    settings.cu_seqlens = std::vector<std::int64_t>{0, 71, 72, 72, 169, kTokens};
    CHECK(p.explained(settings) == "boundary: sequences begin one token late; ");
  }
}

TEST_CASE("decays, strengths, scales and norms of another meaning are named") {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    CAPTURE(name_of(dtype));
    const Packed p(dtype);
    const auto with = [&](auto LinearAttentionArrays::*operand, const std::function<double(double)>& f) {
      const Array other = plain::mapped(Array::copy_of(*(p.operands.*operand)), f);
      LinearAttentionArrays arrays = p.operands;
      arrays.*operand = other.view();
      return p.explained(arrays);
    };
    using Arrays = LinearAttentionArrays;
    CHECK(with(&Arrays::decay, [](double x) { return x * std::log(2); }) ==
          "decay: 2 to the decay is taken for e to the decay; ");
    CHECK(with(&Arrays::decay, [](double x) { return x / std::log(2); }) ==
          "decay: logarithms of decays are divided by ln 2; ");
    CHECK(with(&Arrays::decay, [](double) { return 0.0; }) == "decay: decays are missing; ");
    CHECK(with(&Arrays::beta, [](double) { return 1.0; }) == "beta: beta is missing; ");
    CHECK(with(&Arrays::beta, [](double x) { return 1 / (1 + std::exp(-x)); }) ==
          "beta: the sigmoid of beta is taken once more; ");
    LinearAttentionSettings settings = p.settings;
    settings.scale = 1;
    CHECK(p.explained(settings) == "scale: the scale of the output is missing; ");
    settings = p.settings;
    settings.delta = false;
    CHECK(p.explained(settings) == "delta: the correction of the delta rule is missing; ");
    LinearAttentionArrays arrays = p.operands;
    std::swap(arrays.q, arrays.k);
    CHECK(p.explained(arrays) == "operands: queries and keys are exchanged; ");
  }
}

TEST_CASE("heads that are taken modulo are named") {
  const Packed p(DType::bfloat16);
  std::vector<double> keys = plain::doubles(p.operands.k.value()), all;
  for (std::int64_t t = 0; t < kTokens; ++t)
    for (std::int64_t h = 0; h < kHeads; ++h) {
      const auto from = keys.begin() + (t * 2 + h % 2) * kSize;
      all.insert(all.end(), from, from + kSize);
    }
  const Array expanded = plain::array_of(DType::bfloat16, {kTokens, kHeads, kSize}, all);
  LinearAttentionArrays arrays = p.operands;
  arrays.k = expanded.view();
  CHECK(p.explained(arrays) == "heads: heads are taken modulo, and not by blocks: keys; ");
}

TEST_CASE("heads of gates, and those of all arrays, that are taken modulo are named") {
  const auto of_heads = [](const Array& array, bool is_modulo) {
    const std::int64_t tokens = array.shape()[0], heads = array.shape()[1];
    const std::vector<double> from = plain::doubles(array.view());
    const std::size_t size = from.size() / static_cast<std::size_t>(tokens * heads);
    std::vector<double> to;
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t h = 0; h < kHeads; ++h) {
        const std::int64_t one = is_modulo ? h % heads : h * heads / kHeads;
        const auto at = from.begin() + (t * heads + one) * static_cast<std::int64_t>(size);
        to.insert(to.end(), at, at + static_cast<std::int64_t>(size));
      }
    Shape shape = array.shape();
    shape[1] = kHeads;
    return plain::array_of(array.dtype(), shape, to);
  };
  Packed p(DType::float32);
  p.add("decay", plain::mapped(plain::random(DType::float32, {kTokens, 2}, p.random),
                               [](double x) { return -0.2 * std::abs(x); }));
  LinearAttentionArrays arrays = p.operands;
  const Array decay = of_heads(p.arrays.at("decay"), true);
  arrays.decay = decay.view();
  CHECK(p.explained(arrays) == "heads: heads are taken modulo, and not by blocks: decays; ");
}

TEST_CASE("slots that another sequence writes are named by the final states alone") {
  Packed p(DType::float32);
  p.add("initial_state", plain::random(DType::float32, {9, kHeads, kSize, kSize}, p.random));
  p.settings.slots.read = std::vector<std::int64_t>{3, 1, 7, 8, 5};
  LinearAttentionSettings settings = p.settings;
  settings.slots.write = std::vector<std::int64_t>{4, 2, 8, 0, 6};
  settings.slots.read = std::vector<std::int64_t>{4, 2, 8, 0, 6};
  const LinearAttention wrong = linear_attention(p.operands, settings);
  const Against against =
      compare_linear_attention(p.operands, p.settings, {{}, wrong.final_state.view()}, {}, Explain::yes)
          .against;
  REQUIRE(against.explanations.size() == 1);
  CHECK(against.explanations[0].text == "another slot: the next one");
  CHECK(against.explanations[0].share_explained > 0.99);
}

TEST_CASE("states that are dropped, transposed, late or not written are named") {
  const Packed p(DType::float32);
  const LinearAttention right = linear_attention(p.operands, p.settings);
  LinearAttentionArrays arrays = p.operands;
  arrays.initial_state.reset();
  CHECK(p.explained(arrays) == "state: the initial state is dropped; ");
  const Array turned = transposed_states(p.arrays.at("initial_state"));
  arrays.initial_state = turned.view();
  CHECK(p.explained(arrays) == "state: the initial state is read transposed; ");
  LinearAttention wrong = linear_attention(p.operands, p.settings);
  wrong.final_state = transposed_states(right.final_state);
  CHECK(p.explained(wrong) == "state: the final state is transposed; ");
  wrong.final_state = Array::copy_of(p.operands.initial_state.value());
  CHECK(p.explained(wrong) == "state: the final state is the initial one: it is not written; ");
  // An empty sequence keeps its state, here it is 0.
  wrong.final_state = Array::copy_of(right.final_state.view());
  std::fill_n(wrong.final_state.elements<float>().begin() + 2 * kHeads * kSize * kSize,
              kHeads * kSize * kSize, 0.F);
  CHECK(p.explained(wrong) == "empty: the final state of an empty sequence is 0, and not its initial one; ");
}

TEST_CASE("slots: stale ones, others and padding are named; those that nobody writes must be equal") {
  Packed p(DType::float32);
  p.add("initial_state", plain::random(DType::float32, {9, kHeads, kSize, kSize}, p.random));
  p.settings.slots.read = std::vector<std::int64_t>{3, 1, 7, -1, 5};
  p.settings.slots.has_initial_state = std::vector<std::int64_t>{1, 1, 0, 1, 0};
  LinearAttention right = linear_attention(p.operands, p.settings);
  CHECK(p.judged(right).agrees());
  LinearAttentionSettings settings = p.settings;
  settings.slots.has_initial_state = {};
  CHECK(p.explained(settings).find("slots: a stale slot is read: has-initial-state is ignored") == 0);
  settings = p.settings;
  settings.slots.read = std::vector<std::int64_t>{4, 2, 8, -1, 6};
  CHECK(p.explained(settings).find("slots: another slot: the next one") == 0);
  settings.slots.read = std::vector<std::int64_t>{3, 1, 7, 8, 5};
  CHECK(p.explained(settings).find("slots: padding is computed and written, to slot 8") == 0);
  right.final_state.elements<float>()[5] += 1e-6F;  // slot 0
  const Against against = p.judged(right, Explain::no);
  CHECK(against.beyond == 1);
  REQUIRE_FALSE(against.worst.empty());
  CHECK(against.worst[0].index == Shape{0, 0, 0, 5});
}

TEST_CASE("a recurrence that no element shows is reported, as are long keys") {
  Packed p(DType::bfloat16);
  const auto verdict = [&] {
    const LinearAttention result = linear_attention(p.operands, p.settings);
    return compare_linear_attention(p.operands, p.settings, {result.out.view(), {}}, {}, Explain::no);
  };
  CHECK(verdict().tests_recurrence);
  CHECK(verdict().work.largest_beta_k < 2.1);
  CHECK(verdict().against.not_given == std::vector<std::string>{"final_state"});
  p.add("decay", plain::filled(DType::float32, {kTokens, kHeads}, -40));
  CHECK_FALSE(verdict().tests_recurrence);
  p.settings.l2norm = false;
  CHECK(verdict().work.largest_beta_k > 2.1);
}

TEST_CASE("results of another shape are refused with the name of the array") {
  const Packed p(DType::float32);
  const Array out(DType::float32, {kTokens, kHeads, kSize + 1});
  const std::string text = plain::failure([&] {
    compare_linear_attention(p.operands, p.settings, {out.view(), {}}, {}, Explain::no);
  });
  CHECK(text.find("out has the shape") != std::string::npos);
}
