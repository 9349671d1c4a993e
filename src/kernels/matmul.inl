// Tiles and packing. The including file defines for each arithmetic a struct U:
//   Sum, Vec           float or double, and a vector of kLanes of them
//   kUnit, kKr         bytes of a unit and contraction elements in it
//   kKc                the longest contraction of one call
//   zero() load(p) load_part(p, n) store(p, v) store_part(p, v, n)    sums
//   Pack, load_b(p), spread_a(p), mac(sum, a, b)                      products: Pack holds kLanes units
//   widen<D>(p)        kLanes elements of dtype D as sums             packing (where kKr is 1)
//   interleave(p, q, a, b)  two vectors of units from two rows         packing (where kKr is 2)
//   lanes(p, stride)   a vector of 16 bytes from each of some rows     packing
// and optionally:
//   widen_part<D>(p, n)  the first n of a vector's elements, not all, and zeros       packing
//   store_rounded(p, v, w, n, past)  two vectors of sums as bfloat16: the first n, or all past the caches
//   stream(p, v)       if a vector is a cache line: past the caches

constexpr std::int64_t kLine = 64;

// Bytes from row to row of packed A: kKc elements, and a cache line to avoid cache-set conflicts.
template <class U>
constexpr std::int64_t kAStride = U::kKc / U::kKr* U::kUnit + kLine;

constexpr std::int64_t bytes_of(DType d) { return d == DType::float64 ? 8 : d == DType::float32 ? 4 : 2; }

template <class U, class F>
void with_dtype(DType dtype, F&& f) {
  if constexpr (U::kKr > 1) {
    f(std::integral_constant<DType, DType::bfloat16>{});
  } else {
    if (dtype == DType::float16) f(std::integral_constant<DType, DType::float16>{});
    if (dtype == DType::bfloat16) f(std::integral_constant<DType, DType::bfloat16>{});
    if (dtype == DType::float32) f(std::integral_constant<DType, DType::float32>{});
    if constexpr (sizeof(typename U::Sum) == 8)
      if (dtype == DType::float64) f(std::integral_constant<DType, DType::float64>{});
  }
}

// f(std::integral_constant<int, rows>), for Least to Most rows. Inlined: captures through memory cost 7 of
// 114 ns (64 steps of a tile, AVX2, Zen 4).
template <int Most, int Least = 1, class F>
[[gnu::always_inline]] inline void with_rows(std::int64_t rows, F&& f) {
  if (rows == Most) return f(std::integral_constant<int, Most>{});
  if constexpr (Most > Least) with_rows<Most - 1, Least>(rows, f);
}

// A panel of B that takes half of a first-level cache of 32 KiB is reused by some tiles of rows from the
// second level, so B may exceed that. (AVX2 on a Xeon core with 2 MiB: B of 1 MiB 0.5 % slower than with one
// tile, of 8 MiB 9 % faster, of 16 MiB 23 %; 4 tiles are worse, 12 no better.)
template <class U, int NV>
constexpr std::int64_t kTogether = U::kKc / U::kKr* U::kUnit* NV* U::kLanes <= (16 << 10) ? 8 : 1;

// What is stored of sums: they, or what they are rounded to.
enum class Result { sums, bfloat16 };

template <class U>
constexpr bool kStreams = requires(typename U::Sum* p, typename U::Vec v) {
  U::stream(p, v);
};

// Streaming where stores are whole cache lines; lines in parts are slower than through the caches. (AVX2 on
// Zen 3, 16,384 x 512 of float32: k 4 6.2 ms, through the caches 4.3; k 16 8.2 and 4.5.)
template <class U>
Store store_of(Store how, const void* out, std::int64_t row_bytes) {
  const bool aligned =
      kStreams<U> &&
      (reinterpret_cast<std::uintptr_t>(out) | static_cast<std::uintptr_t>(row_bytes)) % kLine == 0;
  return how == Store::stream && !aligned ? Store::overwrite : how;
}

// The sums of a tile to `out`.
template <class U, int R, int N>
[[gnu::always_inline]] inline void store_tile(const typename U::Vec (&sum)[R][N], std::int64_t columns,
                                              Store how, typename U::Sum* out, std::int64_t out_stride) {
  if (columns == N * U::kLanes) {
    how = store_of<U>(how, out, out_stride * static_cast<std::int64_t>(sizeof *out));
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < N; ++v) {
        typename U::Sum* at = out + r * out_stride + v * U::kLanes;
        if (how == Store::accumulate)
          U::store(at, U::load(at) + sum[r][v]);
        else if (how != Store::stream)
          U::store(at, sum[r][v]);
        else if constexpr (kStreams<U>)
          U::stream(at, sum[r][v]);
      }
    return;
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) {
      const std::int64_t left = columns - v * U::kLanes;
      if (left <= 0) continue;
      const int n = static_cast<int>(left < U::kLanes ? left : U::kLanes);
      typename U::Sum* at = out + r * out_stride + v * U::kLanes;
      U::store_part(at, how == Store::accumulate ? U::load_part(at, n) + sum[r][v] : sum[r][v], n);
    }
}

template <class U, int R, int N>
[[gnu::always_inline]] inline void store_tile(const typename U::Vec (&sum)[R][N], std::int64_t columns,
                                              Store how, std::uint16_t* out, std::int64_t out_stride) {
  const bool past = store_of<U>(how, out, out_stride * 2) == Store::stream && columns == 2 * U::kLanes;
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) U::store_rounded(out + r * out_stride, sum[r][0], sum[r][N - 1], columns, past);
}

// R rows of a tile of at most MR, and the first N of the NV vectors of a panel. With several tiles a panel
// the next packed tile is prefetched over the steps. (AVX2 on a Xeon core: 3.5 % faster.)
template <class U, Result As, int R, int MR, int NV, int N>
void tile_of(const char* a, const char* b, std::int64_t units, std::int64_t columns, Store how, void* result,
             std::int64_t out_stride) {
  using Out = std::conditional_t<As == Result::sums, typename U::Sum, std::uint16_t>;
  auto* const out = static_cast<Out*>(result);
  constexpr std::int64_t kStep = NV * U::kLanes * U::kUnit;
  constexpr std::int64_t kAhead = 16 * kStep;
  constexpr bool kNextTile = 1 < kTogether<U, NV>;
  constexpr std::int64_t kNextStep = (MR * kAStride<U> * U::kKr + U::kKc - 1) / U::kKc;
  [[maybe_unused]] const char* next = a + MR * kAStride<U>;
  typename U::Vec sum[R][N];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    if (!kStreams<U> || how != Store::stream) {
      __builtin_prefetch(out + r * out_stride, 1);
      __builtin_prefetch(out + r * out_stride + N * U::kLanes - 1, 1);
    }
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) sum[r][v] = U::zero();
  }
  for (std::int64_t u = 0; u < units; ++u, a += U::kUnit, b += kStep) {
    typename U::Pack column[N];
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) column[v] = U::load_b(b + v * U::kLanes * U::kUnit);
    for (std::int64_t line = 0; line < kStep; line += kLine) __builtin_prefetch(b + kAhead + line);
    if constexpr (kNextTile) {
      __builtin_prefetch(next);
      next += kNextStep;
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const typename U::Pack row = U::spread_a(a + r * kAStride<U>);
#pragma GCC unroll 4
      for (int v = 0; v < N; ++v) sum[r][v] = U::mac(sum[r][v], row, column[v]);
    }
  }
  store_tile<U, R, N>(sum, columns, how, out, out_stride);
}

template <class U, Result As, int MR, int NV>
void tile(const void* a, const void* b, std::int64_t k, std::int64_t rows, std::int64_t columns, Store how,
          void* out, std::int64_t out_stride) {
  const auto vectors = [&]<int N>(std::integral_constant<int, N>) __attribute__((always_inline)) {
    with_rows<MR>(rows, [&]<int R>(std::integral_constant<int, R>) {
      tile_of<U, As, R, MR, NV, N>(static_cast<const char*>(a), static_cast<const char*>(b),
                                   (k + U::kKr - 1) / U::kKr, columns, how, out, out_stride);
    });
  };
  if (columns <= U::kLanes)
    vectors(std::integral_constant<int, 1>{});
  else
    vectors(std::integral_constant<int, NV>{});
}

// --- elements of a factor

// kLanes units of consecutive elements, converted. For kKr > 1 the elements are taken as they are.
template <class U, DType D>
typename U::Vec whole_units(const char* p) {
  if constexpr (U::kKr > 1)
    return U::load(reinterpret_cast<const typename U::Sum*>(p));
  else
    return U::template widen<D>(p);
}

// A few bytes, in pieces whose sizes compilers know: a call would take longer than they do.
inline void copy_few(char* to, const char* from, std::int64_t bytes) {
  for (; bytes >= 8; bytes -= 8, to += 8, from += 8) std::memcpy(to, from, 8);
  if ((bytes & 4) != 0) std::memcpy(to, from, 4), to += 4, from += 4;
  if ((bytes & 2) != 0) std::memcpy(to, from, 2);
}

template <class U, DType D>
typename U::Vec units_at(const char* p, std::int64_t n) {
  constexpr std::int64_t kElements = U::kLanes * U::kKr;
  constexpr bool kOfSums = bytes_of(D) == static_cast<std::int64_t>(sizeof(typename U::Sum));
  if (n >= kElements) return whole_units<U, D>(p);
  if (n <= 0) return U::zero();
  if constexpr (kOfSums) {
    return U::load_part(reinterpret_cast<const typename U::Sum*>(p), static_cast<int>(n));
  } else if constexpr (requires { U::template widen_part<D>(p, 0); }) {
    return U::template widen_part<D>(p, static_cast<int>(n));
  } else {
    alignas(kLine) char part[kElements * bytes_of(D)] = {};
    copy_few(part, p, n * bytes_of(D));
    return whole_units<U, D>(part);
  }
}

// --- tiles of B in place

template <class U, int R, int Registers>
constexpr int strip_vectors() {
  constexpr int kMost = 8, kFit = (Registers - 1) / (R + 1), kWhole = U::kKr == 1 ? kFit : kFit / 2 * 2;
  return kWhole > kMost ? kMost : kWhole < 2 ? 2 : kWhole;
}

// Loads NV vectors of units from `columns` columns of B. The first Whole vectors are full; the others may be
// partial.
template <class U, DType D, int NV, int Whole>
[[gnu::always_inline]] inline void load_strip(const char* b, std::int64_t row_stride, bool second_row,
                                              std::int64_t columns, typename U::Pack* column) {
  const auto elements = [&](const char* row, int v) __attribute__((always_inline)) {
    const char* const p = row + v * U::kLanes * bytes_of(D);
    return v < Whole ? whole_units<U, D>(p) : units_at<U, D>(p, columns - v * U::kLanes);
  };
  if constexpr (U::kKr == 1) {
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) column[v] = elements(b, v);
  } else {
#pragma GCC unroll 8
    for (int v = 0; v < NV; v += 2)
      U::interleave(elements(b, v), second_row ? elements(b + row_stride, v) : U::zero(), column[v],
                    column[v + 1]);
  }
}

// Rows of B that are processed together; the next ones are prefetched, and both stay in the second-level
// cache. Several tiles of rows take twice as many.
template <class U>
constexpr std::int64_t kDirectK = (U::kLanes * sizeof(typename U::Sum) >= kLine ? 64 : 32) * U::kKr;

// Up to so many rows B is read once, in place, instead of packed. (Zen 4, float32, B of 2,048 x 1,408 and
// 1,024 x 4,096, direct() / packing: AVX2 24 rows 0.6, 48 rows 0.75 to 0.8, 96 rows 0.85 to 1; AVX-512 48
// rows 0.8, 96 rows 0.95.)
constexpr std::int64_t kSmallM = 96;

// Prefetches rows of memory in order, which the hardware prefetcher takes up.
class Lines {
 public:
  explicit Lines(const Ahead& of)
      : row_(static_cast<const char*>(of.data)),
        rows_(of.row_bytes > 0 ? of.rows : 0),
        bytes_((of.row_bytes + kLine - 1) / kLine * kLine),
        stride_(of.row_stride) {}

  void prefetch(std::int64_t count) {
    for (; count > 0; --count, at_ += kLine) {
      if (at_ == row_end_ && !next_row()) return;
      __builtin_prefetch(at_, 0, 2);
    }
  }

 private:
  bool next_row() {
    if (rows_ == 0) return false;
    at_ = row_, row_end_ = row_ + bytes_;
    row_ += stride_, --rows_;
    return true;
  }

  const char *row_, *at_ = nullptr, *row_end_ = nullptr;
  std::int64_t rows_, bytes_, stride_;
};

// Kept: the strip is left in `kept` as well, as a panel of packed B.
template <class U, DType D, int R, int NV, bool Kept, int Whole>
void strip_of(const char* a, const char* b, std::int64_t row_stride, Lines& following, std::int64_t k,
              std::int64_t columns, bool add, typename U::Sum* out, std::int64_t out_stride,
              [[maybe_unused]] char* kept) {
  constexpr std::int64_t kBytes = NV * U::kLanes * bytes_of(D), kStep = NV * U::kLanes * U::kUnit;
  typename U::Vec sum[R][NV];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) sum[r][v] = U::zero();
  const std::int64_t units = (k + U::kKr - 1) / U::kKr, step = U::kKr * row_stride;
  Lines lines = following;  // in registers
  std::int64_t due = 0;     // bytes: prefetched at the rate of reads
  for (std::int64_t u = 0; u < units; ++u, a += U::kUnit, b += step) {
    due += kBytes * U::kKr;
    lines.prefetch(due / kLine);
    due %= kLine;
    typename U::Pack column[NV];
    load_strip<U, D, NV, Whole>(b, row_stride, (u + 1) * U::kKr <= k, columns, column);
    if constexpr (Kept) {
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v)
        std::memcpy(kept + u * kStep + v * U::kLanes * U::kUnit, &column[v], sizeof column[v]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const typename U::Pack row = U::spread_a(a + r * kAStride<U>);
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) sum[r][v] = U::mac(sum[r][v], row, column[v]);
    }
  }
  following = lines;
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) {
      typename U::Sum* at = out + r * out_stride + v * U::kLanes;
      if (const std::int64_t left = columns - v * U::kLanes; v < Whole || left >= U::kLanes) {
        U::store(at, add ? U::load(at) + sum[r][v] : sum[r][v]);
      } else if (left > 0) {
        const int n = static_cast<int>(left);
        U::store_part(at, add ? U::load_part(at, n) + sum[r][v] : sum[r][v], n);
      }
    }
}

// One tile of rows. Full strips, then one of as many vectors as are left.
template <class U, DType D, int R, int NV>
void strips(const char* a, const char* b, std::int64_t row_stride, Lines& following, std::int64_t k,
            std::int64_t columns, bool add, typename U::Sum* out, std::int64_t out_stride) {
  constexpr std::int64_t kColumns = NV * U::kLanes;
  for (; columns >= kColumns; columns -= kColumns, b += kColumns * bytes_of(D), out += kColumns)
    strip_of<U, D, R, NV, false, NV>(a, b, row_stride, following, k, kColumns, add, out, out_stride, nullptr);
  constexpr std::int64_t kStep = U::kKr * U::kLanes;
  if (columns > 0)
    with_rows<NV / U::kKr>((columns + kStep - 1) / kStep, [&]<int N>(std::integral_constant<int, N>) {
      strip_of<U, D, R, N * U::kKr, false, (N - 1) * U::kKr>(a, b, row_stride, following, k, columns, add,
                                                             out, out_stride, nullptr);
    });
}

// Several tiles of rows: each strip of B is read by the first of them, which keeps it as a panel. The first has
// an even number of rows, which halves the number of variants; the others share the rest evenly.
template <class U, DType D, int MR, int NV>
void strips_of_tiles(const char* a, const char* b, std::int64_t row_stride, Lines& following, std::int64_t k,
                     std::int64_t rows, std::int64_t columns, bool add, typename U::Sum* out,
                     std::int64_t out_stride) {
  constexpr std::int64_t kColumns = NV * U::kLanes;
  alignas(kLine) char panel[2 * kDirectK<U> / U::kKr * kColumns * U::kUnit];
  const std::int64_t tiles = (rows + MR - 1) / MR, pairs = (rows + 2 * tiles - 1) / (2 * tiles);
  const Store how = add ? Store::accumulate : Store::overwrite;
  for (std::int64_t j = 0; j < columns; j += kColumns) {
    const std::int64_t some = columns - j < kColumns ? columns - j : kColumns;
    with_rows<(MR + 1) / 2, (MR + 2) / 4>(pairs, [&]<int Pairs>(std::integral_constant<int, Pairs>) {
      const auto strip = [&]<int Whole>(std::integral_constant<int, Whole>) {
        strip_of<U, D, 2 * Pairs, NV, true, Whole>(a, b + j * bytes_of(D), row_stride, following, k, some,
                                                   add, out + j, out_stride, panel);
      };
      if (some == kColumns)
        strip(std::integral_constant<int, NV>{});
      else
        strip(std::integral_constant<int, 0>{});
    });
    for (std::int64_t row = 2 * pairs, left = tiles - 1; left > 0; --left) {
      const std::int64_t end = row + (rows - row) / left;
      tile<U, Result::sums, MR, NV>(a + row * kAStride<U>, panel, k, end - row, some, how,
                                    out + row * out_stride + j, out_stride);
      row = end;
    }
  }
}

template <class U, int MR, int NV, int Registers>
void direct(const void* a, const StridedMatrix& b, std::int64_t k, std::int64_t rows, std::int64_t columns,
            bool add, void* out, std::int64_t out_stride, const Ahead& next) {
  Lines following(next);
  const auto* const rows_of_a = static_cast<const char*>(a);
  const auto* const from = static_cast<const char*>(b.data);
  auto* const sums = static_cast<typename U::Sum*>(out);
  with_dtype<U>(b.dtype, [&]<DType D>(std::integral_constant<DType, D>) {
    // Sums in float64 of narrower elements are rare: row by row, for a small object file.
    if constexpr (sizeof(typename U::Sum) == 8 && bytes_of(D) < 8) {
      for (std::int64_t r = 0; r < rows; ++r)
        strips<U, D, 1, strip_vectors<U, 1, Registers>()>(rows_of_a + r * kAStride<U>, from, b.row_stride,
                                                          following, k, columns, add, sums + r * out_stride,
                                                          out_stride);
    } else if (rows > MR) {
      strips_of_tiles<U, D, MR, NV>(rows_of_a, from, b.row_stride, following, k, rows, columns, add, sums,
                                    out_stride);
    } else {
      with_rows<MR>(rows, [&]<int R>(std::integral_constant<int, R>) {
        strips<U, D, R, strip_vectors<U, R, Registers>()>(rows_of_a, from, b.row_stride, following, k,
                                                          columns, add, sums, out_stride);
      });
    }
  });
}

// --- packing

// Rows and columns of a square of vectors exchanged: at every step squares of `S` change places.
template <int S, int High, class V, std::size_t... I>
V exchanged(V a, V b, std::index_sequence<I...>) {
  constexpr int kLanes = sizeof...(I);
  if constexpr (High == 0)
    return __builtin_shufflevector(a, b,
                                   (I & S) != 0 ? static_cast<int>(I) - S + kLanes : static_cast<int>(I)...);
  else
    return __builtin_shufflevector(a, b,
                                   (I & S) != 0 ? static_cast<int>(I) + kLanes : static_cast<int>(I) + S...);
}

template <int S, int L, class V>
[[gnu::always_inline]] inline void transpose(V* rows) {
  if constexpr (S < L) {
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i) {
      if ((i & S) != 0) continue;
      const V a = rows[i], b = rows[i + S];
      rows[i] = exchanged<S, 0>(a, b, std::make_index_sequence<L>{});
      rows[i + S] = exchanged<S, 1>(a, b, std::make_index_sequence<L>{});
    }
    transpose<2 * S, L>(rows);
  }
}

// One element where neither stride is its size.
template <class U, DType D>
void put_unit(const char* p, std::int64_t stride, std::int64_t n, char* out) {
  alignas(kLine) char elements[U::kLanes * U::kKr * bytes_of(D)] = {};
  for (std::int64_t i = 0; i < (n < U::kKr ? n : U::kKr); ++i)
    std::memcpy(elements + i * bytes_of(D), p + i * stride, static_cast<std::size_t>(bytes_of(D)));
  alignas(kLine) typename U::Sum unit[U::kLanes];
  U::store(unit, units_at<U, D>(elements, U::kLanes * U::kKr));
  std::memcpy(out, unit, static_cast<std::size_t>(U::kUnit));
}

constexpr std::int64_t padded(std::int64_t n, std::int64_t step) { return (n + step - 1) / step * step; }

// Of each 16 bytes of two vectors of elements the lower or the upper half, by turns.
template <bool Upper, int E, class V, std::size_t... I>
V zipped(V a, V b, std::index_sequence<I...>) {
  constexpr int kElements = sizeof...(I);
  return __builtin_shufflevector(a, b,
                                 (static_cast<int>(I) / E * E + static_cast<int>(I) % E / 2 +
                                  (Upper ? E / 2 : 0) + (I % 2 != 0 ? kElements : 0))...);
}

// Squares of E × E elements in each 16 bytes of E vectors are transposed, in log₂ E steps.
template <int E, class V, int Step = 1>
[[gnu::always_inline]] inline void transpose_within(V* v) {
  if constexpr (Step < E) {
    constexpr std::make_index_sequence<sizeof(V) / sizeof(V{}[0])> kAll;
    V zips[E];
#pragma GCC unroll 8
    for (int i = 0; i < E / 2; ++i) {
      zips[2 * i] = zipped<false, E>(v[i], v[i + E / 2], kAll);
      zips[2 * i + 1] = zipped<true, E>(v[i], v[i + E / 2], kAll);
    }
#pragma GCC unroll 8
    for (int i = 0; i < E; ++i) v[i] = zips[i];
    transpose_within<E, V, 2 * Step>(v);
  }
}

// Contiguous rows: some of them are copied to where they do not conflict in the cache, and transposed from
// there.
template <class U, class Element>
struct TurnedPiece {
  static constexpr auto kVector = static_cast<std::int64_t>(sizeof(typename U::Vec)),
                        kSize = static_cast<std::int64_t>(sizeof(Element));
  static constexpr std::int64_t kElements = kVector / kSize, kRows = 4 * kElements, kBytes = 4 * kVector;
  alignas(kLine) char rows[kElements * kBytes];

  char* of(std::int64_t element) { return rows + element * kBytes; }

  // A whole vector of each of `some` rows.
  void write(std::int64_t some, char* out, std::int64_t out_stride) const {
    using Elements __attribute__((vector_size(sizeof(typename U::Vec)))) = Element;
    constexpr int kSquare = static_cast<int>((kVector < 16 ? kVector : 16) / kSize);
    for (std::int64_t r = 0; r < some; r += kSquare, out += kSquare * out_stride) {
      Elements square[kSquare];
#pragma GCC unroll 8
      for (int i = 0; i < kSquare; ++i) {
        const typename U::Vec v = U::lanes(rows + i * kBytes + r * kSize, kSquare * kBytes);
        std::memcpy(&square[i], &v, sizeof v);
      }
      transpose_within<kSquare>(square);
#pragma GCC unroll 8
      for (int i = 0; i < kSquare; ++i)
        if (r + i < some) std::memcpy(out + i * out_stride, &square[i], sizeof square[i]);
    }
  }
};

template <class U, DType D>
void pack_turned_rows(const char* in, std::int64_t column_stride, std::int64_t rows, std::int64_t k,
                      std::int64_t units, char* out) {
  using Element = std::conditional_t<U::kKr == 1, typename U::Sum, std::uint16_t>;
  TurnedPiece<U, Element> piece;
  constexpr std::int64_t kElements = piece.kElements, kRows = piece.kRows;
  // The last vector of a row ends within it, as in pack_rows.
  for (std::int64_t u = 0; u < units; u += U::kLanes)
    for (std::int64_t row = 0; row < rows; row += kRows) {
      const std::int64_t some = rows - row < kRows ? rows - row : kRows;
      for (std::int64_t i = 0; i < kElements; ++i) {
        const std::int64_t p = u * U::kKr + i;
        const char* const from = in + p * column_stride + row * bytes_of(D);
        // What is packed a vector of elements later: processors do not read ahead over gaps.
        if (rows * bytes_of(D) < column_stride)
          for (std::int64_t line = 0; line < some * bytes_of(D); line += kLine)
            __builtin_prefetch(from + kElements * column_stride + line, 0, 2);
        for (std::int64_t r = 0; r < some; r += kElements)
          U::store(reinterpret_cast<typename U::Sum*>(piece.of(i) + r * piece.kSize),
                   units_at<U, D>(from + r * bytes_of(D), p < k ? some - r : 0));
      }
      piece.write(some, out + row * kAStride<U> + u * U::kUnit, kAStride<U>);
    }
}

// The same of few contraction elements: a vector of rows at a time, written row by row.
template <class U, DType D>
void pack_few_turned(const char* in, std::int64_t column_stride, std::int64_t rows, std::int64_t k,
                     std::int64_t units, char* out) {
  for (std::int64_t u = 0; u < units; ++u)
    for (std::int64_t row = 0; row < rows; row += U::kLanes) {
      alignas(kLine) typename U::Sum unit[U::kLanes];
      U::store(unit, units_at<U, D>(in + u * column_stride + row * bytes_of(D), u < k ? rows - row : 0));
      char* const to = out + row * kAStride<U> + u * U::kUnit;
      if (rows - row >= U::kLanes) {
#pragma GCC unroll 16
        for (int i = 0; i < U::kLanes; ++i) std::memcpy(to + i * kAStride<U>, unit + i, U::kUnit);
      } else {
        for (int i = 0; i < rows - row; ++i) std::memcpy(to + i * kAStride<U>, unit + i, U::kUnit);
      }
    }
}

template <class U, DType D, std::int64_t KStep>
void pack_rows(const StridedMatrix& in, std::int64_t rows, std::int64_t k, char* out) {
  const std::int64_t units = padded(k, KStep) / U::kKr;
  // A square of a few contraction elements takes as long as a full one. (Gradients of one query and key,
  // 4,096 problems: 7.0 ms element by element, 10.2 in squares.)
  constexpr std::int64_t kFewTurned =
      bytes_of(D) < static_cast<std::int64_t>(sizeof(typename U::Sum)) ? 4 : 8;
  if (in.row_stride == bytes_of(D) && in.column_stride != bytes_of(D)) {
    const auto* const from = static_cast<const char*>(in.data);
    if (k > kFewTurned) return pack_turned_rows<U, D>(from, in.column_stride, rows, k, units, out);
    if constexpr (U::kKr == 1) return pack_few_turned<U, D>(from, in.column_stride, rows, k, units, out);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    const char* from = static_cast<const char*>(in.data) + r * in.row_stride;
    char* to = out + r * kAStride<U>;
    if (in.column_stride == bytes_of(D)) {
      // kKc is a multiple of a vector: the last one ends within its row.
      for (std::int64_t u = 0; u < units; u += U::kLanes)
        U::store(reinterpret_cast<typename U::Sum*>(to + u * U::kUnit),
                 units_at<U, D>(from + u * U::kKr * bytes_of(D), k - u * U::kKr));
    } else {
      for (std::int64_t u = 0; u < units; ++u)
        put_unit<U, D>(from + u * U::kKr * in.column_stride, in.column_stride, k - u * U::kKr,
                       to + u * U::kUnit);
    }
  }
}

// Columns side by side in memory: rows of B are copied, or pairs of rows interleaved.
template <class U, DType D, int NV>
void pack_columns(const char* in, std::int64_t row_stride, std::int64_t k, std::int64_t columns, char* out,
                  std::int64_t panel_stride, std::int64_t units) {
  static_assert(U::kKr == 1 || (U::kKr == 2 && NV == 2), "pairs of rows make one vector of columns each");
  constexpr std::int64_t kNr = NV * U::kLanes, kWidth = kNr * bytes_of(D), kRowsAhead = 4;
  alignas(kLine) const char zeros[kWidth] = {};
  for (std::int64_t u = 0; u < units; ++u, out += kNr * U::kUnit) {
    char* to = out;
    for (std::int64_t j = 0; j < columns; j += kNr, to += panel_stride) {
      const char* row[U::kKr];
      for (std::int64_t i = 0; i < U::kKr; ++i) {
        const std::int64_t p = u * U::kKr + i;
        row[i] = p < k ? in + p * row_stride + j * bytes_of(D) : zeros;
        for (std::int64_t line = 0; line < kWidth; line += kLine)
          __builtin_prefetch(row[i] + kRowsAhead * row_stride + line);
      }
      if constexpr (U::kKr == 1) {
        const bool whole = u >= k || columns - j >= kNr;
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) {
          const char* const from = row[0] + v * U::kLanes * bytes_of(D);
          U::store(reinterpret_cast<typename U::Sum*>(to) + v * U::kLanes,
                   whole ? whole_units<U, D>(from) : units_at<U, D>(from, columns - j - v * U::kLanes));
        }
      } else {
        typename U::Pack first, second;
        U::interleave(units_at<U, D>(row[0], columns - j), units_at<U, D>(row[1], columns - j), first,
                      second);
        std::memcpy(to, &first, sizeof first);
        std::memcpy(to + sizeof first, &second, sizeof second);
      }
    }
  }
}

// Contraction elements side by side in memory: squares of units are transposed.
template <class U, DType D, int NV>
void pack_transposed(const char* in, std::int64_t column_stride, std::int64_t k, std::int64_t columns,
                     char* out, std::int64_t panel_stride, std::int64_t units) {
  constexpr std::int64_t kNr = NV * U::kLanes;
  for (std::int64_t j = 0; j < padded(columns, kNr); j += U::kLanes) {
    char* panel = out + j / kNr * panel_stride + j % kNr * U::kUnit;
    for (std::int64_t u = 0; u < units; u += U::kLanes) {
      typename U::Vec square[U::kLanes];
      const char* const from = in + j * column_stride + u * U::kKr * bytes_of(D);
      if (j + U::kLanes <= columns && (u + U::kLanes) * U::kKr <= k) {
#pragma GCC unroll 16
        for (int i = 0; i < U::kLanes; ++i) square[i] = whole_units<U, D>(from + i * column_stride);
      } else {
        for (int i = 0; i < U::kLanes; ++i)
          square[i] = j + i < columns ? units_at<U, D>(from + i * column_stride, k - u * U::kKr) : U::zero();
      }
      transpose<1, U::kLanes>(square);
      const std::int64_t left = units - u;
#pragma GCC unroll 16
      for (int i = 0; i < U::kLanes; ++i)
        if (i < left)
          U::store(reinterpret_cast<typename U::Sum*>(panel + (u + i) * kNr * U::kUnit), square[i]);
    }
  }
}

template <class U, DType D, std::int64_t KStep, int NV>
void pack_panels(const StridedMatrix& in, std::int64_t k, std::int64_t columns, char* out,
                 std::int64_t panel_stride) {
  const auto* from = static_cast<const char*>(in.data);
  const std::int64_t units = padded(k, KStep) / U::kKr;
  if (in.column_stride == bytes_of(D))
    return pack_columns<U, D, NV>(from, in.row_stride, k, columns, out, panel_stride, units);
  if (in.row_stride == bytes_of(D))
    return pack_transposed<U, D, NV>(from, in.column_stride, k, columns, out, panel_stride, units);
  constexpr std::int64_t kNr = NV * U::kLanes;
  for (std::int64_t j = 0; j < padded(columns, kNr); ++j)
    for (std::int64_t u = 0; u < units; ++u)
      put_unit<U, D>(from + j * in.column_stride + u * U::kKr * in.row_stride, in.row_stride,
                     j < columns ? k - u * U::kKr : 0,
                     out + j / kNr * panel_stride + (u * kNr + j % kNr) * U::kUnit);
}

template <class U, std::int64_t KStep>
void pack_a(const StridedMatrix& in, std::int64_t rows, std::int64_t k, void* out) {
  with_dtype<U>(in.dtype, [&]<DType D>(std::integral_constant<DType, D>) {
    pack_rows<U, D, KStep>(in, rows, k, static_cast<char*>(out));
  });
}

template <class U, std::int64_t KStep, int NV>
void pack_b(const StridedMatrix& in, std::int64_t k, std::int64_t columns, void* out,
            std::int64_t panel_stride) {
  with_dtype<U>(in.dtype, [&]<DType D>(std::integral_constant<DType, D>) {
    pack_panels<U, D, KStep, NV>(in, k, columns, static_cast<char*>(out), panel_stride);
  });
}

// The table of an arithmetic: MR rows, NV vectors of columns, on so many vector registers.
template <class U, int MR, int NV, int Registers, std::int64_t KStep = U::kKr>
constexpr Gemm gemm(const char* name) {
  decltype(Gemm::tile_bf16) tile_bf16 = nullptr;
  if constexpr (requires { &U::store_rounded; }) tile_bf16 = tile<U, Result::bfloat16, MR, NV>;
  return Gemm{.name = name,
              .mr = MR,
              .nr = NV * U::kLanes,
              .kr = U::kKr,
              .k_step = KStep,
              .kc = U::kKc,
              .pass_k = U::kKc,
              .a_stride = kAStride<U>,
              .unit = U::kUnit,
              .together = kTogether<U, NV>,
              .direct_rows = MR,
              .direct_k = kDirectK<U>,
              .small_m = kSmallM,
              .enter = nullptr,
              .leave = nullptr,
              .pack_a = pack_a<U, KStep>,
              .pack_b = pack_b<U, KStep, NV>,
              .tile = tile<U, Result::sums, MR, NV>,
              .tile_bf16 = tile_bf16,
              .direct = direct<U, MR, NV, Registers>};
}
