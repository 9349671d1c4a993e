// Running a command line: the command is looked up first, then the arguments after it are parsed by its
// options. Errors that end a run are printed here.
#include "command_line.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <new>

#include "commands.hpp"
#include "ejk/io.hpp"
#include "ejk/program/text.hpp"
#include "errors.hpp"
#include "help.hpp"
#include "job.hpp"
#include "options.hpp"
#include "other_words.hpp"
#include "replay.hpp"
#include "signals.hpp"
#include "terminal.hpp"

namespace ejk::app {

namespace {

using Arguments = std::vector<std::string>;

// How errors are printed, as far as the command line is parsed.
struct ErrorStyle {
  std::string program;
  When color = When::automatic;
};

void print(const std::string& text) { write_text(stdout, text, "cannot write to stdout"); }

Error unexpected(const std::string& argument) {
  return usage("unexpected argument '{}'", printable(argument));
}

bool is_help(const std::string& argument) { return argument == "-h" || argument == "--help"; }

bool has_help(const Arguments& arguments) {
  return std::any_of(arguments.begin(), std::find(arguments.begin(), arguments.end(), "--"), is_help);
}

const Command& command_named(const std::string& word, const std::vector<std::string>& more = {}) {
  if (const Command* command = find_command(word)) return *command;
  std::vector<std::string> names{"help", "--help", "--version"};
  for (const Command* command : commands()) names.emplace_back(command->name);
  names.insert(names.end(), more.begin(), more.end());
  const bool is_option = word.starts_with("-");
  Error error = usage("unknown {} '{}'", is_option ? "option" : "command", printable(word));
  if (std::find(topics().begin(), topics().end(), word) != topics().end())
    error.hint(fmt::format("'ejk help {}' is about that", word));
  else if (const auto meant = meaning_of(word, names))
    error.hint(fmt::format("did you mean '{}'?", *meant));
  else if (const auto nearest = nearest_name(word, names))
    error.hint(fmt::format("did you mean '{}'?", *nearest));
  else
    error.hint(is_option ? "options follow the command: ejk COMMAND [options]"
                         : "'ejk help' lists the commands");
  throw error;
}

const Command& action_named(const Command& command, const std::string& word) {
  if (const Command* action = find_action(command, word)) return *action;
  std::vector<std::string> names;
  for (const Command* action : command.actions) names.emplace_back(action->action());
  if (word.starts_with("-"))
    throw usage("one of {} is required", fmt::join(names, ", "))
        .hint(fmt::format("options follow it: ejk {} {} [options]", command.name, names.front()));
  return *command.actions[read_choice(word, names)];  // throws, with the nearest as its hint
}

// The action: the first argument, or after options the first that is not the value of one.
Arguments::iterator position_of_action(const Command& command, Arguments& arguments) {
  for (auto at = arguments.begin(); at != arguments.end(); ++at) {
    const Command* action = find_action(command, *at);
    if (action == nullptr && at == arguments.begin() && !at->starts_with("-")) break;
    if (action == nullptr) continue;
    if (at == arguments.begin()) return at;
    const Parser parser(*action);
    const Option* before = parser.set.find(*std::prev(at));
    if (before == nullptr || before->type.empty()) return at;
  }
  return arguments.end();
}

void refuse_extras(const Command& command, const OptionSet& set, Arguments extras,
                   const Arguments& arguments) {
  const auto end_of_options = std::find(extras.begin(), extras.end(), "--");
  for (auto extra = extras.begin(); extra != end_of_options; ++extra)
    if (extra->size() > 1 && extra->starts_with('-')) throw unknown_option(command, set, *extra, arguments);
  if (end_of_options != extras.end()) extras.erase(end_of_options);
  if (!extras.empty()) throw unexpected(extras.front());
}

std::string quoted_line(const Command& command, const Arguments& arguments) {
  std::string line = fmt::format("ejk {}", command.name);
  for (const std::string& argument : arguments) {
    const bool is_plain = !argument.empty() && argument.find_first_not_of(
                                                   "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                                   "0123456789_./:=,+@%-") == std::string::npos;
    line += is_plain ? " " + argument : " '";
    for (const char c : is_plain ? "" : argument)
      line += c == '\'' ? std::string("'\\''") : std::string(1, c);
    if (!is_plain) line += "'";
  }
  return line;
}

int run_command(const Command& command, const Arguments& arguments, const std::string& program,
                ErrorStyle& style, Communicator& comm,
                const std::shared_ptr<const ReplayFile>& replay = nullptr) {
  for (auto word = arguments.begin(); word != arguments.end() && *word != "--"; ++word)
    if (is_help(*word))
      return print(command_help(command, *word == "-h" ? HelpLength::brief : HelpLength::all)), kExitDone;
  Parser parser(command);
  parser.set.shared().program = program;
  parser.set.shared().replay = replay;
  const Parsed parsed = parser.set.parse(arguments, command.example);
  refuse_extras(command, parser.set, parsed.extras, arguments);
  if (parsed.error) throw Error(*parsed.error);
  if (const auto broken = parser.set.broken_relation()) throw Error(*broken);
  style.color = parser.set.shared().color;

  Job job(command, parser.set, comm);
  job.provenance.command_line(quoted_line(command, arguments) +
                              (replay ? " (of ejk replay " + replay->path + ")" : ""));
  return parser.run(job) == Outcome::passed ? kExitDone : kExitFailed;
}

// "ejk help" and its arguments: a command, perhaps with --json, a topic, json COMMAND, layouts NAME,
// --completion SHELL, --man [COMMAND].
std::string help_for(Arguments arguments) {
  std::erase_if(arguments, is_help);
  const auto at_most = [&](std::size_t count) {
    if (arguments.size() > count) throw unexpected(arguments[count]);
  };
  if (arguments.empty() || arguments.front() == "help") return at_most(1), program_help();
  const std::string& first = arguments.front();
  const bool has_second = arguments.size() > 1;
  if (first == "--completion") {
    at_most(2);
    if (!has_second) throw usage("a value is missing: --completion SHELL").hint("SHELL is bash, zsh or fish");
    try {
      return completion_script(shells()[read_choice(arguments[1], shells())]);
    } catch (Error& error) {
      error.at("--completion");
      throw;
    }
  }
  if (first == "--man") {
    at_most(2);
    if (has_second && arguments[1] == "mpi") return manual_page_of_mpi();
    return !has_second || arguments[1] == "help" ? manual_page() : manual_page(command_named(arguments[1]));
  }
  if (first == "json" && has_second) return at_most(2), keys_help(command_named(arguments[1]));
  if (first == "layouts" && has_second) return at_most(2), layout_help(arguments[1]);
  if (first == "faults" && has_second) return at_most(2), fault_help(arguments[1]);
  if (std::find(topics().begin(), topics().end(), first) != topics().end())
    return at_most(1), topic_help(first);
  const Command& command = command_named(first, topics());
  const bool as_json = std::erase(arguments, "--json") > 0;
  at_most(command.actions.empty() ? 1 : 2);
  const Command& one = arguments.size() > 1 ? action_named(command, arguments[1]) : command;
  return as_json ? options_json(one) : command_help(one);
}

int run_arguments(const Arguments& arguments, ErrorStyle& style, Communicator& comm) {
  const std::string program = style.program;
  if (arguments.empty()) {
    print_error(program_help());
    return kExitUsage;
  }
  const std::string& first = arguments.front();
  Arguments rest(arguments.begin() + 1, arguments.end());
  if (first == "--version") {
    const bool verbose = !rest.empty() && (rest.front() == "--verbose" || rest.front() == "-v");
    if (rest.size() > (verbose ? 1 : 0)) throw unexpected(rest.back());
    return print(version_text(verbose)), kExitDone;
  }
  if (first == "__complete") return print(completion_candidates(rest)), kExitDone;
  if (is_help(first) || first == "help") return print(help_for(rest)), kExitDone;
  const Command& command = command_named(first);
  const auto run_as = [&](const Command& one, const std::shared_ptr<const ReplayFile>& replay = nullptr) {
    style.program = fmt::format("{} {}", program, one.name);
    handle_signals(style.program);
    return run_command(one, rest, program, style, comm, replay);
  };
  if (command.name == "replay" && !has_help(rest)) {
    style.program = fmt::format("{} {}", program, command.name);
    ReplayedCommand replayed = replayed_command(rest);
    rest = std::move(replayed.arguments);
    return run_as(*replayed.command, replayed.file);
  }
  if (command.actions.empty()) return run_as(command);
  style.program = fmt::format("{} {}", program, command.name);
  if (rest.empty())
    throw usage("the action is missing").hint(fmt::format("for example: {}", command.example));
  const auto at = position_of_action(command, rest);
  if (at == rest.end() && has_help(rest)) return print(command_help(command)), kExitDone;
  const Command& action = action_named(command, at == rest.end() ? rest.front() : *at);
  rest.erase(at);
  return run_as(action);
}

// Whether the ranks share the work of a command line. Help is printed by rank 0.
bool is_divided(const Arguments& arguments) {
  const Command* command =
      arguments.empty() || has_help(arguments) ? nullptr : find_command(arguments.front());
  return command != nullptr && command->is_divided;
}

// The exit status of f(), or the status and text of its error.
template <class F>
RankExit guarded(const ErrorStyle& style, F&& f) {
  const auto failed = [&](Error error) {
    add_hint(error);
    return RankExit{exit_status(error.kind()),
                    error_text(style.program, error, wants_color(stderr, style.color))};
  };
  try {
    return {f(), {}};
  } catch (const OtherRankFailed&) {
    return {kExitBug, {}, true};
  } catch (const Error& error) {
    return failed(error);
  } catch (const std::bad_alloc&) {
    return failed(Error(Error::Kind::budget, "out of memory")
                      .hint("--dry-run prints how much is needed, --max-memory sets a limit"));
  } catch (const std::exception& error) {
    return failed(Error(Error::Kind::internal, fmt::format("a bug in ejk: {}", error.what())));
  }
}

}  // namespace

int run(const std::vector<std::string>& arguments) {
  return run(arguments, "ejk", single_process(),
             [](const RankExit& own) { return print_error(own.message), own.status; });
}

int run(const std::vector<std::string>& arguments, const std::string& program, Communicator& comm,
        const Conclude& conclude) {
  ErrorStyle style{program};
  secure_standard_streams();
  handle_signals(program);
  const RankExit exit = guarded(style, [&] {
    if (comm.is_single() || is_divided(arguments)) return run_arguments(arguments, style, comm);
    return comm.is_first() ? run_arguments(arguments, style, single_process()) : kExitDone;
  });
  const int status = conclude(exit);
  if (!comm.is_first()) return status;
  const RankExit closing = guarded(style, [&] { return close_stdout(status != kExitDone), kExitDone; });
  print_error(closing.message);
  const bool is_error = status != kExitDone && status != kExitFailed;
  return is_error || closing.status == kExitDone ? status : closing.status;
}

}  // namespace ejk::app
