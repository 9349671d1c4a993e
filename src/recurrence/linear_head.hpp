// The recurrence of linear attention for one sequence and head of the state, in chunks or token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "matmul/packed.hpp"
#include "recurrence/linear_plan.hpp"
#include "recurrence/linear_rows.hpp"

namespace ejk::recurrence {

/// Receives results; rows of size V, states (K, V). Chunks are counted over all sequences. Empty ones are skipped.
template <class Real>
struct LinearSink {
  std::function<void(std::int64_t out_head, std::int64_t token, std::int64_t count, const Real* rows)> out;
  std::function<void(std::int64_t chunk, const Real* state)> chunk_state;
  std::function<void(std::int64_t slot, const Real* state)> final_state;
};

/// `tokens` is the definition: float64 with it is the reference.
enum class LinearForm { chunks, tokens };

/// A thread's computation. Its buffers are in the thread's workspace.
template <class Real>
class LinearHead {
 public:
  LinearHead(const LinearPlan& plan, const LinearInputs& inputs, LinearForm form);

  /// Of a sequence that is no padding. Decays and keys are added to work(). Throws Error{input} for NaN in decay,
  /// beta or dt, and for a factor below 0.
  void run(std::int64_t sequence, std::int64_t head, const LinearSink<Real>& sink);

  const LinearAttentionWork& work() const { return rows_.work(); }
  std::int64_t workspace_bytes() const { return memory_.bytes(); }

 private:
  void reserve();
  bool load(std::int64_t first, std::int64_t count);
  void note_keys(std::int64_t count);

  void step_tokens(std::int64_t first, std::int64_t count, const LinearSink<Real>& sink);
  void step_chunk(std::int64_t first, std::int64_t count, const LinearSink<Real>& sink);
  void decay_of_heads(std::int64_t count);
  void decay_of_channels(std::int64_t count);
  void block_of_channels(std::int64_t block, std::int64_t begin, std::int64_t end);
  void scores(const Rows<Real>& rows, std::int64_t count, const Rows<Real>& to);
  void exact_diagonal(const Rows<Real>& rows, std::int64_t begin, std::int64_t end,
                      const Rows<Real>& to) const;
  void times_state(std::int64_t count, const Rows<Real>& to);
  void solve(std::int64_t count);
  void update_state(std::int64_t count);
  void add_skip(std::int64_t out_head, std::int64_t count) const;
  std::int64_t heads_of_state() const { return plan_.out_heads / plan_.state_heads; }

  const LinearPlan& plan_;
  const LinearInputs& in_;
  LinearRows<Real> rows_;
  LinearForm form_;
  const kernels::Gemm& gemm_;
  std::int64_t keys_, values_, width_, most_, block_;
  matmul::ScratchLayout memory_;
  Rows<Real> state_;                        // (K, V)
  Real* turned_ = nullptr;                  // as it is stored where that is (V, K)
  Rows<Real> k_, q_, v_, u_, out_;          // u also the right side of its system
  Rows<Real> key_scores_, scores_, gamma_;  // (tokens, tokens); gamma is e^(G_i − G_j)
  Rows<Real> growth_, later_,
      work_rows_;      // (tokens, K): e^(G_i − G of the block's start), k e^(G of a later row − G_i)
  Rows<Real> steps_;   // (tokens, K): e^g
  Rows<Real> starts_;  // (blocks + 1, K): e^(G before each block), and of all
  Real *from_start_ = nullptr, *to_end_ = nullptr;  // of heads: e^G, e^(G of the last − G)
  double *gates_ = nullptr, *sums_ = nullptr, *beta_ = nullptr,
         *total_ = nullptr;     // G of a chunk
  std::vector<bool> is_exact_;  // blocks whose diagonal is computed without quotients
  matmul::PackedA rows_a_, lower_a_, keys_a_;
  matmul::PackedB state_b_, u_b_;
  std::vector<matmul::PackedB> keys_b_;
};

}  // namespace ejk::recurrence
