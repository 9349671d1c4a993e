// Nearest names by edit distance (optimal string alignment, quadratic); escaping of untrusted text.
// tests: tests/core/test_text.cpp
#include "ejk/program/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>
#include <vector>

#include "core/utf8.hpp"

namespace ejk {

namespace {

// Optimal string alignment distance: edits, and swaps of two neighbours, no part edited twice.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = a[i - 1] == b[j - 1];
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

// A third of a word may be wrong, and not more than this: beyond it the nearest name is just another word.
constexpr std::size_t kMostEdits = 3;
std::size_t edits_allowed(std::size_t length) { return std::min(length / 3, kMostEdits); }

// Fewer letters begin a name by chance.
constexpr std::size_t kShortestBeginning = 3;

// Two options without the dashes that all options have in common.
std::pair<std::string_view, std::string_view> without_dashes(std::string_view a, std::string_view b) {
  if (a.starts_with("--") && b.starts_with("--")) return {a.substr(2), b.substr(2)};
  return {a, b};
}

// Controls (C0, C1), U+2028 and U+2029, direction marks, U+FEFF, and U+FFFE and U+FFFF (invalid in XML).
bool is_hidden(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x200E || c == 0x200F || (c >= 0x2028 && c <= 0x202E) ||
         (c >= 0x2066 && c <= 0x2069) || c == 0xFEFF || c == 0xFFFE || c == 0xFFFF;
}

template <class T>
std::optional<T> parse_whole(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  T value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::optional<std::string> nearest_name(std::string_view word, std::span<const std::string> candidates) {
  const std::string lower = lower_case(word);
  for (const std::string& candidate : candidates)
    if (lower == lower_case(candidate)) return candidate;
  std::optional<std::string> best;
  std::size_t best_distance = kMostEdits + 1;
  for (const std::string& candidate : candidates) {
    const auto [a, b] = without_dashes(word, candidate);
    const std::size_t most = edits_allowed(std::max(a.size(), b.size()));
    if (std::max(a.size(), b.size()) - std::min(a.size(), b.size()) > most) continue;
    const std::size_t d = edit_distance(a, b);
    if (d <= most && d < best_distance) best_distance = d, best = candidate;
  }
  if (best) return best;
  for (const std::string& candidate : candidates) {
    const auto [a, b] = without_dashes(word, candidate);
    if (a.size() < kShortestBeginning || !b.starts_with(a)) continue;
    if (best) return std::nullopt;  // the beginning of several
    best = candidate;
  }
  return best;
}

std::string format_bytes(std::int64_t bytes) {
  constexpr std::array units{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (value /= 1024; value >= 1023.95 && unit + 1 < units.size(); ++unit) value /= 1024;
  return fmt::format("{:.1f} {}", value, units[unit]);
}

std::string format_count(std::int64_t value) {
  const std::string digits = fmt::format("{}", value);
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const std::size_t left = digits.size() - i;
    if (left % 3 == 0 && !out.empty() && out != "-") out += ',';
    out += digits[i];
  }
  return out;
}

std::optional<std::int64_t> parse_size(std::string_view text) {
  double number = 0;
  const auto [end, failed] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (failed != std::errc{} || !(number >= 0)) return std::nullopt;
  std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (!unit.empty() && (unit.back() == 'B' || unit.back() == 'b')) unit.remove_suffix(1);
  const bool binary = unit.size() == 2 && unit[1] == 'i';
  if (binary) unit.remove_suffix(1);
  if (unit.size() > 1 || (binary && unit.empty())) return std::nullopt;
  int power = 0;
  if (!unit.empty()) {
    constexpr std::string_view letters = "kKmMgGtT";
    const auto at = letters.find(unit[0]);
    if (at == std::string_view::npos) return std::nullopt;
    power = static_cast<int>(at / 2) + 1;
  }
  // Whole numbers are kept exactly; only "1.5G" goes through a double.
  std::int64_t whole = 0;
  const auto [whole_end, whole_failed] = std::from_chars(text.data(), text.data() + text.size(), whole);
  const std::int64_t base = binary ? 1024 : 1000;
  if (whole_failed == std::errc{} && whole_end == end) {
    for (; power > 0; --power)
      if (__builtin_mul_overflow(whole, base, &whole)) return std::nullopt;
    return whole;
  }
  number *= std::pow(static_cast<double>(base), power);
  if (!(number < 9.2e18)) return std::nullopt;
  return static_cast<std::int64_t>(std::llround(number));
}

std::optional<std::int64_t> parse_integer(std::string_view text) { return parse_whole<std::int64_t>(text); }
std::optional<std::uint64_t> parse_unsigned(std::string_view text) {
  return parse_whole<std::uint64_t>(text);
}

bool is_whole_number(std::string_view text) {
  if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::string name_pattern(std::string_view name) {
  constexpr std::string_view kDigits = "0123456789", kBetween = "./[]:-";
  const auto is_end = [&](std::size_t at) {
    return at >= name.size() || kBetween.find(name[at]) != std::string_view::npos;
  };
  std::string pattern;
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t end = std::min(name.find_first_not_of(kDigits, at), name.size());
    if (end > at && is_end(at - 1) && is_end(end))  // at - 1 of the first character is no index
      pattern += '#';
    else
      pattern += name.substr(at, std::max<std::size_t>(end - at, 1));
    at = std::max(end, at + 1);
  }
  return pattern;
}

bool matches_wildcards(std::string_view name, std::string_view pattern) {
  std::size_t n = 0, p = 0, star = std::string_view::npos, from = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++, from = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++n, ++p;
    } else if (star != std::string_view::npos) {
      p = star + 1, n = ++from;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return lower;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const std::size_t begin = std::min(text.find_first_not_of(kBlank), text.size());
  return text.substr(begin, text.find_last_not_of(kBlank) + 1 - begin);
}

std::string printable(std::string_view text, std::size_t limit) {
  return core::written_out(text, limit, is_hidden);
}

}  // namespace ejk
