// Linear attention as right kernels in 16 bits compute it: how far they may be from the recurrence is measured on it.
// Kernels that it follows: fla's chunk_delta_h, chunk_o, wy_fast and chunk_intra.
// tests: tests/verdict/recurrence/test_rounded_chunks.cpp
#pragma once

#include <cstdint>
#include <vector>

#include "core/workspace.hpp"
#include "ejk/recurrence_check.hpp"
#include "matmul/packed.hpp"
#include "recurrence/linear_head.hpp"
#include "recurrence/linear_plan.hpp"
#include "recurrence/linear_rows.hpp"

namespace ejk::recurrence_verdict {

/// The chunk form with explicit T = (1 + A)⁻¹ for one sequence and head of the state at a time, by one thread, in memory
/// of its own. Arithmetic, sums of logs and the carried state are float32; rounded to the type of factors are
/// q, k, v, T, βV, β e^G K, U = T βV, W = T β e^G K, the state as a chunk reads it, (QKᵀ) ∘ Γ, decayed keys and u.
class RoundedChunks {
 public:
  /// Chunks of each sequence have `chunk` tokens: 1 to the longest contraction of a micro-kernel (kc, 256).
  RoundedChunks(const recurrence::LinearPlan& plan, const recurrence::LinearInputs& inputs,
                FactorType factors, std::int64_t chunk);

  /// As recurrence::LinearHead::run(), errors too: rows of out by head and chunk, the final state; no states of
  /// chunks. Where inputs are not finite, more of the sequence's head may be NaN than in the recurrence.
  void run(std::int64_t sequence, std::int64_t head, const recurrence::LinearSink<float>& sink);

 private:
  using Rows = recurrence::Rows<float>;

  void reserve();
  void round(const float* from, std::int64_t count, void* to) const;
  void round_rows(const Rows& rows, std::int64_t count, std::int64_t size) const;
  kernels::StridedMatrix rounded(const Rows& rows, std::int64_t count, std::int64_t size) const;

  void step(std::int64_t first, std::int64_t count, const recurrence::LinearSink<float>& sink);
  void load(std::int64_t first, std::int64_t count);
  void decay_of_heads(std::int64_t count);
  void decay_of_channels(std::int64_t count);
  void decays_in_block(std::int64_t begin, std::int64_t end);
  void scores(const Rows& rows, std::int64_t count, const Rows& to);
  void scores_of_channels(const Rows& rows, std::int64_t begin, std::int64_t end, const Rows& to);
  void invert(std::int64_t count);
  void correct(std::int64_t count);
  void out_of_head(std::int64_t out_head, std::int64_t first, std::int64_t count);
  void update_state(std::int64_t count);

  /// to = left · right, of rows × (first `columns` of) `right`.
  void product(const matmul::PackedA& left, std::int64_t rows, const matmul::PackedB& right,
               std::int64_t columns, const Rows& to) const;
  /// to += lower triangular left · right.
  void add_lower(const matmul::PackedA& left, std::int64_t rows, const matmul::PackedB& right,
                 std::int64_t columns, const Rows& to) const;
  /// The pairs (i, j ≤ i) of the rows [begin, i) of a block: the first of row i.
  float* pairs_of(std::int64_t begin, std::int64_t i) const;

  bool by_channel() const { return plan_.decay == recurrence::DecayKind::channel; }
  std::int64_t heads_of_state() const { return plan_.out_heads / plan_.state_heads; }

  const recurrence::LinearPlan& plan_;
  const recurrence::LinearInputs& in_;
  recurrence::LinearRows<float> rows_;
  FactorType factors_;
  const kernels::Gemm& gemm_;
  std::int64_t keys_, values_, most_;
  core::Workspace memory_;
  Rows state_;  // (K, V)
  float *turned_ = nullptr, *rounded_ = nullptr;
  Rows k_, q_, v_, u_, out_, work_;             // (tokens, K or V)
  Rows key_scores_, scores_, inverse_, gamma_;  // (tokens, tokens)
  Rows sums_, whole_, growth_;                  // G, e^G, e^(G − G before the block) by channel
  float *head_sums_ = nullptr, *head_whole_ = nullptr, *head_end_ = nullptr;  // G, e^G, e^(G of the last − G)
  float* pairs_ = nullptr;  // k_j e^(G_i − G_j) of pairs within blocks
  double *gates_ = nullptr, *beta_ = nullptr;
  matmul::PackedA rows_a_, lower_a_, keys_a_;
  matmul::PackedB state_b_, u_b_, k_b_;
  std::vector<matmul::PackedB> keys_b_;  // of each block
};

}  // namespace ejk::recurrence_verdict
