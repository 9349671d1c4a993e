// Codes of floats, a register of them at once, which share a scale: the last one of a block may be partly
// filled. The including file may define CodeLanes for its instruction set, as below, and EJK_CODE_LANES;
// EJK_LOOKS_UP_CODES if that has look_up(), EJK_CONVERTS_CODES for convert().

#ifndef EJK_CODE_LANES
struct CodeLanes {
  static constexpr int kBytes = 16;  // of a register
  using Bits [[gnu::vector_size(kBytes)]] = std::int32_t;

  static Bits widen(const std::uint8_t* p) { return Bits{p[0], p[1], p[2], p[3]}; }
  static std::int32_t largest(Bits v) {
    std::int32_t most = v[0];
    for (int i = 1; i < 4; ++i) most = v[i] > most ? v[i] : most;
    return most;
  }
  // Lane i: the largest lane of v[i].
  static Bits largest_of_each(const Bits* v) {
    return Bits{largest(v[0]), largest(v[1]), largest(v[2]), largest(v[3])};
  }
  using Counter = Bits;
  static void count_greater(Bits a, Bits b, Counter& counter) { counter -= a > b; }
  // Lane i has half i of the bytes in its lowest bits.
  template <bool kHighFirst>
  static Bits spread(const void* from) {
    const auto* p = static_cast<const std::uint8_t*>(from);
    return kHighFirst ? Bits{p[0] >> 4, p[0], p[1] >> 4, p[1]} : Bits{p[0], p[0] >> 4, p[1], p[1] >> 4};
  }
  template <class Floats>
  static Floats multiply_add(Floats a, Floats b, Floats c) {
    return a * b + c;
  }
  static std::int64_t sum_of(Counter counter) {
    return std::int64_t{counter[0]} + counter[1] + counter[2] + counter[3];
  }
  static void narrow_16(const Bits* codes, std::uint8_t* to) {
    for (int r = 0; r < 4; ++r)
      for (int i = 0; i < 4; ++i) to[4 * r + i] = static_cast<std::uint8_t>(codes[r][i]);
  }
};
#endif

constexpr std::int64_t kCodeLanes = CodeLanes::kBytes / 4;
constexpr std::int32_t kInfinityBits = 0x7F800000;
using CodeInts [[gnu::vector_size(CodeLanes::kBytes)]] = std::int32_t;
using CodeFloats [[gnu::vector_size(CodeLanes::kBytes)]] = float;

[[gnu::always_inline]] inline CodeInts ints_of(CodeFloats x) { return __builtin_bit_cast(CodeInts, x); }
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

// In each lane, −0 as well: −0 + 0 is 0.
[[gnu::always_inline]] inline CodeFloats broadcast(float x) { return x - CodeFloats{}; }

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

// The floats of E8M0 codes as bits, of one or of a register.
template <class Ints>
[[gnu::always_inline]] inline Ints e8m0_bits(Ints codes) {
  const Ints least = Ints{} + 0x00400000, nan = Ints{} + 0x7FC00000;
  const Ints bits = codes == 0 ? least : codes << 23;
  return codes == 255 ? nan : bits;
}

// Calls run(numbers), where numbers(codes) are the floats of codes.
template <class F>
[[gnu::always_inline]] inline void with_numbers(const FloatFormat& format, const F& run) {
  const CodeBits f = code_bits(format);
  if (format.special == SpecialCodes::ieee)
    return run([f](CodeInts codes) { return numbers_of<SpecialCodes::ieee>(f, codes); });
  if (format.special == SpecialCodes::fn)
    return run([f](CodeInts codes) { return numbers_of<SpecialCodes::fn>(f, codes); });
  if (format.special == SpecialCodes::fnuz)
    return run([f](CodeInts codes) { return numbers_of<SpecialCodes::fnuz>(f, codes); });
  if (format.special == SpecialCodes::fnu)
    return run([](CodeInts codes) { return floats_of(e8m0_bits(codes)); });
  run([f](CodeInts codes) { return numbers_of<SpecialCodes::none>(f, codes); });
}

#ifdef EJK_LOOKS_UP_CODES
// The numbers of 4-bit codes; of the first 8 where a register has no more.
struct CodeTable {
  CodeFloats numbers;
  explicit CodeTable(CodeFloats all) : numbers(all) {}
  explicit CodeTable(const CodeBits& f) {
    CodeInts all{};
    for (int i = 0; i < kCodeLanes; ++i) all[i] = i;
    numbers = numbers_of<SpecialCodes::none>(f, all);
  }
  CodeFloats operator()(CodeInts codes) const { return CodeLanes::look_up(numbers, bits_of(codes)); }
};
#else
// The numbers of 4-bit codes.
struct CodeTable {
  CodeBits f;
  CodeFloats operator()(CodeInts codes) const { return numbers_of<SpecialCodes::none>(f, codes); }
};
#endif

// Calls run(scaled), where scaled(numbers, scale) = numbers · scale · factor; nothing is multiplied by 1.
template <class F>
[[gnu::always_inline]] inline void with_factor(float factor, const F& run) {
  if (factor == 1) return run([](CodeFloats numbers, auto scale) { return numbers * scale; });
  run([=](CodeFloats numbers, auto scale) { return numbers * scale * factor; });
}

// Calls run(i, n, b) for elements [i, i + n) of a row, which are in its block b.
template <class F>
[[gnu::always_inline]] inline void for_blocks(const CodeRows& c, const F& run) {
  std::int64_t b = 0;
  // Whole blocks of NVFP4 and MX need no loops over their elements.
  if (c.first == 0 && c.block == 16)
    for (; 16 * (b + 1) <= c.n; ++b) run(16 * b, 16, b);
  if (c.first == 0 && c.block == 32)
    for (; 32 * (b + 1) <= c.n; ++b) run(32 * b, 32, b);
  // No bound depends on how far the block before reached.
  for (std::int64_t begin = b * c.block - c.first; begin < c.n; begin += c.block, ++b) {
    const std::int64_t i = begin < 0 ? 0 : begin, end = begin + c.block < c.n ? begin + c.block : c.n;
    run(i, end - i, b);
  }
}

// Calls run(bytes, scales, out) for each row. Memory is prefetched to the second-level cache, and the next
// rows from there: more rows would be driven out of the first-level cache by the decoded elements.
template <class F>
[[gnu::always_inline]] inline void for_rows(const CodeRows& c, float* out, const F& run) {
  constexpr std::int64_t kNear = 4;
  const std::int64_t bytes = c.is_packed() ? (c.skipped + c.n + 1) / 2 : c.n;
  for (std::int64_t r = 0; r < c.rows; ++r, out += c.n) {
    const std::uint8_t* const row = c.bytes + r * c.stride;
    if (c.ahead != 0)
      for (std::int64_t byte = 0; byte < bytes; byte += 64) {
        __builtin_prefetch(address_ahead(row, c.ahead + byte), 0, 2);
        if (r + kNear < c.rows) __builtin_prefetch(address_ahead(row, kNear * c.stride + byte));
      }
    run(row, c.scales + r * c.scales_stride, out);
  }
}

// Decodes rows whose codes are load(row, i, n), n ≤ kCodeLanes from element i on.
template <class Numbers, class Scaled, class Load>
[[gnu::always_inline]] inline void decode_rows(const CodeRows& rows, const Numbers& of_codes,
                                               const Scaled& scaled, const Load& load_any, float* out) {
  // Local copies: stores of decoded elements may alias anything else.
  const CodeRows c = rows;
  const Numbers numbers = of_codes;
  const Load load = load_any;
  const auto with_scale = [&](CodeFloats scale) {
    if constexpr (std::is_same_v<Numbers, CodeTable> && kCodeLanes == 16)
      return CodeTable(scaled(numbers.numbers, scale));  // once for a block
    else
      return [&numbers, &scaled, scale](CodeInts codes) { return scaled(numbers(codes), scale); };
  };
  for_rows(
      c, out, [&](const std::uint8_t* row, const float* scales, float* to) __attribute__((always_inline)) {
        const auto decode = [&](std::int64_t i, std::int64_t n, const auto& decoded_of)
            __attribute__((always_inline)) {
          const CodeFloats decoded = decoded_of(load(row, i, n));
          std::memcpy(to + i, &decoded, static_cast<std::size_t>(n) * sizeof(float));
        };
        const auto decode_all = [&](std::int64_t i, std::int64_t n, const auto& of)
            __attribute__((always_inline)) {
          const std::int64_t end = i + n;
          for (; end - i >= 2 * kCodeLanes; i += 2 * kCodeLanes) {
            decode(i, kCodeLanes, of(i, kCodeLanes));
            decode(i + kCodeLanes, kCodeLanes, of(i + kCodeLanes, kCodeLanes));
          }
          if (end - i >= kCodeLanes) decode(i, kCodeLanes, of(i, kCodeLanes)), i += kCodeLanes;
          // What goes beyond the block, within the row, is overwritten by the next block.
          if (const std::int64_t some = c.n - i >= kCodeLanes ? kCodeLanes : end - i; i < end)
            decode(i, some, of(i, some));
        };
        if (c.block == 1)
          return decode_all(0, c.n, [&](std::int64_t i, std::int64_t n) {
            return [&numbers, &scaled, scale = load_floats(scales + i, n)](CodeInts codes) {
              return scaled(numbers(codes), scale);
            };
          });
        const auto decode_block = [&](std::int64_t i, std::int64_t n, std::int64_t b)
            __attribute__((always_inline)) {
          const auto decoded_of = with_scale(broadcast(scales[b]));
          decode_all(
              i, n, [&](std::int64_t, std::int64_t) -> const auto& { return decoded_of; });
        };
        for_blocks(c, decode_block);
      });
}

// n ≤ kCodeLanes codes of 4 bits from code `at` of packed ones on, in as many bits from the lowest on.
[[gnu::always_inline]] inline std::uint64_t load_halves(const std::uint8_t* bytes, bool high_first,
                                                        std::int64_t at, std::int64_t n) {
  const bool odd = at % 2 != 0;
  std::uint64_t word = 0, last = 0;
  bytes += at / 2;
  if (is_full(n)) {
    std::memcpy(&word, bytes, kCodeLanes / 2);
    if (odd) last = bytes[kCodeLanes / 2];
  } else {
    for (std::int64_t b = 0; 2 * b < n + odd; ++b) word |= std::uint64_t{bytes[b]} << (8 * b);
  }
  const auto swapped = [](std::uint64_t some) {
    constexpr std::uint64_t kLow = 0x0F0F0F0F0F0F0F0F;
    return (some & kLow) << 4 | (some >> 4 & kLow);
  };
  if (high_first) word = swapped(word), last = swapped(last);
  return odd ? word >> 4 | last << (4 * kCodeLanes - 4) : word;
}

#ifdef EJK_CONVERTS_CODES
inline bool is_same(const FloatFormat& a, const FloatFormat& b) {
  return a.exponent_bits == b.exponent_bits && a.mantissa_bits == b.mantissa_bits && a.bias == b.bias &&
         a.special == b.special;
}

// Codes of e4m3 or e5m2, two registers at a time by way of float16, whose upper byte is a code of e5m2. A code
// of e4m3 has the same place there but for one bit of the exponent, and is 2⁻⁸ of its number: the scale is
// multiplied by 2⁸, which is exact. Returns false, and `out` is wrong, if a code is NaN or such a scale is
// infinite.
template <bool kE4M3>
[[gnu::noinline]] bool decode_converted(const CodeRows& rows, float* out) {
  constexpr const FloatFormat& kFormat = kE4M3 ? kFloat8E4M3Fn : kFloat8E5M2;
  constexpr std::int64_t kAtOnce = 2 * kCodeLanes;
  const CodeRows c = rows;  // stores may alias it
  const CodeBits f = code_bits(kFormat);
  CodeLanes::Largest most{};
  std::int32_t largest = 0;  // scale, as bits
  with_factor(c.factor, [&](const auto& scaled) {
    for_rows(c, out, [&](const std::uint8_t* row, const float* scales, float* to) {
      const auto decode_block = [&](std::int64_t i, std::int64_t n, std::int64_t b)
          __attribute__((always_inline)) {
        const std::int64_t end = i + n;
        const std::int32_t size = __builtin_bit_cast(std::int32_t, scales[b]) & 0x7FFFFFFF;
        largest = size > largest ? size : largest;
        const CodeFloats scale = broadcast(scales[b]), wide_scale = kE4M3 ? scale * 256 : scale;
        for (; end - i >= kAtOnce; i += kAtOnce) {
          CodeFloats low, high;
          CodeLanes::convert<kE4M3>(row + i, low, high, most);
          low = scaled(low, wide_scale), high = scaled(high, wide_scale);
          std::memcpy(to + i, &low, sizeof low);
          std::memcpy(to + i + kCodeLanes, &high, sizeof high);
        }
        for (std::int64_t some = 0; i < end; i += some) {
          some = c.n - i >= kCodeLanes ? kCodeLanes : end - i;
          const CodeFloats decoded = scaled(numbers_of<kFormat.special>(f, load_codes(row + i, some)), scale);
          std::memcpy(to + i, &decoded, static_cast<std::size_t>(some) * sizeof(float));
        }
      };
      for_blocks(c, decode_block);
    });
  });
  std::uint8_t doubled[sizeof most], most_doubled = 0;
  std::memcpy(doubled, &most, sizeof most);
  for (const std::uint8_t code : doubled) most_doubled = code > most_doubled ? code : most_doubled;
  return most_doubled < 2 * (kE4M3 ? 0x7F : 0x7D) &&
         (!kE4M3 || largest < __builtin_bit_cast(std::int32_t, 0x1p120f));
}
#endif

// Codes of 4 bits, in halves of bytes.
inline void decode_halves(const FloatFormat& format, const CodeRows& c, float* out) {
  const CodeTable numbers{code_bits(format)};
  with_factor(c.factor, [&](const auto& scaled) {
    const bool high_first = c.halves == CodeHalves::high_first;
    const auto any = [high_first, skipped = c.skipped](const std::uint8_t* row, std::int64_t i,
                                                       std::int64_t n) {
      const std::uint64_t word = load_halves(row, high_first, skipped + i, n);
      return __builtin_bit_cast(CodeInts, CodeLanes::spread<false>(&word));
    };
    const auto even = [&](auto is_high_first) {
      constexpr bool kHighFirst = decltype(is_high_first)::value;
      decode_rows(
          c, numbers, scaled,
          [any](const std::uint8_t* row, std::int64_t i, std::int64_t n) {
            if (!is_full(n)) return any(row, i, n);
            return __builtin_bit_cast(CodeInts, CodeLanes::spread<kHighFirst>(row + i / 2));
          },
          out);
    };
    // Whole registers begin with a byte.
    const bool are_even = c.skipped == 0 && c.first % 2 == 0 && c.block % 2 == 0;
    if (c.is_packed() && !are_even) return decode_rows(c, numbers, scaled, any, out);
    if (c.halves == CodeHalves::low_first) return even(std::false_type{});
    if (c.halves == CodeHalves::high_first) return even(std::true_type{});
    const int shift = c.halves == CodeHalves::high ? 4 : 0;
    const auto load = [shift](const std::uint8_t* row, std::int64_t i, std::int64_t n) {
      return load_codes(row + i, n) >> shift;
    };
    decode_rows(c, numbers, scaled, load, out);
  });
}

// How many rows are decoded as one: short ones that are contiguous, as are their scales if there are several.
inline std::int64_t joined_rows(const CodeRows& c) {
  constexpr std::int64_t kJoined = 256;  // elements
  const bool follow = c.is_packed() ? c.n % 2 == 0 && c.skipped == 0 && 2 * c.stride == c.n : c.stride == c.n;
  const bool have_one_scale = c.scales_stride == 0 && c.first + c.n <= c.block;
  const bool have_scales = c.first == 0 && c.n % c.block == 0 && c.scales_stride == c.n / c.block;
  if (!follow || !(have_one_scale || have_scales)) return 1;
  return kJoined / c.n < c.rows ? kJoined / c.n : c.rows;
}

inline void decode_codes(const FloatFormat& format, const CodeRows& rows, float* out) {
  CodeRows c = rows;
  if (c.n == 0) return;
  if (c.first + c.n <= c.block) c.block = c.n, c.first = 0;  // a row has one scale
  if (const std::int64_t joined = joined_rows(c); joined > 1) {
    if (const std::int64_t rest = c.rows % joined; rest > 0) {
      CodeRows last = c;
      last.rows = rest;
      c.rows -= rest;
      last.bytes += c.rows * c.stride, last.scales += c.rows * c.scales_stride;
      decode_codes(format, last, out + c.rows * c.n);
    }
    if (c.scales_stride == 0) c.block = joined * c.n, c.first = 0;
    c.n *= joined, c.rows /= joined, c.stride *= joined, c.scales_stride *= joined;
  }
  if (format.bits() == 4) return decode_halves(format, c, out);
#ifdef EJK_CONVERTS_CODES
  if (c.block >= 2 * kCodeLanes) {
    if (is_same(format, kFloat8E4M3Fn) && decode_converted<true>(c, out)) return;
    if (is_same(format, kFloat8E5M2) && decode_converted<false>(c, out)) return;
  }
#endif
  const auto load = [](const std::uint8_t* row, std::int64_t i, std::int64_t n) {
    return load_codes(row + i, n);
  };
  with_numbers(format, [&](const auto& numbers) {
    with_factor(c.factor, [&](const auto& scaled) { decode_rows(c, numbers, scaled, load, out); });
  });
}

// The largest magnitude, or the largest one below `limit`, as bits.
template <bool kLimited>
[[gnu::always_inline]] inline std::int32_t largest_of(const float* x, std::int64_t n, std::int32_t limit) {
  CodeInts most{};
  for (std::int64_t i = 0; i < n; i += kCodeLanes) {
    CodeInts magnitude = magnitude_of(load_floats(x + i, n - i < kCodeLanes ? n - i : kCodeLanes));
    if constexpr (kLimited) magnitude = magnitude < limit ? magnitude : CodeInts{};
    most = magnitude > most ? magnitude : most;
  }
  return CodeLanes::largest(bits_of(most));
}

// The same of kCodeLanes blocks of whole registers.
template <std::int64_t kBlock>
[[gnu::always_inline]] inline CodeInts largest_of_each(const float* x) {
  CodeLanes::Bits most[kCodeLanes];
  for (std::int64_t b = 0; b < kCodeLanes; ++b, x += kBlock) {
    CodeInts here = magnitude_of(load_floats(x, kCodeLanes));
    for (std::int64_t i = kCodeLanes; i < kBlock; i += kCodeLanes) {
      const CodeInts next = magnitude_of(load_floats(x + i, kCodeLanes));
      here = next > here ? next : here;
    }
    most[b] = bits_of(here);
  }
  return __builtin_bit_cast(CodeInts, CodeLanes::largest_of_each(most));
}

inline void largest_of_blocks(const float* x, std::int64_t n, std::int64_t block, std::int64_t first,
                              bool finite, std::uint32_t* out) {
  std::int64_t begin = 0;
  // Whole blocks of NVFP4 and MX, as many at once as a register has lanes.
  for (; first == 0 && (block == 16 || block == 32) && n - begin >= kCodeLanes * block;
       begin += kCodeLanes * block, out += kCodeLanes) {
    const CodeInts most = block == 16 ? largest_of_each<16>(x + begin) : largest_of_each<32>(x + begin);
    std::memcpy(out, &most, sizeof most);
    if (finite && CodeLanes::largest(bits_of(most)) >= kInfinityBits)
      for (std::int64_t b = 0; b < kCodeLanes; ++b)
        if (out[b] >= kInfinityBits)
          out[b] = static_cast<std::uint32_t>(largest_of<true>(x + begin + b * block, block, kInfinityBits));
  }
  for (std::int64_t i = begin; i < n; first = 0) {
    const std::int64_t count = block - first < n - i ? block - first : n - i;
    std::int32_t most = largest_of<false>(x + i, count, 0);
    if (finite && most >= kInfinityBits) most = largest_of<true>(x + i, count, kInfinityBits);
    *out++ = static_cast<std::uint32_t>(most);
    i += count;
  }
}

// Elements that are accumulated in float32, and elements whose codes are narrowed to bytes at once.
constexpr std::int64_t kEncodeChunk = 1024, kNarrowed = 16;
// A chunk with an element that is not finite or is decoded to NaN is encoded again, in parts of this size.
constexpr std::int64_t kEncodePart = 64;

// What a chunk adds to the totals.
struct EncodeLanes {
  CodeLanes::Counter overflows{}, flushed{};
  CodeInts largest{};  // error, as bits
  CodeFloats signal{}, noise{};
};

// The code of a magnitude, at most that of the largest number, and its number in `rounded`: it is added to a
// power of two whose last place is the unit of its exponent, which is subtracted again.
template <Ties kTies>
[[gnu::always_inline]] inline CodeInts round_to_code(const CodeBits& f, CodeInts cut, CodeInts bits,
                                                     CodeFloats& rounded) {
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
  return lifted - lift + ((exponent - least_exponent) >> cut);
}

// Hides a value from the optimizer, so that it does not contract a product and a sum into a fused multiply-add.
template <class T>
[[gnu::always_inline]] inline T opaque(T x) {
#ifdef __x86_64__
  asm("" : "+v"(x));
#elif defined __aarch64__
  asm("" : "+w"(x));
#else
  asm("" : "+m"(x));
#endif
  return x;
}

inline double sum_of(CodeFloats lanes) {
  double sum = 0;
  for (int i = 0; i < kCodeLanes; ++i) sum += static_cast<double>(lanes[i]);
  return sum;
}

// Magnitudes of a format: its largest one, and the last one that is rounded to it.
struct CodeRange {
  std::int32_t largest, last;
};
template <Ties kTies>
CodeRange range_of(const CodeBits& f) {
  const std::int32_t largest = f.rebias + (f.largest << f.cut);
  return {largest, largest + (1 << (f.cut - 1)) -
                       (kTies == Ties::away || (kTies == Ties::even && f.largest % 2 == 1))};
}

// The scales of kNarrowed elements: of one block, or of each.
struct OneScale {
  CodeFloats encode, decode;
  CodeFloats encode_at(std::int64_t) const { return encode; }
  CodeFloats decode_at(std::int64_t) const { return decode; }
};
struct EachScale {
  const float *encode, *decode;
  CodeFloats encode_at(std::int64_t i) const { return load_floats(encode + i, kCodeLanes); }
  CodeFloats decode_at(std::int64_t i) const { return load_floats(decode + i, kCodeLanes); }
};

// Codes of finite elements, and what they add to the totals. Sums are not finite if an element is not.
template <Ties kTies, ScaleUse kUse, bool kFactor, class Scale>
[[gnu::always_inline]] inline void encode_16(const CodeBits& f, const CodeRange& range, CodeInts cut,
                                             const float* x, const Scale& scale, float factor,
                                             std::uint8_t* to, EncodeLanes& lanes) {
  CodeInts codes[kNarrowed / kCodeLanes];
#pragma GCC unroll 4
  for (std::int64_t r = 0; r < kNarrowed / kCodeLanes; ++r) {
    const CodeFloats value = load_floats(x + r * kCodeLanes, kCodeLanes);
    const CodeFloats size = floats_of(magnitude_of(value)), encode = scale.encode_at(r * kCodeLanes);
    const CodeInts scaled = ints_of(kUse == ScaleUse::divides ? size / encode : size * encode);
    CodeFloats rounded;
    const CodeInts code =
        round_to_code<kTies>(f, cut, scaled < range.largest ? scaled : CodeInts{} + range.largest, rounded);
    codes[r] = code | (ints_of(value) >> 31 & f.sign);
    CodeLanes::count_greater(bits_of(scaled), bits_of(CodeInts{} + range.last), lanes.overflows);
    // A number but 0, times this, exceeds every element whose square float32 has.
    CodeLanes::count_greater(bits_of(ints_of(size)), bits_of(ints_of(rounded * 0x1p100f)), lanes.flushed);
    CodeFloats number = opaque(rounded * scale.decode_at(r * kCodeLanes));
    if constexpr (kFactor) number = opaque(number * factor);
    const CodeFloats error = size - number;
    const CodeInts error_size = magnitude_of(error);
    lanes.largest = error_size > lanes.largest ? error_size : lanes.largest;
    lanes.signal = CodeLanes::multiply_add(size, size, lanes.signal);
    lanes.noise = CodeLanes::multiply_add(error, error, lanes.noise);
  }
  CodeLanes::narrow_16(codes, to);
}

template <Ties kTies, ScaleUse kUse, bool kFactor>
void encode_chunk(CodeBits f, const float* x, std::int64_t n, const EncodeScales& scales, std::int64_t block,
                  std::int64_t first, std::uint8_t* codes, EncodeLanes& sums) {
  const CodeRange range = range_of<kTies>(f);
  // Local copies: stores of codes may alias anything else.
  EncodeLanes lanes;
  const float factor = scales.factor;
  CodeInts cut = CodeInts{} + f.cut;
  if constexpr (kCodeLanes > 4) cut = opaque(cut);  // otherwise the count is moved for each shift
  const auto encode = [&](const auto& next_scales) {
    std::int64_t i = 0;
    for (; n - i >= kNarrowed; i += kNarrowed) {
      __builtin_prefetch(x + i + kEncodeStep);
      encode_16<kTies, kUse, kFactor>(f, range, cut, x + i, next_scales(), factor, codes + i, lanes);
    }
    if (i == n) return;
    const auto rest = static_cast<std::size_t>(n - i);
    float some[kNarrowed] = {};
    std::uint8_t some_codes[kNarrowed];
    std::memcpy(some, x + i, rest * sizeof(float));
    encode_16<kTies, kUse, kFactor>(f, range, cut, some, next_scales(), factor, some_codes, lanes);
    std::memcpy(codes + i, some_codes, rest);
  };
  const float *encodes = scales.encode, *decodes = scales.decode;
  if (first + n <= block || (block % kNarrowed == 0 && first % kNarrowed == 0)) {
    std::int64_t left = block - first;  // of the block
    encode([&] {
      if (left == 0) left = block, ++encodes, ++decodes;
      left -= kNarrowed;
      return OneScale{broadcast(*encodes), broadcast(*decodes)};
    });
  } else {
    float each[2][kEncodeChunk + kNarrowed];
    std::int64_t i = 0;
    for (std::int64_t within = first; i < n; within = 0, ++encodes, ++decodes)
      for (; i < n && within < block; ++i, ++within) each[0][i] = *encodes, each[1][i] = *decodes;
    for (; i < n + kNarrowed; ++i) each[0][i] = each[1][i] = 1;  // of the padding
    EachScale next{each[0], each[1]};
    encode([&] {
      const EachScale here = next;
      next.encode += kNarrowed, next.decode += kNarrowed;
      return here;
    });
  }
  sums = lanes;
}

// Codes and totals element by element: where some are not finite or are decoded to NaN.
template <Ties kTies>
void encode_any(const FloatFormat& format, const float* x, std::int64_t n, const EncodeScales& scales,
                std::int64_t block, std::int64_t first, std::int64_t at, std::uint8_t* codes,
                EncodeTotals& totals) {
  const CodeBits f = code_bits(format);
  const CodeRange range = range_of<kTies>(f);
  const bool has_nan = format.special != SpecialCodes::none;
  const float* encode = scales.encode;
  for (std::int64_t i = 0, within = first; i < n; ++i, ++within) {
    if (within == block) within = 0, ++encode;
    const float value = x[i], scale = *encode;
    const float scaled = scales.use == ScaleUse::divides ? value / scale : value * scale;
    const std::int32_t size = __builtin_bit_cast(std::int32_t, scaled) & 0x7FFFFFFF;
    const std::int32_t sign = __builtin_bit_cast(std::int32_t, value) >> f.sign_shift & f.sign;
    CodeFloats rounded;
    std::int32_t code = round_to_code<kTies>(
        f, CodeInts{} + f.cut, CodeInts{} + (size < range.largest ? size : range.largest), rounded)[0];
    const bool is_nan = size > kInfinityBits, was_nan = __builtin_isnan(value);
    totals.overflows += size > range.last && !is_nan;
    totals.flushed += code == 0 && value != 0;
    totals.nans += was_nan;
    code |= sign;
    // NaN has the sign that x had as NaN, and none of a scale's: that of a product depends on the instruction.
    if (is_nan) code = has_nan && was_nan ? sign | f.nan : f.nan;
    codes[i] = static_cast<std::uint8_t>(code);
  }
  float decoded[kEncodeChunk];
  decode_codes(format, {codes, n, scales.decode, block, first, scales.factor}, decoded);
  for (std::int64_t i = 0; i < n; ++i) {
    if (!__builtin_isfinite(x[i])) continue;
    if (__builtin_isnan(decoded[i])) {
      ++totals.lost;
      continue;
    }
    const double value = x[i], error = value - static_cast<double>(decoded[i]);
    totals.signal += value * value;
    totals.noise += error * error;
    if (__builtin_fabs(error) > totals.largest)
      totals.largest = __builtin_fabs(error), totals.largest_at = at + i;
  }
}

// Totals of elements whose codes are known, in float64: for squares outside the range of float32. Returns false,
// without totals, if one is decoded to NaN.
inline bool add_wide(const FloatFormat& format, const float* x, std::int64_t n, const EncodeScales& scales,
                     std::int64_t block, std::int64_t first, std::int64_t at, const std::uint8_t* codes,
                     EncodeTotals& totals) {
  constexpr std::int64_t kSums = 8;  // additions that do not wait for one another
  float decoded[kEncodeChunk + kSums] = {}, values[kEncodeChunk + kSums] = {};
  decode_codes(format, {codes, n, scales.decode, block, first, scales.factor}, decoded);
  std::memcpy(values, x, static_cast<std::size_t>(n) * sizeof *x);
  double signal[kSums] = {}, noise[kSums] = {}, largest[kSums] = {};
  for (std::int64_t i = 0; i < n; i += kSums)
    for (std::int64_t j = 0; j < kSums; ++j) {
      const double value = values[i + j], error = __builtin_fabs(value - static_cast<double>(decoded[i + j]));
      signal[j] += value * value;
      noise[j] += error * error;
      largest[j] = error > largest[j] ? error : largest[j];
    }
  double most = 0, signals = 0, noises = 0;
  for (std::int64_t j = 0; j < kSums; ++j) {
    signals += signal[j], noises += noise[j];
    most = largest[j] > most ? largest[j] : most;
  }
  if (__builtin_isnan(noises)) return false;
  totals.signal += signals;
  totals.noise += noises;
  const auto magnitude = static_cast<std::uint8_t>((1 << (format.bits() - 1)) - 1);
  std::int32_t flushed = 0;
  for (std::int64_t i = 0; i < n; ++i) flushed += (codes[i] & magnitude) == 0 && x[i] != 0 ? 1 : 0;
  totals.flushed += flushed;
  if (most > totals.largest) {
    std::int64_t i = 0;
    while (i + 1 < n && __builtin_fabs(double{values[i]} - static_cast<double>(decoded[i])) != most) ++i;
    totals.largest = most, totals.largest_at = at + i;
  }
  return true;
}

template <Ties kTies>
void encode_as(const FloatFormat& format, const float* x, std::int64_t n, const EncodeScales& all,
               std::int64_t block, std::int64_t first, std::int64_t at, std::uint8_t* codes,
               EncodeTotals& totals, std::int64_t at_once = kEncodeChunk) {
  const CodeBits f = code_bits(format);
  const auto chunk = all.use == ScaleUse::multiplies
                         ? (all.factor == 1 ? encode_chunk<kTies, ScaleUse::multiplies, false>
                                            : encode_chunk<kTies, ScaleUse::multiplies, true>)
                         : (all.factor == 1 ? encode_chunk<kTies, ScaleUse::divides, false>
                                            : encode_chunk<kTies, ScaleUse::divides, true>);
  for (std::int64_t begin = 0; begin < n; begin += at_once) {
    const std::int64_t count = n - begin < at_once ? n - begin : at_once;
    const std::int64_t skipped = (first + begin) / block, within = (first + begin) % block;
    const EncodeScales scales{all.encode + skipped, all.decode + skipped, all.factor, all.use};
    const float* const from = x + begin;
    std::uint8_t* const to = codes + begin;
    EncodeLanes lanes;
    chunk(f, from, count, scales, block, within, to, lanes);
    const double signal = sum_of(lanes.signal);
    const auto error = __builtin_bit_cast(float, CodeLanes::largest(bits_of(lanes.largest)));
    // Whether float32 has the squares that count. There is no infinity or NaN then.
    const bool has_squares =
        signal >= 0x1p-110 && signal <= 0x1p120 && ((error >= 0x1p-55f && error <= 0x1p55f) || error == 0);
    const std::int32_t size = has_squares ? 0 : largest_of<false>(from, count, 0);
    if (!has_squares && (size != 0 || error != 0)) {
      if (size < kInfinityBits &&
          add_wide(format, from, count, scales, block, within, at + begin, to, totals))
        totals.overflows += CodeLanes::sum_of(lanes.overflows);
      else if (at_once > kEncodePart)
        encode_as<kTies>(format, from, count, scales, block, within, at + begin, to, totals, kEncodePart);
      else
        encode_any<kTies>(format, from, count, scales, block, within, at + begin, to, totals);
      continue;
    }
    totals.signal += signal;
    totals.noise += sum_of(lanes.noise);
    totals.overflows += CodeLanes::sum_of(lanes.overflows);
    totals.flushed += CodeLanes::sum_of(lanes.flushed);
    if (error >= totals.known && error > static_cast<float>(totals.largest)) {
      float decoded[kEncodeChunk];
      decode_codes(format, {to, count, scales.decode, block, within, scales.factor}, decoded);
      std::int64_t i = 0;
      while (i + 1 < count && __builtin_fabsf(from[i] - decoded[i]) != error) ++i;
      totals.largest = __builtin_fabs(static_cast<double>(from[i]) - static_cast<double>(decoded[i]));
      totals.largest_at = at + begin + i;
    }
  }
}

inline void encode_codes(const FloatFormat& format, Ties ties, const float* x, std::int64_t n,
                         const EncodeScales& scales, std::int64_t block, std::int64_t first, std::int64_t at,
                         std::uint8_t* codes, EncodeTotals& totals) {
  if (ties == Ties::even) encode_as<Ties::even>(format, x, n, scales, block, first, at, codes, totals);
  if (ties == Ties::away) encode_as<Ties::away>(format, x, n, scales, block, first, at, codes, totals);
  if (ties == Ties::down) encode_as<Ties::down>(format, x, n, scales, block, first, at, codes, totals);
}

inline void scales_of_mx(const E8M0Rule& by, const std::uint32_t* __restrict largest, std::int64_t n,
                         std::uint8_t* __restrict codes, float* __restrict numbers,
                         float* __restrict inverses) {
  const E8M0Rule rule = by;  // stores may alias it
  const auto number = [](std::int32_t code) { return __builtin_bit_cast(float, e8m0_bits(code)); };
  for (std::int64_t b = 0; b < n; ++b) codes[b] = rule.code(largest[b]);
  for (std::int64_t b = 0; b < n; ++b) numbers[b] = number(codes[b]);
  for (std::int64_t b = 0; b < n; ++b) inverses[b] = number(codes[b] == 255 ? 255 : 254 - codes[b]);
}

template <bool kIsFloat16>
void widen_words(const std::uint16_t* from, std::int64_t n, float* out) {
  using Words [[gnu::vector_size(CodeLanes::kBytes / 2)]] = std::uint16_t;
  const auto widen = [](const std::uint16_t* words_from, float* to) {
    Words words;
    std::memcpy(&words, words_from, sizeof words);
    CodeInts bits = __builtin_convertvector(words, CodeInts) << 16;
    if constexpr (kIsFloat16) {
      // The factor corrects the exponent's bias, of subnormal numbers as well.
      const CodeInts magnitude = (bits & 0x7FFFFFFF) >> 3, special = magnitude | kInfinityBits;
      const CodeInts finite = ints_of(floats_of(magnitude) * 0x1p112f);
      bits = (magnitude >= 0x7C00 << 13 ? special : finite) | (bits & static_cast<std::int32_t>(0x80000000));
    }
    std::memcpy(to, &bits, sizeof bits);
  };
  std::int64_t i = 0;
  for (; n - i >= kCodeLanes; i += kCodeLanes) widen(from + i, out + i);
  if (i == n) return;
  std::uint16_t some[kCodeLanes] = {};
  float widened[kCodeLanes];
  std::memcpy(some, from + i, static_cast<std::size_t>(n - i) * sizeof *some);
  widen(some, widened);
  std::memcpy(out + i, widened, static_cast<std::size_t>(n - i) * sizeof *widened);
}
inline void widen_floats(DType dtype, const void* from, std::int64_t n, float* out) {
  const auto* const words = static_cast<const std::uint16_t*>(from);
  dtype == DType::float16 ? widen_words<true>(words, n, out) : widen_words<false>(words, n, out);
}

inline void pack_halves(const std::uint8_t* codes, std::int64_t n, std::uint8_t* out) {
  using Pairs [[gnu::vector_size(CodeLanes::kBytes)]] = std::uint16_t;
  using Bytes [[gnu::vector_size(CodeLanes::kBytes / 2)]] = std::uint8_t;
  std::int64_t i = 0;
  for (; n - i >= CodeLanes::kBytes; i += CodeLanes::kBytes) {
    Pairs pairs;
    std::memcpy(&pairs, codes + i, sizeof pairs);
    const Bytes bytes = __builtin_convertvector(pairs | pairs >> 4, Bytes);
    std::memcpy(out + i / 2, &bytes, sizeof bytes);
  }
  for (; i < n; i += 2) out[i / 2] = static_cast<std::uint8_t>(codes[i] | codes[i + 1] << 4);
}

inline bool are_codes_in(const std::uint8_t* set, const std::uint8_t* codes, std::int64_t n) {
  std::int64_t i = 0;
#ifdef EJK_LOOKS_UP_CODES
  CodeLanes::Bits missing{};
  for (; n - i >= CodeLanes::kBytes; i += CodeLanes::kBytes)
    missing |= CodeLanes::bits_not_in(set, codes + i);
  if (CodeLanes::any(missing)) return false;
#endif
  unsigned found = 1;
  for (; i < n; ++i) found &= static_cast<unsigned>(set[codes[i] / 8]) >> codes[i] % 8;
  return found != 0;
}

#define EJK_CODES_KERNELS                                                \
  .codes = {decode_codes, largest_of_blocks, encode_codes, scales_of_mx, \
            pack_halves,  are_codes_in,      widen_floats}
