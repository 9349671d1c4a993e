// Partition of a grouped product into output boxes, one set per rank. Every part spans the full contraction
// and starts at a tile boundary, so each element has the bits of the undivided result. The small-M path is
// chosen by a group's total rows, not by a part's.
// tests: tests/matmul/test_parts.cpp
#pragma once

#include <cstdint>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/grouped_matmul.hpp"
#include "matmul/problem.hpp"
#include "matmul/product.hpp"

namespace ejk::matmul {

/// Rows and columns of the result; in transposed products rows of each of these groups' matrices.
struct Part {
  IndexRange groups;  // unused in plain products
  IndexRange rows, columns;
};

Arithmetic arithmetic_of(const Problem& problem);

Part whole_part(const Problem& problem);

/// Throws Error{input} for a box that is not within the result, or whose columns begin or end within a tile.
Part part_of(const Problem& problem, const ArrayBox& box);
ArrayBox box_of(const Problem& problem, const Part& part);

/// The computed groups that make elements of it, and empty ones between them.
IndexRange groups_of(const Problem& problem, const Part& part);

GroupedMatmulNeeds needs_of(const Problem& problem, const Part& part);

double flop_of(const Problem& problem, const Part& part);

/// The parts of each rank. The same on every instruction set.
std::vector<std::vector<Part>> divide(const Problem& problem, std::int64_t ranks);

}  // namespace ejk::matmul
