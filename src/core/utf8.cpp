// Escaping of text that may not be UTF-8. A byte that begins no valid sequence is escaped by itself; the text
// after it stays readable.
// tests: tests/core/test_text.cpp
#include "core/utf8.hpp"

#include <fmt/format.h>

namespace ejk::core {

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

std::string written_out(std::string_view text, std::size_t limit, bool (*is_out)(char32_t)) {
  std::string out;
  for (std::size_t at = 0, characters = 0; at < text.size(); ++characters) {
    if (characters == limit) return out + "...";
    std::size_t end = at;
    const auto c = take_utf8(text, end);
    const bool is_text = c && !is_surrogate(*c);
    const std::string_view character = text.substr(at, is_text ? end - at : 1);
    if (!is_text || is_out(*c))
      for (const char byte : character) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
    else
      out += character;
    at += character.size();
  }
  return out;
}

std::string as_utf8(std::string_view text) {
  return written_out(text, text.size(), [](char32_t) { return false; });
}

}  // namespace ejk::core
