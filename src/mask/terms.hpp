// Terms of mask expressions that enclose given pairs, for identify_mask().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/mask.hpp"
#include "mask/bits.hpp"

namespace ejk::mask {

/// Most terms among which an expression is searched: tables have 2^16 elements.
inline constexpr std::size_t kMostTerms = 16;

struct Term {
  std::string text;  // "@" before names of arrays
  Mask mask;
  std::vector<std::shared_ptr<const ArraySource>> arrays = {};
};

/// Keys relative to queries, k - q; an absent end has no bound.
struct Diagonals {
  std::optional<std::int64_t> low, high;
};

/// causal or local of these diagonals.
Term band_term(std::int64_t q_length, std::int64_t kv_length, const Diagonals& of);
Term prefix_term(std::int64_t q_length, std::int64_t kv_length, std::int64_t keys);

/// Counts of pairs, by one pass over the ranges of keys of each query.
struct PairCounts {
  explicit PairCounts(const BitRows& pairs);

  std::int64_t all = 0;
  std::vector<std::int64_t> first, last;       // keys of each query; -1 without one
  std::vector<std::int64_t> diagonals;         // pairs with k - q = index - (queries - 1)
  std::vector<std::int64_t> keys;              // pairs of each key
  std::int64_t low = 0, high = 0;              // the smallest and largest k - q of a pair
  std::int64_t steep_low = 0, steep_high = 0;  // where counts change most, which few wrong pairs do not move
};

/// Ends of bands: the lowest and highest diagonals of all pairs, or with the steep ones too, which a few wrong pairs do
/// not move.
enum class Ends { all_pairs, steep };

/// Of each kind the smallest masks that enclose the pairs, without those that mask nothing.
std::vector<Term> enclosing_terms(const BitRows& pairs, const PairCounts& counts, Ends ends);

/// The smallest segments that enclose the pairs; `is_one`: queries and keys share an array. Segments with fewer
/// pairs than `least` for each of their ids are omitted; nothing where all are.
std::optional<Term> segments_term(const BitRows& pairs, bool is_one, std::int64_t least = 0);

/// Where `shape` is whole blocks within another mask: the largest such blocks, of at least 64 pairs, that have most
/// of their pairs in `all`. With steep ends a boundary of blocks has at least three changes.
std::optional<Term> blocks_term(const BitRows& shape, const Mask& within, const BitRows& pairs,
                                const Mask& all, Ends ends);

}  // namespace ejk::mask
