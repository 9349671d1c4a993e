// The usual mistakes of grouped products, tried on rows that are beyond their bound.
#pragma once

#include <vector>

#include "matmul/against.hpp"
#include "verify/against.hpp"

namespace ejk::matmul {

/// What makes the rows agree that are beyond their bound, best first.
std::vector<Explanation> explanations_of(const GivenProduct& given, const verify::ResultRows& rows,
                                         const verify::RowCounts& counts);

}  // namespace ejk::matmul
