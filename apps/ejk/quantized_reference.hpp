// References that decode: quantised values and their scales as one word that names the numbers.
// tests: tests/app/test_quantized_reference.cpp
#pragma once

#include <array>
#include <optional>
#include <string>

#include "ejk/quantize.hpp"

namespace ejk::app {

// In the order of the enumerations, for options.
inline constexpr std::array kElementFormats{ElementFormat::e4m3, ElementFormat::e5m2, ElementFormat::e2m3,
                                            ElementFormat::e3m2, ElementFormat::e2m1};
inline constexpr std::array kScaleLayouts{ScaleLayout::linear, ScaleLayout::tiles_128x4,
                                          ScaleLayout::tiles_8x4, ScaleLayout::packed_columns};

/// fp8(VALUES, SCALES), mx(VALUES, SCALES), nvfp4(VALUES, SCALES, GLOBAL) or gptoss(BLOCKS, SCALES), with
/// options NAME=VALUE after the arrays, and perhaps a slice.
struct QuantizedReference {
  QuantizationScheme scheme = QuantizationScheme::mx;
  std::string values, scales;
  std::string global;  // of nvfp4: a reference, or the text of the number
  std::optional<float> global_number;
  DecodeSettings settings;
  std::string slice;  // "[0,:]"; empty: everything
};

/// Nothing for a word that is no such reference; files of such names begin with "./". Throws Error{usage} for
/// a malformed one.
std::optional<QuantizedReference> quantized_reference(const std::string& word);

}  // namespace ejk::app
