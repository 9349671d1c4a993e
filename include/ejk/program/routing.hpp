// Comparison of two routings of tokens to experts: the experts of each token, in any order.
//
// A routing is ids (tokens, k) or (tokens,) of an integer type, −1 for no choice; or scores (tokens, experts)
// of a float type: the top_k largest, the smaller index of equal ones. Leading axes are tokens in C order.
//
// A token is tied where its k-th and k+1-th largest scores are equal. Where other choices among equal scores
// would make both routings the same, it is counted separately and is no difference. 0 equals −0.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/report.hpp"

namespace ejk {

struct RoutingSide {
  DType dtype = DType::boolean;
  Shape shape;
  bool has_scores = false;
  std::int64_t choices = 0;     // without −1 and duplicates
  std::int64_t unrouted = 0;    // tokens without an expert
  std::int64_t ties = 0;        // tied tokens
  std::int64_t duplicates = 0;  // tokens with an expert twice, which is a fault
  std::optional<std::int64_t> first_duplicate;
  /// How often each expert is chosen; as many as RoutingComparison::experts, or none where those are many.
  std::vector<std::int64_t> loads;
};

struct RoutingComparison {
  bool close = false;
  RoutingSide actual, expected;

  // The rest is set where both have the same number of tokens, and of experts in scores.
  bool same_shape = false;
  std::int64_t tokens = 0;
  std::int64_t tokens_equal = 0;                           // tokens with the same experts
  std::int64_t tokens_tied = 0;                            // tokens with other experts, which a tie explains
  std::int64_t choices = 0;                                // the larger number of experts of each token
  std::int64_t choices_equal = 0;                          // experts of a token in both
  std::int64_t ties = 0;                                   // tokens tied in either
  std::int64_t experts = 0;                                // of the scores; for ids the largest plus 1
  std::optional<std::int64_t> first_token;                 // the first that differs, without ties
  std::vector<std::int64_t> first_actual, first_expected;  // its experts
};

/// One pass. Without `top_k` both are ids; with it at least one is scores: else, and for fewer than top_k
/// experts, Error{usage}. Error{input} for other types and ranks, an id below −1 or past the other side's
/// scores, and NaN. Memory: a chunk of both and 16 bytes an expert for each thread.
RoutingComparison compare_routing(
    const ArraySource& actual, const ArraySource& expected, std::optional<std::int64_t> top_k = std::nullopt,
    const std::function<void(std::int64_t done, std::int64_t all)>& progress = {});

std::int64_t routing_bytes(const ArraySource& actual, const ArraySource& expected);

Report describe(const RoutingComparison& comparison);

}  // namespace ejk
