// Two routings of tokens to experts: does each token have the same experts in both, whatever their order.
//
// A routing is ids (tokens, k) of an integer type, or (tokens,) with one expert each, in which −1 is no
// choice; or scores (tokens, experts) of a float type: the top_k largest are the choices, of equal scores
// those of smaller index. More axes in front are tokens in C order. The two may be of different kinds, and of
// different k.
//
// A token is tied where its k-th and k+1-th largest scores are equal, so that either choice is right. Where
// the two routings of a token differ, and other choices among equal scores would make them the same, it is
// counted apart and is no difference. Scores are compared as they are stored; 0 equals −0.
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
  std::int64_t choices = 0;     // without those of −1, and none twice
  std::int64_t unrouted = 0;    // tokens without an expert
  std::int64_t ties = 0;        // tokens that are tied
  std::int64_t duplicates = 0;  // tokens that have an expert twice, which is a fault
  std::optional<std::int64_t> first_duplicate;
  /// How often each expert is chosen; as many as RoutingComparison::experts, or none where those are many.
  std::vector<std::int64_t> loads;
};

struct RoutingComparison {
  /// Every token has the same experts, but for ties, and none twice.
  bool close = false;
  RoutingSide actual, expected;

  // The rest is of as many tokens in both, and scores of as many experts.
  bool same_shape = false;
  std::int64_t tokens = 0;
  std::int64_t tokens_equal = 0;            // tokens with the same experts
  std::int64_t tokens_tied = 0;             // tokens with other experts, and a tie that accounts for it
  std::int64_t choices = 0;                 // of each token the larger number of experts
  std::int64_t choices_equal = 0;           // experts of a token that it has in both
  std::int64_t ties = 0;                    // tokens that are tied in either
  std::int64_t experts = 0;                 // that there are scores of; of ids the largest and 1
  std::optional<std::int64_t> first_token;  // the first that differs, ties apart
  std::vector<std::int64_t> first_actual, first_expected;  // its experts
};

/// One pass over both. Without `top_k` both are ids; with it at least one is scores. Throws Error{usage}
/// otherwise, and where there are fewer than top_k experts; Error{input} for other types and ranks, an id
/// below −1 or beyond the scores of the other side, and a score that is NaN. Memory: for each thread a piece
/// of both, and 16 bytes an expert.
RoutingComparison compare_routing(
    const ArraySource& actual, const ArraySource& expected, std::optional<std::int64_t> top_k = std::nullopt,
    const std::function<void(std::int64_t done, std::int64_t all)>& progress = {});

/// Bytes that this takes beside the sources' own, at most.
std::int64_t routing_bytes(const ArraySource& actual, const ArraySource& expected);

Report describe(const RoutingComparison& comparison);

}  // namespace ejk
