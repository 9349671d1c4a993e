// One pass over the text makes a tree, one over the tree makes the stable text. Members are sorted by the
// bytes of their UTF-8 names, whose order is that of the code points.
//
// tests: tests/settings/test_hash.cpp
#include "ejk/hash.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "ejk/text.hpp"
#include "settings/digest.hpp"

namespace ejk {

namespace {

using Object = JsonValue::Object;
using List = JsonValue::List;

constexpr int kDeepest = 1000;

bool is_surrogate(char32_t c) { return c >= 0xD800 && c < 0xE000; }
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

// The code point at `at`, which moves behind it; halves of surrogate pairs included. Nothing when the bytes
// are none.
std::optional<char32_t> take_utf8(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char lead = byte(0);
  const std::size_t length = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (length == 0 || lead >= 0xF5 || at + length > text.size()) return std::nullopt;
  char32_t c = length == 1 ? lead : lead & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return std::nullopt;
    c = c << 6 | (byte(i) & 0x3Fu);
  }
  if ((length == 3 && c < 0x800) || (length == 4 && (c < 0x10000 || c > 0x10FFFF))) return std::nullopt;
  at += length;
  return c;
}

// --- reading

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

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
    throw Error(Error::Kind::input,
                fmt::format("not JSON: line {}, column {}: {}", lines + 1, characters + 1, why));
  }

  bool at_end() const { return at_ == text_.size(); }
  char now() const { return at_end() ? '\0' : text_[at_]; }
  bool is_ascii_text() const {
    const auto c = static_cast<unsigned char>(now());  // char has a sign on some processors alone
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

  // What stands here, for a message.
  std::string found() const {
    if (at_end()) return "the end of the text";
    std::size_t end = at_;
    return take_utf8(text_, end) ? fmt::format("'{}'", printable(text_.substr(at_, end - at_)))
                                 : fmt::format("'{}'", printable(text_.substr(at_, 1)));
  }

  JsonValue any() {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    switch (now()) {
      case '{':
        return object();
      case '[':
        return list();
      case '"':
        return JsonValue(string());
      case 'n':
        if (take_word("null")) return {};
        break;
      case 't':
        if (take_word("true")) return JsonValue(true);
        break;
      case 'f':
        if (take_word("false")) return JsonValue(false);
        break;
      case 'N':
        if (take_word("NaN")) return JsonValue(std::numeric_limits<double>::quiet_NaN());
        break;
      case 'I':
        if (take_word("Infinity")) return JsonValue(infinity);
        break;
      case '-':
        if (take_word("-Infinity")) return JsonValue(-infinity);
        return number();
      default:
        if (is_digit()) return number();
    }
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
    switch (c) {
      case '"':
      case '\\':
      case '/':
        return static_cast<char32_t>(c);
      case 'b':
        return '\b';
      case 'f':
        return '\f';
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'u':
        break;
      default:
        fail_at(at_ - 1, "no such escape in a string");
    }
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
        const auto c = take_utf8(text_, at_);
        if (!c || is_surrogate(*c)) fail_at(first, "bytes that are not UTF-8");
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
    const std::size_t whole = at_;
    if (!take('0')) digits();
    const std::size_t whole_digits = at_ - whole;
    bool is_float = false;
    if (now() == '.') {
      is_float = true;
      ++at_;
      digits();
    }
    std::size_t exponent = at_;
    const std::size_t mantissa_end = at_;
    if (now() == 'e' || now() == 'E') {
      is_float = true;
      exponent = ++at_;
      if (!take('+')) (void)take('-');
      digits();
    }
    const std::string_view text = text_.substr(begin, at_ - begin);
    if (!is_float) return JsonValue(JsonValue::Integer{text == "-0" ? "0" : std::string(text)});
    double value = 0;
    const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
    if (result.ec == std::errc::result_out_of_range)
      value = out_of_range(text_.substr(whole, mantissa_end - whole), whole_digits,
                           text_.substr(exponent, at_ - exponent));
    return JsonValue(text.starts_with('-') ? -std::fabs(value) : value);
  }

  // What a number rounds to whose exponent no double has: infinity, or 0.
  static double out_of_range(std::string_view mantissa, std::size_t whole_digits, std::string_view exponent) {
    const std::size_t leading = mantissa.find_first_not_of("0.");
    if (leading == std::string_view::npos) return 0;
    if (exponent.starts_with('+')) exponent.remove_prefix(1);
    std::int64_t power = 0;
    const auto [end, failed] = std::from_chars(exponent.data(), exponent.data() + exponent.size(), power);
    constexpr std::int64_t most = std::int64_t{1} << 60;  // far beyond the length of any text
    if (failed == std::errc::result_out_of_range) power = exponent.starts_with('-') ? -most : most;
    power = std::clamp(power, -most, most);
    power += leading < whole_digits ? static_cast<std::int64_t>(whole_digits - leading) - 1
                                    : -static_cast<std::int64_t>(leading - whole_digits);
    return power > 0 ? std::numeric_limits<double>::infinity() : 0.0;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

// --- writing

void write_string(std::string& out, std::string_view text) {
  out += '"';
  for (std::size_t at = 0; at < text.size();) {
    const auto c = take_utf8(text, at);
    if (!c) throw Error(Error::Kind::input, fmt::format("'{}' is not UTF-8", printable(text)));
    switch (*c) {
      case '"':
        out += "\\\"";
        continue;
      case '\\':
        out += "\\\\";
        continue;
      case '\b':
        out += "\\b";
        continue;
      case '\f':
        out += "\\f";
        continue;
      case '\n':
        out += "\\n";
        continue;
      case '\r':
        out += "\\r";
        continue;
      case '\t':
        out += "\\t";
        continue;
      default:
        break;
    }
    if (*c >= 0x20 && *c < 0x7F)
      out += static_cast<char>(*c);
    else if (*c < 0x10000)
      out += fmt::format("\\u{:04x}", static_cast<std::uint32_t>(*c));
    else
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + static_cast<std::uint32_t>((*c - 0x10000) >> 10),
                         0xDC00 + static_cast<std::uint32_t>((*c - 0x10000) & 0x3FF));
  }
  out += '"';
}

std::string float_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<std::size_t>(end - buffer));  // "-1.25e-07"
  std::string out;
  if (text.starts_with('-')) out = "-", text.remove_prefix(1);
  const std::size_t e = text.find('e');
  std::string digits(text.substr(0, 1));
  if (e > 2) digits += text.substr(2, e - 2);
  std::string_view power = text.substr(e + 1);
  if (power.starts_with('+')) power.remove_prefix(1);
  int x = 0;
  std::from_chars(power.data(), power.data() + power.size(), x);

  if (x < -4 || x >= 16) {
    out += digits[0];
    if (digits.size() > 1) out += "." + digits.substr(1);
    return out + fmt::format("e{}{:02}", x < 0 ? '-' : '+', std::abs(x));
  }
  if (x < 0) return out + "0." + std::string(static_cast<std::size_t>(-x - 1), '0') + digits;
  const auto whole = static_cast<std::size_t>(x) + 1;
  if (digits.size() < whole) digits.append(whole - digits.size(), '0');
  const std::string behind = digits.substr(whole);
  return out + digits.substr(0, whole) + "." + (behind.empty() ? "0" : behind);
}

class Writer {
 public:
  explicit Writer(Convention convention) : convention_(convention) {}

  void write(const JsonValue& value) {
    std::visit([&](const auto& v) { put(v); }, value.value);
  }
  std::string take() { return std::move(out_); }

 private:
  void put(std::monostate) { out_ += "null"; }
  void put(bool v) { out_ += v ? "true" : "false"; }
  void put(const JsonValue::Integer& v) { out_ += v.digits; }
  void put(double v) { out_ += float_text(v); }
  void put(const std::string& v) { write_string(out_, v); }

  void put(const List& items) {
    out_ += '[';
    for (const JsonValue& item : items) {
      if (&item != &items.front()) out_ += ',';
      write(item);
    }
    out_ += ']';
  }

  void put(const Object& members) {
    std::vector<std::size_t> order(members.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return members[a].first < members[b].first; });
    out_ += '{';
    bool first = true;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto& member = members[order[i]];
      if (i + 1 < order.size() && members[order[i + 1]].first == member.first) continue;
      if (!std::exchange(first, false)) out_ += ',';
      write_string(out_, member.first);
      out_ += ':';
      write(member.second);
    }
    out_ += '}';
  }

  void put(const JsonValue::Leaf& leaf) {
    const bool tagged = convention_ == Convention::document;
    const bool is_array = leaf.kind == JsonValue::Leaf::Kind::array;
    out_ += fmt::format(R"({{{}"dtype":"{}","shape":[{}]}})",
                        !tagged    ? ""
                        : is_array ? R"("_type":"array",)"
                                   : R"("_type":"shape_dtype",)",
                        name_of(leaf.dtype), fmt::join(leaf.shape, ","));
  }

  Convention convention_;
  std::string out_;
};

}  // namespace

JsonValue parse_json(std::string_view text) { return Parser(text).document(); }

JsonValue abstractify(JsonValue value) {
  if (auto* leaf = std::get_if<JsonValue::Leaf>(&value.value))
    leaf->kind = JsonValue::Leaf::Kind::shape_dtype;
  if (auto* items = std::get_if<List>(&value.value))
    for (JsonValue& item : *items) item = abstractify(std::move(item));
  if (auto* members = std::get_if<Object>(&value.value))
    for (auto& member : *members) member.second = abstractify(std::move(member.second));
  return value;
}

std::string stable_json(const JsonValue& value, Convention convention) {
  Writer writer(convention);
  writer.write(value);
  return writer.take();
}

std::string short_hash(const JsonValue& value, Convention convention) {
  return settings::sha256_hex(stable_json(value, convention)).substr(0, 16);
}

}  // namespace ejk
