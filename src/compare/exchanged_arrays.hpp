// Arrays that hold what belongs to others, as exchanged experts, layers or projections do: candidates by a few
// elements of each array, and how confirmed ones are described.
// tests: tests/compare/test_exchanged_arrays.cpp
#pragma once

#include <vector>

#include "ejk/program/compare_files.hpp"

namespace ejk::verify {

/// For pairs that differ, the pair whose expected array resembles their actual array most: clearly more than any
/// other, their own among them. Cost: 64 elements of the arrays of the shapes in question; memory
/// resemblance_bytes.
std::vector<ArrayMove> resembling_arrays(const std::vector<ArrayPair>& pairs,
                                         const std::vector<bool>& differing);
std::int64_t resemblance_bytes(const std::vector<ArrayPair>& pairs);

/// Moves by kind: "exchanged", "repeated" where the source is where it belongs, or "permuted". Arrays whose names
/// differ in one part are one row: "experts.3.* and experts.5.* are exchanged".
Table table_of(const std::vector<ArrayMove>& moves, const std::vector<ArrayPair>& pairs);

}  // namespace ejk::verify
