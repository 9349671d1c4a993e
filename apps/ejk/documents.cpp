#include "documents.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "ejk/dtype.hpp"
#include "ejk/report.hpp"
#include "help.hpp"
#include "parser.hpp"

namespace ejk::app {

namespace {

constexpr std::string_view kHelpSummary = "all about a command";

// --- what the tables say

struct OptionWords {
  std::vector<std::string> names;  // "-o", "--output"
  std::string summary;             // the first line of its help
  std::vector<std::string> values;
  bool takes_value = false;
};

// "to-dict, merge or warps", the first line of an option's help, as words; none where it says something else.
std::vector<std::string> listed_words(const std::string& help) {
  std::string line = help.substr(0, help.find('\n'));
  const std::size_t last = line.rfind(" or ");
  if (last == std::string::npos) return {};
  line.replace(last, 4, ", ");
  std::vector<std::string> words;
  for (std::size_t at = 0; at <= line.size();) {
    const std::size_t end = std::min(line.find(", ", at), line.size());
    words.push_back(line.substr(at, end - at));
    if (words.back().empty() ||
        words.back().find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") != std::string::npos)
      return {};
    at = end + 2;
  }
  return words;
}

// The words that stand for a value; none where it is a number, a file or free text.
std::vector<std::string> values_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (type == "WHEN") return {"auto", "always", "never"};
  if (type == "WHICH") return {"document", "ejkernel"};
  std::vector<std::string> names;
  if (type == "TYPE")
    for (auto d = DType::boolean; d <= DType::float64; d = static_cast<DType>(static_cast<int>(d) + 1))
      names.emplace_back(name_of(d));
  else
    names = listed_words(option.get_description());
  return names;
}

// The words that a command's first argument may be.
std::vector<std::string> first_words(const Command& command) {
  const Parser parser(command);
  for (const CLI::Option* option : parser.app.get_options())
    if (option->get_positional()) return values_of(*option);
  return {};
}

std::vector<OptionWords> options_of(const Command& command) {
  const Parser parser(command);
  std::vector<OptionWords> all;
  for (const CLI::Option* option : parser.app.get_options()) {
    if (option->get_positional() || option->get_group().empty()) continue;
    OptionWords words;
    for (const std::string& name : option->get_snames()) words.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) words.names.push_back("--" + name);
    words.summary = option->get_description().substr(0, option->get_description().find('\n'));
    words.takes_value = option->get_type_size_max() > 0;
    if (words.takes_value) words.values = values_of(*option);
    all.push_back(std::move(words));
  }
  all.push_back({{"-h", "--help"}, "help on a screen, or all of it", {}, false});
  return all;
}

std::string command_names() {
  std::string names = "help";
  for (const Command& command : commands()) names += " " + command.name;
  return names;
}

// 'it''s' for a shell: in single quotes, one of those as '\''.
std::string single_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// --- bash

std::string bash_script() {
  std::string options, values, firsts;
  for (const Command& command : commands()) {
    if (const auto first = first_words(command); !first.empty())
      firsts += fmt::format("    2:{}) words='{}' ;;\n", command.name, fmt::join(first, " "));
    std::string names;
    for (const OptionWords& option : options_of(command)) {
      for (const std::string& name : option.names) names += (names.empty() ? "" : " ") + name;
      if (!option.values.empty())
        values += fmt::format("    {}:{}) words='{}' ;;\n", command.name, option.names.back(),
                              fmt::join(option.values, " "));
    }
    options += fmt::format("      {}) words='{}' ;;\n", command.name, names);
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
  if [ "$command" = help ]; then
    COMPREPLY=($(compgen -W '{0} --completion --man' -- "$current"))
    return
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
                     command_names(), options, values, firsts);
}

// --- zsh

// A word and what it is, as _describe takes them.
std::string described(std::string_view word, std::string_view summary) {
  return single_quoted(fmt::format("{}:{}", word, summary));
}

std::string zsh_script() {
  std::string words, options, values, firsts;
  words += "      " + described("help", kHelpSummary) + "\n";
  for (const Command& command : commands()) {
    words += "      " + described(command.name, command.summary) + "\n";
    if (const auto first = first_words(command); !first.empty())
      firsts += fmt::format("      3:{}) words_of=({}) ;;\n", command.name, fmt::join(first, " "));
    options += fmt::format("    {})\n      words_of=(\n", command.name);
    for (const OptionWords& option : options_of(command)) {
      for (const std::string& name : option.names)
        options += "        " + described(name, option.summary) + "\n";
      if (!option.values.empty())
        values += fmt::format("    {}:{}) words_of=({}) ;;\n", command.name, option.names.back(),
                              fmt::join(option.values, " "));
    }
    options += "      ) ;;\n";
  }
  return fmt::format(R"(#compdef ejk
# zsh completion for ejk; made by: ejk help --completion zsh
_ejk() {{
  local -a words_of
  if (( CURRENT == 2 )); then
    words_of=(
{0}    )
    _describe 'command' words_of
    return
  fi
  if [[ $words[2] == help ]]; then
    words_of=({3} --completion --man)
    compadd -a words_of
    return
  fi
  local before=$words[CURRENT-1]
  if [[ $words[CURRENT] == --*=* ]]; then
    before=${{words[CURRENT]%%=*}}
    compset -P '*='
  fi
  case $words[2]:$before in
{2}  esac
  if [[ $#words_of == 0 && $words[CURRENT] != -* ]]; then
    case $CURRENT:$words[2] in
{4}    esac
  fi
  if (( $#words_of )); then
    compadd -a words_of
    return
  fi
  if [[ $words[CURRENT] != -* || $words[CURRENT] == --*=* ]]; then
    _files
    return
  fi
  case $words[2] in
{1}  esac
  _describe -o 'option' words_of
}}
if [[ $funcstack[1] == _ejk ]]; then
  _ejk "$@"
else
  compdef _ejk ejk
fi
)",
                     words, options, values, command_names(), firsts);
}

// --- fish

std::string fish_script() {
  std::string out = "# fish completion for ejk; made by: ejk help --completion fish\n";
  const auto first = [&](std::string_view word, std::string_view summary) {
    out += fmt::format("complete -c ejk -n __fish_use_subcommand -f -a {} -d {}\n", word,
                       single_quoted(summary));
  };
  first("help", kHelpSummary);
  for (const Command& command : commands()) first(command.name, command.summary);
  out += fmt::format("complete -c ejk -n '__fish_seen_subcommand_from help' -f -a '{}'\n", command_names());
  for (const Command& command : commands()) {
    if (const auto words = first_words(command); !words.empty())
      out += fmt::format(
          "complete -c ejk -n '__fish_seen_subcommand_from {}; and test (count (commandline -opc)) -eq 2' "
          "-f -a '{}'\n",
          command.name, fmt::join(words, " "));
    for (const OptionWords& option : options_of(command)) {
      out += fmt::format("complete -c ejk -n '__fish_seen_subcommand_from {}'", command.name);
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

std::string page_head(const std::string& name, std::string_view summary) {
  std::string title = name;
  std::transform(title.begin(), title.end(), title.begin(), [](unsigned char c) { return std::toupper(c); });
  return fmt::format(".TH {} 1 \"\" \"ejk {}\" \"User Commands\"\n.SH NAME\n{} \\- {}\n", roff(title),
                     version(), roff(name), roff(summary));
}

std::string paragraph(std::string_view text) { return ".PP\n" + roff(text) + "\n"; }

constexpr std::string_view kExitStatus =
    "0 done; 1 done, and the answer is no; 2 usage; 3 an input is unreadable or invalid; 4 an output cannot "
    "be "
    "written; 5 over the memory budget; 70 a bug in ejk.";

}  // namespace

const std::vector<std::string>& shells() {
  static const std::vector<std::string> names{"bash", "zsh", "fish"};
  return names;
}

std::string completion_script(const std::string& shell) {
  return shell == "bash" ? bash_script() : shell == "zsh" ? zsh_script() : fish_script();
}

std::string manual_page(const Command& command) {
  const Parser parser(command);
  std::string out = page_head("ejk-" + command.name, command.summary);
  const std::string usage = usage_of(command, parser.app);
  out += ".SH SYNOPSIS\n.nf\n" + roff(usage) + "\n.fi\n";
  out += ".SH EXAMPLE\n.nf\n" + roff(command.example) + "\n.fi\n";
  if (!parser.app.get_footer().empty()) out += ".SH DESCRIPTION\n" + roff(parser.app.get_footer()) + "\n";
  for (const std::string& group : groups_of(parser.app)) {
    std::string title = group;
    std::transform(title.begin(), title.end(), title.begin(),
                   [](unsigned char c) { return std::toupper(c); });
    out += fmt::format(".SH \"{}\"\n", roff(title));
    for (const CLI::Option* option : parser.app.get_options()) {
      if (option->get_group() != group) continue;
      const std::string& text = option->get_description();
      const std::size_t end = std::min(text.find('\n'), text.size());
      out += fmt::format(".TP\n\\fB{}\\fR\n{}\n", roff(option_name(*option)), roff(text.substr(0, end)));
      if (end < text.size()) out += ".br\n" + roff(text.substr(end + 1)) + "\n";
    }
  }
  if (!command.outputs.empty())
    out += ".SH \"ARRAYS WRITTEN\"\n" + roff(fmt::format("{}", fmt::join(command.outputs, ", "))) + "\n";
  out += ".SH \"NAMING ARRAYS\"\n" + roff(kReferences) + "\n";
  out += ".SH \"EXIT STATUS\"\n" + roff(kExitStatus) + "\n";
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
  out += ".SH \"NAMING ARRAYS\"\n" + roff(kReferences) + "\n";
  out += ".SH \"EXIT STATUS\"\n" + roff(kExitStatus) + "\n";
  out += ".SH ENVIRONMENT\n.TP\n\\fBOMP_NUM_THREADS\\fR\nthreads to use, where \\-\\-threads does not say\n";
  out += ".TP\n\\fBEJK_ISA\\fR\nthe instruction set to use; \\-\\-version \\-\\-verbose lists them\n";
  return out + paragraph("NO_COLOR, TERM and COLUMNS have their usual meaning.");
}

}  // namespace ejk::app
