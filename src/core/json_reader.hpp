// JSON text read value by value, without a tree: for texts of a known form that may be large. Memory: the
// string that is read last.
// tests: tests/core/test_json_reader.cpp
#pragma once

#include <string>
#include <string_view>

namespace ejk::core {

/// Characters that are escaped by a letter, and those letters.
inline constexpr std::string_view kEscapedByLetter = "\"\\\b\f\n\r\t", kEscapeLetters = "\"\\bfnrt";

/// Each value is read by the function of its kind, or skipped. Errors are Error{input} with line and column,
/// also above 1000 nested levels.
class JsonReader {
 public:
  explicit JsonReader(std::string_view text);

  /// The first character of the value that comes next; '\0' at the end.
  char next();
  /// f(name) for each member of an object; it reads the member's value.
  template <class F>
  void object(F&& f) {
    open('{');
    for (bool is_first = true; !closes('}', is_first); is_first = false) {
      const std::string name = member_name();
      f(name);
    }
  }
  /// f() for each item of a list; it reads the item.
  template <class F>
  void list(F&& f) {
    open('[');
    for (bool is_first = true; !closes(']', is_first); is_first = false) {
      skip_space();
      f();
    }
  }
  /// Half a surrogate pair is encoded like any code point.
  std::string string();
  /// The text of a number.
  std::string_view number();
  bool take_word(std::string_view expected);
  void skip();
  /// Nothing but white space may follow.
  void end();

  [[noreturn]] void fail(const std::string& why) const { fail_at(at_, why); }
  /// A value is missing, or is not the kind that is read.
  [[noreturn]] void fail_at_value(std::string_view wanted) const;

 private:
  [[noreturn]] void fail_at(std::size_t where, const std::string& why) const;
  bool at_end() const { return at_ == text_.size(); }
  char now() const { return at_end() ? '\0' : text_[at_]; }
  bool is_digit() const { return now() >= '0' && now() <= '9'; }
  void skip_space();
  bool take(char c);
  std::string found() const;
  void open(char bracket);
  bool closes(char bracket, bool is_first);
  std::string member_name();
  char32_t four_hex_digits();
  char32_t escaped();
  void digits();

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace ejk::core
