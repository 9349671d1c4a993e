// One table of names and sizes, in the order of the enumeration.
// tests: tests/core/test_dtype.cpp
#include "ejk/dtype.hpp"

#include <array>

namespace ejk {

namespace {

struct Row {
  std::string_view name;
  std::int64_t size;
};

// In the order of the enumeration.
constexpr std::array<Row, 13> kTypes{{{"bool", 1},
                                      {"int8", 1},
                                      {"int16", 2},
                                      {"int32", 4},
                                      {"int64", 8},
                                      {"uint8", 1},
                                      {"uint16", 2},
                                      {"uint32", 4},
                                      {"uint64", 8},
                                      {"float16", 2},
                                      {"bfloat16", 2},
                                      {"float32", 4},
                                      {"float64", 8}}};

}  // namespace

std::int64_t size_of(DType dtype) { return kTypes[static_cast<std::size_t>(dtype)].size; }

std::string_view name_of(DType dtype) { return kTypes[static_cast<std::size_t>(dtype)].name; }

std::optional<DType> dtype_named(std::string_view name) {
  for (std::size_t i = 0; i < kTypes.size(); ++i)
    if (kTypes[i].name == name) return static_cast<DType>(i);
  return std::nullopt;
}

float16::float16(float value) {
  const auto u = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((u >> 16) & 0x8000u);
  const std::uint32_t magnitude = u & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    bits = static_cast<std::uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x1FFu));
  } else if (magnitude >= 0x477FF000u) {  // 65520 and more round to infinity
    bits = static_cast<std::uint16_t>(sign | 0x7C00u);
  } else if (magnitude >= 0x38800000u) {  // normal: rebias the exponent, round away 13 bits to nearest even
    const std::uint32_t rebiased = magnitude - 0x38000000u;
    bits = static_cast<std::uint16_t>(sign | ((rebiased + 0xFFFu + ((rebiased >> 13) & 1u)) >> 13));
  } else {  // subnormal: adding 0.5 lets the float unit do the rounding at 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    bits = static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000u));
  }
}

float16::operator float() const {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1Fu, fraction = bits & 0x3FFu;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000u | (fraction << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (fraction << 13));
}

}  // namespace ejk
