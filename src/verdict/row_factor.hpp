// The fault of a factor that differs from row to row: weights of tokens, scales of quantised rows.
// tests: tests/verdict/matmul/test_fault_models.cpp
#pragma once

#include <optional>

#include "verdict/fault_search.hpp"

namespace ejk::verify {

/// Rows that are multiplied by factors, each fitted to the row; `one`: what a row is. None where rows of a part, such
/// as a group, have the same factor: explain_rows names these. `result` outlives the model.
std::optional<FaultModel> factor_of_each_row(const ResultRows& result, const FaultSearch& search,
                                             const std::string& one, double row_nanoseconds);

}  // namespace ejk::verify
