// A forward pass of the library's kernels with the scale, soft cap, bias, sequences and masks of a variation.
// Gradients begin with its lse and δ. Cost: the forward pass, and the blocks of its masks.
// tests: tests/attention/test_saved.cpp
#include "attention/saved.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "attention/backward.hpp"
#include "attention/forward.hpp"
#include "attention/numbers.hpp"

namespace ejk::attn {

namespace {

// The masks of a variation; all that it shares stays shared.
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
      std::optional<Mask>& made = joined.masks.emplace_back(mask ? *mask : full_mask(q, kv));
      if (variation.loop == Variation::Loop::left_out) {
        const std::int64_t begin = std::min(kv, variation.at * variation.tile),
                           end = std::min(kv, begin + variation.tile);
        if (begin < end) made = *made & (prefix_mask(q, kv, begin) | ~prefix_mask(q, kv, end));
      }
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
  using Loop = Variation::Loop;
  const double cap = v.softcap < 0 ? setup.softcap : v.softcap;
  const bool has_cap = cap > 0 && v.cap != Variation::Cap::none;
  const bool has_other_operands = v.key_head >= 0 || v.key_entry >= 0 || v.value_head >= 0 ||
                                  v.value_entry >= 0 || v.swap != Variation::Swap::none ||
                                  v.halves_exchanged || v.key_step != 0 || v.value_step != 0 ||
                                  v.zero_keys > 0;
  const bool has_other_bias =
      setup.bias && ((v.bias != 0 && v.bias != 1) || v.bias_head >= 0 || v.bias_entry >= 0);
  if ((has_cap && v.cap != Variation::Cap::before_bias) || v.inputs || v.weights || v.interleaved ||
      has_other_operands || has_other_bias || v.no_key != Variation::NoKey::zero ||
      v.sum != Variation::Sum::divided || (v.loop != Loop::right && v.loop != Loop::left_out))
    return std::nullopt;
  Varied varied{setup, {}};
  varied.setup.scale *= v.scale;
  varied.setup.softcap = has_cap ? cap : 0;
  if (v.bias == 0) varied.setup.bias.reset();
  if (v.one_sequence) {
    varied.setup.q_offsets = {0, setup.q_offsets.back()};
    varied.setup.kv_offsets = {0, setup.kv_offsets.back()};
    varied.setup.shape.entries = 1;
  }
  if (v.mask || v.loop == Loop::left_out)
    varied.masks.emplace(varied.setup, varied_masks(setup, varied.setup, plan, v));
  return varied;
}

// out and lse.
VariedForward forward_of(const Varied& varied, const MaskPlan& plan) {
  const CheckedArguments& setup = varied.setup;
  VariedForward made{
      Array(setup.shape.arithmetic, setup.shape.out), Array(setup.shape.arithmetic, setup.shape.lse), {}};
  forward(setup, varied.masks ? *varied.masks : plan, RowWriter(setup, made.out.mutable_view()),
          made.lse.data(), {});
  return made;
}

Reference::Saved saved_of(const Varied& varied, const CheckedArguments& setup, const MaskPlan& plan,
                          const ArrayView& dout) {
  const VariedForward made = forward_of(varied, plan);
  Reference::Saved saved;
  saved.lse.resize(static_cast<std::size_t>(made.lse.size()));
  load(made.lse.dtype(), made.lse.data(), size_of(made.lse.dtype()), made.lse.size(), saved.lse.data());
  saved.delta = Reference(setup, plan).deltas(dout, made.out.view());
  return saved;
}

}  // namespace

std::optional<VariedForward> forward_by_kernels(const CheckedArguments& setup, const MaskPlan& plan,
                                                const Variation& variation, DType weights) {
  if (variation.one_sequence) return std::nullopt;
  const auto varied = varied_by_kernels(setup, plan, variation);
  if (!varied) return std::nullopt;
  VariedForward made = forward_of(*varied, plan);
  made.rounding =
      rounding_of_weights(varied->setup, varied->masks ? *varied->masks : plan, weights, std::nullopt);
  return made;
}

std::optional<Reference::Saved> saved_by_kernels(const CheckedArguments& setup, const MaskPlan& plan,
                                                 const Variation& variation, const ArrayView& dout) {
  const auto varied = varied_by_kernels(setup, plan, variation);
  if (!varied) return std::nullopt;
  return saved_of(*varied, setup, plan, dout);
}

std::optional<VariedGradients> gradients_by_kernels(const CheckedArguments& setup, const MaskPlan& plan,
                                                    const Variation& v, const Reference::Saved* saved,
                                                    const ArrayView& dout, DType weights) {
  if (v.one_sequence || v.heads != Variation::Heads::all || !v.slope) return std::nullopt;
  const auto varied = varied_by_kernels(setup, plan, v);
  if (!varied) return std::nullopt;
  const CheckedArguments& own = varied->setup;
  const MaskPlan& masks = varied->masks ? *varied->masks : plan;
  std::optional<Reference::Saved> made;
  if (!saved) saved = &made.emplace(saved_of(*varied, setup, plan, dout));
  // Queries without a key in the pass that saved them have no weights, whatever the mask is here.
  Reference::Saved used{{}, saved->delta};
  for (const double lse : saved->lse)
    used.lse.push_back(lse == -std::numeric_limits<double>::infinity() ? -lse : v.lse * lse);
  for (double& delta : used.delta) delta *= v.delta;
  const DType type = setup.shape.arithmetic;
  const auto in_arithmetic = [&](const std::vector<double>& values) {
    Array array(type, setup.shape.lse);
    store(values.data(), array.size(), type, array.data());
    return array;
  };
  const Array lse = in_arithmetic(used.lse), delta = in_arithmetic(used.delta);
  Shape of_q = setup.shape.out;
  of_q.back() = setup.shape.head_size;
  VariedGradients gradients{Array(type, of_q),
                            Array(type, in_layout(setup.k, setup.layout)),
                            Array(type, in_layout(setup.v, setup.layout)),
                            key_weights(own, masks, lse),
                            rounding_of_weights(own, masks, weights, dout, &used),
                            v.scale_of_gradient};
  backward(own, masks, own.all_keys(), 1, {in_one_form(dout, setup.layout), lse.data(), delta.data()},
           RowWriter(own, gradients.dq.mutable_view()), RowWriter(own, gradients.dk.mutable_view()),
           RowWriter(own, gradients.dv.mutable_view()), {});
  return gradients;
}

// dv where dout is 1.
Array key_weights(const CheckedArguments& setup, const MaskPlan& plan, const Array& lse) {
  static constexpr float kZero = 0, kOne = 1;
  const auto uniform = [](const float& value, const Shape& shape) {
    return ArrayView{reinterpret_cast<const std::byte*>(&value), DType::float32, shape,
                     Shape(shape.size(), 0)};
  };
  CheckedArguments narrow = setup;
  Shape values = setup.v.shape;
  values.back() = narrow.shape.value_size = narrow.shape.out.back() = 1;
  narrow.v = uniform(kZero, values);
  const DType type = setup.shape.arithmetic;
  Array dk(type, in_layout(setup.k, setup.layout)), dv(type, in_layout(narrow.v, setup.layout)),
      delta(type, narrow.shape.lse);
  std::memset(delta.data(), 0, static_cast<std::size_t>(delta.bytes()));
  const ArrayView dout = in_one_form(uniform(kOne, narrow.shape.out), setup.layout);
  backward_of_keys(narrow, plan, narrow.all_keys(), 1, {dout, lse.data(), delta.data()},
                   RowWriter(narrow, dk.mutable_view()), RowWriter(narrow, dv.mutable_view()), {});
  return dv;
}

}  // namespace ejk::attn
