// Gradients of a sequence's head. With dS of the state behind a block, du = dSᵀ k of each token, p = −β du, and rows
// that read, (x, y) = (q, dout) and with the delta rule (k, p), a block is, as in linear_head.cpp,
//   du = e^(G_last − G) k dS + ((q kᵀ) ∘ Γ)ᵀ dout + ((k kᵀ) ∘ Γ)ᵀ p,  dβ = du·e,  dv = β du
//   dx = e^G y Sᵀ + M k  and  dk += Mᵀ x  with M = (y uᵀ) ∘ Γ,  dk += e^(G_last − G) u dSᵀ
//   dS ← e^(G_last) dS + Σ (e^G x) yᵀ
// The gradient of g_t is the sum of all pairs (i, j) of a row that reads and one that writes with i ≥ t > j, the states
// before and behind the block among them: sums of products that contain e^(g_t), not differences of larger ones.
// Decays by channel have blocks of a tile's rows, in which k_j e^(G_i − G_j) is a row of its own for each pair.
// States before blocks are kept of a stretch of blocks; those of earlier ones are computed again from checkpoints.
// tests: tests/recurrence/test_linear_grad.cpp
#include <algorithm>
#include <cmath>

#include "core/checked.hpp"
#include "core/elements.hpp"
#include "recurrence/linear_grad.hpp"

namespace ejk::recurrence {

namespace {

constexpr std::int64_t kFewest = 4;            // tokens of a block of products
constexpr std::int64_t kKeptBytes = 16 << 20;  // of states before blocks
constexpr double kMostGrowth = 80;             // of decays of heads: quotients of e^G are finite
constexpr double kLeastFactor = -60;           // gradients of larger factors are quotients

template <class Real>
Real sum_of(const Real* x, std::int64_t count) {
  Real sums[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (std::int64_t l = 0; l < 8; ++l) sums[l] += x[i + l];
  for (; i < count; ++i) sums[0] += x[i];
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

// to = a ∘ b
template <class Real>
void multiply(const Real* a, const Real* b, std::int64_t count, Real* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = a[i] * b[i];
}
template <class Real>
void add_products(const Real* a, const Real* b, std::int64_t count, Real* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] += a[i] * b[i];
}
template <class Real>
void scale(Real* x, Real factor, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) x[i] *= factor;
}

}  // namespace

template <class Real>
LinearGradHead<Real>::LinearGradHead(const LinearGradPlan& plan, const LinearInputs& inputs,
                                     const LinearCotangents& cotangents, LinearForm form)
    : grad_(plan),
      plan_(plan.forward),
      in_(inputs),
      from_(cotangents),
      rows_(plan.forward, inputs),
      form_(form),
      gemm_(matmul::gemm_of<Real>()),
      keys_(plan_.key_size),
      values_(plan_.value_size),
      width_(plan_.decay_width()),
      tile_rows_(std::max<std::int64_t>(1, 16 / gemm_.mr) * gemm_.mr),
      most_(by_channel() ? std::min(plan_.most_tokens(), tile_rows_) : plan_.most_tokens()),
      kept_(std::max<std::int64_t>(
          8, kKeptBytes / (static_cast<std::int64_t>(sizeof(Real)) * values_ * (keys_ + most_)))),
      rows_of_keys_(gemm_, gemm_.mr, keys_),
      rows_of_values_(gemm_, gemm_.mr, values_),
      by_tokens_(gemm_, gemm_.mr, most_),
      state_b_(gemm_, keys_, values_),
      turned_state_b_(gemm_, values_, keys_),
      keys_b_(gemm_, keys_, most_),
      k_b_(gemm_, most_, keys_),
      x_b_(gemm_, most_, keys_),
      turned_u_b_(gemm_, values_, most_),
      u_b_(gemm_, most_, values_),
      y_b_(gemm_, most_, values_) {
  reserve();
  memory_.take();
}

template <class Real>
void LinearGradHead<Real>::reserve() {
  const auto add = [&](std::int64_t count, std::int64_t size, auto... rows) {
    ((rows->stride = size, memory_.add(rows->data, count * size)), ...);
  };
  constexpr std::int64_t kLanes = 64;  // rows begin at cache lines, and kernels write past the last element
  const std::int64_t size = core::round_up(keys_, kLanes), tokens = core::round_up(most_, kLanes);
  add(keys_, values_, &dstate_);
  state_.stride = values_;
  memory_.add(running_state_, keys_ * values_);
  if (plan_.settings.state_layout == StateLayout::vk) memory_.add(turned_, values_ * keys_);
  add(most_, size, &k_, &q_, &dx_, &dk_, &work_);
  add(most_, values_, &v_, &dout_, &u_, &du_, &p_, &dv_);
  add(most_, tokens, &scores_, &m_, &gamma_);
  for (Real** numbers : {&from_start_, &to_end_}) memory_.add(*numbers, tokens);
  if (by_channel()) {
    add(most_, size, &steps_, &growth_, &later_, &sums_, &reads_, &writes_, &ddecay_);
    add(most_ * (most_ + 1) / 2, size, &pairs_);
  }
  for (double** numbers : {&gates_, &g_, &dgates_}) memory_.add(*numbers, most_ * width_);
  for (double** numbers : {&beta_, &dbeta_, &read_, &write_, &key_norms_, &query_norms_})
    memory_.add(*numbers, most_);
  for (double** numbers : {&total_, &states_}) memory_.add(*numbers, keys_);
  rows_of_keys_.reserve(memory_, most_);
  rows_of_values_.reserve(memory_, most_);
  by_tokens_.reserve(memory_, std::max(most_, keys_));
  for (matmul::PackedB* factor :
       {&state_b_, &turned_state_b_, &keys_b_, &k_b_, &x_b_, &turned_u_b_, &u_b_, &y_b_})
    factor->reserve(memory_);
}

// --- Inputs

// The keys and gates of a block, not its values. Returns whether they and the state suit products.
template <class Real>
bool LinearGradHead<Real>::load(std::int64_t block) {
  first_ = block * most_;
  count_ = std::min(most_, rows_.sequence().length - first_);
  e_ = {kept_rows_.data() + block % kept_ * most_ * values_, values_};
  rows_.keys(first_, count_, k_, key_norms_);
  rows_.gates(first_, count_, gates_, beta_);
  if (form_ == LinearForm::tokens || count_ < kFewest) return false;
  if (in_.gate && width_ == 1) {
    double growth = 0, least = 0;
    for (std::int64_t t = 0; t < count_; ++t) {
      growth += std::max(gates_[t], 0.0);
      least = std::min(least, gates_[t]);
    }
    const bool has_quotients = plan_.settings.decay_space == DecaySpace::linear;
    if (!(growth <= kMostGrowth) || (has_quotients && least < kLeastFactor)) return false;
  }
  return all_finite(state_, keys_, values_) && all_finite(beta_, count_) &&
         (!in_.gate || all_finite(gates_, count_ * width_)) && all_finite(k_, count_, keys_);
}

// Normalised queries, and gradients of out by the scale. Returns whether all are finite.
template <class Real>
bool LinearGradHead<Real>::load_queries(std::int64_t out_head, std::int64_t first, std::int64_t count) {
  rows_.queries(out_head, first, count, 1, q_, query_norms_);
  rows_.load(from_.dout, out_head, first, count, dout_, values_);
  for (std::int64_t t = 0; t < count; ++t) scale(dout_[t], static_cast<Real>(plan_.scale), values_);
  return all_finite(q_, count, keys_) && all_finite(dout_, count, values_);
}

// --- Token by token

// The state after a token, and e.
template <class Real>
void LinearGradHead<Real>::step(std::int64_t t) {
  Real* const e = e_[t];
  std::copy_n(v_[t], values_, e);
  for (std::int64_t d = 0; d < keys_; ++d) {
    if (in_.gate)
      scale(state_[d], static_cast<Real>(std::exp(gates_[t * width_ + (width_ == 1 ? 0 : d)])), values_);
    if (plan_.settings.delta) add_row(e, -k_[t][d], state_[d], values_);
  }
  const auto beta = static_cast<Real>(beta_[t]);
  for (std::int64_t c = 0; c < values_; ++c) u_[t][c] = beta * e[c];
  for (std::int64_t d = 0; d < keys_; ++d) add_row(state_[d], k_[t][d], u_[t], values_);
}

template <class Real>
void LinearGradHead<Real>::backward_by_tokens() {
  const std::int64_t size = keys_ * values_;
  token_states_.resize(static_cast<std::size_t>((most_ + 1) * size));
  const auto states = [&](std::int64_t t) { return Rows<Real>{token_states_.data() + t * size, values_}; };
  for (std::int64_t t = 0; t <= count_; ++t) {
    std::copy_n(state_.data, size, states(t).data);
    if (t < count_) step(t);
  }
  for (std::int64_t t = count_ - 1; t >= 0; --t) token_backward(t, states(t), states(t + 1));
}

// `before` and `after` are states, `before` not decayed.
template <class Real>
void LinearGradHead<Real>::token_backward(std::int64_t t, const Rows<Real>& before, const Rows<Real>& after) {
  for (std::int64_t r = 0; r < heads_of_state(); ++r) {
    const std::int64_t out_head = rows_.head() * heads_of_state() + r;
    load_queries(out_head, first_ + t, 1);
    for (std::int64_t d = 0; d < keys_; ++d) {
      add_row(dstate_[d], q_[0][d], dout_[0], values_);
      dx_[0][d] = dot_of(after[d], dout_[0], values_);
    }
    add_skip(out_head, t, 1);
    emit_queries(out_head, first_ + t, 1);
  }
  Real *const du = du_[t], *const p = p_[t];
  std::fill_n(du, values_, Real{0});
  for (std::int64_t d = 0; d < keys_; ++d) {
    add_row(du, k_[t][d], dstate_[d], values_);
    dk_[t][d] = dot_of(dstate_[d], u_[t], values_);
  }
  const auto beta = static_cast<Real>(beta_[t]);
  for (std::int64_t c = 0; c < values_; ++c) p[c] = -beta * du[c];
  double* const to = dgates_ + t * width_;
  if (in_.gate) std::fill_n(to, width_, 0.0);
  for (std::int64_t d = 0; d < keys_; ++d) {
    const std::int64_t channel = width_ == 1 ? 0 : d;
    const double factor = in_.gate ? std::exp(gates_[t * width_ + channel]) : 1;
    if (plan_.settings.delta) {
      add_row(dstate_[d], k_[t][d], p, values_);
      dk_[t][d] += static_cast<Real>(factor) * dot_of(before[d], p, values_);
    }
    if (!in_.gate) continue;
    const double gradient = static_cast<double>(dot_of(dstate_[d], before[d], values_));
    to[channel] += plan_.settings.decay_space == DecaySpace::linear ? gradient : factor * gradient;
    scale(dstate_[d], static_cast<Real>(factor), values_);
  }
}

// --- Decays of a block

template <class Real>
void LinearGradHead<Real>::set_decays() {
  if (by_channel()) return set_decays_of_channels();
  keys_b_.pack(matmul::transposed(k_.matrix()), keys_, count_);
  if (!in_.gate) return;
  total_[0] = decays_of_heads(gates_, count_, g_, read_, gamma_, from_start_, to_end_);
}

template <class Real>
void LinearGradHead<Real>::set_decays_of_channels() {
  std::fill_n(total_, keys_, 0.0);
  for (std::int64_t t = 0; t < count_; ++t) {
    exponentials(gates_ + t * keys_, keys_, steps_[t]);
    for (std::int64_t d = 0; d < keys_; ++d) total_[d] += gates_[t * keys_ + d];
    if (t == 0)
      std::copy_n(steps_[0], keys_, growth_[0]);
    else
      multiply(growth_[t - 1], steps_[t], keys_, growth_[t]);
    for (std::int64_t j = 0; j < t; ++j) multiply(pair(t - 1)[j], steps_[t], keys_, pair(t)[j]);
    std::copy_n(k_[t], keys_, pair(t)[t]);
  }
  std::fill_n(later_[count_ - 1], keys_, Real{1});
  for (std::int64_t t = count_ - 1; t > 0; --t) multiply(later_[t], steps_[t], keys_, later_[t - 1]);
}

// e^G ∘ rows
template <class Real>
const Rows<Real>& LinearGradHead<Real>::grown(const Rows<Real>& rows) {
  if (!in_.gate) return rows;
  for (std::int64_t t = 0; t < count_; ++t)
    if (by_channel())
      multiply(rows[t], growth_[t], keys_, work_[t]);
    else
      std::transform(rows[t], rows[t] + keys_, work_[t], [f = from_start_[t]](Real x) { return f * x; });
  return work_;
}

// e^(G of the last − G) ∘ rows
template <class Real>
const Rows<Real>& LinearGradHead<Real>::weakened(const Rows<Real>& rows) {
  if (!in_.gate) return rows;
  for (std::int64_t t = 0; t < count_; ++t)
    if (by_channel())
      multiply(rows[t], later_[t], keys_, work_[t]);
    else
      std::transform(rows[t], rows[t] + keys_, work_[t], [f = to_end_[t]](Real x) { return f * x; });
  return work_;
}

template <class Real>
void LinearGradHead<Real>::decay_state(const Rows<Real>& state) {
  if (!in_.gate) return;
  for (std::int64_t d = 0; d < keys_; ++d) decay_row(state[d], total_[by_channel() ? d : 0], values_);
}

// --- In products

// to = left · right, of `columns`.
template <class Real>
void LinearGradHead<Real>::product(const matmul::PackedA& left, const matmul::PackedB& right,
                                   std::int64_t columns, const Rows<Real>& to) const {
  for_groups(gemm_, count_, [&](std::int64_t group, std::int64_t row, std::int64_t some) {
    right.times(left, group, some, 0, columns, to[row], to.stride);
  });
}

// to += left · right for a left factor (tokens, tokens): of its lower or upper triangle.
template <class Real>
void LinearGradHead<Real>::add_triangle(bool is_lower, const Rows<Real>& left, const matmul::PackedB& right,
                                        std::int64_t columns, const Rows<Real>& to) {
  by_tokens_.pack(is_lower ? left.matrix() : matmul::transposed(left.matrix()), count_);
  for_groups(gemm_, count_, [&](std::int64_t group, std::int64_t row, std::int64_t some) {
    right.add_range(by_tokens_.group(group), is_lower ? 0 : row, is_lower ? row + some : count_, some, 0,
                    columns, to[row], to.stride);
  });
}

// state += leftᵀ · right
template <class Real>
void LinearGradHead<Real>::add_outer(const Rows<Real>& left, const matmul::PackedB& right,
                                     const Rows<Real>& state) {
  by_tokens_.pack(matmul::transposed(left.matrix()), keys_);
  for_groups(gemm_, keys_, [&](std::int64_t group, std::int64_t row, std::int64_t some) {
    right.add_range(by_tokens_.group(group), 0, count_, some, 0, values_, state[row], state.stride);
  });
}

// scores[i][j] = Σ_d rows[i][d] k_j[d] e^(G_i − G_j) for j ≤ i, or j < i, else 0.
template <class Real>
void LinearGradHead<Real>::set_scores(const Rows<Real>& rows, bool is_strict) {
  if (!by_channel()) {
    rows_of_keys_.pack(rows.matrix(), count_);
    for_groups(gemm_, count_, [&](std::int64_t group, std::int64_t row, std::int64_t some) {
      keys_b_.times(rows_of_keys_, group, some, 0, row + some, scores_[row], scores_.stride);
    });
  }
  for (std::int64_t i = 0; i < count_; ++i) {
    Real* const to = scores_[i];
    const std::int64_t end = is_strict ? i : i + 1;
    if (by_channel())
      for (std::int64_t j = 0; j < end; ++j) to[j] = dot_of(rows[i], pair(i)[j], keys_);
    else if (in_.gate)
      multiply(to, gamma_[i], end, to);
    std::fill(to + end, to + count_, Real{0});
  }
}

// e of e = its right side in e − scores · β e, and u = β e, also packed.
template <class Real>
void LinearGradHead<Real>::solve() {
  for (std::int64_t i = 0; i < count_; ++i)
    std::transform(scores_[i], scores_[i] + count_, m_[i], std::negate<>());
  by_tokens_.pack(m_.matrix(), count_);
  for (std::int64_t begin = 0; begin < count_; begin += tile_rows_) {
    const std::int64_t end = std::min(begin + tile_rows_, count_);
    for (std::int64_t row = begin; begin > 0 && row < end; row += gemm_.mr)
      u_b_.add_range(by_tokens_.group(row / gemm_.mr), 0, begin, std::min(gemm_.mr, end - row), 0, values_,
                     e_[row], e_.stride);
    for (std::int64_t i = begin; i < end; ++i) {
      for (std::int64_t j = begin; j < i; ++j) add_row(e_[i], m_[i][j], u_[j], values_);
      for (std::int64_t c = 0; c < values_; ++c) u_[i][c] = static_cast<Real>(beta_[i]) * e_[i][c];
      u_b_.put_row(i, u_[i], 0, values_, values_);
    }
  }
}

// du of du = its right side in du + scoresᵀ · p with p = −β du.
template <class Real>
void LinearGradHead<Real>::solve_transposed() {
  by_tokens_.pack(matmul::transposed(scores_.matrix()), count_);
  for (std::int64_t begin = (count_ - 1) / tile_rows_ * tile_rows_; begin >= 0; begin -= tile_rows_) {
    const std::int64_t end = std::min(begin + tile_rows_, count_);
    for (std::int64_t row = begin; end < count_ && row < end; row += gemm_.mr)
      y_b_.add_range(by_tokens_.group(row / gemm_.mr), end, count_, std::min(gemm_.mr, end - row), 0, values_,
                     du_[row], du_.stride);
    for (std::int64_t j = end - 1; j >= begin; --j) {
      for (std::int64_t i = j + 1; i < end; ++i) add_row(du_[j], scores_[i][j], p_[i], values_);
      for (std::int64_t c = 0; c < values_; ++c) p_[j][c] = -static_cast<Real>(beta_[j]) * du_[j][c];
      y_b_.put_row(j, p_[j], 0, values_, values_);
    }
  }
}

// The state after a block, and e of its tokens; the state before it is kept.
template <class Real>
void LinearGradHead<Real>::advance(std::int64_t block, bool is_last) {
  const bool has_finite_gates = load(block);
  rows_.values(first_, count_, v_);
  const bool fits = has_finite_gates && all_finite(v_, count_, values_);
  std::copy_n(state_.data, keys_ * values_, kept_state(block));
  if (!fits) {
    for (std::int64_t t = 0; t < count_; ++t) step(t);
    return;
  }
  set_decays();
  if (plan_.settings.delta) {
    set_scores(k_, true);
    rows_of_keys_.pack(grown(k_).matrix(), count_);
    state_b_.pack(state_.matrix(), keys_, values_);
    product(rows_of_keys_, state_b_, values_, e_);
    for (std::int64_t i = 0; i < count_ * values_; ++i) e_.data[i] = v_.data[i] - e_.data[i];
    solve();
  } else {
    std::copy_n(v_.data, count_ * values_, e_.data);
    set_u();
    u_b_.pack(u_.matrix(), count_, values_);
  }
  if (is_last) return;
  decay_state(state_);
  add_outer(weakened(k_), u_b_, state_);
}

template <class Real>
void LinearGradHead<Real>::set_u() {
  for (std::int64_t t = 0; t < count_; ++t)
    for (std::int64_t c = 0; c < values_; ++c) u_[t][c] = static_cast<Real>(beta_[t]) * e_[t][c];
}

// What the state behind the block gives: du and dk begin with it, and dS passes the block's decay.
template <class Real>
void LinearGradHead<Real>::begin_from_state() {
  rows_of_keys_.pack(weakened(k_).matrix(), count_);
  state_b_.pack(dstate_.matrix(), keys_, values_);
  product(rows_of_keys_, state_b_, values_, du_);
  rows_of_values_.pack(u_.matrix(), count_);
  turned_state_b_.pack(matmul::transposed(dstate_.matrix()), values_, keys_);
  product(rows_of_values_, turned_state_b_, keys_, dk_);
  if (in_.gate) {
    for (std::int64_t d = 0; d < keys_; ++d)
      states_[d] = static_cast<double>(dot_of(state_[d], dstate_[d], values_));
    if (by_channel()) {
      for (std::int64_t t = 0; t < count_; ++t) {
        multiply(k_[t], dk_[t], keys_, writes_[t]);
        multiply(dk_[t], later_[t], keys_, dk_[t]);
        std::fill_n(ddecay_[t], keys_, Real{0});
      }
    } else {
      std::fill_n(read_, count_, 0.0);
      std::fill_n(dgates_, count_, 0.0);
      for (std::int64_t t = 0; t < count_; ++t) {
        scale(dk_[t], to_end_[t], keys_);
        write_[t] = static_cast<double>(dot_of(k_[t], dk_[t], keys_));
      }
    }
  }
  decay_state(dstate_);
  turned_state_b_.pack(matmul::transposed(state_.matrix()), values_, keys_);
  turned_u_b_.pack(matmul::transposed(u_.matrix()), values_, count_);
  if (!by_channel()) k_b_.pack(k_.matrix(), count_, keys_);
}

// Rows that read the state as x, with gradients y of what they read, and the scores of x: dx, dk and dS.
template <class Real>
void LinearGradHead<Real>::read_by(const Rows<Real>& x, const Rows<Real>& y, bool is_strict) {
  rows_of_values_.pack(y.matrix(), count_);
  y_b_.pack(y.matrix(), count_, values_);
  product(rows_of_values_, turned_state_b_, keys_, dx_);
  for_groups(gemm_, count_, [&](std::int64_t group, std::int64_t row, std::int64_t some) {
    turned_u_b_.times(rows_of_values_, group, some, 0, row + some, m_[row], m_.stride);
  });
  for (std::int64_t i = 0; is_strict && i < count_; ++i) m_[i][i] = 0;
  if (by_channel())
    pairs_of_channels(x);
  else
    pairs_of_heads(x);
  add_outer(grown(x), y_b_, dstate_);
}

template <class Real>
void LinearGradHead<Real>::pairs_of_heads(const Rows<Real>& x) {
  if (in_.gate) {
    Real* const below = work_[0];  // sums over rows i ≥ t of what reads row j
    std::fill_n(below, count_, Real{0});
    for (std::int64_t t = count_ - 1; t >= 0; --t) {
      scale(dx_[t], from_start_[t], keys_);
      read_[t] += static_cast<double>(dot_of(x[t], dx_[t], keys_));
      add_products(scores_[t], m_[t], t, below);
      dgates_[t] += static_cast<double>(sum_of(below, t));
      multiply(m_[t], gamma_[t], t + 1, m_[t]);
    }
  }
  for (std::int64_t t = 0; t < count_; ++t) std::fill(m_[t] + t + 1, m_[t] + count_, Real{0});
  add_triangle(true, m_, k_b_, keys_, dx_);
  x_b_.pack(x.matrix(), count_, keys_);
  add_triangle(false, m_, x_b_, keys_, dk_);
}

template <class Real>
void LinearGradHead<Real>::pairs_of_channels(const Rows<Real>& x) {
  Real* const read = work_[0];  // Σ over rows i ≥ t of x dx of the state before the block
  std::fill_n(read, keys_, Real{0});
  for (std::int64_t t = 0; t < count_; ++t) std::fill_n(sums_[t], keys_, Real{0});
  for (std::int64_t t = count_ - 1; t >= 0; --t) {
    if (t + 1 < count_) multiply(read, steps_[t + 1], keys_, read);
    add_products(x[t], dx_[t], keys_, read);
    if (t > 0)
      add_products(growth_[t - 1], read, keys_, ddecay_[t]);
    else
      std::transform(ddecay_[0], ddecay_[0] + keys_, read, ddecay_[0], std::plus<>());
    multiply(dx_[t], growth_[t], keys_, dx_[t]);
    for (std::int64_t j = 0; j <= t; ++j) {
      const Real m = m_[t][j];
      if (t + 1 < count_) multiply(sums_[j], steps_[t + 1], keys_, sums_[j]);
      add_row(sums_[j], m, x[t], keys_);
      add_row(dx_[t], m, pair(t)[j], keys_);
      if (j < t) add_products(pair(t - 1)[j], sums_[j], keys_, ddecay_[t]);
    }
    std::transform(dk_[t], dk_[t] + keys_, sums_[t], dk_[t], std::plus<>());
  }
}

// Gradients of logarithms of decays, in linear space of factors.
template <class Real>
void LinearGradHead<Real>::finish_decays() {
  const bool is_linear = plan_.settings.decay_space == DecaySpace::linear;
  if (!by_channel()) {
    double states = 0, sum = 0;
    for (std::int64_t d = 0; d < keys_; ++d) states += states_[d];
    states *= std::exp(total_[0]);
    for (std::int64_t t = 0; t < count_; ++t) {
      dgates_[t] += states + sum;
      sum += write_[t];
    }
    sum = 0;
    for (std::int64_t t = count_ - 1; t >= 0; --t) {
      dgates_[t] += sum += read_[t];
      if (is_linear) dgates_[t] /= std::exp(gates_[t]);
    }
    return;
  }
  Real* const written = work_[0];  // Σ over rows j < t of k dk of the state behind the block
  std::fill_n(written, keys_, Real{0});
  for (std::int64_t t = 0; t < count_; ++t) {
    for (std::int64_t d = 0; d < keys_; ++d) {
      const Real before = t == 0 ? Real{1} : growth_[t - 1][d];
      const double gradient = static_cast<double>(
          ddecay_[t][d] + later_[t][d] * (written[d] + before * static_cast<Real>(states_[d])));
      dgates_[t * keys_ + d] = is_linear ? gradient : static_cast<double>(steps_[t][d]) * gradient;
      written[d] = steps_[t][d] * written[d] + writes_[t][d];
    }
  }
}

template <class Real>
void LinearGradHead<Real>::backward_in_products() {
  set_decays();
  set_u();
  begin_from_state();
  for (std::int64_t r = 0; r < heads_of_state(); ++r) {
    const std::int64_t out_head = rows_.head() * heads_of_state() + r;
    if (heads_of_state() > 1) load_queries(out_head, first_, count_);
    set_scores(q_, false);
    read_by(q_, dout_, false);
    add_triangle(false, scores_, y_b_, values_, du_);
    add_skip(out_head, 0, count_);
    emit_queries(out_head, first_, count_);
  }
  if (plan_.settings.delta) {
    set_scores(k_, true);
    solve_transposed();
    read_by(k_, p_, true);
    for (std::int64_t t = 0; t < count_; ++t)
      std::transform(dk_[t], dk_[t] + keys_, dx_[t], dk_[t], std::plus<>());
  } else {
    for (std::int64_t t = 0; t < count_; ++t)
      for (std::int64_t c = 0; c < values_; ++c) p_[t][c] = -static_cast<Real>(beta_[t]) * du_[t][c];
  }
  if (in_.gate) finish_decays();
}

// --- Results

// Of `count` tokens from t of the block on.
template <class Real>
void LinearGradHead<Real>::add_skip(std::int64_t out_head, std::int64_t t, std::int64_t count) {
  if (in_.skip.empty()) return;
  const double* const skip = in_.skip.data() + out_head * values_;
  double* const sums = to_->skip.data() + (sequence_ * plan_.out_heads + out_head) * values_;
  rows_.load(from_.dout, out_head, first_ + t, count, dout_, values_);
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t c = 0; c < values_; ++c) {
      dv_[t + i][c] += static_cast<Real>(skip[c]) * dout_[i][c];
      sums[c] += static_cast<double>(dout_[i][c]) * static_cast<double>(v_[t + i][c]);
    }
}

// Gradients of rows x of q or k from those of f x with f = 1/√(Σ x² + ε): f (d − x f² (x·d)). Of one channel nearly
// all cancels, so x are the rows as given, and sums float64.
template <class Real>
void LinearGradHead<Real>::pass_norm(const ArrayView& of, std::int64_t head, std::int64_t first,
                                     std::int64_t count, const double* norms,
                                     const Rows<Real>& gradients) const {
  if (!plan_.settings.l2norm) return;
  constexpr std::int64_t kLanes = 4;
  const Rows<Real> x{work_.data, keys_};
  for (std::int64_t t = 0; t < count; ++t) {
    rows_.load(of, head, first + t, 1, x, keys_);
    Real* const to = gradients[t];
    double sums[kLanes] = {};
    for (std::int64_t d = 0; d < keys_; ++d) sums[d % kLanes] += static_cast<double>(x[0][d]) * to[d];
    const double f = norms[t], along = ((sums[0] + sums[1]) + (sums[2] + sums[3])) * f * f;
    for (std::int64_t d = 0; d < keys_; ++d) to[d] = static_cast<Real>(f * (to[d] - x[0][d] * along));
  }
}

template <class Real>
void LinearGradHead<Real>::emit_queries(std::int64_t out_head, std::int64_t first, std::int64_t count) {
  const std::int64_t head = out_head * in_.q.shape[1] / plan_.out_heads;
  pass_norm(in_.q, head, first, count, query_norms_, dx_);
  const Sequence& s = rows_.sequence();
  to_->q.add(part_, s.entry, head, s.begin + first, count, dx_.data, dx_.stride, keys_);
}

template <class Real>
void LinearGradHead<Real>::emit() {
  const Sequence& s = rows_.sequence();
  const std::int64_t head = rows_.head(), heads = plan_.state_heads, begin = s.begin + first_;
  for (std::int64_t t = 0; t < count_; ++t) {
    dbeta_[t] = static_cast<double>(dot_of(du_[t], e_[t], values_));
    for (std::int64_t c = 0; c < values_; ++c) dv_[t][c] -= p_[t][c];
  }
  to_->v.add(part_, s.entry, head * in_.v.shape[1] / heads, begin, count_, dv_.data, values_, values_);
  const std::int64_t k_head = head * in_.k.shape[1] / heads;
  pass_norm(in_.k, k_head, first_, count_, key_norms_, dk_);
  to_->k.add(part_, s.entry, k_head, begin, count_, dk_.data, dk_.stride, keys_);
  const double of_rate = rows_.through_gates(first_, count_, dgates_, dbeta_);
  if (!to_->rate.empty()) to_->rate[static_cast<std::size_t>(sequence_ * heads + head)] += of_rate;
  for (std::int64_t i = 0; !to_->bias.empty() && i < count_ * width_; ++i)
    to_->bias[static_cast<std::size_t>((sequence_ * heads + head) * width_ + i % width_)] += dgates_[i];
  if (to_->gate)
    to_->gate->add(part_, s.entry, head * in_.gate->shape[1] / heads, begin, count_, dgates_, width_, width_);
  if (to_->beta)
    to_->beta->add(part_, s.entry, head * in_.beta->shape[1] / heads, begin, count_, dbeta_, 1, 1);
}

template <class Real>
void LinearGradHead<Real>::backward(std::int64_t block) {
  state_.data = kept_state(block);
  bool fits = load(block) && all_finite(e_, count_, values_) && all_finite(dstate_, keys_, values_);
  for (std::int64_t r = 0; r < heads_of_state() && fits; ++r)
    fits = load_queries(rows_.head() * heads_of_state() + r, first_, count_);
  if (!fits || !in_.skip.empty()) rows_.values(first_, count_, v_);
  std::fill_n(dv_.data, count_ * values_, Real{0});
  if (fits)
    backward_in_products();
  else
    backward_by_tokens();
  emit();
}

template <class Real>
void LinearGradHead<Real>::run(std::int64_t sequence, std::int64_t head, LinearGradients<Real>& to) {
  sequence_ = sequence, to_ = &to;
  part_ = head / grad_.heads_of_part() % grad_.parts;
  rows_.select(sequence, head);
  const std::int64_t slot = plan_.slots[static_cast<std::size_t>(sequence)].read, size = keys_ * values_;
  const std::int64_t blocks = core::ceil_div(rows_.sequence().length, most_), kept = std::min(blocks, kept_);
  const std::int64_t stretches = core::ceil_div(blocks, kept_);
  const auto grow = [](std::vector<Real>& numbers, std::int64_t count) {
    if (std::ssize(numbers) < count) numbers.resize(static_cast<std::size_t>(count));
  };
  grow(kept_states_, kept * size);
  grow(kept_rows_, kept * most_ * values_);
  grow(checkpoints_, stretches * size);
  state_.data = running_state_;
  rows_.state(slot, state_.data, turned_);
  for (std::int64_t b = 0; b < blocks; ++b) {
    if (b % kept_ == 0) std::copy_n(state_.data, size, checkpoints_.data() + b / kept_ * size);
    advance(b, b + 1 == blocks);
  }
  for (std::int64_t d = 0; d < keys_; ++d)
    if (from_.dfinal_state)
      core::load(from_.dfinal_state->dtype,
                 from_.dfinal_state->data + sequence * from_.dfinal_state->strides[0] +
                     head * from_.dfinal_state->strides[1] + d * from_.dfinal_state->strides[2],
                 from_.dfinal_state->strides[3], values_, dstate_[d]);
    else
      std::fill_n(dstate_[d], values_, Real{0});
  for (std::int64_t s = stretches - 1; s >= 0; --s) {
    const std::int64_t begin = s * kept_, end = std::min(blocks, begin + kept_);
    if (s + 1 < stretches) {
      state_.data = running_state_;
      std::copy_n(checkpoints_.data() + s * size, size, state_.data);
      for (std::int64_t b = begin; b < end; ++b) advance(b, b + 1 == end);
    }
    for (std::int64_t b = end - 1; b >= begin; --b) backward(b);
  }
  if (to.initial_state)
    to.initial_state->add(0, slot, head * in_.initial_state->shape[1] / plan_.state_heads, 0, keys_,
                          dstate_.data, values_, values_);
}

template class LinearGradHead<float>;
template class LinearGradHead<double>;

}  // namespace ejk::recurrence
