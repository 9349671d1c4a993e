// Words of other programs and libraries for the commands, options and values of this one, for hints.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ejk::app {

/// Synonyms, separated by spaces, of `ours`: a name, perhaps with the arguments that follow it.
struct OtherWords {
  std::string_view words, ours;

  /// The name alone: "mx" of "mx --element e2m1".
  std::string_view name() const { return ours.substr(0, ours.find(' ')); }
};

/// Options of other programs that a command with `option` does not need.
struct NeedlessOptions {
  std::string_view words;
  std::string_view option;  // empty: any command
  std::string_view hint;
};

std::span<const OtherWords> other_words();
std::span<const NeedlessOptions> needless_options();

/// The words of one row.
std::vector<std::string> words_in(std::string_view row);

/// What a word of another program means, if that is among `names`: commands, options or the values of one.
std::optional<std::string> meaning_of(std::string_view word, std::span<const std::string> names);

/// The hint for an option of another program that is of no use here, where the command has the options `names`.
std::optional<std::string> needless(std::string_view option, std::span<const std::string> names);

}  // namespace ejk::app
