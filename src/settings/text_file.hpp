// Small text files, as those of /proc and /sys.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ejk::settings {

/// The text between separators, which may be empty; a separator at the end is followed by nothing.
inline std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

/// The lines of a file; none where it cannot be read.
inline std::vector<std::string> lines_of(const std::string& path) {
  std::string text;
  if (std::FILE* file = std::fopen(path.c_str(), "re")) {
    char buffer[4096];
    for (std::size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, file)) > 0;) text.append(buffer, n);
    std::fclose(file);
  }
  return split(text, '\n');
}

/// The number of a line "key number" or "key: number kB".
inline std::optional<std::int64_t> number_after(const std::string& path, std::string_view key) {
  for (const std::string& line : lines_of(path)) {
    if (!line.starts_with(key)) continue;
    std::string_view rest = std::string_view(line).substr(key.size());
    if (rest.starts_with(':')) rest.remove_prefix(1);
    const std::size_t digits = rest.find_first_not_of(" \t");
    std::int64_t value = 0;
    if (digits == 0 || digits == std::string_view::npos) continue;  // a longer key, or no number
    if (std::from_chars(rest.data() + digits, rest.data() + rest.size(), value).ec == std::errc())
      return value;
  }
  return std::nullopt;
}

inline std::string first_line(const std::string& path) {
  const std::vector<std::string> lines = lines_of(path);
  return lines.empty() ? "" : lines.front();
}

}  // namespace ejk::settings
