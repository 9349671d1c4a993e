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
// share a key/value head. dbias is P · (dP − δ), as the bias is added after the cap, summed over the axes
// that the bias is broadcast over. A query with no key to attend to, be it masked or its key sequence empty,
// has out = 0 and lse = −∞ and adds 0 to every gradient.
//
// Arithmetic: float32; float64 where one of q, k, v (or dout) is. Inputs are converted before, results once
// at the end; weights are never rounded to 16 bits. (Products of two bfloat16, which are exact in float32,
// may flush subnormal ones to 0, see grouped_matmul.hpp.) Elements of masked pairs have no influence, NaN
// included; a pair whose score is −∞ counts as masked. A bias is read in the arithmetic's type, and weights
// below e^-87 (float64: e^-708) of a row's largest are 0. The blocks of keys (of the block shape's length, up
// to 256) decide the order of sums. A forward pass over few queries (32 of an entry's head, or of all heads
// that share a key) processes key ranges whose lengths follow from the shapes instead, and merges them in
// order. Besides shapes and dtypes only the instruction set decides, so any number of threads gives the same
// bits. Source: scaled dot-product attention with an online softmax; src/attention/reference.cpp is the plain
// form.
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
#include "ejk/integer_array.hpp"
#include "ejk/mask.hpp"
#include "ejk/mask_info.hpp"
#include "ejk/mask_set.hpp"
#include "ejk/report.hpp"

namespace ejk {

/// The order of axes. B batch entries, H query heads, G key/value heads, of which H is a multiple (query
/// head h uses h / (H/G)), Q queries, K keys, D the heads' size (at least 1), Dv that of values.
enum class AttentionLayout {
  bshd,  // q (B, Q, H, D), k (B, K, G, D), v (B, K, G, Dv), out (B, Q, H, Dv)
  bhsd,  // q (B, H, Q, D), k (B, G, K, D), v (B, G, K, Dv), out (B, H, Q, Dv)
  thd,   // packed: q (Tq, H, D), k (Tk, G, D), v (Tk, G, Dv), out (Tq, H, Dv)
};

/// "bshd", "bhsd", "thd".
std::string_view name_of(AttentionLayout layout);

class Communicator;  // communicator.hpp

/// Parameters of attention.
struct AttentionSettings {
  AttentionLayout layout = AttentionLayout::bshd;
  std::optional<double> scale;                        // finite
  std::optional<double> softcap;                      // c > 0
  std::vector<HeadMasks> masks;                       // a pair attends where all of them allow it
  std::shared_ptr<const ArraySource> q_segment_ids;   // (B, Q), packed (Tq,): ids ≤ 0 are padding
  std::shared_ptr<const ArraySource> kv_segment_ids;  // (B, K), packed (Tk,); absent: those of the queries
  /// Packed inputs: sequence i is queries cu_seqlens_q[i] … and keys cu_seqlens_kv[i] …; 0 first, never
  /// decreasing, the tokens last. Absent for keys: those of the queries.
  IntegerArray cu_seqlens_q;
  IntegerArray cu_seqlens_kv;
  /// Packed inputs with padding after their sequences, as in TransformerEngine's THD layout: (n + 1,),
  /// and sequence i begins at token cu_seqlens_q_padded[i]; cu_seqlens_q[i + 1] − cu_seqlens_q[i] tokens of
  /// those before the next one are its own. 0 first, never decreasing, the tokens at most at last. Padding is
  /// never read; of its queries out is 0 and lse −∞, and all gradients there are 0. Absent for keys: those of
  /// the queries.
  IntegerArray cu_seqlens_q_padded;
  IntegerArray cu_seqlens_kv_padded;
  std::optional<BlockShape> block;  // queries × keys of a tile; absent: chosen
  std::optional<DType> dtype;       // of out; of the gradients. Absent: of q; each of its input
  /// Gradients are cast to this at the end, as identity_dtype_convert does. Without `dtype` they are rounded
  /// once, to this.
  std::optional<DType> grad_dtype;
  /// Ranks that read stored masks together: all of them then make the plan's first call that reads masks
  /// (work(), run(), check(), an AttentionDivision) at the same time. Null: each process by itself.
  Communicator* comm = nullptr;
};

/// Called with the pairs done and the number of all; from any thread, one call at a time.
using PairProgress = std::function<void(std::int64_t done, std::int64_t all)>;

struct AttentionOptions : AttentionSettings {
  std::optional<ArrayView> bias;  // any float dtype, broadcast to (B, H, Q, K); not for packed inputs
  PairProgress progress;
};

/// The arrays that attention reads, or something of each: types, boxes, files. q, k, v, dout, out: float16,
/// bfloat16, float32 or float64, any strides.
template <class T>
struct AttentionOperands {
  std::optional<T> q = {}, k = {}, v = {};
  std::optional<T> bias = {};  // any float dtype, broadcast to (B, H, Q, K); not for packed inputs
  std::optional<T> dout = {};  // shaped as out: requests gradients
  /// For gradients: out and lse of a forward pass. Both or neither; without them it is run again.
  std::optional<T> out = {}, lse = {};
};
using AttentionArrays = AttentionOperands<ArrayView>;
using AttentionTypes = AttentionOperands<ArrayType>;

/// f(name, member of each of `operands`...) for every operand, in this order.
template <class F, class... Operands>
void for_each_operand(F&& f, Operands&&... operands) {
  f("q", operands.q...);
  f("k", operands.k...);
  f("v", operands.v...);
  f("bias", operands.bias...);
  f("dout", operands.dout...);
  f("out", operands.out...);
  f("lse", operands.lse...);
}

AttentionTypes types_of(const AttentionArrays& arrays);

/// Work of a plan, planned or done, over all entries and query heads.
struct AttentionWork {
  std::int64_t problems = 0;        // pairs of an entry and a query head
  std::int64_t distinct_masks = 0;  // that were read
  BlockShape block;
  std::int64_t dense_pairs = 0;     // of a query and a key of its entry
  std::int64_t allowed_pairs = 0;   // that the masks let attend
  std::int64_t computed_pairs = 0;  // in blocks that are not empty
  std::int64_t empty_blocks = 0;    // skipped
  std::int64_t partial_blocks = 0;  // whose mask is read pair by pair
  std::int64_t full_blocks = 0;
  std::int64_t rows = 0;              // queries
  std::int64_t rows_without_key = 0;  // that the masks leave nothing to attend to
  /// The first of them: (entry, head, query within the entry); empty when there is none.
  Shape first_row_without_key;
  std::int64_t rows_not_finite = 0;  // queries whose lse came out as NaN or +∞, and the first of them
  Shape first_row_not_finite;
  /// The alignment of queries and keys, where a mask by positions applies to unequal numbers of them.
  std::set<std::string> alignment;
  double forward_flop = 0;              // 2 (D + Dv) an allowed pair
  std::optional<double> backward_flop;  // 2 (3 D + 2 Dv) an allowed pair, of gradients alone
  double mask_seconds = 0;              // reading masks and sorting blocks
  double forward_seconds = 0;
  double backward_seconds = 0;
};

/// A mask that another implementation may have used, and its name in reports.
struct TriedMask {
  std::string text;
  HeadMasks masks;
};

struct AttentionCheck;  // attention_check.hpp
struct Against;         // against.hpp
enum class Explain;     // against.hpp

namespace attn {
struct Plan;
}

/// Attention, or with dout its gradients, before the elements are there: made once from types, settings and
/// cu_seqlens. It describes the results and their costs, computes and checks them. Copies share the masks
/// once these are read.
///
/// Throws Error{input}, with the numbers and a hint where there is a way out: ranks, lengths that do not
/// match, H no multiple of G, dtypes, masks of another shape, cu_seqlens that begin above 0, decrease or do
/// not end at the tokens, a sequence that is longer than with its padding. The subject of an error in one of
/// the arrays is its name in AttentionOperands.
class AttentionPlan {
 public:
  AttentionPlan(const AttentionTypes& types, const AttentionSettings& settings);

  /// In C order. Forward: out, as q with v's last axis, and lse, (B, H, Q) or (H, Tq), in the arithmetic's
  /// dtype. Gradients: dq, dk, dv, shaped as q, k, v, and with a bias dbias, shaped as it.
  const std::vector<PlannedArray>& results() const;
  std::int64_t result_bytes() const;

  /// Workspace of run(), for the current number of threads, and of check().
  std::int64_t work_bytes() const;
  std::int64_t check_bytes() const;

  /// The part of the masks, while and after they are read.
  std::int64_t mask_bytes() const;

  /// The work of the plan. The masks are read by the first call of this, run() or check(), and by no other.
  const AttentionWork& work() const;

  /// Of the forward pass, or of the backward pass alone; reads the masks as work() does.
  double flop() const;

  /// The masks of the settings, and after them those of segment ids.
  const MaskSet& masks() const;

  /// Writes the results, in their order. All arrays have the types that were planned for; strides may be
  /// others. Throws Error{input} for other types. Masks are read before anything is written.
  AttentionWork run(const AttentionArrays& arrays, const std::vector<MutableArrayView>& results,
                    const PairProgress& progress = {}) const;

  /// `results` are what run() gave, or another implementation's, of any float dtype; out and lse of `arrays`
  /// are not read. Tolerances: attention_check.hpp.
  AttentionCheck check(const AttentionArrays& arrays, const std::vector<ArrayView>& results) const;

  /// `given` are another implementation's results for the same arguments, in the order of results(), of any
  /// float dtype; those that are absent are not compared. `own` are what run() gave. `weights`: the type that
  /// P and dS were rounded to before they were multiplied, float32, bfloat16 or float16; absent:
  /// weights_dtype(). Every element is compared. With Explain::yes known faults are tried where some are out
  /// of tolerance, and before them the masks of `tried`, in place of those of the settings. `tiles`: two axes
  /// of the picture, by name; absent: queries, or keys, and heads. Throws Error{input}, with the name of the
  /// result, for results of another shape.
  Against compare(const AttentionArrays& arrays, const std::vector<ArrayView>& own,
                  const std::vector<std::optional<ArrayView>>& given, Explain explain,
                  std::optional<DType> weights = std::nullopt, const std::vector<TriedMask>& tried = {},
                  const std::vector<std::string>& tiles = {}) const;
  /// That of v where it has 16 bits and arithmetic is float32; else float32.
  DType weights_dtype() const;
  /// Workspace of compare().
  std::int64_t compare_bytes(Explain explain) const;

 private:
  friend Report describe(const AttentionPlan& plan);
  friend class AttentionDivision;
  std::shared_ptr<const attn::Plan> plan_;
};

/// Layout, shapes, dtypes, heads and results.
Report describe(const AttentionPlan& plan);

/// Pairs, blocks and operations.
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
/// Backward: the gradient that comes in, converted to `dtype`, to nearest, ties to even, overflow to
/// infinities. Both dtypes are floats; Error{input} otherwise.
Array identity_dtype_convert_backward(const ArrayView& gradient, DType dtype);

}  // namespace ejk
