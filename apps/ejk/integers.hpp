// Integer arrays that define sequences and groups: lengths, offsets or ids, by --from or by their elements.
// An impossible interpretation is an error whose hint has the right --from, an unlikely one a warning.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ejk/segments.hpp"
#include "job.hpp"
#include "options.hpp"

namespace ejk::app {

/// The form of an array of sequences; `automatic` is a mask for two axes, the command's default for one.
enum class SequencesFrom { automatic, mask, lens, cu_seqlens, segment_ids, position_ids };

/// --from with these choices; `help` describes the default.
void add_sequences_from(OptionSet& set, SequencesFrom& into, const std::vector<SequencesFrom>& choices,
                        const std::string& help);

/// `from`, or by the rank of `input`: `one_axis`, or a mask. Throws Error{input} for another rank.
SequencesFrom resolve_from(const ArraySource& input, SequencesFrom from, SequencesFrom one_axis, Job& job,
                           Report& report);

/// Memory that lengths_of() needs beside its result.
std::int64_t lengths_bytes(const ArraySource& input, SequencesFrom from);

struct Lengths {
  Array lens;  // (sequences,)
  /// Why offsets of these lengths do not fit the array with its padding; "" if they do.
  std::string without_padding;
};

/// The lengths of the sequences of `input`, of its dtype, or for a mask or ids of `counted`, int32 or int64.
/// `requested` is the value of --from. Adds counts of padding and warnings to the report. `reference` names
/// the input.
Lengths lengths_of(const std::string& reference, const ArraySource& input, SequencesFrom from,
                   SequencesFrom requested, DType counted, Report& report, Job& job);

/// The rule for segment id 0 (zero_id_of), in the words of help.
extern const char* const kZeroIdRule;

/// The meaning of segment id 0 in arrays that count alike, as those of queries and keys. Where a reference is
/// a slice, the array that it is taken from is read.
ZeroId zero_id_of(const std::vector<std::string>& references,
                  const std::vector<std::shared_ptr<const ArraySource>>& ids, Job& job);

/// What was decided, for a warning; "" where no id is 0, or without a doubt.
std::string zero_id_warning(const ZeroId& zero, const std::string& name);

/// Segment ids of such arrays, 0 only for padding: in memory, counted from 1 where 0 is a document. Adds the
/// warning of it. Throws Error{budget} if the ids exceed the limit.
std::vector<std::shared_ptr<const ArraySource>> segment_ids_of(
    const std::vector<std::string>& references, std::vector<std::shared_ptr<const ArraySource>> ids, Job& job,
    std::vector<std::string>& warnings);

// Warnings, of arrays with random access:

/// Segment ids (tokens,) or (batch, tokens) that are likely position ids.
void warn_of_positions(const ArraySource& segment_ids, Report& report);

/// cu_seqlens that are more likely position or segment ids.
void warn_of_offsets(const ArraySource& cu_seqlens, Report& report);

/// Padded cu_seqlens that end before the last of `tokens`.
void warn_of_tail(const ArraySource& padded, std::int64_t tokens, Report& report);

enum class GroupsFrom { automatic, sizes, ends };

Option& add_groups_from(OptionSet& set, GroupsFrom& into);

/// The group sizes, in memory. `m`: rows of all groups; absent: their sum. `matrices`: weight matrices, if
/// any. Warns of likely ends or offsets, unless `from` is given. Throws Error{input} for offsets as ends.
std::shared_ptr<const ArraySource> group_sizes_of(const ArraySource& input, GroupsFrom from,
                                                  std::optional<std::int64_t> m,
                                                  std::optional<std::int64_t> matrices, Report& report);

}  // namespace ejk::app
