// Comparison with the reference: of the library's results, and of another implementation's. The effort is a
// parameter: tests sample small problems with it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "attention/operands.hpp"
#include "attention/plan.hpp"
#include "ejk/against.hpp"
#include "ejk/attention_check.hpp"
#include "verdict/against.hpp"
#include "verdict/attention/bounds.hpp"
#include "verdict/attention/reference.hpp"
#include "verdict/attention/rows.hpp"
#include "verdict/attention/weights.hpp"

namespace ejk::attn {

/// Multiply-adds of the reference: up to this number all rows are evaluated, else a sample.
inline constexpr double kCheckEffort = 0x1p30;

AttentionCheck check(const Plan& plan, const AttentionArrays& arrays, const std::vector<ArrayView>& results,
                     double effort);

/// Workspace of it: rows of the reference, and for gradients lse, δ and a forward pass.
std::int64_t check_bytes(const Plan& plan);

struct ActualArray {
  Result which;
  verify::ResultRows rows;
  verify::RowCounts counts;
};

struct ActualAttention {
  const Plan& plan;
  const CheckedArguments& setup;
  const AttentionArrays& arrays;
  Rows queries, keys, bias, sinks;
  Bounds bounds;
  SoftmaxTypes types;
  WeightRounding rounding;                  // of the kernel's weights and scores
  const Reference::Saved* saved = nullptr;  // lse and δ of the expected forward pass; of gradients

  const Rows& rows_of(Result which) const {
    const RowsOf of = row_of(which).form.rows;
    return of == RowsOf::sinks ? sinks : of == RowsOf::bias ? bias : of == RowsOf::keys ? keys : queries;
  }
};

Against compare(const Plan& plan, const AttentionArrays& arrays, const std::vector<ArrayView>& own,
                const std::vector<std::optional<ArrayView>>& given, const SoftmaxTypes& types,
                Explain explain, double effort, const Tried& tried = {},
                const std::vector<std::string>& tiles = {}, const OtherResults& other = {});

std::int64_t compare_bytes(const Plan& plan, Explain explain, double effort);

/// The reference of `out` in float64 with the bounds of results of a type, by the rows of Rows. Cost: the reference.
class ExpectedRows {
 public:
  ExpectedRows(const Plan& plan, const AttentionArrays& arrays, DType dtype, const SoftmaxTypes& types);
  ~ExpectedRows();
  ExpectedRows(const ExpectedRows&) = delete;
  ExpectedRows& operator=(const ExpectedRows&) = delete;

  void row(std::int64_t row, double* values, double* allowed) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Adds explanations of the elements out of tolerance by fault models. `arrays`: all results; `tried`: tried
/// first.
void explain(const ActualAttention& given, const std::vector<std::unique_ptr<ActualArray>>& arrays,
             const Tried& tried, Against& against);

double explain_bytes(const CheckedArguments& setup);

}  // namespace ejk::attn
