// Hints for unknown options, the most specific first.
#include "options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "ejk/mask.hpp"
#include "ejk/program/text.hpp"
#include "other_words.hpp"

namespace ejk::app {

namespace {

// Another action of the same command with this option; nullptr if there is none.
const Command* sibling_with(const Command& command, const std::string& option) {
  for (const Command* other : find_command(command.word())->actions)
    if (Parser(*other).set.find(option) != nullptr) return other;
  return nullptr;
}

// The commands with this option, if they are few: "mask, check mask-info".
std::vector<std::string_view> commands_with(const std::string& option) {
  constexpr std::size_t kFew = 6;
  std::vector<std::string_view> names;
  for (const Command* command : commands())
    for (const Command* one : command->actions.empty() ? std::vector{command} : command->actions)
      if (Parser(*one).set.find(option) != nullptr) names.push_back(one->name);
  if (names.size() > kFew) names.clear();
  return names;
}

// Mask options of other programs: their name in ejk::MaskExpression::meant_by, and their largest number of
// values.
struct MaskOption {
  std::string_view name, expression;
  std::size_t values;
};
constexpr MaskOption kMaskOptions[] = {
    {"--causal", "is_causal", 0},     {"--is-causal", "is_causal", 0},   {"--window", "window", 2},
    {"--window-size", "window", 2},   {"--sliding-window", "window", 2}, {"--attn-mask", "array", 1},
    {"--attention-mask", "array", 1},
};

std::string with_hyphens(std::string_view name) {
  std::string word(name);
  std::replace(word.begin(), word.end(), '_', '-');
  return word;
}

const MaskOption* mask_option(std::string_view name) {
  const std::string word = with_hyphens(name);
  const auto* row = std::find_if(std::begin(kMaskOptions), std::end(kMaskOptions),
                                 [&](const MaskOption& option) { return option.name == word; });
  return row == std::end(kMaskOptions) ? nullptr : row;
}

// The option that is meant by another program's, or by a misspelt name.
std::optional<std::string> intended_option(const std::string& name, const std::vector<std::string>& names) {
  const auto meant = meaning_of(name, names);
  return meant ? meant : nearest_name(with_hyphens(name), names);
}

// The equivalent of all mask options of other programs: "--mask 'causal & local(left=127, right=0)'".
std::string mask_of_options(const std::vector<std::string>& arguments) {
  const bool one_mask =
      std::count(arguments.begin(), arguments.end(), "--mask") < 2;  // several: one for each head
  std::string all;
  const auto add = [&](const std::string& expression) {
    all += (all.empty() ? "" : " & ") +
           (expression.find('|') == std::string::npos ? expression : "(" + expression + ")");
  };
  for (std::size_t w = 0; w < arguments.size() && arguments[w] != "--"; ++w) {
    const std::size_t equals = arguments[w].find('=');
    const std::string_view name = std::string_view(arguments[w]).substr(0, equals);
    const MaskOption* option = mask_option(name);
    if (option == nullptr && (name != "--mask" || !one_mask)) continue;
    const std::size_t most = option ? option->values : 1;
    const auto is_value = [&](std::size_t at) {  // a window: 128 0
      return at < arguments.size() && (!arguments[at].starts_with("-") || arguments[at] == "-1") &&
             (most < 2 || arguments[at].find_first_not_of("-0123456789(), ") == std::string::npos);
    };
    std::vector<std::string> values;
    if (equals != std::string::npos) values.push_back(arguments[w].substr(equals + 1));
    for (std::size_t at = w + 1; equals == std::string::npos && values.size() < most && is_value(at); ++at)
      values.push_back(arguments[at]);
    if (option == nullptr) {
      if (!values.empty()) add(values[0]);
      continue;
    }
    if (most == 0) {
      const std::string off = lower_case(values.empty() && w + 1 < arguments.size() ? arguments[w + 1]
                                         : values.empty()                           ? ""
                                                                                    : values[0]);
      if (off == "false" || off == "0" || off == "no") continue;
      add("causal");
      continue;
    }
    std::string value = fmt::format("{}", fmt::join(values, ","));
    if (most == 2) std::replace(value.begin(), value.end(), 'x', ',');
    if (most == 2) std::erase_if(value, [](char c) { return c == '(' || c == ')' || c == ' '; });  // (128, 0)
    const auto meant = MaskExpression::meant_by(fmt::format("{}({})", option->expression, value));
    if (values.empty() || !meant)
      return most == 2 ? "a causal window of L + 1 keys is --mask 'local(left=L, right=0)'"
                       : "an array of queries and keys is --mask 'file(REF)'";
    add(*meant);
  }
  if (all.empty()) return "without --mask all pairs attend";
  const bool is_plain = all.find_first_of("()&|~ ") == std::string::npos;
  return "--mask " + (is_plain ? all : "'" + all + "'");
}

// An option, with its value if it has one: "--cp 4".
std::string with_value(const std::vector<std::string>& arguments, const std::string& option) {
  const auto at = std::find(arguments.begin(), arguments.end(), option);
  const bool has_value = at != arguments.end() && at->find('=') == std::string::npos &&
                         at + 1 != arguments.end() && !(at + 1)->starts_with("-");
  return printable(has_value ? option + " " + *(at + 1) : option);
}

}  // namespace

Error unknown_option(const Command& command, const OptionSet& set, const std::string& option,
                     const std::vector<std::string>& arguments) {
  const std::string name = option.substr(0, option.find('='));
  std::vector<std::string> names{"--help"};
  for (const Option& one : set.options())
    if (!one.is_positional()) names.push_back(one.name());
  const auto is_no_use = needless(name, names);
  Error error = usage("unknown option '{}'", printable(name));
  if (mask_option(name) != nullptr && set.find("--mask-kind") != nullptr)
    return error.hint(mask_of_options(arguments));
  if (is_no_use) return error.hint(*is_no_use);
  if (const Command* other = sibling_with(command, name))
    return error.hint(fmt::format("'ejk {}' has such an option", other->name));
  if (const auto intended = intended_option(name, names)) {
    const char* const quote = intended->find('\'') == std::string::npos ? "'" : "";
    return error.hint(fmt::format("did you mean {0}{1}{0}?", quote, *intended));
  }
  const std::vector<std::string_view> others = commands_with(name);
  if (others.size() == 1)
    return error.hint(
        fmt::format("it is an option of {0}: ejk {0} ... {1}", others[0], with_value(arguments, option)));
  if (!others.empty()) return error.hint(fmt::format("it is an option of {}", fmt::join(others, ", ")));
  return error.hint(fmt::format("'ejk {} -h' lists the options", command.name));
}

}  // namespace ejk::app
