// JSON: a tree of the values that a reader finds, and a writer of text.
//
// tests: tests/settings/test_hash.cpp, tests/report/test_json.cpp
#include "core/json.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <locale>
#include <sstream>

#include "core/json_reader.hpp"
#include "core/require.hpp"
#include "core/utf8.hpp"
#include "ejk/error.hpp"
#include "ejk/program/json.hpp"
#include "ejk/program/text.hpp"

namespace ejk {

namespace {

using Object = JsonValue::Object;
using List = JsonValue::List;

// The tree of a text. Recursion is bounded by the reader.
class JsonParser {
 public:
  explicit JsonParser(std::string_view text) : reader_(text) {}

  JsonValue document() {
    JsonValue value = any();
    reader_.end();
    return value;
  }

 private:
  JsonValue any() {
    using Limits = std::numeric_limits<double>;
    static const std::pair<std::string_view, JsonValue> kWords[] = {
        {"null", {}},
        {"true", JsonValue(true)},
        {"false", JsonValue(false)},
        {"NaN", JsonValue(Limits::quiet_NaN())},
        {"Infinity", JsonValue(Limits::infinity())},
        {"-Infinity", JsonValue(-Limits::infinity())}};
    switch (reader_.next()) {
      case '{': {
        Object members;
        reader_.object([&](const std::string& name) { members.emplace_back(name, any()); });
        return JsonValue(std::move(members));
      }
      case '[': {
        List items;
        reader_.list([&] { items.push_back(any()); });
        return JsonValue(std::move(items));
      }
      case '"':
        return JsonValue(reader_.string());
      default:
        for (const auto& [word, value] : kWords)
          if (reader_.take_word(word)) return value;
        return number();
    }
  }

  JsonValue number() {
    const std::string_view text = reader_.number();
    if (text.find_first_of(".eE") == std::string_view::npos)
      return JsonValue(JsonValue::Integer{text == "-0" ? "0" : std::string(text)});
    double value = 0;
    const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
    if (result.ec == std::errc::result_out_of_range) {  // which from_chars leaves open: infinity or 0
      std::istringstream stream{std::string(text)};
      stream.imbue(std::locale::classic());
      if (!(stream >> value)) value = std::numeric_limits<double>::infinity();
    }
    return JsonValue(text.starts_with('-') ? -std::fabs(value) : value);
  }

  core::JsonReader reader_;
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
    const std::size_t escape =
        *c < 0x80 ? core::kEscapedByLetter.find(static_cast<char>(*c)) : std::string_view::npos;
    const auto code = static_cast<std::uint32_t>(*c);
    if (escape != std::string_view::npos)
      (out_ += '\\') += core::kEscapeLetters[escape];
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
