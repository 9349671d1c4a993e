// Texts from outside, which may hold bytes that are not of UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ejk::core {

/// The number of a character, given as UTF-8.
char32_t code_point(std::string_view character);

/// The text, of at most `limit` characters, with each byte as \xNN that is not of UTF-8 or of a character that
/// `is_out` names.
std::string written_out(std::string_view text, std::size_t limit, bool (*is_out)(char32_t));

/// The text with each byte as \xNN that is not of UTF-8, so that texts that differ stay different.
std::string as_utf8(std::string_view text);

}  // namespace ejk::core
