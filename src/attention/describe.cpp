// Reports of attention: the plan, and the computed part of all pairs.
// tests: tests/attention/test_attention.cpp
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "attention/plan.hpp"
#include "ejk/program/text.hpp"

namespace ejk {

Report describe(const AttentionWork& w) {
  Report report;
  report.add("block", "block", Shape{w.block.q, w.block.kv}, Unit::count)
      .add("problems", "problems (entries x heads)", w.problems, Unit::count)
      .add("distinct_masks", "distinct masks", w.distinct_masks, Unit::count)
      .add("dense_pairs", "pairs of a query and a key", w.dense_pairs, Unit::count)
      .add("allowed_pairs", "that attend", w.allowed_pairs, Unit::count)
      .add("computed_pairs", "computed", w.computed_pairs, Unit::count)
      .add("computed_share", "share computed", share_of(w.computed_pairs, w.dense_pairs), Unit::share)
      .add("empty_blocks", "empty blocks, skipped", w.empty_blocks, Unit::blocks)
      .add("partial_blocks", "partial blocks", w.partial_blocks, Unit::blocks)
      .add("full_blocks", "full blocks", w.full_blocks, Unit::blocks)
      .add("rows", "queries", w.rows, Unit::rows)
      .add("rows_without_key", "without a key", w.rows_without_key, Unit::rows);
  if (!w.alignment.empty())
    report.add("alignment", "alignment", fmt::format("{}", fmt::join(w.alignment, "; ")));
  if (w.rows_without_key > 0) {
    report.add("first_row_without_key", "the first (entry, head, query)", w.first_row_without_key);
    report.warnings.push_back(fmt::format("{} of {} queries have no key to attend to: their {}",
                                          format_count(w.rows_without_key), format_count(w.rows),
                                          w.without_key));
  }
  if (w.rows_not_finite > 0)
    report.warnings.push_back(fmt::format(
        "{} of {} queries have scores that are NaN or infinite, and so are their results: the first is "
        "(entry, "
        "head, query) {}",
        format_count(w.rows_not_finite), format_count(w.rows), to_string(w.first_row_not_finite)));
  if (!w.max_logits.empty())
    report.add("max_logit", "largest score", *std::max_element(w.max_logits.begin(), w.max_logits.end()));
  report.add("forward", "forward, exact for the mask", whole_number(w.forward_flop), Unit::flop);
  if (w.backward_flop)
    report.add("backward", "backward, the same", whole_number(*w.backward_flop), Unit::flop);
  return report;
}

Report describe(const AttentionPlan& plan) {
  const attn::Plan& p = plan.internal();
  const attn::Sizes& s = p.setup.shape;
  const AttentionTypes& types = p.types;
  Report report;
  report.add("layout", "layout", std::string(name_of(p.setup.layout)))
      .add("q", "q", types.q->shape)
      .add("k", "k", types.k->shape)
      .add("v", "v", types.v->shape)
      .add("dtypes", "dtypes",
           fmt::format("{}, {}, {}", name_of(types.q->dtype), name_of(types.k->dtype),
                       name_of(types.v->dtype)))
      .add("arithmetic", "arithmetic", std::string(name_of(s.arithmetic)))
      .add("entries", p.setup.packed() ? "sequences" : "batch entries", s.entries, Unit::count)
      .add("heads", "query heads", s.heads, Unit::count)
      .add("kv_heads", "key/value heads", s.kv_heads, Unit::count)
      .add("head_size", "size of a head", s.head_size, Unit::count)
      .add("value_size", "size of a value", s.value_size, Unit::count)
      .add("scale", "scale", p.setup.scale);
  if (p.setup.has_padding()) {
    const auto padding = [](const std::vector<std::int64_t>& offsets,
                            const std::vector<std::int64_t>& lengths) {
      return offsets.back() - std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    };
    report.add("padding", "padding of queries, keys",
               Shape{padding(p.setup.q_offsets, p.setup.q_lengths),
                     padding(p.setup.kv_offsets, p.setup.kv_lengths)});
  }
  const AttentionConventions& c = p.settings.conventions;
  if (p.setup.softcap > 0)
    report.add("softcap", "soft cap", p.setup.softcap)
        .add("softcap_order", "of bias and ALiBi, it is", std::string(name_of(c.softcap_order)));
  if (!p.setup.slopes.empty()) report.add("alibi", "ALiBi", std::string(name_of(c.alibi_form)));
  if (p.setup.has_sinks())
    report.add("sinks", "sinks", std::string(c.lse_sink == LseSink::in ? "in lse" : "not in lse"));
  if (p.setup.dropout)
    report.add("keep_probability", "dropout keeps with the probability", p.settings.keep_probability);
  if (!p.setup.gradients)
    report.add("lse_base", "base of lse", std::string(name_of(c.lse_base)))
        .add("lse_empty", "lse without a key", std::string(name_of(c.lse_empty)));
  report.add("masked_rows", "out without a key", std::string(name_of(c.masked_rows)));
  if (p.setup.gradients) report.add("saved", "out and lse", std::string(types.out ? "given" : "computed"));
  for (const auto& [name, type] : p.results)
    report.add(name, name, type.shape).add(name + "_dtype", "of dtype", std::string(name_of(type.dtype)));
  report.add("size", "size", plan.result_bytes(), Unit::bytes);
  return report;
}

}  // namespace ejk
