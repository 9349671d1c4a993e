// Grouped matmul: each group of rows times its own matrix, and the transposed product of the backward pass.
//
// Arithmetic: with both factors bfloat16 their products are exact and sums are float32; with a float64 factor
// both are converted to float64; otherwise to float32. Sums begin with +0 and run over the contraction
// in blocks of a fixed length; one conversion to the result's dtype ends them. So the same instruction set
// gives the same bits for any number of threads. bfloat16 instructions (AVX-512 BF16, AMX) take subnormal
// factors and results for 0. NaN and infinities stay in their row of lhs and in their group. Source: megablox
// in JAX and ejkernel's grouped matmul; src/matmul/grouped.cpp states the procedure.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/communicator.hpp"
#include "ejk/dtype.hpp"
#include "ejk/integer_array.hpp"

namespace ejk {

/// Block size: rows, contraction length and columns, each ≥ 1. It determines the order of sums and the speed
/// only.
struct Tiling {
  std::int64_t tm = 0;
  std::int64_t tk = 0;
  std::int64_t tn = 0;
};

/// "128x256x256".
std::string to_string(const Tiling& tiling);

/// Use of existing_out: `keep` preserves its rows where nothing is computed and overwrites the others (a
/// result that is filled shard by shard); `add` accumulates the products into it.
enum class Existing { keep, add };

class TilingTable;   // tiling.hpp
struct MatmulCheck;  // matmul_check.hpp
struct Against;      // against.hpp
enum class Explain;  // against.hpp
struct Report;       // report.hpp

/// Called with the work done and the total; from any thread, one call at a time.
using WorkProgress = std::function<void(std::int64_t done, std::int64_t all)>;

/// Settings of a grouped product.
struct GroupedMatmulSettings {
  DType dtype = DType::float32;               // of the result: float16, bfloat16, float32, float64
  std::optional<Tiling> tiling;               // absent: the table's, or chosen by shape and instruction set
  const TilingTable* tiling_table = nullptr;  // used if no tiling is given
  std::int64_t group_offset = 0;
  bool transpose_rhs = false;
  Existing existing = Existing::keep;
  bool strict = false;  // tm divides m (where a tiling is given) and the sizes sum to m
};

struct TransposedGroupedMatmulSettings {
  DType dtype = DType::float32;
  std::optional<Tiling> tiling;
  const TilingTable* tiling_table = nullptr;
  std::int64_t group_offset = 0;
  std::optional<std::int64_t> num_actual_groups;  // A; absent: all from group_offset on
  bool strict = false;
};

struct GroupedMatmulOptions : GroupedMatmulSettings {
  std::optional<ArrayView> existing_out;  // (m, n), of the result's dtype
  WorkProgress progress;
};

struct TransposedGroupedMatmulOptions : TransposedGroupedMatmulSettings {
  std::optional<ArrayView> existing_out;  // (A, k, n), of the result's dtype: added
  WorkProgress progress;
};

/// lhs (m, k), rhs (R, k, n) or with transpose_rhs (R, n, k), group_sizes (G,) → (m, n). rhs[r] belongs to
/// group group_offset + r, R ≤ G − group_offset. Rows of other groups, or of none, are 0, or existing_out's.
/// Factors: float16, bfloat16, float32, float64, any strides. Throws Error{input}, with the numbers: ranks,
/// dtypes, k, R outside of the groups, group sizes (groups.hpp), existing_out's shape and dtype;
/// Error{usage}: a group_offset beyond the groups.
Array grouped_matmul(const ArrayView& lhs, const ArrayView& rhs, const IntegerArray& group_sizes,
                     const GroupedMatmulOptions& options = {});

/// lhs (k, m), rhs (m, n), group_sizes (G,) → (A, k, n): out[a] = lhs[:, s_g:e_g] · rhs[s_g:e_g, :], where
/// g = group_offset + a. An empty group gives zeros. Errors as above, and a num_actual_groups beyond the
/// groups.
Array transposed_grouped_matmul(const ArrayView& lhs, const ArrayView& rhs, const IntegerArray& group_sizes,
                                const TransposedGroupedMatmulOptions& options = {});

namespace matmul {
struct Problem;
}

/// How the arrays of a run are given, and what compares its result, for estimates of work and memory.
struct GroupedMatmulRun {
  bool maps_lhs = false, maps_rhs = false,
       maps_existing = false;  // mapped files; else they are read into memory
  bool check = false;
  std::optional<ArrayType> given = {};  // another implementation's result
  bool maps_given = false;
  Explain explain{};
};

/// The boxes of the factors from which a box of the result is computed.
struct GroupedMatmulNeeds {
  ArrayBox lhs, rhs;
};

/// A plan of either product, constructed from types and group sizes, with the errors of the functions above.
/// It knows the type of the result and its cost, and computes and checks it.
class GroupedMatmulPlan {
 public:
  GroupedMatmulPlan(const ArrayType& lhs, const ArrayType& rhs, const IntegerArray& group_sizes,
                    const GroupedMatmulSettings& settings,
                    const std::optional<ArrayType>& existing_out = std::nullopt);
  /// The transposed product.
  GroupedMatmulPlan(const ArrayType& lhs, const ArrayType& rhs, const IntegerArray& group_sizes,
                    const TransposedGroupedMatmulSettings& settings,
                    const std::optional<ArrayType>& existing_out = std::nullopt);

  /// The result, in C order.
  const ArrayType& out() const;
  /// The given tiling, or that of the table.
  const std::optional<Tiling>& tiling() const;
  /// 2 for a multiply-add.
  double flop() const;
  /// Work, bytes moved and peak memory of each of `ranks` ranks, which compute the boxes of divide(), on as
  /// many threads as there are now. Rank 0 alone checks and compares: it reads all of the arguments, and the
  /// others send it their boxes.
  std::vector<RankWork> work(std::int64_t ranks, const GroupedMatmulRun& run) const;

  /// Writes the result to `out`, which may be the memory of existing_out. Throws Error{input} for arrays of
  /// other types than planned; strides may differ.
  void run(const ArrayView& lhs, const ArrayView& rhs, const std::optional<ArrayView>& existing_out,
           const MutableArrayView& out, const WorkProgress& progress = {}) const;

  /// Partition of the result into boxes of each rank. No bit of the result depends on the cuts. Work and
  /// bytes are balanced; if there is little work, some ranks get none. A single rank has the whole result.
  std::vector<std::vector<ArrayBox>> divide(std::int64_t ranks) const;
  /// The operands of such a box (of existing_out it is the box itself). Throws Error{input} for a box that
  /// cannot be computed by itself.
  GroupedMatmulNeeds needs(const ArrayBox& box) const;

  /// Writes a box of the result to `out`, bit-identical to the whole. All arrays are boxes too: of the
  /// planned types and the boxes' shapes, or Error{input} is thrown.
  void run(const ArrayBox& box, const ArrayView& lhs, const ArrayView& rhs,
           const std::optional<ArrayView>& existing_out, const MutableArrayView& out,
           const WorkProgress& progress = {}) const;

  /// `out`: the result of run(), or of another program for the same arguments; existing_out: its value
  /// before. See matmul_check.hpp.
  MatmulCheck check(const ArrayView& lhs, const ArrayView& rhs, const std::optional<ArrayView>& existing_out,
                    const ArrayView& out, const WorkProgress& progress = {}) const;

  /// `given` is another implementation's result for the same arguments, of any float dtype, and `own` what
  /// run() gave. Every element is judged; with Explain::yes the usual mistakes are tried where some are
  /// beyond the bound. `tiles`: two axes of the picture, by name; absent: rows and columns. Throws
  /// Error{input} about "given" for one of another shape.
  Against compare(const ArrayView& lhs, const ArrayView& rhs, const std::optional<ArrayView>& existing_out,
                  const ArrayView& own, const ArrayView& given, Explain explain,
                  const WorkProgress& progress = {}, const std::vector<std::string>& tiles = {}) const;

 private:
  friend Report describe(const GroupedMatmulPlan& plan);
  std::shared_ptr<const matmul::Problem> problem_;
};

/// Shapes, groups and their rows, work and size.
Report describe(const GroupedMatmulPlan& plan);

}  // namespace ejk
