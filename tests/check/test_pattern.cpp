// Patterns of names: what they match, compared with std::regex, and what is no pattern.
#include "check/pattern.hpp"

#include <doctest/doctest.h>

#include <regex>
#include <string>

using ejk::check::Pattern;

TEST_CASE("patterns match the names whose beginning std::regex finds") {
  const char* patterns[] = {".*lm_head",
                            "lm_head",
                            ".*mlp.gate$",
                            R"(^model\.layers\.\d+\.mlp\.(gate|up)_proj$)",
                            R"(model\.layers\.[0-35]\..*)",
                            R"(.*\.(q|k|v)_proj$)",
                            "(?:a|b)*c",
                            "a?b+?[^c-e]*$",
                            "",
                            "(|x)y",
                            "[]a]+$",
                            R"([a\-.]+$)",
                            R"(\w+\.\w+$)",
                            "(a*)*b"};
  const char* names[] = {"lm_head",
                         "model.lm_head",
                         "model.layers.3.mlp.gate",
                         "model.layers.3.mlp.gate_proj",
                         "model.layers.12.mlp.up_proj",
                         "model.layers.4.mlp.up_proj",
                         "model.layers.5.self_attn.q_proj",
                         "",
                         "ababc",
                         "abbx",
                         "y",
                         "]a]",
                         "a-.",
                         "aaaa"};
  for (const char* text : patterns) {
    CAPTURE(text);
    const auto pattern = Pattern::parse(text);
    REQUIRE(pattern);
    // ECMAScript's "[]" is an empty class.
    const std::regex expected(text == std::string("[]a]+$") ? R"([\]a]+$)" : text);
    for (const std::string name : names) {
      CAPTURE(name);
      const bool is = std::regex_search(name, expected, std::regex_constants::match_continuous);
      CHECK(pattern->matches(name) == is);
    }
  }
}

TEST_CASE("a pattern that makes others try all ways takes no longer than its length times the name's") {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "(a*)*";
  const auto pattern = Pattern::parse(text + "b");
  REQUIRE(pattern);
  CHECK(!pattern->matches(std::string(10'000, 'a')));
  CHECK(pattern->matches(std::string(10'000, 'a') + "b"));
}

TEST_CASE("other syntax is no pattern") {
  for (const char* text : {"(", ")", "a)", "[a", "[", "*", "a**", "a{2}", R"(\)", R"(\1)", R"(\b)", "(?=a)",
                           "(?P<x>a)", "^*", "[z-a]", "(?i)a", R"([a-\d])"}) {
    CAPTURE(text);
    CHECK(!Pattern::parse(text));
  }
  CHECK(!Pattern::parse(std::string(1001, 'a')));
  CHECK(!Pattern::parse(std::string(100, '(') + std::string(100, ')')));
}
