// A cursor over JSON text, RFC 8259 in UTF-8 with NaN, Infinity and -Infinity.
//
// tests: tests/core/test_json_reader.cpp, tests/settings/test_hash.cpp
#include "core/json_reader.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "core/require.hpp"
#include "core/utf8.hpp"
#include "ejk/program/text.hpp"

namespace ejk::core {

namespace {

constexpr int kDeepest = 1000;

constexpr std::string_view kWords[] = {"null", "true", "false", "NaN", "Infinity", "-Infinity"};

bool is_high_surrogate(char32_t c) { return c >= 0xD800 && c < 0xDC00; }
bool is_low_surrogate(char32_t c) { return c >= 0xDC00 && c < 0xE000; }

void append_utf8(std::string& out, char32_t c) {
  const auto byte = [&](char32_t b) { out += static_cast<char>(b); };
  const auto continued = [&](int shift) { byte(0x80 | (c >> shift & 0x3F)); };
  if (c < 0x80) {
    byte(c);
  } else if (c < 0x800) {
    byte(0xC0 | c >> 6), continued(0);
  } else if (c < 0x10000) {
    byte(0xE0 | c >> 12), continued(6), continued(0);
  } else {
    byte(0xF0 | c >> 18), continued(12), continued(6), continued(0);
  }
}

}  // namespace

JsonReader::JsonReader(std::string_view text) : text_(text) {
  if (text_.starts_with("\xEF\xBB\xBF")) fail("a byte order mark; JSON begins without one");
}

void JsonReader::fail_at(std::size_t where, const std::string& why) const {
  const std::string_view before = text_.substr(0, where);
  const auto lines = std::count(before.begin(), before.end(), '\n');
  const std::string_view row = before.substr(before.rfind('\n') + 1);
  const auto characters = std::count_if(
      row.begin(), row.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
  throw invalid("not JSON: line {}, column {}: {}", lines + 1, characters + 1, why);
}

void JsonReader::fail_at_value(std::string_view wanted) const {
  fail(fmt::format("{} is missing before {}", wanted, found()));
}

void JsonReader::skip_space() {
  while (now() == ' ' || now() == '\t' || now() == '\n' || now() == '\r') ++at_;
}

bool JsonReader::take(char c) {
  if (at_end() || now() != c) return false;
  ++at_;
  return true;
}

bool JsonReader::take_word(std::string_view expected) {
  skip_space();
  if (!text_.substr(at_).starts_with(expected)) return false;
  at_ += expected.size();
  return true;
}

// The next character, for messages.
std::string JsonReader::found() const {
  if (at_end()) return "the end of the text";
  std::size_t end = at_;
  return take_utf8(text_, end) ? fmt::format("'{}'", printable(text_.substr(at_, end - at_)))
                               : fmt::format("'{}'", printable(text_.substr(at_, 1)));
}

char JsonReader::next() {
  skip_space();
  return now();
}

void JsonReader::open(char bracket) {
  skip_space();
  if (now() != bracket) fail_at_value(fmt::format("'{}'", bracket));
  if (++depth_ > kDeepest) fail(fmt::format("more than {} lists and objects inside one another", kDeepest));
  ++at_;
}

bool JsonReader::closes(char bracket, bool is_first) {
  skip_space();
  if (take(bracket)) return --depth_, true;
  if (!is_first && !take(',')) fail(fmt::format("',' or '{}' is missing before {}", bracket, found()));
  return false;
}

std::string JsonReader::member_name() {
  skip_space();
  if (now() != '"') fail_at_value("a name in double quotes");
  std::string name = string();
  skip_space();
  if (!take(':')) fail_at_value("':'");
  skip_space();
  return name;
}

char32_t JsonReader::four_hex_digits() {
  std::uint32_t code = 0;
  const std::string_view digits = text_.substr(at_, 4);
  const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
  if (failed != std::errc{} || end != digits.data() + 4) fail("\\u takes four hex digits");
  at_ += 4;
  return code;
}

char32_t JsonReader::escaped() {
  const char c = now();
  ++at_;
  if (c == '/') return U'/';
  if (const std::size_t known = kEscapeLetters.find(c); known != std::string_view::npos)
    return static_cast<char32_t>(kEscapedByLetter[known]);
  if (c != 'u') fail_at(at_ - 1, "no such escape in a string");
  const char32_t high = four_hex_digits();
  const std::size_t behind = at_;
  if (is_high_surrogate(high) && text_.substr(at_).starts_with("\\u")) {
    at_ += 2;
    const char32_t low = four_hex_digits();
    if (is_low_surrogate(low)) return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
    at_ = behind;
  }
  return high;
}

std::string JsonReader::string() {
  skip_space();
  if (now() != '"') fail_at_value("a string");
  const std::size_t begin = at_++;
  std::string out;
  const auto is_ascii_text = [&] {
    const auto c = static_cast<unsigned char>(now());  // whether char is signed depends on the processor
    return c >= ' ' && c < 0x80;
  };
  for (;;) {
    if (at_end()) fail_at(begin, "a string without an end");
    const std::size_t plain = at_;
    while (is_ascii_text() && now() != '"' && now() != '\\') ++at_;
    out.append(text_, plain, at_ - plain);
    if (at_end()) continue;
    if (take('"')) return out;
    if (take('\\')) {
      if (at_end()) continue;
      append_utf8(out, escaped());
    } else if (static_cast<unsigned char>(now()) < ' ') {
      fail("a control character in a string, which JSON writes as \\n or \\u000a");
    } else {
      const std::size_t first = at_;
      const auto c = take_utf8(text_, at_);
      if (!c || is_surrogate(*c)) fail_at(first, "bytes that are not UTF-8");
      out.append(text_, first, at_ - first);
    }
  }
}

void JsonReader::digits() {
  if (!is_digit()) fail_at_value("a digit");
  while (is_digit()) ++at_;
}

std::string_view JsonReader::number() {
  skip_space();
  const std::size_t begin = at_;
  if (now() != '-' && !is_digit()) fail_at_value("a value");
  (void)take('-');
  if (!take('0')) digits();
  if (take('.')) digits();
  if (take('e') || take('E')) {
    if (!take('+')) (void)take('-');
    digits();
  }
  return text_.substr(begin, at_ - begin);
}

void JsonReader::skip() {
  switch (next()) {
    case '{':
      return object([&](const std::string&) { skip(); });
    case '[':
      return list([&] { skip(); });
    case '"':
      return (void)string();
    default:
      for (const std::string_view word : kWords)
        if (take_word(word)) return;
      (void)number();
  }
}

void JsonReader::end() {
  skip_space();
  if (!at_end()) fail("more text after the end of the value");
}

}  // namespace ejk::core
