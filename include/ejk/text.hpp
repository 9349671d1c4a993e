// Text for people: the nearest name for a misspelt one, sizes with units, foreign text made harmless.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ejk {

/// The candidate that `word` is a misspelling of; nothing where none is near. In this order: one that differs
/// by upper and lower case alone (ASCII); the nearest by insertions, deletions, replacements and swaps of
/// neighbours, at most 3 and at most a third of the longer word, the first of equals; the only one that
/// begins with `word`, of at least 3 letters. Dashes that begin both do not count.
std::optional<std::string> nearest_name(std::string_view word, std::span<const std::string> candidates);

/// "1.5 GiB", "12.0 KiB", "17 B".
std::string format_bytes(std::int64_t bytes);

/// "1,048,576".
std::string format_count(std::int64_t value);

/// "64k", "4GiB", "123", "1.5MB": k M G T are powers of 1000, Ki Mi Gi Ti (with or without B) of 1024.
/// Nothing when it is not a size or does not fit.
std::optional<std::int64_t> parse_size(std::string_view text);

/// A whole number in decimal, with nothing around it.
std::optional<std::int64_t> parse_integer(std::string_view text);

/// The same, not below 0, of up to 64 bits.
std::optional<std::uint64_t> parse_unsigned(std::string_view text);

/// A whole number in decimal of any size, with nothing around it: what parse_integer then refuses is too
/// large, or too far below 0.
bool is_whole_number(std::string_view text);

/// Text from a file or the command line for a message: invalid UTF-8, controls, marks of direction and ends of
/// lines are written as \xNN, more than `limit` characters are cut with "...".
std::string printable(std::string_view text, std::size_t limit = 200);

}  // namespace ejk
