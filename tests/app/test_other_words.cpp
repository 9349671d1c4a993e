// Words of other programs: each row of the table leads to words that the program takes.
#include "other_words.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "commands.hpp"
#include "options.hpp"
#include "support/failure.hpp"

using namespace ejk;
using namespace ejk::app;

namespace {

struct Declared {
  const Command* command;
  std::unique_ptr<Parser> parser;
};

const std::vector<Declared>& all_commands() {
  static const std::vector<Declared> all = [] {
    std::vector<Declared> made;
    for (const Command* command : commands())
      for (const Command* one : command->actions.empty() ? std::vector{command} : command->actions)
        made.push_back({one, std::make_unique<Parser>(*one)});
    return made;
  }();
  return all;
}

std::vector<std::string> option_names(const OptionSet& set) {
  std::vector<std::string> names;
  for (const Option& option : set.options())
    if (!option.is_positional()) names.push_back(option.name());
  return names;
}

bool has(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// What follows "did you mean" of the error that an option's value makes.
std::string hint_of(const Command& command, const std::string& option, const std::string& word) {
  Parser parser(command);
  try {
    const Parsed parsed = parser.set.parse({option, word});
    return parsed.error && !parsed.error->hint().starts_with("for example") ? parsed.error->hint() : "";
  } catch (const Error& error) {
    return error.hint();
  }
}

// Whether the words are options with values that the command takes, besides those that it requires.
bool takes(const Command& command, const std::vector<std::string>& words) {
  Parser parser(command);
  const Parsed parsed = parser.set.parse(words);
  return parsed.extras.empty() && (!parsed.error || parsed.error->message().ends_with(" is required"));
}

}  // namespace

TEST_CASE("a value of another program gets words that its option takes") {
  std::size_t hints = 0;
  for (const OtherWords& row : other_words()) {
    bool counts = row.name().starts_with("--") || find_command(row.name()) != nullptr || row.name() == "help";
    for (const Declared& declared : all_commands()) {
      const Command* const command = declared.command;
      const auto& parser = declared.parser;
      counts = counts || command->action() == row.name();
      for (const Option& option : parser->set.options()) {
        if (!has(option.choices, row.name())) continue;
        counts = true;
        for (const std::string& word : words_in(row.words)) {
          if (has(option.choices, word)) continue;
          const std::string hint = hint_of(*command, option.name(), word);
          INFO(command->name, " ", option.name(), " ", word);
          REQUIRE(hint.starts_with("did you mean "));
          std::vector<std::string> words = words_in(hint.substr(13, hint.size() - 14));
          words.insert(words.begin(), option.name());
          CHECK(takes(*command, words));
          ++hints;
        }
      }
    }
    CHECK_MESSAGE(counts, std::string(row.ours), " is no name");
  }
  CHECK(hints > 500);
}

TEST_CASE("an option of another program gets one that the command takes") {
  for (const OtherWords& row : other_words()) {
    if (!row.name().starts_with("--")) continue;
    bool counts = false;
    for (const Declared& declared : all_commands()) {
      const Command* const command = declared.command;
      const auto& parser = declared.parser;
      const std::vector<std::string> names = option_names(parser->set);
      if (!has(names, row.name())) continue;
      counts = true;
      for (const std::string& word : words_in(row.words)) {
        if (parser->set.find(word) != nullptr) continue;
        const std::string hint = unknown_option(*command, parser->set, word, {word}).hint();
        INFO(command->name, " ", word, ": ", hint);
        CHECK_FALSE(hint.ends_with("lists the options"));
        const std::size_t at = hint.find("--");
        if (!hint.starts_with("did you mean")) continue;  // it is no use here, or another action's
        const std::string option = hint.substr(at, hint.find_first_of(" '?", at) - at);
        CHECK(parser->set.find(option) != nullptr);
      }
    }
    CHECK_MESSAGE(counts, std::string(row.ours), " is an option of no command");
  }
}

TEST_CASE("an option that is of no use is said to be none, and what its hint names is an option") {
  for (const NeedlessOptions& row : needless_options()) {
    bool counts = row.option.empty();
    for (const Declared& declared : all_commands()) {
      const Command* const command = declared.command;
      const auto& parser = declared.parser;
      counts = counts || parser->set.find(row.option) != nullptr;
      if (!row.option.empty() && parser->set.find(row.option) == nullptr) continue;
      for (const std::string& word : words_in(row.words))
        if (parser->set.find(word) == nullptr)
          CHECK(unknown_option(*command, parser->set, word, {word}).hint() == row.hint);
    }
    CHECK_MESSAGE(counts, std::string(row.option));
  }
}

TEST_CASE("modules, cases and underscores of words do not count") {
  const std::vector<std::string> names{"bfloat16", "float32", "float8_e4m3fn"};
  for (const char* word : {"bf16", "BF16", "torch.bfloat16", "jnp.bfloat16"})
    CHECK(meaning_of(word, names).value_or("") == "bfloat16");
  CHECK(meaning_of("torch.float8_e4m3fn", names).value_or("") == "float8_e4m3fn");
  CHECK(meaning_of("np.float32", names).value_or("") == "float32");
  CHECK_FALSE(meaning_of("int4", names));
  CHECK_FALSE(meaning_of("half", names));  // no float16 among them
}

TEST_CASE("lengths with other separators are shown with crosses") {
  const auto failure = [](const char* word) {
    return plain::failure_and_hint([&] { read_lengths(word, 2, 3, "HxQxK or QxK"); });
  };
  const std::string not_of_form = " is not of the form HxQxK or QxK with lengths of at least 1";
  for (const char* word : {"1024,1024", "(1024, 1024)", "[1024,1024]", "1024*1024", "1024X1024"})
    CHECK(failure(word) == "'" + std::string(word) + "'" + not_of_form + " | did you mean 1024x1024?");
  CHECK(failure("0,4") == "'0,4'" + not_of_form);
  CHECK(failure("1,2,3,4") == "'1,2,3,4'" + not_of_form);
}

TEST_CASE("the opposite of a flag is its default") {
  bool brief = false, equal_nan = true;
  OptionSet set;
  add_flag(set, "--brief", brief, "");
  add_flag(set, "--no-equal-nan", equal_nan, "", false);
  std::string word = "none";
  add_word(
      set, "--word", word, [](const std::string& text) { return text; }, "WORD", "");
  CHECK_FALSE(set.parse({"--no-brief", "--equal-nan"}).error);
  CHECK(set.parse({"--no-brief", "--equal-nan"}).extras.empty());
  CHECK((!brief && equal_nan));
  CHECK(set.parse({"--no-word"}).extras == std::vector<std::string>{"--no-word"});
  CHECK(plain::failure_and_hint([&] {
          set.parse({"--no-brief", "--brief"});
        }) == "--brief and --no-brief exclude each other");
}
