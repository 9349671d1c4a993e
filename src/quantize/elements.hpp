// Formats of elements and scales as tables of numbers by code, and how codes are packed in bytes.
// tests: tests/quantize/test_decode.cpp
#pragma once

#include <cstdint>
#include <string_view>

#include "ejk/dtype.hpp"
#include "ejk/quantize.hpp"

namespace ejk::quantize {

/// One row for each ElementFormat, in its order.
struct ElementRow {
  std::string_view name;
  const FloatFormat* format;
  const float* values;  // by code; bits above it are ignored
  DType dtype;          // of arrays of its codes
  // A group of codes is the smallest that takes whole bytes.
  std::int64_t group_codes, group_bytes;
};

inline constexpr ElementRow kElements[] = {
    {"e4m3", &kFloat8E4M3Fn, detail::kFloat8Values<kFloat8E4M3Fn>.data(), DType::float8_e4m3fn, 1, 1},
    {"e5m2", &kFloat8E5M2, detail::kFloat8Values<kFloat8E5M2>.data(), DType::float8_e5m2, 1, 1},
    {"e2m3", &kFloat6E2M3, detail::kFloat8Values<kFloat6E2M3>.data(), DType::uint8, 4, 3},
    {"e3m2", &kFloat6E3M2, detail::kFloat8Values<kFloat6E3M2>.data(), DType::uint8, 4, 3},
    {"e2m1", &kFloat4E2M1, detail::kFloat8Values<kFloat4E2M1>.data(), DType::uint8, 2, 1},
};

inline const ElementRow& row_of(ElementFormat format) { return kElements[static_cast<std::size_t>(format)]; }

/// The numbers of E8M0 codes: 2^(code - 127), 255 is NaN.
inline constexpr const float* kE8M0 = detail::kFloat8Values<kFloat8E8M0Fnu>.data();

/// Elements of a block that shares a scale, by scheme: mx (and gptoss), nvfp4.
inline constexpr std::int64_t kMxBlock = 32, kNvfp4Block = 16;

}  // namespace ejk::quantize
