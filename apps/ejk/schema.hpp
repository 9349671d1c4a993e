// The keys of JSON reports (--json), on which scripts may rely. Help and manual pages print them; the runner
// of tests/cli compares them with every report, both ways.
//
// A command states its keys as text, a line each, those of a section or of a table's rows indented below it:
//
//   tokens | integer | tokens of all sequences
//   check | section | the comparison with float64 | with --check
//     passed | boolean | whether no element is out of tolerance
//
// that is names, type, meaning, and the condition for the key in its report, section or row: `done` (without
// --dry-run), `plan` (with it) or other text. `some machines` in a fifth column: no case has to produce it.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ejk::app {

struct Command;

/// Conditions that the runner of the cases checks; others may or may not hold in a dry run.
inline constexpr std::string_view kAlways{}, kDone = "not with --dry-run", kDryRun = "with --dry-run alone";

struct ReportKey {
  /// "tokens", "check.passed" in a section, "arrays[].shape" in each row of a table. N is a number.
  std::string path;
  /// One of key_types(), or several: "integer or null".
  std::string type;
  std::string when;
  std::string text;
  bool on_all_machines = true;
};

/// The types, and their form in JSON.
struct KeyType {
  std::string_view name, text;
};
std::span<const KeyType> key_types();

/// The object that --json prints.
const std::vector<ReportKey>& envelope_keys();
/// Keys of `result` that are the same for all commands.
const std::vector<ReportKey>& shared_keys();
const std::vector<ReportKey>& picture_keys();
/// The other keys of `result`; those of an action are its command's. None for an unknown command.
std::vector<ReportKey> keys_of(std::string_view command);

/// "integer or null, bytes": the type, and the unit that the end of the key implies.
std::string form_of(const ReportKey& key);

/// The same keys under a condition, where they have none.
std::string with_condition(std::string_view keys, std::string_view when);

std::string joined(std::initializer_list<std::string_view> texts);

std::vector<std::string> split(std::string_view text, std::string_view separator);

// Keys that several commands have.

/// Of the array that is written, or of the first of several alike.
inline constexpr std::string_view kArrayKeys = R"(
shape | shape | of the array that is written
dtype | string | its element type
size_bytes | integer | bytes of its elements
)";
inline constexpr std::string_view kConventionKey = R"(
convention | string | document or ejkernel
)";
inline constexpr std::string_view kSequencesFromKey = R"(
from | string | how the input was interpreted: mask, lens, cu-seqlens, segment-ids or position-ids
)";
inline constexpr std::string_view kPaddingKeys = R"(
left_padded_rows | integer | rows of the mask that begin with padding | of a mask with such rows
rows_with_holes | integer | rows with padding between tokens | of a mask with such rows
)";
inline constexpr std::string_view kZeroIdKey = R"(
zero_id | string | what id 0 is, and why | of segment ids where it is a document
)";
inline constexpr std::string_view kUnreadableKeys = R"(
unreadable | table | inputs that cannot be read | where there are such
  name | string | the file or array
  why | string | why not
)";
/// Of results of other programs (--against).
inline constexpr std::string_view kAgainstKeys = R"(
verdict | string | which results are wrong, in which share of their elements, and why | with --against
against | section | comparison of the other result within error bounds | with --against
  agrees | boolean | whether every element is within its error bound
  method | string | what every element was compared with: float64 or the own result
  elements, beyond | integer | its elements; those out of tolerance
  beyond_share | share or null | beyond / elements
  largest | number or null | the largest error, in bounds; null where one is not a number
  compared | string | the arrays that were compared | where others were not
  not_compared | string | arrays of the other file that are no results | where there are some
  arrays | table | the arrays that were given
    array | string | the array
    dtype | string | its element type
    elements, beyond | integer | its elements; those out of tolerance
    beyond_share | share or null | beyond / elements
    zeros, not_numbers | integer | of these, zeros; NaN and infinities where a number is expected
  where | table | the indices with elements out of tolerance, axis by axis
    array | string | the array
    axis | string | heads, batch entries, queries, groups, rows and so on
    count, length | integer | how many have such elements, of how many
    indices | string | which: 0-3, 7
  tiles | picture | where nothing, some or everything is out of tolerance, in the array with the most such elements | where tiles are not all alike
  worst | table | the elements furthest out of tolerance, from a few rows
    array | string | the array
    difference, allowed | number or null | the difference, and the bound there
    index | shape | where it is
    value, expected | number or null | the actual and the expected value
  explanations | table | faults that account for the differences, best first | with --explain
    array | string | the array
    kind | string | a stable word; two joined by + hold together
    share_explained | share | of the array's elements out of tolerance
    fault | string or null | its name in 'ejk help faults'
    text | string | what is wrong, and where
  unexplained | table | what the explanations do not account for | where there is a remainder
    array | string | the array
    elements | integer | elements out of tolerance
    share | share | of the array's elements out of tolerance
    difference | number or null | of the worst of them
    index | shape | where that is
    value, expected | number or null | the actual and the expected value
)";

// The rest of kAgainstKeys, of results with heads, batch entries, sequences or groups; and with --no-worse-than.
inline constexpr std::string_view kAgainstPartsKeys = R"(
  parts | table | heads, batch entries, sequences or groups with elements out of tolerance
    array | string | the array
    axis | string | head, key head, batch entry, sequence or group
    index | integer or null | which; null: rows of no group
    elements, beyond | integer | its elements; those out of tolerance
    beyond_share | share or null | beyond / elements
    worst | number or null | the largest error, in bounds
)";
inline constexpr std::string_view kNoWorseThanKeys = R"(
  no_worse_than | section | the error beside that of another implementation; of several arrays of the worst | with --no-worse-than
    factor | number | how many times its error is allowed
    error | number or null | the largest error of the other result; null where an element is not finite on one side alone
    reference_error | number | that of REF
    allowed | number | what it may be
)";
/// Of lengths: sequences, tokens and the longest, under a condition.
std::string count_keys(std::string_view when = "");

}  // namespace ejk::app
