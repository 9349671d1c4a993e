// The reference of linear attention, and bounds measured by chunk forms with rounded factors.
// tests: tests/verdict/recurrence/test_linear.cpp
#include "verdict/recurrence/linear_truth.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <mutex>

#include "core/checked.hpp"
#include "core/elements.hpp"
#include "core/parallel.hpp"
#include "recurrence/linear_head.hpp"
#include "verdict/recurrence/linear_head_problem.hpp"
#include "verdict/recurrence/rounded_chunks.hpp"

namespace ejk::recurrence_verdict {

namespace {

using recurrence::LinearInputs;
using recurrence::LinearPlan;
using recurrence::LinearSink;
using recurrence::Sequence;

constexpr std::int64_t kBlockOfBound = 64;

double& at(std::vector<double>& array, std::int64_t index) { return array[static_cast<std::size_t>(index)]; }
double at(const std::vector<double>& array, std::int64_t index) {
  return array[static_cast<std::size_t>(index)];
}

// Where only one side is a number, kernels overflow as well.
void see_error(double& largest, double actual, double expected) {
  if (!std::isfinite(expected)) return;
  const double error = std::abs(actual - expected);
  largest = std::max(largest, std::isfinite(error) ? error : std::numeric_limits<double>::infinity());
}

void see_size(double& largest, double value) {
  if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
}

std::int64_t blocks_of(const Sequence& sequence) { return core::ceil_div(sequence.length, kBlockOfBound); }

}  // namespace

LinearTruth::LinearTruth(const LinearPlan& plan, const LinearInputs& inputs, std::optional<FactorType> type)
    : heads(plan.out_heads),
      state_heads(plan.state_heads),
      tokens(plan.entries > 0 ? plan.tokens / plan.entries : 0),
      values(plan.value_size),
      state_size(plan.key_size * plan.value_size),
      out(static_cast<std::size_t>(plan.tokens * heads * values)) {
  const std::int64_t sequences = std::ssize(plan.sequences), states = plan.final_state.shape[0];
  final_state.resize(static_cast<std::size_t>(states * state_heads * state_size));
  writers = writers_of(plan);
  largest_out.resize(static_cast<std::size_t>(sequences * heads));
  largest_state.resize(static_cast<std::size_t>(sequences * state_heads));
  first_blocks_.push_back(0);
  for (std::int64_t n = 0; n < sequences; ++n) {
    const auto i = static_cast<std::size_t>(n);
    first_blocks_.push_back(first_blocks_.back() + blocks_of(plan.sequences[i]));
  }
  out_error_.resize(static_cast<std::size_t>(heads * first_blocks_.back()));
  state_error_.resize(largest_state.size());
  solve(plan, inputs);
  if (type || plan.arithmetic != DType::float64) {
    factors = type.value_or(FactorType::f32);
    factor_ = factors == FactorType::f32 ? 16 : 4;
    floor_ = 0x1p-20;
    unit = unit_of(factors);
    measure(plan, inputs);
  }
  see_usual(plan);
}

void LinearTruth::see_usual(const LinearPlan& plan) {
  const auto median = [&](const std::vector<double>& largest, const auto& allowed_of) {
    std::vector<double> shares;
    for (std::int64_t i = 0; i < std::ssize(largest); ++i)
      if (at(largest, i) > 0) shares.push_back(allowed_of(i) / at(largest, i));
    if (shares.empty()) return 0x1p-16;
    const auto middle = shares.begin() + std::ssize(shares) / 2;
    std::nth_element(shares.begin(), middle, shares.end());
    return *middle;
  };
  usual_of_out = median(largest_out, [&](std::int64_t i) {
    return out_allowed(i / heads, i % heads, plan.sequences[static_cast<std::size_t>(i / heads)].length / 2);
  });
  usual_of_state =
      median(largest_state, [&](std::int64_t i) { return state_allowed(i / state_heads, i % state_heads); });
}

void LinearTruth::solve(const LinearPlan& plan, const LinearInputs& inputs) {
  if (plan.settings.slots.read) {
    const ArrayView from = *inputs.initial_state;
    const Array pool = Array::copy_of(from);
    core::load(from.dtype, pool.data(), size_of(from.dtype), std::ssize(final_state), final_state.data());
  }
  std::mutex adding;
  for_each_head(plan, [&](std::int64_t n, std::int64_t head) {
    const Sequence& sequence = plan.sequences[static_cast<std::size_t>(n)];
    LinearSink<double> sink;
    sink.out = [&](std::int64_t h, std::int64_t token, std::int64_t count, const double* rows) {
      double* const to =
          out.data() + ((sequence.entry * heads + h) * tokens + sequence.begin + token) * values;
      std::copy_n(rows, count * values, to);
      for (std::int64_t i = 0; i < count * values; ++i) see_size(at(largest_out, n * heads + h), rows[i]);
    };
    sink.final_state = [&](std::int64_t slot, const double* state) {
      std::copy_n(state, state_size, final_state.data() + (slot * state_heads + head) * state_size);
      for (std::int64_t i = 0; i < state_size; ++i)
        see_size(at(largest_state, n * state_heads + head), state[i]);
    };
    recurrence::LinearHead<double> part(plan, inputs, recurrence::LinearForm::chunks);
    part.run(n, head, sink);
    const std::scoped_lock lock(adding);
    work = recurrence::joined(work, part.work());
  });
}

void LinearTruth::measure(const LinearPlan& plan, const LinearInputs& inputs) {
  for_each_head(plan, [&](std::int64_t n, std::int64_t head) {
    const Sequence& sequence = plan.sequences[static_cast<std::size_t>(n)];
    LinearSink<float> sink;
    sink.out = [&](std::int64_t h, std::int64_t token, std::int64_t count, const float* rows) {
      const double* expected = out_row(sequence.entry, h, sequence.begin + token);
      for (std::int64_t t = token; t < token + count; ++t, rows += values, expected += values) {
        double& error = at(out_error_, h * first_blocks_.back() + at_block(n, t));
        for (std::int64_t c = 0; c < values; ++c) see_error(error, rows[c], expected[c]);
      }
    };
    sink.final_state = [&](std::int64_t slot, const float* states) {
      for (std::int64_t i = 0; i < state_size; ++i)
        see_error(at(state_error_, n * state_heads + head), states[i], state(slot, head)[i]);
    };
    for (const std::int64_t chunk : {16, 128, 256})
      RoundedChunks(plan, inputs, factors, chunk).run(n, head, sink);
  });
}

std::int64_t LinearTruth::at_block(std::int64_t sequence, std::int64_t token) const {
  return first_blocks_[static_cast<std::size_t>(sequence)] + token / kBlockOfBound;
}

double LinearTruth::out_allowed(std::int64_t sequence, std::int64_t head, std::int64_t token) const {
  const std::int64_t block = at_block(sequence, token),
                     first = first_blocks_[static_cast<std::size_t>(sequence)],
                     end = first_blocks_[static_cast<std::size_t>(sequence) + 1];
  double error = 0;
  for (std::int64_t b = std::max(first, block - 1); b < std::min(end, block + 2); ++b)
    error = std::max(error, at(out_error_, head * first_blocks_.back() + b));
  return factor_ * error + floor_ * at(largest_out, sequence * heads + head);
}

double LinearTruth::state_allowed(std::int64_t sequence, std::int64_t head) const {
  const std::int64_t i = sequence * state_heads + head;
  return factor_ * at(state_error_, i) + floor_ * at(largest_state, i);
}

bool LinearTruth::shows_recurrence(const LinearPlan& plan, const LinearInputs& inputs) const {
  std::atomic<bool> shows = false;
  for_each_head(plan, [&](std::int64_t n, std::int64_t head) {
    if (shows.load(std::memory_order_relaxed)) return;
    const Sequence& sequence = plan.sequences[static_cast<std::size_t>(n)];
    const HeadProblem p = load_head(plan, inputs, n, head);
    for (std::int64_t h = 0; h < p.heads; ++h)
      for (std::int64_t t = 0; t < p.tokens && !shows.load(std::memory_order_relaxed); ++t) {
        const double* const row = out_row(sequence.entry, head * p.heads + h, sequence.begin + t);
        double product = 0, difference = 0;
        for (std::int64_t d = 0; d < p.keys; ++d)
          product += at(p.q, (h * p.tokens + t) * p.keys + d) * at(p.k, t * p.keys + d);
        for (std::int64_t c = 0; c < values; ++c) {
          const double alone = product * at(p.beta, t) + (p.skip.empty() ? 0 : at(p.skip, h * values + c));
          difference = std::max(difference, std::abs(row[c] - alone * at(p.v, t * values + c)));
        }
        if (difference > out_allowed(n, head * p.heads + h, t)) shows = true;
      }
  });
  return shows;
}

}  // namespace ejk::recurrence_verdict
