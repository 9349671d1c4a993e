// Element types of arrays, the C++ type of an element of each, and the formats of the float types.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

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
  float8_e4m3fn,
  float8_e5m2,
  float8_e4m3fnuz,
  float8_e5m2fnuz,
  float8_e8m0fnu,
  float16,
  bfloat16,
  float32,
  float64,
};

/// What codes besides finite numbers with a sign a format has. Suffixes as in ml_dtypes.
enum class SpecialCodes : std::uint8_t {
  ieee,  // infinities and NaN have the largest exponent
  fn,    // no infinity; NaN is all ones below the sign
  fnuz,  // no infinity and no -0, whose code is NaN
  fnu,   // neither sign, zero, subnormal number nor infinity; NaN is all ones
  none,  // finite numbers only
};

/// A binary format; the leading significand bit is implicit. All but fnu have subnormal numbers and a sign bit.
struct FloatFormat {
  int exponent_bits, mantissa_bits, bias;
  double largest;
  SpecialCodes special = SpecialCodes::ieee;

  constexpr bool has_sign() const { return special != SpecialCodes::fnu; }
  constexpr bool has_infinity() const { return special == SpecialCodes::ieee; }
  constexpr int bits() const { return has_sign() + exponent_bits + mantissa_bits; }
  constexpr int least_exponent() const { return has_sign() - bias; }  // of normal numbers
};
inline constexpr FloatFormat kFloat4E2M1{2, 1, 1, 6, SpecialCodes::none};
inline constexpr FloatFormat kFloat6E2M3{2, 3, 1, 7.5, SpecialCodes::none};
inline constexpr FloatFormat kFloat6E3M2{3, 2, 3, 28, SpecialCodes::none};
inline constexpr FloatFormat kFloat8E4M3Fn{4, 3, 7, 448, SpecialCodes::fn};
inline constexpr FloatFormat kFloat8E5M2{5, 2, 15, 57344};
inline constexpr FloatFormat kFloat8E4M3Fnuz{4, 3, 8, 240, SpecialCodes::fnuz};
inline constexpr FloatFormat kFloat8E5M2Fnuz{5, 2, 16, 57344, SpecialCodes::fnuz};
inline constexpr FloatFormat kFloat8E8M0Fnu{8, 0, 127, 0x1p127, SpecialCodes::fnu};
inline constexpr FloatFormat kFloat16{5, 10, 15, 65504};
inline constexpr FloatFormat kBfloat16{8, 7, 127, 0x1.FEp127};
inline constexpr FloatFormat kFloat32{8, 23, 127, std::numeric_limits<float>::max()};
inline constexpr FloatFormat kFloat64{11, 52, 1023, std::numeric_limits<double>::max()};

/// What numbers beyond the largest of a type, and infinities, become.
enum class Overflow : std::uint8_t { saturate, nan, infinity };

/// "saturate", "nan", "inf".
std::string_view name_of(Overflow overflow);

namespace detail {

/// The codes of a format of at most 16 bits, without the sign.
struct FloatCodes {
  std::uint32_t sign, magnitude, largest, infinity, nan;

  constexpr explicit FloatCodes(const FloatFormat& format)
      : sign(format.has_sign() ? 1u << (format.bits() - 1) : 0u),
        magnitude((1u << (format.bits() - format.has_sign())) - 1),
        largest(format.special == SpecialCodes::fnuz || format.special == SpecialCodes::none ? magnitude
                : format.has_infinity() ? (magnitude >> format.mantissa_bits << format.mantissa_bits) - 1
                                        : magnitude - 1),
        infinity(largest + 1),
        nan(format.special == SpecialCodes::fnuz ? sign : magnitude) {}

  constexpr std::uint32_t overflowed(Overflow to) const {
    return to == Overflow::saturate ? largest : to == Overflow::infinity ? infinity : nan;
  }
};

/// The numbers of the codes of a format of at most 8 bits; bits above a code are ignored.
constexpr std::array<float, 256> float8_values(const FloatFormat& format) {
  const FloatCodes codes(format);
  std::array<float, 256> values{};
  for (std::uint32_t code = 0; code < 256; ++code) {
    const std::uint32_t magnitude = code & codes.magnitude;
    const std::uint32_t exponent = magnitude >> format.mantissa_bits;
    const std::uint32_t fraction = magnitude & ((1u << format.mantissa_bits) - 1);
    const bool is_normal = exponent > 0 || !format.has_sign();
    const int power = (is_normal ? static_cast<int>(exponent) : 1) - format.bias - format.mantissa_bits;
    const float unit = power == -127 ? 0x1p-127f  // which float has as a subnormal number
                                     : std::bit_cast<float>(static_cast<std::uint32_t>(power + 127) << 23);
    const float value = unit * static_cast<float>((is_normal ? 1u << format.mantissa_bits : 0u) + fraction);
    const bool is_nan = format.special == SpecialCodes::fnuz   ? code == codes.nan
                        : format.special == SpecialCodes::none ? false
                        : format.special == SpecialCodes::ieee ? magnitude > codes.infinity
                                                               : magnitude == codes.nan;
    const bool is_infinite = format.has_infinity() && magnitude == codes.infinity;
    const std::uint32_t bits = is_nan        ? 0x7FC00000u
                               : is_infinite ? 0x7F800000u
                                             : std::bit_cast<std::uint32_t>(value);
    values[code] = std::bit_cast<float>(bits | ((code & codes.sign) != 0 ? 0x80000000u : 0u));
  }
  return values;
}
template <const FloatFormat& kFormat>
inline constexpr std::array<float, 256> kFloat8Values = float8_values(kFormat);

}  // namespace detail

/// A number of 8 or 16 bits, computed with as float. From float: round to nearest even; of float8_e8m0fnu
/// halves go up, the sign is dropped, and 0 becomes the least number. Overflow as by default_overflow; a NaN of
/// 16 bits keeps the upper bits of its payload. Branch-free, so that loops are vectorised.
template <const FloatFormat& kFormat>
struct SmallFloat {
  using Bits = std::conditional_t<kFormat.bits() == 8, std::uint8_t, std::uint16_t>;
  static_assert(kFormat.bits() == 8 * sizeof(Bits));

  /// 16 bits: to infinity. 8 bits: as CUDA's conversions do, to the largest number; fnuz and fnu to NaN.
  static constexpr Overflow default_overflow =
      sizeof(Bits) == 2                                                              ? Overflow::infinity
      : kFormat.special == SpecialCodes::ieee || kFormat.special == SpecialCodes::fn ? Overflow::saturate
                                                                                     : Overflow::nan;
  Bits bits = 0;

  SmallFloat() = default;
  explicit SmallFloat(float value) : bits(rounded(value, kCodes.overflowed(default_overflow)).bits) {}
  explicit operator float() const {
    if constexpr (sizeof(Bits) == 1) return values()[bits];
    const std::uint32_t sign = (bits & 0x8000u) << 16, magnitude = (bits & 0x7FFFu) << kCut;
    if constexpr (kRebias == 0) return std::bit_cast<float>(sign | magnitude);
    // The factor corrects the exponent's bias, of subnormal numbers as well.
    const float finite = std::bit_cast<float>(magnitude) * std::bit_cast<float>((127u + kRebias) << 23);
    // A mask: GCC does not vectorise a choice of a product of floats, which may trap.
    constexpr auto kInfinity = static_cast<std::int32_t>(kCodes.infinity << kCut);
    const auto is_special = static_cast<std::uint32_t>(
        -static_cast<std::int32_t>(static_cast<std::int32_t>(magnitude) >= kInfinity));
    return std::bit_cast<float>(sign | ((magnitude | 0x7F800000u) & is_special) |
                                (std::bit_cast<std::uint32_t>(finite) & ~is_special));
  }

  static constexpr detail::FloatCodes kCodes{kFormat};
  /// Of 8 bits: the numbers by code.
  static constexpr const std::array<float, 256>& values() { return detail::kFloat8Values<kFormat>; }

  /// The code of a float, with `overflowed` for numbers beyond the largest and infinities, and whether it is
  /// one of these.
  struct Rounded {
    Bits bits;
    std::int32_t overflows;  // 1 or 0
  };
  static Rounded rounded(float value, std::uint32_t overflowed) {
    // Masks and signed comparisons: GCC does not vectorise a choice of a sum of floats, which may trap, and unsigned
    // comparisons only slowly.
    const auto u = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t bits = u & 0x7FFFFFFFu;
    const auto magnitude = static_cast<std::int32_t>(bits);
    constexpr std::uint32_t kHalf = 1u << (kCut - 1);
    std::uint32_t sum = 0;
    if constexpr (kFormat.has_sign())
      sum = bits - (std::uint32_t{kRebias} << 23) + kHalf - 1 + (bits >> kCut & 1u);
    else  // 2^-127, the least number, is half of what the sum would make it
      sum = bits + kHalf - (bits == kHalf);
    auto code = static_cast<std::int32_t>(sum >> kCut);
    if constexpr (kRebias != 0) {
      // The last place of the sum is that of the format's subnormal numbers: the addition rounds.
      constexpr std::int32_t kLift = (23 + kRebias + 1 - kFormat.mantissa_bits) << 23;
      const float lifted = std::bit_cast<float>(magnitude) + std::bit_cast<float>(kLift);
      const std::int32_t is_normal = -static_cast<std::int32_t>(magnitude >= (kRebias + 1) << 23);
      code = (code & is_normal) | ((std::bit_cast<std::int32_t>(lifted) - kLift) & ~is_normal);
    }
    const std::int32_t is_nan = -static_cast<std::int32_t>(magnitude > 0x7F800000);
    const std::int32_t is_larger =
        -static_cast<std::int32_t>(code > static_cast<std::int32_t>(kCodes.largest));
    std::uint32_t nan = kCodes.nan;
    if constexpr (sizeof(Bits) == 2)
      nan = (bits >> kCut | kCodes.infinity | 1u << (kFormat.mantissa_bits - 1)) & 0x7FFFu;
    auto result =
        static_cast<std::uint32_t>((static_cast<std::int32_t>(overflowed) & is_larger) | (code & ~is_larger));
    result = (nan & static_cast<std::uint32_t>(is_nan)) | (result & static_cast<std::uint32_t>(~is_nan));
    std::uint32_t sign = u >> 31 << (kFormat.bits() - 1);
    if constexpr (kFormat.special == SpecialCodes::fnuz)
      sign = result == 0 || result == kCodes.nan ? 0 : sign;
    if constexpr (kFormat.has_sign()) result |= sign;
    return {static_cast<Bits>(result), -(is_larger & ~is_nan)};
  }

 private:
  static constexpr std::int32_t kCut = 23 - kFormat.mantissa_bits, kRebias = 127 - kFormat.bias;
};
using float8_e4m3fn = SmallFloat<kFloat8E4M3Fn>;
using float8_e5m2 = SmallFloat<kFloat8E5M2>;
using float8_e4m3fnuz = SmallFloat<kFloat8E4M3Fnuz>;
using float8_e5m2fnuz = SmallFloat<kFloat8E5M2Fnuz>;
using float8_e8m0fnu = SmallFloat<kFloat8E8M0Fnu>;
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
constexpr bool is_float(DType d) { return d >= DType::float8_e4m3fn; }
constexpr bool is_8_bit_float(DType d) { return d >= DType::float8_e4m3fn && d <= DType::float8_e8m0fnu; }
/// One of numbers: without E8M0, whose elements are scales.
constexpr bool is_signed_8_bit_float(DType d) { return is_8_bit_float(d) && d != DType::float8_e8m0fnu; }
/// A float type of operands and results of products and attention.
constexpr bool is_wide_float(DType d) { return is_float(d) && !is_8_bit_float(d); }

namespace detail {

template <class... Types>
struct TypeList {
  static constexpr std::size_t size = sizeof...(Types);
};

/// The C++ types of elements, in the order of DType.
using ElementTypes =
    TypeList<bool, std::int8_t, std::int16_t, std::int32_t, std::int64_t, std::uint8_t, std::uint16_t,
             std::uint32_t, std::uint64_t, float8_e4m3fn, float8_e5m2, float8_e4m3fnuz, float8_e5m2fnuz,
             float8_e8m0fnu, float16, bfloat16, float, double>;
static_assert(ElementTypes::size == static_cast<std::size_t>(DType::float64) + 1);

template <class T, class... All>
constexpr DType position_of(TypeList<All...>) {
  static_assert((std::is_same_v<T, All> || ...), "not an array element type");
  std::uint8_t position = 0;
  static_cast<void>(((std::is_same_v<T, All> || (++position, false)) || ...));
  return static_cast<DType>(position);
}

}  // namespace detail

/// All types.
inline constexpr std::array<DType, detail::ElementTypes::size> kDTypes = [] {
  std::array<DType, detail::ElementTypes::size> all{};
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<DType>(i);
  return all;
}();

/// The DType of a C++ element type.
template <class T>
constexpr DType dtype_of() {
  return detail::position_of<T>(detail::ElementTypes{});
}

namespace detail {

enum class Among : std::uint8_t { all, wide };

template <Among kAmong, class F, class First, class... Rest>
decltype(auto) dispatch(TypeList<First, Rest...>, DType dtype, F&& f) {
  if constexpr (kAmong == Among::wide && is_8_bit_float(dtype_of<First>())) {
    return dispatch<kAmong>(TypeList<Rest...>{}, dtype, std::forward<F>(f));
  } else {
    if constexpr (sizeof...(Rest) > 0)
      if (dtype != dtype_of<First>()) return dispatch<kAmong>(TypeList<Rest...>{}, dtype, std::forward<F>(f));
    return f(std::type_identity<First>{});
  }
}

}  // namespace detail

/// Calls f(std::type_identity<T>{}) with the C++ element type of `dtype`.
template <class F>
decltype(auto) dispatch(DType dtype, F&& f) {
  return detail::dispatch<detail::Among::all>(detail::ElementTypes{}, dtype, std::forward<F>(f));
}

/// The same for types other than 8-bit floats: their arrays are widened to float32 where a loop for each of
/// them would only be more code.
template <class F>
decltype(auto) dispatch_wide(DType dtype, F&& f) {
  return detail::dispatch<detail::Among::wide>(detail::ElementTypes{}, dtype, std::forward<F>(f));
}

}  // namespace ejk
