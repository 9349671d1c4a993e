// Attention, forward and backward: softmax(scale · q kᵀ) v under masks, for padded batches and packed
// sequences.
//
// For one query head of one batch entry (or sequence), query i and key j:
//   s₀ = scale · Σ_d q[i, d] · k[j, d]            scale is 1/√D unless given
//   s  = c · tanh(s₀ / c) with a soft cap c, else s₀; then bias and ALiBi are added (SoftcapOrder: or before);
//        masked pairs do not exist
//   lse[i] = ln Σ_j exp(s), out[i] = Σ_j exp(s − lse[i]) · v[j]; a sink α of the head adds exp(α) to the sum
// and for dout, with P = exp(s − lse), dP = dout · v, δ = Σ_d dout · out and dS = P · (dP − δ), times 1 −
// tanh²(s₀ / c) with a soft cap:
//   dv = Pᵀ dout,  dq = scale · dS k,  dk = scale · dSᵀ q,  dbias = P · (dP − δ) (dS, if it is capped),
//   dsinks = −Σ_i exp(α − lse[i]) · δ
// With dropout, z = 1/p for a kept pair and 0 for a dropped one (p: the probability to be kept), out = Σ z P v,
// dv = (z P)ᵀ dout and dS = P · (z dP − δ); lse has no dropout, and values of dropped pairs have no influence.
// dk and dv are summed over the query heads that share a key/value head, dbias over the axes that the bias is
// broadcast over. A query without a key has out = 0 and lse = −∞ (with a sink α: α) and adds 0 to every
// gradient; where its out is the mean of all K values, it adds dout / K to dv of each, as jax.grad has it. (The
// backward pass of JAX's splash attention adds dout, as lse in float32 has lost ln K, and more to dq and dk.)
// Results may follow other conventions, see AttentionConventions.
//
// Arithmetic is float32, or float64 where one of q, k, v (or dout) is. Inputs are converted before, results
// once at the end; weights are never rounded to 16 bits. (Products of two bfloat16 may flush subnormal ones
// to 0, see grouped_matmul.hpp.) Masked pairs have no influence, NaN included; a score of −∞ counts as
// masked (a bias of −∞ that is capped after it is added makes it −c). Weights below e^-87 (float64: e^-708) of
// a row's largest are 0. Blocks of keys (of the block shape's length, up to 256) determine the order of sums; a
// forward pass over few queries (32 of an entry's head, or of all heads that share a key) merges key ranges
// whose lengths follow from the shapes. Any number of threads gives the same bits on one instruction set.
// Source: scaled dot-product attention with an online softmax; src/verdict/attention/reference.cpp is the plain form.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/mask.hpp"
#include "ejk/mask_info.hpp"
#include "ejk/mask_set.hpp"
#include "ejk/report.hpp"

namespace ejk {

// Conventions in which attention kernels differ: the order of what is added to scores, how a row of scores
// ends, and the form of its lse. One value has them all; a table has those of libraries, from their sources.

/// Whether bias and ALiBi are added after the soft cap, or are capped with the scores.
enum class SoftcapOrder { before_bias, after_bias };

/// What ALiBi adds to the score of query i of Q and key j of K, times the slope: −|i + K − Q − j|, or j − i.
enum class AlibiForm { absolute, signed_distance };

enum class LseBase { e, two };
/// lse of a query without a key and without a sink; finite: −0.7 times the largest float32, JAX's mask value.
enum class LseEmpty { minus_infinity, infinity, zero, finite };
enum class LseSink { in, out };
/// out of a query without a key and without a sink: 0, or the mean of all values of its entry, with its gradient.
enum class MaskedRows { zero, mean };
/// The axes of lse: heads before positions, (B, H, Q) or (H, T), or after them, (B, Q, H) or (T, H). Attention's
/// is hn; programs exchange the axes.
enum class LseLayout { hn, nh };

std::string_view name_of(SoftcapOrder order);
std::string_view name_of(AlibiForm form);
std::string_view name_of(LseBase base);
std::string_view name_of(LseEmpty empty);
std::string_view name_of(LseSink sink);
std::string_view name_of(MaskedRows rows);
std::string_view name_of(LseLayout layout);

struct AttentionConventions {
  SoftcapOrder softcap_order = SoftcapOrder::before_bias;
  AlibiForm alibi_form = AlibiForm::absolute;
  LseBase lse_base = LseBase::e;
  LseEmpty lse_empty = LseEmpty::minus_infinity;
  LseSink lse_sink = LseSink::in;
  MaskedRows masked_rows = MaskedRows::zero;

  bool operator==(const AttentionConventions&) const = default;
};

struct LibraryConventions {
  std::string_view name;  // "fa3"
  AttentionConventions conventions;
  bool scales = true;  // 1/√D unless given; else the caller scales queries
  LseLayout lse_layout = LseLayout::hn;
};

/// flashinfer, fa2, fa3, fa4, flashmla, torch (flex_attention), torch-sdpa (its CPU kernel), jax-splash, cudnn.
std::span<const LibraryConventions> library_conventions();

/// ALiBi's slopes of `heads` heads: 2^(−8 (h + 1) / n) of the first n, the largest power of two among them,
/// then 2^(−4 (2 (h − n) + 1) / n). Source: ALiBi's paper, for any number of heads as its authors' code.
std::vector<double> alibi_slopes(std::int64_t heads);

/// The order of axes. B batch entries, H query heads, G key/value heads (query head h uses h / (H/G)), Q
/// queries, K keys, head sizes D ≥ 1 and Dv.
enum class AttentionLayout {
  bshd,  // q (B, Q, H, D), k (B, K, G, D), v (B, K, G, Dv), out (B, Q, H, Dv)
  bhsd,  // q (B, H, Q, D), k (B, G, K, D), v (B, G, K, Dv), out (B, H, Q, Dv)
  thd,   // packed: q (Tq, H, D), k (Tk, G, D), v (Tk, G, Dv), out (Tq, H, Dv)
};

std::string_view name_of(AttentionLayout layout);

class Communicator;  // communicator.hpp

struct AttentionSettings {
  AttentionLayout layout = AttentionLayout::bshd;
  std::optional<double> scale;                        // finite
  std::optional<double> softcap;                      // c > 0
  std::shared_ptr<const ArraySource> sinks;           // (H,), any float dtype: finite, or −∞ for none
  std::shared_ptr<const ArraySource> alibi;           // slopes (H,) or (entries, H), any float dtype
  AttentionConventions conventions;                   // of an lse that is given, too
  bool max_logits = false;                            // the largest score of each head: AttentionPasses
  double keep_probability = 1;                        // of the operand `dropout`: in (0, 1]
  std::vector<HeadMasks> masks;                       // a pair attends where all of them allow it
  std::shared_ptr<const ArraySource> q_segment_ids;   // (B, Q), packed (Tq,): ids ≤ 0 are padding
  std::shared_ptr<const ArraySource> kv_segment_ids;  // (B, K), packed (Tk,); absent: those of the queries
  /// Packed inputs: (n + 1,), sequence i is tokens [cu[i], cu[i + 1]). Absent for keys: those of the queries.
  IntegerArray cu_seqlens_q;
  IntegerArray cu_seqlens_kv;
  /// Packed inputs with padding, as TransformerEngine's THD: (n + 1,); sequence i begins at token
  /// cu_seqlens_q_padded[i], its length is cu_seqlens_q[i + 1] − cu_seqlens_q[i]. Padding, also before the
  /// first sequence, is never read; there out and gradients are 0 and lse −∞. Absent for keys: those of the
  /// queries.
  IntegerArray cu_seqlens_q_padded;
  IntegerArray cu_seqlens_kv_padded;
  std::optional<BlockShape> block;  // queries × keys of a tile; absent: chosen
  std::optional<DType> dtype;       // of out; of the gradients. Absent: of q; each of its input
  /// Final cast of gradients, as identity_dtype_convert; without `dtype` they are rounded once, to this.
  std::optional<DType> grad_dtype;
  /// Ranks that read stored masks together, in the plan's first call that reads masks. Null: each by itself.
  Communicator* comm = nullptr;
};

/// Called with the pairs done and the number of all; from any thread, one call at a time.
using PairProgress = std::function<void(std::int64_t done, std::int64_t all)>;

struct AttentionOptions : AttentionSettings {
  std::optional<ArrayView> bias;     // any float dtype, broadcast to (B, H, Q, K); not for packed inputs
  std::optional<ArrayView> dropout;  // bool, likewise: the pairs that are kept
  PairProgress progress;
};

/// Operands of attention, or their types, boxes, files. q, k, v, dout, out: any float dtype, any strides.
template <class T>
struct AttentionOperands {
  std::optional<T> q = {}, k = {}, v = {};
  std::optional<T> bias = {};  // any float dtype, broadcast to (B, H, Q, K); not for packed inputs
  std::optional<T> dout = {};  // shaped as out: requests gradients
  /// For gradients: out and lse of a forward pass. Both or neither; without them it is run again.
  std::optional<T> out = {}, lse = {};
  std::optional<T> dropout = {};  // bool, broadcast as a bias: the pairs that are kept
};
using AttentionArrays = AttentionOperands<ArrayView>;
using AttentionTypes = AttentionOperands<ArrayType>;

template <class F, class... Operands>
void for_each_operand(F&& f, Operands&&... operands) {
  f("q", operands.q...);
  f("k", operands.k...);
  f("v", operands.v...);
  f("bias", operands.bias...);
  f("dout", operands.dout...);
  f("out", operands.out...);
  f("lse", operands.lse...);
  f("dropout", operands.dropout...);
}

AttentionArrays operands_of(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                            const AttentionOptions& options);
AttentionTypes types_of(const AttentionArrays& arrays);

/// Of the passes over queries.
struct AttentionPasses {
  std::int64_t rows_without_key = 0;  // that the masks leave nothing to attend to
  /// The first of them: (entry, head, query within the entry); empty when there is none.
  Shape first_row_without_key;
  std::int64_t rows_not_finite = 0;  // queries whose lse came out as NaN or +∞, and the first of them
  Shape first_row_not_finite;
  std::vector<double> max_logits;  // of each query head, without sinks; −∞ where no pair attends
  double forward_seconds = 0, backward_seconds = 0;
};

struct AttentionWork : AttentionPasses {
  std::int64_t problems = 0;        // pairs of an entry and a query head
  std::int64_t distinct_masks = 0;  // that were read
  BlockShape block;
  std::int64_t dense_pairs = 0;     // of a query and a key of its entry
  std::int64_t allowed_pairs = 0;   // that the masks let attend
  std::int64_t computed_pairs = 0;  // in blocks that are not empty
  std::int64_t empty_blocks = 0;    // skipped
  std::int64_t partial_blocks = 0;  // whose mask is read pair by pair
  std::int64_t full_blocks = 0;
  std::int64_t rows = 0;  // queries
  /// Results of a query without a key, for reports.
  std::string without_key = "results are 0, their lse is -inf";
  /// The alignment of queries and keys, where a mask by positions applies to unequal numbers of them.
  std::set<std::string> alignment;
  double forward_flop = 0;              // 2 (D + Dv) an allowed pair
  std::optional<double> backward_flop;  // 2 (3 D + 2 Dv) an allowed pair, of gradients alone
  double mask_seconds = 0;              // reading masks and sorting blocks
};

namespace attn {
struct Plan;
}

/// Plan of attention or, with dout, of its gradients, from types, settings and cu_seqlens. Copies share the
/// masks once these are read. Throws Error{input} about the operand, with numbers and hint: ranks, lengths,
/// heads, dtypes, masks of another shape, cu_seqlens that begin above 0, decrease or do not end at the
/// tokens, a sequence longer than with its padding.
class AttentionPlan {
 public:
  AttentionPlan(const AttentionTypes& types, const AttentionSettings& settings);

  /// Forward: out, as q with v's last axis, and lse, (B, H, Q) or (H, Tq), in the arithmetic's dtype.
  /// Gradients: dq, dk, dv, with a bias dbias, and with sinks dsinks, shaped as their inputs.
  const std::vector<PlannedArray>& results() const;
  std::int64_t result_bytes() const;

  /// Workspace of run(), for the current number of threads.
  std::int64_t work_bytes() const;

  /// The part of the masks, while and after they are read.
  std::int64_t mask_bytes() const;

  /// The work of the plan. The masks are read by the first call of this or run().
  const AttentionWork& work() const;

  /// Of the forward pass, or of the backward pass alone; reads the masks as work() does.
  double flop() const;

  /// The masks of the settings, and after them those of segment ids.
  const MaskSet& masks() const;

  /// Names of the stored masks (n, Q, K) for n entries and as many heads, which are those of entries.
  const std::vector<std::string>& masks_of_either() const;

  /// Writes the results, in their order; any strides. Throws Error{input} for other types than planned,
  /// before anything is written.
  AttentionWork run(const AttentionArrays& arrays, const std::vector<MutableArrayView>& results,
                    const PairProgress& progress = {}) const;

  /// Whether keys and values can be sources of random access: queries of the forward pass are so few that keys
  /// are read once, in place.
  bool boxes_keys() const;
  /// The same, and the same bits, for such sources: each thread reads chunks of them as it computes, so that a
  /// paged or quantised cache is not held as a whole. `arrays`: without k and v. Throws Error{internal} where
  /// they cannot be.
  AttentionWork run(const AttentionArrays& arrays, const ArraySource& k, const ArraySource& v,
                    const std::vector<MutableArrayView>& results, const PairProgress& progress = {}) const;

  /// For the library's own modules.
  const attn::Plan& internal() const { return *plan_; }

 private:
  friend class AttentionDivision;
  std::shared_ptr<const attn::Plan> plan_;
};

Report describe(const AttentionPlan& plan);

Report describe(const AttentionWork& work);

struct Attention {
  Array out;  // shaped as q, with v's last axis
  Array lse;  // (B, H, Q) or (H, Tq); float32, float64 where the arithmetic is
  AttentionWork work;
};

struct AttentionGradients {
  Array dq, dk, dv;            // shaped as q, k, v
  std::optional<Array> dbias;  // of a bias: of its shape
  AttentionWork work;
  std::optional<Array> dsinks = std::nullopt;  // of sinks
};

/// A plan for these arrays, run. Errors are the plan's.
Attention attention(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                    const AttentionOptions& options = {});

struct AttentionSaved {
  ArrayView out;
  ArrayView lse;
};

/// The same for gradients. `saved` is what a forward pass has left; without it that is run again.
AttentionGradients attention_grad(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                                  const ArrayView& dout, const AttentionOptions& options = {},
                                  const std::optional<AttentionSaved>& saved = std::nullopt);

/// The identity whose gradient has another dtype. Forward: the input, bit for bit, whatever `dtype` is.
ArrayView identity_dtype_convert(const ArrayView& x, DType dtype);
/// The incoming gradient converted to `dtype`, to nearest even. Throws Error{input} for other than float
/// dtypes.
Array identity_dtype_convert_backward(const ArrayView& gradient, DType dtype);

}  // namespace ejk
