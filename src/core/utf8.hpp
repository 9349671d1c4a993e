// UTF-8 of text from outside, which may be invalid.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace ejk::core {

/// The code point at `at`, which moves to the next one; halves of surrogate pairs are accepted. Nothing, and
/// `at` stays, where the bytes are invalid.
std::optional<char32_t> take_utf8(std::string_view text, std::size_t& at);

constexpr bool is_surrogate(char32_t c) { return c >= 0xD800 && c < 0xE000; }

/// The text, at most `limit` characters of it, in which each byte that is not UTF-8, or belongs to a
/// character for which `is_out` holds, is written as \xNN.
std::string written_out(std::string_view text, std::size_t limit, bool (*is_out)(char32_t));

/// The text with invalid bytes as \xNN, so that texts that differ stay different.
std::string as_utf8(std::string_view text);

}  // namespace ejk::core
