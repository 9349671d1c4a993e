// JSON text, written value by value without white space. The reader is parse_json of ejk/program/json.hpp.
// tests: tests/settings/test_hash.cpp, tests/report/test_json.cpp
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ejk::core {

/// report: UTF-8, exponents from 1e15 on. stable: ASCII, exponents from 1e16 on, as Python's json.dumps.
enum class JsonStyle { report, stable };

/// Commas and colons are added here; the caller sees to it that names and values alternate in objects.
class JsonWriter {
 public:
  explicit JsonWriter(JsonStyle style) : style_(style) {}

  /// `members` writes a key() before each value.
  template <class F>
  void object(F&& members) {
    nested('{', '}', members);
  }
  template <class F>
  void list(F&& items) {
    nested('[', ']', items);
  }

  JsonWriter& key(std::string_view name) {
    put(name);
    out_ += ':';
    is_first_ = true;
    return *this;
  }

  void null() { raw("null"); }
  /// JSON text, as it is.
  void raw(std::string_view json);
  /// true, false, or an integer.
  void put(std::integral auto value) { raw(fmt::format("{}", value)); }
  /// The shortest decimal that reads back to the same double; NaN, Infinity and -Infinity, which JSON lacks.
  void put(double value);
  /// Throws Error{input} for text that is not UTF-8. Half a surrogate pair counts as a character.
  void put(std::string_view text);
  template <class T>
  void put(const std::vector<T>& values) {
    list([&] {
      for (const T& value : values) put(value);
    });
  }

  std::string take() { return std::move(out_); }

 private:
  template <class F>
  void nested(char open, char close, F& f) {
    raw({&open, 1});
    is_first_ = true;
    f();
    out_ += close;
    is_first_ = false;
  }

  JsonStyle style_;
  bool is_first_ = true;  // of a list or object, or after a name: no comma comes before it
  std::string out_;
};

}  // namespace ejk::core
