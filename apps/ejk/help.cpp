// Help is laid out from the table of commands, the parsers, and the tables of arrays and keys, in 80 columns.
#include "help.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>

#include "ejk/machine.hpp"
#include "ejk/report.hpp"
#include "ejk/text.hpp"
#include "options.hpp"
#include "parser.hpp"
#include "topics.hpp"

namespace ejk::app {

namespace {

constexpr std::size_t kWidth = 80;

// Words of `text` in lines of at most kWidth columns, all but the first indented by `indent`; `column` is
// where the first one begins. Line breaks in the text stay.
std::string wrapped(std::string_view text, std::size_t column, std::size_t indent) {
  std::string out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of(" \n"), text.size());
    const std::string_view word = text.substr(0, end);
    if (column > indent && column + 1 + word.size() > kWidth) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    if (end < text.size() && text[end] == '\n') {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

}  // namespace

std::string option_name(const CLI::Option& option) {
  if (option.get_positional())  // "FILE..."
    return option.get_name(true) + (option.get_items_expected_max() > 1 ? "..." : "");
  std::string name;
  for (const std::string& s : option.get_snames()) name += (name.empty() ? "-" : ", -") + s;
  for (const std::string& l : option.get_lnames()) name += (name.empty() ? "--" : ", --") + l;
  if (option.get_type_size_max() > 0) name += " " + option.get_type_name();
  if (option.get_required()) name += " (required)";
  return name;
}

std::string usage_of(const Command& command, const CLI::App& app) {
  std::string line = "ejk " + command.name;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    const std::string word = option_name(*option);
    if (option->get_positional())
      line += option->get_required() ? " " + word : " [" + word + "]";
    else if (option->get_required())
      line += fmt::format(" --{} {}", option->get_lnames().front(), option->get_type_name());
  }
  line += " [options]";
  if (!command.outputs.empty()) line += " [-o OUTPUT]";
  return line;
}

std::string shared_names(const CLI::App& app) {
  std::string names;
  for (const CLI::Option* option : app.get_options())
    if (option->get_group() == kSharedGroup)
      names += (names.empty() ? "--" : " --") + option->get_lnames().front();
  return names;
}

std::vector<std::string> groups_of(const CLI::App& app) {
  std::vector<std::string> groups;
  for (const CLI::Option* option : app.get_options())
    if (!option->get_group().empty() &&
        std::find(groups.begin(), groups.end(), option->get_group()) == groups.end())
      groups.push_back(option->get_group());
  return groups;
}

std::string program_help() {
  std::string out =
      "ejk: masks, segments, groups and reference results for attention and MoE kernels\n\n"
      "Usage: ejk COMMAND INPUT... [options] [-o OUTPUT]\n";
  // Summaries stand below each other; a name longer than most moves those of its group alone.
  constexpr std::size_t kMost = 16;
  std::string group;
  std::size_t width = 0;
  for (const Command& command : commands()) {
    if (command.group != group) {
      out += fmt::format("\n{}\n", group = command.group);
      width = kMost;
      for (const Command& other : commands())
        if (other.group == group) width = std::max(width, other.name.size());
    }
    out += fmt::format("  {:{}}  {}\n", command.name, width, command.summary);
  }
  out += "\nHow an array is named\n  " + wrapped(kReferences, 2, 2) + "\n";
  out += fmt::format("\nTopics: 'ejk help {}'\n", fmt::join(topics(), "|"));
  out +=
      "\n'ejk help COMMAND' says all about a command, 'ejk COMMAND -h' the same in\n"
      "short, 'ejk --version --verbose' what this program was built with,\n"
      "'ejk help --completion bash' (zsh, fish) a script for that shell, and\n"
      "'ejk help --man [COMMAND]' a manual page.\n";
  return out;
}

namespace {

std::string title(const Command& command) {
  return wrapped(fmt::format("ejk {}: {}", command.name, command.summary), 0, 2);
}

// A name, and a text in a column of its own.
std::string entry(const std::string& name, std::string_view text) {
  constexpr std::size_t most = 26;
  std::string out = "  " + name;
  if (name.size() + 2 > most)
    out += "\n" + std::string(most + 2, ' ');
  else
    out += std::string(most - name.size(), ' ');
  return out + wrapped(text, most + 2, most + 2) + "\n";
}

std::string entries(const CLI::App& app, const std::string& group, HelpLength length) {
  std::string out;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group() != group) continue;
    std::string_view text = option->get_description();
    if (length == HelpLength::brief) text = text.substr(0, text.find('\n'));
    out += entry(option_name(*option), text);
  }
  return out;
}

// "begins with 0": where it is written, what of, and what it means.
std::string described(const WrittenArrays& written) {
  std::string out;
  for (const WrittenArray& array : written.arrays)
    out += entry(std::string(array.name), fmt::format("{}\n{}", array.form, array.text));
  out += "  In NumPy:\n";
  for (std::string_view use = written.use; !use.empty();) {
    const std::size_t end = std::min(use.find('\n'), use.size());
    out += fmt::format("    {}\n", use.substr(0, end));
    use.remove_prefix(std::min(end + 1, use.size()));
  }
  return out;
}

std::string described(std::span<const ReportKey> keys) {
  std::string out;
  for (const ReportKey& key : keys)
    out += entry(std::string(key.path), fmt::format("{}\n{}", form_and_condition(key), key.text));
  return out;
}

}  // namespace

std::string form_and_condition(const ReportKey& key) {
  return fmt::format("{}{}{}", form_of(key), key.when.empty() ? "" : "; ", key.when);
}

std::string keys_help() {
  std::string out = "\nTypes\n";
  for (const KeyType& type : key_types()) out += entry(std::string(type.name), type.text);
  out += "\nKeys of the object\n" + described(envelope_keys());
  out += "\nKeys of every result\n" + described(shared_keys());
  return out + "\nKeys of a picture\n" + described(picture_keys());
}

std::string keys_help(const Command& command) {
  return fmt::format("Keys of the result of ejk {} --json\n\n{}\n'ejk help json' says what surrounds them.\n",
                     command.name, described(keys_of(command.name)));
}

std::string arrays_help(const WrittenArrays& written) {
  return fmt::format("{}\n{}", written.command, described(written));
}

std::string options_help() {
  const Parser one(command_of("mask")), several(command_of("mask-info"));
  std::string out = "Common options: what every command takes, as far as it applies\n\n";
  out += entries(several.app, kSharedGroup, HelpLength::all);
  out += "\nWhere a command writes one array\n";
  const CLI::Option* output = one.app.get_option("--output");
  out += entry(option_name(*output), output->get_description());
  out += "\nExit status\n  " + wrapped(kExitStatus, 2, 2) + "\n";
  out += "\nEnvironment\n";
  out += entry("OMP_NUM_THREADS", "threads to use, where --threads does not say");
  out += entry("EJK_ISA", "the instruction set to use; 'ejk --version --verbose' lists them");
  return out + entry("NO_COLOR, TERM, COLUMNS", "have their usual meaning");
}

std::string command_help(const Command& command, const CLI::App& app, HelpLength length) {
  const bool all = length == HelpLength::all;
  std::string out;
  if (all) out += fmt::format("Example:\n  {}\n\n", command.example);
  out += title(command) + "\n\n";
  out += "Usage: " + usage_of(command, app) + "\n";
  for (const std::string& group : groups_of(app))
    if (group != kSharedGroup) out += fmt::format("\n{}\n", group) + entries(app, group, length);
  if (all) {
    if (const auto written = written_by(command)) out += "\nArrays written\n" + described(*written);
    if (!app.get_footer().empty()) out += "\n" + app.get_footer() + "\n";
  }
  out += "\nCommon options ('ejk help options')\n  " + wrapped(shared_names(app), 2, 2) + "\n";
  if (all)
    out += fmt::format("\n'ejk help arrays' says how arrays are named; other topics:\n{}.\n",
                       fmt::join(topics().begin() + 1, topics().end(), ", "));
  return out;
}

std::optional<WrittenArrays> written_by(const Command& command) {
  const WrittenArrays* all = written_by(command.word());
  if (all == nullptr) return std::nullopt;
  WrittenArrays some = *all;
  if (command.name != command.word())
    std::erase_if(some.arrays, [&](const WrittenArray& array) {
      return std::find(command.outputs.begin(), command.outputs.end(), array.name) == command.outputs.end();
    });
  if (some.arrays.empty()) return std::nullopt;
  return some;
}

std::string actions_help(const Command& command) {
  std::string out = fmt::format("Example:\n  {}\n\n{}\n\nUsage: ejk {} ACTION [options]\n\nActions\n",
                                command.example, title(command), command.name);
  for (const Command& action : command.actions)
    out += entry(action.name.substr(command.name.size() + 1), action.summary);
  if (const auto written = written_by(command)) out += "\nArrays written\n" + described(*written);
  return out + fmt::format("\n'ejk help {} ACTION' says all about one.\n", command.name);
}

std::string version_text(bool verbose) {
  std::string out = fmt::format("ejk {}\n", version());
  if (verbose)
    out += fmt::format(
        "build            {}\n"
        "libraries        {}\n"
        "instruction set  {} (of {})\n"
        "cores            {}\n"
        "memory           {}\n",
        EJK_BUILD, EJK_LIBRARIES, instruction_set(), fmt::join(instruction_sets(), ", "), usable_cores(),
        format_bytes(memory_limit()));
  return out;
}

}  // namespace ejk::app
