// lse and δ of a variation: a forward pass of the library's kernels with the scale, soft cap, bias, sequences and
// masks of the variation.
// Cost: a forward pass, and the blocks of its masks.
// tests: tests/attention/test_saved.cpp
#include "attention/saved.hpp"

#include <utility>

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
      const Mask* const mask = variation.mask(setup.problem(e, h));
      joined.masks.push_back(q == 0 || kv == 0 ? std::optional<Mask>() : mask ? *mask : full_mask(q, kv));
    }
  return joined;
}

}  // namespace

std::optional<Reference::Saved> saved_by_kernels(const CheckedArguments& setup, const MaskPlan& plan,
                                                 const Variation& variation, const ArrayView& dout) {
  const bool has_cap = setup.softcap > 0 && variation.cap != Variation::Cap::none;
  if ((has_cap && variation.cap != Variation::Cap::before_bias) || variation.inputs || variation.weights ||
      variation.interleaved ||
      (setup.bias && ((variation.bias != 0 && variation.bias != 1) || variation.bias_head >= 0 ||
                      variation.bias_entry >= 0)))
    return std::nullopt;
  CheckedArguments varied = setup;
  varied.scale *= variation.scale;
  if (!has_cap) varied.softcap = 0;
  if (variation.bias == 0) varied.bias.reset();
  if (variation.one_sequence) {
    varied.q_offsets = {0, setup.q_offsets.back()};
    varied.kv_offsets = {0, setup.kv_offsets.back()};
    varied.shape.entries = 1;
  }
  std::optional<MaskPlan> masks;
  if (variation.mask) masks.emplace(varied, varied_masks(setup, varied, plan, variation));
  Array out(setup.shape.arithmetic, setup.shape.out), lse(setup.shape.arithmetic, setup.shape.lse);
  forward(varied, masks ? *masks : plan, RowWriter(varied, out.mutable_view()), lse.data(), {});
  Reference::Saved saved;
  saved.lse.resize(static_cast<std::size_t>(lse.size()));
  load(lse.dtype(), lse.data(), size_of(lse.dtype()), lse.size(), saved.lse.data());
  saved.delta = Reference(setup, plan).deltas(dout, out.view());
  return saved;
}

}  // namespace ejk::attn
