// Segment ids, by ranges of equal ids. Earlier ids are stored as ranges of numbers: a single one if ids count
// up. With cu_seqlens the boundaries are known, and compared.
// tests: tests/check/test_sequences.cpp
#include <fmt/format.h>

#include <map>
#include <utility>

#include "check/integers.hpp"
#include "core/checked.hpp"
#include "core/offsets.hpp"
#include "ejk/program/text.hpp"

namespace ejk {

namespace {

// A set of numbers as ranges of consecutive ones.
class IdSet {
 public:
  /// `max_bytes`: limit for the ranges; 0: none.
  explicit IdSet(std::int64_t max_bytes) : most_(core::ceil_div(max_bytes, kOfRange)) {}

  /// False if the number is in the set already.
  bool insert(std::int64_t id) {
    auto after = ranges_.upper_bound(id);  // the first range after it
    const bool joins_after = after != ranges_.end() && id == after->first - 1;
    if (after != ranges_.begin()) {
      const auto before = std::prev(after);
      if (id <= before->second) return false;
      if (id - 1 == before->second) {
        before->second = joins_after ? after->second : id;
        if (joins_after) ranges_.erase(after);
        return true;
      }
    }
    const std::int64_t end = joins_after ? after->second : id;
    if (joins_after) ranges_.erase(after);
    ranges_.emplace(id, end);
    if (most_ > 0 && std::ssize(ranges_) > most_)
      throw Error(Error::Kind::budget,
                  fmt::format("the ids of segments do not count up: {} ranges of them take more than {}",
                              format_count(std::ssize(ranges_)), format_bytes(most_ * kOfRange)));
    return true;
  }
  void clear() { ranges_.clear(); }

 private:
  static constexpr std::int64_t kOfRange = 64;  // bytes

  std::int64_t most_;
  std::map<std::int64_t, std::int64_t> ranges_;  // first and last number
};

bool zero_is_padding(const SegmentIdsClaims& claims) {
  return claims.zero ? claims.zero->meaning != ZeroId::Meaning::document
                     : claims.convention == Convention::document;
}

struct SegmentWalk {
  SegmentWalk(const ArraySource& ids, const SegmentIdsClaims& claims, const CheckOptions& options)
      : source(ids),
        padding_below(zero_is_padding(claims) ? 1 : 0),
        found(rules_of("segment-ids"), options.most_findings),
        seen(options.max_bytes) {}

  bool is_padding(std::int64_t id) const { return id < padding_below; }

  template <class Message>
  void add(std::string_view rule, std::int64_t at, std::int64_t id, Message&& message) {
    check::add_at(found, rule, "ids", source.shape(), at, id, message);
  }

  const ArraySource& source;
  std::int64_t padding_below;
  Findings found;
  IdSet seen;
  std::int64_t segments = 0, padding = 0;
};

void walk_rows(SegmentWalk& walk, const CheckOptions& options) {
  const std::int64_t columns = walk.source.shape().back();
  std::int64_t run = 0, gap = -1;  // the current id; where padding after tokens began
  std::int64_t gap_id = 0, column = 0;
  bool has_tokens = false;
  check::scan(walk.source, options, [&](std::span<const std::int64_t> ids, std::int64_t first) {
    for (std::size_t k = 0; k < ids.size(); ++k) {
      const std::int64_t id = ids[k], at = first + static_cast<std::int64_t>(k);
      const bool begins_row = column == 0;
      if (++column == columns) column = 0;
      if (begins_row) {
        walk.seen.clear();
        has_tokens = false;
        gap = -1;
      }
      if (walk.is_padding(id)) {
        ++walk.padding;
        if (has_tokens && gap < 0) gap = at, gap_id = id;
      } else if (begins_row || id != run) {
        if (gap >= 0)
          walk.add("padding-inside", std::exchange(gap, -1), gap_id,
                   [&] { return fmt::format("tokens go on at {}", at % columns); });
        has_tokens = true;
        if (walk.seen.insert(id))
          ++walk.segments;
        else
          walk.add("split", at, id, [&] { return fmt::format("segment {} again, after others", id); });
      }
      run = id;
    }
  });
}

void walk_sequences(SegmentWalk& walk, const std::vector<std::int64_t>& cu, const CheckOptions& options) {
  const auto check = [&](std::int64_t at, std::int64_t id, std::int64_t before, std::size_t s) {
    const bool is_padding = walk.is_padding(id);
    walk.padding += is_padding;
    if (s + 1 == cu.size()) {
      if (!is_padding)
        walk.add("past-end", at, id, [&] { return fmt::format("the sequences end at {}", cu.back()); });
    } else if (at == cu[s]) {
      ++walk.segments;
      if (is_padding)
        walk.add("boundary", at, id,
                 [&] { return fmt::format("padding's id{}", id == 0 ? "; do ids count from 0?" : ""); });
      else if (!walk.seen.insert(id))
        walk.add("repeated", at, id, [&] { return fmt::format("sequence {} has an earlier one's id", s); });
    } else if (id != before) {
      walk.add("boundary", at, id, [&] { return fmt::format("{} before it, in sequence {}", before, s); });
    }
  };
  check::scan_sequences(walk.source, cu, options, walk.found, "ids", check);
}

}  // namespace

Findings check_segment_ids(const IntegerArray& ids, const SegmentIdsClaims& claims,
                           const CheckOptions& options) {
  check::require_integers(*ids, "segment ids", 1, SIZE_MAX, "(tokens,) or (..., tokens)");
  SegmentWalk walk(*ids, claims, options);
  if (claims.zero && claims.zero->meaning == ZeroId::Meaning::document)
    check::add(walk.found, "assumed", 0, "ids", {}, 0,
               [&] { return "id 0 is a document, because " + claims.zero->why; });
  if (claims.cu_seqlens) {
    check::require_one_row(*ids, "segment ids");
    walk_sequences(walk, core::read_offsets(*claims.cu_seqlens), options);
  } else {
    walk_rows(walk, options);
  }
  walk.found.facts()
      .add("tokens", "tokens", element_count(ids->shape()) - walk.padding, Unit::count)
      .add("padding", "padding", walk.padding, Unit::count)
      .add("segments", "segments", walk.segments, Unit::count);
  return std::move(walk.found);
}

}  // namespace ejk
