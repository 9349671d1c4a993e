// Attention by the reference: all results, in float64.
#pragma once

#include "attention/plan.hpp"
#include "ejk/attention.hpp"
#include "verdict/attention/reference.hpp"

namespace plain {

inline ejk::attn::Reference::Forward reference_attention(const ejk::ArrayView& q, const ejk::ArrayView& k,
                                                         const ejk::ArrayView& v,
                                                         const ejk::AttentionOptions& options) {
  const ejk::AttentionArrays arrays{q, k, v, options.bias};
  const ejk::attn::Plan plan(types_of(arrays), options);
  const auto setup = ejk::attn::bound(plan.setup, plan.types, arrays);
  return ejk::attn::Reference(setup, plan.blocks()).forward();
}

inline ejk::attn::Reference::Backward reference_attention_grad(const ejk::ArrayView& q,
                                                               const ejk::ArrayView& k,
                                                               const ejk::ArrayView& v,
                                                               const ejk::ArrayView& dout,
                                                               const ejk::AttentionOptions& options) {
  const ejk::AttentionArrays arrays{q, k, v, options.bias, dout};
  const ejk::attn::Plan plan(types_of(arrays), options);
  const auto setup = ejk::attn::bound(plan.setup, plan.types, arrays);
  return ejk::attn::Reference(setup, plan.blocks()).backward(dout);
}

}  // namespace plain
