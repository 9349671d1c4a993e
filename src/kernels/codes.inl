// Codes of floats, a register of them at once: decoding by way of float16, encoding by addition of a power of two, and
// the errors of what was encoded. The including file may define CodeLanes for its instruction set, as
// below, and EJK_CODE_LANES.

#ifndef EJK_CODE_LANES
struct CodeLanes {
  static constexpr int kBytes = 16;  // of a register
  using Ints [[gnu::vector_size(kBytes)]] = std::int32_t;
  using Words [[gnu::vector_size(kBytes / 2)]] = std::int16_t;

  static Words words(const std::uint8_t* p) { return Words{p[0], p[1], p[2], p[3]}; }
  // Numbers of float16.
  static Ints widen(Words words) {
    // The factor corrects the exponent's bias, of subnormal numbers as well.
    using Floats [[gnu::vector_size(kBytes)]] = float;
    const Ints bits = Ints{words[0], words[1], words[2], words[3]} << 16,
               magnitude = (bits & 0x7FFFFFFF) >> 3;
    const Ints finite = __builtin_bit_cast(Ints, __builtin_bit_cast(Floats, magnitude) * 0x1p112f);
    return (magnitude >= 0x7C00 << 13 ? magnitude | 0x7F800000 : finite) | (bits & ~0x7FFFFFFF);
  }
  template <class Floats>
  static Floats multiply_add(Floats a, Floats b, Floats c) {
    return a * b + c;
  }
  // 16 codes to bytes.
  static void narrow_16(const Ints* codes, std::uint8_t* to) {
    for (int r = 0; r < 4; ++r)
      for (int i = 0; i < 4; ++i) to[4 * r + i] = static_cast<std::uint8_t>(codes[r][i]);
  }
};
#endif

constexpr std::int64_t kCodeLanes = CodeLanes::kBytes / 4;
constexpr std::int32_t kInfinityBits = 0x7F800000, kNanBits = 0x7FC00000;
using CodeInts [[gnu::vector_size(CodeLanes::kBytes)]] = std::int32_t;
using CodeFloats [[gnu::vector_size(CodeLanes::kBytes)]] = float;
using CodeWords [[gnu::vector_size(CodeLanes::kBytes / 2)]] = std::int16_t;

[[gnu::always_inline]] inline CodeInts ints_of(CodeFloats x) { return __builtin_bit_cast(CodeInts, x); }
[[gnu::always_inline]] inline CodeFloats floats_of(CodeInts x) { return __builtin_bit_cast(CodeFloats, x); }
[[gnu::always_inline]] inline CodeInts magnitude_of(CodeFloats x) { return ints_of(x) & 0x7FFFFFFF; }
[[gnu::always_inline]] inline std::int32_t bits_of(float x) { return __builtin_bit_cast(std::int32_t, x); }
[[gnu::always_inline]] inline float float_of(std::int32_t bits) { return __builtin_bit_cast(float, bits); }

// n ≤ kCodeLanes elements, and 0 after them; a known length where a register is full.
[[gnu::always_inline]] inline CodeFloats load_floats(const float* from, std::int64_t n) {
  CodeFloats v{};
  if (n == kCodeLanes)
    std::memcpy(&v, from, sizeof v);
  else
    std::memcpy(&v, from, static_cast<std::size_t>(n) * sizeof(float));
  return v;
}
[[gnu::always_inline]] inline void store_floats(CodeFloats v, std::int64_t n, float* to) {
  if (n == kCodeLanes)
    std::memcpy(to, &v, sizeof v);
  else
    std::memcpy(to, &v, static_cast<std::size_t>(n) * sizeof(float));
}
[[gnu::always_inline]] inline CodeWords load_codes(const std::uint8_t* from, std::int64_t n) {
  std::uint8_t some[kCodeLanes] = {};
  if (n != kCodeLanes)
    from = static_cast<std::uint8_t*>(std::memcpy(some, from, static_cast<std::size_t>(n)));
  return __builtin_bit_cast(CodeWords, CodeLanes::words(from));
}

// The blocks of elements, a register of them after another.
class BlockLanes {
 public:
  BlockLanes(std::int64_t block, std::int64_t first) : block_(block), left_(block - first) {}

  std::int64_t left() const { return left_; }
  // Goes to the next n elements, which are of one block, or kCodeLanes at most.
  [[gnu::always_inline]] void next(std::int64_t n) {
    begin_ = end_;
    before_ = left_;
    left_ -= n;
    if (block_ == 1) left_ = 1, end_ += n;
    while (left_ <= 0) left_ += block_, ++end_;
  }
  // The scales of these elements.
  [[gnu::always_inline]] CodeFloats of(const float* scales, std::int64_t n) const {
    if (before_ >= n) return scales[begin_] - CodeFloats{};
    if (block_ == 1) return load_floats(scales + begin_, n);
    float each[kCodeLanes] = {};
    for (std::int64_t i = 0, b = begin_, left = before_; i < n; ++i) {
      each[i] = scales[b];
      if (--left == 0) ++b, left = block_;
    }
    return load_floats(each, kCodeLanes);
  }

 private:
  std::int64_t block_, left_;  // elements of a block, and left of the next element's
  std::int64_t begin_ = 0, end_ = 0, before_ = 0;
};

// A format by the bits of its codes.
struct CodeBits {
  std::int32_t cut, rebias, largest, nan, magnitude, sign, sign_shift;
};

inline CodeBits code_bits(const FloatFormat& format) {
  const std::int32_t sign = 1 << (format.exponent_bits + format.mantissa_bits), all = sign - 1;
  const std::int32_t infinity = all >> format.mantissa_bits << format.mantissa_bits;
  const bool is_ieee = format.special == SpecialCodes::ieee, is_fn = format.special == SpecialCodes::fn;
  CodeBits bits{};
  bits.cut = 23 - format.mantissa_bits;
  bits.rebias = (127 - format.bias) << 23;
  bits.largest = is_ieee ? infinity - 1 : is_fn ? all - 1 : all;
  bits.nan = is_ieee || is_fn ? all : bits.largest;
  bits.magnitude = all;
  bits.sign = sign;
  bits.sign_shift = 31 - format.exponent_bits - format.mantissa_bits;
  return bits;
}

// The numbers of codes. Exponents and fractions are those of float16 numbers, 2^(bias - 15) of the codes', of
// subnormal numbers too. Not of fnuz, whose largest exponent float16 has for infinity.
struct CodeNumbers {
  std::int16_t magnitude, nans;  // magnitudes from which on codes are NaN
  int up, sign_up;               // shifts
  float unit;

  explicit CodeNumbers(const FloatFormat& format) {
    const CodeBits f = code_bits(format);
    const bool is_ieee = format.special == SpecialCodes::ieee, is_fn = format.special == SpecialCodes::fn;
    magnitude = static_cast<std::int16_t>(f.magnitude);
    nans = static_cast<std::int16_t>(f.largest + (is_ieee ? 2 : is_fn ? 1 : f.sign));
    up = 10 - format.mantissa_bits;
    sign_up = f.sign_shift - 16;
    unit = float_of((127 + 15 - format.bias) << 23);
  }
  [[gnu::always_inline]] CodeFloats of(CodeWords codes) const {
    const CodeWords size = codes & magnitude;
    const CodeWords number = size >= nans ? CodeWords{} + std::int16_t{0x7E00} : size << up;
    const CodeWords half = number | (codes << sign_up & static_cast<std::int16_t>(-0x8000));
    return __builtin_bit_cast(CodeFloats, CodeLanes::widen(half)) * unit;
  }
};

[[gnu::always_inline]] inline std::int64_t lanes_of(std::int64_t left) {
  return left < kCodeLanes ? left : kCodeLanes;
}

// Of fnuz, by tables, which are no symbols of the program here.
constexpr auto kE4M3Fnuz = detail::float8_values(kFloat8E4M3Fnuz),
               kE5M2Fnuz = detail::float8_values(kFloat8E5M2Fnuz);
inline void decode_fnuz(const FloatFormat& format, const std::uint8_t* codes, std::int64_t n,
                        const BlockScales& s, float factor, float* out) {
  const auto* const numbers =
      reinterpret_cast<const float*>(format.mantissa_bits == 3 ? &kE4M3Fnuz : &kE5M2Fnuz);
  const float* scales = s.scales;
  std::int64_t end = s.block - s.first;  // of a block
  for (std::int64_t i = 0; i < n; ++scales, end += s.block) {
    const float scale = *scales;
    for (const std::int64_t last = end < n ? end : n; i < last; ++i)
      out[i] = numbers[codes[i]] * scale * factor;
  }
}

inline void decode_codes(const FloatFormat& format, const std::uint8_t* codes, std::int64_t n,
                         const BlockScales& s, float factor, float* out) {
  if (format.special == SpecialCodes::fnuz) return decode_fnuz(format, codes, n, s, factor, out);
  const CodeNumbers numbers(format);
  const float* const scales = s.scales;
  BlockLanes blocks(s.block, s.first);
  for (std::int64_t i = 0, some = 0; i < n; i += some) {
    some = lanes_of(n - i);
    // Registers of one scale: products with few rows and caches wait for them, and take two thirds of the time.
    if (blocks.left() >= kCodeLanes)
      some = (blocks.left() < n - i ? blocks.left() : n - i) / kCodeLanes * kCodeLanes;
    if (some == 0) some = n - i;
    blocks.next(some);
    const CodeFloats scale = blocks.of(scales, some);
    std::int64_t j = i;
    for (; i + some - j >= kCodeLanes; j += kCodeLanes)
      store_floats(numbers.of(load_codes(codes + j, kCodeLanes)) * scale * factor, kCodeLanes, out + j);
    if (const std::int64_t rest = i + some - j; rest > 0)
      store_floats(numbers.of(load_codes(codes + j, rest)) * scale * factor, rest, out + j);
  }
}

// The bits of the largest magnitude, or of the largest finite one.
template <bool kFinite>
[[gnu::always_inline]] inline std::int32_t largest_of(const float* x, std::int64_t n) {
  std::int32_t most = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    std::int32_t magnitude = bits_of(x[i]) & 0x7FFFFFFF;
    if (kFinite) magnitude = magnitude < kInfinityBits ? magnitude : 0;
    most = magnitude > most ? magnitude : most;
  }
  return most;
}

template <bool kFinite>
void largest_in_blocks(const float* x, std::int64_t n, std::int64_t block, std::int64_t first,
                       std::uint32_t* out) {
  std::int64_t i = 0;
  // Whole blocks of NVFP4 and MX: a known length is a few registers.
  if (first == 0 && block == 16)
    for (; n - i >= 16; i += 16) *out++ = static_cast<std::uint32_t>(largest_of<kFinite>(x + i, 16));
  if (first == 0 && block == 32)
    for (; n - i >= 32; i += 32) *out++ = static_cast<std::uint32_t>(largest_of<kFinite>(x + i, 32));
  for (; i < n; first = 0) {
    const std::int64_t some = block - first < n - i ? block - first : n - i;
    *out++ = static_cast<std::uint32_t>(largest_of<kFinite>(x + i, some));
    i += some;
  }
}

inline void largest_of_blocks(const float* x, std::int64_t n, std::int64_t block, std::int64_t first,
                              bool finite, std::uint32_t* out) {
  finite ? largest_in_blocks<true>(x, n, block, first, out)
         : largest_in_blocks<false>(x, n, block, first, out);
}

// The code of a magnitude, at most that of the largest number, and its number in `rounded`: it is added to a
// power of two whose last place is the unit of its exponent, which is subtracted again.
template <Ties kTies>
[[gnu::always_inline]] inline CodeInts round_to_code(const CodeBits& f, CodeInts bits, CodeFloats& rounded) {
  const std::int32_t least_exponent = f.rebias + (1 << 23);
  CodeInts exponent = bits & kInfinityBits;
  exponent = exponent > least_exponent ? exponent : CodeInts{} + least_exponent;
  const CodeInts lift = exponent + (f.cut << 23);
  CodeInts lifted = ints_of(floats_of(bits) + floats_of(lift));
  rounded = floats_of(lifted) - floats_of(lift);
  if constexpr (kTies != Ties::even) {
    const CodeFloats left = floats_of(bits) - rounded, half = floats_of(exponent + ((f.cut - 24) << 23));
    if constexpr (kTies == Ties::away) lifted -= left == half;
    if constexpr (kTies == Ties::down) lifted += left == -half;
    rounded = floats_of(lifted) - floats_of(lift);
  }
  return lifted - lift + ((exponent - least_exponent) >> f.cut);
}

inline std::int64_t sum_of(CodeInts counter) {
  std::int64_t sum = 0;
  for (int i = 0; i < kCodeLanes; ++i) sum += counter[i];
  return sum;
}

constexpr std::int64_t kNarrowed = 16;  // elements whose codes become bytes at once
constexpr std::int64_t kPrefetched =
    2048;  // elements on, of the next call: an eighth of the time of a float32 array in memory

template <Ties kTies>
void encode_as(const FloatFormat& format, const float* x, std::int64_t n, const EncodeScales& s,
               std::uint8_t* codes, float* decoded, EncodeCounts& counts) {
  const CodeBits f = code_bits(format);
  const std::int32_t sign_of_nan = format.special == SpecialCodes::none ? 0 : f.sign;
  // The largest number, and the last magnitude that is rounded to it.
  const std::int32_t largest = f.rebias + (f.largest << f.cut);
  const std::int32_t last = largest + (1 << (f.cut - 1)) -
                            (kTies == Ties::away || (kTies == Ties::even && f.largest % 2 == 1) ? 1 : 0);
  BlockLanes blocks(s.block, s.first);
  const float *const encode = s.encode, *const decode = s.decode;
  const bool divides = s.use == ScaleUse::divides;
  const float factor = s.factor;
  CodeInts overflows{}, flushed{}, nans{};
  for (std::int64_t i = 0; i < n; i += kNarrowed) {
    __builtin_prefetch(x + i + kPrefetched);
    CodeInts wide[kNarrowed / kCodeLanes] = {};
    const std::int64_t end = n - i < kNarrowed ? n - i : kNarrowed;
    for (std::int64_t r = 0; r < end; r += kCodeLanes) {
      const std::int64_t some = end - r < kCodeLanes ? end - r : kCodeLanes;
      const CodeFloats value = load_floats(x + i + r, some);
      blocks.next(some);
      const CodeFloats scale = blocks.of(encode, some);
      const CodeInts size = magnitude_of(divides ? value / scale : value * scale);
      const CodeInts is_nan = size > kInfinityBits, was_nan = magnitude_of(value) > kInfinityBits;
      CodeFloats number;
      const CodeInts code = round_to_code<kTies>(f, size < largest ? size : CodeInts{} + largest, number);
      overflows -= (size > last) & ~is_nan;
      flushed -= (code == 0) & (value != 0);
      nans -= was_nan;
      const CodeInts sign = ints_of(value) >> f.sign_shift & f.sign;
      // NaN has the sign that x had as NaN, and none of a scale's: that of a quotient depends on the instruction.
      wide[r / kCodeLanes] = is_nan ? f.nan | (sign & sign_of_nan & was_nan) : code | sign;
      number = floats_of(ints_of(number) | (ints_of(value) & static_cast<std::int32_t>(0x80000000)));
      store_floats(number * blocks.of(decode, some) * factor, some, decoded + i + r);
    }
    std::uint8_t narrowed[kNarrowed];
    CodeLanes::narrow_16(wide, end == kNarrowed ? codes + i : narrowed);
    if (end < kNarrowed) std::memcpy(codes + i, narrowed, static_cast<std::size_t>(end));
  }
  counts.overflows += sum_of(overflows), counts.flushed += sum_of(flushed), counts.nans += sum_of(nans);
}

inline void encode_codes(const FloatFormat& format, Ties ties, const float* x, std::int64_t n,
                         const EncodeScales& scales, std::uint8_t* codes, float* decoded,
                         EncodeCounts& counts) {
  if (ties == Ties::even) encode_as<Ties::even>(format, x, n, scales, codes, decoded, counts);
  if (ties == Ties::away) encode_as<Ties::away>(format, x, n, scales, codes, decoded, counts);
  if (ties == Ties::down) encode_as<Ties::down>(format, x, n, scales, codes, decoded, counts);
}

inline double sum_of(CodeFloats lanes) {
  double sum = 0;
  for (int i = 0; i < kCodeLanes; ++i) sum += static_cast<double>(lanes[i]);
  return sum;
}

// Errors of elements whose squares, or those of their errors, float32 lacks.
inline void add_squares(const float* x, const float* decoded, std::int64_t n, CodeErrors& errors) {
  for (std::int64_t i = 0; i < n; ++i) {
    const double value = x[i], error = value - static_cast<double>(decoded[i]);
    if (!__builtin_isfinite(value) || __builtin_isnan(error)) continue;
    errors.signal += value * value;
    errors.noise += error * error;
  }
}

// Of a chunk, in float32.
inline void add_errors(const float* x, const float* decoded, std::int64_t n, std::int64_t at,
                       CodeErrors& errors) {
  CodeFloats signal{}, noise{};
  CodeInts lost{}, most = CodeInts{} - 1;  // the bits of the largest error, -1 if there is none
  for (std::int64_t i = 0; i < n; i += kCodeLanes) {
    const std::int64_t some = lanes_of(n - i);
    const CodeFloats value = load_floats(x + i, some), back = load_floats(decoded + i, some);
    const CodeInts is_finite = magnitude_of(value)<kInfinityBits, is_nan = magnitude_of(back)> kInfinityBits;
    const CodeInts counts = is_finite & ~is_nan, size = magnitude_of(value - back) & counts;
    const CodeFloats counted = floats_of(ints_of(value) & counts);
    signal = CodeLanes::multiply_add(counted, counted, signal);
    noise = CodeLanes::multiply_add(floats_of(size), floats_of(size), noise);
    most = (size | ~counts) > most ? size : most;
    lost -= is_finite & is_nan;
  }
  errors.lost += sum_of(lost);
  std::int32_t largest = -1;
  for (int i = 0; i < kCodeLanes; ++i) largest = most[i] > largest ? most[i] : largest;
  const float error = float_of(largest);
  const double signals = sum_of(signal);
  if (signals >= 0x1p-110 && signals <= 0x1p120 && (largest <= 0 || (error >= 0x1p-55f && error <= 0x1p55f)))
    errors.signal += signals, errors.noise += sum_of(noise);
  else
    add_squares(x, decoded, n, errors);
  if (largest < 0 || error <= static_cast<float>(errors.largest)) return;
  for (std::int64_t i = 0; i < n;
       ++i) {  // not found if it is that of the zeros after n elements that do not count
    if (!__builtin_isfinite(x[i]) || __builtin_fabsf(x[i] - decoded[i]) != error) continue;
    errors.largest = __builtin_fabs(double{x[i]} - double{decoded[i]});
    errors.largest_at = at + i;
    return;
  }
}

inline void errors_of(const float* x, const float* decoded, std::int64_t n, std::int64_t at,
                      CodeErrors& errors) {
  constexpr std::int64_t kChunk = 1024;
  for (std::int64_t i = 0; i < n; i += kChunk)
    add_errors(x + i, decoded + i, n - i < kChunk ? n - i : kChunk, at + i, errors);
}

template <bool kIsFloat16>
void widen_words(const std::uint16_t* from, std::int64_t n, float* __restrict out) {
  for (std::int64_t i = 0; i < n; ++i) {
    auto bits = static_cast<std::int32_t>(std::uint32_t{from[i]} << 16);
    if constexpr (kIsFloat16) {
      // The factor corrects the exponent's bias, of subnormal numbers as well. A mask: GCC does not vectorize a choice
      // of a product.
      const std::int32_t magnitude = (bits & 0x7FFFFFFF) >> 3,
                         finite = bits_of(float_of(magnitude) * 0x1p112f);
      const std::int32_t is_special = -static_cast<std::int32_t>(magnitude >= 0x7C00 << 13);
      bits = (bits & static_cast<std::int32_t>(0x80000000)) | ((magnitude | kInfinityBits) & is_special) |
             (finite & ~is_special);
    }
    out[i] = float_of(bits);
  }
}
inline void widen_floats(DType dtype, const void* from, std::int64_t n, float* out) {
  const auto* const words = static_cast<const std::uint16_t*>(from);
  dtype == DType::float16 ? widen_words<true>(words, n, out) : widen_words<false>(words, n, out);
}

#define EJK_CODES_KERNELS .codes = {decode_codes, largest_of_blocks, encode_codes, errors_of, widen_floats}
