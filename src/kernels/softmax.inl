// Softmax on the arithmetics of kernels/matmul.inl.

// Truth of comparisons, and the bits of a vector of sums: whole numbers as wide as its elements.
template <class U>
using Bits = decltype(typename U::Vec{} < typename U::Vec{});

template <class U>
typename U::Vec all_of(typename U::Sum x) {
  return U::spread_a(reinterpret_cast<const char*>(&x));
}

// A constant of a loop; with 16 registers it may come from memory each time.
template <class U>
typename U::Vec constant(typename U::Sum x) {
  if constexpr (sizeof(typename U::Vec) == kLine) {
    return all_of<U>(x);
  } else {
    typename U::Vec v;
    for (int i = 0; i < U::kLanes; ++i) v[i] = x;
    return v;
  }
}

template <class U>
constexpr typename U::Sum kNever = -__builtin_huge_val();

template <class To, class From>
To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// Constants of exp: adding kRound rounds to a whole number n and leaves n + bias in the lowest bits.
template <class Real>
struct ExpOf;

template <>
struct ExpOf<float> {
  static constexpr float kRound = 12582912.0F + 127.0F;
  static constexpr int kShift = 23;
  static constexpr float kLowest = -87.0F, kHighest = 88.37F;
  static constexpr float kLn2 = 0.693359375F, kLn2Rest = -2.12194440e-4F;
  static constexpr float kQ[] = {0.49999994F, 0.16666521F, 0.04166839F, 0.008368745F, 0.0013814541F};
};

template <>
struct ExpOf<double> {
  static constexpr double kRound = 6755399441055744.0 + 1023.0;
  static constexpr int kShift = 52;
  static constexpr double kLowest = -708.0, kHighest = 709.4;
  static constexpr double kLn2 = 6.93145751953125e-1, kLn2Rest = 1.42860682030941723212e-6;
  static constexpr double kQ[] = {
      0.50000000000000106271,   0.16666666666666412523,    0.04166666666653015859,   0.0083333333334944616641,
      0.0013888888943630112946, 0.00019841269506578687653, 2.4801493098906550659e-5, 2.7557586373840163694e-6,
      2.7630248379211443975e-7, 2.5000061602835666699e-8};
};

// exp(x) = two_n · (1 + fraction), kLowest ≤ x ≤ kHighest; fraction is NaN where x is.
template <class U>
struct Power {
  typename U::Vec two_n, fraction;
};

template <class U>
[[gnu::always_inline]] inline Power<U> power(typename U::Vec x) {
  using Vec = typename U::Vec;
  using Real = typename U::Sum;
  using E = ExpOf<Real>;
  constexpr int kTerms = sizeof(E::kQ) / sizeof(Real);
  const Vec shifted = x * constant<U>(Real(1.44269504088896340736)) + constant<U>(E::kRound);
  const Vec n = shifted - constant<U>(E::kRound);
  const Vec r = (x - n * constant<U>(E::kLn2)) - n * constant<U>(E::kLn2Rest);
  // By pairs of terms: half as long a chain of operations.
  const auto pair = [&](int i) { return constant<U>(E::kQ[i + 1]) * r + constant<U>(E::kQ[i]); };
  const Vec square = r * r;
  Vec q = kTerms % 2 == 1 ? constant<U>(E::kQ[kTerms - 1]) : pair(kTerms - 2);
#pragma GCC unroll 16
  for (int i = (kTerms - 3) / 2 * 2; i >= 0; i -= 2) q = q * square + pair(i);
  return {bits_as<Vec>(bits_as<Bits<U>>(shifted) << E::kShift), q * square + r};
}

// x, 0 in the lanes of `none`.
template <class U>
typename U::Vec zero_where(Bits<U> none, typename U::Vec x) {
  // Vectors of 64 bytes have masks; of others a blend costs two to three times what an "and" does.
  if constexpr (sizeof x == kLine)
    return none ? U::zero() : x;
  else
    return bits_as<typename U::Vec>(bits_as<Bits<U>>(x) & ~none);
}

// For x ≤ 0 or NaN. What power() makes of an x below the lowest does not matter.
template <class U>
[[gnu::always_inline]] inline typename U::Vec exp_below(typename U::Vec x) {
  const Power<U> p = power<U>(x);
  return zero_where<U>(x < constant<U>(ExpOf<typename U::Sum>::kLowest), p.two_n * p.fraction + p.two_n);
}

template <class U>
typename U::Vec exp_any(typename U::Vec x) {
  return x > constant<U>(ExpOf<typename U::Sum>::kHighest) ? constant<U>(-kNever<U>) : exp_below<U>(x);
}

// By e = exp(−2|x|): (1 − e) / (1 + e), of which 1 − e keeps the digits of a small x, and 4 e / (1 + e)².
template <class U>
struct Tanh {
  typename U::Vec value, slope;
};

template <class U>
[[gnu::always_inline]] inline Tanh<U> tanh_of(typename U::Vec x) {
  using Vec = typename U::Vec;
  const Vec y = (x < U::zero() ? x : -x) * all_of<U>(2), least = all_of<U>(ExpOf<typename U::Sum>::kLowest);
  const Power<U> p = power<U>(y < least ? least : y);
  const Vec e = p.two_n * p.fraction + p.two_n, below = p.two_n * p.fraction + (p.two_n - all_of<U>(1));
  const Vec above = all_of<U>(2) + below, t = below / above;
  return {x < U::zero() ? t : -t, all_of<U>(4) * e / (above * above)};
}

// All lanes by f, in pairs of ever more distant ones.
template <class U, int S = 1, class F>
typename U::Sum over_lanes(typename U::Vec v, F f) {
  if constexpr (S < U::kLanes) {
    constexpr std::make_index_sequence<U::kLanes> kAll;
    return over_lanes<U, 2 * S>(f(v, exchanged<S, 1>(v, exchanged<S, 0>(v, v, kAll), kAll)), f);
  }
  return v[0];
}

// Which of the lanes at element j count: bit first + j of `bits` is set, and j is below n.
template <class U>
Bits<U> visible(const std::uint64_t* bits, std::int64_t first, std::int64_t j, std::int64_t n) {
  Bits<U> lane_bit;
  for (int i = 0; i < U::kLanes; ++i) lane_bit[i] = 1 << i;
  std::uint64_t word = ~std::uint64_t{0};
  if (bits != nullptr) word = bits[(first + j) / 64] >> ((first + j) % 64);
  if (n - j < U::kLanes) word &= (std::uint64_t{1} << (n - j)) - 1;
  const auto low = static_cast<int>(word & 0xFFFFu);
  return ((Bits<U>{} + low) & lane_bit) != 0;
}

enum class Biased { no, after_cap, before_cap };

template <class U, bool Capped, Biased Bias>
typename U::Sum finish_scores(const Scoring<typename U::Sum>& how, typename U::Sum* s, std::int64_t n,
                              const typename U::Sum* bias, const std::uint64_t* bits, std::int64_t first_bit,
                              typename U::Sum* slope) {
  using Vec = typename U::Vec;
  const Vec scale = all_of<U>(how.scale), hidden = all_of<U>(kNever<U>);
  const Vec cap = all_of<U>(how.cap);
  Vec most = hidden;
  const auto finish = [&](std::int64_t j, bool all) {
    Vec v = U::load(s + j) * scale;
    if constexpr (Bias == Biased::before_cap) v = v + U::load(bias + j);
    if constexpr (Capped) {
      const Tanh<U> t = tanh_of<U>(v / cap);
      v = cap * t.value;
      if (slope != nullptr) U::store(slope + j, t.slope);
    }
    if constexpr (Bias == Biased::after_cap) v = v + U::load(bias + j);
    if (!all) v = visible<U>(bits, first_bit, j, n) ? v : hidden;
    most = v > most ? v : most;
    U::store(s + j, v);
  };
  std::int64_t j = 0;
  if (bits == nullptr)
    for (; j + U::kLanes <= n; j += U::kLanes) finish(j, true);
  for (; j < n; j += U::kLanes) finish(j, false);
  const auto largest = over_lanes<U>(most, [](Vec a, Vec b) { return a > b ? a : b; });
  if (largest != kNever<U>) return largest;
  typename U::Sum nan = kNever<U>;
  for (j = 0; j < n; ++j)
    if (s[j] != s[j]) nan = s[j];
  return nan;
}

template <class U>
typename U::Sum scores(const Scoring<typename U::Sum>& how, typename U::Sum* s, std::int64_t n,
                       const typename U::Sum* bias, const std::uint64_t* bits, std::int64_t first_bit,
                       typename U::Sum* slope) {
  const auto run = [&]<bool Capped, Biased Bias>() {
    return finish_scores<U, Capped, Bias>(how, s, n, bias, bits, first_bit, slope);
  };
  if (how.cap > 0)
    return bias == nullptr      ? run.template operator()<true, Biased::no>()
           : how.bias_is_capped ? run.template operator()<true, Biased::before_cap>()
                                : run.template operator()<true, Biased::after_cap>();
  return bias != nullptr ? run.template operator()<false, Biased::after_cap>()
                         : run.template operator()<false, Biased::no>();
}

template <class U>
typename U::Sum weights(const typename U::Sum* s, std::int64_t n, typename U::Sum most,
                        typename U::Sum* weight) {
  using Vec = typename U::Vec;
  const Vec top = all_of<U>(most);
  Vec sum = U::zero();
  for (std::int64_t j = 0; j < n; j += U::kLanes) {
    const Vec w = exp_below<U>(U::load(s + j) - top);
    sum = sum + w;
    U::store(weight + j, w);
  }
  return over_lanes<U>(sum, [](Vec a, Vec b) { return a + b; });
}

template <class U>
void gradients(const typename U::Sum* s, const typename U::Sum* dp, std::int64_t n,
               const typename U::Sum* lse, const typename U::Sum* delta, const typename U::Sum* slope,
               typename U::Sum scale, typename U::Sum* weight, typename U::Sum* gradient) {
  using Vec = typename U::Vec;
  const Vec factor = all_of<U>(scale), never = all_of<U>(kNever<U>);
  for (std::int64_t j = 0; j < n; j += U::kLanes) {
    const Vec score = U::load(s + j), of = U::load(lse + j);
    const Vec w = exp_any<U>(score - of);
    Vec g = w * (U::load(dp + j) - U::load(delta + j)) * factor;
    if (slope != nullptr) g = g * U::load(slope + j);
    const Bits<U> none = (score == never) | (of == never);
    U::store(weight + j, zero_where<U>(none, w));
    U::store(gradient + j, zero_where<U>(none, g));
  }
}

template <class U>
void split(const typename U::Sum* weight, std::int64_t n, std::uint16_t* const part[3]) {
  using Vec = typename U::Vec;
  for (std::int64_t j = 0; j < n; j += U::kLanes) {
    Vec rest = U::load(weight + j);
    for (int p = 0; p < 3; ++p) {
      const Bits<U> upper = bits_as<Bits<U>>(rest) >> 16;
      int lane[U::kLanes];
      std::memcpy(lane, &upper, sizeof lane);
      for (int i = 0; i < U::kLanes; ++i) part[p][j + i] = static_cast<std::uint16_t>(lane[i]);
      rest = rest - bits_as<Vec>(upper << 16);
    }
  }
}

template <class U>
void scale_row(typename U::Sum* x, std::int64_t n, typename U::Sum factor) {
  const typename U::Vec f = all_of<U>(factor);
  std::int64_t j = 0;
  for (; j + U::kLanes <= n; j += U::kLanes) U::store(x + j, U::load(x + j) * f);
  if (j < n) U::store_part(x + j, U::load_part(x + j, static_cast<int>(n - j)) * f, static_cast<int>(n - j));
}

template <class U>
constexpr Softmax<typename U::Sum> softmax() {
  void (*in_parts)(const typename U::Sum*, std::int64_t, std::uint16_t* const[3]) = nullptr;
  if constexpr (sizeof(typename U::Sum) == 4) in_parts = split<U>;
  return {.lanes = U::kLanes,
          .scores = scores<U>,
          .weights = weights<U>,
          .gradients = gradients<U>,
          .split = in_parts,
          .scale = scale_row<U>};
}

constinit const Softmax<float> softmax_f32 = softmax<F32>();
constinit const Softmax<double> softmax_f64 = softmax<F64>();

#define EJK_SOFTMAX_KERNELS .softmax_f32 = &softmax_f32, .softmax_f64 = &softmax_f64
