// Attention, forward and backward: softmax(scale · q kᵀ) v under masks, for padded batches and packed
// sequences.
//
// For one query head of one batch entry (or sequence), query i and key j:
//   s₀ = scale · Σ_d q[i, d] · k[j, d]            scale is 1/√D unless given
//   s  = c · tanh(s₀ / c) with a soft cap c, else s₀; then the bias is added; masked pairs do not exist
//   lse[i] = ln Σ_j exp(s),  out[i] = Σ_j exp(s − lse[i]) · v[j]
// and for dout, with P = exp(s − lse), dP = dout · v, δ = Σ_d dout · out and dS = P · (dP − δ), times
// 1 − tanh²(s₀ / c) with a soft cap:
//   dv = Pᵀ dout,  dq = scale · dS k,  dk = scale · dSᵀ q; dk and dv are summed over the query heads that
// share a key/value head. A query with no key to attend to, be it masked or its key sequence empty, has
// out = 0 and lse = −∞ and adds 0 to every gradient.
//
// Arithmetic: float32; float64 where one of q, k, v (or dout) is. Inputs are converted before, results once
// at the end; weights are never rounded to 16 bits. (Products of two bfloat16, which are exact in float32,
// may take subnormal ones as 0, see grouped_matmul.hpp.) Elements of pairs that a mask hides do not matter,
// whatever stands there; a pair
// whose score is −∞ counts as hidden. A bias is read in the arithmetic's type, and weights below e^-87
// (float64: e^-708) of a row's largest are 0. The blocks of keys (of the block shape's length, up to 256)
// decide the order of sums and nothing else does, so any number of threads gives the same bits. Source:
// scaled dot-product attention with an online softmax; src/attention/reference.cpp is the plain form.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/mask.hpp"
#include "ejk/mask_info.hpp"
#include "ejk/report.hpp"

namespace ejk {

/// Which axis is which. B batch entries, H query heads, G key/value heads, of which H is a multiple (query
/// head h uses h / (H/G)), Q queries, K keys, D the heads' size, Dv that of values.
enum class AttentionLayout {
  bshd,  // q (B, Q, H, D), k (B, K, G, D), v (B, K, G, Dv), out (B, Q, H, Dv)
  bhsd,  // q (B, H, Q, D), k (B, G, K, D), v (B, G, K, Dv), out (B, H, Q, Dv)
  thd,   // packed: q (Tq, H, D), k (Tk, G, D), v (Tk, G, Dv), out (Tq, H, Dv)
};

/// "bshd", "bhsd", "thd".
std::string_view name_of(AttentionLayout layout);

/// A mask for every batch entry (of packed inputs: sequence) and query head.
struct AttentionMask {
  std::int64_t batch = 1;  // 1: the same for all entries, else as many as there are
  std::int64_t heads = 1;  // 1: the same for all heads, else as many as there are
  /// The mask of one entry and head: of q_length queries × kv_length keys, which are at least 1. Packed
  /// sequences have lengths of their own, so there it is asked for each.
  std::function<Mask(std::int64_t entry, std::int64_t head, std::int64_t q_length, std::int64_t kv_length)>
      mask;
  bool any_length = true;       // there is one for sequences of any lengths: packed inputs take no other
  std::string name = "a mask";  // in messages
};

/// One mask for all heads, or as many as there are heads; (Q, K) each. Not for packed inputs.
AttentionMask attention_mask(std::vector<Mask> heads);

/// One expression for all heads, or as many as there are heads. In packed inputs positions are those within
/// the sequence. Errors (Error{input}) of MaskExpression::resolve come when masks are made.
AttentionMask attention_mask(std::vector<MaskExpression> heads, Polarity polarity, OpenArray open);

/// A stored mask (Q, K), (B, Q, K), (B, 1, Q, K) or (B, H, Q, K), where B, too, may be 1 for all: bool or
/// integer, float where it is additive. Not for packed inputs. Errors: other ranks and dtypes.
AttentionMask attention_mask(std::shared_ptr<const ArraySource> array, Polarity polarity = Polarity::keep);

struct AttentionOptions {
  AttentionLayout layout = AttentionLayout::bshd;
  std::optional<double> scale;       // finite
  std::optional<double> softcap;     // c > 0
  std::optional<ArrayView> bias;     // any float dtype, broadcast to (B, H, Q, K); not for packed inputs
  std::vector<AttentionMask> masks;  // a pair attends where all of them say so
  std::shared_ptr<const ArraySource> q_segment_ids;   // (B, Q), packed (Tq,): ids ≤ 0 are padding
  std::shared_ptr<const ArraySource> kv_segment_ids;  // (B, K), packed (Tk,); absent: those of the queries
  /// Packed inputs: sequence i is queries cu_seqlens_q[i] … and keys cu_seqlens_kv[i] …; 0 first, never
  /// decreasing, the tokens last. Absent for keys: those of the queries.
  std::shared_ptr<const ArraySource> cu_seqlens_q;
  std::shared_ptr<const ArraySource> cu_seqlens_kv;
  std::optional<BlockShape> block;  // queries × keys that are looked at together; absent: chosen
  std::function<void(std::int64_t done, std::int64_t all)> progress;  // pairs; any thread, one at a time
};

/// What was to be done, over all entries and query heads.
struct AttentionWork {
  std::int64_t problems = 0;        // pairs of an entry and a query head
  std::int64_t distinct_masks = 0;  // that were looked at
  BlockShape block;
  std::int64_t dense_pairs = 0;     // of a query and a key of its entry
  std::int64_t allowed_pairs = 0;   // that the masks let attend
  std::int64_t computed_pairs = 0;  // in blocks that are not empty
  std::int64_t empty_blocks = 0;    // skipped
  std::int64_t partial_blocks = 0;  // of which each pair's mask is looked at
  std::int64_t full_blocks = 0;
  std::int64_t rows = 0;              // queries
  std::int64_t rows_without_key = 0;  // that the masks leave nothing to attend to
  /// The first of them: (entry, head, query within the entry); empty when there is none.
  Shape first_row_without_key;
  std::int64_t rows_not_finite = 0;  // queries whose lse came out as NaN or +∞, and the first of them
  Shape first_row_not_finite;
  /// How positions of queries and keys meet, where a mask of positions lies over unequal numbers of them.
  std::set<std::string> alignment;
  double forward_flop = 0;   // 2 (D + Dv) an allowed pair
  double backward_flop = 0;  // 2 (3 D + 2 Dv) an allowed pair: without a forward pass for out and lse
  double mask_seconds = 0;   // reading masks and sorting blocks
  double forward_seconds = 0;
  double backward_seconds = 0;
};

struct Attention {
  Array out;  // shaped as q, with v's last axis
  Array lse;  // (B, H, Q) or (H, Tq); float32, float64 where the arithmetic is
  AttentionWork work;
};

struct AttentionGradients {
  Array dq, dk, dv;  // shaped as q, k, v
  AttentionWork work;
};

/// What is decided by shapes and dtypes.
struct AttentionShape {
  Shape out, lse;
  DType arithmetic = DType::float32;  // or float64
  std::int64_t entries = 0, heads = 0, kv_heads = 0;
  std::int64_t head_size = 0, value_size = 0;
  std::int64_t plan_bytes = 0;  // what the states of blocks take at the most
  std::int64_t work_bytes = 0;  // and what all threads work in, both ways
};

/// q, k, v: float16, bfloat16, float32 or float64, any strides. out is of `dtype`, absent: of q's. Throws
/// Error{input}, with the numbers and a hint where there is a way out: ranks, lengths that do not match, H no
/// multiple of G, dtypes, masks of another shape, cu_seqlens that begin above 0, decrease or do not end at
/// the tokens.
Attention attention(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                    const AttentionOptions& options = {}, std::optional<DType> dtype = std::nullopt);

/// The same into memory: out and lse of attention_shape(), C order. Masks are made before any of it is
/// written.
AttentionWork attention_into(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                             const AttentionOptions& options, std::optional<DType> dtype, void* out,
                             void* lse);

/// Gradients for `dout` (shaped as out), of `dtype`, absent: each of its input's. out and lse may be given
/// where a forward pass has left them (lse of float32 or float64); else it is run again.
struct AttentionSaved {
  ArrayView out;
  ArrayView lse;
};
AttentionGradients attention_grad(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                                  const ArrayView& dout, const AttentionOptions& options = {},
                                  std::optional<DType> dtype = std::nullopt,
                                  const std::optional<AttentionSaved>& saved = std::nullopt);

/// The checks that need no element of q, k, v (cu_seqlens are read), and what follows from them.
AttentionShape attention_shape(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                               const AttentionOptions& options = {});
void check_attention_arguments(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                               const ArrayView& dout, const AttentionOptions& options = {},
                               const std::optional<AttentionSaved>& saved = std::nullopt);

/// All checks, and what there is to do: masks are read, q, k and v are not.
AttentionWork attention_work(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                             const AttentionOptions& options = {});

/// The identity whose gradient has another dtype. Forward: the input, bit for bit, whatever `dtype` is.
ArrayView identity_dtype_convert(const ArrayView& x, DType dtype);
/// Backward: the gradient that comes in, converted to `dtype`, to nearest, ties to even, overflow to
/// infinities. Both dtypes are floats; Error{input} otherwise.
Array identity_dtype_convert_backward(const ArrayView& gradient, DType dtype);

Report describe(const AttentionWork& work);

}  // namespace ejk
