// Linear attention: a recurrence whose state is a matrix, for padded batches and packed sequences. Its settings are
// those of linear attention, retention, simple GLA, GLA, Mamba-2, DeltaNet, Gated DeltaNet and KDA.
//
// For each sequence and head a state S (K × V), from the initial one or 0, and for each token in order:
//   S ← D ∘ S               D = e^g: nothing, a number a head, or a number a channel (row of S)
//   u = β (v − δ Sᵀk)       δ = 1 with `delta`, else 0; β = 1 where there is none
//   S ← S + k uᵀ
//   o = scale · Sᵀq + skip · v
// Decays are g (ln), 2^decay (log2) or factors (linear). With a_log A or lower_bound L < 0 they are raw:
// g = −e^A softplus(G + dt_bias), or L σ(e^A (G + dt_bias)), A absent: e^A = 1. For Mamba-2 dt replaces decay
// and beta: dt + dt_bias, softplus of it with dt_softplus, clamped to dt_limit; g = −e^A dt, β = dt.
//
// An array of n heads serves m heads by blocks: head h uses ⌊h·n/m⌋. The state has HS heads, the most of k, v,
// decay, beta, dt and the initial state; the output has the more of HS and the queries' heads.
//
// Arithmetic is float32, float64 where any array of floats is, where subnormal results may be 0; sums of logs and
// activations are float64.
// Chunks of tokens are products of blocks, one token and non-finite chunks are computed as written above.
// Results depend on the instruction set, never on threads or on other sequences. Errors: Error{input} with the
// array, an index and a hint; Error{usage} for settings that exclude each other. Cost: 10 · 64 · 128² flop for
// 64 tokens of a head of K = V = 128; memory beside inputs and results O(threads · (64 + K)(K + V)).
// Source: Yang et al., Parallelizing Linear Transformers with the Delta Rule; Dao and Gu, Mamba-2 (SSD).
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/report.hpp"
#include "ejk/state_slots.hpp"

namespace ejk {

/// The order of axes; n heads of an array.
enum class LinearAttentionLayout {
  bshd,  // (B, S, n, K), gates (B, S, n)
  bhsd,  // (B, n, S, K), gates (B, n, S)
  thd,   // packed: (T, n, K), gates (T, n); or each with a leading axis of 1, which results then have, too
};
enum class DecaySpace { ln, log2, linear };
/// The last axes of states: (.., K, V) or (.., V, K).
enum class StateLayout { kv, vk };

std::string_view name_of(LinearAttentionLayout layout);
std::string_view name_of(DecaySpace space);
std::string_view name_of(StateLayout layout);

/// Operands, or their types or files: any float dtype of 16 bits or more, any strides.
template <class T>
struct LinearAttentionOperands {
  std::optional<T> q = {}, k = {}, v = {};  // of the layout; q and k of size K, v of V
  std::optional<T> decay = {};              // gates of the layout, or with K channels, or (n,): fixed
  std::optional<T> a_log = {};              // (n,)
  std::optional<T> dt_bias = {};            // (n,); for decays by channel also (n, K) or (n·K,)
  std::optional<T> beta = {};               // gates of the layout
  std::optional<T> dt = {};                 // gates of the layout
  std::optional<T> skip = {};               // (n,) or (n, V)
  std::optional<T> initial_state = {};      // (N, HS, K, V), or a pool (slots, HS, K, V)
};
using LinearAttentionArrays = LinearAttentionOperands<ArrayView>;
using LinearAttentionTypes = LinearAttentionOperands<ArrayType>;

/// Calls f(name, operand of each) for all operands.
template <class F, class... Operands>
void for_each_linear_operand(F&& f, Operands&&... operands) {
  f("q", operands.q...);
  f("k", operands.k...);
  f("v", operands.v...);
  f("decay", operands.decay...);
  f("a_log", operands.a_log...);
  f("dt_bias", operands.dt_bias...);
  f("beta", operands.beta...);
  f("dt", operands.dt...);
  f("skip", operands.skip...);
  f("initial_state", operands.initial_state...);
}

struct LinearAttentionSettings {
  LinearAttentionLayout layout = LinearAttentionLayout::bshd;
  IntegerArray cu_seqlens;  // (N + 1,), of thd alone
  DecaySpace decay_space = DecaySpace::ln;
  std::optional<double> lower_bound;   // L < 0: decays are raw
  std::optional<double> beta_sigmoid;  // c: beta is c · σ of what is given
  bool dt_softplus = false;
  std::optional<std::pair<double, double>> dt_limit;
  bool delta = false;
  std::optional<double> scale;  // absent: 1/√K
  bool l2norm = false;          // q and k become x / √(Σ x² + 1e-6)
  StateLayout state_layout = StateLayout::kv;
  StateSlots slots;              // of `initial_state`
  std::int64_t chunk_size = 64;  // of `states`, and of sums where it is below 64
  bool states = false;
  std::optional<DType> dtype, state_dtype;  // of out, and of states; a pool keeps its type
};

/// Of decays and inputs, for warnings.
struct LinearAttentionWork {
  double least_decay = std::numeric_limits<double>::infinity();     // logarithms as given
  double largest_decay = -std::numeric_limits<double>::infinity();  // the same
  double least_dt = std::numeric_limits<double>::infinity();        // after its activation
  double largest_beta_k = 0;                                        // β‖k‖², with delta
};

struct LinearAttention {
  Array out;          // of the queries' layout, HO heads of size V
  Array final_state;  // (N, HS, K, V), or a copy of the pool with the slots that are written
  std::optional<Array>
      states;  // before each chunk: (Σ⌈len/C⌉, HS, K, V) if packed, else (B, ⌈S/C⌉, HS, K, V)
  LinearAttentionWork work;
};

/// The largest differences of results from the recurrence in float64, token by token.
struct LinearAttentionCheck {
  struct Difference {
    double size = 0, allowed = 0;  // of the element furthest out of its tolerance, or nearest to it
    Shape index;                   // (sequence, head, token) of out, (sequence, head) of final_state
  };
  Difference out, final_state;
  bool passed() const { return out.size <= out.allowed && final_state.size <= final_state.allowed; }
};

/// What gradients begin with: of Σ out · dout + Σ final_state · dfinal_state.
template <class T>
struct LinearAttentionCotangents {
  std::optional<T> dout = {};          // shaped as out
  std::optional<T> dfinal_state = {};  // shaped as final_state; absent: 0
};

/// The largest differences of gradients from those in float64, token by token; `index` is of the element.
struct LinearAttentionGradCheck {
  struct Of {
    std::string name;  // "dq"
    LinearAttentionCheck::Difference difference;
  };
  std::vector<Of> differences;
  bool passed() const {
    for (const Of& d : differences)
      if (!(d.difference.size <= d.difference.allowed)) return false;
    return true;
  }
};

namespace recurrence {
struct LinearPlan;
struct LinearGradPlan;
}  // namespace recurrence

/// Plan from types, settings and the integer arrays.
class LinearAttentionPlan {
 public:
  LinearAttentionPlan(const LinearAttentionTypes& types, const LinearAttentionSettings& settings);

  /// The types of out, final_state and states.
  const ArrayType& out() const;
  const ArrayType& final_state() const;
  const std::optional<ArrayType>& states() const;
  /// Workspace of run(), for the current number of threads.
  std::int64_t work_bytes() const;

  /// Throws Error{input} for NaN in decay, beta or dt, and for a factor below 0.
  LinearAttention run(const LinearAttentionArrays& arrays) const;

  /// out within 2⁻¹⁷ (float64: 10⁻¹²) of the largest |out| of its sequence's head, final_state of its matrix,
  /// and half of a unit in the last place of their types.
  LinearAttentionCheck check(const LinearAttentionArrays& arrays, const LinearAttention& results) const;

  /// For the library's own modules.
  const recurrence::LinearPlan& internal() const { return *plan_; }

 private:
  std::shared_ptr<const recurrence::LinearPlan> plan_;
};

/// Plan of gradients, with respect to the operands as given. Arithmetic is float64 also where dout or dfinal_state is.
class LinearAttentionGradPlan {
 public:
  /// Gradients have the types of their operands, or all `grad_dtype`. Settings of results have no effect. Throws
  /// Error{usage} for slots, Error{input} about "dout" or "dfinal_state" for another shape.
  LinearAttentionGradPlan(const LinearAttentionTypes& types,
                          const LinearAttentionCotangents<ArrayType>& cotangents,
                          const LinearAttentionSettings& settings, std::optional<DType> grad_dtype = {});

  /// The types of the results, under the names of the operands that are given.
  const LinearAttentionTypes& gradients() const;
  /// Workspace of run(), for the current number of threads.
  std::int64_t work_bytes() const;

  /// Gradients in the shapes and layouts of the operands. In linear space those of factors; those of numbers that a
  /// limit of dt clamps are 0. Throws what the forward pass throws.
  LinearAttentionOperands<Array> run(const LinearAttentionArrays& arrays,
                                     const LinearAttentionCotangents<ArrayView>& cotangents) const;

  /// Each gradient within 2⁻¹⁵ (float64: 10⁻¹⁰) of its largest element, and half of a unit in the last place.
  LinearAttentionGradCheck check(const LinearAttentionArrays& arrays,
                                 const LinearAttentionCotangents<ArrayView>& cotangents,
                                 const LinearAttentionOperands<Array>& gradients) const;

  /// For the library's own modules.
  const recurrence::LinearGradPlan& internal() const { return *plan_; }

 private:
  std::shared_ptr<const recurrence::LinearGradPlan> plan_;
};

LinearAttentionTypes types_of(const LinearAttentionArrays& arrays);
LinearAttentionCotangents<ArrayType> types_of(const LinearAttentionCotangents<ArrayView>& arrays);

/// A plan for these arrays, run. Errors are the plan's.
LinearAttention linear_attention(const LinearAttentionArrays& arrays,
                                 const LinearAttentionSettings& settings = {});

/// The same for gradients.
LinearAttentionOperands<Array> linear_attention_grad(const LinearAttentionArrays& arrays,
                                                     const LinearAttentionCotangents<ArrayView>& cotangents,
                                                     const LinearAttentionSettings& settings = {},
                                                     std::optional<DType> grad_dtype = {});

Report describe(const LinearAttentionPlan& plan);
Report describe(const LinearAttentionGradPlan& plan);
/// Warnings alone.
Report describe(const LinearAttentionWork& work);
Report describe(const LinearAttentionCheck& check);
Report describe(const LinearAttentionGradCheck& check);

}  // namespace ejk
