// The report of attention: what was computed of what could have been.
// tests: tests/attention/test_attention.cpp
#include <fmt/format.h>

#include "ejk/attention.hpp"
#include "ejk/text.hpp"

namespace ejk {

namespace {

// A whole number while a double can tell it from its neighbours.
ReportValue count_of(double value) {
  return value < 0x1p53 ? ReportValue(static_cast<std::int64_t>(value)) : ReportValue(value);
}

ReportValue share_of(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? ReportValue(static_cast<double>(part) / static_cast<double>(whole)) : ReportValue();
}

}  // namespace

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
    report.warnings.push_back(
        fmt::format("{} of {} queries have no key to attend to: their results are 0, their lse is -inf",
                    format_count(w.rows_without_key), format_count(w.rows)));
  }
  if (w.rows_not_finite > 0)
    report.warnings.push_back(fmt::format(
        "{} of {} queries have scores that are NaN or infinite, and so are their results: the first is "
        "(entry, "
        "head, query) {}",
        format_count(w.rows_not_finite), format_count(w.rows), to_string(w.first_row_not_finite)));
  report.add("forward", "forward, exact for the mask", count_of(w.forward_flop), Unit::flop);
  return report;
}

}  // namespace ejk
