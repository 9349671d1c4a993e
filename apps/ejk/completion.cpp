// Candidates of shell completion, from the declarations of the commands. Without any the shells complete file
// names.
//
// tests: tests/cli/test_documents.cpp, tests/cli/program/completion.case
#include "help.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "commands.hpp"
#include "options.hpp"

namespace ejk::app {

namespace {

struct Candidate {
  std::string text;
  std::string description = {};
};

class Candidates {
 public:
  void add(std::string_view text, std::string_view description = "") {
    const auto is_same = [&](const Candidate& other) { return other.text == text; };
    if (std::none_of(all_.begin(), all_.end(), is_same))
      all_.push_back({std::string(text), std::string(description)});
  }
  void add_all(const std::vector<std::string>& texts) {
    for (const std::string& text : texts) add(text);
  }
  void add_commands() {
    for (const Command* command : commands()) add(command->name, command->summary);
  }

  std::string text(std::string_view typed, std::string_view prefix) const {
    std::string lines;
    for (const Candidate& one : all_)
      if (one.text.starts_with(typed))
        lines +=
            fmt::format("{}{}{}{}\n", prefix, one.text, one.description.empty() ? "" : "\t", one.description);
    return lines;
  }

 private:
  std::vector<Candidate> all_;
};

// The option whose value is typed last: --option=value, which bash passes as three arguments, or --option
// value.
struct Position {
  std::string option, typed, prefix;
};
Position position_of(const std::vector<std::string>& arguments) {
  const auto from_end = [&](std::size_t n) {
    return n < arguments.size() ? arguments[arguments.size() - 1 - n] : "";
  };
  const std::string last = from_end(0);
  if (last == "=") return {from_end(1), "", ""};
  if (from_end(1) == "=") return {from_end(2), last, ""};
  const std::size_t equals = last.find('=');
  if (!last.starts_with("--") || equals == std::string::npos) return {from_end(1), last, ""};
  return {last.substr(0, equals), last.substr(equals + 1), last.substr(0, equals + 1)};
}

void add_help(Candidates& candidates, const Position& at, bool is_first) {
  const bool is_page = at.option == "--man" || at.option == "json";
  if (at.option == "--completion") return candidates.add_all(shells());
  if (at.typed.starts_with("-")) return candidates.add_all({"--completion", "--json", "--man"});
  if (at.option == "layouts") return candidates.add_all(layout_names());
  if (at.option == "faults") return candidates.add_all(fault_pages());
  if (!is_first && !is_page) return;
  candidates.add("help", "all about a command or a topic");
  candidates.add_commands();
  if (!is_page) candidates.add_all(topics());
}

// Until the action is known, the options of all.
void add_options(Candidates& candidates, const Position& at, const Command& command,
                 const std::vector<const Command*>& meant, bool is_first) {
  bool is_value = false;
  for (const Command* one : meant) {
    const Parser parser(*one);
    const Option* option = parser.set.find(at.option);
    if (option == nullptr || option->type.empty()) continue;
    is_value = true;
    candidates.add_all(option->choices);
  }
  if (is_value) return;
  if (!at.typed.starts_with("-")) {
    for (const Command* action : command.actions)
      if (is_first) candidates.add(action->action(), action->summary);
    return;
  }
  for (const Command* one : meant) {
    const Parser parser(*one);
    for (const Option& option : parser.set.options())
      for (const std::string& name : option.names)
        if (!option.is_positional())
          candidates.add(name, std::string_view(option.help).substr(0, option.help.find('\n')));
  }
  candidates.add("-h", "help in short");
  candidates.add("--help", "help");
}

}  // namespace

std::string completion_candidates(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return "";
  const Position at = position_of(arguments);
  Candidates candidates;
  if (arguments.size() == 1) {
    if (!at.typed.starts_with("-")) candidates.add("help", "all about a command or a topic");
    if (at.typed.starts_with("-"))
      candidates.add_all({"--help", "--version"});
    else
      candidates.add_commands();
  } else if (const bool is_first = arguments.size() == 2; arguments.front() == "help") {
    add_help(candidates, at, is_first);
  } else if (const Command* command = find_command(arguments.front())) {
    const Command* action = is_first ? nullptr : find_action(*command, arguments[1]);
    add_options(candidates, at, *command,
                action != nullptr          ? std::vector{action}
                : command->actions.empty() ? std::vector{command}
                                           : command->actions,
                is_first);
  }
  return candidates.text(at.typed, at.prefix);
}

const std::vector<std::string>& shells() {
  static const std::vector<std::string> names{"bash", "zsh", "fish"};
  return names;
}

std::string completion_script(const std::string& shell) {
  if (shell == "bash")
    return R"(# bash completion for ejk; generated by: ejk help --completion bash
_ejk() {
  local candidate
  COMPREPLY=()
  while IFS=$'\t' read -r candidate _; do
    COMPREPLY+=("$candidate")
  done < <("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _ejk ejk
)";
  if (shell == "zsh")
    return R"--(#compdef ejk
# zsh completion for ejk; generated by: ejk help --completion zsh
_ejk() {
  local -a candidates
  candidates=(${(f)"$($words[1] __complete "${(@)words[2,CURRENT]}" 2>/dev/null)"})
  candidates=(${candidates/$'\t'/:})
  if (( $#candidates )); then
    _describe -o 'candidate' candidates
  else
    _files
  fi
}
if [[ $funcstack[1] == _ejk ]]; then
  _ejk "$@"
else
  compdef _ejk ejk
fi
)--";
  return R"(# fish completion for ejk; generated by: ejk help --completion fish
function __ejk_complete
  set -l arguments (commandline -opc) (commandline -ct)
  $arguments[1] __complete $arguments[2..-1] 2>/dev/null
end
complete -c ejk -n 'test (count (__ejk_complete)) -gt 0' -f -a '(__ejk_complete)'
)";
}

}  // namespace ejk::app
