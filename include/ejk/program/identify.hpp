// The shortest mask expression that equals a stored mask, or the nearest one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/mask.hpp"

namespace ejk {

struct IdentifiedMask {
  Mask mask;
  std::string text;  // the expression, "@" before names of arrays: "causal & documents(@cu)"
  std::vector<std::shared_ptr<const ArraySource>> arrays;  // by their names: cu, ids, q_ids, kv_ids, blocks
  std::int64_t terms = 1;
  std::int64_t pairs_differ = 0;  // 0: it equals the mask

  /// The expression with the reference to each array that it names.
  std::string expression(const std::function<std::string(const std::string& name)>& reference) const;
};

/// An expression of the fewest differing pairs, then terms, then characters; align=bottom-right is preferred to
/// the same offset. Forms:
///   X           up to four of full, causal, local, chunked, prefix, ~prefix, documents, segments and blocks,
///               joined by &
///   X | prefix(N), X | causal & prefix(N)
///   B | segments, where B is causal or local, with or without documents
/// No term lists pairs one by one: blocks have at least 64, and segments behind | at least as many pairs as ids.
/// Where no form is equal it is the nearest that was found: wrong pairs that are isolated do not move its terms.
/// Reads the mask once.
IdentifiedMask identify_mask(const Mask& of);

/// Bytes that identify_mask() allocates, about.
std::int64_t identify_mask_bytes(std::int64_t q_length, std::int64_t kv_length);

struct DifferingPair {
  std::int64_t query = 0, key = 0;
  bool is_in_first = false;
};

/// The pairs that one of two masks of equal shape has, in order, at most `most`.
std::vector<DifferingPair> differing_pairs(const Mask& first, const Mask& second, std::int64_t most);

}  // namespace ejk
