// ejk replay: runs the command that a failing assertion stored, on the tensors stored beside it.
//
// The file is a safetensors file with the metadata (text) `ejk_replay` "1" and `command`, a JSON list of words in which
// @NAME is the tensor NAME, or the tensors NAME:... as a file of several arrays. The command runs with the names
// alone, so its report has no path. It comes from strangers: Inputs open its tensors and nothing else, and the words
// that write are refused.
// tests: tests/cli/replay/
#include "replay.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "ejk/program/json.hpp"
#include "ejk/program/text.hpp"
#include "ejk/report.hpp"
#include "job.hpp"
#include "options.hpp"

namespace ejk::app {

namespace {

using CommandWords = std::vector<std::string>;

constexpr std::string_view kReplayable[] = {"attention",
                                            "attention-grad",
                                            "grouped-matmul",
                                            "transposed-grouped-matmul",
                                            "moe",
                                            "linear-attention",
                                            "conv1d",
                                            "compare",
                                            "check",
                                            "audit"};

// Options that write, or read what is no tensor.
constexpr std::string_view kRefused[] = {"--output", "--html",         "--picture",
                                         "--config", "--tiling-table", "--allow-external"};

template <class... Values>
Error refused_file(const std::string& path, fmt::format_string<Values...> message, Values&&... values) {
  return {Error::Kind::input,
          fmt::format("{}: {}", printable(path), fmt::format(message, std::forward<Values>(values)...))};
}

const std::string& metadata_entry(const std::map<std::string, std::string>& metadata, const std::string& key,
                                  const std::string& path) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) throw refused_file(path, "is no replay file: its metadata has no {}", key);
  return found->second;
}

CommandWords stored_words(const std::string& json, const std::string& path) {
  const auto no_list = [&] { return refused_file(path, "its command is no JSON list of words"); };
  JsonValue value;
  try {
    value = parse_json(json);
  } catch (const Error&) {
    throw no_list();
  }
  const auto* const list = std::get_if<JsonValue::List>(&value.value);
  if (list == nullptr || list->empty()) throw no_list();
  CommandWords words;
  for (const JsonValue& one : *list) {
    const auto* const word = std::get_if<std::string>(&one.value);
    if (word == nullptr) throw no_list();
    words.push_back(*word);
  }
  return words;
}

// A word with the names alone of its references @NAME.
std::string without_marks(const std::string& word, const ReplayFile& file) {
  std::string out;
  for (std::size_t at = 0; at < word.size();) {
    if (word[at] != '@') {
      out += word[at++];
      continue;
    }
    const auto is_part = [](char c) {
      return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    };
    const auto end = std::find_if_not(word.begin() + static_cast<std::ptrdiff_t>(++at), word.end(), is_part);
    const std::string name(word.begin() + static_cast<std::ptrdiff_t>(at), end);
    if (!file.tensors.contains(name) && !file.is_group(name))
      throw refused_file(file.path, "holds no tensor '{}', which its command names", printable(name, 60));
    out += name;
    at += name.size();
  }
  return out;
}

// The words are a valid command line that writes nothing.
void require_harmless(const Command& command, const CommandWords& words, const std::string& path) {
  for (const std::string& word : words)
    if (word == "--" || word == "-h" || word == "--help")
      throw refused_file(path, "its command has the word {}", word);
  Parser parser(command);
  Parsed parsed;
  try {
    parsed = parser.set.parse(words);
  } catch (const Error& error) {
    throw refused_file(path, "its command: {}", error.message());
  }
  if (!parsed.extras.empty())
    throw refused_file(path, "its command has the word '{}', which {} does not have",
                       printable(parsed.extras[0], 60), command.name);
  if (parsed.error) throw refused_file(path, "its command: {}", parsed.error->message());
  for (const std::string_view name : kRefused)
    if (const Option* option = parser.set.find(name); option != nullptr && option->is_given)
      throw refused_file(
          path, "its command has {}: a replayed command reads its own tensors, and writes nothing", name);
}

Run declare_replay(OptionSet& set) {
  const auto file = std::make_shared<std::string>();
  add_word(
      set, "FILE", *file, [](const std::string& word) { return word; }, "FILE",
      "a safetensors file that a failing assertion of the Python package wrote\n"
      "With pytest --ejk-replay DIR, or EJK_REPLAY=DIR.")
      .required();
  set_footer(set,
             "Runs the command in the file on the tensors in the file: the same report and\n"
             "exit status on any machine. Options of that command (--verbose, --html, --try,\n"
             "...) follow FILE. The command in the file writes nothing and reads no other\n"
             "file.");
  return [](Job&) -> Outcome { throw Error(Error::Kind::internal, "replay is another command"); };
}

}  // namespace

ArrayReference ReplayFile::reference(const std::string& word) const {
  ArrayReference named = parse_reference(word);
  const bool is_tensor = tensors.contains(named.path);
  if (named.container == ArrayReference::Container::npy && (is_tensor || is_group(named.path))) {
    named.container = ArrayReference::Container::safetensors;
    named.member = is_tensor ? named.path : "";
    named.path = path;
    return named;
  }
  require_added(word);
  return parse_input(word);
}

void ReplayFile::require_added(const std::string& other) const {
  if (other.empty() || added.find(other) == std::string::npos)
    throw refused_file(path, "its command reads {}, which is not in this file", printable(other, 60));
}

ReplayedCommand replayed_command(const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0].starts_with("-"))
    throw usage("FILE is required").hint("for example: ejk replay failed.safetensors --verbose");
  const std::string& path = arguments[0];
  const ArrayReference named = parse_input(path);
  if (named.container != ArrayReference::Container::safetensors || !named.member.empty() ||
      !named.slice.empty())
    throw refused_file(path, "is no safetensors file");
  const ArrayFile opened(named);
  const auto metadata = opened.attributes();
  if (const std::string& form = metadata_entry(metadata, "ejk_replay", path); form != "1")
    throw refused_file(path, "is a replay file of another form, '{}'", printable(form, 20));
  const std::vector<std::string> names = opened.names();
  const auto file = std::make_shared<ReplayFile>(ReplayFile{path, {names.begin(), names.end()}, ""});
  CommandWords words = stored_words(metadata_entry(metadata, "command", path), path);
  if (std::find(std::begin(kReplayable), std::end(kReplayable), words[0]) == std::end(kReplayable))
    throw refused_file(path, "its command is '{}', which is not replayed", printable(words[0], 60));
  const Command* command = find_command(words[0]);
  words.erase(words.begin());
  if (!command->actions.empty()) {
    command = words.empty() ? nullptr : find_action(*command, words[0]);
    if (command == nullptr || command->action() == "checkpoint")
      throw refused_file(path, "its command has no action that is replayed");
    words.erase(words.begin());
  }
  for (std::string& word : words) word = without_marks(word, *file);
  require_harmless(*command, words, path);
  const auto version_of = metadata.find("ejk_version");
  if (version_of != metadata.end() && version_of->second != version())
    file->warnings.push_back(
        fmt::format("{}: written by ejk {}, and this is {}: bounds and causes may be others", printable(path),
                    printable(version_of->second, 20), version()));
  for (auto word = arguments.begin() + 1; word != arguments.end(); ++word) {
    file->added += *word + "\n";
    words.push_back(*word);
  }
  return {command, std::move(words), file};
}

extern const Command replay_command{
    .name = "replay",
    .group = "Arrays",
    .summary = "run a failed assertion again, from its file",
    .example = "ejk replay failed.safetensors",
    .keys =
        "verdict | string | this and the other keys are those of the command in the file, see ejk help json "
        "COMMAND | of most commands | some machines\n",
    .declare = declare_replay,
};

}  // namespace ejk::app
