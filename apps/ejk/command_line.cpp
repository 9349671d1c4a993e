// The command word is looked up first; then one parser is built for that command alone, so that every message
// speaks of it. Errors that end a run are told here.
#include "command_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <new>
#include <optional>

#include "commands.hpp"
#include "documents.hpp"
#include "ejk/io.hpp"
#include "ejk/mask.hpp"
#include "ejk/text.hpp"
#include "exit_status.hpp"
#include "help.hpp"
#include "hints.hpp"
#include "job.hpp"
#include "options.hpp"
#include "parser.hpp"
#include "signals.hpp"
#include "terminal.hpp"
#include "topics.hpp"

namespace ejk::app {

namespace {

// Who speaks, and how.
struct ErrorPrinter {
  std::string program;
  When color = When::automatic;
};

std::string in_words(const ErrorPrinter& voice, const Error& error) {
  const bool color = wants_color(stderr, voice.color);
  std::string text = fmt::format("{}{}:{} {}\n", color ? "\x1b[1;31m" : "", voice.program,
                                 color ? "\x1b[0m" : "", printable(error.message(), kLongestMessage));
  if (!error.hint().empty())
    text += fmt::format("{}hint:{} {}\n", color ? "\x1b[1m" : "", color ? "\x1b[0m" : "",
                        printable(error.hint(), kLongestMessage));
  return text;
}

void print(const std::string& text) { write_text(stdout, text, "cannot write to stdout"); }

// `more` are words that may be meant as well.
const Command& command_named(const std::string& word, const std::vector<std::string>& more = {}) {
  std::vector<std::string> names{"help", "--help", "--version"};
  for (const Command& command : commands()) {
    if (command.name == word) return command;
    names.push_back(command.name);
  }
  names.insert(names.end(), more.begin(), more.end());
  Error error = usage(fmt::format("unknown command '{}'", printable(word)));
  if (word.starts_with("-")) error = usage(fmt::format("unknown option '{}'", printable(word)));
  if (std::find(topics().begin(), topics().end(), word) != topics().end())
    error.hint(fmt::format("'ejk help {}' is about that", word));
  else if (const auto nearest = nearest_name(word, names))
    error.hint(fmt::format("did you mean '{}'?", *nearest));
  else
    error.hint(word.starts_with("-") ? "options follow the command: ejk COMMAND [options]"
                                     : "'ejk help' lists the commands");
  throw error;
}

const Command& action_named(const Command& command, const std::string& word) {
  if (const Command* action = action_of(command, word)) return *action;
  std::vector<std::string> names;
  for (const Command& action : command.actions) names.push_back(action.name.substr(command.name.size() + 1));
  if (word.starts_with("-"))
    throw usage(fmt::format("one of {} is required", fmt::join(names, ", ")))
        .hint(fmt::format("options follow it: ejk {} {} [options]", command.name, names.front()));
  read_choice(word, names);  // throws, with the nearest
  throw usage("unknown action");
}

// The word of the action: the first one, or behind options the first that is no value of one.
std::vector<std::string>::iterator find_action(const Command& command, std::vector<std::string>& words) {
  for (auto at = words.begin(); at != words.end(); ++at) {
    const Command* action = action_of(command, *at);
    if (action == nullptr && at == words.begin() && !at->starts_with("-")) break;
    if (action == nullptr) continue;
    if (at == words.begin()) return at;
    const Parser parser(*action);
    const CLI::Option* before = parser.app.get_option_no_throw(*std::prev(at));
    if (before == nullptr || before->get_expected_max() == 0) return at;
  }
  return words.end();
}

// The option that a message of CLI11 begins with, and its type: "--block QxK".
std::string option_in(const CLI::App& app, const std::string& message) {
  const std::string name = message.substr(0, message.find(':'));
  const CLI::Option* option = app.get_option_no_throw(name);
  return option ? fmt::format("{} {}", name, option->get_type_name()) : name;
}

// Another action of the same command that has this option; nullptr where none has.
const Command* sibling_with(const Command& command, const std::string& option) {
  if (command.name == command.word()) return nullptr;
  for (const Command& other : command_of(command.word()).actions)
    if (Parser(other).app.get_option_no_throw(option) != nullptr) return &other;
  return nullptr;
}

// The few commands that have this option: "mask, check mask-info".
std::string commands_with(const std::string& option) {
  constexpr std::size_t kFew = 6;
  std::vector<std::string> names;
  for (const Command& command : commands())
    for (const Command& one : command.actions.empty() ? std::span(&command, 1) : std::span(command.actions))
      if (Parser(one).app.get_option_no_throw(option) != nullptr) names.push_back(one.name);
  return names.size() > kFew ? "" : fmt::format("{}", fmt::join(names, ", "));
}

// Options that other programs have for masks: the word for it of ejk::MaskExpression::meant_by, and its most values.
struct MaskOption {
  std::string_view name, word;
  std::size_t values;
};
constexpr MaskOption kMaskOptions[] = {
    {"--causal", "is_causal", 0},     {"--is-causal", "is_causal", 0},   {"--window", "window", 2},
    {"--window-size", "window", 2},   {"--sliding-window", "window", 2}, {"--attn-mask", "array", 1},
    {"--attention-mask", "array", 1},
};

// The other options that have another name there.
constexpr std::pair<std::string_view, std::string_view> kOtherOptions[] = {
    {"--softmax-scale", "--scale"}, {"--sm-scale", "--scale"},          {"--logit-cap", "--softcap"},
    {"--soft-cap", "--softcap"},    {"--logits-soft-cap", "--softcap"}, {"--attn-bias", "--bias"},
};

std::string with_hyphens(std::string_view name) {
  std::string word(name);
  std::replace(word.begin(), word.end(), '_', '-');
  return word;
}

const MaskOption* mask_option(std::string_view name) {
  const std::string word = with_hyphens(name);
  const auto* row = std::find_if(std::begin(kMaskOptions), std::end(kMaskOptions),
                                 [&](const MaskOption& option) { return option.name == word; });
  return row == std::end(kMaskOptions) ? nullptr : row;
}

// The option of ours that is meant by another program's, or by a misspelt name.
std::optional<std::string> option_meant_by(const std::string& name, const std::vector<std::string>& names) {
  const std::string word = with_hyphens(name);
  for (const auto& [other, ours] : kOtherOptions)
    if (word == other && std::find(names.begin(), names.end(), ours) != names.end()) return std::string(ours);
  return nearest_name(word, names);
}

// The words to type for such options, in place of all of them: "--mask 'causal & local(left=127, right=0)'".
std::string mask_of_options(const std::vector<std::string>& words) {
  const bool one_mask = std::count(words.begin(), words.end(), "--mask") < 2;  // several are of one head each
  std::string all;
  const auto add = [&](const std::string& expression) {
    all += (all.empty() ? "" : " & ") +
           (expression.find('|') == std::string::npos ? expression : "(" + expression + ")");
  };
  for (std::size_t w = 0; w < words.size() && words[w] != "--"; ++w) {
    const std::size_t equals = words[w].find('=');
    const std::string_view name = std::string_view(words[w]).substr(0, equals);
    const MaskOption* option = mask_option(name);
    if (option == nullptr && (name != "--mask" || !one_mask)) continue;
    const std::size_t most = option ? option->values : 1;
    const auto is_value = [&](std::size_t at) {  // of a window: 128 0
      return at < words.size() && (!words[at].starts_with("-") || words[at] == "-1") &&
             (most < 2 || words[at].find_first_not_of("-0123456789(), ") == std::string::npos);
    };
    std::vector<std::string> values;
    if (equals != std::string::npos) values.push_back(words[w].substr(equals + 1));
    for (std::size_t at = w + 1; equals == std::string::npos && values.size() < most && is_value(at); ++at)
      values.push_back(words[at]);
    if (option == nullptr) {
      if (!values.empty()) add(values[0]);
      continue;
    }
    if (most == 0) {
      std::string off = values.empty() && w + 1 < words.size() ? words[w + 1]
                        : values.empty()                       ? ""
                                                               : values[0];
      std::transform(off.begin(), off.end(), off.begin(), [](char c) { return std::tolower(c); });
      if (off == "false" || off == "0" || off == "no") continue;
      add("causal");
      continue;
    }
    std::string value = fmt::format("{}", fmt::join(values, ","));
    if (most == 2) std::erase_if(value, [](char c) { return c == '(' || c == ')' || c == ' '; });  // (128, 0)
    const auto meant = MaskExpression::meant_by(fmt::format("{}({})", option->word, value));
    if (values.empty() || !meant)
      return most == 2 ? "a causal window of L + 1 keys is --mask 'local(left=L, right=0)'"
                       : "an array of queries and keys is --mask 'file(REF)'";
    add(*meant);
  }
  if (all.empty()) return "without --mask all pairs attend";
  const bool is_word = all.find_first_of("()&|~ ") == std::string::npos;
  return "--mask " + (is_word ? all : "'" + all + "'");
}

// An option, with its value if it has one: "--cp 4".
std::string with_value(const std::vector<std::string>& words, const std::string& option) {
  const auto at = std::find(words.begin(), words.end(), option);
  const bool has_value = at != words.end() && at->find('=') == std::string::npos && at + 1 != words.end() &&
                         !(at + 1)->starts_with("-");
  return printable(has_value ? option + " " + *(at + 1) : option);
}

// What the parser could not place of `words`.
void refuse_extras(const Command& command, const CLI::App& app, const std::vector<std::string>& words) {
  std::vector<std::string> names{"--help"};
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  std::vector<std::string> extras = app.remaining();
  const auto end_of_options = std::find(extras.begin(), extras.end(), "--");
  for (auto extra = extras.begin(); extra != end_of_options; ++extra) {
    std::string word = *extra;
    if (word.size() < 2 || word[0] != '-') continue;
    word = word.substr(0, word.find('='));
    Error error = usage(fmt::format("unknown option '{}'", printable(word)));
    if (mask_option(word) != nullptr && app.get_option_no_throw("--mask-kind") != nullptr)
      error.hint(mask_of_options(words));
    else if (const Command* other = sibling_with(command, word))
      error.hint(fmt::format("'ejk {}' has such an option", other->name));
    else if (const auto meant = option_meant_by(word, names))
      error.hint(fmt::format("did you mean '{}'?", *meant));
    else if (const std::string others = commands_with(word); !others.empty())
      error.hint(
          others.find(',') != std::string::npos
              ? fmt::format("it is an option of {}", others)
              : fmt::format("it is an option of {0}: ejk {0} ... {1}", others, with_value(words, *extra)));
    else
      error.hint(fmt::format("'ejk {} -h' lists the options", command.name));
    throw error;
  }
  if (end_of_options != extras.end()) extras.erase(end_of_options);
  if (!extras.empty()) throw usage(fmt::format("unexpected argument '{}'", printable(extras.front())));
}

// "--quiet=yes" and "--mask=", which the parser would put its own meaning into.
void check_value(const CLI::App& app, const std::string& word) {
  const std::size_t equals = word.find('=');
  if (!word.starts_with("-") || equals == std::string::npos) return;
  const std::string name = word.substr(0, equals);
  const CLI::Option* option = app.get_option_no_throw(name);
  if (option == nullptr) return;
  if (option->get_expected_max() == 0) throw usage(fmt::format("{} takes no value", name));
  if (equals + 1 == word.size()) throw usage(fmt::format("a value is missing: {}", option_in(app, name)));
}

// What is wrong, in our words.
Error reworded(const Command& command, const CLI::App& app, const CLI::ParseError& error) {
  const std::string message = error.what();
  if (dynamic_cast<const CLI::RequiredError*>(&error))
    return usage(message).hint(fmt::format("for example: {}", command.example));
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error)) {
    const bool twice = message.find("received") != std::string::npos;
    return usage(twice ? fmt::format("{} is given more than once", message.substr(0, message.find(':')))
                       : fmt::format("a value is missing: {}", option_in(app, message)));
  }
  return usage(message);
}

// What a shell takes for the same words.
std::string command_line(const Command& command, const std::vector<std::string>& words) {
  std::string line = "ejk " + command.name;
  for (const std::string& word : words) {
    const bool is_plain = !word.empty() && word.find_first_not_of(
                                               "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                               "0123456789_./:=,+@%-") == std::string::npos;
    line += " " + (is_plain ? word : single_quoted(word));
  }
  return line;
}

// Standard input has one reader. What the words name is told before anything is read; what stands within an
// expression is told when it is opened.
void refuse_two_readers(const CLI::App& app) {
  std::int64_t readers = 0;
  for (const CLI::Option* option : app.get_options()) {
    if (option->check_lname("output")) continue;
    for (const std::string& word : option->results())
      if (word == "-" || word.starts_with("-[") || word.starts_with(protect("-["))) ++readers;
  }
  if (readers > 1) throw usage("-: standard input can be read only once");
}

int run_command(const Command& command, std::vector<std::string> words, const std::string& program,
                ErrorPrinter& voice, Communicator& comm) {
  Parser parser(command);
  parser.shared.program = program;
  std::string typed = command_line(command, words);
  const std::vector<std::string> given = words;
  // A request for help is answered, whatever else is wrong.
  for (auto word = words.begin(); word != words.end() && *word != "--"; ++word) {
    if (*word == "-h") return print(command_help(command, parser.app, HelpLength::brief)), kExitDone;
    if (*word == "--help") return print(command_help(command, parser.app, HelpLength::all)), kExitDone;
    check_value(parser.app, *word);
    *word = protect(*word);
  }
  std::reverse(words.begin(), words.end());  // as CLI11 takes them
  try {
    parser.app.parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    refuse_extras(command, parser.app, given);
    throw reworded(command, parser.app, error);
  }
  refuse_extras(command, parser.app, given);
  refuse_two_readers(parser.app);
  voice.color = parser.shared.color;

  Job job(command, parser.set, comm);
  job.provenance.command_line(std::move(typed));
  return parser.run(job) == Outcome::passed ? kExitDone : kExitNo;
}

// "ejk help" and what may follow: a command, json COMMAND, --completion SHELL, --man [COMMAND].
std::string help_for(std::vector<std::string> words) {
  std::erase_if(words, [](const std::string& w) { return w == "-h" || w == "--help"; });
  const auto at_most = [&](std::size_t count) {
    if (words.size() > count) throw usage(fmt::format("unexpected argument '{}'", printable(words[count])));
  };
  if (words.empty() || words.front() == "help") return at_most(1), program_help();
  if (words.front() == "--completion") {
    at_most(2);
    if (words.size() < 2)
      throw usage("a value is missing: --completion SHELL").hint("SHELL is bash, zsh or fish");
    try {
      return completion_script(shells()[read_choice(words[1], shells())]);
    } catch (Error& error) {
      error.at("--completion");
      throw;
    }
  }
  if (words.front() == "--man") {
    at_most(2);
    if (words.size() == 2 && words[1] == "mpi") return manual_page_of_mpi();
    return words.size() < 2 || words[1] == "help" ? manual_page() : manual_page(command_named(words[1]));
  }
  if (words.front() == "json" && words.size() > 1) {
    at_most(2);
    return keys_help(command_named(words[1]));
  }
  if (std::find(topics().begin(), topics().end(), words.front()) != topics().end())
    return at_most(1), topic_help(words.front());
  const Command& command = command_named(words.front(), topics());
  if (command.actions.empty()) return at_most(1), command_help(command, Parser(command).app, HelpLength::all);
  at_most(2);
  if (words.size() < 2) return actions_help(command);
  const Command& action = action_named(command, words[1]);
  return command_help(action, Parser(action).app, HelpLength::all);
}

// Until the command is known, voice.program is the program alone.
int run_words(const std::vector<std::string>& words, ErrorPrinter& voice, Communicator& comm) {
  const std::string program = voice.program;
  if (words.empty()) {
    say(program_help());
    return kExitUsage;
  }
  std::vector<std::string> rest(words.begin() + 1, words.end());
  const std::string& word = words.front();
  if (word == "--version") {
    const bool verbose = !rest.empty() && (rest.front() == "--verbose" || rest.front() == "-v");
    if (rest.size() > (verbose ? 1 : 0))
      throw usage(fmt::format("unexpected argument '{}'", printable(rest.back())));
    return print(version_text(verbose)), kExitDone;
  }
  if (word == "-h" || word == "--help" || word == "help") return print(help_for(rest)), kExitDone;
  const Command& command = command_named(word);
  const auto run_as = [&](const Command& one) {
    voice.program = fmt::format("{} {}", program, one.name);
    handle_signals(voice.program);
    return run_command(one, rest, program, voice, comm);
  };
  if (command.actions.empty()) return run_as(command);
  voice.program = fmt::format("{} {}", program, command.name);
  if (rest.empty())
    throw usage("what to do is missing").hint(fmt::format("for example: {}", command.example));
  const auto at = find_action(command, rest);
  const auto end = std::find(rest.begin(), rest.end(), "--");
  const auto is_help = [](const std::string& w) { return w == "-h" || w == "--help"; };
  if (at == rest.end() && std::any_of(rest.begin(), end, is_help))
    return print(actions_help(command)), kExitDone;
  const Command& action = action_named(command, at == rest.end() ? rest.front() : *at);
  rest.erase(at);
  return run_as(action);
}

// Whether the ranks do together what the words say. Help is rank 0's.
bool is_divided(const std::vector<std::string>& words) {
  const auto is_help = [](const std::string& word) { return word == "-h" || word == "--help"; };
  if (words.empty() || std::any_of(words.begin(), std::find(words.begin(), words.end(), "--"), is_help))
    return false;
  for (const Command& command : commands())
    if (command.name == words.front()) return command.is_divided;
  return false;
}

// What f() answers, or what there is to say of the error that ended it.
template <class F>
RankExit guarded(const ErrorPrinter& voice, F&& f) {
  const auto failed = [&](const Error& error, int status) {
    return RankExit{status, in_words(voice, error)};
  };
  try {
    return {f(), {}};
  } catch (const OtherRankFailed&) {
    return {kExitBug, {}, true};
  } catch (Error& error) {
    add_hint(error);
    return failed(error, exit_status(error.kind()));
  } catch (const std::bad_alloc&) {
    return failed(Error(Error::Kind::budget, "out of memory")
                      .hint("--dry-run says how much is needed, --max-memory sets a limit"),
                  kExitBudget);
  } catch (const std::exception& error) {
    return failed(Error(Error::Kind::internal, fmt::format("a bug in ejk: {}", error.what())), kExitBug);
  }
}

}  // namespace

int run(const std::vector<std::string>& words) {
  return run(words, "ejk", single_process(),
             [](const RankExit& mine) { return say(mine.said), mine.status; });
}

int run(const std::vector<std::string>& words, const std::string& program, Communicator& comm,
        const Conclude& conclude) {
  ErrorPrinter voice;
  voice.program = program;
  secure_standard_streams();
  handle_signals(voice.program);
  const RankExit outcome = guarded(voice, [&] {
    if (comm.is_single() || is_divided(words)) return run_words(words, voice, comm);
    return comm.is_first() ? run_words(words, voice, single_process()) : kExitDone;
  });
  const int status = conclude(outcome);
  if (!comm.is_first()) return status;
  const RankExit closing = guarded(voice, [&] {
    close_stdout(status != kExitDone);
    return kExitDone;
  });
  say(closing.said);
  return status != kExitDone && status != kExitNo ? status
         : closing.status != kExitDone            ? closing.status
                                                  : status;
}

}  // namespace ejk::app
