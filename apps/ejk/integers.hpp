// Integer arrays that say where sequences and groups are. One array can be taken for several things, and its rank alone
// does not tell which: --from says it, or the elements do. What an array cannot be is an error whose hint has the
// right --from; what it may be is a warning.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "job.hpp"
#include "options.hpp"

namespace ejk::app {

/// What an array of sequences is; `automatic` is for two axes a mask, for one what the command says.
enum class SequencesFrom { automatic, mask, lens, cu_seqlens, segment_ids, position_ids };

/// --from mask|lens|..., of these; `help` says what it is by default.
void add_sequences_from(OptionSet& set, SequencesFrom& into, const std::vector<SequencesFrom>& choices,
                        const std::string& help);

/// What `input` is: `from`, or by its rank. One axis is `one_axis`. Records it and adds it to the report. Throws
/// Error{input} for another rank.
SequencesFrom resolve_from(const ArraySource& input, SequencesFrom from, SequencesFrom one_axis, Job& job,
                           Report& report);

/// Memory that lengths_of() takes beside its result.
std::int64_t lengths_bytes(const ArraySource& input, SequencesFrom from);

struct Lengths {
  Array lens;  // (sequences,)
  /// Why offsets made of them do not fit the array as it is, but its tokens without padding; "" where they do.
  std::string without_padding;
};

/// The lengths of the sequences that `input` holds: of cu_seqlens in their dtype, of a mask or ids `counted`, int32 or
/// int64, or itself. `asked` is what --from said. Adds to the report what is padding, and warnings.
Lengths lengths_of(const ArraySource& input, SequencesFrom from, SequencesFrom asked, DType counted,
                   Report& report);

/// Adds a warning where segment ids (tokens,) or (batch, tokens) are likely position ids. Skips ids that can
/// only be read in order.
void warn_of_positions(const ArraySource& segment_ids, Report& report);

/// Adds a warning where cu_seqlens are more likely position or segment ids. Skips what can only be
/// read in order.
void warn_of_offsets(const ArraySource& cu_seqlens, Report& report);

/// Adds a warning where padded cu_seqlens end before the last of `tokens`, which are then padding. Skips what
/// can only be read in order.
void warn_of_tail(const ArraySource& padded, std::int64_t tokens, Report& report);

/// What GROUP_SIZES are.
enum class GroupsFrom { automatic, sizes, ends };

/// --from sizes|ends.
void add_groups_from(OptionSet& set, GroupsFrom& into);

/// The group sizes, in memory. `m`: rows of all groups; absent: their sum. `matrices`: weight matrices, one a
/// group, where there are any. Warns where they are likely ends or offsets, unless `from` says what they are.
/// Throws Error{input} for offsets where ends are needed.
std::shared_ptr<const ArraySource> group_sizes_of(const ArraySource& input, GroupsFrom from,
                                                  std::optional<std::int64_t> m,
                                                  std::optional<std::int64_t> matrices, Report& report);

}  // namespace ejk::app
