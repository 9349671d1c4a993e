// Whether pairs are within a tolerance, included by each instruction set's file inside its own unnamed
// namespace, after bits.inl: plain loops over lanes, which the compiler makes vectors of. All floats compared
// are at least 0, where the order of floats is that of their bits, so that a difference of bits has its top
// bit set where one is more than the other: that is cheaper than to compare and to count. Two streams at once
// keep too few lines under way by themselves: they are asked for ahead.

inline float magnitude(float x) { return __builtin_fabsf(x); }
inline double magnitude(double x) { return __builtin_fabs(x); }

inline float largest(float) { return __FLT_MAX__; }
inline double largest(double) { return __DBL_MAX__; }

// The top bit is set unless |x - y| <= atol + rtol · |y| and both are finite: a difference that is infinite
// or NaN is more than the largest number, which is all that is ever allowed.
template <class Bits, class V>
Bits is_far(V x, V y, V rtol, V atol) {
  const V difference = magnitude(x - y), sum = atol + rtol * magnitude(y);
  const V allowed = sum < largest(sum) ? sum : largest(sum);
  return __builtin_bit_cast(Bits, allowed) - __builtin_bit_cast(Bits, difference);
}

constexpr std::uintptr_t kCloseAhead = 1024;  // bytes

template <class V, class B>
struct Floats {
  using Element = V;
  using Tolerance = V;
  static constexpr int kLanes = 16;
  B far[kLanes] = {}, zero[kLanes] = {};

  void test(const V* a, const V* e, V rtol, V atol) {
    for (int i = 0; i < kLanes; ++i) {
      far[i] |= is_far<B>(a[i], e[i], rtol, atol);
      const B bits = __builtin_bit_cast(B, a[i]) | __builtin_bit_cast(B, e[i]);
      zero[i] += bits << 1 == 0 ? B{1} : B{0};
    }
  }
};

// Two to a word of 32 bits, whose halves are made floats where they lie.
template <DType type>
struct Halves {
  using Element = std::uint16_t;
  using Tolerance = float;
  static constexpr int kLanes = 32, kWords = 16;
  std::uint32_t far[kWords] = {};
  std::int16_t special[kLanes] = {};
  std::uint16_t zero[kLanes] = {};

  // From the upper 16 bits of a word; the others are 0.
  static float widened(std::uint32_t bits) {
    if constexpr (type == DType::bfloat16) return __builtin_bit_cast(float, bits);
    // The factor makes up for the smaller bias, subnormal or not.
    const float value = __builtin_bit_cast(float, bits >> 3 & 0x0FFFE000u) * 0x1p112f;
    return __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, value) | (bits & 0x80000000u));
  }

  void test(const std::uint16_t* a, const std::uint16_t* e, float rtol, float atol) {
    for (int i = 0; i < kWords; ++i) {
      std::uint32_t p = 0, q = 0;
      std::memcpy(&p, a + 2 * i, 4);
      std::memcpy(&q, e + 2 * i, 4);
      far[i] |= is_far<std::uint32_t>(widened(p << 16), widened(q << 16), rtol, atol) |
                is_far<std::uint32_t>(widened(p & 0xFFFF0000u), widened(q & 0xFFFF0000u), rtol, atol);
    }
    for (int i = 0; i < kLanes; ++i) {
      if constexpr (type == DType::float16) {  // whose infinities and NaN were widened to numbers
        constexpr int kMost = 0x7BFF;
        special[i] =
            static_cast<std::int16_t>(special[i] | (kMost - (a[i] & 0x7FFF)) | (kMost - (e[i] & 0x7FFF)));
      }
      zero[i] = static_cast<std::uint16_t>(zero[i] + (((a[i] | e[i]) & 0x7FFF) == 0 ? 1 : 0));
    }
  }
};

template <class B, int n>
bool any_top_bit(const B (&words)[n]) {
  B all = 0;
  for (const B word : words) all = static_cast<B>(all | word);
  return (all >> (8 * sizeof(B) - 1) & 1) != 0;
}

template <class Pairs>
bool all_close(const typename Pairs::Element* a, const typename Pairs::Element* e, std::int64_t n,
               typename Pairs::Tolerance rtol, typename Pairs::Tolerance atol, std::int64_t* zeros) {
  using Element = typename Pairs::Element;
  constexpr int kLanes = Pairs::kLanes, kLines = kLanes * static_cast<int>(sizeof(Element)) / 64;
  constexpr std::int64_t kAtOnce = std::int64_t{1} << 20;  // their zeros are counted in 16 bits a lane
  *zeros = 0;
  while (n > 0) {
    const std::int64_t some = n < kAtOnce ? n : kAtOnce;
    Pairs pairs;
    std::int64_t i = 0;
    for (; i + kLanes <= some; i += kLanes) {
      prefetch_ahead<kLines, kCloseAhead>(a + i);
      prefetch_ahead<kLines, kCloseAhead>(e + i);
      pairs.test(a + i, e + i, rtol, atol);
    }
    if (i < some) {  // filled up with zeros, which are close
      Element last_a[kLanes] = {}, last_e[kLanes] = {};
      std::memcpy(last_a, a + i, static_cast<std::size_t>(some - i) * sizeof(Element));
      std::memcpy(last_e, e + i, static_cast<std::size_t>(some - i) * sizeof(Element));
      pairs.test(last_a, last_e, rtol, atol);
      *zeros -= kLanes - (some - i);
    }
    if (any_top_bit(pairs.far)) return false;
    if constexpr (kLanes == 32)
      if (any_top_bit(pairs.special)) return false;
    for (const auto count : pairs.zero) *zeros += static_cast<std::int64_t>(count);
    a += some, e += some, n -= some;
  }
  return true;
}

bool all_close_32(const float* a, const float* e, std::int64_t n, float rtol, float atol,
                  std::int64_t* zeros) {
  return all_close<Floats<float, std::uint32_t>>(a, e, n, rtol, atol, zeros);
}

bool all_close_64(const double* a, const double* e, std::int64_t n, double rtol, double atol,
                  std::int64_t* zeros) {
  return all_close<Floats<double, std::uint64_t>>(a, e, n, rtol, atol, zeros);
}

bool all_close_f16(const std::uint16_t* a, const std::uint16_t* e, std::int64_t n, float rtol, float atol,
                   std::int64_t* zeros) {
  return all_close<Halves<DType::float16>>(a, e, n, rtol, atol, zeros);
}

bool all_close_bf16(const std::uint16_t* a, const std::uint16_t* e, std::int64_t n, float rtol, float atol,
                    std::int64_t* zeros) {
  return all_close<Halves<DType::bfloat16>>(a, e, n, rtol, atol, zeros);
}

#define EJK_CLOSE_KERNELS                                                                     \
  .all_close_32 = all_close_32, .all_close_64 = all_close_64, .all_close_f16 = all_close_f16, \
  .all_close_bf16 = all_close_bf16
