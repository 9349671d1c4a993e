// Options: parsing of each type of value, and their descriptions in files and reports.
#include "options.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "app/words.hpp"
#include "commands.hpp"
#include "ejk/grouped_matmul.hpp"
#include "ejk/report.hpp"
#include "help.hpp"
#include "provenance.hpp"
#include "support/failure.hpp"

using namespace ejk;
using namespace ejk::app;

namespace {

std::map<std::string, std::string> recorded(const OptionSet& set) {
  Provenance provenance;
  set.record(provenance);
  return provenance.settings();
}

// "key=value" of each field.
std::vector<std::string> shown(const OptionSet& set) {
  Report report;
  set.show(report);
  std::vector<std::string> all;
  for (const Report::Item& item : report.items) {
    const Field& field = std::get<Field>(item);
    const auto* number = std::get_if<std::int64_t>(&field.value);
    const auto* text = std::get_if<std::string>(&field.value);
    all.push_back(field.key + " " + field.label + "=" +
                  (number ? std::to_string(*number)
                   : text ? *text
                          : "?"));
  }
  return all;
}

}  // namespace

TEST_CASE("names of settings are those that options of any command record, once, after that of the command") {
  const std::vector<std::string> names = setting_names();
  CHECK(names.front() == "ejk_command");
  CHECK(std::set<std::string>(names.begin(), names.end()).size() == names.size());
  for (const char* name : {"ejk_version", "what", "head_shards", "mask", "lse_layout", "scale_layout"})
    CHECK_MESSAGE(std::find(names.begin(), names.end(), name) != names.end(), name);
}

TEST_CASE("options require and exclude options of their command") {
  for (const Command* command : commands())
    for (const Command* one : command->actions.empty() ? std::vector{command} : command->actions) {
      const Parser parser(*one);
      for (const Option& option : parser.set.options())
        for (const Option::Relation& relation : option.relations)
          CHECK_MESSAGE(parser.set.find(relation.other) != nullptr, one->name, " ", option.name(), ": ",
                        relation.other);
    }
}

TEST_CASE("an option that a topic of help describes has one text for all commands") {
  std::map<std::string, std::string> texts;
  for (const Command* command : commands())
    for (const Command* one : command->actions.empty() ? std::vector{command} : command->actions) {
      const Parser parser(*one);
      for (const Option& option : parser.set.options()) {
        if (topic_of(option.heading).empty() || option.heading == kSharedGroup) continue;
        const std::string text = option.type + option.help;
        CHECK_MESSAGE(texts.try_emplace(option.heading + option.name(), text).first->second == text,
                      one->name, " ", option.name());
      }
    }
  CHECK(texts.size() > 40);
}

TEST_CASE("what decides a result is recorded under its own name, with the value that holds") {
  Words words;
  std::int64_t shards = 1, threads = 0;
  std::optional<std::int64_t> axis;
  std::optional<Tiling> tiling;
  DType dtype = DType::float32;
  bool shrink = true, pad = false;
  Number fill = std::int64_t{0};
  add_word(words.set, "--head-shards", shards, at_least(1), "N", "").recorded();
  add_word(words.set, "--threads", threads, at_least(1), "N", "");
  add_word(words.set, "--axis", axis, at_least(0), "N", "").recorded().otherwise("all");
  add_word(
      words.set, "--tiling", tiling,
      [](const std::string&) {
        return Tiling{8, 16, 32};
      },
      "T", "")
      .recorded();
  add_dtype(words.set, "--dtype", dtype, "", float_dtypes()).recorded();
  add_word(words.set, "--pad-value", fill, read_number, "X", "").recorded("fill");
  add_flag(words.set, "--no-shrink-grid", shrink, "", false).recorded("shrink_grid");
  add_flag(words.set, "--pad", pad, "").recorded();

  SUBCASE("by default") {
    words.parse({"--threads", "3"});
    CHECK(recorded(words.set) == std::map<std::string, std::string>{{"head_shards", "1"},
                                                                    {"axis", "all"},
                                                                    {"dtype", "float32"},
                                                                    {"fill", "0"},
                                                                    {"shrink_grid", "true"},
                                                                    {"pad", "false"}});
  }
  SUBCASE("as given") {
    words.parse({"--head-shards", "4", "--axis=2", "--tiling", "8", "--dtype", "bfloat16", "--pad-value",
                 "0.5", "--no-shrink-grid", "--pad"});
    CHECK(recorded(words.set) == std::map<std::string, std::string>{{"head_shards", "4"},
                                                                    {"axis", "2"},
                                                                    {"tiling", "8x16x32"},
                                                                    {"dtype", "bfloat16"},
                                                                    {"fill", "0.5"},
                                                                    {"shrink_grid", "false"},
                                                                    {"pad", "true"}});
  }
}

TEST_CASE("reports show options in the order of their declaration, those without a value not at all") {
  Words words;
  std::int64_t by = 0;
  std::optional<std::int64_t> m;
  std::string order = "ring";
  bool contiguous = false;
  add_word(words.set, "--by", by, at_least(1), "N", "").shown("divided by");
  add_word(words.set, "--m", m, at_least(1), "N", "").shown("rows");
  add_flag(words.set, "--to-contiguous", contiguous, "")
      .recorded("order", [&] { return contiguous ? "contiguous" : "ring"; })
      .shown("order");
  words.parse({"--by", "7"});
  CHECK(shown(words.set) == std::vector<std::string>{"by divided by=7", "order order=ring"});
  CHECK(recorded(words.set) == std::map<std::string, std::string>{{"order", "ring"}});
}

TEST_CASE("an option whose value nobody can say cannot be recorded") {
  Words words;
  CHECK_THROWS_AS(take_word(
                      words.set, "--x", [](const std::string&) {}, "X", "")
                      .recorded(),
                  Error);
}

TEST_CASE("the name of an option stands in front of what is wrong with its word") {
  Words words;
  std::int64_t by = 0;
  add_word(words.set, "-b,--by", by, at_least(1), "N", "");
  CHECK(plain::failure_and_hint([&] { words.parse({"--by", "0"}); }) == "--by: 0 is less than 1");
}

TEST_CASE("outputs are the command's, unless options or inputs decide") {
  const Command command{"pack", "Sequences", "", "", {{"packed", "", ""}, {"indices", "", ""}}};
  Words words;
  CHECK(words.set.outputs(command) == std::vector<std::string>{"packed", "indices"});
  bool separate = false;
  words.set.set_outputs([&] { return std::vector<std::string>(separate ? 2 : 1, "mask"); });
  CHECK(words.set.outputs(command).size() == 1);
  separate = true;
  CHECK(words.set.outputs(command).size() == 2);
}

TEST_CASE("words become values, or are refused with what they may be") {
  CHECK(read_lengths("128x64", 2, 2, "QxK") == Shape{128, 64});
  CHECK(plain::failure_and_hint([] { read_lengths("128", 2, 2, "QxK"); }) ==
        "'128' is not of the form QxK with lengths of at least 1 | for example 128x128");
  CHECK(plain::failure_and_hint([] {
          read_lengths("0x1", 2, 2, "QxK");
        }).starts_with("'0x1' is not of the form QxK"));
  CHECK(read_lengths("0x1", 2, 2, "BxS", 0) == Shape{0, 1});
  CHECK(plain::failure_and_hint([] { read_lengths("0x-1", 2, 2, "BxS", 0); }) ==
        "'0x-1' is not of the form BxS with lengths of at least 0");
  CHECK(read_size("64k") == 64000);
  CHECK(read_size("4GiB") == std::int64_t{4} << 30);
  CHECK(read_integer("9223372036854775807", 0) == INT64_MAX);
  CHECK(plain::failure_and_hint([] { read_integer("9223372036854775808", 0); }).find("too large") !=
        std::string::npos);
  CHECK(read_choice("mask", {"lens", "mask"}) == 1);
  CHECK(plain::failure_and_hint([] {
          read_choice("msk", {"lens", "mask"});
        }) == "'msk' is not one of lens, mask | did you mean mask?");
  CHECK(std::get<std::int64_t>(read_number("-3")) == -3);
  CHECK(std::get<double>(read_number("1e-3")) == 1e-3);
}

TEST_CASE("the choices of an option are listed in its help, and a wrong one names the nearest") {
  Words words;
  DType dtype = DType::float32;
  const Option& option =
      add_dtype(words.set, "--dtype", dtype, "element type\nMore.", {DType::float16, DType::float32});
  CHECK(option.help == "element type: float16 or float32 (default)\nMore.");
  CHECK(option.choices == std::vector<std::string>{"float16", "float32"});
  CHECK(plain::failure_and_hint([&] {
          words.parse({"--dtype", "float61"});
        }) == "--dtype: 'float61' is not one of float16, float32 | did you mean float16?");
  words.parse({"--dtype", "float16"});
  CHECK(dtype == DType::float16);
}

TEST_CASE("mistakes in a command line name the option") {
  Words words;
  std::int64_t by = 0;
  std::string reference;
  bool quiet = false;
  add_reference(words.set, "X", reference, "").required();
  add_word(words.set, "-b,--by", by, at_least(0), "N", "");
  add_flag(words.set, "--quiet", quiet, "");
  const auto failure = [&](const std::vector<std::string>& line) {
    return plain::failure_and_hint([&] { words.parse(line); });
  };
  CHECK(failure({"--by", "1"}) == "X is required | for example: ");
  CHECK(failure({"x", "--by"}) == "a value is missing: --by N");
  CHECK(failure({"x", "-b"}) == "a value is missing: --by N");
  CHECK(failure({"x", "--by="}) == "a value is missing: --by N");
  CHECK(failure({"x", "--by", "1", "-b", "2"}) == "--by is given more than once");
  CHECK(failure({"x", "--quiet=yes"}) == "--quiet takes no value");
  CHECK(words.set.parse({"x", "--other", "y"}).extras == std::vector<std::string>{"--other", "y"});
}

TEST_CASE("a slice of stdin goes through the parser as a reference") {
  Words words;
  std::string reference;
  add_reference(words.set, "X", reference, "");
  words.parse({"-[0]"});
  CHECK(reference == "-[0]");
}
