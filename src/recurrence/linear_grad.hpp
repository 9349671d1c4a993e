// Gradients of linear attention: the plan, results that several heads add to, and the backward pass of a sequence's head.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "matmul/packed.hpp"
#include "recurrence/linear_head.hpp"
#include "recurrence/linear_plan.hpp"
#include "recurrence/linear_rows.hpp"

namespace ejk::recurrence {

struct LinearGradPlan {
  LinearGradPlan(const LinearAttentionTypes& types, const LinearAttentionCotangents<ArrayType>& cotangents,
                 const LinearAttentionSettings& settings, std::optional<DType> grad_dtype);

  LinearPlan forward;  // its arithmetic is that of the gradients, too
  LinearAttentionTypes gradients;
  std::int64_t groups = 1;  // of state heads that share no operand with others
  std::int64_t parts = 1;   // of a group, whose sums are added last

  std::int64_t heads_of_part() const { return forward.state_heads / groups / parts; }
};

/// In one form.
struct LinearCotangents {
  LinearCotangents(const LinearPlan& plan, const LinearAttentionCotangents<ArrayView>& arrays);

  ArrayView dout;                         // (entries, HO, tokens, V)
  std::optional<ArrayView> dfinal_state;  // (N, HS, K, V)
};

/// A gradient of four axes: rows of heads. Where several heads of a part add to one, sums are Real until finish().
template <class Real>
class GradientRows {
 public:
  /// `form`: a view as (entries, heads, tokens, size).
  template <class Form>
  GradientRows(const ArrayType& type, std::int64_t parts, bool is_shared, const Form& form)
      : result_(type.dtype, type.shape), view_(form(result_.view())) {
    if (!is_shared) return;
    Shape shape = type.shape;
    shape.insert(shape.begin(), parts);
    sums_.emplace(dtype_of<Real>(), std::move(shape));
    view_ = form(sums_->view()[0]);
  }

  /// Adds `count` rows of `size` numbers of a head, which `part` alone writes at that time.
  template <class From>
  void add(std::int64_t part, std::int64_t entry, std::int64_t head, std::int64_t first, std::int64_t count,
           const From* rows, std::int64_t stride, std::int64_t size);
  Array finish();

 private:
  Array result_;
  std::optional<Array> sums_;  // (parts, ..)
  ArrayView view_;
};

/// Gradients while they are computed. Numbers of heads are sums over tokens in float64.
template <class Real>
struct LinearGradients {
  explicit LinearGradients(const LinearGradPlan& all);
  LinearAttentionOperands<Array> finish();

  const LinearGradPlan& plan;
  GradientRows<Real> q, k, v;
  std::optional<GradientRows<Real>> gate, beta, initial_state;
  std::vector<double> bias;  // (N, HS, width): also of fixed decays
  std::vector<double> rate;  // (N, HS)
  std::vector<double> skip;  // (N, HO, V)
};

/// A thread's computation. Its buffers are in the thread's workspace.
template <class Real>
class LinearGradHead {
 public:
  LinearGradHead(const LinearGradPlan& plan, const LinearInputs& inputs, const LinearCotangents& cotangents,
                 LinearForm form);
  void run(std::int64_t sequence, std::int64_t head, LinearGradients<Real>& to);

 private:
  void reserve();
  bool load(std::int64_t block);
  bool load_queries(std::int64_t out_head, std::int64_t first, std::int64_t count);

  void step(std::int64_t t);
  void backward_by_tokens();
  void token_backward(std::int64_t t, const Rows<Real>& before, const Rows<Real>& after);

  void set_decays();
  void set_decays_of_channels();
  const Rows<Real>& grown(const Rows<Real>& rows);
  const Rows<Real>& weakened(const Rows<Real>& rows);
  void decay_state(const Rows<Real>& state);

  void product(const matmul::PackedA& left, const matmul::PackedB& right, std::int64_t columns,
               const Rows<Real>& to) const;
  void add_triangle(bool is_lower, const Rows<Real>& left, const matmul::PackedB& right, std::int64_t columns,
                    const Rows<Real>& to);
  void add_outer(const Rows<Real>& left, const matmul::PackedB& right, const Rows<Real>& state);
  void set_scores(const Rows<Real>& rows, bool is_strict);
  void set_u();
  void solve();
  void solve_transposed();
  void advance(std::int64_t block, bool is_last);
  void begin_from_state();
  void read_by(const Rows<Real>& x, const Rows<Real>& y, bool is_strict);
  void pairs_of_heads(const Rows<Real>& x);
  void pairs_of_channels(const Rows<Real>& x);
  void finish_decays();
  void backward_in_products();

  void add_skip(std::int64_t out_head, std::int64_t t, std::int64_t count);
  void pass_norm(const ArrayView& of, std::int64_t head, std::int64_t first, std::int64_t count,
                 const double* norms, const Rows<Real>& gradients) const;
  void emit_queries(std::int64_t out_head, std::int64_t first, std::int64_t count);
  void emit();
  void backward(std::int64_t block);

  Rows<Real> pair(std::int64_t row) const { return {pairs_[row * (row + 1) / 2], pairs_.stride}; }
  Real* kept_state(std::int64_t block) { return kept_states_.data() + block % kept_ * keys_ * values_; }
  bool by_channel() const { return plan_.decay == DecayKind::channel; }
  std::int64_t heads_of_state() const { return plan_.out_heads / plan_.state_heads; }

  const LinearGradPlan& grad_;
  const LinearPlan& plan_;
  const LinearInputs& in_;
  const LinearCotangents& from_;
  LinearRows<Real> rows_;
  LinearForm form_;
  const kernels::Gemm& gemm_;
  std::int64_t keys_, values_, width_, tile_rows_;
  std::int64_t most_;  // tokens of a block
  std::int64_t kept_;  // blocks whose states are kept at a time
  LinearGradients<Real>* to_ = nullptr;
  std::int64_t sequence_ = 0, part_ = 0, first_ = 0, count_ = 0;  // first_ and count_: of the block
  matmul::ScratchLayout memory_;

  Rows<Real> state_, dstate_;  // (K, V); the state is the running one, or a kept one
  Real *running_state_ = nullptr, *turned_ = nullptr;
  Rows<Real> k_, q_, v_, dout_;
  Rows<Real> e_, u_;               // v − δ Sᵀk, and β times that
  Rows<Real> du_, p_, dv_;         // p: −β du, which k reads with
  Rows<Real> dx_, dk_;             // dx of the rows that read
  Rows<Real> scores_, m_, gamma_;  // (tokens, tokens)
  Rows<Real> work_;
  Real *from_start_ = nullptr, *to_end_ = nullptr;  // of heads: e^G, e^(G of the last − G)
  Rows<Real> steps_, growth_, later_;               // of channels: e^g, e^G, e^(G of the last − G)
  Rows<Real> pairs_;                                // k_j e^(G_i − G_j) for j ≤ i, row by row
  Rows<Real> sums_;                                 // sums over rows i ≥ t of what reads k_j
  Rows<Real> reads_, writes_, ddecay_;              // of channels: x dx, k dk of states; gradients of e^g
  double *gates_ = nullptr, *beta_ = nullptr, *g_ = nullptr, *total_ = nullptr;
  double *dgates_ = nullptr, *dbeta_ = nullptr, *read_ = nullptr, *write_ = nullptr, *states_ = nullptr;
  double *key_norms_ = nullptr, *query_norms_ = nullptr;
  matmul::PackedA rows_of_keys_, rows_of_values_, by_tokens_;
  matmul::PackedB state_b_, turned_state_b_, keys_b_, k_b_, x_b_, turned_u_b_, u_b_, y_b_;
  std::vector<Real> kept_states_, kept_rows_, checkpoints_, token_states_;
};

}  // namespace ejk::recurrence
