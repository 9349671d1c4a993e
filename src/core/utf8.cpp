// A byte that no valid sequence begins with stands alone, so that what follows it is read all the same.
// tests: tests/core/test_text.cpp
#include "core/utf8.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace ejk::core {

namespace {

// Length of the valid UTF-8 sequence at the front of `s`, 0 when there is none.
std::size_t utf8_length(std::string_view s) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char c = byte(0);
  const std::size_t n = c < 0x80                ? 1
                        : c >= 0xC2 && c < 0xE0 ? 2
                        : c >= 0xE0 && c < 0xF0 ? 3
                        : c >= 0xF0 && c < 0xF5 ? 4
                                                : 0;
  if (n == 0 || n > s.size()) return 0;
  for (std::size_t i = 1; i < n; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  if ((c == 0xE0 && byte(1) < 0xA0) || (c == 0xED && byte(1) > 0x9F)) return 0;
  if ((c == 0xF0 && byte(1) < 0x90) || (c == 0xF4 && byte(1) > 0x8F)) return 0;
  return n;
}

}  // namespace

char32_t code_point(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first;
  char32_t c = first & (0x7Fu >> character.size());  // a bit for each byte stands before it
  for (const char next : character.substr(1)) c = (c << 6) | (static_cast<unsigned char>(next) & 0x3Fu);
  return c;
}

std::string written_out(std::string_view text, std::size_t limit, bool (*is_out)(char32_t)) {
  std::string out;
  for (std::size_t i = 0, characters = 0; i < text.size(); ++characters) {
    if (characters == limit) return out + "...";
    const std::size_t n = utf8_length(text.substr(i));
    const std::string_view character = text.substr(i, std::max<std::size_t>(n, 1));
    if (n == 0 || is_out(code_point(character)))
      for (const char c : character) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      out += character;
    i += character.size();
  }
  return out;
}

std::string as_utf8(std::string_view text) {
  return written_out(text, text.size(), [](char32_t) { return false; });
}

}  // namespace ejk::core
