// Comparison of another implementation's results of attention with the reference.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "attention/bounds.hpp"
#include "attention/operands.hpp"
#include "attention/plan.hpp"
#include "attention/reference.hpp"
#include "attention/rows.hpp"
#include "attention/weights.hpp"
#include "ejk/against.hpp"
#include "verify/against.hpp"

namespace ejk::attn {

struct ActualArray {
  Result which;
  verify::ResultRows rows;
  verify::RowCounts counts;
};

struct ActualAttention {
  const Plan& plan;
  const CheckedArguments& setup;
  const AttentionArrays& arrays;
  Rows queries, keys, bias;
  Bounds bounds;
  WeightRounding rounding;                  // of the kernel's weights
  const Reference::Saved* saved = nullptr;  // lse and δ of the expected forward pass; of gradients

  const Rows& rows_of(Result which) const {
    const RowsOf of = row_of(which).form.rows;
    return of == RowsOf::bias ? bias : of == RowsOf::keys ? keys : queries;
  }
};

Against compare(const Plan& plan, const AttentionArrays& arrays, const std::vector<ArrayView>& own,
                const std::vector<std::optional<ArrayView>>& given, DType weights, Explain explain,
                double effort, const std::vector<TriedMask>& tried = {},
                const std::vector<std::string>& tiles = {});

std::int64_t compare_bytes(const Plan& plan, Explain explain, double effort);

}  // namespace ejk::attn
