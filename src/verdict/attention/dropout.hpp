// Detection of dropout in a result: recovers the softmax weights of rows with n keys, fewer than the D value
// elements, by least squares. Where each is 0 or one multiple of its expected value, pairs were dropped.
// Cost: n²·(D + n) a row.
// tests: tests/verdict/attention/test_dropout.cpp
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

/// Nothing where the row does not determine them: n > D / 2, nearly dependent values.
std::optional<std::vector<double>> weights_of_row(const WeightedRow& row);

struct DroppedPairs {
  double share = 0;   // of the pairs
  double factor = 1;  // of the others
};

/// Nothing for other weights than 0 or one multiple, for fewer than 1 % or more than 70 % zeros, and for
/// zeros of a few keys or rows.
std::optional<DroppedPairs> dropped_pairs(const std::vector<WeightedRow>& rows);

}  // namespace ejk::attn
