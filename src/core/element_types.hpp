// The table of element types: size and format of each, and its name in every container, which readers and
// writers search. HDF5 has no names: it describes a float by its format.
// tests: tests/core/test_dtype.cpp
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "ejk/dtype.hpp"

namespace ejk::core {

struct ElementType {
  DType dtype;
  std::int64_t size;
  const FloatFormat* format;  // as of float_format
  std::string_view name;      // of NumPy and ml_dtypes; torch.NAME
  std::string_view npy;       // in a descr, without the byte order
  std::string_view safetensors;
  int safetensors_order;           // of the types of its size, in the enumeration of safetensors
  std::string_view torch_storage;  // torch.STORAGE, the class of its storages; none: they are untyped
};

// ml_dtypes writes types that .npy has no code for as raw bytes.
inline constexpr std::string_view kRawByte = "V1";

template <class T>
constexpr ElementType element_type(std::string_view name, std::string_view npy, std::string_view safetensors,
                                   int safetensors_order, std::string_view torch_storage = "") {
  return {dtype_of<T>(), sizeof(T),   &float_format_of<T>, name,
          npy,           safetensors, safetensors_order,   torch_storage};
}

// In the order of DType.
inline constexpr std::array<ElementType, kDTypes.size()> kElementTypes{
    element_type<bool>("bool", "b1", "BOOL", 0, "BoolStorage"),
    element_type<std::int8_t>("int8", "i1", "I8", 2, "CharStorage"),
    element_type<std::int16_t>("int16", "i2", "I16", 0, "ShortStorage"),
    element_type<std::int32_t>("int32", "i4", "I32", 0, "IntStorage"),
    element_type<std::int64_t>("int64", "i8", "I64", 1, "LongStorage"),
    element_type<std::uint8_t>("uint8", "u1", "U8", 1, "ByteStorage"),
    element_type<std::uint16_t>("uint16", "u2", "U16", 1),
    element_type<std::uint32_t>("uint32", "u4", "U32", 1),
    element_type<std::uint64_t>("uint64", "u8", "U64", 2),
    element_type<float8_e4m3fn>("float8_e4m3fn", kRawByte, "F8_E4M3", 4),
    element_type<float8_e5m2>("float8_e5m2", kRawByte, "F8_E5M2", 3),
    element_type<float8_e4m3fnuz>("float8_e4m3fnuz", kRawByte, "F8_E4M3FNUZ", 6),
    element_type<float8_e5m2fnuz>("float8_e5m2fnuz", kRawByte, "F8_E5M2FNUZ", 7),
    element_type<float8_e8m0fnu>("float8_e8m0fnu", kRawByte, "F8_E8M0", 5),
    element_type<float16>("float16", "f2", "F16", 2, "HalfStorage"),
    element_type<bfloat16>("bfloat16", "V2", "BF16", 3, "BFloat16Storage"),
    element_type<float>("float32", "f4", "F32", 2, "FloatStorage"),
    element_type<double>("float64", "f8", "F64", 0, "DoubleStorage"),
};

constexpr const ElementType& element_type(DType dtype) {
  return kElementTypes[static_cast<std::size_t>(dtype)];
}
static_assert([] {
  for (const DType dtype : kDTypes)
    if (element_type(dtype).dtype != dtype) return false;
  return true;
}());

}  // namespace ejk::core
