// Layout of help: names in a column of 26, texts wrapped beside them.
#include "help.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "ejk/audit.hpp"
#include "ejk/program/hash.hpp"
#include "ejk/program/machine.hpp"
#include "ejk/program/text.hpp"
#include "ejk/report.hpp"

namespace ejk::app {

namespace {

constexpr std::size_t kWidth = 80;

// Wraps `text` at kWidth columns, all lines but the first indented by `indent`; the first begins at `column`.
// Line breaks in the text are kept.
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

std::string title(const Command& command) {
  return wrapped(fmt::format("ejk {}: {}", command.name, command.summary), 0, 2);
}

std::string entry(std::string_view name, std::string_view text) {
  constexpr std::size_t most = 26;
  const bool fits = name.size() + 2 <= most;
  return fmt::format("  {}{}{}\n", name,
                     fits ? std::string(most - name.size(), ' ') : "\n" + std::string(most + 2, ' '),
                     wrapped(text, most + 2, most + 2));
}

std::string_view summary_of(const Option& option) {
  return std::string_view(option.help).substr(0, option.help.find('\n'));
}

std::string entry(const Option& option, HelpLength length = HelpLength::all) {
  return entry(option_name(option), length == HelpLength::brief ? summary_of(option) : option.help);
}

std::string entries(const OptionSet& set, const std::string& group, HelpLength length) {
  std::string out;
  for (const Option& option : set.options())
    if (option.heading == group) out += entry(option, length);
  return out;
}

// The arrays of a layout, or all.
std::string arrays_written(const Command& command, std::string_view layout = "") {
  const std::vector<std::string> among =
      layout.empty() ? std::vector<std::string>() : command.arrays_of(layout);
  std::string out;
  for (const WrittenArray& array : command.all_outputs()) {
    std::vector<std::string> names = split(array.name, ", ");
    if (!layout.empty())
      std::erase_if(names, [&](const std::string& name) {
        return std::find(among.begin(), among.end(), name) == among.end();
      });
    if (!names.empty())
      out += entry(fmt::format("{}", fmt::join(names, ", ")), fmt::format("{}\n{}", array.form, array.text));
  }
  return out;
}

std::string use_help(const Command& command) {
  std::string out = "  In NumPy:\n";
  for (std::string_view use = use_of(command); !use.empty();) {
    const std::size_t end = std::min(use.find('\n'), use.size());
    out += fmt::format("    {}\n", use.substr(0, end));
    use.remove_prefix(std::min(end + 1, use.size()));
  }
  return out;
}

std::string described(const std::vector<ReportKey>& keys) {
  std::string out;
  for (const ReportKey& key : keys)
    out += entry(key.path, fmt::format("{}\n{}", form_and_condition(key), key.text));
  return out;
}

std::string actions_help(const Command& command) {
  std::string out = fmt::format("Example:\n  {}\n\n{}\n\nUsage: ejk {} ACTION [options]\n\nActions\n",
                                command.example, title(command), command.name);
  for (const Command* action : command.actions) out += entry(action->action(), action->summary);
  if (const std::string written = arrays_written(command); !written.empty())
    out += "\nArrays written\n" + written + use_help(command);
  return out + fmt::format("\n'ejk help {} ACTION' describes one of them.\n", command.name);
}

constexpr std::string_view kFaults = R"(Faults: the catalogue of known faults of kernels

Each has public threads that show it. 'ejk audit' computes the result of a
kernel with each fault that applies, and says which ones a test with these
inputs and this tolerance would let pass; --explain of --against names them.
'ejk generate attention-inputs --revealing' makes inputs that show them.
'ejk help faults COMMAND' or NAME lists the threads.
)";

}  // namespace

std::string option_name(const Option& option) {
  if (option.is_positional()) return option.name() + (option.repeats ? "..." : "");  // "FILE..."
  std::string name = fmt::format("{}", fmt::join(option.names, ", "));
  if (!option.type.empty()) name += " " + option.type;
  if (option.is_required) name += " (required)";
  return name;
}

std::string usage_of(const Command& command, const OptionSet& set) {
  std::string line = fmt::format("ejk {}", command.name);
  for (const Option& option : set.options())
    if (option.is_positional())
      line += fmt::format(fmt::runtime(option.is_required ? " {}" : " [{}]"), option_name(option));
    else if (option.is_required)
      line += fmt::format(" {} {}", option.name(), option.type);
  return line + " [options]" + (command.outputs.empty() ? "" : " [-o OUTPUT]");
}

std::string shared_names(const OptionSet& set) {
  std::vector<std::string> names;
  for (const Option& option : set.options())
    if (option.heading == kSharedGroup) names.push_back(option.name());
  return fmt::format("{}", fmt::join(names, " "));
}

std::vector<std::string> groups_of(const OptionSet& set) {
  std::vector<std::string> groups;
  for (const Option& option : set.options())
    if (std::find(groups.begin(), groups.end(), option.heading) == groups.end())
      groups.push_back(option.heading);
  return groups;
}

std::string_view use_of(const Command& command) {
  return command.use.empty() ? find_command(command.word())->use : command.use;
}

std::string program_help() {
  std::string out =
      "ejk: masks, segments, groups and reference results for attention and MoE kernels\n\n"
      "Usage: ejk COMMAND INPUT... [options] [-o OUTPUT]\n";
  constexpr std::size_t kMost = 16;
  std::string_view group;
  std::size_t width = 0;
  for (const Command* command : commands()) {
    if (command->group != group) {
      out += fmt::format("\n{}\n", group = command->group);
      width = kMost;
      for (const Command* other : commands())
        if (other->group == group) width = std::max(width, other->name.size());
    }
    out += fmt::format("  {:{}}  {}\n", command->name, width, command->summary);
  }
  out += "\nHow an array is named\n  " + wrapped(kReferences, 2, 2) + "\n";
  out +=
      "\nTopics: 'ejk help TOPIC'\n  " + wrapped(fmt::format("{}", fmt::join(topics(), ", ")), 2, 2) + "\n";
  out +=
      "\n'ejk help symptoms' leads from what is seen to the command that shows why.\n"
      "'ejk help COMMAND' describes a command, 'ejk COMMAND -h' in short,\n"
      "'ejk help COMMAND --json' its options for a script,\n"
      "'ejk --version --verbose' how this program was built. 'ejk help --completion\n"
      "bash' (zsh, fish) prints a script for that shell, 'ejk help --man [COMMAND]'\n"
      "a manual page.\n";
  return out;
}

std::string form_and_condition(const ReportKey& key) {
  return fmt::format("{}{}{}", form_of(key), key.when.empty() ? "" : "; ", key.when);
}

std::string keys_help() {
  std::string out = "\nTypes\n";
  for (const KeyType& type : key_types()) out += entry(type.name, type.text);
  out += "\nKeys of the object\n" + described(envelope_keys());
  out += "\nKeys of every result\n" + described(shared_keys());
  return out + "\nKeys of a picture\n" + described(picture_keys());
}

std::string keys_help(const Command& command) {
  return fmt::format(
      "Keys of the result of ejk {} --json\n\n{}\n'ejk help json' describes the object around it.\n",
      command.name, described(keys_of(command.name)));
}

std::vector<std::string> layouts_of(const Command& command) {
  if (command.arrays_of == nullptr) return {};
  return Parser(command).set.find("--layout")->choices;
}

std::vector<std::string> layout_names() {
  std::vector<std::string> names, of_options;
  for (const Command* command : commands()) {
    if (!command->all_outputs().empty()) names.emplace_back(command->name);
    for (std::string& layout : layouts_of(*command)) of_options.push_back(std::move(layout));
  }
  names.insert(names.end(), of_options.begin(), of_options.end());
  return names;
}

std::string layouts_list() {
  std::string arrays = "\nArrays of commands\n", layouts = "\nLayouts of --layout\n";
  for (const Command* command : commands()) {
    std::vector<std::string> names = layouts_of(*command);
    if (!names.empty()) {
      layouts += entry(command->name, fmt::format("{}", fmt::join(names, ", ")));
      names = command->arrays_of(names.front());
    } else {
      for (const WrittenArray& array : command->all_outputs()) names.emplace_back(array.name);
    }
    if (!names.empty()) arrays += entry(command->name, fmt::format("{}", fmt::join(names, ", ")));
  }
  return arrays + layouts;
}

std::string layout_help(const std::string& name) {
  std::string out;
  for (const Command* command : commands()) {
    const std::vector<std::string> layouts = layouts_of(*command);
    const bool is_layout = std::find(layouts.begin(), layouts.end(), name) != layouts.end();
    const std::string arrays = is_layout               ? arrays_written(*command, name)
                               : command->name == name ? arrays_written(*command)
                                                       : "";
    if (arrays.empty()) continue;
    out += fmt::format("{}Arrays of ejk {}{}\n\n{}", out.empty() ? "" : "\n", command->name,
                       is_layout ? " --layout " + name : "", arrays);
    if (!is_layout || name == layouts.front()) out += use_help(*command);
  }
  if (!out.empty()) return out;
  const std::vector<std::string> names = layout_names();
  Error error = usage("no layout or command that writes arrays is '{}'", printable(name));
  if (const auto nearest = nearest_name(name, names)) error.hint(fmt::format("did you mean '{}'?", *nearest));
  throw error.hint().empty() ? error.hint("'ejk help layouts' lists them") : error;
}

std::string group_help(const std::string& group) {
  std::vector<std::string> names, described;  // commands; options
  std::string out;
  for (const Command* command : commands())
    for (const Command* one : command->actions.empty() ? std::vector{command} : command->actions) {
      const Parser parser(*one);
      for (const Option& option : parser.set.options()) {
        if (option.heading != group) continue;
        if (names.empty() || names.back() != one->name) names.emplace_back(one->name);
        if (std::find(described.begin(), described.end(), option.name()) != described.end()) continue;
        described.push_back(option.name());
        out += entry(option);
      }
    }
  return fmt::format("\n{}\n  {}\n{}", group, wrapped(fmt::format("of {}", fmt::join(names, ", ")), 2, 2),
                     out);
}

std::string faults_help() {
  std::string out(kFaults);
  std::string_view kinds;
  for (const Fault& fault : fault_catalogue()) {
    if (fault.kinds != kinds) out += fmt::format("\n{}\n", fmt::join(split(kinds = fault.kinds, " "), ", "));
    out += "  " + wrapped(fmt::format("{}: {}", fault.name, fault.text), 2, 4) + "\n";
  }
  return out;
}

std::vector<std::string> fault_pages() {
  std::vector<std::string> names;
  for (const Fault& fault : fault_catalogue()) {
    names.emplace_back(fault.name);
    for (std::string& kind : split(fault.kinds, " "))
      if (std::find(names.begin(), names.end(), kind) == names.end()) names.push_back(std::move(kind));
  }
  return names;
}

std::string fault_help(const std::string& name) {
  std::string out;
  for (const Fault& fault : fault_catalogue()) {
    const std::vector<std::string> kinds = split(fault.kinds, " ");
    if (fault.name == name || std::find(kinds.begin(), kinds.end(), name) != kinds.end())
      out += fmt::format("{}: {}\n  {}\n", fault.name, fault.text, wrapped(fault.evidence, 2, 2));
  }
  if (!out.empty()) return out;
  Error error = usage("no fault or command with faults is '{}'", printable(name));
  const auto nearest = nearest_name(name, fault_pages());
  throw error.hint(nearest ? fmt::format("did you mean '{}'?", *nearest) : "'ejk help faults' lists them");
}

std::string options_help() {
  const Parser one(*find_command("mask")), several(*find_command("mask-info"));
  std::string out = "Common options: for every command, as far as they apply\n\n";
  out += entries(several.set, kSharedGroup, HelpLength::all);
  out += "\nFor a command that writes one array\n";
  const Option* output = one.set.find("--output");
  out += entry(option_name(*output), output->help);
  out += "\nExit status\n  " + wrapped(kExitStatus, 2, 2) + "\n";
  out += "\nEnvironment\n";
  out += entry("OMP_NUM_THREADS", "the number of threads, unless --threads is given");
  out += entry("EJK_ISA", "the instruction set to use; 'ejk --version --verbose' lists them");
  return out + entry("NO_COLOR, TERM, COLUMNS", "have their usual meaning");
}

std::string command_help(const Command& command, HelpLength length) {
  if (!command.actions.empty()) return actions_help(command);
  const Parser parser(command);
  const OptionSet& set = parser.set;
  const bool all = length == HelpLength::all;
  const auto heading = [&](const std::string& group, std::string_view topic) {
    return topic.empty() ? "\n" + group + "\n" : fmt::format("\n{} ('ejk help {}')\n", group, topic);
  };
  std::string out;
  if (all) out += fmt::format("Example:\n  {}\n\n", command.example);
  out += title(command) + "\n\nUsage: " + usage_of(command, set) + "\n";
  for (const std::string& group : groups_of(set))
    if (const std::string_view topic = topic_of(group); group != kSharedGroup)
      out += heading(group, topic) + entries(set, group, topic.empty() ? length : HelpLength::brief);
  if (all) {
    const std::vector<std::string> layouts = layouts_of(command);
    const std::string layout = layouts.empty() ? "" : layouts.front();
    if (const std::string written = arrays_written(command, layout); !written.empty())
      out += heading(layout.empty() ? "Arrays written" : "Arrays written, by default",
                     layout.empty() ? "" : "layouts NAME") +
             written + use_help(command);
    if (!set.footer().empty()) out += "\n" + set.footer() + "\n";
  }
  out += heading(kSharedGroup, topic_of(kSharedGroup)) + "  " + wrapped(shared_names(set), 2, 2) + "\n";
  if (all) out += "\n'ejk help arrays' describes how arrays are named, 'ejk help' lists other topics.\n";
  return out;
}

std::string options_json(const Command& command) {
  if (!command.actions.empty())
    throw usage("the action is missing")
        .hint(fmt::format("for example: ejk help {} --json", command.actions.front()->name));
  const Parser parser(command);
  JsonValue::List options;
  for (const Option& option : parser.set.options()) {
    JsonValue::List choices;
    for (const std::string& choice : option.choices) choices.emplace_back(choice);
    options.emplace_back(JsonValue::Object{{"name", JsonValue(option.name())},
                                           {"type", JsonValue(option.type)},
                                           {"choices", JsonValue(std::move(choices))},
                                           {"repeats", JsonValue(option.repeats)},
                                           {"required", JsonValue(option.is_required)},
                                           {"heading", JsonValue(option.heading)},
                                           {"summary", JsonValue(std::string(summary_of(option)))}});
  }
  return stable_json(JsonValue(JsonValue::Object{{"command", JsonValue(std::string(command.name))},
                                                 {"options", JsonValue(std::move(options))}})) +
         "\n";
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
