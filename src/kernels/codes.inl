// Codes of floats: plain loops with masks for choices, which the compiler vectorizes. Loops over the blocks of
// usual lengths have constant ends.

struct CodeBits {
  std::int32_t cut, rebias, lift, least_normal, largest, nan, infinity;
  std::uint32_t magnitude, sign, sign_shift;
};

inline CodeBits code_bits(const FloatFormat& format) {
  const std::uint32_t sign = 1u << (format.exponent_bits + format.mantissa_bits), all = sign - 1;
  const bool is_fnuz = format.special == SpecialCodes::fnuz, is_none = format.special == SpecialCodes::none;
  const bool is_ieee = format.special == SpecialCodes::ieee;
  const std::uint32_t infinity = all >> format.mantissa_bits << format.mantissa_bits;
  CodeBits bits{};
  bits.cut = 23 - format.mantissa_bits;
  bits.rebias = (127 - format.bias) << 23;
  bits.lift = (128 - format.bias) << 23;
  bits.least_normal = 1 << format.mantissa_bits;
  bits.largest = static_cast<std::int32_t>(is_fnuz || is_none ? all : is_ieee ? infinity - 1 : all - 1);
  bits.nan = static_cast<std::int32_t>(is_fnuz   ? sign
                                       : is_none ? static_cast<std::uint32_t>(bits.largest)
                                                 : all);
  bits.infinity = static_cast<std::int32_t>(infinity);
  bits.magnitude = all;
  bits.sign = sign;
  bits.sign_shift = static_cast<std::uint32_t>(31 - format.exponent_bits - format.mantissa_bits);
  return bits;
}

inline std::int32_t mask_of(bool condition) { return -static_cast<std::int32_t>(condition); }

// Calls run(begin, end, block) for the elements of each block; run(i, i + length, block) with a constant
// length where blocks are whole and have a usual one.
template <class F>
[[gnu::always_inline]] inline void by_blocks(std::int64_t n, std::int64_t block, std::int64_t first,
                                             const F& run) {
  std::int64_t i = 0, b = 0;
  if (first > 0) {
    i = block - first < n ? block - first : n;
    run(std::int64_t{0}, i, b++);
  }
  if (block == 32)
    for (; i + 32 <= n; i += 32) run(i, i + 32, b++);
  if (block == 16)
    for (; i + 16 <= n; i += 16) run(i, i + 16, b++);
  for (; i < n; i += block) run(i, i + block < n ? i + block : n, b++);
}

// The float of a code. Subnormal numbers: subtraction of the float that their fraction was added to.
template <SpecialCodes kSpecial>
[[gnu::always_inline]] inline float number_of(const CodeBits& f, std::uint8_t byte) {
  const std::uint32_t code = byte;
  const auto magnitude = static_cast<std::int32_t>(code & f.magnitude), fraction = magnitude << f.cut;
  const float lifted = __builtin_bit_cast(float, fraction | f.lift) - __builtin_bit_cast(float, f.lift);
  const std::int32_t is_normal = mask_of(magnitude >= f.least_normal);
  std::int32_t bits =
      ((fraction + f.rebias) & is_normal) | (__builtin_bit_cast(std::int32_t, lifted) & ~is_normal);
  constexpr std::int32_t kInfinity = 0x7F800000, kNan = 0x7FC00000;
  if constexpr (kSpecial == SpecialCodes::ieee) {
    bits |= kInfinity & mask_of(magnitude >= f.infinity);
    const std::int32_t is_nan = mask_of(magnitude > f.infinity);
    bits = (kNan & is_nan) | (bits & ~is_nan);
  } else if constexpr (kSpecial == SpecialCodes::fn || kSpecial == SpecialCodes::fnuz) {
    const std::int32_t is_nan =
        mask_of(kSpecial == SpecialCodes::fn ? magnitude == f.nan : static_cast<std::int32_t>(code) == f.nan);
    bits = (kNan & is_nan) | (bits & ~is_nan);
  }
  const std::uint32_t sign = (code & f.sign) << f.sign_shift;
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) | sign);
}

template <SpecialCodes kSpecial>
void decode_as(const CodeBits& f, const std::uint8_t* __restrict codes, std::int64_t n, const float* scales,
               std::int64_t block, std::int64_t first, float factor, float* __restrict out) {
  if (block == 1) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = number_of<kSpecial>(f, codes[i]) * scales[i] * factor;
    return;
  }
  by_blocks(
      n, block,
      first, [=](std::int64_t begin, std::int64_t end, std::int64_t b) __attribute__((always_inline)) {
        const float scale = scales[b];
        for (std::int64_t i = begin; i < end; ++i) out[i] = number_of<kSpecial>(f, codes[i]) * scale * factor;
      });
}

inline void decode_codes(const FloatFormat& format, const std::uint8_t* codes, std::int64_t n,
                         const float* scales, std::int64_t block, std::int64_t first, float factor,
                         float* out) {
  const CodeBits f = code_bits(format);
  if (format.special == SpecialCodes::ieee)
    decode_as<SpecialCodes::ieee>(f, codes, n, scales, block, first, factor, out);
  else if (format.special == SpecialCodes::fn)
    decode_as<SpecialCodes::fn>(f, codes, n, scales, block, first, factor, out);
  else if (format.special == SpecialCodes::fnuz)
    decode_as<SpecialCodes::fnuz>(f, codes, n, scales, block, first, factor, out);
  else
    decode_as<SpecialCodes::none>(f, codes, n, scales, block, first, factor, out);
}

#define EJK_CODES_KERNELS .codes = {decode_codes}
