// Codes of floats, a register of them at once, which share a scale: the last one of a block may be partly
// filled. The including file may define CodeLanes for its instruction set, as below, and EJK_CODE_LANES;
// EJK_LOOKS_UP_CODES if that has look_up(), EJK_CONVERTS_CODES for convert_16().

#ifndef EJK_CODE_LANES
struct CodeLanes {
  static constexpr int kBytes = 16;  // of a register
  using Bits [[gnu::vector_size(kBytes)]] = std::int32_t;
  using Doubles [[gnu::vector_size(kBytes)]] = double;

  static Bits widen(const std::uint8_t* p) { return Bits{p[0], p[1], p[2], p[3]}; }
  static void narrow(Bits codes, std::uint8_t* p) {
    for (int i = 0; i < 4; ++i) p[i] = static_cast<std::uint8_t>(codes[i]);
  }
  static Doubles to_double(const float* p) { return Doubles{p[0], p[1]}; }
  static std::int32_t largest(Bits v) {
    std::int32_t most = v[0];
    for (int i = 1; i < 4; ++i) most = v[i] > most ? v[i] : most;
    return most;
  }
};
#endif

constexpr std::int64_t kCodeLanes = CodeLanes::kBytes / 4;
constexpr std::int32_t kInfinityBits = 0x7F800000;
using CodeInts [[gnu::vector_size(CodeLanes::kBytes)]] = std::int32_t;
using CodeFloats [[gnu::vector_size(CodeLanes::kBytes)]] = float;
using CodeDoubles [[gnu::vector_size(CodeLanes::kBytes)]] = double;
using CodeLongs [[gnu::vector_size(CodeLanes::kBytes)]] = std::int64_t;

[[gnu::always_inline]] inline CodeInts ints_of(CodeFloats x) { return __builtin_bit_cast(CodeInts, x); }
[[gnu::always_inline]] inline CodeLongs longs_of(CodeDoubles x) { return __builtin_bit_cast(CodeLongs, x); }
[[gnu::always_inline]] inline CodeFloats floats_of(CodeInts x) { return __builtin_bit_cast(CodeFloats, x); }
[[gnu::always_inline]] inline CodeLanes::Bits bits_of(CodeInts x) {
  return __builtin_bit_cast(CodeLanes::Bits, x);
}
[[gnu::always_inline]] inline CodeInts magnitude_of(CodeFloats x) { return ints_of(x) & 0x7FFFFFFF; }

// Mostly: sums stay in registers then.
[[gnu::always_inline]] inline bool is_full(std::int64_t n) {
  return __builtin_expect_with_probability(n == kCodeLanes, 1, 0.999);
}

// n ≤ kCodeLanes elements, and 0 after them.
[[gnu::always_inline]] inline CodeFloats load_floats(const float* from, std::int64_t n) {
  CodeFloats v{};
  if (is_full(n))
    std::memcpy(&v, from, sizeof v);
  else
    std::memcpy(&v, from, static_cast<std::size_t>(n) * sizeof(float));
  return v;
}
[[gnu::always_inline]] inline CodeInts load_codes(const std::uint8_t* from, std::int64_t n) {
  std::uint8_t some[kCodeLanes] = {};
  if (!is_full(n)) from = static_cast<std::uint8_t*>(std::memcpy(some, from, static_cast<std::size_t>(n)));
  return __builtin_bit_cast(CodeInts, CodeLanes::widen(from));
}

// Elements of blocks, of the first from element `first` on. several(i, n, scale) processes the first of n
// elements of one block and returns how many; run(i, n, scale) a register of the rest of them.
template <class Several, class Run>
[[gnu::always_inline]] inline void for_each_register(std::int64_t n, const float* scales, std::int64_t block,
                                                     std::int64_t first, const Several& several,
                                                     const Run& run) {
  if (block == 1) {
    std::int64_t i = 0;
    for (; n - i >= kCodeLanes; i += kCodeLanes) run(i, kCodeLanes, load_floats(scales + i, kCodeLanes));
    if (i < n) run(i, n - i, load_floats(scales + i, n - i));
    return;
  }
  for (std::int64_t i = 0; i < n; first = 0, ++scales) {
    const std::int64_t end = block - first < n - i ? i + block - first : n;
    const CodeFloats scale = CodeFloats{} + *scales;
    i += several(i, end - i, *scales);
    for (; end - i >= kCodeLanes; i += kCodeLanes) run(i, kCodeLanes, scale);
    if (i < end) run(i, end - i, scale);
    i = end;
  }
}
inline constexpr auto kNoneOfSeveral = [](std::int64_t, std::int64_t, float) { return std::int64_t{0}; };

struct CodeBits {
  std::int32_t cut, rebias, lift, least_normal, largest, nan, infinity, magnitude, sign, sign_shift;
};

inline CodeBits code_bits(const FloatFormat& format) {
  const std::int32_t sign = 1 << (format.exponent_bits + format.mantissa_bits), all = sign - 1;
  const bool is_fnuz = format.special == SpecialCodes::fnuz, is_none = format.special == SpecialCodes::none;
  const bool is_ieee = format.special == SpecialCodes::ieee;
  CodeBits bits{};
  bits.cut = 23 - format.mantissa_bits;
  bits.rebias = (127 - format.bias) << 23;
  bits.lift = (128 - format.bias) << 23;
  bits.least_normal = 1 << format.mantissa_bits;
  bits.infinity = all >> format.mantissa_bits << format.mantissa_bits;
  bits.largest = is_fnuz || is_none ? all : is_ieee ? bits.infinity - 1 : all - 1;
  bits.nan = is_fnuz ? sign : is_none ? bits.largest : all;
  bits.magnitude = all;
  bits.sign = sign;
  bits.sign_shift = 31 - format.exponent_bits - format.mantissa_bits;
  return bits;
}

// The floats of codes. Subnormal numbers: subtraction of the float that their fraction was added to.
template <SpecialCodes kSpecial>
[[gnu::always_inline]] inline CodeFloats numbers_of(const CodeBits& f, CodeInts codes) {
  const CodeInts magnitude = codes & f.magnitude, fraction = magnitude << f.cut;
  const CodeFloats lifted = floats_of(fraction | f.lift) - __builtin_bit_cast(float, f.lift);
  CodeInts bits = magnitude >= f.least_normal ? fraction + f.rebias : ints_of(lifted);
  const CodeInts infinity = CodeInts{} + kInfinityBits, nan = CodeInts{} + 0x7FC00000;
  if constexpr (kSpecial == SpecialCodes::ieee) {
    bits = magnitude == f.infinity ? infinity : bits;
    bits = magnitude > f.infinity ? nan : bits;
  } else if constexpr (kSpecial == SpecialCodes::fn) {
    bits = magnitude == f.nan ? nan : bits;
  } else if constexpr (kSpecial == SpecialCodes::fnuz) {
    bits = codes == f.nan ? nan : bits;
  }
  return floats_of(bits | (codes & f.sign) << f.sign_shift);
}

// Calls run(numbers), where numbers(codes) are the floats of codes.
template <class F>
[[gnu::always_inline]] inline void with_numbers(const FloatFormat& format, const F& run) {
  const CodeBits f = code_bits(format);
  if (format.special == SpecialCodes::ieee)
    return run([&](CodeInts codes) { return numbers_of<SpecialCodes::ieee>(f, codes); });
  if (format.special == SpecialCodes::fn)
    return run([&](CodeInts codes) { return numbers_of<SpecialCodes::fn>(f, codes); });
  if (format.special == SpecialCodes::fnuz)
    return run([&](CodeInts codes) { return numbers_of<SpecialCodes::fnuz>(f, codes); });
#ifdef EJK_LOOKS_UP_CODES
  if (f.sign == 8) {
    CodeInts all{};
    for (int i = 0; i < kCodeLanes; ++i) all[i] = i;
    const CodeFloats numbers = numbers_of<SpecialCodes::none>(f, all);
    return run([&](CodeInts codes) { return CodeLanes::look_up(numbers, bits_of(codes)); });
  }
#endif
  run([&](CodeInts codes) { return numbers_of<SpecialCodes::none>(f, codes); });
}

// Codes of blocks by numbers(codes); several() as in for_each_register().
template <class Numbers, class Several>
[[gnu::always_inline]] inline void decode_blocks(const Numbers& numbers, const Several& several,
                                                 const std::uint8_t* codes, std::int64_t n,
                                                 const float* scales, std::int64_t block, std::int64_t first,
                                                 float factor, float* out) {
  for_each_register(n, scales, block, first, several,
                    [&](std::int64_t i, std::int64_t count, CodeFloats scale) {
                      const CodeFloats decoded = numbers(load_codes(codes + i, count)) * scale * factor;
                      std::memcpy(out + i, &decoded, static_cast<std::size_t>(count) * sizeof(float));
                    });
}

#ifdef EJK_CONVERTS_CODES
inline bool is_same(const FloatFormat& a, const FloatFormat& b) {
  return a.exponent_bits == b.exponent_bits && a.mantissa_bits == b.mantissa_bits && a.bias == b.bias &&
         a.special == b.special;
}

// Codes of e4m3 or e5m2, sixteen at a time.
template <bool kE4M3>
void decode_converted(const std::uint8_t* codes, std::int64_t n, const float* scales, std::int64_t block,
                      std::int64_t first, float factor, float* out) {
  constexpr const FloatFormat& kFormat = kE4M3 ? kFloat8E4M3Fn : kFloat8E5M2;
  const CodeBits f = code_bits(kFormat);
  const auto convert = [&](std::int64_t i, std::int64_t count, float scale) {
    constexpr std::int64_t kAtOnce = 16;
    // Exact, and so is the scaled number, unless it overflows.
    const float lifted = kE4M3 ? scale * 256 : scale;
    const std::int64_t begin = i;
    if (__builtin_isinf(lifted) && !__builtin_isinf(scale)) return i - begin;
    for (const std::int64_t end = i + count; end - i >= kAtOnce; i += kAtOnce) {
      CodeFloats low, high;
      CodeLanes::convert_16<kE4M3>(codes + i, low, high);
      low = low * lifted * factor, high = high * lifted * factor;
      std::memcpy(out + i, &low, sizeof low);
      std::memcpy(out + i + kCodeLanes, &high, sizeof high);
    }
    return i - begin;
  };
  decode_blocks([&](CodeInts some) { return numbers_of<kFormat.special>(f, some); }, convert, codes, n,
                scales, block, first, factor, out);
}
#endif

inline void decode_codes(const FloatFormat& format, const std::uint8_t* codes, std::int64_t n,
                         const float* scales, std::int64_t block, std::int64_t first, float factor,
                         float* out) {
#ifdef EJK_CONVERTS_CODES
  if (is_same(format, kFloat8E4M3Fn))
    return decode_converted<true>(codes, n, scales, block, first, factor, out);
  if (is_same(format, kFloat8E5M2))
    return decode_converted<false>(codes, n, scales, block, first, factor, out);
#endif
  with_numbers(format, [&](const auto& numbers) {
    decode_blocks(numbers, kNoneOfSeveral, codes, n, scales, block, first, factor, out);
  });
}

// codes[2 i] and codes[2 i + 1] = the halves of bytes[i].
inline void unpack_halves(const std::uint8_t* bytes, std::int64_t n, bool low_first,
                          std::uint8_t* __restrict codes) {
  const auto unpack = [&](int even, int odd) {
    for (std::int64_t i = 0; i < n; ++i) {
      codes[2 * i] = static_cast<std::uint8_t>(bytes[i] >> even & 15);
      codes[2 * i + 1] = static_cast<std::uint8_t>(bytes[i] >> odd & 15);
    }
  };
  low_first ? unpack(0, 4) : unpack(4, 0);
}

inline void largest_of_blocks(const float* x, std::int64_t n, std::int64_t block, std::int64_t first,
                              bool finite, std::uint32_t* out) {
  const std::int32_t limit = finite ? kInfinityBits : INT32_MAX;
  for (std::int64_t i = 0; i < n; first = 0) {
    const std::int64_t end = block - first < n - i ? i + block - first : n;
    CodeInts most{};
    for (; i < end; i += kCodeLanes) {
      CodeInts magnitude = magnitude_of(load_floats(x + i, end - i < kCodeLanes ? end - i : kCodeLanes));
      magnitude = magnitude < limit ? magnitude : CodeInts{};
      most = magnitude > most ? magnitude : most;
    }
    i = end;
    *out++ = static_cast<std::uint32_t>(CodeLanes::largest(bits_of(most)));
  }
}

// Lanes of the counts.
struct CountsOfLanes {
  CodeInts overflows{}, flushed{}, nans{};
};

template <Ties kTies>
[[gnu::always_inline]] inline CodeInts encode(const CodeBits& f, bool has_nan, CodeFloats x,
                                              CodeFloats scaled, CountsOfLanes& counts) {
  const std::int32_t half = 1 << (f.cut - 1), lift_bits = f.rebias + ((f.cut + 1) << 23);
  const auto lift = __builtin_bit_cast(float, lift_bits);
  const auto half_unit = __builtin_bit_cast(float, f.rebias + ((f.cut - 23) << 23));
  const CodeInts magnitude = magnitude_of(scaled), original = magnitude_of(x);
  CodeInts sum = magnitude - f.rebias + half;
  if constexpr (kTies == Ties::even) sum += (magnitude >> f.cut & 1) - 1;
  if constexpr (kTies == Ties::down) sum -= 1;
  // Subnormal elements: an addition whose last place is theirs rounds to nearest even.
  const CodeFloats value = floats_of(magnitude), lifted = value + lift;
  CodeInts low = ints_of(lifted) - lift_bits;
  if constexpr (kTies == Ties::away) low -= value - (lifted - lift) == half_unit;
  if constexpr (kTies == Ties::down) low += value - (lifted - lift) == -half_unit;
  CodeInts code = magnitude >= f.rebias + (1 << 23) ? sum >> f.cut : low;
  const CodeInts is_nan = magnitude > kInfinityBits, is_large = code > f.largest;
  code = is_large ? CodeInts{} + f.largest : code;
  counts.overflows -= is_large & ~is_nan;
  counts.flushed -= (code == 0) & (original != 0);
  const CodeInts was_nan = original > kInfinityBits;
  counts.nans -= was_nan;
  // NaN has the sign that x had as NaN, and none of a scale's: that of a product depends on the instruction.
  const CodeInts sign = ints_of(x) >> f.sign_shift & f.sign;
  const CodeInts nan = has_nan ? (sign & was_nan) | f.nan : CodeInts{} + f.nan;
  return is_nan ? nan : code | sign;
}

inline std::int64_t sum_of(CodeInts lanes) {
  std::int64_t sum = 0;
  for (int i = 0; i < kCodeLanes; ++i) sum += lanes[i];
  return sum;
}

template <Ties kTies>
void encode_as(const FloatFormat& format, const float* x, std::int64_t n, const float* scales,
               std::int64_t block, std::int64_t first, ScaleUse use, std::uint8_t* codes,
               CodeCounts& counts) {
  const CodeBits f = code_bits(format);
  const bool has_nan = format.special != SpecialCodes::none, divides = use == ScaleUse::divides;
  CountsOfLanes lanes;
  for_each_register(n, scales, block, first, kNoneOfSeveral,
                    [&](std::int64_t i, std::int64_t count, CodeFloats scale) {
                      const CodeFloats value = load_floats(x + i, count);
                      const CodeInts code =
                          encode<kTies>(f, has_nan, value, divides ? value / scale : value * scale, lanes);
                      if (count == kCodeLanes) return CodeLanes::narrow(bits_of(code), codes + i);
                      std::uint8_t some[kCodeLanes];
                      CodeLanes::narrow(bits_of(code), some);
                      std::memcpy(codes + i, some, static_cast<std::size_t>(count));
                    });
  counts.overflows += sum_of(lanes.overflows);
  counts.flushed += sum_of(lanes.flushed);
  counts.nans += sum_of(lanes.nans);
}

inline void encode_codes(const FloatFormat& format, Ties ties, const float* x, std::int64_t n,
                         const float* scales, std::int64_t block, std::int64_t first, ScaleUse use,
                         std::uint8_t* codes, CodeCounts& counts) {
  if (ties == Ties::even) encode_as<Ties::even>(format, x, n, scales, block, first, use, codes, counts);
  if (ties == Ties::away) encode_as<Ties::away>(format, x, n, scales, block, first, use, codes, counts);
  if (ties == Ties::down) encode_as<Ties::down>(format, x, n, scales, block, first, use, codes, counts);
}

// Elements whose sums stay in registers. Which of them has the largest error is looked for at the end.
constexpr std::int64_t kErrorChunk = 16 * kCodeLanes;

// Whether n floats of whole registers are finite.
[[gnu::always_inline]] inline bool are_finite(const float* x, std::int64_t n) {
  CodeInts most{};
  for (std::int64_t i = 0; i < n; i += kCodeLanes) {
    const CodeInts magnitude = magnitude_of(load_floats(x + i, kCodeLanes));
    most = magnitude > most ? magnitude : most;
  }
  return CodeLanes::largest(bits_of(most)) < kInfinityBits;
}

// The sums of elements of whole registers, and the largest error, in lanes.
struct ErrorLanes {
  CodeDoubles signal{}, noise{}, largest{};

  [[gnu::always_inline]] void add(const float* x, const float* decoded) {
    const auto half = [](const float* floats) {
      return __builtin_bit_cast(CodeDoubles, CodeLanes::to_double(floats));
    };
    const CodeDoubles value = half(x), error = value - half(decoded);
    const CodeDoubles size = __builtin_bit_cast(CodeDoubles, longs_of(error) & INT64_MAX);
    signal += value * value;
    noise += error * error;
    largest = size > largest ? size : largest;
  }
};

inline double error_size(const float* x, const float* decoded, std::int64_t i) {
  return __builtin_fabs(static_cast<double>(x[i]) - static_cast<double>(decoded[i]));
}

// Element by element, not finite ones among them.
inline void add_errors(const float* x, const float* decoded, std::int64_t begin, std::int64_t end,
                       CodeErrors& errors) {
  for (std::int64_t i = begin; i < end; ++i) {
    if (!__builtin_isfinite(x[i])) continue;
    if (__builtin_isnan(decoded[i])) {
      ++errors.lost;
      continue;
    }
    const double value = x[i], size = error_size(x, decoded, i);
    errors.signal += value * value;
    errors.noise += size * size;
    if (size > errors.largest) errors.largest = size, errors.largest_at = i;
  }
}

inline CodeErrors errors_of_decoded(const float* x, const float* decoded, std::int64_t n) {
  constexpr std::int64_t kHalf = kCodeLanes / 2;
  CodeErrors errors;
  for (std::int64_t begin = 0; begin < n; begin += kErrorChunk) {
    const std::int64_t end = n - begin < kErrorChunk ? n : begin + kErrorChunk,
                       whole = begin + (end - begin) / kCodeLanes * kCodeLanes;
    std::int64_t i = begin;
    if (whole > begin && are_finite(x + begin, whole - begin) && are_finite(decoded + begin, whole - begin)) {
      ErrorLanes low, high;
      for (; i < whole; i += kCodeLanes) {
        low.add(x + i, decoded + i);
        high.add(x + i + kHalf, decoded + i + kHalf);
      }
      for (int lane = 0; lane < kHalf; ++lane) {
        errors.signal += low.signal[lane] + high.signal[lane];
        errors.noise += low.noise[lane] + high.noise[lane];
        const double largest =
            low.largest[lane] > high.largest[lane] ? low.largest[lane] : high.largest[lane];
        if (largest > errors.largest) errors.largest = largest, errors.largest_at = begin;
      }
    }
    add_errors(x, decoded, i, end, errors);
  }
  while (errors.largest >= 0 && error_size(x, decoded, errors.largest_at) != errors.largest)
    ++errors.largest_at;
  return errors;
}

#define EJK_CODES_KERNELS \
  .codes = {decode_codes, unpack_halves, largest_of_blocks, encode_codes, errors_of_decoded}
