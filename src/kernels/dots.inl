// Dot products of few rows with many, in place, on the arithmetics of kernels/matmul.inl. A product is summed
// lane by lane and then over the lanes in one order, whatever rows are computed with it.

// A value that stays in a register: compilers would reload it as a factor of each instruction.
template <class V>
[[gnu::always_inline]] inline V kept(V v) {
#if defined(__x86_64__)
  __asm__("" : "+v"(v));
#elif defined(__aarch64__)
  __asm__("" : "+w"(v));
#endif
  return v;
}

// Of each four contiguous elements, those of a and then of b: the first and third, or second and fourth.
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

// A part of a later row of memory, if rows are not contiguous: processors do not read ahead over gaps.
inline void prefetch_after_gap(const char* row, std::int64_t bytes, std::int64_t stride) {
  if (bytes < stride)
    for (std::int64_t line = 0; line < bytes; line += kLine) __builtin_prefetch(row + line);
}

inline std::int64_t lines_each_time(const Ahead& next, std::int64_t times) {
  const std::int64_t all = next.rows * (padded(next.row_bytes, kLine) / kLine);
  return times == 0 ? all : padded(all, times) / times;
}

// As many sums at once as hide the latency of one, a multiple of a vector's lanes.
template <class U>
constexpr int kDots = U::kLanes < 8 ? 8 : U::kLanes;

// From this many rows of a pass on arithmetic limits, and lines are prefetched before a pass; else step by
// step.
constexpr int kDotsRows = 4;

// R rows by kDots / R keys; `ahead` lines are prefetched at every step of the contraction, or before.
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

// Keys stored element by element: a vector is an element of several keys. Sums l are those of lane l in
// dots_of(), added as its lanes are: the same bits.

// Keys at once, for one row; there are as many vectors of sums, in half of a first-level cache of 32 KiB.
template <class U>
constexpr std::int64_t kTurnedKeys = (16 << 10) / sizeof(typename U::Vec);

// R rows by up to kTurnedKeys / R keys.
template <class U, DType D, int R>
void turned_dots_of(const typename U::Sum* a, std::int64_t a_stride, const char* b, std::int64_t stride,
                    std::int64_t keys, std::int64_t k, typename U::Sum* out, std::int64_t out_stride,
                    Lines& lines, std::int64_t ahead) {
  constexpr int kLanes = U::kLanes;
  const auto vectors = static_cast<int>(padded(keys, kDotsKeys) / kLanes);
  typename U::Vec sums[kTurnedKeys<U>];
  const int of_lane = R * vectors;
  for (int i = 0; i < kLanes * of_lane; ++i) sums[i] = U::zero();
  for (std::int64_t d = 0; d < padded(k, kLanes); ++d, b += stride) {
    lines.prefetch(ahead);
    typename U::Pack row[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) row[r] = U::spread_a(reinterpret_cast<const char*>(a + r * a_stride + d));
    typename U::Vec* const sum = sums + d % kLanes * of_lane;
    const auto add = [&](int v, typename U::Vec element) __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sum[v * R + r] = U::mac(sum[v * R + r], row[r], element);
    };
    const std::int64_t some = d < k ? keys : 0;
    prefetch_after_gap(b + 2 * stride, some * bytes_of(D), stride);
    int v = 0;
#pragma GCC unroll 4
    for (; (v + 1) * kLanes <= some; ++v) add(v, whole_units<U, D>(b + v * kLanes * bytes_of(D)));
    for (; v < vectors; ++v) add(v, units_at<U, D>(b + v * kLanes * bytes_of(D), some - v * kLanes));
  }
  for (int s = 1; s < kLanes; s *= 2)
    for (int i = 0; i < kLanes; i += 2 * s)
      for (int j = 0; j < of_lane; ++j)
        sums[i * of_lane + j] = sums[i * of_lane + j] + sums[(i + s) * of_lane + j];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < vectors; ++v) U::store(out + r * out_stride + v * kLanes, sums[v * R + r]);
}

template <class U, DType D, int R>
void turned_dots(const typename U::Sum* a, std::int64_t a_stride, std::int64_t rows, const StridedMatrix& b,
                 std::int64_t keys, std::int64_t k, typename U::Sum* out, std::int64_t out_stride,
                 Lines& lines, std::int64_t ahead) {
  constexpr std::int64_t kKeys = kTurnedKeys<U> / R;
  for (; rows >= R; rows -= R, a += R * a_stride, out += R * out_stride)
    for (std::int64_t j = 0; j < keys; j += kKeys)
      turned_dots_of<U, D, R>(a, a_stride, static_cast<const char*>(b.data) + j * bytes_of(D),
                              b.column_stride, keys - j < kKeys ? keys - j : kKeys, k, out + j, out_stride,
                              lines, ahead);
  if constexpr (R > 1)
    if (rows > 0) turned_dots<U, D, R / 2>(a, a_stride, rows, b, keys, k, out, out_stride, lines, ahead);
}

template <class U>
void dots(const typename U::Sum* a, std::int64_t a_stride, std::int64_t rows, const StridedMatrix& b,
          std::int64_t keys, std::int64_t k, typename U::Sum* out, std::int64_t out_stride,
          const Ahead& next) {
  Lines lines(next);
  with_dtype<U>(b.dtype, [&]<DType D>(std::integral_constant<DType, D>) {
    if (b.column_stride != bytes_of(D)) {
      const std::int64_t times = padded(keys * rows, kTurnedKeys<U>) / kTurnedKeys<U> * padded(k, U::kLanes);
      return turned_dots<U, D, kDotsRows>(a, a_stride, rows, b, keys, k, out, out_stride, lines,
                                          lines_each_time(next, times));
    }
    // The number of prefetches, over which lines are spread.
    const std::int64_t blocks = padded(keys, kDotsKeys) / kDots<U>;  // of one row
    const std::int64_t times = rows >= kDotsRows ? rows / kDotsRows * kDotsRows * blocks
                                                 : rows * blocks * (padded(k, U::kLanes) / U::kLanes);
    const std::int64_t ahead = lines_each_time(next, times);
    const auto* const first = static_cast<const char*>(b.data);
    for (std::int64_t j = 0; j < keys; j += kDotsKeys) {
      const char* key[kDotsKeys];
      for (std::int64_t i = 0; i < kDotsKeys; ++i)
        key[i] = first + (j + i < keys ? j + i : keys - 1) * b.row_stride;
      dots_of_rows<U, D, kDotsRows>(a, a_stride, rows, key, k, out + j, out_stride, lines, ahead);
    }
  });
}

// --- the same with rows in panels: a lane is a row, an element of a key is broadcast, nothing is summed over
// lanes.
// (Zen 4, 16 rows of 128 elements, keys in cache, AVX2: float32 37 ns a key, dots() 43; bfloat16 39, dots()
// 48. AVX-512: 36 and 38, 38 and 45. float16: 46 and 63, 43 and 44.)

// Keys whose products are buffered, and contraction elements between prefetches.
constexpr int kPanelKeys = 64, kPanelStep = 16;

template <class U>
constexpr int kPanelVectors = kPanelRows<typename U::Sum> / U::kLanes;

// Elements that are broadcast together: narrower ones in pairs, which takes fewer instructions.
template <class U, DType D>
constexpr int kSpread = bytes_of(D) < static_cast<std::int64_t>(sizeof(typename U::Sum)) ? 2 : 1;

// Keys at once with N vectors of rows: as many sums as registers hold, limited by registers for addresses.
template <class U, DType D, int N>
constexpr int kKeysAtOnce = N == 1 ? 8 : (kSpread<U, D> == 2 ? 10 : 12) / N;

// K keys by the first N vectors of a panel; out: key by key.
template <class U, DType D, int N, int K>
void panel_tile(const typename U::Sum* a, const char* keys, std::int64_t key_stride, std::int64_t k,
                typename U::Sum* out, Lines& lines, std::int64_t ahead) {
  constexpr int kElements = kSpread<U, D>;
  typename U::Vec sum[K][N];
  const char* key[K];
#pragma GCC unroll 8
  for (int j = 0; j < K; ++j) {
    key[j] = keys + j * key_stride;
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) sum[j][v] = U::zero();
  }
  const auto add = [&](std::int64_t d, auto&& elements_of) {
    typename U::Vec row[kElements][N];
#pragma GCC unroll 2
    for (int i = 0; i < kElements; ++i)
#pragma GCC unroll 8
      for (int v = 0; v < N; ++v) row[i][v] = U::load(a + ((d + i) * kPanelVectors<U> + v) * U::kLanes);
#pragma GCC unroll 8
    for (int j = 0; j < K; ++j) {
      typename U::Pack element[kElements];
      if constexpr (kElements == 1)
        element[0] = U::spread_a(elements_of(key[j]));
      else
        U::template spread_pair<D>(elements_of(key[j]), element);
#pragma GCC unroll 2
      for (int i = 0; i < kElements; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < N; ++v) sum[j][v] = U::mac(sum[j][v], element[i], row[i][v]);
    }
  };
  for (std::int64_t d = 0; d < k;) {
    lines.prefetch(ahead);
    const std::int64_t end = k - d < kPanelStep ? k : d + kPanelStep;
    for (; d + kElements <= end; d += kElements) add(d, [&](const char* p) { return p + d * bytes_of(D); });
    if (d == end) continue;
    alignas(8) char last[kElements * bytes_of(D)] = {};
    add(d++, [&](const char* p) {
      std::memcpy(last, p + (k - 1) * bytes_of(D), bytes_of(D));
      return static_cast<const char*>(last);
    });
  }
#pragma GCC unroll 8
  for (int j = 0; j < K; ++j)
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) U::store(out + (j * N + v) * U::kLanes, sum[j][v]);
}

template <class U, DType D, int N>
void panel_of(const typename U::Sum* a, std::int64_t rows, const char* keys, std::int64_t key_stride,
              std::int64_t count, std::int64_t k, typename U::Sum* out, std::int64_t out_stride, Lines& lines,
              std::int64_t ahead) {
  constexpr int kLanes = U::kLanes, kRow = N * kLanes, kAtOnce = kKeysAtOnce<U, D, N>;
  alignas(kLine) typename U::Sum sums[kPanelKeys * kRow];
  for (std::int64_t j = 0; j < count; j += kAtOnce)
    with_rows<kAtOnce>(count - j < kAtOnce ? count - j : kAtOnce, [&]<int K>(std::integral_constant<int, K>) {
      panel_tile<U, D, N, K>(a, keys + j * key_stride, key_stride, k, sums + j * kRow, lines, ahead);
    });
  const std::int64_t columns = padded(count, kDotsKeys);
  std::memset(sums + count * kRow, 0, static_cast<std::size_t>((columns - count) * kRow) * sizeof *sums);
  for (std::int64_t row = 0; row < kRow; row += kLanes)
    for (std::int64_t j = 0; j < columns; j += kLanes) {
      typename U::Vec square[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) square[i] = U::load(sums + (j + i) * kRow + row);
      transpose<1, kLanes>(square);
#pragma GCC unroll 16
      for (int r = 0; r < kLanes; ++r)
        if (row + r < rows) U::store(out + (row + r) * out_stride + j, square[r]);
    }
}

template <class U>
void panel_dots(const typename U::Sum* a, std::int64_t a_stride, std::int64_t rows, const StridedMatrix& b,
                std::int64_t keys, std::int64_t k, typename U::Sum* out, std::int64_t out_stride,
                const Ahead& next) {
  constexpr std::int64_t kRow = kPanelRows<typename U::Sum>;
  static_assert(kPanelKeys % kDotsKeys == 0 && kDotsKeys % U::kLanes == 0 && kRow % U::kLanes == 0);
  Lines lines(next);
  with_dtype<U>(b.dtype, [&]<DType D>(std::integral_constant<DType, D>) {
    // The least number of prefetches, over which lines are spread.
    const std::int64_t times = keys / kKeysAtOnce<U, D, kPanelVectors<U>> * (padded(rows, kRow) / kRow) *
                               (padded(k, kPanelStep) / kPanelStep);
    const std::int64_t ahead = lines_each_time(next, times);
    for (std::int64_t j = 0; j < keys; j += kPanelKeys)
      for (std::int64_t row = 0; row < rows; row += kRow) {
        const std::int64_t some = rows - row < kRow ? rows - row : kRow;
        with_rows<kPanelVectors<U>>(
            (some + U::kLanes - 1) / U::kLanes, [&]<int N>(std::integral_constant<int, N>) {
              panel_of<U, D, N>(a + row * a_stride, some, static_cast<const char*>(b.data) + j * b.row_stride,
                                b.row_stride, keys - j < kPanelKeys ? keys - j : kPanelKeys, k,
                                out + row * out_stride + j, out_stride, lines, ahead);
            });
      }
  });
}

template <class U, class Element>
void turn_elements(const StridedMatrix& in, std::int64_t rows, std::int64_t k, char* out,
                   std::int64_t out_stride) {
  TurnedPiece<U, Element> piece;
  constexpr std::int64_t kElements = piece.kElements, kRows = piece.kRows;
  for (std::int64_t p = 0; p < k; p += kElements)
    for (std::int64_t row = 0; row < rows; row += kRows) {
      const std::int64_t some = rows - row < kRows ? rows - row : kRows;
      const char* const from = static_cast<const char*>(in.data) + row * piece.kSize;
      for (std::int64_t i = 0; i < kElements && p + i < k; ++i) {
        const char* const elements = from + (p + i) * in.column_stride;
        prefetch_after_gap(elements + kElements * in.column_stride, some * piece.kSize, in.column_stride);
        if (some == kRows)  // a length that compilers know
          std::memcpy(piece.of(i), elements, static_cast<std::size_t>(piece.kBytes));
        else
          std::memcpy(piece.of(i), elements, static_cast<std::size_t>(some * piece.kSize));
      }
      piece.write(some, out + row * out_stride + p * piece.kSize, out_stride);
    }
}

template <class U>
void turn_rows(const StridedMatrix& in, std::int64_t rows, std::int64_t k, void* out,
               std::int64_t out_stride) {
  auto* const to = static_cast<char*>(out);
  if (bytes_of(in.dtype) == 2)
    turn_elements<U, std::uint16_t>(in, rows, k, to, out_stride);
  else if (bytes_of(in.dtype) == 4)
    turn_elements<U, std::uint32_t>(in, rows, k, to, out_stride);
  else
    turn_elements<U, std::uint64_t>(in, rows, k, to, out_stride);
}

#define EJK_DOTS_KERNELS                                                           \
  .dots_f32 = dots<F32>, .dots_f64 = dots<F64>, .panel_dots_f32 = panel_dots<F32>, \
  .panel_dots_f64 = panel_dots<F64>, .turn_rows = turn_rows<F32>
