// Comparison of another implementation's result with its computation, and known faults that explain a
// difference.
//
// Small problems are evaluated in float64; elements must be within the bound of attention_check.hpp or
// matmul_check.hpp, with ε of their own dtype. Elements of larger ones are compared with the library's
// result, within the sum of both bounds.
//
// Of attention in float32 with float32 weights, out, lse, dq, dk and dv have a smaller bound where it is
// finite. With u = 2⁻²⁴, n keys, N queries of all heads that share a key, sizes D of q and Dv of v, the
// number m_j of keys (queries) equal to key (query) j, and by query
//   L  = |scale| ‖q‖ max‖k‖
//   c  = 2 + L + max(1, √D / 4) |lse| + ¾ √n, the error of its weights; c' = c + 2 cosh²(L / softcap) of dS
//   g  = max(1, √Dv / 8) ‖dout‖ max‖v‖, that of dP
//   x  = Σ P², h² = (Dv/8 + n/4) Σ dout² out² + (n + lse²)/4 δ²
//        + x ((1 − x) c' ‖dout‖ max‖v‖ min(1, 4/√Dv))², that of δ
// it is ε |R| and u times
//   out (3 + 2 √n) |R| + 4 c √(Σ_j m_j P² v²)
//   lse 4 c
//   dq  (max c + 2 √n) |R| + 4 √(Σ_j m_j (c'² dS² + p² (g² + h²)) k²) + 4 h |scale Σ_j P k|
//   dk  (max c + 2 √N) |R| + 4 √(Σ_i m_i t² (c'² dS² + p² (g² + h²)) q²)
//         + |scale| max(g m / N) Σ_i P √(Σ q² / N)
//   dv  (max c + 2 √N) |R| + 4 √(Σ_i m_i (c + ¾ √N)² P² dout²)
// where p = scale P ds/ds₀, t = 1 + ¾ √N / c', and m > 1 queries have equal rows of dout, whose errors of dP
// are the same. Errors of scores and of dP go with the lengths of factors, those of sums of n terms with
// √n.
//
// Attention kernels with 16-bit inputs round P to that type before P·V, and in gradients dP, P and dS. With
// its unit roundoff u (2⁻⁸ of bfloat16, 2⁻¹¹ of float16) and half of its smallest number u₀ (2⁻²⁵ of float16,
// else 0), the bound of attention_check.hpp grows by
//   out    u |R| + 4 √(Σ_j m_j (u² P² + u₀²) v²)
//   dv     u |R| + λ √(Σ_i m_i (u² P² + u₀²) dout²) + λ u₀
//   dq     u |R| + λ √(Σ_j m_j (u² e² + u₀² scale²) k²) + λ u₀ + λ u √(Σ dout² out²) |scale Σ_j P k|
//   dk     u |R| + λ √(Σ_i m_i (u² e² + u₀² scale²) q²) + λ u₀
//   dbias  u |R| + λ √(Σ u² e² + u₀²) + λ u₀, without the scale
//   dsinks u |R| + λ u √(Σ_i exp(2 (sink − lse)) Σ dout² out²)
// where λ = 8 √max(1, n / 2048) of n terms (keys; queries of all heads that share a key), as gradients may be
// summed block by block in their own type; δ = Σ dout · out and e² = 4 dS² + (scale P ds/ds₀)² (2 δ² + Σ
// dout² out²). Rounding errors are at most u and independent: a sum of terms t is off by more than 4 u √(Σ
// t²) as rarely as a normal number beyond 9 deviations. Equal keys have equal errors, as have all if all
// weights are equal: u |R|. lse is not widened.
//
// A program that keeps scores s in 16 bits, as eager attention does, rounds them r times: q·k, the product with
// the scale, three times around a soft cap, once with a bias or ALiBi. The terms of a query above are then
// times √(1 + r S), S = Σ P² s² / Σ P², and the bound of lse grows by 4 u √(Σ P² (1 + r S)).
//
// Kinds of explanations: those of ejk/program/explain.hpp, unwritten, not_numbers (NaN or infinities for numbers),
// exchanged and repeated (elements of another part), shifted, factor, rounding.
// Of attention: tried (a mask of the caller), mask (its terms, edges and tiles), scale, scores (rounded),
// pages, sequences, heads, softcap, bias, alibi, sinks, no_key, uniform (equal weights), operands (keys and
// values of others), tile (a loop over tiles or parts of keys), padding (keys of zeros that count), lse_base,
// lse_sign, lse_max, lse_empty; of gradients also delta.
// Of grouped products: boundary, transposed, group_offset, existing, accumulated, cut_short, nibbles; of layers of
// experts: weights, dropped, layer (one of its steps).
//
// An explanation names heads, batch entries, sequences or groups unless it holds in all out of tolerance. The
// shares of an array and its unexplained share sum to 1.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/compare.hpp"
#include "ejk/report.hpp"

namespace ejk {

struct Against {
  /// The reference of every element.
  enum class Method { float64, own_result };

  struct Compared {
    std::string name;
    DType dtype = DType::float32;
    std::int64_t elements = 0;
    std::int64_t beyond = 0;       // out of tolerance
    std::int64_t not_numbers = 0;  // of these NaN or infinite, for a number
    std::int64_t zeros = 0;        // of these exactly 0
  };
  /// A head, batch entry, sequence or group with elements out of tolerance, in one array.
  struct Part {
    std::string array, axis;
    std::int64_t index = 0;  // −1: rows that belong to no group
    std::int64_t elements = 0;
    std::int64_t beyond = 0;
    double worst = 0;  // the largest error, in bounds; infinite where only one side is a number
  };
  /// Rows of no group, where some are out of tolerance. A kernel may leave them uninitialised.
  struct NoGroup {
    std::int64_t rows = 0, elements = 0, beyond = 0;
    std::int64_t not_numbers = 0;  // of those out of tolerance NaN or infinite
  };
  /// The indices of one axis with elements out of tolerance: "0-3, 7".
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
  /// Elements with a nonzero reference, and those whose bound exceeds its magnitude, as where inputs are
  /// huge.
  std::int64_t nonzero = 0, wide = 0;
  /// Of attention: the largest possible difference between two scores of a query.
  std::optional<double> score_range = {};
  std::vector<Compared> arrays;
  std::vector<std::string> not_given;     // results without a given array
  std::vector<std::string> not_compared;  // given arrays that are no results
  bool has_parts = false;                 // arrays have heads, batch entries, sequences or groups
  std::vector<Part> parts;
  std::optional<NoGroup> no_group = {};
  std::vector<Indices> where;
  std::vector<Element> worst;  // of a few rows, the worst first

  /// Elements out of tolerance by tiles of two axes of an array: 0 none, 1 some, 2 all of the tile.
  struct Tiles {
    std::string array;
    PictureAxis row_axis, column_axis;  // their blocks are the tiles
    std::shared_ptr<const BlockStates> states;
  };
  std::optional<Tiles> tiles = {};  // of the array with most such elements, where tiles differ

  /// The option with which the result agrees, set by a program: "--layout bhsd".
  std::string agrees_with = {};

  /// In the place of the bounds; of several arrays the worst.
  std::optional<NoWorseThan> no_worse_than = {};

  bool tried = false;  // explanations were searched for
  /// By array, the largest share first; `share_explained` is of the elements out of tolerance in that array.
  struct Explained : Explanation {
    std::string array;
  };
  std::vector<Explained> explanations;
  /// Unexplained elements by array, and the worst of them.
  struct Unexplained {
    std::string array;
    std::int64_t elements = 0;
    double share = 0;  // of those out of tolerance
    Element worst;
  };
  std::vector<Unexplained> unexplained;
  /// Rows with elements out of tolerance, and those on which shares were counted: all, or a sample.
  std::int64_t wrong_rows = 0, counted_rows = 0;

  bool agrees() const { return beyond == 0; }
  /// All rows of groups are within the bound.
  bool groups_agree() const { return beyond == (no_group ? no_group->beyond : 0); }
  /// Inconclusive: the bounds of most elements exceed their magnitudes.
  bool proves_little() const { return !no_worse_than && 2 * wide > nonzero; }
  /// All keys of a query have nearly the same weight for any scale.
  bool has_equal_scores() const { return score_range && *score_range < 0.05; }
};

/// The verdict on one line ("out is wrong in 97.3 %: the scale is applied twice"), what accounts for it and what is
/// left; the rest are details. Warns of an inconclusive result.
Report describe(const Against& against);

enum class Explain { no, yes };

/// Results of another implementation. Elements are out of tolerance beyond what NoWorseThan allows.
struct OtherResults {
  std::vector<std::optional<ArrayView>> results = {};  // as those given; empty: the bounds count
  double factor = 2;
};

}  // namespace ejk
