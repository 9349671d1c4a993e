// Results of the layers of a model, in their order: where the error begins, and which layer adds the most.
//
// Names are put in natural order: numbers within them by value ("layer.2" before "layer.10"), all else by
// bytes. The error of an array is rel, Σ (a − e)² / Σ (a² + e²) over pairs of finite elements, DeepGEMM's
// calc_diff; what it adds is its error less that of the array before it, of the first one its error.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ejk/compare.hpp"

namespace ejk {

/// Whether x comes before y. Equal numbers with different zeros in front are in the order of their bytes.
bool natural_less(std::string_view x, std::string_view y);

/// How the names of one side become those of the other: "A*B=C*D". * matches any text, which is kept.
class NameMap {
 public:
  /// Throws Error{usage} unless there are two sides with one * each.
  explicit NameMap(std::string_view text);

  /// The new name; nothing where the left side does not match.
  std::optional<std::string> operator()(std::string_view name) const;
  /// "A*B".
  std::string left() const { return before_ + "*" + behind_; }

 private:
  std::string before_, behind_, new_before_, new_behind_;
};

struct LayerErrors {
  struct Layer {
    /// 0 where both sides are 0; none of shapes that differ, and without a pair of finite elements.
    std::optional<double> rel, added;
  };
  std::vector<Layer> layers;
  std::optional<std::size_t> first;       // the first that is not close
  std::optional<std::size_t> most_added;  // the first of those that add the most, if that is more than 0
};

/// Of comparisons in the order of the layers. What a layer adds is counted from the last one before it that
/// has an error.
LayerErrors layer_errors(std::span<const Comparison> in_order);

}  // namespace ejk
