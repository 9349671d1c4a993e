// Arrays as Python prints them. A parser of one function for each line of
//   value := list | call | integer | 'True' | 'False'
//   list  := '[' [value {[','] value} [',']] ']'
//   call  := name '(' value {',' name '=' text} ')'     of a tensor, an array, or a NumPy number
// tests: tests/app/test_printed_array.cpp, tests/cli/cu-seqlens/printed.case
#include "printed_array.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <utility>
#include <vector>

#include "computed_reference.hpp"
#include "ejk/program/text.hpp"
#include "options.hpp"

namespace ejk::app {

namespace {

constexpr std::string_view kWhiteSpace = " \t\r\n", kQuotes = "'\"";

bool is_name_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
}

// Where the outermost bracket of a printed array opens, "[" or "tensor("; npos for another word.
std::size_t opening_bracket(std::string_view word) {
  constexpr std::array<std::string_view, 4> kNames{"tensor", "array", "Array", "Parameter"};
  const std::size_t begin = std::min(word.find_first_not_of(kWhiteSpace), word.size());
  const std::size_t open = static_cast<std::size_t>(
      std::find_if_not(word.begin() + static_cast<std::ptrdiff_t>(begin), word.end(), is_name_character) -
      word.begin());
  if (open == word.size() || (word[open] != '[' && word[open] != '(')) return std::string_view::npos;
  if (word[open] == '[') return open == begin ? open : std::string_view::npos;
  std::string_view name = word.substr(begin, open - begin);
  name.remove_prefix(name.rfind('.') + 1);  // npos + 1 is 0
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end() ? open : std::string_view::npos;
}

class PrintedParser {
 public:
  explicit PrintedParser(std::string_view text) : text_(text) {}

  Array parse() {
    const Shape shape = value();
    skip_space();
    if (at_ < text_.size()) fail("the array has ended");
    const DType dtype = dtype_.value_or(has_bools_ ? DType::boolean : DType::int64);
    if (!is_integer(dtype) && dtype != DType::boolean)
      throw usage("numbers of type {} are rounded where they are printed", name_of(dtype)).hint(kSave);
    Array array(dtype, shape);
    dispatch(dtype, [&]<class T>(std::type_identity<T>) {
      if constexpr (std::is_same_v<T, bool>)
        std::transform(values_.begin(), values_.end(), array.data(),
                       [](std::int64_t v) { return std::byte{v != 0}; });
      else if constexpr (std::is_integral_v<T>)
        for (std::size_t i = 0; i < values_.size(); ++i) {
          if (!std::in_range<T>(values_[i])) throw usage("{} is beyond {}", values_[i], name_of(dtype));
          array.elements<T>()[i] = static_cast<T>(values_[i]);
        }
    });
    return array;
  }

 private:
  static constexpr const char* kSave = "a file has all digits: np.save, torch.save or safetensors writes one";

  [[noreturn]] void fail(std::string_view why) const {
    throw usage("at \"{}\": {}", printable(text_.substr(std::min(at_, text_.size())), 20), why);
  }
  void skip_space() { at_ = std::min(text_.find_first_not_of(kWhiteSpace, at_), text_.size()); }
  bool take(char c) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  Shape value() {
    skip_space();
    if (text_.substr(at_).starts_with("..."))
      throw usage("numbers are cut out at \"...\"")
          .hint(
              "np.set_printoptions(threshold=10**9), or torch.set_printoptions, prints all; a file has all: "
              "np.save, torch.save");
    if (take('[')) return list();
    const std::size_t end = static_cast<std::size_t>(
        std::find_if_not(text_.begin() + static_cast<std::ptrdiff_t>(at_) +
                             (at_ < text_.size() && (text_[at_] == '-' || text_[at_] == '+') ? 1 : 0),
                         text_.end(), is_name_character) -
        text_.begin());
    const std::string_view word = text_.substr(at_, end - at_);
    if (end < text_.size() && text_[end] == '(') {
      at_ = end + 1;
      return call();
    }
    number(word);
    at_ = end;
    return {};
  }

  Shape list() {
    constexpr int kDeepest = 32;
    if (++depth_ > kDeepest) fail("too many brackets");
    Shape shape;
    std::int64_t count = 0;
    while (!take(']')) {
      const std::size_t begin = at_;
      const Shape one = value();
      if (count++ == 0) shape = one;
      if (one != shape) {
        at_ = begin;
        fail(fmt::format("rows are of shapes {} and {}", to_string(shape), to_string(one)));
      }
      take(',');
    }
    --depth_;
    shape.insert(shape.begin(), count);
    return shape;
  }

  // The name is that of a type or of a function that makes one of its argument.
  Shape call() {
    Shape shape = value();
    while (take(',')) {
      skip_space();
      if (at_ < text_.size() && text_[at_] == ')') break;
      const std::size_t begin = at_;
      const std::size_t equals = text_.find('=', at_);
      const std::size_t end = equals == std::string_view::npos ? equals : end_of_text(equals);
      if (end == std::string_view::npos) fail("expected NAME=VALUE or ')'");
      if (trimmed(text_.substr(begin, equals - begin)) == "dtype")
        set_dtype(text_.substr(equals + 1, end - equals - 1));
      at_ = end;
    }
    if (!take(')')) fail("expected ')'");
    return shape;
  }

  // Where the value of an argument ends: at a ',' or ')' outside of brackets and quotes.
  std::size_t end_of_text(std::size_t at) const {
    while (at < text_.size() && text_[at] != ',' && text_[at] != ')') {
      if (text_[at] == '(' || text_[at] == '[') at = closing_bracket(text_, at, kQuotes);
      if (at < text_.size() && (text_[at] == '\'' || text_[at] == '"')) at = text_.find(text_[at], at + 1);
      if (at >= text_.size()) return std::string_view::npos;
      ++at;
    }
    return at < text_.size() ? at : std::string_view::npos;
  }

  // "torch.int32", "int32", "'int32'".
  void set_dtype(std::string_view text) {
    std::string_view name = trimmed(text);
    if (name.size() > 1 && (name.front() == '\'' || name.front() == '"'))
      name = name.substr(1, name.size() - 2);
    name.remove_prefix(name.rfind('.') + 1);
    dtype_ = dtype_named(name == "long" ? "int64" : name == "int" ? "int32" : name);
    if (!dtype_) throw usage("'{}' is no type of elements", printable(name, 40));
  }

  void number(std::string_view word) {
    const bool is_bool = word == "True" || word == "False";
    const auto whole = parse_integer(word.starts_with('+') ? word.substr(1) : word);
    if (!values_.empty() && is_bool != has_bools_) fail("numbers beside True and False");
    if (!is_bool && !whole) {
      if (word.empty() ||
          std::isdigit(static_cast<unsigned char>(word[word.size() > 1 && word[0] == '-' ? 1 : 0])) == 0)
        fail("expected a whole number");
      if (is_whole_number(word)) throw usage("{} is beyond 64 bits", printable(word, 40));
      throw usage("{} is no whole number: floats are rounded where they are printed", printable(word, 40))
          .hint(kSave);
    }
    has_bools_ = is_bool;
    values_.push_back(is_bool ? word == "True" : *whole);
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
  std::vector<std::int64_t> values_;
  bool has_bools_ = false;
  std::optional<DType> dtype_;  // that of the outermost call, which is read last
};

// The end of the array, before a slice; nothing for another word.
std::optional<std::size_t> end_of_array(const std::string& word) {
  const std::size_t open = opening_bracket(word);
  if (open == std::string::npos) return std::nullopt;
  const std::size_t close = closing_bracket(word, open, kQuotes);
  if (close == std::string::npos) {
    // A file may be called "[old".
    const std::size_t first = std::min(word.find_first_not_of(kWhiteSpace, open + 1), word.size() - 1);
    if (word[open] == '[' &&
        (word[first] == '[' || word[first] == '-' || std::isdigit(static_cast<unsigned char>(word[first]))))
      throw usage("{}: the bracket '[' is not closed", printable(word, 60))
          .hint("quotes make one word of an array: '[0, 3]'");
    return std::nullopt;
  }
  const std::string_view behind = trimmed(std::string_view(word).substr(close + 1));
  const bool is_slice = behind.starts_with('[') && behind.ends_with(']');
  return behind.empty() || is_slice ? std::optional(close + 1) : std::nullopt;
}

}  // namespace

bool is_printed_array(const std::string& word) { return end_of_array(word).has_value(); }

std::optional<PrintedArray> printed_array(const std::string& word) {
  const std::optional<std::size_t> end = end_of_array(word);
  if (!end) return std::nullopt;
  try {
    return PrintedArray{PrintedParser(std::string_view(word).substr(0, *end)).parse(),
                        std::string(trimmed(std::string_view(word).substr(*end)))};
  } catch (Error& error) {
    error.at(printable(word, 60));
    throw;
  }
}

}  // namespace ejk::app
