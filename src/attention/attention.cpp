// Attention and its gradient: the passes that a plan runs, and the functions that make a plan and run it.
// tests: tests/attention/test_attention.cpp
#include "ejk/attention.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <limits>

#include "attention/backward.hpp"
#include "attention/forward.hpp"
#include "attention/plan.hpp"
#include "ejk/attention_check.hpp"

namespace ejk {

namespace {

template <class F>
double timed(F&& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Rows may lose all their keys to a bias of −∞, too; lse knows.
template <class Real>
void count_rows(const attn::CheckedArguments& setup, const Real* lse, AttentionWork& work) {
  work.rows_without_key = 0;
  work.first_row_without_key.clear();
  work.rows_not_finite = 0;
  work.first_row_not_finite.clear();
  for (std::int64_t e = 0; e < setup.shape.entries; ++e)
    for (std::int64_t h = 0; h < setup.shape.heads; ++h) {
      const attn::Problem p = setup.problem(e, h);
      for (std::int64_t i = 0; i < p.q_length; ++i) {
        const Real value = lse[p.first_row + i];
        if (std::isfinite(value)) continue;
        if (value == -std::numeric_limits<Real>::infinity()) {
          if (++work.rows_without_key == 1) work.first_row_without_key = {e, h, i};
        } else if (++work.rows_not_finite == 1) {
          work.first_row_not_finite = {e, h, i};
        }
      }
    }
}

void count_rows_without_key(const attn::CheckedArguments& setup, const void* lse, AttentionWork& work) {
  if (setup.shape.arithmetic == DType::float64)
    count_rows(setup, static_cast<const double*>(lse), work);
  else
    count_rows(setup, static_cast<const float*>(lse), work);
}

// A view's elements in another float dtype, C order.
Array as(const ArrayView& view, DType dtype) {
  return view.dtype == dtype ? Array::copy_of(view) : identity_dtype_convert_backward(view, dtype);
}

void check_results(const std::vector<PlannedArray>& planned, const std::vector<MutableArrayView>& results) {
  const auto invalid = [](std::string why) { return Error(Error::Kind::input, std::move(why)); };
  if (results.size() != planned.size())
    throw invalid(fmt::format("{} results are given; {} were planned", results.size(), planned.size()));
  for (std::size_t r = 0; r < results.size(); ++r)
    if (results[r].dtype != planned[r].type.dtype || results[r].shape != planned[r].type.shape)
      throw invalid(fmt::format("{} is {} {}; it was planned as {}", planned[r].name,
                                name_of(results[r].dtype), to_string(results[r].shape),
                                to_string(planned[r].type)))
          .about(planned[r].name);
}

AttentionWork run_forward(const attn::Plan& plan, const AttentionArrays& arrays,
                          const std::vector<MutableArrayView>& results, const PairProgress& progress) {
  const attn::CheckedArguments setup = attn::bound(plan.setup, plan.types, arrays);
  AttentionWork work = plan.blocks().work();
  const attn::RowWriter out(setup, results[0]);
  work.forward_seconds = timed([&] { attn::forward(setup, plan.blocks(), out, results[1].data, progress); });
  count_rows_without_key(setup, results[1].data, work);
  return work;
}

AttentionWork run_backward(const attn::Plan& plan, const AttentionArrays& arrays,
                           const std::vector<MutableArrayView>& results, const PairProgress& progress) {
  const attn::CheckedArguments setup = attn::bound(plan.setup, plan.types, arrays);
  AttentionWork work = plan.blocks().work();
  // Three parts of a whole, as far as there are three: scores, and both ways through them.
  const std::int64_t pairs = work.dense_pairs, before = arrays.out ? 0 : pairs;
  const auto part = [&](std::int64_t from) -> PairProgress {
    if (!progress) return {};
    return [&progress, from, all = before + 2 * pairs](std::int64_t done, std::int64_t) {
      progress(from + done, all);
    };
  };
  Array out, lse;
  if (arrays.out) {
    lse = as(*arrays.lse, setup.shape.arithmetic);
  } else {
    out = Array(setup.shape.arithmetic, setup.shape.out);
    lse = Array(setup.shape.arithmetic, setup.shape.lse);
    const attn::RowWriter target(setup, out.mutable_view());
    work.forward_seconds = timed([&] { attn::forward(setup, plan.blocks(), target, lse.data(), part(0)); });
  }
  count_rows_without_key(setup, lse.data(), work);
  const attn::Saved saved{attn::in_one_form(*arrays.dout, setup.layout),
                          attn::in_one_form(arrays.out ? *arrays.out : out.view(), setup.layout), lse.data()};
  const attn::RowWriter dq(setup, results[0], plan.rounded_first), dk(setup, results[1], plan.rounded_first),
      dv(setup, results[2], plan.rounded_first);
  work.backward_seconds =
      timed([&] { attn::backward(setup, plan.blocks(), saved, dq, dk, dv, part(before)); });
  return work;
}

// The results of a plan, and what was done for them.
std::pair<std::vector<Array>, AttentionWork> computed(const AttentionArrays& arrays,
                                                      const AttentionOptions& options) {
  const AttentionPlan plan(types_of(arrays), options);
  std::vector<Array> results;
  std::vector<MutableArrayView> views;
  for (const PlannedArray& result : plan.results()) {
    results.emplace_back(result.type.dtype, result.type.shape);
    views.push_back(results.back().mutable_view());
  }
  AttentionWork work = plan.run(arrays, views, options.progress);
  return {std::move(results), std::move(work)};
}

}  // namespace

AttentionTypes types_of(const AttentionArrays& arrays) {
  const auto type = [](const std::optional<ArrayView>& array) {
    return array ? std::optional(type_of(*array)) : std::nullopt;
  };
  return {type_of(arrays.q), type_of(arrays.k), type_of(arrays.v), type(arrays.bias),
          type(arrays.dout), type(arrays.out),  type(arrays.lse)};
}

AttentionWork AttentionPlan::run(const AttentionArrays& arrays, const std::vector<MutableArrayView>& results,
                                 const PairProgress& progress) const {
  check_results(plan_->results, results);
  return plan_->setup.gradients ? run_backward(*plan_, arrays, results, progress)
                                : run_forward(*plan_, arrays, results, progress);
}

Attention attention(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                    const AttentionOptions& options) {
  auto [results, work] = computed({q, k, v, options.bias, {}, {}, {}}, options);
  return {std::move(results[0]), std::move(results[1]), std::move(work)};
}

AttentionGradients attention_grad(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                                  const ArrayView& dout, const AttentionOptions& options,
                                  const std::optional<AttentionSaved>& saved) {
  AttentionArrays arrays{q, k, v, options.bias, dout, {}, {}};
  if (saved) arrays.out = saved->out, arrays.lse = saved->lse;
  auto [results, work] = computed(arrays, options);
  return {std::move(results[0]), std::move(results[1]), std::move(results[2]), std::move(work)};
}

AttentionCheck check_attention(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                               const AttentionOptions& options, const ArrayView& out, const ArrayView& lse) {
  const AttentionArrays arrays{q, k, v, options.bias, {}, {}, {}};
  return AttentionPlan(types_of(arrays), options).check(arrays, {out, lse});
}

AttentionCheck check_attention_grad(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                                    const ArrayView& dout, const AttentionOptions& options,
                                    const ArrayView& dq, const ArrayView& dk, const ArrayView& dv) {
  const AttentionArrays arrays{q, k, v, options.bias, dout, {}, {}};
  return AttentionPlan(types_of(arrays), options).check(arrays, {dq, dk, dv});
}

}  // namespace ejk
