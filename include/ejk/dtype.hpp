// Element types of arrays, the C++ type of an element of each, and the formats of the float types.
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

/// A binary format with sign bit, subnormal numbers, infinities and NaN; the leading significand bit is
/// implicit.
struct FloatFormat {
  int exponent_bits, mantissa_bits, bias;
  double largest;

  constexpr int least_exponent() const { return 1 - bias; }  // of normal numbers
};
inline constexpr FloatFormat kFloat16{5, 10, 15, 65504};
inline constexpr FloatFormat kBfloat16{8, 7, 127, 0x1.FEp127};
inline constexpr FloatFormat kFloat32{8, 23, 127, std::numeric_limits<float>::max()};
inline constexpr FloatFormat kFloat64{11, 52, 1023, std::numeric_limits<double>::max()};

/// A 16-bit number, computed with as float. From float: round to nearest even, overflow to infinity, a NaN
/// keeps the upper bits of its payload. Branch-free, so that loops are vectorised.
template <const FloatFormat& kFormat>
struct SmallFloat {
  std::uint16_t bits = 0;

  SmallFloat() = default;
  explicit SmallFloat(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = u & 0x7FFFFFFFu;
    std::uint32_t rounded =
        (magnitude - (kRebias << 23) + (1u << (kCut - 1)) - 1 + ((magnitude >> kCut) & 1u)) >> kCut;
    if constexpr (kRebias != 0) {
      // The last place of the sum is that of the format's subnormal numbers: the addition rounds.
      constexpr std::uint32_t kLift = (23u + kRebias + 1u - kFormat.mantissa_bits) << 23;
      const float lifted = std::bit_cast<float>(magnitude) + std::bit_cast<float>(kLift);
      rounded = magnitude < (kRebias + 1) << 23 ? std::bit_cast<std::uint32_t>(lifted) - kLift : rounded;
      rounded = magnitude >= (128u + kFormat.bias) << 23 ? kInfinity : rounded;
    }
    const std::uint32_t nan = magnitude >> kCut | kInfinity | 1u << (kFormat.mantissa_bits - 1);
    bits =
        static_cast<std::uint16_t>((u >> 16 & 0x8000u) | (magnitude > 0x7F800000u ? nan & 0x7FFFu : rounded));
  }
  explicit operator float() const {
    const std::uint32_t sign = (bits & 0x8000u) << 16, magnitude = (bits & 0x7FFFu) << kCut;
    if constexpr (kRebias == 0) return std::bit_cast<float>(sign | magnitude);
    // The factor corrects the exponent's bias, of subnormal numbers as well.
    const float finite = std::bit_cast<float>(magnitude) * std::bit_cast<float>((127u + kRebias) << 23);
    return std::bit_cast<float>(
        sign |
        (magnitude >= kInfinity << kCut ? magnitude | 0x7F800000u : std::bit_cast<std::uint32_t>(finite)));
  }

 private:
  static_assert(kFormat.exponent_bits + kFormat.mantissa_bits == 15);
  static constexpr std::uint32_t kCut = 23 - kFormat.mantissa_bits, kRebias = 127 - kFormat.bias;
  static constexpr std::uint32_t kInfinity = ((1u << kFormat.exponent_bits) - 1) << kFormat.mantissa_bits;
};
using float16 = SmallFloat<kFloat16>;
using bfloat16 = SmallFloat<kBfloat16>;

/// Whether T is stored in a format that the processor does not compute in.
template <class T>
inline constexpr bool is_small_float = false;
template <const FloatFormat& kFormat>
inline constexpr bool is_small_float<SmallFloat<kFormat>> = true;

/// The type that elements of T are computed in: float for the small ones.
template <class T>
using Computed = std::conditional_t<is_small_float<T>, float, T>;

/// The format of a float type; that of float64 for other types.
const FloatFormat& float_format(DType dtype);
template <class T>
inline constexpr const FloatFormat& float_format_of = kFloat64;
template <>
inline constexpr const FloatFormat& float_format_of<float> = kFloat32;
template <const FloatFormat& kFormat>
inline constexpr const FloatFormat& float_format_of<SmallFloat<kFormat>> = kFormat;

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
template <class T, class... All>
constexpr DType position_of() {
  static_assert((std::is_same_v<T, All> || ...), "not an array element type");
  std::uint8_t position = 0;
  static_cast<void>(((std::is_same_v<T, All> || (++position, false)) || ...));
  return static_cast<DType>(position);
}
}  // namespace detail

/// The DType of a C++ element type.
template <class T>
constexpr DType dtype_of() {
  return detail::position_of<T, bool, std::int8_t, std::int16_t, std::int32_t, std::int64_t, std::uint8_t,
                             std::uint16_t, std::uint32_t, std::uint64_t, float16, bfloat16, float, double>();
}

}  // namespace ejk
