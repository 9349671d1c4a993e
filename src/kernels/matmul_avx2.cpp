// Products on AVX2 with FMA: 6 × 16 sums (float32) or 6 × 8 (float64) in 12 of the 16 registers.
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/matmul.hpp"

namespace ejk::kernels {

namespace {

// -1 for the first n lanes of eight.
__m256i first_of_8(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
__m256i first_of_4(int n) {
  return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
}

__m256 widen_8(__m128i v, bool bfloat16) {
  return bfloat16 ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16)) : _mm256_cvtph_ps(v);
}
__m128 widen_4(__m128i v, bool bfloat16) {
  return bfloat16 ? _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(v), 16)) : _mm_cvtph_ps(v);
}
__m256 widen_8(const char* p, bool bfloat16) {
  return widen_8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), bfloat16);
}
__m128 widen_4(const char* p, bool bfloat16) {
  return widen_4(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)), bfloat16);
}

// The first n of eight 16-bit elements, at least one, and zeros: by twos, and the last one once more.
__m128i part_16(const char* p, int n) {
  const __m128i twos = _mm_maskload_epi32(reinterpret_cast<const int*>(p),
                                          _mm_cmpgt_epi32(_mm_set1_epi32(n / 2), _mm_setr_epi32(0, 1, 2, 3)));
  std::int16_t last;
  std::memcpy(&last, p + 2 * (n - 1), sizeof last);
  const __m128i place = _mm_cmpeq_epi16(_mm_set1_epi16(static_cast<std::int16_t>(n - 1)),
                                        _mm_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7));
  return _mm_or_si128(twos, _mm_and_si128(_mm_set1_epi16(last), place));
}

alignas(32) constexpr std::uint32_t kUpperHalves[8] = {0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u,
                                                       0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u};

// 16 bytes from each of two rows.
__m256i lanes_256(const char* p, std::int64_t stride) {
  return _mm256_loadu2_m128i(reinterpret_cast<const __m128i*>(p + stride),
                             reinterpret_cast<const __m128i*>(p));
}

// Sixteen sums to bfloat16, to nearest, ties to even; a NaN keeps its upper half and is quiet.
__m256i rounded_16(__m256 low, __m256 high) {
  const __m256i one = _mm256_set1_epi32(1), half = _mm256_set1_epi32(0x7FFF), quiet = _mm256_set1_epi32(0x40);
  const auto rounded = [&](__m256 v) {
    const __m256i u = _mm256_castps_si256(v), upper = _mm256_srli_epi32(u, 16);
    const __m256i nearest =
        _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, half), _mm256_and_si256(upper, one)), 16);
    return _mm256_blendv_epi8(nearest, _mm256_or_si256(upper, quiet),
                              _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
  };
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded(low), rounded(high)), 0xD8);
}

struct F32 {
  using Sum = float;
  using Vec = __m256;
  using Pack = __m256;
  static constexpr int kLanes = 8;
  static constexpr std::int64_t kUnit = 4, kKr = 1, kKc = 256;

  static Vec zero() { return _mm256_setzero_ps(); }
  static Vec load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
  static Vec load_part(const float* p, int n) { return _mm256_maskload_ps(p, first_of_8(n)); }
  // Not by a masked store, which takes AMD's processors 12 cycles and more.
  static void store_part(float* p, Vec v, int n) {
    if (n >= kLanes) return store(p, v);
    __m128 rest = _mm256_castps256_ps128(v);
    if ((n & 4) != 0) _mm_storeu_ps(p, rest), p += 4, rest = _mm256_extractf128_ps(v, 1);
    if ((n & 2) != 0)
      _mm_storel_pi(reinterpret_cast<__m64*>(p), rest), p += 2, rest = _mm_movehl_ps(rest, rest);
    if ((n & 1) != 0) _mm_store_ss(p, rest);
  }
  static void store_rounded(std::uint16_t* p, Vec low, Vec high, std::int64_t n, bool /*past*/) {
    const __m256i v = rounded_16(low, high);
    if (n >= 16) return _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
    alignas(32) std::uint16_t part[16];
    _mm256_store_si256(reinterpret_cast<__m256i*>(part), v);
    std::memcpy(p, part, static_cast<std::size_t>(n) * 2);
  }
  static Pack load_b(const char* p) { return _mm256_load_ps(reinterpret_cast<const float*>(p)); }
  static Pack spread_a(const char* p) { return _mm256_broadcast_ss(reinterpret_cast<const float*>(p)); }
  static Vec mac(Vec sum, Pack a, Pack b) { return _mm256_fmadd_ps(a, b, sum); }
  static Vec lanes(const char* p, std::int64_t stride) { return _mm256_castsi256_ps(lanes_256(p, stride)); }
  template <DType D>
  static Vec widen(const char* p) {
    if constexpr (D == DType::float32)
      return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
    else
      return widen_8(p, D == DType::bfloat16);
  }
  template <DType D>
  requires(D != DType::float32) static Vec widen_part(const char* p, int n) {
    return widen_8(part_16(p, n), D == DType::bfloat16);
  }
  template <DType D>
  static void spread_pair(const char* p, Pack* to) {
    // Loaded so that it is spread on the way, not by way of a general register.
    const __m256 pair = _mm256_broadcast_ss(reinterpret_cast<const float*>(p));
    if constexpr (D == DType::bfloat16) {
      const __m256i both = _mm256_castps_si256(pair);
      to[0] = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
      // From memory, as registers are full of sums.
      __asm__("vandps %2, %1, %0" : "=x"(to[1]) : "x"(pair), "m"(kUpperHalves));
    } else {
      const __m256 both = _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_castps_si256(pair)));
      to[0] = _mm256_moveldup_ps(both);
      to[1] = _mm256_movehdup_ps(both);
    }
  }
};

struct F64 {
  using Sum = double;
  using Vec = __m256d;
  using Pack = __m256d;
  static constexpr int kLanes = 4;
  static constexpr std::int64_t kUnit = 8, kKr = 1, kKc = 256;

  static Vec zero() { return _mm256_setzero_pd(); }
  static Vec load(const double* p) { return _mm256_loadu_pd(p); }
  static void store(double* p, Vec v) { _mm256_storeu_pd(p, v); }
  static Vec load_part(const double* p, int n) { return _mm256_maskload_pd(p, first_of_4(n)); }
  static void store_part(double* p, Vec v, int n) {
    if (n >= kLanes) return store(p, v);
    __m128d rest = _mm256_castpd256_pd128(v);
    if ((n & 2) != 0) _mm_storeu_pd(p, rest), p += 2, rest = _mm256_extractf128_pd(v, 1);
    if ((n & 1) != 0) _mm_store_sd(p, rest);
  }
  static Pack load_b(const char* p) { return _mm256_load_pd(reinterpret_cast<const double*>(p)); }
  static Pack spread_a(const char* p) { return _mm256_broadcast_sd(reinterpret_cast<const double*>(p)); }
  static Vec mac(Vec sum, Pack a, Pack b) { return _mm256_fmadd_pd(a, b, sum); }
  static Vec lanes(const char* p, std::int64_t stride) { return _mm256_castsi256_pd(lanes_256(p, stride)); }
  template <DType D>
  static Vec widen(const char* p) {
    if constexpr (D == DType::float64)
      return _mm256_loadu_pd(reinterpret_cast<const double*>(p));
    else if constexpr (D == DType::float32)
      return _mm256_cvtps_pd(_mm_loadu_ps(reinterpret_cast<const float*>(p)));
    else
      return _mm256_cvtps_pd(widen_4(p, D == DType::bfloat16));
  }
  template <DType D>
  requires(D != DType::float64) static Vec widen_part(const char* p, int n) {
    if constexpr (D == DType::float32)
      return _mm256_cvtps_pd(_mm_maskload_ps(reinterpret_cast<const float*>(p),
                                             _mm_cmpgt_epi32(_mm_set1_epi32(n), _mm_setr_epi32(0, 1, 2, 3))));
    else
      return _mm256_cvtps_pd(widen_4(part_16(p, n), D == DType::bfloat16));
  }
  template <DType D>
  static void spread_pair(const char* p, Pack* to) {
    char pairs[4 * (D == DType::float32 ? 4 : 2)];
    std::memcpy(pairs, p, sizeof pairs / 2);
    std::memcpy(pairs + sizeof pairs / 2, p, sizeof pairs / 2);
    const __m256d both = widen<D>(pairs);
    to[0] = _mm256_movedup_pd(both);
    to[1] = _mm256_permute_pd(both, 0xF);
  }
};

void narrow_16(const float* in, std::int64_t n, std::uint16_t* out) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  for (; n >= 8; n -= 8, in += 8, out += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_cvtps_ph(_mm256_loadu_ps(in), kNearest));
  if (n <= 0) return;
  alignas(16) std::uint16_t half[8];
  _mm_store_si128(reinterpret_cast<__m128i*>(half),
                  _mm256_cvtps_ph(F32::load_part(in, static_cast<int>(n)), kNearest));
  std::memcpy(out, half, static_cast<std::size_t>(n) * 2);
}

void round_16(const float* in, std::int64_t n, std::uint16_t* out) {
  for (; n >= 16; n -= 16, in += 16, out += 16)
    F32::store_rounded(out, F32::load(in), F32::load(in + 8), 16, false);
  if (n <= 0) return;
  const int low = static_cast<int>(n < 8 ? n : 8), high = static_cast<int>(n - low);
  F32::store_rounded(out, F32::load_part(in, low), F32::load_part(in + low, high), n, false);
}

void stream_line(void* to, const void* from) {
  for (int half = 0; half < 2; ++half)
    _mm256_stream_si256(static_cast<__m256i*>(to) + half,
                        _mm256_load_si256(static_cast<const __m256i*>(from) + half));
}

#include "kernels/convert.inl"
#include "kernels/matmul.inl"
#include "kernels/softmax.inl"

#include "kernels/convolve.inl"
#include "kernels/dots.inl"

constinit const Gemm f32 = gemm<F32, 6, 2, 16>("f32");
constinit const Gemm f64 = gemm<F64, 6, 2, 16>("f64");

}  // namespace

extern const Products products_avx2;
constinit const Products products_avx2{.f32 = &f32,
                                       .f64 = &f64,
                                       .bf16 = nullptr,
                                       EJK_CONVERT_KERNELS,
                                       EJK_SOFTMAX_KERNELS,
                                       EJK_CONVOLVE_KERNELS,
                                       EJK_DOTS_KERNELS};

}  // namespace ejk::kernels
