// Tables of tilings as lines of text, searched in order.
// tests: tests/matmul/test_tiling.cpp
#include "ejk/grouped_matmul.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "core/require.hpp"
#include "ejk/program/text.hpp"

namespace ejk {

std::string to_string(const Tiling& tiling) {
  return fmt::format("{}x{}x{}", tiling.tm, tiling.tk, tiling.tn);
}

namespace {

constexpr std::array<const char*, 6> kNames{"m", "k", "n", "tm", "tk", "tn"};

std::vector<std::string_view> words_of(std::string_view line) {
  constexpr std::string_view kBlank = " \t\r";
  line = line.substr(0, line.find('#'));
  std::vector<std::string_view> words;
  for (std::size_t begin = 0; (begin = line.find_first_not_of(kBlank, begin)) != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(kBlank, begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

}  // namespace

TilingTable TilingTable::parse(std::string_view text, std::string name) {
  TilingTable table;
  table.name_ = std::move(name);
  std::int64_t number = 0;
  const auto refuse = [&](const std::string& why) {
    throw core::invalid("line {}: {}", number, why)
        .hint("a line is \"m k n tm tk tn\", where * for m, k or n is any length");
  };
  while (!text.empty()) {
    ++number;
    const std::size_t end = std::min(text.find('\n'), text.size());
    const auto words = words_of(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (words.empty()) continue;
    if (words.size() != kNames.size())
      refuse(fmt::format("{} word{}, not six", words.size(), words.size() == 1 ? "" : "s"));
    std::array<std::optional<std::int64_t>, 6> values;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool is_length = i < 3;
      if (is_length && words[i] == "*") continue;
      values[i] = parse_integer(words[i]);
      if (!values[i] && is_whole_number(words[i]))
        refuse(fmt::format("{} is {}, which is beyond 64 bits", kNames[i], printable(words[i], 40)));
      if (!values[i] || *values[i] < (is_length ? 0 : 1))
        refuse(fmt::format("{} is '{}', not a whole number of at least {}{}", kNames[i],
                           printable(words[i], 40), is_length ? 0 : 1, is_length ? " or *" : ""));
    }
    table.rows_.push_back(
        {values[0], values[1], values[2], Tiling{*values[3], *values[4], *values[5]}, number});
  }
  return table;
}

const TilingTable::Row* TilingTable::find(std::int64_t m, std::int64_t k, std::int64_t n) const {
  const auto found = std::find_if(rows_.begin(), rows_.end(), [=](const Row& row) {
    return row.m.value_or(m) == m && row.k.value_or(k) == k && row.n.value_or(n) == n;
  });
  return found == rows_.end() ? nullptr : &*found;
}

}  // namespace ejk
