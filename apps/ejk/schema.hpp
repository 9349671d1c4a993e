// The keys of every JSON report (--json): what scripts may rely on. Help and manual pages print this table, the
// runner of tests/cli compares it with every report that it sees, both ways.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ejk::app {

/// When a key is in a report. Other conditions are words, which leave open whether a dry run has the key.
inline constexpr std::string_view kAlways{}, kDone = "not with --dry-run", kDryRun = "with --dry-run alone";

/// Whether the cases of tests/cli see a key wherever they are run.
enum class Seen { everywhere, on_some_machines };

struct ReportKey {
  /// "tokens", "check.passed" in a section, "arrays[].shape" in each row of a table. N stands for a number.
  std::string_view path;
  /// One of key_types(), or several: "integer or null".
  std::string_view type;
  /// Within a section or a row: when the rest of it is there. An empty section has none of its keys.
  std::string_view when;
  std::string_view text;
  Seen seen = Seen::everywhere;
};

/// The words for types, and what they are in JSON.
struct KeyType {
  std::string_view name, text;
};
std::span<const KeyType> key_types();

/// The object that --json prints.
std::span<const ReportKey> envelope_keys();

/// Keys of `result` that are the same for all commands.
std::span<const ReportKey> shared_keys();

/// What every picture holds.
std::span<const ReportKey> picture_keys();

/// The other keys of `result`; none where there is no such command.
std::span<const ReportKey> keys_of(std::string_view command);

/// "integer or null, bytes": the type, and the unit that the end of the key names.
std::string form_of(const ReportKey& key);

}  // namespace ejk::app
