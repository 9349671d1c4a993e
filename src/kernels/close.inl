// How far apart pairs of floats are, included by each instruction set's file inside its own unnamed namespace,
// after bits.inl: plain loops over lanes, which the compiler makes vectors of. All floats that are compared for
// closeness are at least 0, where the order of floats is that of their bits, so that a difference of bits has its
// top bit set where one is more than the other: that is cheaper than to compare and to count. Two streams at
// once keep too few lines under way by themselves: they are asked for ahead.

inline float magnitude(float x) { return __builtin_fabsf(x); }
inline double magnitude(double x) { return __builtin_fabs(x); }

inline float largest(float) { return __FLT_MAX__; }
inline double largest(double) { return __DBL_MAX__; }

template <class V>
struct SameSize;
template <>
struct SameSize<float> {
  using Signed = std::int32_t;
  using Unsigned = std::uint32_t;
};
template <>
struct SameSize<double> {
  using Signed = std::int64_t;
  using Unsigned = std::uint64_t;
};

// Floats are neighbours where these are one apart: the integer that the bits are without the sign, negative
// with it. I has the size of the float.
template <class I, class U>
I order_of(U bits) {
  const auto sign = static_cast<I>(static_cast<I>(bits) >> (8 * sizeof(U) - 1));
  constexpr U without_sign = static_cast<U>(static_cast<U>(~U{0}) >> 1);
  return static_cast<I>((static_cast<I>(bits & without_sign) ^ sign) - sign);
}

template <class I, class U>
U steps_between(U x, U y) {
  const I p = order_of<I>(x), q = order_of<I>(y);
  const I more = p > q ? p : q, less = p > q ? q : p;
  return static_cast<U>(static_cast<U>(more) - static_cast<U>(less));
}

template <class B, int n>
bool any_top_bit(const B (&words)[n]) {
  B all = 0;
  for (const B word : words) all = static_cast<B>(all | word);
  return (all >> (8 * sizeof(B) - 1) & 1) != 0;
}

// One lane of what is kept of floats in V. The sums are of squares.
template <class V, int lanes>
struct Sizes {
  using U = typename SameSize<V>::Unsigned;
  V difference[lanes] = {}, relative[lanes] = {};
  V differences[lanes] = {}, actual[lanes] = {}, expected[lanes] = {};
  U far[lanes] = {};

  // The top bit of far is set unless |x - y| <= atol + rtol · |y| and both are finite: a difference that is
  // infinite or NaN is more than the largest number, which is all that is ever allowed.
  void see(int lane, V x, V y, V rtol, V atol) {
    const V apart = magnitude(x - y), size = magnitude(y), sum = atol + rtol * size;
    const V allowed = sum < largest(sum) ? sum : largest(sum);
    far[lane] |= __builtin_bit_cast(U, allowed) - __builtin_bit_cast(U, apart);
    const V share = size > 0 ? apart / size : V{0};
    difference[lane] = apart > difference[lane] ? apart : difference[lane];
    relative[lane] = share > relative[lane] ? share : relative[lane];
    differences[lane] += apart * apart;
    actual[lane] += x * x;
    expected[lane] += y * y;
  }
};

constexpr std::uintptr_t kCloseAhead = 1024;  // bytes

template <class V>
struct Floats {
  using Element = V;
  using Value = V;
  using U = typename SameSize<V>::Unsigned;
  static constexpr int kLanes = 16;
  Sizes<V, kLanes> sizes;
  U steps[kLanes] = {}, zero[kLanes] = {};

  void see(const V* a, const V* e, V rtol, V atol) {
    for (int i = 0; i < kLanes; ++i) {
      sizes.see(i, a[i], e[i], rtol, atol);
      const U x = __builtin_bit_cast(U, a[i]), y = __builtin_bit_cast(U, e[i]);
      zero[i] += (x | y) << 1 == 0 ? U{1} : U{0};
      const U apart = steps_between<typename SameSize<V>::Signed>(x, y);
      steps[i] = apart > steps[i] ? apart : steps[i];
    }
  }
  bool special() const { return false; }
};

// Two to a word of 32 bits, whose halves are made floats where they lie.
template <DType type>
struct Halves {
  using Element = std::uint16_t;
  using Value = float;
  static constexpr int kLanes = 32, kWords = 16;
  Sizes<float, kWords> sizes;
  std::int16_t beyond[kLanes] = {};
  std::uint16_t steps[kLanes] = {}, zero[kLanes] = {};

  // From the upper 16 bits of a word; the others are 0.
  static float widened(std::uint32_t bits) {
    if constexpr (type == DType::bfloat16) return __builtin_bit_cast(float, bits);
    // The factor makes up for the smaller bias, subnormal or not.
    const float value = __builtin_bit_cast(float, bits >> 3 & 0x0FFFE000u) * 0x1p112f;
    return __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, value) | (bits & 0x80000000u));
  }

  void see(const std::uint16_t* a, const std::uint16_t* e, float rtol, float atol) {
    for (int i = 0; i < kWords; ++i) {
      std::uint32_t p = 0, q = 0;
      std::memcpy(&p, a + 2 * i, 4);
      std::memcpy(&q, e + 2 * i, 4);
      sizes.see(i, widened(p << 16), widened(q << 16), rtol, atol);
      sizes.see(i, widened(p & 0xFFFF0000u), widened(q & 0xFFFF0000u), rtol, atol);
    }
    for (int i = 0; i < kLanes; ++i) {
      if constexpr (type == DType::float16) {  // whose infinities and NaN were widened to numbers
        constexpr int kMost = 0x7BFF;
        beyond[i] =
            static_cast<std::int16_t>(beyond[i] | (kMost - (a[i] & 0x7FFF)) | (kMost - (e[i] & 0x7FFF)));
      }
      zero[i] = static_cast<std::uint16_t>(zero[i] + (((a[i] | e[i]) & 0x7FFF) == 0 ? 1 : 0));
      const std::uint16_t apart = steps_between<std::int16_t>(a[i], e[i]);
      steps[i] = apart > steps[i] ? apart : steps[i];
    }
  }
  bool special() const { return any_top_bit(beyond); }
};

template <class V, int n>
V most_of(const V (&values)[n]) {
  V most = 0;
  for (const V value : values) most = value > most ? value : most;
  return most;
}

template <class V, int n>
V sum_of(const V (&values)[n]) {
  V sum = 0;
  for (const V value : values) sum += value;
  return sum;
}

template <class Pairs>
PairStats<typename Pairs::Value> pair_stats(const typename Pairs::Element* a,
                                            const typename Pairs::Element* e, std::int64_t n,
                                            typename Pairs::Value rtol, typename Pairs::Value atol) {
  using Element = typename Pairs::Element;
  constexpr int kLanes = Pairs::kLanes, kLines = kLanes * static_cast<int>(sizeof(Element)) / 64;
  Pairs pairs;
  std::int64_t i = 0, filled = 0;
  for (; i + kLanes <= n; i += kLanes) {
    prefetch_ahead<kLines, kCloseAhead>(a + i);
    prefetch_ahead<kLines, kCloseAhead>(e + i);
    pairs.see(a + i, e + i, rtol, atol);
  }
  if (i < n) {  // filled up with zeros, which are close
    Element last_a[kLanes] = {}, last_e[kLanes] = {};
    std::memcpy(last_a, a + i, static_cast<std::size_t>(n - i) * sizeof(Element));
    std::memcpy(last_e, e + i, static_cast<std::size_t>(n - i) * sizeof(Element));
    pairs.see(last_a, last_e, rtol, atol);
    filled = kLanes - (n - i);
  }
  PairStats<typename Pairs::Value> stats;
  stats.difference = most_of(pairs.sizes.difference);
  stats.relative = most_of(pairs.sizes.relative);
  stats.steps = static_cast<std::uint64_t>(most_of(pairs.steps));
  stats.difference_squares = sum_of(pairs.sizes.differences);
  stats.actual_squares = sum_of(pairs.sizes.actual);
  stats.expected_squares = sum_of(pairs.sizes.expected);
  const auto squares = stats.actual_squares + stats.expected_squares + stats.difference_squares;
  stats.finite = squares <= largest(squares) && !pairs.special();
  stats.close = stats.finite && !any_top_bit(pairs.sizes.far);
  for (const auto count : pairs.zero) stats.zeros += static_cast<std::int64_t>(count);
  stats.zeros -= filled;
  return stats;
}

PairStats<float> pair_stats_32(const float* a, const float* e, std::int64_t n, float rtol, float atol) {
  return pair_stats<Floats<float>>(a, e, n, rtol, atol);
}

PairStats<double> pair_stats_64(const double* a, const double* e, std::int64_t n, double rtol, double atol) {
  return pair_stats<Floats<double>>(a, e, n, rtol, atol);
}

PairStats<float> pair_stats_f16(const std::uint16_t* a, const std::uint16_t* e, std::int64_t n, float rtol,
                                float atol) {
  return pair_stats<Halves<DType::float16>>(a, e, n, rtol, atol);
}

PairStats<float> pair_stats_bf16(const std::uint16_t* a, const std::uint16_t* e, std::int64_t n, float rtol,
                                 float atol) {
  return pair_stats<Halves<DType::bfloat16>>(a, e, n, rtol, atol);
}

// Two infinities of one sign, and NaN on both sides where that agrees: what differences do not tell.
void mark_special(const double* a, const double* e, std::int64_t n, bool nan_agrees, std::uint8_t* differs) {
  for (std::int64_t i = 0; i < n; ++i)
    if (a[i] == e[i] || (nan_agrees && a[i] != a[i] && e[i] != e[i])) differs[i] = 0;
}

std::int64_t mark_differences(const double* a, const double* e, std::int64_t n, double rtol, double atol,
                              bool nan_agrees, std::uint8_t* differs) {
  constexpr int kLanes = 64;
  std::int64_t count = 0;
  for (std::int64_t begin = 0; begin < n; begin += kLanes) {
    double x[kLanes] = {}, y[kLanes] = {};
    std::uint8_t flags[kLanes];
    std::uint64_t largest_bits[8] = {};
    const std::int64_t some = n - begin < kLanes ? n - begin : kLanes;
    const double *p = a + begin, *q = e + begin;
    if (some < kLanes) {  // filled up with zeros, which agree
      std::memcpy(x, p, static_cast<std::size_t>(some) * sizeof(double));
      std::memcpy(y, q, static_cast<std::size_t>(some) * sizeof(double));
      p = x, q = y;
    }
    for (int i = 0; i < kLanes; i += 8)
      for (int j = 0; j < 8; ++j) {
        const double apart = magnitude(p[i + j] - q[i + j]), sum = atol + rtol * magnitude(q[i + j]);
        const double allowed = sum < __DBL_MAX__ ? sum : __DBL_MAX__;
        const std::uint64_t far =
            __builtin_bit_cast(std::uint64_t, allowed) - __builtin_bit_cast(std::uint64_t, apart);
        flags[i + j] = static_cast<std::uint8_t>(far >> 63);
        const std::uint64_t bits = __builtin_bit_cast(std::uint64_t, apart);
        largest_bits[j] = bits > largest_bits[j] ? bits : largest_bits[j];
      }
    std::uint64_t most = 0;
    for (const std::uint64_t bits : largest_bits) most = bits > most ? bits : most;
    if (most > __builtin_bit_cast(std::uint64_t, __DBL_MAX__)) mark_special(p, q, some, nan_agrees, flags);
    int in_block = 0;
    for (const std::uint8_t flag : flags) in_block += flag;
    count += in_block;
    std::memcpy(differs + begin, flags, static_cast<std::size_t>(some));
  }
  return count;
}

#define EJK_CLOSE_KERNELS                                                                           \
  .pair_stats_32 = pair_stats_32, .pair_stats_64 = pair_stats_64, .pair_stats_f16 = pair_stats_f16, \
  .pair_stats_bf16 = pair_stats_bf16, .mark_differences = mark_differences
