// Grouped matmul: every group of rows times a matrix of its own, and the transposed product that its backward
// pass needs.
//
// Arithmetic: with both factors bfloat16 their products are exact and sums are float32; with a float64 factor
// both are taken as float64; else both are taken as float32. Sums begin with +0 and run over the contraction
// in blocks of a fixed length; one conversion to the result's dtype ends them. So the same instruction set
// gives the same bits for any number of threads. bfloat16 instructions (AVX-512 BF16, AMX) take subnormal
// factors and results for 0. NaN and infinities stay in their row of lhs and in their group. Source: megablox
// in JAX and ejkernel's grouped matmul; src/matmul/grouped.cpp states the procedure.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "ejk/array.hpp"
#include "ejk/dtype.hpp"

namespace ejk {

/// How the work is cut: rows, contraction length and columns of a block, each ≥ 1. It decides the order of
/// sums and the speed, nothing else.
struct Tiling {
  std::int64_t tm = 0;
  std::int64_t tk = 0;
  std::int64_t tn = 0;
};

/// What existing_out is for: `keep` leaves its rows where nothing is computed and writes over the others (one
/// result, filled shard by shard); `add` adds the products to it everywhere.
enum class Existing { keep, add };

struct GroupedMatmulOptions {
  DType dtype = DType::float32;  // of the result: float16, bfloat16, float32, float64
  std::optional<Tiling> tiling;  // absent: chosen by shape and instruction set
  std::int64_t group_offset = 0;
  bool transpose_rhs = false;
  std::optional<ArrayView> existing_out;  // (m, n), of the result's dtype
  Existing existing = Existing::keep;
  bool strict = false;  // tm divides m (where a tiling is given) and the sizes sum to m
  std::function<void(std::int64_t done, std::int64_t all)> progress;  // any thread, one at a time
};

/// lhs (m, k), rhs (R, k, n) or with transpose_rhs (R, n, k), group_sizes (G,) → (m, n). rhs[r] belongs to
/// group group_offset + r, R ≤ G − group_offset. Rows of other groups, or of none, are 0, or existing_out's.
/// Factors: float16, bfloat16, float32, float64, any strides. Throws Error{input}, with the numbers: ranks,
/// dtypes, k, R outside of the groups, group sizes (groups.hpp), existing_out's shape and dtype;
/// Error{usage}: a group_offset beyond the groups.
Array grouped_matmul(const ArrayView& lhs, const ArrayView& rhs, const ArraySource& group_sizes,
                     const GroupedMatmulOptions& options = {});

/// The same into C-ordered memory of m · n elements; it may be existing_out's own.
void grouped_matmul_into(const ArrayView& lhs, const ArrayView& rhs, const ArraySource& group_sizes,
                         const GroupedMatmulOptions& options, void* out);

struct TransposedGroupedMatmulOptions {
  DType dtype = DType::float32;
  std::optional<Tiling> tiling;
  std::int64_t group_offset = 0;
  std::optional<std::int64_t> num_actual_groups;  // A; absent: all from group_offset on
  std::optional<ArrayView> existing_out;          // (A, k, n), of the result's dtype: added
  bool strict = false;
  std::function<void(std::int64_t done, std::int64_t all)> progress;
};

/// lhs (k, m), rhs (m, n), group_sizes (G,) → (A, k, n): out[a] = lhs[:, s_g:e_g] · rhs[s_g:e_g, :], where
/// g = group_offset + a. An empty group gives zeros. Errors as above, and a num_actual_groups beyond the
/// groups.
Array transposed_grouped_matmul(const ArrayView& lhs, const ArrayView& rhs, const ArraySource& group_sizes,
                                const TransposedGroupedMatmulOptions& options = {});

void transposed_grouped_matmul_into(const ArrayView& lhs, const ArrayView& rhs,
                                    const ArraySource& group_sizes,
                                    const TransposedGroupedMatmulOptions& options, void* out);

/// The shape that the result will have. Makes all checks that the functions above make.
Shape grouped_matmul_shape(const ArrayView& lhs, const ArrayView& rhs, const ArraySource& group_sizes,
                           const GroupedMatmulOptions& options = {});
Shape transposed_grouped_matmul_shape(const ArrayView& lhs, const ArrayView& rhs,
                                      const ArraySource& group_sizes,
                                      const TransposedGroupedMatmulOptions& options = {});

/// Bytes that the functions above take beside the arrays, on as many threads as there are now. Of lhs, rhs
/// and existing_out only dtypes, shapes and strides are looked at; the same checks.
std::int64_t grouped_matmul_work_bytes(const ArrayView& lhs, const ArrayView& rhs,
                                       const ArraySource& group_sizes,
                                       const GroupedMatmulOptions& options = {});
std::int64_t transposed_grouped_matmul_work_bytes(const ArrayView& lhs, const ArrayView& rhs,
                                                  const ArraySource& group_sizes,
                                                  const TransposedGroupedMatmulOptions& options = {});

}  // namespace ejk
