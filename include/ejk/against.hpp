// Results of another implementation, held to the bound by which the library checks its own.
//
// A small problem is evaluated in float64, and every element is held to the bound that attention_check.hpp or
// matmul_check.hpp states, with ε of the dtype in which it is given. Of a larger one every element is compared
// with the library's own result, from which it may differ by the bounds of both. So every element is judged,
// and one that is beyond is wrong wherever the library's is right.
//
// Kernels of attention whose inputs have 16 bits round the weights P to that type before they multiply by V, and in
// gradients dP, P and dS. With u its unit roundoff (2⁻⁸ of bfloat16, 2⁻¹¹ of float16), u₀ half of its smallest number
// (2⁻²⁵ of float16, else 0) and m_j the number of keys (queries) equal to key (query) j, the bound then grows by
//   out    u |R| + 4 √(Σ_j m_j (u² P² + u₀²) v²)
//   dv     u |R| + λ √(Σ_i m_i (u² P² + u₀²) dout²) + λ u₀
//   dq     u |R| + λ √(Σ_j m_j (u² e² + u₀² scale²) k²) + λ u₀ + λ u √(Σ dout² out²) |scale Σ_j P k|
//   dk     u |R| + λ √(Σ_i m_i (u² e² + u₀² scale²) q²) + λ u₀
//   dbias  u |R| + λ √(Σ u² e² + u₀²) + λ u₀, without the scale
// where λ = 8 √max(1, n / 2048) of n terms (keys; queries of all heads that share a key), δ = Σ dout · out of
// the query and e² = 4 dS² + (scale P ds/ds₀)² (2 δ² + Σ dout² out²). Each rounding is off by u at most, and
// independently of the others, so that a sum of terms t is off by more than 4 u √(Σ t²) about as often as a
// normal number is beyond 9 deviations; equal keys have equal weights, which are off alike, as are all where
// all weights are equal: u |R|. Gradients may be summed block by block in their own type, as PyTorch's are,
// which λ covers. lse is not widened.
//
// Kinds of explanations. Of any result: unwritten, not_numbers (NaN or infinities where numbers belong),
// exchanged and repeated (a part holds what belongs to another one), shifted, factor, rounding. Of attention:
// scale, mask, sequences, heads, softcap, bias, no_key, normalization, uniform (all weights are equal), operands (keys
// and values that are read for others), tile (a loop over tiles or parts of keys), padding (keys of zeros that count),
// lse_base, lse_sign, lse_max, lse_exp, lse_empty; of its gradients also delta. Of grouped products:
// boundary, transposed, group_offset, existing, accumulated, cut_short. Two that hold together are joined:
// scale+mask.
//
// An explanation names heads, batch entries, sequences or groups where it does not hold in all that are
// beyond the bound; rows of each one that is named were recomputed. The shares of an array and what is left of it sum
// to 1.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/explanation.hpp"
#include "ejk/report.hpp"

namespace ejk {

/// What was found out about the results of another implementation for the same arguments.
struct Against {
  /// What every element was compared with.
  enum class Method { float64, own_result };

  /// One array that was given. Its worst element is the one with the largest error for its bound.
  struct Compared {
    std::string name;
    DType dtype = DType::float32;
    std::int64_t elements = 0;
    std::int64_t beyond = 0;       // further off than the bound
    std::int64_t not_numbers = 0;  // of these NaN or infinite, where a number belongs
    std::int64_t zeros = 0;        // of these exactly 0
  };
  /// A head, batch entry, sequence or group with elements beyond the bound, in one array.
  struct Part {
    std::string array, axis;
    std::int64_t index = 0;  // −1: rows that belong to no group
    std::int64_t elements = 0;
    std::int64_t beyond = 0;
    double worst = 0;  // the largest error, in bounds; infinite where only one side is a number
  };
  /// The indices of one axis at which an array has elements beyond the bound: "0-3, 7".
  struct Indices {
    std::string array, axis;
    std::string indices;
    std::int64_t count = 0;
    std::int64_t length = 0;
  };
  struct Element {
    std::string array;
    Shape index;
    double value = 0;
    double expected = 0;
    double size = 0;  // infinite where only one is a number
    double allowed = 0;
  };

  Method method = Method::float64;
  std::int64_t elements = 0;
  std::int64_t beyond = 0;
  double largest = 0;  // error of all elements, in bounds
  /// Elements that should be a number other than 0, and of them those that may differ from it by more than it is: the
  /// bounds go by the largest values that take part, so that a few huge ones make them say little.
  std::int64_t nonzero = 0, wide = 0;
  /// Of attention: what two scores of a query may differ by, at most.
  std::optional<double> score_range = {};
  std::vector<Compared> arrays;
  std::vector<std::string> not_given;  // results that nothing was given for
  std::vector<Part> parts;
  std::vector<Indices> where;
  std::vector<Element> worst;  // of a few rows, the worst first

  /// Elements beyond the bound by tiles of two axes of an array: 0 none, 1 some, 2 all of the tile.
  struct Tiles {
    std::string array, row_axis, column_axis;
    std::int64_t tile_rows = 0, tile_columns = 0;
    std::shared_ptr<const BlockStates> states;
  };
  std::optional<Tiles> tiles = {};  // of the array with most such elements, where tiles are not all alike

  bool tried = false;  // explanations were looked for
  /// What makes elements that are beyond agree, array by array, best first; empty where nothing that is known does.
  /// `share_explained` is of the elements beyond the bound in that array.
  struct Explained : Explanation {
    std::string array;
  };
  std::vector<Explained> explanations;
  /// What they leave, array by array, where there is any: its elements and the worst of them.
  struct Unexplained {
    std::string array;
    std::int64_t elements = 0;
    double share = 0;  // of those beyond the bound
    Element worst;
  };
  std::vector<Unexplained> unexplained;
  /// Rows with elements beyond the bound, and those of them on which shares were counted: all, or estimates.
  std::int64_t wrong_rows = 0, counted_rows = 0;

  bool agrees() const { return beyond == 0; }
  /// Most elements could be nearly anything.
  bool proves_little() const { return 2 * wide > nonzero; }
  /// All keys of a query have nearly the same weight, whatever the scale.
  bool has_equal_scores() const { return score_range && *score_range < 0.05; }
};

/// The verdict first, why, where and the worst elements; then, unless that is all, arrays and parts. Warns where that
/// proves little.
enum class Detail { brief, all };
Report describe(const Against& against, Detail detail = Detail::all);

/// Whether explanations are looked for where results are beyond the bound.
enum class Explain { no, yes };

}  // namespace ejk
