// Fault models of grouped products, for results that are out of tolerance.
#pragma once

#include "matmul/against.hpp"
#include "verify/against.hpp"

namespace ejk::matmul {

void explain(const ActualProduct& given, const verify::ResultRows& rows, const verify::RowCounts& counts,
             Against& against);

}  // namespace ejk::matmul
