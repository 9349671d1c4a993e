// Backward pass of attention: gradients of all problems, of keys alone, of a bias.
#pragma once

#include "attention/problem.hpp"
#include "attention/row_writer.hpp"

namespace ejk::attn {

/// Second factors for sums of squared terms of gradients: P becomes P² and dS becomes 4 dS² + (scale · ds/ds₀
/// · P)² `rows` of its query.
struct SquaredFactors {
  ArrayView q, k, dout;
  const void* rows;
};

/// What the backward pass begins with. dout is (B, heads, positions, elements); lse and δ are of the rows
/// of setup, of the arithmetic's dtype.
struct Saved {
  ArrayView dout;
  const void *lse, *delta;
  const SquaredFactors* squared = nullptr;
};

/// δ = Σ_d dout · out of some queries, to where setup holds their rows. dout and out are (B, heads,
/// positions, elements).
void find_deltas(const CheckedArguments& setup, const Region& queries, const ArrayView& dout,
                 const ArrayView& out, void* delta);

/// The gradients of the sinks of some heads: −Σ exp(sink − lse) δ over their queries, in order.
void gradient_of_sinks(const CheckedArguments& setup, const Region& queries, const void* lse,
                       const void* delta, const RowWriter& dsinks);

/// dk and dv of all keys of some heads, and dq of their query heads. `share`: of the work for all heads.
void backward(const CheckedArguments& setup, const MaskPlan& plan, const Region& keys, double share,
              const Saved& saved, const RowWriter& dq, const RowWriter& dk, const RowWriter& dv,
              const PairProgress& progress);

/// dk and dv alone.
void backward_of_keys(const CheckedArguments& setup, const MaskPlan& plan, const Region& keys, double share,
                      const Saved& saved, const RowWriter& dk, const RowWriter& dv,
                      const PairProgress& progress);
/// The gradient of some of a bias, a region of its own (CheckedArguments::queries_of_bias), which begins at a
/// multiple of gradient_block(): the same bits.
void backward_of_bias(const CheckedArguments& setup, const MaskPlan& plan, const Region& bias, double share,
                      const Saved& saved, const RowWriter& dbias, const PairProgress& progress);

/// Workspace of gradients of some keys, beside that of threads.
std::int64_t bytes_of_means(const CheckedArguments& setup, const Region& keys);

/// That of a bias: of a thread, and of all of them together.
std::int64_t bias_thread_bytes(const CheckedArguments& setup);
std::int64_t bias_bytes(const CheckedArguments& setup, const Region& bias);

/// Queries and keys that are computed together: whether others are does not matter to them.
BlockShape gradient_block(const CheckedArguments& setup);

}  // namespace ejk::attn
