// Linear attention: sequences and heads of the state over threads, results, and their check in float64. Cost: in
// chunks about 10 · 64 · K · V flop for 64 tokens of a head, the check 8 · K · V for each token.
// tests: tests/recurrence/test_linear_attention.cpp
#include "ejk/linear_attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <utility>
#include <vector>

#include "core/checked.hpp"
#include "core/elements.hpp"
#include "core/parallel.hpp"
#include "core/require.hpp"
#include "ejk/program/text.hpp"
#include "ejk/threads.hpp"
#include "recurrence/differences.hpp"
#include "recurrence/linear_head.hpp"

namespace ejk {

namespace recurrence {

namespace {

// A state (K, V) as an element of an array of states of the layout.
template <class Real>
void store_state(const LinearPlan& plan, const Real* state, DType dtype, std::byte* out) {
  const std::int64_t keys = plan.key_size, values = plan.value_size;
  if (plan.settings.state_layout == StateLayout::kv) return matmul::store(state, keys * values, dtype, out);
  thread_local std::vector<Real> turned;
  turned.resize(static_cast<std::size_t>(keys * values));
  transpose(state, keys, values, turned.data());
  matmul::store(turned.data(), keys * values, dtype, out);
}

double nanoseconds(const LinearPlan& plan) {
  return 0.2 * static_cast<double>(plan.tokens * plan.state_heads) *
         static_cast<double>(plan.key_size * plan.value_size);
}

// each(head's computation, sequence, head) for all that are no padding.
template <class Real, class F, class Join>
void for_each_head(const LinearPlan& plan, const LinearInputs& in, LinearForm form, F&& each, Join&& join) {
  const std::int64_t all = std::ssize(plan.sequences) * plan.state_heads;
  const double form_cost = form == LinearForm::tokens ? 10 : 1;
  core::parallel_reduce(
      all, core::threads_for(all, form_cost * nanoseconds(plan)),
      [&] { return LinearHead<Real>(plan, in, form); },
      [&](LinearHead<Real>& part, std::int64_t n) {
        const std::int64_t sequence = n / plan.state_heads;
        if (!plan.slots[static_cast<std::size_t>(sequence)].is_padding)
          each(part, sequence, n % plan.state_heads);
      },
      join);
}

template <class Real>
LinearAttentionWork run(const LinearPlan& plan, const LinearInputs& in, LinearAttention& to) {
  const ArrayView out = plan.in_one_form(to.out.view(), plan.value_size);
  const std::int64_t state_size = plan.key_size * plan.value_size;
  const auto state_at = [&](Array& array, std::int64_t index, std::int64_t head) {
    return array.data() + (index * plan.state_heads + head) * state_size * size_of(array.dtype());
  };
  LinearAttentionWork work;
  for_each_head<Real>(
      plan, in, LinearForm::chunks,
      [&](LinearHead<Real>& part, std::int64_t n, std::int64_t head) {
        const Sequence& s = plan.sequences[static_cast<std::size_t>(n)];
        LinearSink<Real> sink;
        sink.out = [&](std::int64_t out_head, std::int64_t token, std::int64_t count, const Real* rows) {
          std::byte* at = to.out.data() + s.entry * out.strides[0] + out_head * out.strides[1] +
                          (s.begin + token) * out.strides[2];
          for (std::int64_t t = 0; t < count; ++t, at += out.strides[2], rows += plan.value_size)
            matmul::store(rows, plan.value_size, out.dtype, at);
        };
        if (to.states)
          sink.chunk_state = [&](std::int64_t chunk, const Real* state) {
            store_state(plan, state, to.states->dtype(), state_at(*to.states, chunk, head));
          };
        sink.final_state = [&](std::int64_t slot, const Real* state) {
          store_state(plan, state, to.final_state.dtype(), state_at(to.final_state, slot, head));
        };
        part.run(n, head, sink);
      },
      [&](const LinearHead<Real>& part) { work = joined(work, part.work()); });
  return work;
}

void keep_worst(const Errors& errors, double relative, LinearAttentionCheck::Difference& worst) {
  const double allowed = relative * errors.largest;
  const bool is_first = worst.index.empty() && worst.size == 0;
  if (errors.size == 0 && !is_first) return;
  if (is_first || errors.size * worst.allowed > worst.size * allowed || errors.size > allowed)
    worst = {errors.size, allowed, errors.index};
}

}  // namespace

}  // namespace recurrence

LinearAttentionPlan::LinearAttentionPlan(const LinearAttentionTypes& types,
                                         const LinearAttentionSettings& settings)
    : plan_(std::make_shared<const recurrence::LinearPlan>(types, settings)) {}

const ArrayType& LinearAttentionPlan::out() const { return plan_->out; }
const ArrayType& LinearAttentionPlan::final_state() const { return plan_->final_state; }
const std::optional<ArrayType>& LinearAttentionPlan::states() const { return plan_->states; }

std::int64_t LinearAttentionPlan::work_bytes() const {
  const std::int64_t size = size_of(plan_->arithmetic), tokens = plan_->most_tokens();
  const double of_thread = static_cast<double>(size) * (4.0 * static_cast<double>(plan_->key_size + 64) *
                                                        static_cast<double>(plan_->value_size + 64)) +
                           16.0 * static_cast<double>(size * (tokens + 64)) *
                               static_cast<double>(plan_->key_size + plan_->value_size + 64);
  return core::bytes_of_estimate(of_thread * threads());
}

LinearAttention LinearAttentionPlan::run(const LinearAttentionArrays& arrays) const {
  const recurrence::LinearPlan& plan = *plan_;
  LinearAttention results{Array(plan.out.dtype, plan.out.shape), {}, {}, {}};
  results.final_state = plan.settings.slots.read ? Array::copy_of(*arrays.initial_state)
                                                 : Array(plan.final_state.dtype, plan.final_state.shape);
  if (plan.states) results.states = Array(plan.states->dtype, plan.states->shape);
  const recurrence::LinearInputs inputs(plan, arrays);
  results.work = plan.arithmetic == DType::float64 ? recurrence::run<double>(plan, inputs, results)
                                                   : recurrence::run<float>(plan, inputs, results);
  return results;
}

LinearAttentionCheck LinearAttentionPlan::check(const LinearAttentionArrays& arrays,
                                                const LinearAttention& results) const {
  using recurrence::Errors, recurrence::LinearHead;
  const recurrence::LinearPlan& plan = *plan_;
  const recurrence::LinearInputs inputs(plan, arrays);
  const double relative = plan.arithmetic == DType::float64 ? 1e-12 : 0x1p-17;
  const ArrayView out = plan.in_one_form(results.out.view(), plan.value_size);
  const ArrayView states = plan.state_form(results.final_state.view());
  LinearAttentionCheck check;
  std::mutex adding;
  recurrence::for_each_head<double>(
      plan, inputs, recurrence::LinearForm::tokens,
      [&](LinearHead<double>& part, std::int64_t n, std::int64_t head) {
        const recurrence::Sequence& s = plan.sequences[static_cast<std::size_t>(n)];
        const std::int64_t shared = plan.out_heads / plan.state_heads;
        std::vector<Errors> of_out(static_cast<std::size_t>(shared));
        Errors of_state;
        std::vector<double> actual(static_cast<std::size_t>(plan.value_size));
        recurrence::LinearSink<double> sink;
        sink.out = [&](std::int64_t out_head, std::int64_t token, std::int64_t, const double* row) {
          core::load(out.dtype,
                     out.data + s.entry * out.strides[0] + out_head * out.strides[1] +
                         (s.begin + token) * out.strides[2],
                     out.strides[3], plan.value_size, actual.data());
          Errors& errors = of_out[static_cast<std::size_t>(out_head % shared)];
          const Shape index{n, out_head, token};
          for (std::size_t c = 0; c < actual.size(); ++c) errors.add(actual[c], row[c], out.dtype, index);
        };
        sink.final_state = [&](std::int64_t slot, const double* state) {
          const Shape index{n, head};
          for (std::int64_t d = 0; d < plan.key_size; ++d, state += plan.value_size) {
            core::load(
                states.dtype,
                states.data + slot * states.strides[0] + head * states.strides[1] + d * states.strides[2],
                states.strides[3], plan.value_size, actual.data());
            for (std::size_t c = 0; c < actual.size(); ++c)
              of_state.add(actual[c], state[c], states.dtype, index);
          }
        };
        part.run(n, head, sink);
        const std::scoped_lock lock(adding);
        for (const Errors& errors : of_out) recurrence::keep_worst(errors, relative, check.out);
        recurrence::keep_worst(of_state, relative, check.final_state);
      },
      [](const LinearHead<double>&) {});
  return check;
}

LinearAttention linear_attention(const LinearAttentionArrays& arrays,
                                 const LinearAttentionSettings& settings) {
  return LinearAttentionPlan(types_of(arrays), settings).run(arrays);
}

Report recurrence::description_of(const LinearPlan& p) {
  constexpr const char* kDecays[] = {"none", "fixed", "head", "channel"};
  Report report;
  report.add("layout", "layout", std::string(name_of(p.settings.layout)))
      .add("sequences", "sequences", std::ssize(p.sequences), Unit::count)
      .add("tokens", "tokens", p.tokens, Unit::tokens)
      .add("state_heads", "heads of the state", p.state_heads, Unit::count)
      .add("key_size", "size of a key", p.key_size, Unit::count)
      .add("value_size", "size of a value", p.value_size, Unit::count)
      .add("decay", "decay", std::string(kDecays[static_cast<std::size_t>(p.decay)]))
      .add("decay_space", "decays are", std::string(name_of(p.settings.decay_space)))
      .add("delta", "delta rule", p.settings.delta)
      .add("scale", "scale", p.scale)
      .add("chunk_size", "tokens of a chunk", p.settings.chunk_size, Unit::count)
      .add("chunks", "chunks", p.first_chunks.back(), Unit::count)
      .add("state_layout", "axes of states", std::string(name_of(p.settings.state_layout)))
      .add("arithmetic", "arithmetic", std::string(name_of(p.arithmetic)));
  return report;
}

Report describe(const LinearAttentionPlan& plan) {
  const recurrence::LinearPlan& p = plan.internal();
  Report report = description_of(p);
  report.add("out", "out", p.out.shape)
      .add("out_dtype", "of dtype", std::string(name_of(p.out.dtype)))
      .add("final_state", "final state", p.final_state.shape)
      .add("final_state_dtype", "of dtype", std::string(name_of(p.final_state.dtype)));
  if (p.states) report.add("states", "states before chunks", p.states->shape);
  return report;
}

Report describe(const LinearAttentionWork& work) {
  Report report;
  if (work.largest_decay > 0)
    report.warnings.push_back(
        work.least_decay >= 0 && work.largest_decay <= 1
            ? std::string("all decays are in [0, 1]: factors, where logarithms are expected?")
            : fmt::format("the largest logarithm of a decay is {:.4g}: where it is above 0, the state grows",
                          work.largest_decay));
  if (work.least_dt < 0)
    report.warnings.push_back(fmt::format("the least dt is {:.4g}: below 0, the state grows", work.least_dt));
  if (work.largest_beta_k > 2.1)
    report.warnings.push_back(
        fmt::format("keys are not of unit norm, the state can grow: the largest beta |k|^2 is {:.4g}",
                    work.largest_beta_k));
  return report;
}

Report describe(const LinearAttentionCheck& check) {
  return recurrence::report_of(check.passed(), {{"out", check.out}, {"final_state", check.final_state}},
                               "sequence, head, token");
}

}  // namespace ejk
