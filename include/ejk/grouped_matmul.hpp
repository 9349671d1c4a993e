// Grouped matmul: each group of rows times its own matrix, and the transposed product of the backward pass.
//
// Arithmetic: products of two bfloat16 are exact and summed in float32; with a float64 factor it is float64,
// else float32. Sums begin with +0, run over the contraction in blocks of a fixed length and are rounded
// once, so any number of threads gives the same bits on one instruction set. bfloat16 instructions (AVX-512
// BF16, AMX) take subnormal factors and results for 0. NaN and infinities stay in their row and group.
// Source: megablox in JAX and ejkernel's grouped matmul; src/matmul/grouped.cpp states the procedure.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/communicator.hpp"
#include "ejk/dtype.hpp"

namespace ejk {

/// Rows, contraction length and columns of a block, each ≥ 1: the order of sums, and the speed.
struct Tiling {
  std::int64_t tm = 0;
  std::int64_t tk = 0;
  std::int64_t tn = 0;
};

/// "128x256x256".
std::string to_string(const Tiling& tiling);

/// `keep` preserves rows where nothing is computed and overwrites others; `add` accumulates the products.
enum class Existing { keep, add };

/// What group_sizes of a product are: sizes (G,), or the group of each row (m,), −1 for none. These ascend,
/// and the rows of a group are contiguous: DeepGEMM's labels. There are then as many groups as the largest of
/// them and the result need, at most 2^20.
enum class GroupsGiven : std::uint8_t { sizes, row_groups };

class TilingTable;  // below
struct Report;      // report.hpp

using WorkProgress = std::function<void(std::int64_t done, std::int64_t all)>;

struct GroupedMatmulSettings {
  DType dtype = DType::float32;               // of the result: float16, bfloat16, float32, float64
  std::optional<Tiling> tiling;               // absent: the table's, or chosen by shape and instruction set
  const TilingTable* tiling_table = nullptr;  // used if no tiling is given
  std::int64_t group_offset = 0;
  bool transpose_rhs = false;
  Existing existing = Existing::keep;
  GroupsGiven groups = GroupsGiven::sizes;
  bool strict = false;  // tm divides m (where a tiling is given), and each row has a group
};

struct TransposedGroupedMatmulSettings {
  DType dtype = DType::float32;
  std::optional<Tiling> tiling;
  const TilingTable* tiling_table = nullptr;
  std::int64_t group_offset = 0;
  std::optional<std::int64_t> num_actual_groups;  // A; absent: all from group_offset on
  GroupsGiven groups = GroupsGiven::sizes;
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
/// group group_offset + r, R ≤ G − group_offset. Rows of other groups or none are 0, or existing_out's.
/// Factors: any float dtype and strides. Throws Error{input}, with the numbers: ranks, dtypes, k, R outside
/// of the groups, group sizes (groups.hpp), existing_out; Error{usage}: a group_offset beyond the groups.
Array grouped_matmul(const ArrayView& lhs, const ArrayView& rhs, const IntegerArray& group_sizes,
                     const GroupedMatmulOptions& options = {});

/// lhs (k, m), rhs (m, n), group_sizes (G,) → (A, k, n): out[a] = lhs[:, s_g:e_g] · rhs[s_g:e_g, :] with g =
/// group_offset + a. Errors as above, and a num_actual_groups beyond the groups.
Array transposed_grouped_matmul(const ArrayView& lhs, const ArrayView& rhs, const IntegerArray& group_sizes,
                                const TransposedGroupedMatmulOptions& options = {});

namespace matmul {
struct Problem;
}

struct GroupedMatmulRun {
  bool maps_lhs = false, maps_rhs = false,
       maps_existing = false;  // mapped files; else they are read into memory
  bool boxes_rhs = false;      // rhs is read in boxes by run()
  /// Further reading and memory of a verdict, before which rank 0 reads all arguments and gathers the result;
  /// absent: there is none.
  struct Verdict {
    std::int64_t read_bytes = 0, bytes = 0;
  };
  std::optional<Verdict> verdict = {};
};

/// The boxes of the factors from which a box of the result is computed.
struct GroupedMatmulNeeds {
  ArrayBox lhs, rhs;
};

/// Plan of either product, from types and group sizes, with the errors of the functions above.
class GroupedMatmulPlan {
 public:
  GroupedMatmulPlan(const ArrayType& lhs, const ArrayType& rhs, const IntegerArray& group_sizes,
                    const GroupedMatmulSettings& settings,
                    const std::optional<ArrayType>& existing_out = std::nullopt);
  GroupedMatmulPlan(const ArrayType& lhs, const ArrayType& rhs, const IntegerArray& group_sizes,
                    const TransposedGroupedMatmulSettings& settings,
                    const std::optional<ArrayType>& existing_out = std::nullopt);

  const ArrayType& out() const;
  const std::optional<Tiling>& tiling() const;
  /// 2 for a multiply-add.
  double flop() const;
  /// Work, bytes moved and peak memory of each of `ranks` ranks.
  std::vector<RankWork> work(std::int64_t ranks, const GroupedMatmulRun& run) const;

  /// `out` may be the memory of existing_out. Throws Error{input} for other types than planned; any strides.
  void run(const ArrayView& lhs, const ArrayView& rhs, const std::optional<ArrayView>& existing_out,
           const MutableArrayView& out, const WorkProgress& progress = {}) const;

  /// Boxes of the result for each rank, balanced by work and bytes; no bit depends on the cuts. With little
  /// work some ranks get none.
  std::vector<std::vector<ArrayBox>> divide(std::int64_t ranks) const;
  /// The operands of such a box (existing_out: the box itself). Throws Error{input} for a box that cannot be
  /// computed alone.
  GroupedMatmulNeeds needs(const ArrayBox& box) const;

  /// Writes a box of the result, bit-identical to the whole, from boxes of the planned types, else
  /// Error{input}.
  void run(const ArrayBox& box, const ArrayView& lhs, const ArrayView& rhs,
           const std::optional<ArrayView>& existing_out, const MutableArrayView& out,
           const WorkProgress& progress = {}) const;

  /// The same with all of rhs as a source of random access: each thread reads boxes of it as it multiplies, and
  /// matrices of groups without rows are not read. Not of transposed products.
  void run(const ArrayBox& box, const ArrayView& lhs, const ArraySource& rhs,
           const std::optional<ArrayView>& existing_out, const MutableArrayView& out,
           const WorkProgress& progress = {}) const;

  /// For the library's own modules.
  const matmul::Problem& internal() const { return *problem_; }

 private:
  std::shared_ptr<const matmul::Problem> problem_;
};

Report describe(const GroupedMatmulPlan& plan);

// A table of measured tilings, looked up by the shape of a product.
//
// A line is "m k n tm tk tn"; * matches any of the first three, the first match counts. # begins a comment.

class TilingTable {
 public:
  struct Row {
    std::optional<std::int64_t> m, k, n;  // absent: any
    Tiling tiling;
    std::int64_t line = 0;  // in the text, from 1 on
  };

  /// Throws Error{input}: "line 3: …". `name` is what messages call the table.
  static TilingTable parse(std::string_view text, std::string name = "the tiling table");

  const std::string& name() const { return name_; }

  /// The first match, valid as long as the table; or nullptr.
  const Row* find(std::int64_t m, std::int64_t k, std::int64_t n) const;

  const std::vector<Row>& rows() const { return rows_; }

 private:
  std::string name_;
  std::vector<Row> rows_;
};

}  // namespace ejk
