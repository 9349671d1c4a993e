// Comparison of the largest score of each head with the library's own, within the bounds of both: those of an
// lse of the same size. Where scores are scaled products alone, a wrong scale is a factor of all of them.
// Cost: one pass over the inputs, for the bounds.
// tests: tests/verdict/attention/test_max_logits.cpp
#include <algorithm>
#include <cmath>
#include <numbers>

#include "attention/plan.hpp"
#include "ejk/attention_check.hpp"
#include "verdict/against.hpp"
#include "verdict/attention/bounds.hpp"
#include "verdict/attention/rows.hpp"

namespace ejk {

namespace {

constexpr const char* kMaxLogits = "max_logits";

verify::ResultRows largest_scores(const attn::CheckedArguments& setup, const attn::MaskPlan& blocks,
                                  const std::vector<double>& own, const ArrayView& given) {
  const DType own_type = setup.shape.arithmetic,
              given_type = given.dtype == DType::float64 ? own_type : DType::float32;
  const attn::Rows queries(setup, attn::RowsOf::queries);
  const attn::Bounds::Rounding narrow = attn::Bounds::rounding(given.dtype);
  std::vector<double> allowed(own.size());
  for (const DType arithmetic : {given_type, own_type}) {
    const attn::Bounds bounds(setup, blocks, arithmetic);
    for (std::size_t h = 0; h < own.size(); ++h) {
      double most = 0;
      for (std::int64_t e = 0; e < setup.shape.entries; ++e) {
        const attn::Bounds::Part& part = bounds.of(queries, {e, static_cast<std::int64_t>(h), 0});
        most = std::max(most, part.of_lse(own[h]) / part.lse_unit);
      }
      allowed[h] += most;
    }
  }
  for (std::size_t h = 0; h < own.size(); ++h)
    allowed[h] += narrow.least + (std::isfinite(own[h]) ? narrow.relative * std::abs(own[h]) : 0);

  verify::ResultRows rows;
  rows.name = kMaxLogits;
  rows.dtype = given.dtype;
  rows.rows = std::ssize(own), rows.columns = 1;
  rows.axes = {{"head", "heads", rows.rows, verify::RowAxis::Kind::part}};
  rows.array_axes = {0};
  rows.place = [](std::int64_t row, std::int64_t* at) { *at = row; };
  rows.index = [](std::int64_t row, std::int64_t) { return Shape{row}; };
  rows.given = [given](std::int64_t row, double* value) { *value = attn::load_lse(given, {row}); };
  rows.expected = [own, allowed](std::int64_t row, double* value, double* of_row) {
    *value = own[static_cast<std::size_t>(row)], *of_row = allowed[static_cast<std::size_t>(row)];
  };
  return rows;
}

// What makes all heads out of tolerance the same multiple of their scores; empty: nothing.
Explanation wrong_factor(const verify::ResultRows& rows, const verify::RowCounts& counts, double scale) {
  const struct {
    double factor;
    const char *kind, *text;
  } causes[] = {
      {1 / scale, "scale", "the scale is left out"},
      {scale, "scale", "the scale is applied twice"},
      {std::numbers::log2e, "scale", "the scores are times log2(e)"},
      {std::numbers::log2e / scale, "scale", "the scale is left out, and the scores are times log2(e)"}};
  for (const auto& cause : causes) {
    verify::Row it(1);
    const auto fits = [&](std::int64_t row) {
      if (counts.beyond[static_cast<std::size_t>(row)] == 0) return true;
      it.load(rows, row);
      return std::isfinite(it.expected[0]) && std::abs(it.value[0] - cause.factor * it.expected[0]) <=
                                                  std::max(1.0, std::abs(cause.factor)) * it.allowed[0];
    };
    std::int64_t row = 0;
    while (row < rows.rows && fits(row)) ++row;
    if (row == rows.rows) return {cause.kind, cause.text, 1};
  }
  return {};
}

}  // namespace

void compare_max_logits(const AttentionPlan& plan, const AttentionArrays& arrays,
                        const std::vector<double>& own, const std::optional<ArrayView>& given,
                        Against& against) {
  if (!given) {
    against.not_given.emplace_back(kMaxLogits);
    return;
  }
  verify::require_given(*given, {std::ssize(own)}, kMaxLogits, kMaxLogits);
  const attn::Plan& internal = plan.internal();
  const attn::CheckedArguments setup =
      attn::bound(internal.setup, internal.types, arrays, attn::SavedResults::ignored);
  const verify::ResultRows rows = largest_scores(setup, internal.blocks(), own, *given);
  const verify::RowCounts counts = verify::compare_rows(rows, against, 0);
  const std::int64_t beyond = counts.bad_rows();
  if (!against.tried || beyond == 0) return;
  const bool is_product = !setup.bias && setup.softcap == 0 && !internal.settings.alibi && setup.scale > 0;
  Explanation cause = is_product ? wrong_factor(rows, counts, setup.scale) : Explanation{};
  if (!cause.text.empty()) {
    against.explanations.push_back({std::move(cause), kMaxLogits});
    return;
  }
  verify::WorstElement worst;
  verify::Row it(1);
  const verify::FloatType type = verify::float_type(rows.dtype);
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    it.load(rows, row);
    worst.see(rows, type, it, row, 0);
  }
  against.unexplained.push_back({kMaxLogits, beyond, 1, std::move(worst.element)});
}

}  // namespace ejk
