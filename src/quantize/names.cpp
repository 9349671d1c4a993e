// Names of schemes, elements, layouts and rules.
// tests: tests/quantize/test_decode.cpp
#include <fmt/format.h>

#include <utility>

#include "ejk/quantize.hpp"
#include "quantize/elements.hpp"

namespace ejk {

std::string_view name_of(ElementFormat format) { return quantize::row_of(format).name; }

std::string_view name_of(ScaleLayout layout) {
  constexpr std::string_view kNames[] = {"linear", "128x4", "8x4", "deepgemm"};
  return kNames[static_cast<std::size_t>(layout)];
}

std::string_view name_of(QuantizationScheme scheme) {
  constexpr std::string_view kNames[] = {"fp8", "mx", "nvfp4", "gptoss"};
  return kNames[static_cast<std::size_t>(scheme)];
}

std::string_view name_of(ScaleRule rule) {
  constexpr std::string_view kNames[] = {"floor", "ceil", "rceil", "even"};
  return kNames[static_cast<std::size_t>(rule)];
}

std::string_view name_of(ElementRounding rounding) {
  constexpr std::string_view kNames[] = {"even", "away", "down"};
  return kNames[static_cast<std::size_t>(rounding)];
}

std::string_view name_of(NibbleOrder order) {
  constexpr std::string_view kNames[] = {"low", "high", "split"};
  return kNames[static_cast<std::size_t>(order)];
}

std::string_view name_of(GlobalScale use) {
  return use == GlobalScale::multiplies ? "multiplies" : "divides";
}

std::string to_string(const ScaleBlock& block) { return fmt::format("{}x{}", block.rows, block.columns); }

std::string to_string(const DecodedAs& decoded) {
  constexpr std::pair<std::string_view, std::string_view> kWords[] = {{"all elements", "one scale"},
                                                                      {"row", "scales of rows"},
                                                                      {"column", "scales of columns"},
                                                                      {"matrix", "scales of matrices"}};
  std::string block = "blocks of " + decoded.block;
  for (const auto& [word, text] : kWords)
    if (decoded.block == word) block = text;
  if (decoded.axis) block += fmt::format(" along axis {}", *decoded.axis);
  std::string text = fmt::format("{} {}, {}, layout {}", name_of(decoded.scheme), decoded.element, block,
                                 name_of(decoded.layout));
  if (decoded.nibbles)
    text += *decoded.nibbles == NibbleOrder::split
                ? ", low nibbles the first half of a block"
                : fmt::format(", {} nibble first", name_of(*decoded.nibbles));
  if (decoded.global) text += fmt::format(", global {}", name_of(*decoded.global));
  return text;
}

}  // namespace ejk
