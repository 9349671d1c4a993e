// Parser of references of computed arrays.
//   reference := function '(' array {',' array} {',' name '=' value} ')' [slice]
// Commas and parentheses inside of [], () and double quotes belong to an array's own reference.
// tests: tests/app/test_computed_reference.cpp
#include "computed_reference.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "ejk/io.hpp"
#include "ejk/program/text.hpp"
#include "options.hpp"

namespace ejk::app {

namespace {

std::optional<float> number_in(const std::string& word) {
  double number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size() || !std::isfinite(number)) return std::nullopt;
  return static_cast<float>(number);
}

template <class T>
T value_among(const std::string& value, const Choices<T>& choices) {
  std::vector<std::string> words;
  for (const auto& [word, choice] : choices) words.push_back(word);
  return choices[read_choice(value, words)].second;
}

// Each option, and how its value is read.
struct SettingRow {
  const char* name;
  void (*read)(const std::string& value, DecodeSettings& into);
};

constexpr SettingRow kSettings[] = {
    {"element",
     [](const std::string& value, DecodeSettings& into) {
       into.element = value_among(value, named_choices<ElementFormat>(kElementFormats));
     }},
    {"block",
     [](const std::string& value, DecodeSettings& into) {
       const Shape lengths = read_lengths(value, 2, 2, "RxC");
       into.block = ScaleBlock{lengths[0], lengths[1]};
     }},
    {"layout",
     [](const std::string& value, DecodeSettings& into) {
       into.layout = value_among(value, named_choices<ScaleLayout>(kScaleLayouts));
     }},
    {"nibbles",
     [](const std::string& value, DecodeSettings& into) {
       constexpr NibbleOrder kOrders[] = {NibbleOrder::low, NibbleOrder::high, NibbleOrder::split};
       into.nibbles = value_among(value, named_choices<NibbleOrder>(kOrders));
     }},
    {"axis",
     [](const std::string& value, DecodeSettings& into) { into.axis = read_integer(value, INT64_MIN); }},
    {"global",
     [](const std::string& value, DecodeSettings& into) {
       into.global = value_among<GlobalScale>(
           value, {{"multiply", GlobalScale::multiplies}, {"divide", GlobalScale::divides}});
     }},
};

// The name before the '=' of an option: letters alone, unlike the path of a file.
std::string option_name(const std::string& argument) {
  const std::size_t equals = argument.find('=');
  if (equals == std::string::npos || equals == 0) return "";
  const std::string name(trimmed(std::string_view(argument).substr(0, equals)));
  const bool is_name =
      std::all_of(name.begin(), name.end(), [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; });
  return is_name ? name : "";
}

void read_setting(const std::string& name, const std::string& value, DecodeSettings& into) {
  std::vector<std::string> names;
  for (const SettingRow& row : kSettings) {
    names.emplace_back(row.name);
    if (name != row.name) continue;
    try {
      row.read(value, into);
    } catch (Error& error) {
      error.at(name);
      throw;
    }
    return;
  }
  Error error = usage("there is no option '{}'", printable(name, 40));
  if (const auto nearest = nearest_name(name, names))
    error.hint(fmt::format("did you mean {}?", *nearest));
  else
    error.hint(fmt::format("options are {}; a file of such a name begins with ./", fmt::join(names, ", ")));
  throw error;
}

// A function, the number of its arrays, and how it is written.
struct Function {
  std::string_view name;
  std::optional<QuantizationScheme> scheme;
  std::size_t arrays;
  const char* form;
};

constexpr Function kFunctions[] = {
    {"fp8", QuantizationScheme::fp8, 2, "fp8(VALUES, SCALES); SCALES may be a number"},
    {"mx", QuantizationScheme::mx, 2, "mx(VALUES, SCALES)"},
    {"nvfp4", QuantizationScheme::nvfp4, 3,
     "nvfp4(VALUES, SCALES, GLOBAL); GLOBAL may be a number, 1 without a global scale"},
    {"gptoss", QuantizationScheme::gptoss, 2, "gptoss(BLOCKS, SCALES)"},
    {"rows", std::nullopt, 2, "rows(ARRAY, INDICES)"},
};

ComputedReference parse(const Function& function, std::string_view inside) {
  ComputedReference parsed;
  parsed.scheme = function.scheme;
  std::vector<std::string> seen;
  for (const std::string& part : split_references(inside)) {
    const std::string argument(trimmed(part));
    const std::string name = option_name(argument);
    if (!name.empty()) {
      if (!function.scheme) throw usage("{} has no options", function.name);
      if (std::find(seen.begin(), seen.end(), name) != seen.end()) throw usage("{} is given twice", name);
      seen.push_back(name);
      read_setting(name, std::string(trimmed(std::string_view(argument).substr(argument.find('=') + 1))),
                   parsed.settings);
      continue;
    }
    if (!seen.empty()) throw usage("an array follows the option {}", seen.back());
    if (argument.empty()) throw usage("an array is missing between the commas");
    parsed.arrays.push_back(argument);
  }
  if (parsed.arrays.size() != function.arrays)
    throw usage("{} takes {} arrays, not {}", function.name, function.arrays, parsed.arrays.size())
        .hint(function.form);
  if (function.scheme == QuantizationScheme::nvfp4 || function.scheme == QuantizationScheme::fp8)
    parsed.number = number_in(parsed.arrays.back());
  return parsed;
}

}  // namespace

std::size_t closing_bracket(std::string_view word, std::size_t open, std::string_view quotes) {
  int depth = 0;
  char quote = 0;
  for (std::size_t at = open; at < word.size(); ++at) {
    const char c = word[at];
    if (quote != 0) {
      if (c == quote) quote = 0;
      continue;
    }
    if (quotes.find(c) != std::string_view::npos) quote = c;
    depth += c == '(' || c == '[';
    depth -= c == ')' || c == ']';
    if (depth == 0) return at;
  }
  return std::string_view::npos;
}

std::optional<ComputedReference> computed_reference(const std::string& word) {
  for (const Function& function : kFunctions) {
    const std::size_t open = function.name.size();
    if (!word.starts_with(function.name) || word.substr(open, 1) != "(") continue;
    const std::size_t close = closing_bracket(word, open, "\"");
    if (close == std::string::npos) throw usage("{}: the parenthesis '(' is not closed", printable(word));
    const std::string slice = word.substr(close + 1);
    if (!slice.empty() && (slice.front() != '[' || slice.back() != ']')) continue;
    try {
      ComputedReference parsed = parse(function, std::string_view(word).substr(open + 1, close - open - 1));
      parsed.slice = slice;
      return parsed;
    } catch (Error& error) {
      error.at(printable(word));
      throw;
    }
  }
  return std::nullopt;
}

std::optional<std::string> nearest_function(const std::string& word) {
  const std::size_t open = word.find('(');
  if (open == std::string::npos || !word.ends_with(')') || word.find(',', open) == std::string::npos)
    return std::nullopt;
  std::vector<std::string> names;
  for (const Function& function : kFunctions) names.emplace_back(function.name);
  return nearest_name(word.substr(0, open), names);
}

}  // namespace ejk::app
