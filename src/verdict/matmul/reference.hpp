// The reference of both grouped products, in higher precision. The rows of the result of a group are a
// product of two matrices; in the transposed product a is lhs itself, and the group is a range of the
// contraction. Rows of no product are 0 or existing_out's. Time: about a nanosecond a multiply-add, a few for
// float64 factors.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/elements.hpp"
#include "ejk/array.hpp"
#include "matmul/problem.hpp"

namespace ejk::matmul {

struct GroupProduct {
  ArrayView a;
  ArrayView b;
  std::int64_t row = 0;
};

ArrayView rows_from(const ArrayView& matrix, std::int64_t begin, std::int64_t end);
ArrayView columns_from(const ArrayView& matrix, std::int64_t begin, std::int64_t end);
ArrayView transposed(const ArrayView& matrix);

/// In order of their rows; those of empty groups only where these have rows in the result.
std::vector<GroupProduct> products_of(const Problem& problem, const ArrayView& lhs, const ArrayView& rhs);
double multiply_adds(std::span<const GroupProduct> products);

/// `extended` is long double; float64 factors need it, as the products of all others are exact in float64.
enum class Precision { float64, extended };

Precision precision_for(const ArrayView& a, const ArrayView& b);

using core::load;

/// For the chosen rows and `columns` columns from `first` on: sums[i, j] = Σ a·b and, if not null,
/// magnitudes[i, j] = Σ |a|·|b|, where factors below the normal float32 count `subnormal_weight` times.
void multiply_rows(const GroupProduct& product, std::span<const std::int64_t> rows, std::int64_t first,
                   std::int64_t columns, double* sums, double* magnitudes = nullptr,
                   double subnormal_weight = 1);

}  // namespace ejk::matmul
