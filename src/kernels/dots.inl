// Dot products of few rows with many, where both lie; on the vectors of F32 and F64, arithmetics of
// kernels/matmul.inl, included after it by each instruction set's file inside its own unnamed namespace.
//
// A product is summed lane by lane and then over the lanes in one order, whatever rows are computed with it.

// A value that stays in a register. Compilers load what they know to be in memory anew as a factor of each
// instruction, and loads are what dots() is short of.
template <class V>
[[gnu::always_inline]] inline V kept(V v) {
#if defined(__x86_64__)
  __asm__("" : "+v"(v));
#elif defined(__aarch64__)
  __asm__("" : "+w"(v));
#endif
  return v;
}

// Of each four elements side by side, those of a and then of b: the first and third, or the second and fourth.
template <int Odd, class V, std::size_t... I>
V every_second(V a, V b, std::index_sequence<I...>) {
  constexpr int kLanes = sizeof...(I);
  return __builtin_shufflevector(
      a, b,
      (static_cast<int>(I) / 4 * 4 + static_cast<int>(I) % 2 * 2 + Odd + ((I & 2) != 0 ? kLanes : 0))...);
}

// Sums of lanes, of L vectors from `sum` on: lane i of the result is that of vector i.
template <class U, int S = 1>
[[gnu::always_inline]] inline typename U::Vec lane_sums(typename U::Vec* sum) {
  if constexpr (S < U::kLanes) {
    constexpr std::make_index_sequence<U::kLanes> kAll;
#pragma GCC unroll 16
    for (int i = 0; i < U::kLanes; i += 2 * S) {
      const typename U::Vec a = sum[i], b = sum[i + S];
      if constexpr (sizeof(typename U::Sum) == 4 && S <= 2)  // fewer instructions than exchanging lanes
        sum[i] = every_second<0>(a, b, kAll) + every_second<1>(a, b, kAll);
      else
        sum[i] = exchanged<S, 0>(a, b, kAll) + exchanged<S, 1>(a, b, kAll);
    }
    return lane_sums<U, 2 * S>(sum);
  }
  return sum[0];
}

// As many sums at once as hide the time of one, a multiple of a vector's lanes.
template <class U>
constexpr int kDots = U::kLanes < 8 ? 8 : U::kLanes;

// Rows that one pass over the keys is for. With as many, arithmetic takes the time, and lines are asked for
// before a pass; with fewer it is memory, and they are step by step.
constexpr int kDotsRows = 4;

// R rows by kDots / R keys; `ahead` lines are asked for at every step of the contraction, or before the first.
template <class U, DType D, int R>
void dots_of(const typename U::Sum* a, std::int64_t a_stride, const char* const* key, std::int64_t k,
             typename U::Sum* out, std::int64_t out_stride, Lines& lines, std::int64_t ahead) {
  constexpr int kKeys = kDots<U> / R, kLanes = U::kLanes;
  typename U::Vec sum[kDots<U>];
#pragma GCC unroll 16
  for (int i = 0; i < kDots<U>; ++i) sum[i] = U::zero();
  if constexpr (R == kDotsRows) lines.prefetch(ahead);
  const auto add = [&](std::int64_t d, auto&& elements) {
    if constexpr (R < kDotsRows) lines.prefetch(ahead);
    typename U::Vec row[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) row[r] = kept(U::load(a + r * a_stride + d));
#pragma GCC unroll 16
    for (int j = 0; j < kKeys; ++j) {
      const typename U::Vec keys = elements(key[j] + d * bytes_of(D));
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sum[r * kKeys + j] = U::mac(sum[r * kKeys + j], row[r], keys);
    }
  };
  std::int64_t d = 0;
  for (; d + kLanes <= k; d += kLanes) add(d, [](const char* p) { return U::template widen<D>(p); });
  if (d < k) add(d, [&](const char* p) { return units_at<U, D>(p, k - d); });
  alignas(kLine) typename U::Sum dots[kDots<U>];
#pragma GCC unroll 4
  for (int i = 0; i < kDots<U>; i += kLanes) U::store(dots + i, lane_sums<U>(sum + i));
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
    std::memcpy(out + r * out_stride, dots + r * kKeys, kKeys * sizeof(typename U::Sum));
}

template <class U, DType D, int R>
void dots_of_rows(const typename U::Sum* a, std::int64_t a_stride, std::int64_t rows, const char* const* key,
                  std::int64_t k, typename U::Sum* out, std::int64_t out_stride, Lines& lines,
                  std::int64_t ahead) {
  static_assert(kDotsKeys % kDots<U> == 0);
  const std::int64_t rest = rows >= kDotsRows ? 0 : ahead;  // lines for the rows behind whole passes
  for (; rows >= R; rows -= R, a += R * a_stride, out += R * out_stride)
    for (int j = 0; j < kDotsKeys; j += kDots<U> / R)
      dots_of<U, D, R>(a, a_stride, key + j, k, out + j, out_stride, lines, ahead);
  if constexpr (R > 1)
    if (rows > 0) dots_of_rows<U, D, R / 2>(a, a_stride, rows, key, k, out, out_stride, lines, rest);
}

template <class U>
void dots(const typename U::Sum* a, std::int64_t a_stride, std::int64_t rows, const StridedMatrix& b,
          std::int64_t keys, std::int64_t k, typename U::Sum* out, std::int64_t out_stride,
          const Ahead& next) {
  Lines lines(next);
  with_dtype<U>(b.dtype, [&]<DType D>(std::integral_constant<DType, D>) {
    // How often lines are asked for, over which they are spread.
    const std::int64_t blocks = padded(keys, kDotsKeys) / kDots<U>;  // of one row
    const std::int64_t times = rows >= kDotsRows ? rows / kDotsRows * kDotsRows * blocks
                                                 : rows * blocks * (padded(k, U::kLanes) / U::kLanes);
    const std::int64_t all = next.rows * (padded(next.row_bytes, kLine) / kLine);
    const std::int64_t ahead = times == 0 ? 0 : padded(all, times) / times;
    const auto* const first = static_cast<const char*>(b.data);
    for (std::int64_t j = 0; j < keys; j += kDotsKeys) {
      const char* key[kDotsKeys];
      for (std::int64_t i = 0; i < kDotsKeys; ++i)
        key[i] = first + (j + i < keys ? j + i : keys - 1) * b.row_stride;
      dots_of_rows<U, D, kDotsRows>(a, a_stride, rows, key, k, out + j, out_stride, lines, ahead);
    }
  });
}

#define EJK_DOTS_KERNELS .dots_f32 = dots<F32>, .dots_f64 = dots<F64>
