// Linear attention of a sequence's head. In chunks of at most 64 tokens, with G the running sum of g, Γ_ij =
// e^(G_i − G_j) for i ≥ j, S the state before the chunk and A the strictly lower part of β_i (k_i·k_j) Γ_ij:
//   (1 + A) u = β (v − e^G k S),  o = e^G q S + ((q kᵀ) ∘ Γ) u,  S ← e^(G_last) S + Σ_j e^(G_last − G_j) k_j u_jᵀ
// All products are blocked ones; the system is solved by blocks of about 16 rows. Sums of g are float64, each
// of one chunk, so a jump keeps the digits of its neighbours. Decays by channel are inside the sums over K: for
// a block of rows, with G_b the sum before it, factors are k_i e^(G_i − G_b) and k_j e^(G_b − G_j), whose exponents
// are at most 0 but for rows of the block itself; a block that decays by more than e^-80 multiplies those step by
// step. Few tokens, and chunks with elements that are not finite, are computed token by token.
// tests: tests/recurrence/test_linear_attention.cpp
#include "recurrence/linear_head.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "core/checked.hpp"
#include "core/flush_subnormals.hpp"

namespace ejk::recurrence {

namespace {

constexpr double kMostInBlock = 80;
// Packing the state takes longer than the steps of fewer tokens.
constexpr std::int64_t kFewTokens = 4;

}  // namespace

template <class Real>
LinearHead<Real>::LinearHead(const LinearPlan& plan, const LinearInputs& inputs, LinearForm form)
    : plan_(plan),
      in_(inputs),
      rows_(plan, inputs),
      form_(form),
      gemm_(matmul::gemm_of<Real>()),
      keys_(plan.key_size),
      values_(plan.value_size),
      width_(plan.decay_width()),
      most_(plan.most_tokens()),
      block_(std::max<std::int64_t>(1, 16 / gemm_.mr) * gemm_.mr),
      rows_a_(gemm_, gemm_.mr, keys_),
      lower_a_(gemm_, gemm_.mr, most_),
      keys_a_(gemm_, gemm_.mr, most_),
      state_b_(gemm_, keys_, values_),
      u_b_(gemm_, most_, values_) {
  const std::int64_t blocks = plan.decay == DecayKind::channel ? core::ceil_div(most_, block_) : 1;
  for (std::int64_t b = 0; b < blocks; ++b)
    keys_b_.emplace_back(gemm_, keys_, blocks == 1 ? most_ : std::min(most_, (b + 1) * block_));
  is_exact_.resize(static_cast<std::size_t>(blocks));
  reserve();
  memory_.take();
}

template <class Real>
void LinearHead<Real>::reserve() {
  const auto add = [&](Rows<Real>& rows, std::int64_t count, std::int64_t size) {
    rows.stride = size;
    memory_.add(rows.data, count * size);
  };
  constexpr std::int64_t kLanes = 64;  // rows begin at cache lines, and kernels write past the last element
  const std::int64_t size = core::round_up(keys_, kLanes), tokens = core::round_up(most_, kLanes);
  add(state_, keys_, values_);
  if (plan_.settings.state_layout == StateLayout::vk) memory_.add(turned_, values_ * keys_);
  for (Rows<Real>* rows : {&k_, &q_}) add(*rows, most_, size);
  for (Rows<Real>* rows : {&v_, &u_, &out_}) add(*rows, most_, values_);
  add(work_rows_, most_, size);
  memory_.add(gates_, most_ * width_);
  memory_.add(sums_, most_ * width_);
  memory_.add(beta_, most_);
  memory_.add(total_, width_);
  add(steps_, most_, size);
  if (form_ == LinearForm::tokens) return;
  for (Rows<Real>* rows : {&key_scores_, &scores_, &gamma_}) add(*rows, most_, tokens);
  for (Rows<Real>* rows : {&growth_, &later_}) add(*rows, most_, size);
  add(starts_, core::ceil_div(most_, block_) + 1, size);
  memory_.add(from_start_, tokens);
  memory_.add(to_end_, tokens);
  rows_a_.reserve(memory_, most_);
  lower_a_.reserve(memory_, most_);
  keys_a_.reserve(memory_, keys_);
  state_b_.reserve(memory_);
  u_b_.reserve(memory_);
  for (matmul::PackedB& keys : keys_b_) keys.reserve(memory_);
}

// --- Inputs

template <class Real>
void LinearHead<Real>::note_keys(std::int64_t count) {
  if (!plan_.settings.delta) return;
  for (std::int64_t t = 0; t < count; ++t) {
    const double size = beta_[t] * static_cast<double>(dot_of(k_[t], k_[t], keys_));
    if (size < std::numeric_limits<double>::infinity())
      rows_.work().largest_beta_k = std::max(rows_.work().largest_beta_k, size);
  }
}

// Returns whether all of the tokens is finite.
template <class Real>
bool LinearHead<Real>::load(std::int64_t first, std::int64_t count) {
  rows_.keys(first, count, k_);
  rows_.values(first, count, v_);
  rows_.gates(first, count, gates_, beta_);
  note_keys(count);
  if (form_ == LinearForm::tokens || count < kFewTokens) return false;
  bool is_finite = all_finite(state_.data, keys_ * values_) && all_finite(v_.data, count * values_) &&
                   all_finite(beta_, count) && (!in_.gate || all_finite(gates_, count * width_));
  for (std::int64_t t = 0; t < count && is_finite; ++t) is_finite = all_finite(k_[t], keys_);
  for (std::int64_t r = 0; r < heads_of_state() && is_finite; ++r) {
    rows_.queries(rows_.head() * heads_of_state() + r, first, count, plan_.scale, q_);
    for (std::int64_t t = 0; t < count && is_finite; ++t) is_finite = all_finite(q_[t], keys_);
  }
  return is_finite;
}

// --- Token by token

template <class Real>
void LinearHead<Real>::step_tokens(std::int64_t first, std::int64_t count, const LinearSink<Real>& sink) {
  const std::int64_t first_head = rows_.head() * heads_of_state();
  Real* const decay = steps_.data;
  for (std::int64_t t = 0; t < count; ++t) {
    for (std::int64_t d = 0; d < width_ && in_.gate; ++d)
      decay[d] = static_cast<Real>(std::exp(gates_[t * width_ + d]));
    Real* const u = u_[0];
    std::fill_n(u, values_, Real{0});
    for (std::int64_t d = 0; d < keys_; ++d) {
      Real* const row = state_[d];
      if (in_.gate) {
        const Real factor = decay[width_ == 1 ? 0 : d];
        for (std::int64_t c = 0; c < values_; ++c) row[c] *= factor;
      }
      if (plan_.settings.delta) add_row(u, k_[t][d], row, values_);
    }
    const auto beta = static_cast<Real>(beta_[t]);
    for (std::int64_t c = 0; c < values_; ++c) u[c] = beta * (v_[t][c] - u[c]);
    for (std::int64_t d = 0; d < keys_; ++d) add_row(state_[d], k_[t][d], u, values_);
    for (std::int64_t r = 0; r < heads_of_state(); ++r) {
      rows_.queries(first_head + r, first + t, 1, plan_.scale, q_);
      Real* const out = out_[0];
      std::fill_n(out, values_, Real{0});
      for (std::int64_t d = 0; d < keys_; ++d) add_row(out, q_[0][d], state_[d], values_);
      if (!in_.skip.empty()) {
        const double* const skip = in_.skip.data() + (first_head + r) * values_;
        for (std::int64_t c = 0; c < values_; ++c) out[c] += static_cast<Real>(skip[c]) * v_[t][c];
      }
      if (sink.out) sink.out(first_head + r, first + t, 1, out);
    }
  }
}

// --- In chunks

// Decays of heads: Γ, e^G and e^(G of the last − G).
template <class Real>
void LinearHead<Real>::decay_of_heads(std::int64_t count) {
  keys_b_[0].pack(matmul::transposed(k_.matrix()), keys_, count);
  if (!in_.gate) return;
  total_[0] = decays_of_heads(gates_, count, sums_, gates_, gamma_, from_start_, to_end_);
}

// Decays of channels in rows [begin, end): growth, and keys as all later rows read them.
template <class Real>
void LinearHead<Real>::block_of_channels(std::int64_t block, std::int64_t begin, std::int64_t end) {
  std::vector<double> sum(static_cast<std::size_t>(keys_), 0), exponents(sum.size());
  double least = 0, most = 0;
  for (std::int64_t t = begin; t < end; ++t) {
    double* const sums = sums_ + t * keys_;
    for (std::int64_t d = 0; d < keys_; ++d) {
      sums[d] = sum[static_cast<std::size_t>(d)] += gates_[t * keys_ + d];
      least = std::min(least, sums[d]);
      most = std::max(most, sums[d]);
    }
    exponentials(sums, keys_, growth_[t]);
  }
  const bool is_exact = is_exact_[static_cast<std::size_t>(block)] = most - least > kMostInBlock;
  const auto keys_until = [&](const double* until) {
    for (std::int64_t t = begin; t < end; ++t) {
      const double* const sums = sums_ + t * keys_;
      for (std::int64_t d = 0; d < keys_; ++d)
        exponents[static_cast<std::size_t>(d)] = (until != nullptr ? until[d] : 0) - sums[d];
      exponentials(exponents.data(), keys_, later_[t]);
      for (std::int64_t d = 0; d < keys_; ++d) later_[t][d] *= k_[t][d];
    }
  };
  if (is_exact)
    for (std::int64_t t = begin; t < end; ++t) exponentials(gates_ + t * keys_, keys_, steps_[t]);
  else
    keys_until(nullptr);
  keys_b_[static_cast<std::size_t>(block)].pack(matmul::transposed(later_.matrix()), keys_,
                                                is_exact ? begin : end);
  keys_until(sum.data());
  Real* const all = work_rows_[0];
  exponentials(sum.data(), keys_, all);
  for (std::int64_t t = 0; t < begin; ++t)
    for (std::int64_t d = 0; d < keys_; ++d) later_[t][d] *= all[d];
  for (std::int64_t d = 0; d < keys_; ++d) total_[d] += sum[static_cast<std::size_t>(d)];
  exponentials(total_, keys_, starts_[block + 1]);
}

template <class Real>
void LinearHead<Real>::decay_of_channels(std::int64_t count) {
  std::fill_n(starts_[0], keys_, Real{1});
  std::fill_n(total_, keys_, 0.0);
  for (std::int64_t begin = 0, block = 0; begin < count; begin += block_, ++block)
    block_of_channels(block, begin, std::min(begin + block_, count));
}

// Pairs of a block whose decays have no quotients: keys are multiplied by e^g, row by row.
template <class Real>
void LinearHead<Real>::exact_diagonal(const Rows<Real>& rows, std::int64_t begin, std::int64_t end,
                                      const Rows<Real>& to) const {
  std::vector<Real> key(static_cast<std::size_t>(keys_));
  for (std::int64_t j = begin; j < end; ++j) {
    std::copy_n(k_[j], keys_, key.data());
    for (std::int64_t i = j; i < end; ++i) {
      if (i > j)
        for (std::int64_t d = 0; d < keys_; ++d) key[static_cast<std::size_t>(d)] *= steps_[i][d];
      to[i][j] = dot_of(rows[i], key.data(), keys_);
    }
  }
}

// to[i][j] = Σ_d rows[i][d] k_j[d] e^(G_i − G_j) for j ≤ i, else 0. Leaves rows, or their growth, for times_state().
template <class Real>
void LinearHead<Real>::scores(const Rows<Real>& rows, std::int64_t count, const Rows<Real>& to) {
  const bool by_channel = plan_.decay == DecayKind::channel;
  if (by_channel)
    for (std::int64_t i = 0; i < count; ++i)
      std::transform(rows[i], rows[i] + keys_, growth_[i], work_rows_[i], std::multiplies<>());
  rows_a_.pack((by_channel ? work_rows_ : rows).matrix(), count);
  for_groups(gemm_, count, [&](std::int64_t group, std::int64_t row, std::int64_t some) {
    const std::int64_t block = by_channel ? row / block_ : 0;
    const std::int64_t last =
        by_channel && is_exact_[static_cast<std::size_t>(block)] ? block * block_ : row + some;
    keys_b_[static_cast<std::size_t>(block)].times(rows_a_, group, some, 0, last, to[row], to.stride);
  });
  for (std::int64_t begin = 0, block = 0; by_channel && begin < count; begin += block_, ++block)
    if (is_exact_[static_cast<std::size_t>(block)])
      exact_diagonal(rows, begin, std::min(begin + block_, count), to);
  for (std::int64_t i = 0; i < count; ++i) {
    if (!by_channel && in_.gate) std::transform(to[i], to[i] + i + 1, gamma_[i], to[i], std::multiplies<>());
    std::fill(to[i] + i + 1, to[i] + count, Real{0});
  }
}

// to = the rows of scores() · e^G · S.
template <class Real>
void LinearHead<Real>::times_state(std::int64_t count, const Rows<Real>& to) {
  if (plan_.decay == DecayKind::channel) {
    for (std::int64_t i = 0; i < count; ++i)
      std::transform(work_rows_[i], work_rows_[i] + keys_, starts_[i / block_], work_rows_[i],
                     std::multiplies<>());
    rows_a_.pack(work_rows_.matrix(), count);
  }
  for_groups(gemm_, count, [&](std::int64_t group, std::int64_t row, std::int64_t some) {
    state_b_.times(rows_a_, group, some, 0, values_, to[row], to.stride);
  });
  if (plan_.decay == DecayKind::channel || !in_.gate) return;
  for (std::int64_t i = 0; i < count; ++i) {
    const Real factor = from_start_[i];
    for (std::int64_t c = 0; c < values_; ++c) to[i][c] *= factor;
  }
}

// u of (1 + A) u = its right side in u; both factors of later products.
template <class Real>
void LinearHead<Real>::solve(std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto factor = -static_cast<Real>(beta_[i]);
    for (std::int64_t j = 0; j < i; ++j) key_scores_[i][j] *= factor;
    key_scores_[i][i] = 0;
  }
  lower_a_.pack(key_scores_.matrix(), count);
  for (std::int64_t begin = 0; begin < count; begin += block_) {
    const std::int64_t end = std::min(begin + block_, count);
    for (std::int64_t row = begin; begin > 0 && row < end; row += gemm_.mr)
      u_b_.add_range(lower_a_.group(row / gemm_.mr), 0, begin, std::min(gemm_.mr, end - row), 0, values_,
                     u_[row], u_.stride);
    for (std::int64_t i = begin; i < end; ++i) {
      for (std::int64_t j = begin; j < i; ++j) add_row(u_[i], key_scores_[i][j], u_[j], values_);
      u_b_.put_row(i, u_[i], 0, values_, values_);
    }
  }
}

template <class Real>
void LinearHead<Real>::update_state(std::int64_t count) {
  const bool by_channel = plan_.decay == DecayKind::channel;
  if (in_.gate) {
    for (std::int64_t d = 0; d < keys_; ++d) decay_row(state_[d], total_[by_channel ? d : 0], values_);
    for (std::int64_t t = 0; t < count && !by_channel; ++t)
      for (std::int64_t d = 0; d < keys_; ++d) later_[t][d] = k_[t][d] * to_end_[t];
  }
  keys_a_.pack(matmul::transposed((in_.gate ? later_ : k_).matrix()), keys_);
  for_groups(gemm_, keys_, [&](std::int64_t group, std::int64_t row, std::int64_t some) {
    u_b_.add_range(keys_a_.group(group), 0, count, some, 0, values_, state_[row], state_.stride);
  });
}

template <class Real>
void LinearHead<Real>::add_skip(std::int64_t out_head, std::int64_t count) const {
  if (in_.skip.empty()) return;
  const double* const skip = in_.skip.data() + out_head * values_;
  for (std::int64_t t = 0; t < count; ++t)
    for (std::int64_t c = 0; c < values_; ++c) out_[t][c] += static_cast<Real>(skip[c]) * v_[t][c];
}

template <class Real>
void LinearHead<Real>::step_chunk(std::int64_t first, std::int64_t count, const LinearSink<Real>& sink) {
  if (plan_.decay == DecayKind::channel)
    decay_of_channels(count);
  else
    decay_of_heads(count);
  state_b_.pack(state_.matrix(), keys_, values_);
  const bool delta = plan_.settings.delta;
  if (delta) {
    scores(k_, count, key_scores_);
    times_state(count, u_);
  }
  for (std::int64_t t = 0; t < count; ++t) {
    const auto beta = static_cast<Real>(beta_[t]);
    for (std::int64_t c = 0; c < values_; ++c)
      u_[t][c] = delta ? beta * (v_[t][c] - u_[t][c]) : beta * v_[t][c];
    if (!delta) u_b_.put_row(t, u_[t], 0, values_, values_);
  }
  if (delta) solve(count);
  for (std::int64_t r = 0; r < heads_of_state(); ++r) {
    const std::int64_t out_head = rows_.head() * heads_of_state() + r;
    if (heads_of_state() > 1) rows_.queries(out_head, first, count, plan_.scale, q_);
    scores(q_, count, scores_);
    times_state(count, out_);
    lower_a_.pack(scores_.matrix(), count);
    for_groups(gemm_, count, [&](std::int64_t group, std::int64_t row, std::int64_t some) {
      u_b_.add_range(lower_a_.group(group), 0, row + some, some, 0, values_, out_[row], out_.stride);
    });
    add_skip(out_head, count);
    if (sink.out) sink.out(out_head, first, count, out_.data);
  }
  update_state(count);
}

template <class Real>
void LinearHead<Real>::run(std::int64_t sequence, std::int64_t head, const LinearSink<Real>& sink) {
  const core::FlushSubnormals flush;  // products of decays
  rows_.select(sequence, head);
  const Slot& slot = plan_.slots[static_cast<std::size_t>(sequence)];
  rows_.state(slot.read, state_.data, turned_);
  const std::int64_t size = plan_.settings.chunk_size;
  std::int64_t chunk = plan_.first_chunks[static_cast<std::size_t>(sequence)];
  for (std::int64_t begin = 0; begin < rows_.sequence().length; begin += size, ++chunk) {
    if (sink.chunk_state) sink.chunk_state(chunk, state_.data);
    const std::int64_t end = std::min(rows_.sequence().length, begin + size);
    for (std::int64_t first = begin; first < end; first += most_) {
      const std::int64_t count = std::min(most_, end - first);
      if (load(first, count))
        step_chunk(first, count, sink);
      else
        step_tokens(first, count, sink);
    }
  }
  if (sink.final_state && slot.write >= 0) sink.final_state(slot.write, state_.data);
}

template class LinearHead<float>;
template class LinearHead<double>;

}  // namespace ejk::recurrence
