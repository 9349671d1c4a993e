// Dropped pairs, as by dropout: the weights that a row of out was made with, of rows with fewer keys than
// values have elements. There they follow from out: least squares over the elements, n unknowns for n keys.
// Where each is 0 or one multiple of what it should be, pairs were dropped. Cost: n²·(D + n) a row.
// tests: tests/attention/test_dropout.cpp
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace ejk::attn {

/// A row as it was given, its softmax weights as they should be, and the values of its keys.
struct WeightedRow {
  std::vector<double> weights;     // (n)
  std::vector<std::int64_t> keys;  // (n): which they are
  std::vector<double> values;      // (n, D)
  std::vector<double> given;       // (D)
};

/// The weights of a row; nothing where they do not follow from it: n > D / 2, values that are nearly
/// dependent.
std::optional<std::vector<double>> weights_of_row(const WeightedRow& row);

struct DroppedPairs {
  double share = 0;   // of the pairs
  double factor = 1;  // of the others
};

/// Nothing where weights are something else than 0 or one multiple, where fewer than 1 % or more than 70 %
/// are 0, or where these are those of a few keys or rows: pairs are dropped anywhere.
std::optional<DroppedPairs> dropped_pairs(const std::vector<WeightedRow>& rows);

}  // namespace ejk::attn
