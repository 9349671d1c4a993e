// Detection of dropout in a result: recovers the softmax weights of rows with fewer keys than value elements.
//
// There the weights follow from out by least squares, n unknowns from D elements. Where each is 0 or one
// multiple of its expected value, pairs were dropped. Cost: n²·(D + n) a row.
// tests: tests/attention/test_dropout.cpp
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace ejk::attn {

/// An actual row, its expected softmax weights, and the values of its keys.
struct WeightedRow {
  std::vector<double> weights;     // (n)
  std::vector<std::int64_t> keys;  // (n): their positions
  std::vector<double> values;      // (n, D)
  std::vector<double> given;       // (D)
};

/// The weights of a row; nothing where it does not determine them: n > D / 2, values that are nearly
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
