// Stable JSON and short hashes: golden cases of both conventions, floats of random bits, invalid JSON.
#include "ejk/program/hash.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <random>
#include <set>

#include "support/failure.hpp"
#include "support/golden.hpp"

using namespace ejk;

namespace {

// {"$array": NAME} stands for an array of the case.
JsonValue with_arrays(JsonValue value, const golden::Case& c) {
  if (auto* items = std::get_if<JsonValue::List>(&value.value))
    for (JsonValue& item : *items) item = with_arrays(std::move(item), c);
  if (auto* members = std::get_if<JsonValue::Object>(&value.value)) {
    if (members->size() == 1 && members->front().first == "$array") {
      const Array& array = c.in.at(std::get<std::string>(members->front().second.value));
      JsonValue::Leaf leaf;
      leaf.dtype = array.dtype();
      leaf.shape = array.shape();
      return JsonValue(leaf);
    }
    for (auto& member : *members) member.second = with_arrays(std::move(member.second), c);
  }
  return value;
}

void check_family(const std::string& family, Convention convention,
                  std::string (*function)(const JsonValue&, Convention), const std::string& result) {
  const auto cases = golden::load(family);
  CHECK(cases.size() == 26);
  for (const golden::Case& c : cases) {
    CAPTURE(family);
    CAPTURE(c.name);
    const std::string text = c.params.at("json_text");
    if (c.is_error) {
      CHECK_THROWS_AS(parse_json(text), Error);
      continue;
    }
    JsonValue value = with_arrays(parse_json(text), c);
    if (c.params.at("abstractify").get<bool>()) value = abstractify(std::move(value));
    CHECK(function(value, convention) == c.texts.at(result));
  }
}

std::string again(const std::string& text) { return stable_json(parse_json(text)); }

std::string failure_of_json(const std::string& text) {
  return plain::failure([&] { parse_json(text); });
}

std::string nested(int depth) {
  return std::string(static_cast<std::size_t>(depth), '[') +
         std::string(static_cast<std::size_t>(depth), ']');
}

}  // namespace

TEST_CASE("golden cases of stable JSON and short hashes") {
  check_family("stable_json", Convention::document, stable_json, "stable_json");
  check_family("stable_json_ejkernel", Convention::ejkernel, stable_json, "stable_json");
  check_family("short_hash", Convention::document, short_hash, "short_hash");
  check_family("short_hash_ejkernel", Convention::ejkernel, short_hash, "short_hash");
}

TEST_CASE("floats of any bits read back as they were, in as few digits as that takes") {
  std::mt19937_64 random(11);
  for (int n = 0; n < 20000; ++n) {
    double value = std::bit_cast<double>(random());
    if (n % 4 == 1)
      value = std::ldexp(static_cast<double>(random() >> 11), static_cast<int>(random() % 120) - 60);
    if (n % 4 == 2) value = static_cast<double>(random() % 100000) / 1000;
    if (!std::isfinite(value)) continue;
    const std::string text = stable_json(JsonValue(value));
    CAPTURE(text);
    const double back = std::strtod(text.c_str(), nullptr);
    CHECK(std::bit_cast<std::uint64_t>(back) == std::bit_cast<std::uint64_t>(value));
    CHECK(again(text) == text);
    // The fewest digits with which printf's own conversion reads back.
    char shortest[64];
    int precision = 0;
    do std::snprintf(shortest, sizeof shortest, "%.*e", precision, value);
    while (std::strtod(shortest, nullptr) != value && ++precision < 17);
    const auto digits_of = [](std::string number) {
      number = number.substr(0, number.find('e'));
      std::erase_if(number, [](char c) { return c == '-' || c == '.'; });
      number.erase(0, std::min(number.find_first_not_of('0'), number.size()));
      while (number.ends_with('0')) number.pop_back();
      return number;
    };
    CHECK(digits_of(text).size() == digits_of(shortest).size());
  }
}

TEST_CASE("floats change their notation at 1e-4 and 1e16") {
  CHECK(again("[1e-4,9.9e-5,1e15,9.5e15,1e16,123456.5,1E+2,-0e5]") ==
        "[0.0001,9.9e-05,1000000000000000.0,9500000000000000.0,1e+16,123456.5,100.0,-0.0]");
  CHECK(stable_json(JsonValue(5e-324)) == "5e-324");
  CHECK(stable_json(JsonValue(1.7976931348623157e308)) == "1.7976931348623157e+308");
}

TEST_CASE("numbers beyond every double are infinite or zero, whatever way they are written") {
  CHECK(again("[1e309,-1e99999999999999999999,1e-400,-1e-99999999999999999999]") ==
        "[Infinity,-Infinity,0.0,-0.0]");
  CHECK(again("[0e99999999999999999999,0.0e400,-0.000e400]") == "[0.0,0.0,-0.0]");
  const std::string zeros(400, '0');
  CHECK(again("0." + zeros + "1e401") == "1.0");
  CHECK(again("1" + zeros + "e-400") == "1.0");
  CHECK(again("1" + zeros + ".5") == "Infinity");
  CHECK(again("0." + zeros + "1") == "0.0");
  CHECK(again("1" + zeros) == "1" + zeros);
}

TEST_CASE("members are sorted by code points, the last of equal names counts") {
  CHECK(again(R"({"b":1,"a":2,"b":3,"\u0061":4})") == R"({"a":4,"b":3})");
  CHECK(again("{\"\\ud83d\\ude00\":1,\"\xEF\xAC\x81\":2,\"\\ud83d\":3,\"\xF0\x9F\x98\x80\":4,\"\":5}") ==
        R"({"":5,"\ud83d":3,"\ufb01":2,"\ud83d\ude00":4})");
}

TEST_CASE("halves of surrogate pairs stay halves unless they meet") {
  CHECK(again(R"("\ud83d")") == R"("\ud83d")");
  CHECK(again(R"("\ude00\ud83d")") == R"("\ude00\ud83d")");
  CHECK(again(R"("\ud83d\ud83d\ude00")") == R"("\ud83d\ud83d\ude00")");
  CHECK(again(R"("\ud83dx\ude00")") == R"("\ud83dx\ude00")");
}

TEST_CASE("lists and objects may lie a thousand deep, and no deeper") {
  CHECK(again(nested(1000)) == nested(1000));
  CHECK(failure_of_json(nested(1001)) ==
        "not JSON: line 1, column 1001: more than 1000 lists and objects inside one "
        "another");
  CHECK(failure_of_json(std::string(1'000'000, '[')).find("more than 1000") != std::string::npos);
}

TEST_CASE("what is no JSON is refused with its line and column") {
  CHECK(failure_of_json("") == "not JSON: line 1, column 1: a value is missing before the end of the text");
  CHECK(failure_of_json("{\"a\": }") == "not JSON: line 1, column 7: a value is missing before '}'");
  CHECK(failure_of_json("[1,\n 2,,]") == "not JSON: line 2, column 4: a value is missing before ','");
  CHECK(failure_of_json("[\"\xC3\xA4\", x]") == "not JSON: line 1, column 7: a value is missing before 'x'");
  CHECK(failure_of_json("1 2") == "not JSON: line 1, column 3: more text after the end of the value");
  CHECK(failure_of_json("01") == "not JSON: line 1, column 2: more text after the end of the value");
  CHECK(failure_of_json("{'a': 1}") ==
        "not JSON: line 1, column 2: a name in double quotes is missing before '''");
  CHECK(failure_of_json("{\"a\" 1}") == "not JSON: line 1, column 6: ':' is missing before '1'");
  CHECK(failure_of_json("[1 2]") == "not JSON: line 1, column 4: ',' or ']' is missing before '2'");
  CHECK(failure_of_json("{\"a\":1") ==
        "not JSON: line 1, column 7: ',' or '}' is missing before the end of the text");
  CHECK(failure_of_json("\"abc") == "not JSON: line 1, column 1: a string without an end");
  CHECK(failure_of_json("\"abc\\") == "not JSON: line 1, column 1: a string without an end");
  CHECK(failure_of_json("\"a\nb\"").find("control character") != std::string::npos);
  CHECK(failure_of_json("\"\\x\"").find("no such escape") != std::string::npos);
  CHECK(failure_of_json("\"\\u12g4\"").find("four hex digits") != std::string::npos);
  CHECK(failure_of_json("\"\\u+123\"").find("four hex digits") != std::string::npos);
  CHECK(failure_of_json("\"\xFF\"").find("not UTF-8") != std::string::npos);
  CHECK(failure_of_json("\"\xED\xA0\xBD\"").find("not UTF-8") != std::string::npos);
  CHECK(failure_of_json("\"\xC0\x80\"").find("not UTF-8") != std::string::npos);
  CHECK(failure_of_json("\xEF\xBB\xBF{}").find("byte order mark") != std::string::npos);
  for (const char* text : {"-", "1.", "1e", "1e+", ".5", "+1", "-NaN", "tru", "nul", "infinity", "0x10",
                           "[1,]", "{\"a\":1,}", "[", "{", "]", "--1", "1_0"})
    CHECK_MESSAGE(failure_of_json(text) != "no error", text);
}

TEST_CASE("settings that differ have hashes that differ") {
  const std::vector<std::string> settings{R"({"blocksize_m":1,"blocksize_k":23})",
                                          R"({"blocksize_m":12,"blocksize_k":3})",
                                          R"({"a":[1,23]})",
                                          R"({"a":[12,3]})",
                                          R"({"a":123})",
                                          R"({"a":"123"})",
                                          R"({"a":123.0})",
                                          R"({"a":[1],"b":2})",
                                          R"({"a":[1,{"b":2}]})",
                                          "0",
                                          "0.0",
                                          "-0.0",
                                          "false",
                                          "null",
                                          "\"\"",
                                          "[]",
                                          "{}"};
  std::set<std::string> hashes;
  for (const std::string& text : settings) hashes.insert(short_hash(parse_json(text)));
  CHECK(hashes.size() == settings.size());
}

TEST_CASE("values of a program hash as those of a text") {
  JsonValue::Object members;
  members.emplace_back("n", JsonValue(std::int64_t{-3}));
  members.emplace_back("list", JsonValue(JsonValue::List{JsonValue(), JsonValue(true), JsonValue(0.5)}));
  members.emplace_back("text", JsonValue(std::string("\xC3\xA9")));
  CHECK(stable_json(JsonValue(members)) == again(R"({"list":[null,true,0.5],"n":-3,"text":"\u00e9"})"));
  CHECK_THROWS_AS(stable_json(JsonValue(std::string("\xFF"))), Error);
}
