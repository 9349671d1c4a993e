// The texts of `help`, -h, --help and --version, formatted for 80 columns, manual pages, and completion in
// shells: all generated from the commands' declarations.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "commands.hpp"
#include "options.hpp"
#include "schema.hpp"

namespace ejk::app {

std::string program_help();

enum class HelpLength { brief, all };

/// One command: its options; with HelpLength::all an example, the whole help of each option, and the arrays
/// that it writes. Of a command with actions: their list.
std::string command_help(const Command& command, HelpLength length = HelpLength::all);

/// The shared options, the exit statuses and the environment variables.
std::string options_help();

/// The arrays of each command, and the layouts of --layout, by their names.
std::string layouts_list();
/// The arrays of a layout or a command. Throws Error{usage} for another name.
std::string layout_help(const std::string& name);

/// The faults of a command, or one, with their public threads. Throws Error{usage} for another name.
std::string fault_help(const std::string& name);
std::vector<std::string> fault_pages();
std::vector<std::string> layout_names();

/// The options under a heading, of all commands, in full.
std::string group_help(const std::string& group);

/// The options of a command for other programs, as one JSON object.
std::string options_json(const Command& command);

/// The types of keys in JSON reports, and the keys that all reports have.
std::string keys_help();
std::string keys_help(const Command& command);

/// "ejk 0.1.0"; with `verbose` also how it was built and what it runs on.
std::string version_text(bool verbose);

// --- topics

const std::vector<std::string>& topics();

/// The topic that describes the options under a heading; "" where the command's help does.
std::string_view topic_of(std::string_view group);

/// The text of a topic; the first line is its title.
std::string topic_help(std::string_view topic);

std::string symptoms_help();
std::string faults_help();

// --- manual pages, in the language of man

/// ejk(1), ejk-COMMAND(1) and ejk-mpi(1).
std::string manual_page();
std::string manual_page(const Command& command);
std::string manual_page_of_mpi();

// --- completion: `ejk __complete ARGUMENT...` prints the candidates, and scripts of a few lines call it

/// The candidates for the last of `arguments`, those after the program's name: a line each, the candidate, a
/// tab and its description. None for file names and free text.
std::string completion_candidates(const std::vector<std::string>& arguments);

const std::vector<std::string>& shells();

std::string completion_script(const std::string& shell);

// --- parts of help, for manual pages

/// "integer, bytes; with --check": the type of a key, and when it is in a report.
std::string form_and_condition(const ReportKey& key);

/// "ejk mask-info [MASK] --block QxK [options] [-o OUTPUT]".
std::string usage_of(const Command& command, const OptionSet& set);

/// Headings of the options, in the order in which they were declared.
std::vector<std::string> groups_of(const OptionSet& set);

/// "--output --field ...": the options that a command shares with others.
std::string shared_names(const OptionSet& set);

/// "-o, --output OUTPUT", "--dkv", "MASK".
std::string option_name(const Option& option);

/// The lines of Python for a command's arrays; of an action those of its command.
std::string_view use_of(const Command& command);

inline constexpr std::string_view kReferences =
    "One word names an array: a.npy, a.npz:name, a.h5:/group/name, or - for an .npy stream on stdin or "
    "stdout. An input may end in a slice as in NumPy: a.npy[0,:,128:256].";

inline constexpr std::string_view kExitStatus =
    "0 done; 1 the check failed, or the arrays differ; 2 usage; 3 an input is unreadable or invalid; 4 an "
    "output cannot be written; 5 over the memory budget, or the system has no more threads, processes or "
    "sockets, or a library is missing; 70 a bug in ejk";

}  // namespace ejk::app
