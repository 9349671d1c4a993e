// The plain evaluation of both grouped products, in higher precision than theirs: what they mean, a way to
// compute them anywhere, and what results are checked against.
//
// A product is cut by groups: the rows of the result that belong to one are a matrix times a matrix. In the
// transposed product a is lhs itself and the group runs along the contraction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/elements.hpp"
#include "ejk/array.hpp"
#include "matmul/problem.hpp"

namespace ejk::matmul {

/// Rows `row`, row + 1, … of the result, which is seen as a matrix of n columns, are a (rows, K) · b (K, n).
struct GroupProduct {
  ArrayView a;
  ArrayView b;
  std::int64_t row = 0;
};

/// The products that make up a result, in order of their rows; those of empty groups only where these have
/// rows in the result.
std::vector<GroupProduct> products_of(const Problem& problem, const ArrayView& lhs, const ArrayView& rhs);

/// `extended` is long double; float64 factors need it, as the products of all others are exact in float64.
enum class Precision { float64, extended };

Precision precision_for(const ArrayView& a, const ArrayView& b);

using core::load;

/// float64 as `count` elements of another type, one after the other, each rounded once.
void store(const double* from, std::int64_t count, DType dtype, std::byte* out);

/// For the chosen rows of the product and `columns` columns from `first` on: sums[i, j] = Σ a·b and, where
/// asked for, magnitudes[i, j] = Σ |a|·|b|, in which factors below the normal float32 count
/// `subnormal_weight` times.
void multiply_rows(const GroupProduct& product, std::span<const std::int64_t> rows, std::int64_t first,
                   std::int64_t columns, double* sums, double* magnitudes = nullptr,
                   double subnormal_weight = 1);

/// Either product with sums in higher precision, into C-ordered memory, which may be existing_out's; it has no
/// use for a tiling. Time: a few nanoseconds a multiply-add and thread for float64 factors, about one for
/// others.
void reference_product(const Problem& problem, const Operands& operands, std::byte* to,
                       const WorkProgress& progress = {});

}  // namespace ejk::matmul
