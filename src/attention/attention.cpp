// Run of a plan on one process, and the functions that make a plan and run it.
// tests: tests/attention/test_attention.cpp
#include "ejk/attention.hpp"

#include <utility>

#include "attention/forward.hpp"
#include "attention/part.hpp"

namespace ejk {

namespace {

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

AttentionWork run_whole(const attn::Plan& plan, const AttentionArrays& arrays,
                        const std::vector<MutableArrayView>& results, const PairProgress& progress,
                        const attn::KeySources& key_sources) {
  attn::bound(plan.setup, plan.types, arrays);  // all that were planned for are there
  const AttentionPasses done =
      attn::run_part(plan, attn::whole_part(plan), arrays, results, progress, key_sources);
  AttentionWork work = plan.blocks().work();
  static_cast<AttentionPasses&>(work) = done;
  return work;
}

}  // namespace

AttentionArrays operands_of(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                            const AttentionOptions& options) {
  AttentionArrays arrays{q, k, v, options.bias};
  arrays.dropout = options.dropout;
  return arrays;
}

AttentionTypes types_of(const AttentionArrays& arrays) {
  AttentionTypes types;
  for_each_operand(
      [](const char*, const auto& array, auto& type) {
        if (array) type = type_of(*array);
      },
      arrays, types);
  return types;
}

AttentionWork AttentionPlan::run(const AttentionArrays& arrays, const std::vector<MutableArrayView>& results,
                                 const PairProgress& progress) const {
  return run_whole(*plan_, arrays, results, progress, {});
}

bool AttentionPlan::boxes_keys() const { return attn::reads_keys_once(plan_->setup); }

AttentionWork AttentionPlan::run(const AttentionArrays& arrays, const ArraySource& k, const ArraySource& v,
                                 const std::vector<MutableArrayView>& results,
                                 const PairProgress& progress) const {
  if (!boxes_keys() || !k.random_access() || !v.random_access())
    throw Error(Error::Kind::internal, "keys and values of this plan must be arrays");
  AttentionArrays all = arrays;
  all.k = ArrayView(nullptr, k.dtype(), k.shape());
  all.v = ArrayView(nullptr, v.dtype(), v.shape());
  return run_whole(*plan_, all, results, progress, {&k, &v});
}

Attention attention(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                    const AttentionOptions& options) {
  auto [results, work] = computed(operands_of(q, k, v, options), options);
  return {std::move(results[0]), std::move(results[1]), std::move(work)};
}

AttentionGradients attention_grad(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                                  const ArrayView& dout, const AttentionOptions& options,
                                  const std::optional<AttentionSaved>& saved) {
  AttentionArrays arrays = operands_of(q, k, v, options);
  arrays.dout = dout;
  if (saved) arrays.out = saved->out, arrays.lse = saved->lse;
  auto [results, work] = computed(arrays, options);
  std::optional<Array> dbias, dsinks;
  if (options.bias) dbias = std::move(results[3]);
  if (options.sinks) dsinks = std::move(results.back());
  return {std::move(results[0]), std::move(results[1]), std::move(results[2]),
          std::move(dbias),      std::move(work),       std::move(dsinks)};
}

}  // namespace ejk
