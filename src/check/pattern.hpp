// Regular expressions of names, the part of Python's syntax that lists of ignored layers use.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace ejk::check {

/// Characters, ".", "\\." and other escaped punctuation, "\\d", "\\w", "[a-z_]", "(a|b)", "(?:a)", "^", "$", and
/// "*", "+", "?" after them.
class Pattern {
 public:
  /// Nothing for syntax that is not in the list, and for more than 1,000 characters.
  static std::optional<Pattern> parse(std::string_view text);

  /// Whether a prefix of the name matches. Time: the product of both lengths.
  bool matches(std::string_view name) const;

 private:
  friend class PatternParser;

  enum class Kind : std::uint8_t { characters, split, begin, end, match };
  /// A state: what it takes, and the states after it.
  struct State {
    Kind kind = Kind::match;
    std::uint32_t next = 0, other = 0;  // `other` of a split
    std::bitset<256> characters = {};
  };

  void follow(std::uint32_t state, std::size_t at, std::size_t end, std::vector<bool>& seen,
              std::vector<std::uint32_t>& states) const;

  std::vector<State> states_;
  std::uint32_t start_ = 0;
};

}  // namespace ejk::check
