// JSON read value by value.
#include "core/json_reader.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "ejk/error.hpp"

using ejk::core::JsonReader;

namespace {

std::string fault_of(const std::string& text) {
  try {
    JsonReader reader(text);
    reader.skip();
    reader.end();
  } catch (const ejk::Error& error) {
    return error.message();
  }
  return "";
}

}  // namespace

TEST_CASE("values are read in order, and what is not wanted is skipped") {
  JsonReader reader(R"( {"a": [1, -2.5e3, "x\u00e9\n"], "b" : {"c": [null, true, {}]}, "d":"" } )");
  std::vector<std::string> seen;
  reader.object([&](const std::string& name) {
    seen.push_back(name);
    if (name == "b") return reader.skip();
    if (name == "d") return (void)seen.push_back(reader.string());
    reader.list([&] { seen.emplace_back(reader.next() == '"' ? reader.string() : reader.number()); });
  });
  reader.end();
  CHECK(seen == std::vector<std::string>{"a", "1", "-2.5e3", "x\xc3\xa9\n", "b", "d", ""});
}

TEST_CASE("another kind of value than the one that is read is an error with its position") {
  const auto message = [](auto&& read) {
    JsonReader reader("\n 5");
    try {
      read(reader);
    } catch (const ejk::Error& error) {
      return error.message();
    }
    return std::string();
  };
  CHECK(message([](JsonReader& r) { r.string(); }) ==
        "not JSON: line 2, column 2: a string is missing before '5'");
  CHECK(message([](JsonReader& r) { r.object([](const std::string&) {}); }) ==
        "not JSON: line 2, column 2: '{' is missing before '5'");
  CHECK(message([](JsonReader& r) { r.list([] {}); }) ==
        "not JSON: line 2, column 2: '[' is missing before '5'");
  CHECK(message([](JsonReader& r) { r.end(); }) ==
        "not JSON: line 2, column 2: more text after the end of the value");
}

TEST_CASE("skipped values are checked as well, without recursion that a text could exhaust") {
  CHECK(fault_of("[1, 2") != "");
  CHECK(fault_of("[1 2]") != "");
  CHECK(fault_of("[1,]") != "");
  CHECK(fault_of("{\"a\" 1}") != "");
  CHECK(fault_of("{1: 2}") != "");
  CHECK(fault_of("01") != "");
  CHECK(fault_of("\"\\x\"") != "");
  CHECK(fault_of("\"\xff\"") != "");
  CHECK(fault_of("nul") != "");
  CHECK(fault_of("") != "");
  CHECK(fault_of(std::string(1000, '[') + std::string(1000, ']')) == "");
  CHECK(fault_of(std::string(100000, '[')).find("more than 1000 lists and objects") != std::string::npos);
}
