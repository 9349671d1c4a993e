// Text for messages: the nearest name for a misspelt one, sizes with units, escaping of untrusted text.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ejk {

/// The candidate that `word` probably misspells: equal but for ASCII case; else the nearest by insertions,
/// deletions, replacements and transpositions, at most 3 and a third of the longer word; else the only one
/// that begins with `word` (at least 3 letters). Leading dashes are ignored.
std::optional<std::string> nearest_name(std::string_view word, std::span<const std::string> candidates);

/// "1.5 GiB", "12.0 KiB", "17 B".
std::string format_bytes(std::int64_t bytes);

/// "1,048,576".
std::string format_count(std::int64_t value);

/// "64k", "4GiB", "123": k M G T are powers of 1000, Ki Mi Gi Ti (B optional) of 1024. Nothing if invalid.
std::optional<std::int64_t> parse_size(std::string_view text);

/// An integer in decimal, and nothing else.
std::optional<std::int64_t> parse_integer(std::string_view text);

/// The same for 0 and above, up to 64 bits.
std::optional<std::uint64_t> parse_unsigned(std::string_view text);

/// Whether the text is an integer in decimal of any size: if parse_integer rejects it, it is out of range.
bool is_whole_number(std::string_view text);

/// "layers.12.experts.3.w1" → "layers.#.experts.#.w1": numbers that are whole components of a name.
std::string name_pattern(std::string_view name);

/// ASCII letters in lower case.
std::string lower_case(std::string_view text);

/// Whether a name matches a pattern, in which * is any text.
bool matches_wildcards(std::string_view name, std::string_view pattern);

/// Without spaces, tabs and carriage returns at its ends.
std::string_view trimmed(std::string_view text);

/// Escapes invalid UTF-8, control characters, direction marks and line ends as \xNN; cuts at `limit`
/// characters.
std::string printable(std::string_view text, std::size_t limit = 200);

}  // namespace ejk
