// JSON: a recursive-descent parser that builds a tree, and a writer of text.
//
// tests: tests/settings/test_hash.cpp, tests/report/test_json.cpp
#include "core/json.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <locale>
#include <sstream>

#include "core/require.hpp"
#include "core/utf8.hpp"
#include "ejk/error.hpp"
#include "ejk/json.hpp"
#include "ejk/text.hpp"

namespace ejk {

namespace {

using Object = JsonValue::Object;
using List = JsonValue::List;

constexpr int kDeepest = 1000;

// Characters that are escaped by a letter, and those letters.
constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";

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

class JsonParser {
 public:
  explicit JsonParser(std::string_view text) : text_(text) {}

  JsonValue document() {
    if (text_.starts_with("\xEF\xBB\xBF")) fail("a byte order mark; JSON begins without one");
    skip_space();
    JsonValue value = any();
    skip_space();
    if (at_ < text_.size()) fail("more text after the end of the value");
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const { fail_at(at_, why); }

  [[noreturn]] void fail_at(std::size_t where, const std::string& why) const {
    const std::string_view before = text_.substr(0, where);
    const auto lines = std::count(before.begin(), before.end(), '\n');
    const std::string_view row = before.substr(before.rfind('\n') + 1);
    const auto characters = std::count_if(
        row.begin(), row.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
    throw core::invalid("not JSON: line {}, column {}: {}", lines + 1, characters + 1, why);
  }

  bool at_end() const { return at_ == text_.size(); }
  char now() const { return at_end() ? '\0' : text_[at_]; }
  bool is_ascii_text() const {
    const auto c = static_cast<unsigned char>(now());  // whether char is signed depends on the processor
    return c >= ' ' && c < 0x80;
  }
  bool is_digit() const { return now() >= '0' && now() <= '9'; }

  void skip_space() {
    while (now() == ' ' || now() == '\t' || now() == '\n' || now() == '\r') ++at_;
  }

  bool take(char c) {
    if (at_end() || now() != c) return false;
    ++at_;
    return true;
  }

  bool take_word(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  // The next character, for messages.
  std::string found() const {
    if (at_end()) return "the end of the text";
    std::size_t end = at_;
    return core::take_utf8(text_, end) ? fmt::format("'{}'", printable(text_.substr(at_, end - at_)))
                                       : fmt::format("'{}'", printable(text_.substr(at_, 1)));
  }

  JsonValue any() {
    using Limits = std::numeric_limits<double>;
    static const std::pair<std::string_view, JsonValue> kWords[] = {
        {"null", {}},
        {"true", JsonValue(true)},
        {"false", JsonValue(false)},
        {"NaN", JsonValue(Limits::quiet_NaN())},
        {"Infinity", JsonValue(Limits::infinity())},
        {"-Infinity", JsonValue(-Limits::infinity())}};
    if (now() == '{') return object();
    if (now() == '[') return list();
    if (now() == '"') return JsonValue(string());
    if (is_digit()) return number();
    for (const auto& [word, value] : kWords)
      if (take_word(word)) return value;
    if (now() == '-') return number();
    fail(fmt::format("a value is missing before {}", found()));
  }

  void deeper() {
    if (++depth_ > kDeepest) fail(fmt::format("more than {} lists and objects inside one another", kDeepest));
  }

  JsonValue list() {
    deeper();
    ++at_;
    List items;
    skip_space();
    if (!take(']')) {
      do {
        skip_space();
        items.push_back(any());
        skip_space();
      } while (take(','));
      if (!take(']')) fail(fmt::format("',' or ']' is missing before {}", found()));
    }
    --depth_;
    return JsonValue(std::move(items));
  }

  JsonValue object() {
    deeper();
    ++at_;
    Object members;
    skip_space();
    if (!take('}')) {
      do {
        skip_space();
        if (now() != '"') fail(fmt::format("a name in double quotes is missing before {}", found()));
        std::string name = string();
        skip_space();
        if (!take(':')) fail(fmt::format("':' is missing before {}", found()));
        skip_space();
        JsonValue value = any();
        members.emplace_back(std::move(name), std::move(value));
        skip_space();
      } while (take(','));
      if (!take('}')) fail(fmt::format("',' or '}}' is missing before {}", found()));
    }
    --depth_;
    return JsonValue(std::move(members));
  }

  char32_t four_hex_digits() {
    std::uint32_t code = 0;
    const std::string_view digits = text_.substr(at_, 4);
    const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (failed != std::errc{} || end != digits.data() + 4) fail("\\u takes four hex digits");
    at_ += 4;
    return code;
  }

  char32_t escaped() {
    const char c = now();
    ++at_;
    if (c == '/') return U'/';
    if (const std::size_t known = kLetters.find(c); known != std::string_view::npos)
      return static_cast<char32_t>(kEscaped[known]);
    if (c != 'u') fail_at(at_ - 1, "no such escape in a string");
    const char32_t high = four_hex_digits();
    const std::size_t behind = at_;
    if (is_high_surrogate(high) && take_word("\\u")) {
      const char32_t low = four_hex_digits();
      if (is_low_surrogate(low)) return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
      at_ = behind;
    }
    return high;
  }

  std::string string() {
    const std::size_t begin = at_++;
    std::string out;
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
        const auto c = core::take_utf8(text_, at_);
        if (!c || core::is_surrogate(*c)) fail_at(first, "bytes that are not UTF-8");
        out.append(text_, first, at_ - first);
      }
    }
  }

  void digits() {
    if (!is_digit()) fail(fmt::format("a digit is missing before {}", found()));
    while (is_digit()) ++at_;
  }

  JsonValue number() {
    const std::size_t begin = at_;
    (void)take('-');
    if (!take('0')) digits();
    bool is_float = false;
    if (now() == '.') {
      is_float = true;
      ++at_;
      digits();
    }
    if (now() == 'e' || now() == 'E') {
      is_float = true;
      ++at_;
      if (!take('+')) (void)take('-');
      digits();
    }
    const std::string_view text = text_.substr(begin, at_ - begin);
    if (!is_float) return JsonValue(JsonValue::Integer{text == "-0" ? "0" : std::string(text)});
    double value = 0;
    const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
    if (result.ec == std::errc::result_out_of_range) {  // which from_chars leaves open: infinity or 0
      std::istringstream stream{std::string(text)};
      stream.imbue(std::locale::classic());
      if (!(stream >> value)) value = std::numeric_limits<double>::infinity();
    }
    return JsonValue(text.starts_with('-') ? -std::fabs(value) : value);
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

// As Python prints floats: exponents below 1e-4, and from `most` on.
std::string float_text(double value, double most) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  const double size = std::abs(value);
  const bool is_fixed = size == 0 || (size >= 1e-4 && size < most);
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value,
                                 is_fixed ? std::chars_format::fixed : std::chars_format::scientific)
                       .ptr;
  std::string text(buffer, end);
  if (is_fixed && text.find('.') == std::string::npos) text += ".0";
  return text;
}

}  // namespace

JsonValue parse_json(std::string_view text) { return JsonParser(text).document(); }

namespace core {

void JsonWriter::raw(std::string_view json) {
  if (!is_first_) out_ += ',';
  is_first_ = false;
  out_ += json;
}

void JsonWriter::put(double value) { raw(float_text(value, style_ == JsonStyle::stable ? 1e16 : 1e15)); }

void JsonWriter::put(std::string_view text) {
  raw("\"");
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const auto c = take_utf8(text, at);
    if (!c) throw core::invalid("'{}' is not UTF-8", printable(text));
    const std::size_t escape = *c < 0x80 ? kEscaped.find(static_cast<char>(*c)) : std::string_view::npos;
    const auto code = static_cast<std::uint32_t>(*c);
    if (escape != std::string_view::npos)
      (out_ += '\\') += kLetters[escape];
    else if (code >= 0x20 && (code < 0x7F || style_ == JsonStyle::report))
      out_ += text.substr(begin, at - begin);
    else if (code < 0x10000)
      out_ += fmt::format("\\u{:04x}", code);
    else
      out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((code - 0x10000) >> 10),
                          0xDC00 + ((code - 0x10000) & 0x3FF));
  }
  out_ += '"';
}

}  // namespace core

}  // namespace ejk
