// Errors of the layers of a model, in order: the first layer out of tolerance, and the one that adds most.
//
// Names are in natural order ("layer.2" before "layer.10"). The error of an array is rel, Σ (a − e)² / Σ (a²
// + e²) over finite pairs (DeepGEMM's calc_diff); a layer adds its error less that of the array before it.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ejk/compare.hpp"

namespace ejk {

/// Whether x is before y. Equal numbers with different leading zeros are ordered by bytes.
bool natural_less(std::string_view x, std::string_view y);

/// A map of names of one side to those of the other: "A*B=C*D". * matches any text, which is kept.
class NameMap {
 public:
  explicit NameMap(std::string_view text);

  std::optional<std::string> operator()(std::string_view name) const;
  std::string left() const { return before_ + "*" + behind_; }

 private:
  std::string before_, behind_, new_before_, new_behind_;
};

struct LayerErrors {
  struct Layer {
    /// 0 where both sides are 0; none for different shapes, and without a pair of finite elements.
    std::optional<double> rel, added;
  };
  std::vector<Layer> layers;
  std::optional<std::size_t> first;       // the first that is not close
  std::optional<std::size_t> most_added;  // the first that adds the most, if that is positive
};

/// `in_order`: comparisons in the order of the layers. A layer without an error is skipped.
LayerErrors layer_errors(std::span<const Comparison> in_order);

}  // namespace ejk
