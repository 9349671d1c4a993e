// The table of element types: names, sizes and float formats.
// tests: tests/core/test_dtype.cpp
#include "ejk/dtype.hpp"

#include <array>

namespace ejk {

namespace {

struct TypeRow {
  std::string_view name;
  std::int64_t size;
  const FloatFormat& format = kFloat64;
};

// In the order of the enumeration.
constexpr std::array<TypeRow, 18> kTypes{{{"bool", 1},
                                          {"int8", 1},
                                          {"int16", 2},
                                          {"int32", 4},
                                          {"int64", 8},
                                          {"uint8", 1},
                                          {"uint16", 2},
                                          {"uint32", 4},
                                          {"uint64", 8},
                                          {"float8_e4m3fn", 1, kFloat8E4M3Fn},
                                          {"float8_e5m2", 1, kFloat8E5M2},
                                          {"float8_e4m3fnuz", 1, kFloat8E4M3Fnuz},
                                          {"float8_e5m2fnuz", 1, kFloat8E5M2Fnuz},
                                          {"float8_e8m0fnu", 1, kFloat8E8M0Fnu},
                                          {"float16", 2, kFloat16},
                                          {"bfloat16", 2, kBfloat16},
                                          {"float32", 4, kFloat32},
                                          {"float64", 8, kFloat64}}};

}  // namespace

std::string_view name_of(Overflow overflow) {
  constexpr std::string_view kNames[] = {"saturate", "nan", "inf"};
  return kNames[static_cast<std::size_t>(overflow)];
}

std::int64_t size_of(DType dtype) { return kTypes[static_cast<std::size_t>(dtype)].size; }

std::string_view name_of(DType dtype) { return kTypes[static_cast<std::size_t>(dtype)].name; }

std::optional<DType> dtype_named(std::string_view name) {
  for (std::size_t i = 0; i < kTypes.size(); ++i)
    if (kTypes[i].name == name) return static_cast<DType>(i);
  return std::nullopt;
}

const FloatFormat& float_format(DType dtype) { return kTypes[static_cast<std::size_t>(dtype)].format; }

}  // namespace ejk
