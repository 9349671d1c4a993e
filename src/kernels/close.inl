// Differences of pairs of floats: plain loops over lanes, which the compiler vectorizes. Nonnegative floats
// are ordered as their bits, so the top bit of a difference of bits is a comparison, which is cheaper than to
// compare and count.

inline float magnitude(float x) { return __builtin_fabsf(x); }
inline double magnitude(double x) { return __builtin_fabs(x); }

inline float largest(float) { return __FLT_MAX__; }
inline double largest(double) { return __DBL_MAX__; }

inline float smallest_normal(float) { return __FLT_MIN__; }
inline double smallest_normal(double) { return __DBL_MIN__; }

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

// The integer of the bits without the sign, negative with it: neighbouring floats are one apart.
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

template <class V, int n, class Join>
V join_all(const V (&values)[n], Join join) {
  if constexpr (n == 1) {
    return values[0];
  } else {
    V half[n / 2];
    for (int i = 0; i < n / 2; ++i) half[i] = join(values[i], values[i + n / 2]);
    return join_all(half, join);
  }
}

template <class V, int n>
V most_of(const V (&values)[n]) {
  return join_all(values, [](V x, V y) { return x > y ? x : y; });
}

template <class V, int n>
V sum_of(const V (&values)[n]) {
  return join_all(values, [](V x, V y) { return static_cast<V>(x + y); });
}

constexpr std::uintptr_t kCloseAhead = 2048;  // bytes

bool same_bytes(const void* a, const void* e, std::int64_t n) {
  constexpr int kAtOnce = 512, kWords = 8;
  const auto *p = static_cast<const unsigned char*>(a), *q = static_cast<const unsigned char*>(e);
  for (; n >= kAtOnce; n -= kAtOnce, p += kAtOnce, q += kAtOnce) {
    prefetch_ahead<kAtOnce / 64, kCloseAhead>(p);
    prefetch_ahead<kAtOnce / 64, kCloseAhead>(q);
    Word x[kAtOnce / 8], y[kAtOnce / 8], apart[kWords] = {};
    std::memcpy(x, p, sizeof x);
    std::memcpy(y, q, sizeof y);
    for (int i = 0; i < kAtOnce / 8; i += kWords)
      for (int j = 0; j < kWords; ++j) apart[j] |= x[i + j] ^ y[i + j];
    if (join_all(apart, [](Word v, Word w) { return v | w; }) != 0) return false;
  }
  return n == 0 || std::memcmp(p, q, static_cast<std::size_t>(n)) == 0;  // of no bytes they may be null
}

// Modes of comparison. Full: |x - y| <= atol + rtol · |y|, and what |x - y| / |y| is.
template <class V>
struct Thoroughly {
  V rtol, atol;
};
// Where no |x - y| is more than limit · |y|, they are close and no quotient is above the limit: no division.
template <class V>
struct Quickly {
  V limit;
};
// Of pairs that are the same: one side.
struct Same {};

// What is kept of floats in V, in lanes. The sums are of squares.
template <class V, int lanes>
struct Sizes {
  using U = typename SameSize<V>::Unsigned;
  V difference[lanes] = {}, relative[lanes] = {};
  V differences[lanes] = {}, actual[lanes] = {}, expected[lanes] = {};
  U far[lanes] = {}, small[lanes] = {};

  void add(int lane, V x, V y, V apart) {
    difference[lane] = apart > difference[lane] ? apart : difference[lane];
    differences[lane] += apart * apart;
    actual[lane] += x * x;
    expected[lane] += y * y;
  }

  // The top bit of far is set unless they are close and both finite: infinite or NaN differences exceed the
  // largest number.
  void see(int lane, V x, V y, Thoroughly<V> how) {
    const V apart = magnitude(x - y), size = magnitude(y), sum = how.atol + how.rtol * size;
    const V allowed = sum < largest(sum) ? sum : largest(sum);
    far[lane] |= __builtin_bit_cast(U, allowed) - __builtin_bit_cast(U, apart);
    const V share = size > 0 ? apart / size : V{0};
    relative[lane] = share > relative[lane] ? share : relative[lane];
    add(lane, x, y, apart);
  }
  // The top bit of far is set where |x - y| > limit · |y|; small: where that product loses bits.
  void see(int lane, V x, V y, Quickly<V> how) {
    const V apart = magnitude(x - y);
    const U allowed = __builtin_bit_cast(U, how.limit * magnitude(y)), inverse = U{0} - allowed;
    far[lane] |= allowed - __builtin_bit_cast(U, apart);
    small[lane] = inverse > small[lane] ? inverse : small[lane];
    add(lane, x, y, apart);
  }
  void see(int lane, V x, V, Same) { actual[lane] += x * x; }
};

template <class V>
struct Floats {
  using Element = V;
  using Value = V;
  using U = typename SameSize<V>::Unsigned;
  static constexpr int kLanes = 16, kExactBits = 0;
  Sizes<V, kLanes> sizes;
  U steps[kLanes] = {}, zero[kLanes] = {};

  template <class How>
  void see(const V* a, const V* e, How how) {
    for (int i = 0; i < kLanes; ++i) {
      sizes.see(i, a[i], e[i], how);
      const U x = __builtin_bit_cast(U, a[i]), y = __builtin_bit_cast(U, e[i]);
      zero[i] += (x | y) << 1 == 0 ? U{1} : U{0};
      const U apart = steps_between<typename SameSize<V>::Signed>(x, y);
      steps[i] = apart > steps[i] ? apart : steps[i];
    }
  }
  bool special() const { return false; }
};

// 32 halves as floats, in a fixed order, two to a word of 32 bits. f(upper 16 bits of a word) is the float.
template <class F>
void widen_words(const std::uint16_t* from, float* to, F&& f) {
  for (int i = 0; i < 16; ++i) {
    std::uint32_t word = 0;
    std::memcpy(&word, from + 2 * i, 4);
    to[i] = f(word << 16);
    to[16 + i] = f(word & 0xFFFF0000u);
  }
}
inline void widen_bfloat16(const std::uint16_t* from, float* to) {
  widen_words(from, to, [](std::uint32_t bits) { return __builtin_bit_cast(float, bits); });
}
#ifndef EJK_WIDENS_FLOAT16  // infinities and NaN become numbers
inline void widen_float16(const std::uint16_t* from, float* to) {
  widen_words(from, to, [](std::uint32_t bits) {
    // The factor makes up for the smaller bias, subnormal or not.
    const float value = __builtin_bit_cast(float, bits >> 3 & 0x0FFFE000u) * 0x1p112f;
    return __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, value) | (bits & 0x80000000u));
  });
}
#endif

template <DType type>
struct Halves {
  using Element = std::uint16_t;
  using Value = float;
  static constexpr int kLanes = 32;
  static constexpr int kExactBits = 12;  // of the fraction of what products with any element are exact with
  Sizes<float, kLanes / 2> sizes;
  std::int16_t beyond[kLanes] = {};
  std::uint16_t steps[kLanes] = {}, zero[kLanes] = {};

  template <class How>
  void see(const std::uint16_t* a, const std::uint16_t* e, How how) {
    constexpr auto widen = type == DType::float16 ? widen_float16 : widen_bfloat16;
    float x[kLanes], y[kLanes];
    widen(a, x);
    widen(e, y);
    for (int half = 0; half < kLanes; half += kLanes / 2)
      for (int i = 0; i < kLanes / 2; ++i) sizes.see(i, x[half + i], y[half + i], how);
    for (int i = 0; i < kLanes; ++i) {
      if constexpr (type == DType::float16) {  // whose infinities and NaN may be numbers now
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

// Compares n pairs. The last lanes are padded with 0, which is close.
template <class Pairs, class How>
Pairs compare_pairs(const typename Pairs::Element* a, const typename Pairs::Element* e, std::int64_t n,
                    How how) {
  using Element = typename Pairs::Element;
  constexpr int kLanes = Pairs::kLanes, kLines = kLanes * static_cast<int>(sizeof(Element)) / 64;
  Pairs pairs;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    prefetch_ahead<kLines, kCloseAhead>(a + i);
    prefetch_ahead<kLines, kCloseAhead>(e + i);
    pairs.see(a + i, e + i, how);
  }
  if (i < n) {
    Element last_a[kLanes] = {}, last_e[kLanes] = {};
    std::memcpy(last_a, a + i, static_cast<std::size_t>(n - i) * sizeof(Element));
    std::memcpy(last_e, e + i, static_cast<std::size_t>(n - i) * sizeof(Element));
    pairs.see(last_a, last_e, how);
  }
  return pairs;
}

template <class Pairs>
PairStats<typename Pairs::Value> stats_of(const Pairs& pairs, std::int64_t n, bool one_side = false) {
  PairStats<typename Pairs::Value> stats;
  stats.difference = most_of(pairs.sizes.difference);
  stats.relative = most_of(pairs.sizes.relative);
  stats.steps = static_cast<std::uint64_t>(most_of(pairs.steps));
  stats.difference_squares = sum_of(pairs.sizes.differences);
  stats.actual_squares = sum_of(pairs.sizes.actual);
  stats.expected_squares = one_side ? stats.actual_squares : sum_of(pairs.sizes.expected);
  const auto squares = stats.actual_squares + stats.expected_squares + stats.difference_squares;
  stats.finite = squares <= largest(squares) && !pairs.special();
  stats.close = stats.finite && !any_top_bit(pairs.sizes.far);
  for (const auto count : pairs.zero) stats.zeros += static_cast<std::int64_t>(count);
  stats.zeros -= (n + Pairs::kLanes - 1) / Pairs::kLanes * Pairs::kLanes - n;  // those that fill up
  return stats;
}

// A limit within which no quotient is above `known`.
template <class Pairs>
typename Pairs::Value surely_within(typename Pairs::Value known) {
  using U = typename SameSize<typename Pairs::Value>::Unsigned;
  constexpr int kFraction = sizeof(U) == 8 ? 52 : 23;
  constexpr U kOthers = (U{1} << (kFraction - Pairs::kExactBits)) - 1;
  return (__builtin_bit_cast(U, known) & kOthers) == 0 ? known : known - known * 0x1p-20f;
}

template <class Pairs>
PairStats<typename Pairs::Value> pair_stats(const typename Pairs::Element* a,
                                            const typename Pairs::Element* e, std::int64_t n,
                                            typename Pairs::Value rtol, typename Pairs::Value atol,
                                            typename Pairs::Value known) {
  using V = typename Pairs::Value;
  using U = typename SameSize<V>::Unsigned;
  if (same_bytes(a, e, n * static_cast<std::int64_t>(sizeof *a))) {
    return stats_of(compare_pairs<Pairs>(a, a, n, Same{}), n, true);
  }
  const V apart = surely_within<Pairs>(known), limit = apart < rtol ? apart : rtol;
  Pairs pairs = compare_pairs<Pairs>(a, e, n, Quickly<V>{limit});
  if (any_top_bit(pairs.sizes.far) ||
      most_of(pairs.sizes.small) > U{0} - __builtin_bit_cast(U, smallest_normal(V{0})))
    pairs = compare_pairs<Pairs>(a, e, n, Thoroughly<V>{rtol, atol});
  return stats_of(pairs, n);
}

PairStats<float> pair_stats_32(const float* a, const float* e, std::int64_t n, float rtol, float atol,
                               float known) {
  return pair_stats<Floats<float>>(a, e, n, rtol, atol, known);
}

PairStats<double> pair_stats_64(const double* a, const double* e, std::int64_t n, double rtol, double atol,
                                double known) {
  return pair_stats<Floats<double>>(a, e, n, rtol, atol, known);
}

PairStats<float> pair_stats_f16(const std::uint16_t* a, const std::uint16_t* e, std::int64_t n, float rtol,
                                float atol, float known) {
  return pair_stats<Halves<DType::float16>>(a, e, n, rtol, atol, known);
}

PairStats<float> pair_stats_bf16(const std::uint16_t* a, const std::uint16_t* e, std::int64_t n, float rtol,
                                 float atol, float known) {
  return pair_stats<Halves<DType::bfloat16>>(a, e, n, rtol, atol, known);
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

double dot_64(const double* a, const double* b, std::int64_t n) {
  constexpr int kSums = 8;
  double sums[kSums] = {};
  std::int64_t i = 0;
  for (; i + kSums <= n; i += kSums)
    for (int u = 0; u < kSums; ++u) sums[u] += a[i + u] * b[i + u];
  for (; i < n; ++i) sums[i % kSums] += a[i] * b[i];
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

void add_64(double* to, double factor, const double* row, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += factor * row[i];
}

#define EJK_CLOSE_KERNELS                                                                             \
  .pair_stats_32 = pair_stats_32, .pair_stats_64 = pair_stats_64, .pair_stats_f16 = pair_stats_f16,   \
  .pair_stats_bf16 = pair_stats_bf16, .same_bytes = same_bytes, .mark_differences = mark_differences, \
  .dot_64 = dot_64, .add_64 = add_64
