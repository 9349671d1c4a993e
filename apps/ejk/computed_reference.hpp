// References of computed arrays: quantised values with their scales, and rows by index, as one word.
// tests: tests/app/test_computed_reference.cpp
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "ejk/quantize.hpp"

namespace ejk::app {

// In the order of the enumerations, for options.
inline constexpr std::array kElementFormats{ElementFormat::e4m3, ElementFormat::e5m2, ElementFormat::e2m3,
                                            ElementFormat::e3m2, ElementFormat::e2m1};
inline constexpr std::array kScaleLayouts{ScaleLayout::linear, ScaleLayout::tiles_128x4,
                                          ScaleLayout::tiles_8x4, ScaleLayout::packed_columns};

/// FUNCTION(ARRAY, ...), with options NAME=VALUE after the arrays, and perhaps a slice:
///   fp8(VALUES, SCALES), mx(VALUES, SCALES), nvfp4(VALUES, SCALES, GLOBAL), gptoss(BLOCKS, SCALES)
///   rows(ARRAY, INDICES)
struct ComputedReference {
  std::optional<QuantizationScheme> scheme;  // without: rows
  std::vector<std::string> arrays;           // references
  std::optional<float> number;               // of fp8 and nvfp4, where the last one is a number
  DecodeSettings settings;
  std::string slice;  // "[0,:]"; empty: everything
};

/// Nothing for a word that is no such reference; files of such names begin with "./". Throws Error{usage} for
/// a malformed one.
std::optional<ComputedReference> computed_reference(const std::string& word);

/// The index of the bracket, round or square, that closes the one at `open`; npos if there is none. Those between two
/// of the same of `quotes` do not count.
std::size_t closing_bracket(std::string_view word, std::size_t open, std::string_view quotes);

/// The function that a word was meant to be, for a hint where there is no file of its name.
std::optional<std::string> nearest_function(const std::string& word);

}  // namespace ejk::app
