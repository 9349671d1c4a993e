// Passes of the library's kernels with the scale, soft cap, bias, sequences and masks of a variation. Cost:
// the passes, and the blocks of the variation's masks.
// tests: tests/verdict/attention/test_saved.cpp
#include "verdict/attention/saved.hpp"

#include <algorithm>

#include "attention/backward.hpp"
#include "attention/forward.hpp"
#include "attention/numbers.hpp"

namespace ejk::attn {

namespace {

JoinedMasks varied_masks(const CheckedArguments& setup, const CheckedArguments& varied, const MaskPlan& plan,
                         const Variation& variation) {
  JoinedMasks joined;
  joined.entries = variation.one_sequence ? 1
                   : setup.packed()       ? setup.shape.entries
                   : plan.has_masks()     ? plan.distinct_entries()
                                          : 1;
  joined.heads = variation.one_sequence ? setup.shape.heads : plan.distinct_heads();
  for (std::int64_t e = 0; e < joined.entries; ++e)
    for (std::int64_t h = 0; h < joined.heads; ++h) {
      const std::int64_t q = varied.q_length(e), kv = varied.kv_length(e);
      if (q == 0 || kv == 0) {
        joined.masks.emplace_back();
        continue;
      }
      const Problem problem = setup.problem(e, h);
      const MaskTiles* const tiles = plan.of(problem);
      const Mask* const mask = variation.mask ? variation.mask(problem) : tiles ? &*tiles->mask : nullptr;
      joined.masks.emplace_back(mask ? *mask : full_mask(q, kv));
    }
  return joined;
}

struct Varied {
  CheckedArguments setup;
  std::optional<MaskPlan> masks;  // none: those of the plan
};

// Nothing where the kernels have no such variation.
std::optional<Varied> varied_by_kernels(const CheckedArguments& setup, const MaskPlan& plan,
                                        const Variation& v) {
  const bool has_other_operands =
      v.other || v.entry_step != 0 || v.is_token_step || v.capped != 1 || v.key_head >= 0 ||
      v.key_entry >= 0 || v.value_head >= 0 || v.value_entry >= 0 || v.zero_keys > 0 || v.value_scale != 1 ||
      v.alibi_head >= 0 || v.sink_head >= 0 || !v.other_sinks.empty() || v.masked_score || v.masks_weights;
  const bool has_other_bias =
      setup.bias && ((v.bias != 0 && v.bias != 1) || v.bias_head >= 0 || v.bias_entry >= 0);
  using Cap = Variation::Cap;
  if (v.inputs || v.weights || v.scores || v.interleaved || has_other_operands || has_other_bias ||
      v.no_key != Variation::NoKey::own || !v.alibi_is_shifted || v.loop != Variation::Loop::right)
    return std::nullopt;
  Varied varied{setup, {}};
  varied.setup.scale *= v.scale;
  if (v.cap == Cap::none) varied.setup.softcap = 0;
  if (v.cap == Cap::before_bias) varied.setup.softcap_order = SoftcapOrder::before_bias;
  if (v.cap == Cap::after_bias) varied.setup.softcap_order = SoftcapOrder::after_bias;
  varied.setup.alibi_form = v.alibi_form.value_or(setup.alibi_form);
  for (double& slope : varied.setup.slopes) slope *= v.alibi;
  for (double& sink : varied.setup.ends.sinks)
    sink = sink == kNoSink || v.sinks == 0 ? kNoSink : sink * v.sink_scale + std::log(v.sinks);
  if (v.bias == 0) varied.setup.bias.reset();
  if (v.one_sequence) {
    varied.setup.q_offsets = {0, setup.q_offsets.back()};
    varied.setup.kv_offsets = {0, setup.kv_offsets.back()};
    varied.setup.shape.entries = 1;
  }
  if (v.mask) varied.masks.emplace(varied.setup, varied_masks(setup, varied.setup, plan, v));
  return varied;
}

Array rounded_rows(const CheckedArguments& setup, const std::vector<double>& values) {
  Array array(setup.shape.arithmetic, setup.shape.lse);
  store(values.data(), array.size(), array.dtype(), array.data());
  return array;
}

const MaskPlan& varied_blocks(const Varied& varied, const MaskPlan& plan) {
  return varied.masks ? *varied.masks : plan;
}

std::vector<Array> forward_of(const Varied& varied, const MaskPlan& plan) {
  const CheckedArguments& setup = varied.setup;
  std::vector<Array> made;
  made.emplace_back(setup.shape.arithmetic, setup.shape.out);
  made.emplace_back(setup.shape.arithmetic, setup.shape.lse);
  const RowWriter out(setup, made[0].mutable_view());
  forward(setup, varied_blocks(varied, plan), {out, made[1].data()}, {});
  return made;
}

ArrayView uniform(const float& value, const Shape& shape) {
  return {reinterpret_cast<const std::byte*>(&value), DType::float32, shape, Shape(shape.size(), 0)};
}

// Without dropout, whose weights are not those of softmax.
CheckedArguments with_values(const CheckedArguments& setup, const float& value) {
  CheckedArguments narrow = setup;
  narrow.dropout.reset();
  Shape values = setup.v.shape;
  values.back() = narrow.shape.value_size = narrow.shape.out.back() = 1;
  narrow.v = uniform(value, values);
  return narrow;
}

constexpr float kZeroValue = 0, kOneValue = 1;

}  // namespace

std::optional<ByKernels> forward_by_kernels(const CheckedArguments& setup, const MaskPlan& plan,
                                            const Variation& variation, const SoftmaxTypes& types) {
  if (variation.one_sequence || setup.ends.mean) return std::nullopt;
  auto varied = varied_by_kernels(setup, plan, variation);
  if (!varied) return std::nullopt;
  ByKernels made{{}, rounding_of_weights(varied->setup, varied_blocks(*varied, plan), types, std::nullopt)};
  const LseForm& form = varied->setup.ends.lse;
  varied->setup.ends.lse_of_keys = !form.has_sink;
  made.results = forward_of(*varied, plan);
  if (!form.is_plain())
    in_arithmetic(setup, [&]<class Real>(Real) {
      for (Real& lse : made.results[1].elements<Real>())
        lse = static_cast<Real>(form.given(static_cast<double>(lse)));
    });
  return made;
}

Reference::Saved with_delta_of(std::int64_t entry, const CheckedArguments& setup,
                               const Reference::Saved& saved) {
  Reference::Saved all = saved;
  for (std::int64_t n = 0; n < setup.problems(); ++n) {
    const Problem p = setup.problem(n / setup.shape.heads, n % setup.shape.heads);
    std::copy_n(saved.delta.begin() + setup.first_row(entry, p.head), p.q_length,
                all.delta.begin() + p.first_row);
  }
  return all;
}

std::optional<Reference::Saved> saved_by_kernels(const CheckedArguments& setup, const MaskPlan& plan,
                                                 const Variation& variation, const ArrayView& dout) {
  const auto varied = varied_by_kernels(setup, plan, variation);
  if (!varied) return std::nullopt;
  const std::vector<Array> made = forward_of(*varied, plan);
  const Array lse = identity_dtype_convert_backward(made[1].view(), DType::float64);
  const auto values = lse.elements<double>();
  return Reference::Saved{{values.begin(), values.end()},
                          Reference(setup, plan).deltas(dout, made[0].view())};
}

std::optional<ByKernels> gradients_by_kernels(const CheckedArguments& setup, const MaskPlan& plan,
                                              const Variation& v,
                                              const std::function<const Reference::Saved*()>& saved,
                                              const ArrayView& dout, const SoftmaxTypes& types) {
  if (v.one_sequence || v.heads != Variation::Heads::all || !v.slope || setup.ends.mean) return std::nullopt;
  const auto varied = varied_by_kernels(setup, plan, v);
  const Reference::Saved* const given = varied ? saved() : nullptr;
  if (!given) return std::nullopt;
  const CheckedArguments& own = varied->setup;
  const MaskPlan& masks = varied_blocks(*varied, plan);
  // Queries without a key in the pass that saved them have no weights, whatever the mask is here.
  Reference::Saved used = *given;
  for (double& lse : used.lse) lse = lse == RowEnd<double>::kEmpty ? -lse : v.lse * lse;
  for (double& delta : used.delta) delta *= v.delta;
  const DType type = setup.shape.arithmetic;
  const Array lse = rounded_rows(setup, used.lse), delta = rounded_rows(setup, used.delta);
  Shape of_q = setup.shape.out;
  of_q.back() = setup.shape.head_size;
  ByKernels made{{},
                 rounding_of_weights(own, masks, types, dout, &used),
                 summed_weights(own, masks, used.lse, false).keys,
                 v.scale_of_gradient};
  std::vector<RowWriter> writers;
  for (const Shape& shape : {of_q, in_layout(setup.k, setup.layout), in_layout(setup.v, setup.layout)})
    made.results.emplace_back(type, shape);
  for (Array& result : made.results) writers.emplace_back(own, result.mutable_view());
  backward(own, masks, own.all_keys(), 1, {in_one_form(dout, setup.layout), lse.data(), delta.data()},
           writers[0], writers[1], writers[2], {});
  return made;
}

// dv where dout is 1 and values are 0, and dbias where both are 1 and δ is 0.
SummedWeights summed_weights(const CheckedArguments& setup, const MaskPlan& plan,
                             const std::vector<double>& lse, bool of_bias) {
  const CheckedArguments narrow = with_values(setup, kZeroValue);
  const DType type = setup.shape.arithmetic;
  SummedWeights sums{Array(type, in_layout(narrow.v, setup.layout)), {}};
  Array dk(type, in_layout(setup.k, setup.layout));
  const Array of_rows = rounded_rows(setup, lse),
              delta = rounded_rows(setup, std::vector<double>(lse.size()));
  const Saved saved{in_one_form(uniform(kOneValue, narrow.shape.out), setup.layout), of_rows.data(),
                    delta.data()};
  backward_of_keys(narrow, plan, narrow.all_keys(), 1, saved, RowWriter(narrow, dk.mutable_view()),
                   RowWriter(narrow, sums.keys.mutable_view()), {});
  if (!of_bias) return sums;
  const CheckedArguments ones = with_values(setup, kOneValue);
  sums.bias = Array(DType::float64, setup.bias_shape);
  const RowWriter writer(ones, sums.bias.mutable_view(), whole_box(sums.bias.shape()), sums.bias.shape(),
                         std::nullopt, RowsOf::bias);
  backward_of_bias(ones, plan, ones.whole_bias(), 1, saved, writer, {});
  return sums;
}

}  // namespace ejk::attn
