// Names of schemes, elements, layouts and rules.
// tests: tests/quantize/test_decode.cpp
#include <fmt/format.h>

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

std::string to_string(const ScaleBlock& block) { return fmt::format("{}x{}", block.rows, block.columns); }

}  // namespace ejk
