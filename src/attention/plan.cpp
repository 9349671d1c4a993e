// AttentionPlan: shapes and dtypes of the results, and their costs. Masks are read at first use and kept.
// tests: tests/attention/test_plan.cpp
#include "attention/plan.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "attention/backward.hpp"
#include "attention/forward.hpp"
#include "attention/operands.hpp"
#include "attention/part.hpp"
#include "blocks/scan.hpp"
#include "core/checked.hpp"
#include "core/require.hpp"
#include "ejk/threads.hpp"

namespace ejk {

namespace attn {

// Some queries and keys in the forms of both passes' products, and a tile.
std::int64_t thread_bytes(const CheckedArguments& s) {
  constexpr std::int64_t kQueries = 512, kKeys = 256, kChunk = 256;
  const std::int64_t queries = std::min(s.longest_queries(), kQueries);
  const std::int64_t keys = std::min(s.longest_keys(), kKeys);
  const auto in_chunks = [](std::int64_t size) {
    return static_cast<double>(core::ceil_div(size, kChunk)) *
           static_cast<double>(kChunk + 16);  // its stride
  };
  const double elements = (in_chunks(s.shape.head_size) + in_chunks(s.shape.value_size)) *
                              static_cast<double>(2 * queries + 4 * keys) +
                          static_cast<double>(keys * kQueries);
  const double packed = elements * static_cast<double>(size_of(s.shape.arithmetic));
  const std::int64_t sums = s.gradients && s.bias ? bias_thread_bytes(s) : 0;
  return core::bytes_of_estimate((packed + static_cast<double>(decode_thread_bytes(s) + sums)) *
                                 static_cast<double>(threads()));
}

// Masks, a byte for each block of every distinct mask, and the workspace of the scan.
std::int64_t Plan::mask_bytes() const {
  const CheckedArguments& s = setup;
  if (masks.empty()) return 0;
  double states = 0;
  for (std::int64_t n = 0; n < masks.distinct_entries(); ++n) {
    const std::int64_t e = masks.entry_of_row(n);
    states += static_cast<double>(core::ceil_div(s.q_length(e), s.block.q)) *
                  static_cast<double>(core::ceil_div(s.kv_length(e), s.block.kv)) +
              static_cast<double>(sizeof(MaskTiles));
  }
  const auto scan = blocks::scan_bytes(s.longest_queries(), s.longest_keys(), s.block,
                                       blocks::Patterns::dropped, blocks::Reading::in_order);
  return core::sum_of_bytes({masks.bytes(),
                             core::bytes_of_estimate(states * static_cast<double>(masks.distinct_heads())),
                             scan.value_or(core::kMostBytes)});
}

namespace {

DType checked_result(DType dtype) {
  if (is_wide_float(dtype)) return dtype;
  throw core::invalid("a result must be float16, bfloat16, float32 or float64, not {}", name_of(dtype));
}

std::vector<PlannedArray> results_of(const AttentionTypes& types, const AttentionSettings& settings,
                                     const CheckedArguments& setup) {
  std::vector<PlannedArray> results;
  const auto add = [&](const char* name, const Shape& shape, DType dtype) {
    results.push_back({name, ArrayType(checked_result(dtype), shape)});
  };
  if (!types.dout) {
    add("out", setup.shape.out, settings.dtype.value_or(types.q->dtype));
    add("lse", setup.shape.lse, setup.shape.arithmetic);
    return results;
  }
  for (const ResultRow& row : kResults) {
    if (row.gradient == nullptr || !(types.*row.gradient)) continue;
    const ArrayType& of = *(types.*row.gradient);
    const DType computed = checked_result(settings.dtype.value_or(of.dtype));
    add(row.name, of.shape, settings.grad_dtype.value_or(computed));
  }
  if (settings.sinks)
    add("dsinks", settings.sinks->shape(),
        settings.grad_dtype.value_or(checked_result(settings.dtype.value_or(settings.sinks->dtype()))));
  return results;
}

std::vector<std::string> settle_first_axes(std::vector<HeadMasks>& parts, const CheckedArguments& setup) {
  std::vector<std::string> of_either;
  for (HeadMasks& part : parts)
    if (settle_first_axis(part, setup.shape.entries, setup.shape.heads)) of_either.push_back(part.name);
  return of_either;
}

}  // namespace

Plan::Plan(const AttentionTypes& arguments, const AttentionSettings& wanted)
    : types(arguments),
      settings(wanted),
      setup(check_arguments(types, settings)),
      masks_of_either(settle_first_axes(settings.masks, setup)),
      masks(masks_of(setup, settings)),
      results(results_of(types, settings, setup)) {
  if (settings.grad_dtype) rounded_first = settings.dtype;
}

std::int64_t Plan::result_bytes() const {
  std::int64_t all = 0;
  for (const PlannedArray& result : results) all = core::sum_of_bytes({all, result.type.bytes()});
  return all;
}

const MaskPlan& Plan::blocks() const {
  std::call_once(read_,
                 [&] { blocks_.emplace(setup, masks, settings.comm ? *settings.comm : single_process()); });
  return *blocks_;
}

}  // namespace attn

AttentionPlan::AttentionPlan(const AttentionTypes& types, const AttentionSettings& settings)
    : plan_(std::make_shared<const attn::Plan>(types, settings)) {}

const std::vector<PlannedArray>& AttentionPlan::results() const { return plan_->results; }

std::int64_t AttentionPlan::result_bytes() const { return plan_->result_bytes(); }

std::int64_t AttentionPlan::work_bytes() const {
  return core::sum_of_bytes({attn::thread_bytes(plan_->setup), plan_->mask_bytes(),
                             attn::part_bytes(*plan_, attn::whole_part(*plan_))});
}

std::int64_t AttentionPlan::mask_bytes() const { return plan_->mask_bytes(); }

const AttentionWork& AttentionPlan::work() const { return plan_->blocks().work(); }

double AttentionPlan::flop() const { return work().backward_flop.value_or(work().forward_flop); }

const MaskSet& AttentionPlan::masks() const { return plan_->masks; }

const std::vector<std::string>& AttentionPlan::masks_of_either() const { return plan_->masks_of_either; }

}  // namespace ejk
