// Completion scripts and manual pages, made from the table of commands and what each parser declares: there is
// nothing here to change when an option is added.
#include "documents.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "ejk/report.hpp"
#include "help.hpp"
#include "parser.hpp"
#include "topics.hpp"

namespace ejk::app {

namespace {

// --- what the tables say

struct OptionText {
  std::vector<std::string> names;   // "-o", "--output"
  std::string summary;              // the first line of its help
  std::vector<std::string> values;  // none where it is a number, a file or free text
  bool takes_value = false;
};

struct CommandText {
  std::string name;  // of an action generate/masks
  std::string summary;
  std::vector<std::string> first_words;  // that the first argument may be; none where it is a file
  std::vector<OptionText> options;
};

CommandText words_of(const Command& command);

// What completion offers until it knows which action is meant: the options of all.
CommandText words_of_actions(const Command& command) {
  CommandText all{command.name, command.summary, {}, {}};
  for (const Command& action : command.actions) {
    all.first_words.push_back(action.name.substr(command.name.size() + 1));
    for (OptionText& option : words_of(action).options) {
      const auto is_same = [&](const OptionText& other) { return other.names == option.names; };
      const auto known = std::find_if(all.options.begin(), all.options.end(), is_same);
      if (known == all.options.end()) {
        all.options.push_back(std::move(option));
      } else {  // of the same name, perhaps with other values
        for (const std::string& value : option.values)
          if (std::find(known->values.begin(), known->values.end(), value) == known->values.end())
            known->values.push_back(value);
      }
    }
  }
  return all;
}

CommandText words_of(const Command& command) {
  if (!command.actions.empty()) return words_of_actions(command);
  CommandText all{command.name, command.summary, {}, {}};
  Parser parser(command);
  bool first = true;
  for (CLI::Option* option : parser.app.get_options()) {
    if (option->get_positional() && std::exchange(first, false)) all.first_words = choices_of(*option);
    if (option->get_positional() || option->get_group().empty()) continue;
    OptionText words;
    for (const std::string& name : option->get_snames()) words.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) words.names.push_back("--" + name);
    words.summary = option->get_description().substr(0, option->get_description().find('\n'));
    words.takes_value = option->get_type_size_max() > 0;
    if (words.takes_value) words.values = choices_of(*option);
    all.options.push_back(std::move(words));
  }
  all.options.push_back({{"-h", "--help"}, "help in short, or all of it", {}, false});
  return all;
}

// Whether it is of an action, and so stands behind all commands.
bool is_action(const CommandText& words) { return words.name.find('/') != std::string::npos; }

// The word of a line that its first argument is.
int place_of_first(const CommandText& words) { return is_action(words) ? 3 : 2; }

// All that may follow "ejk", `help` first, then what may follow the actions of commands.
std::vector<CommandText> all_words() {
  std::vector<CommandText> all{{"help", "all about a command or a topic", {"help"}, {}}};
  for (const Command& command : commands()) all.push_back(words_of(command));
  for (const Command& command : commands())
    for (const Command& action : command.actions) {
      all.push_back(words_of(action));
      std::replace(all.back().name.begin(), all.back().name.end(), ' ', '/');
    }
  CommandText& help = all.front();
  for (const Command& command : commands()) help.first_words.push_back(command.name);
  help.options = {{{"--completion"}, "a completion script", shells(), true},
                  {{"--man"}, "a manual page", help.first_words, true}};
  help.first_words.insert(help.first_words.end(), topics().begin(), topics().end());
  return all;
}

std::vector<std::string> action_names(const std::vector<CommandText>& all) {
  std::vector<std::string> names;
  for (const CommandText& words : all)
    if (is_action(words)) names.push_back(words.name);
  return names;
}

// --- bash

std::string bash_script() {
  std::string names, options, values, firsts;
  const std::vector<CommandText> all = all_words();
  for (const CommandText& command : all) {
    if (!is_action(command)) names += (names.empty() ? "" : " ") + command.name;
    if (!command.first_words.empty())
      firsts += fmt::format("    {}:{}) words='{}' ;;\n", place_of_first(command), command.name,
                            fmt::join(command.first_words, " "));
    std::string option_names;
    for (const OptionText& option : command.options)
      for (const std::string& name : option.names) {
        option_names += (option_names.empty() ? "" : " ") + name;
        if (!option.values.empty())
          values +=
              fmt::format("    {}:{}) words='{}' ;;\n", command.name, name, fmt::join(option.values, " "));
      }
    options += fmt::format("      {}) words='{}' ;;\n", command.name, option_names);
  }
  return fmt::format(R"(# bash completion for ejk; made by: ejk help --completion bash
_ejk() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} command=${{COMP_WORDS[1]}} words= prefix=
  COMPREPLY=()
  # --option=value is one word, or three
  case $current in
    =) current= ;;
    --*=*) before=${{current%%=*}} prefix=$before= current=${{current#*=}} ;;
    *) if [ "$before" = = ]; then before=${{COMP_WORDS[COMP_CWORD-2]}}; fi ;;
  esac
  if [ "$COMP_CWORD" -eq 1 ]; then
    words='{0}'
    case $current in -*) words='--help --version' ;; esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    return
  fi
  if [ "$COMP_CWORD" -gt 2 ]; then
    case $command/${{COMP_WORDS[2]}} in
      {4}) command=$command/${{COMP_WORDS[2]}} ;;
    esac
  fi
  case $command:$before in
{2}  esac
  if [ -z "$words" ] && [ "${{current#-}}" = "$current" ]; then
    case $COMP_CWORD:$command in
{3}    esac
  fi
  if [ -z "$words" ]; then
    case $current in -*) ;; *) return ;; esac
    case $command in
{1}    esac
  fi
  COMPREPLY=($(compgen -P "$prefix" -W "$words" -- "$current"))
}}
complete -o default -F _ejk ejk
)",
                     names, options, values, firsts, fmt::join(action_names(all), "|"));
}

// --- zsh

// A word and what it is, as _describe takes them.
std::string described(std::string_view word, std::string_view summary) {
  return single_quoted(fmt::format("{}:{}", word, summary));
}

std::string zsh_script() {
  std::string names, options, values, firsts;
  const std::vector<CommandText> all = all_words();
  for (const CommandText& command : all) {
    if (!is_action(command)) names += "      " + described(command.name, command.summary) + "\n";
    if (!command.first_words.empty())  // zsh counts from 1
      firsts += fmt::format("      {}:{}) words_of=({}) ;;\n", place_of_first(command) + 1, command.name,
                            fmt::join(command.first_words, " "));
    options += fmt::format("    {})\n      words_of=(\n", command.name);
    for (const OptionText& option : command.options)
      for (const std::string& name : option.names) {
        options += "        " + described(name, option.summary) + "\n";
        if (!option.values.empty())
          values +=
              fmt::format("    {}:{}) words_of=({}) ;;\n", command.name, name, fmt::join(option.values, " "));
      }
    options += "      ) ;;\n";
  }
  return fmt::format(R"(#compdef ejk
# zsh completion for ejk; made by: ejk help --completion zsh
_ejk() {{
  local -a words_of
  if (( CURRENT == 2 )) && [[ $words[2] == -* ]]; then
    compadd -- --help --version
    return
  fi
  if (( CURRENT == 2 )); then
    words_of=(
{0}    )
    _describe 'command' words_of
    return
  fi
  local before=$words[CURRENT-1] command=$words[2]
  if (( CURRENT > 3 )); then
    case $command/$words[3] in
      {4}) command=$command/$words[3] ;;
    esac
  fi
  if [[ $words[CURRENT] == --*=* ]]; then
    before=${{words[CURRENT]%%=*}}
    compset -P '*='
  fi
  case $command:$before in
{2}  esac
  if [[ $#words_of == 0 && $words[CURRENT] != -* ]]; then
    case $CURRENT:$command in
{3}    esac
  fi
  if (( $#words_of )); then
    compadd -a words_of
    return
  fi
  if [[ $words[CURRENT] != -* || $words[CURRENT] == --*=* ]]; then
    _files
    return
  fi
  case $command in
{1}  esac
  _describe -o 'option' words_of
}}
if [[ $funcstack[1] == _ejk ]]; then
  _ejk "$@"
else
  compdef _ejk ejk
fi
)",
                     names, options, values, firsts, fmt::join(action_names(all), "|"));
}

// --- fish

std::string fish_script() {
  const std::vector<CommandText> all = all_words();
  // A word that is a command's name may also be a file's: only the first one counts, and then its action.
  std::string out = fmt::format(
      "# fish completion for ejk; made by: ejk help --completion fish\n"
      "function __ejk_is\n"
      "  set -l words (commandline -opc)\n"
      "  test (count $words) -gt 1; or return\n"
      "  set -l command $words[2]\n"
      "  if test (count $words) -gt 2; and contains -- $command/$words[3] {}\n"
      "    set command $command/$words[3]\n"
      "  end\n"
      "  test $command = $argv[1]\n"
      "end\n",
      fmt::join(action_names(all), " "));
  out +=
      "complete -c ejk -n __fish_use_subcommand -l help -d 'the commands'\n"
      "complete -c ejk -n __fish_use_subcommand -l version -d 'of this program'\n";
  for (const CommandText& command : all)
    if (!is_action(command))
      out += fmt::format("complete -c ejk -n __fish_use_subcommand -f -a {} -d {}\n", command.name,
                         single_quoted(command.summary));
  for (const CommandText& command : all) {
    if (!command.first_words.empty())
      out += fmt::format(
          "complete -c ejk -n '__ejk_is {}; and test (count (commandline -opc)) -eq {}' "
          "-f -a '{}'\n",
          command.name, place_of_first(command), fmt::join(command.first_words, " "));
    for (const OptionText& option : command.options) {
      out += fmt::format("complete -c ejk -n '__ejk_is {}'", command.name);
      for (const std::string& name : option.names)
        out += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      if (!option.values.empty())
        out += fmt::format(" -x -a '{}'", fmt::join(option.values, " "));
      else if (option.takes_value)
        out += " -r";
      out += " -d " + single_quoted(option.summary) + "\n";
    }
  }
  return out;
}

// --- man

// Text for roff: its backslashes and dashes are letters, and no line of it is a request.
std::string roff(std::string_view text) {
  std::string out;
  bool at_begin = true;
  for (const char c : text) {
    if (at_begin && (c == '.' || c == '\'')) out += "\\&";
    at_begin = c == '\n';
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out;
}

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

std::string page_head(const std::string& name, std::string_view summary) {
  // Names of options are not hyphenated, nor lines drawn out that end before a long one.
  return fmt::format(".TH {} 1 \"\" \"ejk {}\" \"User Commands\"\n.ad l\n.nh\n.SH NAME\n{} \\- {}\n",
                     roff(upper(name)), version(), roff(name), roff(summary));
}

std::string paragraph(std::string_view text) { return ".PP\n" + roff(text) + "\n"; }

// Lines as they stand.
std::string verbatim(std::string_view text) { return ".nf\n" + roff(text) + "\n.fi\n"; }

std::string options_of(const CLI::App& app, const std::string& group) {
  std::string out = fmt::format(".SH \"{}\"\n", roff(upper(group)));
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group() != group) continue;
    const std::string& text = option->get_description();
    const std::size_t end = std::min(text.find('\n'), text.size());
    out += fmt::format(".TP\n\\fB{}\\fR\n{}\n", roff(option_name(*option)), roff(text.substr(0, end)));
    if (end < text.size()) out += ".br\n" + roff(text.substr(end + 1)) + "\n";
  }
  return out;
}

std::string arrays_of(const WrittenArrays& written) {
  std::string out;
  for (const WrittenArray& array : written.arrays)
    out +=
        fmt::format(".TP\n\\fB{}\\fR\n{}\n.br\n{}\n", roff(array.name), roff(array.form), roff(array.text));
  return out + ".PP\nIn NumPy:\n.PP\n" + verbatim(written.use);
}

std::string keys_of_report(const Command& command) {
  std::string out;
  for (const ReportKey& key : keys_of(command.name))
    out += fmt::format(".TP\n\\fB{}\\fR\n{}\n.br\n{}\n", roff(key.path), roff(form_and_condition(key)),
                       roff(key.text));
  return out + ".PP\n.BR ejk (1)\nsays what surrounds them.\n";
}

}  // namespace

const std::vector<std::string>& shells() {
  static const std::vector<std::string> names{"bash", "zsh", "fish"};
  return names;
}

std::string completion_script(const std::string& shell) {
  return shell == "bash" ? bash_script() : shell == "zsh" ? zsh_script() : fish_script();
}

std::string manual_page(const Command& command) {
  std::string out = page_head("ejk-" + command.name, command.summary);
  // A command's actions have one page together.
  const std::vector<Command> one{command};
  const std::vector<Command>& all = command.actions.empty() ? one : command.actions;
  out += ".SH SYNOPSIS\n.nf\n";
  for (const Command& action : all) out += roff(usage_of(action, Parser(action).app)) + "\n";
  out += ".fi\n.SH EXAMPLE\n.nf\n" + roff(command.example) + "\n.fi\n";
  for (const Command& action : all) {
    const Parser parser(action);
    if (!command.actions.empty())
      out += fmt::format(".SH \"EJK {}\"\n", roff(upper(action.name))) + paragraph(action.summary);
    if (!parser.app.get_footer().empty())
      out += (command.actions.empty() ? ".SH DESCRIPTION\n" : ".PP\n") + verbatim(parser.app.get_footer());
    for (const std::string& group : groups_of(parser.app))
      if (group != kSharedGroup) out += options_of(parser.app, group);
  }
  const Parser parser(all.front());
  out += ".SH \"COMMON OPTIONS\"\n" + roff(shared_names(parser.app)) + "\n.PP\n.BR ejk (1)\nexplains them.\n";
  if (const WrittenArrays* written = written_by(command.word()))
    out += ".SH \"ARRAYS WRITTEN\"\n" + arrays_of(*written);
  out += ".SH \"KEYS OF THE JSON REPORT\"\n" + keys_of_report(command);
  out += ".SH \"NAMING ARRAYS\"\n" + roff(kReferences) + "\n";
  out += fmt::format(".SH \"EXIT STATUS\"\n{}.\n", roff(kExitStatus));
  return out + ".SH \"SEE ALSO\"\n.BR ejk (1)\n";
}

std::string manual_page() {
  std::string out =
      page_head("ejk", "masks, segments, groups and reference results for attention and MoE kernels");
  out += ".SH SYNOPSIS\n.nf\n" + roff("ejk COMMAND INPUT... [options] [-o OUTPUT]") + "\n.fi\n";
  out += ".SH DESCRIPTION\nEach command has a page of its own:\n";
  std::string group;
  for (const Command& command : commands()) {
    if (command.group != group) out += fmt::format(".SS {}\n", roff(group = command.group));
    out += fmt::format(".TP\n.BR ejk\\-{} (1)\n{}\n", roff(command.name), roff(command.summary));
  }
  out += options_of(Parser(command_of("mask-info")).app, kSharedGroup);
  for (const char* topic : {"arrays", "masks", "json"}) {
    // The first line of a topic says what it is of.
    const std::string text = topic_help(topic);
    const std::size_t end = text.find('\n');
    out += fmt::format(".SH \"{}\"\n", roff(upper(text.substr(0, end)))) + verbatim(text.substr(end + 2));
  }
  out += fmt::format(".SH \"EXIT STATUS\"\n{}.\n", roff(kExitStatus));
  out += ".SH ENVIRONMENT\n.TP\n\\fBOMP_NUM_THREADS\\fR\nthreads to use, where \\-\\-threads does not say\n";
  out += ".TP\n\\fBEJK_ISA\\fR\nthe instruction set to use; \\-\\-version \\-\\-verbose lists them\n";
  return out + paragraph("NO_COLOR, TERM and COLUMNS have their usual meaning.");
}

std::string manual_page_of_mpi() {
  const std::string text = topic_help("mpi");
  std::string out = page_head("ejk-mpi", "the commands of ejk by several processes, on one machine or many");
  out +=
      ".SH SYNOPSIS\n.nf\n" + roff("mpirun -n N ejk-mpi COMMAND INPUT... [options] [-o OUTPUT]") + "\n.fi\n";
  out += ".SH DESCRIPTION\n" + verbatim(text.substr(text.find('\n') + 2));
  out += fmt::format(".SH \"EXIT STATUS\"\n{}.\n", roff(kExitStatus));
  return out + ".SH \"SEE ALSO\"\n.BR ejk (1),\n.BR mpirun (1)\n";
}

std::string single_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace ejk::app
