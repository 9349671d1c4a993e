// Sets of masks: a mask for every batch entry and query head, the conjunction of arrays, expressions and
// masks. Axes of length 1 are broadcast; a mask that entries or heads share is created once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/mask.hpp"

namespace ejk {

/// A part of a set: a mask for every batch entry (of packed inputs: sequence) and query head.
struct HeadMasks {
  std::string name = "a mask";               // in messages
  std::int64_t batch = 1, heads = 1;         // 1: the same for all
  std::int64_t q_length = 0, kv_length = 0;  // 0: any, as packed sequences need
  bool lengths_at_most = false;              // as MaskShape::at_most
  /// The mask of one entry and head; lengths are at least 1.
  std::function<Mask(std::int64_t entry, std::int64_t head, std::int64_t q_length, std::int64_t kv_length)>
      mask;
  bool is_array = false;               // stored; broadcasts() also reports those to several entries
  bool has_head_axis = false;          // stored with one
  bool may_be_heads = false;           // `batch` is the first of three axes; mask() takes a head as entry
  bool is_list = false;                // a mask was given for each head
  bool heads_are_rows = false;         // as in MaskShape
  bool same_for_heads = false;         // heads can never differ: not in broadcasts()
  std::vector<std::string> unaligned;  // expressions for which leaves_alignment_open()
};

/// One mask for all heads, or as many as there are heads; (Q, K) each. Errors: none, unequal lengths.
HeadMasks head_masks(std::vector<Mask> heads);

/// One expression for all heads, or as many as there are heads. In packed inputs positions are those within
/// the sequence. `leading`: of the masks in file(). Errors: none; arrays that disagree; those of
/// MaskExpression::resolve when masks are created.
HeadMasks head_masks(std::vector<MaskExpression> heads, Polarity polarity, OpenArray open,
                     LeadingAxis leading = LeadingAxis::heads);

/// A stored mask (Q, K), (B, Q, K), (B, 1, Q, K) or (B, H, Q, K), with LeadingAxis::heads (Q, K) or (H, Q, K)
/// without empty axes: bool or integer, float if additive. Errors: other ranks; dtypes when masks are
/// created.
HeadMasks head_masks(std::shared_ptr<const ArraySource> array, Polarity polarity = Polarity::keep,
                     LeadingAxis leading = LeadingAxis::batch);

/// The first of three axes of a stored mask is the heads where their number fits and that of the entries does
/// not. Whether both fit, and the part keeps entries.
bool settle_first_axis(HeadMasks& part, std::int64_t entries, std::int64_t heads);

/// Parts as one, of any lengths that all of them take; of none: every pair.
HeadMasks conjunction_of(std::vector<HeadMasks> parts);

/// A part that serves several entries or heads with one mask.
struct MaskBroadcast {
  enum class Axis { batch, heads };
  std::size_t part = 0;
  Axis axis = Axis::heads;
  std::int64_t count = 0;  // how many it serves
};

/// The combined masks of a set.
struct JoinedMasks {
  std::int64_t entries = 1, heads = 1;     // 1: all share
  std::vector<std::optional<Mask>> masks;  // (entries, heads); nothing: an entry without queries or keys
  std::vector<std::int64_t> of_entry{};    // the row of each entry; empty: its own, or the only one

  std::int64_t row(std::int64_t entry) const {
    return !of_entry.empty() ? of_entry[static_cast<std::size_t>(entry)] : entries == 1 ? 0 : entry;
  }
  std::size_t index_of(std::int64_t entry, std::int64_t head) const {
    return static_cast<std::size_t>(row(entry) * heads + (heads == 1 ? 0 : head));
  }
  const std::optional<Mask>& of(std::int64_t entry, std::int64_t head) const {
    return masks[index_of(entry, head)];
  }
};

class MaskSet {
 public:
  /// Lengths given by the caller: (Q, K), for one head, or (H, Q, K).
  struct Given {
    Shape shape;
    std::string name = "the shape";  // in messages
  };
  struct Lengths {
    std::int64_t q = 0, kv = 0;
  };

  /// One entry. Throws Error{input} where `given` and the parts disagree, or none of them fixes the lengths,
  /// and for more elements than 64 bits can count;
  /// Error{usage} for a list of masks of another number of heads than given.
  explicit MaskSet(std::vector<HeadMasks> parts, const std::optional<Given>& given = std::nullopt);

  /// For attention. Packed entries may differ in length. Throws Error{input} for parts of other entries or
  /// heads.
  enum class Entries { padded, packed };
  MaskSet(std::vector<HeadMasks> parts, std::int64_t entries, std::int64_t heads,
          std::function<Lengths(std::int64_t entry)> lengths, Entries kind);

  std::int64_t entries() const { return entries_; }
  std::int64_t heads() const { return heads_; }
  Lengths lengths(std::int64_t entry = 0) const { return lengths_(entry); }
  bool empty() const { return parts_.empty(); }
  /// One of the arrays, or the given shape, has an axis of heads, or there are several.
  bool has_head_axis() const { return has_head_axis_; }

  /// Entries and heads with masks of their own; 1: all share.
  std::int64_t distinct_entries() const;
  /// One of the entries that share the row `n` of those.
  std::int64_t entry_of_row(std::int64_t n) const {
    return first_.empty() ? n : first_[static_cast<std::size_t>(n)];
  }
  std::int64_t distinct_heads() const;
  /// Memory of the masks, about, without ids and arrays that they read.
  std::int64_t bytes() const;

  std::vector<MaskBroadcast> broadcasts() const;
  /// Of all parts.
  std::vector<std::string> unaligned() const;

  /// Creates the masks. Throws errors of the parts, and Error{input} for a mask of other lengths.
  JoinedMasks join() const;

 private:
  JoinedMasks make(const HeadMasks& part) const;
  void share_by_lengths();

  std::vector<HeadMasks> parts_;
  std::int64_t entries_ = 1, heads_ = 1;
  std::function<Lengths(std::int64_t entry)> lengths_;
  bool packed_ = false;
  bool has_head_axis_ = false;
  // Packed entries of equal lengths that share masks: the row of each entry, and an entry of each row.
  std::vector<std::int64_t> of_entry_, first_;
};

}  // namespace ejk
