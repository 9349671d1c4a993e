// Element types: the thirteen that arrays in files may have, and the C++ type that holds one element of each.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <type_traits>

namespace ejk {

enum class DType : std::uint8_t {
  boolean,
  int8,
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
  float16,
  bfloat16,
  float32,
  float64,
};

/// IEEE 754 binary16. Conversion from float rounds to nearest, ties to even; overflow gives an infinity.
struct float16 {
  std::uint16_t bits = 0;
  float16() = default;
  explicit float16(float value);
  explicit operator float() const;
};

/// The upper half of a binary32. Conversion from float rounds to nearest, ties to even.
struct bfloat16 {
  std::uint16_t bits = 0;
  bfloat16() = default;
  explicit bfloat16(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    bits = std::isnan(value) ? static_cast<std::uint16_t>((u >> 16) | 0x40u)
                             : static_cast<std::uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

/// Bytes of one element.
std::int64_t size_of(DType dtype);

/// NumPy's name: "bool", "int32", "bfloat16".
std::string_view name_of(DType dtype);

/// The type of that name, if there is one.
std::optional<DType> dtype_named(std::string_view name);

constexpr bool is_integer(DType d) { return d >= DType::int8 && d <= DType::uint64; }
constexpr bool is_float(DType d) { return d >= DType::float16; }

/// Calls f(std::type_identity<T>{}) with the C++ element type of `dtype`.
template <class F>
decltype(auto) dispatch(DType dtype, F&& f) {
  switch (dtype) {
    case DType::boolean:
      return f(std::type_identity<bool>{});
    case DType::int8:
      return f(std::type_identity<std::int8_t>{});
    case DType::int16:
      return f(std::type_identity<std::int16_t>{});
    case DType::int32:
      return f(std::type_identity<std::int32_t>{});
    case DType::int64:
      return f(std::type_identity<std::int64_t>{});
    case DType::uint8:
      return f(std::type_identity<std::uint8_t>{});
    case DType::uint16:
      return f(std::type_identity<std::uint16_t>{});
    case DType::uint32:
      return f(std::type_identity<std::uint32_t>{});
    case DType::uint64:
      return f(std::type_identity<std::uint64_t>{});
    case DType::float16:
      return f(std::type_identity<float16>{});
    case DType::bfloat16:
      return f(std::type_identity<bfloat16>{});
    case DType::float32:
      return f(std::type_identity<float>{});
    case DType::float64:
      break;
  }
  return f(std::type_identity<double>{});
}

namespace detail {
template <class T>
inline constexpr bool no_dtype = false;
}

/// The DType of a C++ element type.
template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, bool>)
    return DType::boolean;
  else if constexpr (std::is_same_v<T, std::int8_t>)
    return DType::int8;
  else if constexpr (std::is_same_v<T, std::int16_t>)
    return DType::int16;
  else if constexpr (std::is_same_v<T, std::int32_t>)
    return DType::int32;
  else if constexpr (std::is_same_v<T, std::int64_t>)
    return DType::int64;
  else if constexpr (std::is_same_v<T, std::uint8_t>)
    return DType::uint8;
  else if constexpr (std::is_same_v<T, std::uint16_t>)
    return DType::uint16;
  else if constexpr (std::is_same_v<T, std::uint32_t>)
    return DType::uint32;
  else if constexpr (std::is_same_v<T, std::uint64_t>)
    return DType::uint64;
  else if constexpr (std::is_same_v<T, float16>)
    return DType::float16;
  else if constexpr (std::is_same_v<T, bfloat16>)
    return DType::bfloat16;
  else if constexpr (std::is_same_v<T, float>)
    return DType::float32;
  else if constexpr (std::is_same_v<T, double>)
    return DType::float64;
  else
    static_assert(detail::no_dtype<T>, "not an array element type");
}

}  // namespace ejk
