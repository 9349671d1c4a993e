// Integer arrays that define sequences and groups. The rank alone does not determine whether an array has lengths,
// offsets or ids: --from does, or the elements. An impossible interpretation is an error whose hint has the right
// --from, an unlikely one a warning.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "job.hpp"
#include "options.hpp"

namespace ejk::app {

/// The form of an array of sequences; `automatic` is a mask for two axes, the command's default for one.
enum class SequencesFrom { automatic, mask, lens, cu_seqlens, segment_ids, position_ids };

/// --from with these choices; `help` describes the default.
void add_sequences_from(OptionSet& set, SequencesFrom& into, const std::vector<SequencesFrom>& choices,
                        const std::string& help);

/// `from`, or by the rank of `input`; one axis is `one_axis`. Records it and adds it to the report. Throws
/// Error{input} for another rank.
SequencesFrom resolve_from(const ArraySource& input, SequencesFrom from, SequencesFrom one_axis, Job& job,
                           Report& report);

/// Memory that lengths_of() needs beside its result.
std::int64_t lengths_bytes(const ArraySource& input, SequencesFrom from);

struct Lengths {
  Array lens;  // (sequences,)
  /// Why offsets of these lengths fit the tokens without padding, but not the array itself; "" if they fit it.
  std::string without_padding;
};

/// The lengths of the sequences that `input` holds: of cu_seqlens in their dtype, of a mask or ids `counted`, int32 or
/// int64, or itself. `requested` is the value of --from. Adds counts of padding and warnings to the report.
Lengths lengths_of(const ArraySource& input, SequencesFrom from, SequencesFrom requested, DType counted,
                   Report& report);

/// Warns if segment ids (tokens,) or (batch, tokens) are likely position ids; not for sequential access.
void warn_of_positions(const ArraySource& segment_ids, Report& report);

/// Warns if cu_seqlens are more likely position or segment ids; not for sequential access.
void warn_of_offsets(const ArraySource& cu_seqlens, Report& report);

/// Warns if padded cu_seqlens end before the last of `tokens`, which are then padding; not for sequential access.
void warn_of_tail(const ArraySource& padded, std::int64_t tokens, Report& report);

/// The form of GROUP_SIZES.
enum class GroupsFrom { automatic, sizes, ends };

/// --from sizes|ends.
void add_groups_from(OptionSet& set, GroupsFrom& into);

/// The group sizes, in memory. `m`: rows of all groups; absent: their sum. `matrices`: weight matrices, one a
/// group, where there are any. Warns if they are likely ends or offsets, unless `from` is given.
/// Throws Error{input} for offsets where ends are needed.
std::shared_ptr<const ArraySource> group_sizes_of(const ArraySource& input, GroupsFrom from,
                                                  std::optional<std::int64_t> m,
                                                  std::optional<std::int64_t> matrices, Report& report);

}  // namespace ejk::app
