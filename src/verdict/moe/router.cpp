// The weights of another router, token by token, beside those of the same logits. Cost: a score for each expert of a
// token, a few times.
// tests: tests/verdict/moe/test_router.cpp
#include <algorithm>
#include <cmath>
#include <cstring>

#include "compare/float_type.hpp"
#include "core/elements.hpp"
#include "ejk/matmul_check.hpp"
#include "verdict/against.hpp"
#include "verdict/fault_search.hpp"
#include "verdict/moe/layer.hpp"

namespace ejk {

namespace {

// A float32 softmax or sigmoid, and a sum of k weights.
constexpr double kOfScores = 32 * 0x1p-24;

double allowed_of(DType dtype, double weight) {
  const verify::FloatType type = verify::float_type(dtype);
  return (type.epsilon() + kOfScores) * std::abs(weight) + type.spacing_at(0);
}

}  // namespace

Against compare_weights(const ArraySource& logits, const RouterSettings& settings,
                        const ArraySource& topk_ids, const ArrayView& given, Explain explain) {
  verify::require_given(given, topk_ids.shape(), "topk_weights", "given");
  const Array right = weights_of_choices(logits, settings, topk_ids);
  const std::int64_t k = settings.top_k;
  verify::ResultRows rows = moe_verdict::rows_of_tokens("topk_weights", given, "choice", "choices");
  const auto load = [&](const Array& from, std::int64_t row, std::int64_t column, double& value,
                        double& allowed) {
    value = from.elements<double>()[static_cast<std::size_t>(row * k + column)];
    allowed = allowed_of(given.dtype, value);
  };
  rows.expected = [&](std::int64_t row, double* values, double* allowed) {
    for (std::int64_t c = 0; c < k; ++c) load(right, row, c, values[c], allowed[c]);
  };
  Against against;
  const verify::RowCounts counts = verify::compare_rows(rows, against, 0);
  against.tried = explain == Explain::yes;
  if (explain == Explain::no || against.agrees()) return against;
  const double nanoseconds = 20 * static_cast<double>(k);
  verify::FaultSearch search(rows, counts, nanoseconds);
  const std::vector<OtherWeights> others = wrong_weights_of_choices(logits, settings, topk_ids);
  std::vector<verify::FaultModel> models;
  for (const OtherWeights& other : others)
    models.push_back({"weights", other.text,
                      [&load, &other](std::int64_t row, std::span<const std::int64_t> columns, double* values,
                                      double* allowed) {
                        for (std::size_t c = 0; c < columns.size(); ++c)
                          load(other.weights, row, columns[c], values[c], allowed[c]);
                        return true;
                      }});
  search.report(search.run(models), against);
  return against;
}

}  // namespace ejk
