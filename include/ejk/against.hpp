// Results of another implementation, held to the bound by which the library checks its own.
//
// A small problem is evaluated in float64, and every element is held to the bound that attention_check.hpp or
// matmul_check.hpp states, with ε of the dtype in which it is given. Of a larger one every element is compared
// with the library's own result, from which it may differ by the bounds of both. So every element is judged,
// and one that is beyond is wrong wherever the library's is right.
//
// Kinds of explanations. Of any result: unwritten, not_numbers (NaN or infinities where numbers belong),
// exchanged and repeated (a part holds what belongs to another one), shifted, factor, rounding. Of attention:
// scale, mask, sequences, heads, softcap, bias, no_key, normalization, lse_base, lse_sign, lse_max, lse_exp,
// lse_empty; of its gradients also delta. Of grouped products: boundary, transposed, group_offset, existing,
// accumulated, cut_short. Two that hold together are joined: scale+mask.
//
// An explanation names heads, batch entries, sequences or groups where it does not hold in all that are
// beyond the bound; rows of each one that is named were recomputed. Shares sum to 1 at most.
#pragma once

#include <cstdint>
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
  std::vector<Compared> arrays;
  std::vector<std::string> not_given;  // results that nothing was given for
  std::vector<Part> parts;
  std::vector<Indices> where;
  std::vector<Element> worst;  // of a few rows, the worst first

  bool tried = false;  // explanations were looked for
  /// What makes the elements that are beyond agree: best first. Each was recomputed on sampled rows, and again
  /// on others. Empty where nothing that is known does.
  std::vector<Explanation> explanations;

  bool agrees() const { return beyond == 0; }
  /// Most elements could be nearly anything.
  bool proves_little() const { return 2 * wide > nonzero; }
};

/// Warns where that proves little.
Report describe(const Against& against);

/// Whether explanations are looked for where results are beyond the bound.
enum class Explain { no, yes };

}  // namespace ejk
