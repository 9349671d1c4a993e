// The usual mistakes of grouped products, tried on rows that are beyond their bound.
#pragma once

#include "matmul/against.hpp"
#include "verify/against.hpp"

namespace ejk::matmul {

/// Adds to `against` what makes the elements agree that are beyond their bound.
void explain(const GivenProduct& given, const verify::ResultRows& rows, const verify::RowCounts& counts,
             Against& against);

}  // namespace ejk::matmul
