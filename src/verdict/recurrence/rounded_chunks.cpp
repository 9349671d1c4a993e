// The chunk form of kernels: with G the float32 running sum of g in a chunk, Γ_ij = e^(G_i − G_j) for i ≥ j, A the
// strictly lower part of β_i (k_i·k_j) Γ_ij and T = (1 + A)⁻¹,
//   U = T (β V),  W = T (β e^G K),  u = U − W S,  o = scale (e^G (q S) + ((q kᵀ) ∘ Γ) u),
//   S ← e^(G of the last) S + Σ_j e^(G of the last − G_j) k_j u_jᵀ;  without delta T = 1, W = 0.
// Decays by channel are inside the sums over K, by blocks of 16 rows: with G_b the sum before a block, pairs with
// earlier rows have the factors k_i e^(G_i − G_b) and k_j e^(G_b − G_j), whose exponents are at most 0; pairs within
// it are float32, with e^(G_i − G_j) of each. Cost: about LinearHead's; rounding to 16 bits takes a tenth of it.
// tests: tests/verdict/recurrence/test_rounded_chunks.cpp
#include "verdict/recurrence/rounded_chunks.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>

#include "core/checked.hpp"
#include "core/flush_subnormals.hpp"

namespace ejk::recurrence_verdict {

using recurrence::for_groups;

namespace {

constexpr std::int64_t kBlock = 16;                         // rows, of decays by channel
constexpr std::int64_t kPairs = kBlock * (kBlock + 1) / 2;  // of a block
constexpr std::int64_t kLanes = 64;                         // rows begin at cache lines
static_assert(kBlock % kernels::kDotsKeys == 0);

void exponentials(const float* x, std::int64_t count, float* to) {
  matmul::softmax_of<float>().weights(x, count, 0.0F, to);
}

// To nearest, ties to even; 13 bits are cut.
void round_to_tf32(const float* from, std::int64_t count, float* to) {
  constexpr std::uint32_t kExponent = 0x7F800000;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(from[i]);
    const std::uint32_t near = (bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFFU;
    const std::uint32_t special = (bits & kExponent) == kExponent ? ~0U : 0U;
    to[i] = std::bit_cast<float>((bits & special) | (near & ~special));
  }
}

DType dtype_of(FactorType factors) {
  return factors == FactorType::bf16  ? DType::bfloat16
         : factors == FactorType::f16 ? DType::float16
                                      : DType::float32;
}

}  // namespace

RoundedChunks::RoundedChunks(const recurrence::LinearPlan& plan, const recurrence::LinearInputs& inputs,
                             FactorType factors, std::int64_t chunk)
    : plan_(plan),
      in_(inputs),
      rows_(plan, inputs),
      factors_(factors),
      gemm_(matmul::gemm_of<float>()),
      keys_(plan.key_size),
      values_(plan.value_size),
      most_(chunk),
      rows_a_(gemm_, gemm_.mr, keys_),
      lower_a_(gemm_, gemm_.mr, most_),
      keys_a_(gemm_, gemm_.mr, most_),
      state_b_(gemm_, keys_, values_),
      u_b_(gemm_, most_, values_),
      k_b_(gemm_, most_, keys_) {
  const std::int64_t blocks = by_channel() ? core::ceil_div(most_, kBlock) : 1;
  for (std::int64_t b = 0; b < blocks; ++b)
    keys_b_.emplace_back(gemm_, keys_, blocks == 1 ? most_ : b * kBlock);
  reserve();
}

void RoundedChunks::reserve() {
  matmul::ScratchLayout memory;
  const auto add = [&](Rows& rows, std::int64_t count, std::int64_t size) {
    rows.stride = size;
    memory.add(rows.data, count * size);
  };
  const std::int64_t size = core::round_up(keys_, kLanes), tokens = core::round_up(most_, kLanes);
  add(state_, keys_, values_);
  memory.add(turned_, plan_.settings.state_layout == StateLayout::vk ? keys_ * values_ : 0);
  memory.add(rounded_, std::max(keys_, most_) * std::max({keys_, values_, most_}));
  for (Rows* rows : {&k_, &q_, &work_}) add(*rows, most_, size);
  for (Rows* rows : {&v_, &u_, &out_}) add(*rows, most_, values_);
  for (Rows* rows : {&key_scores_, &scores_, &inverse_, &gamma_}) add(*rows, most_, tokens);
  for (float** row : {&head_sums_, &head_whole_, &head_end_}) memory.add(*row, tokens);
  for (Rows* rows : {&sums_, &whole_, &growth_}) add(*rows, by_channel() ? most_ : 0, size);
  memory.add(pairs_, by_channel() ? core::ceil_div(most_, kBlock) * kPairs * size : 0);
  memory.add(gates_, most_ * plan_.decay_width());
  memory.add(beta_, most_);
  rows_a_.reserve(memory, most_);
  lower_a_.reserve(memory, most_);
  keys_a_.reserve(memory, keys_);
  for (matmul::PackedB* factor : {&state_b_, &u_b_, &k_b_}) factor->reserve(memory);
  for (matmul::PackedB& keys : keys_b_) keys.reserve(memory);
  memory.take(memory_);
  std::memset(state_.data, 0, static_cast<std::size_t>(memory.bytes()));  // what pads rows stays finite
}

// --- Rounding

// `to`: elements of dtype_of(factors_).
void RoundedChunks::round(const float* from, std::int64_t count, void* to) const {
  if (factors_ == FactorType::tf32)
    round_to_tf32(from, count, static_cast<float*>(to));
  else
    matmul::store(from, count, dtype_of(factors_), to);
}

void RoundedChunks::round_rows(const Rows& rows, std::int64_t count, std::int64_t size) const {
  if (factors_ == FactorType::f32) return;
  const bool is_narrow = factors_ != FactorType::tf32;
  for (std::int64_t r = 0; r < count; ++r) {
    round(rows[r], size, is_narrow ? rounded_ : rows[r]);
    if (is_narrow) kernels::active().codes.widen(dtype_of(factors_), rounded_, size, rows[r]);
  }
}

// Until the next rounding.
kernels::StridedMatrix RoundedChunks::rounded(const Rows& rows, std::int64_t count, std::int64_t size) const {
  if (factors_ == FactorType::f32) return rows.matrix();
  const DType dtype = dtype_of(factors_);
  const std::int64_t bytes = size_of(dtype);
  auto* const to = reinterpret_cast<std::byte*>(rounded_);
  for (std::int64_t r = 0; r < count; ++r) round(rows[r], size, to + r * size * bytes);
  return {to, dtype, size * bytes, bytes};
}

// --- Products

void RoundedChunks::product(const matmul::PackedA& left, std::int64_t rows, const matmul::PackedB& right,
                            std::int64_t columns, const Rows& to) const {
  for_groups(gemm_, rows, [&](std::int64_t group, std::int64_t row, std::int64_t some) {
    right.times(left, group, some, 0, columns, to[row], to.stride);
  });
}

void RoundedChunks::add_lower(const matmul::PackedA& left, std::int64_t rows, const matmul::PackedB& right,
                              std::int64_t columns, const Rows& to) const {
  for_groups(gemm_, rows, [&](std::int64_t group, std::int64_t row, std::int64_t some) {
    right.add_range(left.group(group), 0, row + some, some, 0, columns, to[row], to.stride);
  });
}

// --- Decays

void RoundedChunks::load(std::int64_t first, std::int64_t count) {
  rows_.keys(first, count, k_);
  rows_.values(first, count, v_);
  rows_.gates(first, count, gates_, beta_);
  round_rows(k_, count, keys_);
  round_rows(v_, count, values_);
  if (by_channel())
    decay_of_channels(count);
  else
    decay_of_heads(count);
}

void RoundedChunks::decay_of_heads(std::int64_t count) {
  keys_b_[0].pack(matmul::transposed(k_.matrix()), keys_, count);
  if (!in_.gate) return;
  float sum = 0;
  for (std::int64_t t = 0; t < count; ++t) head_sums_[t] = sum += static_cast<float>(gates_[t]);
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t j = 0; j <= i; ++j) gamma_[i][j] = head_sums_[i] - head_sums_[j];
    exponentials(gamma_[i], i + 1, gamma_[i]);
  }
  exponentials(head_sums_, count, head_whole_);
  for (std::int64_t t = 0; t < count; ++t) head_end_[t] = sum - head_sums_[t];
  exponentials(head_end_, count, head_end_);
}

float* RoundedChunks::pairs_of(std::int64_t begin, std::int64_t i) const {
  const std::int64_t row = i - begin;
  return pairs_ + (begin / kBlock * kPairs + row * (row + 1) / 2) * k_.stride;
}

// Pairs of rows [begin, end), and factors of those with earlier ones.
void RoundedChunks::decays_in_block(std::int64_t begin, std::int64_t end) {
  const std::int64_t size = k_.stride;
  for (std::int64_t i = begin; i < end; ++i) {
    float* const pairs = pairs_of(begin, i);
    for (std::int64_t j = begin; j <= i; ++j)
      std::transform(sums_[i], sums_[i] + size, sums_[j], pairs + (j - begin) * size, std::minus<>());
    const std::int64_t all = (i + 1 - begin) * size;
    exponentials(pairs, all, pairs);
    std::transform(pairs, pairs + all, k_[begin], pairs, std::multiplies<>());
  }
  if (begin == 0) return;
  const float* const before = sums_[begin - 1];
  for (std::int64_t i = begin; i < end; ++i)
    std::transform(sums_[i], sums_[i] + size, before, growth_[i], std::minus<>());
  exponentials(growth_[begin], (end - begin) * size, growth_[begin]);
  for (std::int64_t j = 0; j < begin; ++j)
    std::transform(before, before + size, sums_[j], work_[j], std::minus<>());
  exponentials(work_[0], begin * size, work_[0]);
  std::transform(work_[0], work_[begin], k_[0], work_[0], std::multiplies<>());
  keys_b_[static_cast<std::size_t>(begin / kBlock)].pack(matmul::transposed(rounded(work_, begin, keys_)),
                                                         keys_, begin);
}

void RoundedChunks::decay_of_channels(std::int64_t count) {
  for (std::int64_t t = 0; t < count; ++t)
    for (std::int64_t d = 0; d < keys_; ++d)
      sums_[t][d] = (t > 0 ? sums_[t - 1][d] : 0) + static_cast<float>(gates_[t * keys_ + d]);
  exponentials(sums_[0], count * sums_.stride, whole_[0]);
  for (std::int64_t begin = 0; begin < count; begin += kBlock)
    decays_in_block(begin, std::min(begin + kBlock, count));
}

// --- Scores

void RoundedChunks::scores_of_channels(const Rows& rows, std::int64_t begin, std::int64_t end,
                                       const Rows& to) {
  for (std::int64_t i = begin; i < end; ++i)
    kernels::active().products.dots_f32(
        rows[i], rows.stride, 1,
        {pairs_of(begin, i), DType::float32, rows.stride * std::int64_t{sizeof(float)}, sizeof(float)},
        i + 1 - begin, keys_, to[i] + begin, to.stride, {});
  if (begin == 0) return;
  std::transform(rows[begin], rows[end], growth_[begin], work_[0], std::multiplies<>());
  rows_a_.pack(rounded(work_, end - begin, keys_), end - begin);
  product(rows_a_, end - begin, keys_b_[static_cast<std::size_t>(begin / kBlock)], begin,
          {to[begin], to.stride});
}

// to[i][j] = Σ_d rows[i][d] k_j[d] Γ_ij for j ≤ i, else 0.
void RoundedChunks::scores(const Rows& rows, std::int64_t count, const Rows& to) {
  for (std::int64_t begin = 0; by_channel() && begin < count; begin += kBlock)
    scores_of_channels(rows, begin, std::min(begin + kBlock, count), to);
  if (!by_channel()) {
    rows_a_.pack(rows.matrix(), count);
    for_groups(gemm_, count, [&](std::int64_t group, std::int64_t row, std::int64_t some) {
      keys_b_[0].times(rows_a_, group, some, 0, row + some, to[row], to.stride);
    });
  }
  for (std::int64_t i = 0; i < count; ++i) {
    if (!by_channel() && in_.gate)
      std::transform(to[i], to[i] + i + 1, gamma_[i], to[i], std::multiplies<>());
    std::fill(to[i] + i + 1, to[i] + to.stride, 0.0F);
  }
}

// --- The delta rule

// T of the scores of keys, row by row.
void RoundedChunks::invert(std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    float* const row = inverse_[i];
    std::fill_n(row, inverse_.stride, 0.0F);
    const auto beta = static_cast<float>(beta_[i]);
    for (std::int64_t j = 0; j < i; ++j) {
      const float factor = beta * key_scores_[i][j];
      for (std::int64_t c = 0; c <= j; ++c) row[c] -= factor * inverse_[j][c];
    }
    row[i] = 1;
  }
}

// u = U − W S, of βV in u.
void RoundedChunks::correct(std::int64_t count) {
  scores(k_, count, key_scores_);
  invert(count);
  lower_a_.pack(rounded(inverse_, count, most_), count);
  u_b_.pack(rounded(u_, count, values_), count, values_);
  std::fill_n(u_.data, count * values_, 0.0F);
  add_lower(lower_a_, count, u_b_, values_, u_);
  round_rows(u_, count, values_);
  for (std::int64_t t = 0; t < count; ++t) {
    const float factor = static_cast<float>(beta_[t]) * (in_.gate && !by_channel() ? head_whole_[t] : 1);
    for (std::int64_t d = 0; d < keys_; ++d)
      work_[t][d] = k_[t][d] * (by_channel() ? factor * whole_[t][d] : factor);
  }
  k_b_.pack(rounded(work_, count, keys_), count, keys_);
  std::fill_n(work_.data, count * work_.stride, 0.0F);
  add_lower(lower_a_, count, k_b_, keys_, work_);
  rows_a_.pack(rounded(work_, count, keys_), count);
  product(rows_a_, count, state_b_, values_, out_);
  std::transform(u_.data, u_.data + count * values_, out_.data, u_.data, std::minus<>());
}

// --- A chunk

void RoundedChunks::out_of_head(std::int64_t out_head, std::int64_t first, std::int64_t count) {
  rows_.queries(out_head, first, count, 1, q_);
  round_rows(q_, count, keys_);
  scores(q_, count, scores_);
  if (by_channel()) {
    std::transform(q_[0], q_[count], whole_[0], work_[0], std::multiplies<>());
    rows_a_.pack(rounded(work_, count, keys_), count);
  }
  product(rows_a_, count, state_b_, values_, out_);
  for (std::int64_t t = 0; t < count && in_.gate && !by_channel(); ++t)
    matmul::softmax_of<float>().scale(out_[t], values_, head_whole_[t]);
  lower_a_.pack(rounded(scores_, count, most_), count);
  add_lower(lower_a_, count, u_b_, values_, out_);
  const auto scale = static_cast<float>(plan_.scale);
  for (std::int64_t t = 0; t < count; ++t)
    for (std::int64_t c = 0; c < values_; ++c) out_[t][c] *= scale;
  if (in_.skip.empty()) return;
  const double* const skip = in_.skip.data() + out_head * values_;
  for (std::int64_t t = 0; t < count; ++t)
    for (std::int64_t c = 0; c < values_; ++c) out_[t][c] += static_cast<float>(skip[c]) * v_[t][c];
}

void RoundedChunks::update_state(std::int64_t count) {
  if (by_channel()) {
    for (std::int64_t t = 0; t < count; ++t)
      std::transform(sums_[count - 1], sums_[count - 1] + sums_.stride, sums_[t], work_[t], std::minus<>());
    exponentials(work_[0], count * work_.stride, work_[0]);
    std::transform(work_[0], work_[count], k_[0], work_[0], std::multiplies<>());
  } else {
    for (std::int64_t t = 0; t < count; ++t)
      for (std::int64_t d = 0; d < keys_; ++d) work_[t][d] = k_[t][d] * (in_.gate ? head_end_[t] : 1);
  }
  for (std::int64_t d = 0; d < keys_ && in_.gate; ++d) {
    const float factor = by_channel() ? whole_[count - 1][d] : head_whole_[count - 1];
    for (std::int64_t c = 0; c < values_; ++c) state_[d][c] *= factor;
  }
  keys_a_.pack(matmul::transposed(rounded(work_, count, keys_)), keys_);
  for_groups(gemm_, keys_, [&](std::int64_t group, std::int64_t row, std::int64_t some) {
    u_b_.add_range(keys_a_.group(group), 0, count, some, 0, values_, state_[row], state_.stride);
  });
}

void RoundedChunks::step(std::int64_t first, std::int64_t count, const recurrence::LinearSink<float>& sink) {
  load(first, count);
  state_b_.pack(rounded(state_, keys_, values_), keys_, values_);
  for (std::int64_t t = 0; t < count; ++t) {
    const auto beta = static_cast<float>(beta_[t]);
    for (std::int64_t c = 0; c < values_; ++c) u_[t][c] = beta * v_[t][c];
  }
  if (plan_.settings.delta) correct(count);
  u_b_.pack(rounded(u_, count, values_), count, values_);
  const std::int64_t first_head = rows_.head() * heads_of_state();
  for (std::int64_t head = first_head; head < first_head + heads_of_state(); ++head) {
    out_of_head(head, first, count);
    if (sink.out) sink.out(head, first, count, out_.data);
  }
  update_state(count);
}

void RoundedChunks::run(std::int64_t sequence, std::int64_t head, const recurrence::LinearSink<float>& sink) {
  const core::FlushSubnormals flush;  // products of decays
  rows_.select(sequence, head);
  const recurrence::Slot& slot = plan_.slots[static_cast<std::size_t>(sequence)];
  rows_.state(slot.read, state_.data, turned_);
  for (std::int64_t first = 0; first < rows_.sequence().length; first += most_)
    step(first, std::min(most_, rows_.sequence().length - first), sink);
  if (sink.final_state && slot.write >= 0) sink.final_state(slot.write, state_.data);
}

}  // namespace ejk::recurrence_verdict
