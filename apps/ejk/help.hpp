// What `help`, -h, --help and --version print.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "commands.hpp"
#include "schema.hpp"
#include "topics.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace ejk::app {

/// All commands under their headings.
std::string program_help();

enum class HelpLength { brief, all };

/// One command: in short, or with an example first, every word of its own, and the arrays that it writes.
std::string command_help(const Command& command, const CLI::App& app, HelpLength length);

/// A command of several actions: which there are.
std::string actions_help(const Command& command);

/// The options that commands share, and the exit statuses.
std::string options_help();

/// A command's entry in a table of WrittenArrays: of an action, those that it writes; nullptr where none are.
std::optional<WrittenArrays> written_by(const Command& command);

/// The arrays of a command under its name, and their use in NumPy.
std::string arrays_help(const WrittenArrays& written);

/// The types of keys in JSON reports, and the keys that all of them have.
std::string keys_help();

/// The keys of a command's own.
std::string keys_help(const Command& command);

/// "integer, bytes, with --check": what a key holds, and when it is there.
std::string form_and_condition(const ReportKey& key);

/// "Usage: ejk mask-info [MASK] --block QxK [options] [-o OUTPUT]", without its first word.
std::string usage_of(const Command& command, const CLI::App& app);

/// Headings of options, in the order in which they were declared.
std::vector<std::string> groups_of(const CLI::App& app);

/// "--output --field ...": the options of a command that it shares with others.
std::string shared_names(const CLI::App& app);

/// "-o, --output OUTPUT", "--dkv", "MASK".
std::string option_name(const CLI::Option& option);

/// How an array is named.
inline constexpr std::string_view kReferences =
    "One word names an array: a.npy, a.npz:name, a.h5:/group/name, or - for an .npy stream on stdin or "
    "stdout. An input may end in a slice as in NumPy: a.npy[0,:,128:256].";

/// "ejk 0.1.0", and with `verbose` how it was built and what it runs on.
std::string version_text(bool verbose);

}  // namespace ejk::app
