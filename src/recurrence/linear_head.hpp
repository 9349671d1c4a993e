// The recurrence of linear attention for one sequence and head of the state, in chunks or token by token.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "matmul/packed.hpp"
#include "recurrence/linear_plan.hpp"

namespace ejk::recurrence {

/// to (columns × rows) = from (rows × columns) transposed, in blocks that stay in the first-level cache.
template <class Real>
void transpose(const Real* from, std::int64_t rows, std::int64_t columns, Real* to) {
  constexpr std::int64_t kBlock = 16;
  for (std::int64_t r = 0; r < rows; r += kBlock)
    for (std::int64_t c = 0; c < columns; c += kBlock)
      for (std::int64_t i = r; i < std::min(rows, r + kBlock); ++i)
        for (std::int64_t j = c; j < std::min(columns, c + kBlock); ++j)
          to[j * rows + i] = from[i * columns + j];
}

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

  const LinearAttentionWork& work() const { return work_; }
  std::int64_t workspace_bytes() const { return memory_.bytes(); }

 private:
  struct Rows {
    Real* data = nullptr;
    std::int64_t stride = 0;
    Real* operator[](std::int64_t row) const { return data + row * stride; }
    kernels::StridedMatrix matrix() const {
      constexpr auto kSize = static_cast<std::int64_t>(sizeof(Real));
      return {data, dtype_of<Real>(), stride * kSize, kSize};
    }
  };

  void reserve();
  void load_state(std::int64_t slot);
  void load_rows(const ArrayView& from, std::int64_t head, std::int64_t first, std::int64_t count,
                 Real factor, const Rows& to, std::int64_t size) const;
  void load_queries(std::int64_t out_head, std::int64_t first, std::int64_t count);
  void load_gates(std::int64_t first, std::int64_t count);
  void load_beta(std::int64_t first, std::int64_t count);
  void activate(std::int64_t first, std::int64_t count);
  [[noreturn]] void refuse(bool is_beta, std::int64_t token, std::int64_t channel, double value) const;
  void normalize(const Rows& rows, std::int64_t count) const;
  bool load(std::int64_t first, std::int64_t count);
  void note_keys(std::int64_t count);

  void step_tokens(std::int64_t first, std::int64_t count, const LinearSink<Real>& sink);
  void step_chunk(std::int64_t first, std::int64_t count, const LinearSink<Real>& sink);
  void decay_of_heads(std::int64_t count);
  void decay_of_channels(std::int64_t count);
  void block_of_channels(std::int64_t block, std::int64_t begin, std::int64_t end);
  void scores(const Rows& rows, std::int64_t count, const Rows& to);
  void exact_diagonal(const Rows& rows, std::int64_t begin, std::int64_t end, const Rows& to) const;
  void times_state(std::int64_t count, const Rows& to);
  void solve(std::int64_t count);
  void update_state(std::int64_t count);
  void add_skip(std::int64_t out_head, std::int64_t count) const;
  void exponentials(const double* x, std::int64_t count, Real* to) const;

  template <class F>
  void for_groups(std::int64_t rows, F&& f) const {
    for (std::int64_t r = 0, g = 0; r < rows; r += gemm_.mr, ++g) f(g, r, std::min(gemm_.mr, rows - r));
  }
  std::int64_t heads_of_state() const { return plan_.out_heads / plan_.state_heads; }

  const LinearPlan& plan_;
  const LinearInputs& in_;
  LinearForm form_;
  const kernels::Gemm& gemm_;
  std::int64_t keys_, values_, width_, most_, block_;
  matmul::ScratchLayout memory_;
  Rows state_, turned_;               // (K, V), and as it is stored where that is (V, K)
  Rows k_, q_, v_, u_, out_;          // u also the right side of its system
  Rows key_scores_, scores_, gamma_;  // (tokens, tokens); gamma is e^(G_i − G_j)
  Rows growth_, later_,
      work_rows_;  // (tokens, K): e^(G_i − G of the block's start), k e^(G of a later row − G_i)
  Rows steps_;     // (tokens, K): e^g
  Rows starts_;    // (blocks + 1, K): e^(G before each block), and of all
  Real *from_start_ = nullptr, *to_end_ = nullptr;  // of heads: e^G, e^(G of the last − G)
  double *gates_ = nullptr, *sums_ = nullptr, *beta_ = nullptr,
         *total_ = nullptr;     // G of a chunk
  std::vector<bool> is_exact_;  // blocks whose diagonal is computed without quotients
  matmul::PackedA rows_a_, lower_a_, keys_a_;
  matmul::PackedB state_b_, u_b_;
  std::vector<matmul::PackedB> keys_b_;
  Sequence sequence_;
  std::int64_t head_ = 0;
  LinearAttentionWork work_;
};

}  // namespace ejk::recurrence
