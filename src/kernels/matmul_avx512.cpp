// Products on AVX-512 F: 14 × 32 sums (float32) or 14 × 16 (float64) in 28 of the 32 registers.
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/matmul.hpp"

namespace ejk::kernels {

namespace {

#include "kernels/avx512_16.inl"

__m512 widen_16(__m256i v, std::bool_constant<true> /* bfloat16 */) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}
__m512 widen_16(__m256i v, std::bool_constant<false> /* float16 */) { return _mm512_cvtph_ps(v); }

template <DType D>
__m512 widen_f32(const char* p) {
  if constexpr (D == DType::float32)
    return _mm512_loadu_ps(p);
  else
    return widen_16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
                    std::bool_constant<D == DType::bfloat16>{});
}

// The first n of 16-bit elements, fewer than 32, and zeros.
__m256i part_16(const char* p, int n) {
  return _mm512_castsi512_si256(_mm512_maskz_loadu_epi16((1u << n) - 1u, p));
}

// 16 bytes from each of four rows.
__m512i lanes_512(const char* p, std::int64_t stride) {
  const auto at = [&](std::int64_t i) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i * stride));
  };
  const __m512i two = _mm512_inserti32x4(_mm512_castsi128_si512(at(0)), at(1), 1);
  return _mm512_inserti32x4(_mm512_inserti32x4(two, at(2), 2), at(3), 3);
}

// In the upper half of each lane the bfloat16 next to it, ties to even; a NaN's own upper half, quiet.
__m512i rounded_above(__m512 v) {
  const __m512i u = _mm512_castps_si512(v);
  // Masked, or GCC 12 takes the instruction's unused source for an uninitialized one.
  const __m512i last = _mm512_and_si512(_mm512_maskz_srli_epi32(0xFFFF, u, 16), _mm512_set1_epi32(1));
  const __m512i nearest = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7FFF)), last);
  return _mm512_mask_or_epi32(nearest, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), u,
                              _mm512_set1_epi32(0x400000));
}

// The upper halves of the lanes of a, then of b.
__m512i upper_halves(__m512i a, __m512i b) {
  alignas(64) static constexpr std::uint16_t kUpper[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                           23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                           45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  return _mm512_permutex2var_epi16(a, _mm512_load_si512(kUpper), b);
}

struct F32 {
  using Sum = float;
  using Vec = __m512;
  using Pack = __m512;
  static constexpr int kLanes = 16;
  static constexpr std::int64_t kUnit = 4, kKr = 1, kKc = 256;

  static Vec zero() { return _mm512_setzero_ps(); }
  static Vec load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
  static void stream(float* p, Vec v) { _mm512_stream_ps(p, v); }
  static Vec load_part(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store_part(float* p, Vec v, int n) { _mm512_mask_storeu_ps(p, first(n), v); }
  static void store_rounded(std::uint16_t* p, Vec low, Vec high, std::int64_t n, bool past) {
    store_16(p, upper_halves(rounded_above(low), rounded_above(high)), n, past);
  }
  static Pack load_b(const char* p) { return _mm512_load_ps(p); }
  static Pack spread_a(const char* p) { return _mm512_set1_ps(*reinterpret_cast<const float*>(p)); }
  static Vec mac(Vec sum, Pack a, Pack b) { return _mm512_fmadd_ps(a, b, sum); }
  static Vec lanes(const char* p, std::int64_t stride) { return _mm512_castsi512_ps(lanes_512(p, stride)); }
  template <DType D>
  static Vec widen(const char* p) {
    return widen_f32<D>(p);
  }
  template <DType D>
  requires(D != DType::float32) static Vec widen_part(const char* p, int n) {
    return widen_16(part_16(p, n), std::bool_constant<D == DType::bfloat16>{});
  }
  template <DType D>
  static void spread_pair(const char* p, Pack* to) {
    std::int32_t pair;
    std::memcpy(&pair, p, sizeof pair);
    if constexpr (D == DType::bfloat16) {
      const __m512i both = _mm512_set1_epi32(pair);
      to[0] = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
      to[1] = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
    } else {
      const __m512 both = _mm512_cvtph_ps(_mm256_set1_epi32(pair));
      to[0] = _mm512_moveldup_ps(both);
      to[1] = _mm512_movehdup_ps(both);
    }
  }

 private:
  static __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
};

struct F64 {
  using Sum = double;
  using Vec = __m512d;
  using Pack = __m512d;
  static constexpr int kLanes = 8;
  static constexpr std::int64_t kUnit = 8, kKr = 1, kKc = 256;

  static Vec zero() { return _mm512_setzero_pd(); }
  static Vec load(const double* p) { return _mm512_loadu_pd(p); }
  static void store(double* p, Vec v) { _mm512_storeu_pd(p, v); }
  static void stream(double* p, Vec v) { _mm512_stream_pd(p, v); }
  static Vec load_part(const double* p, int n) { return _mm512_maskz_loadu_pd(first(n), p); }
  static void store_part(double* p, Vec v, int n) { _mm512_mask_storeu_pd(p, first(n), v); }
  static Pack load_b(const char* p) { return _mm512_load_pd(p); }
  static Pack spread_a(const char* p) { return _mm512_set1_pd(*reinterpret_cast<const double*>(p)); }
  static Vec mac(Vec sum, Pack a, Pack b) { return _mm512_fmadd_pd(a, b, sum); }
  static Vec lanes(const char* p, std::int64_t stride) { return _mm512_castsi512_pd(lanes_512(p, stride)); }
  template <DType D>
  static Vec widen(const char* p) {
    if constexpr (D == DType::float64)
      return _mm512_loadu_pd(p);
    else if constexpr (D == DType::float32)
      return _mm512_cvtps_pd(_mm256_loadu_ps(reinterpret_cast<const float*>(p)));
    else  // the upper eight are not needed
      return _mm512_cvtps_pd(_mm512_castps512_ps256(
          widen_16(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
                   std::bool_constant<D == DType::bfloat16>{})));
  }
  template <DType D>
  requires(D != DType::float64) static Vec widen_part(const char* p, int n) {
    if constexpr (D == DType::float32)
      return _mm512_cvtps_pd(_mm512_castps512_ps256(_mm512_maskz_loadu_ps(first(n), p)));
    else
      return _mm512_cvtps_pd(
          _mm512_castps512_ps256(widen_16(part_16(p, n), std::bool_constant<D == DType::bfloat16>{})));
  }
  template <DType D>
  static void spread_pair(const char* p, Pack* to) {
    constexpr std::size_t kPair = D == DType::float32 ? 8 : 4;
    char pairs[4 * kPair];
    for (std::size_t i = 0; i < sizeof pairs; i += kPair) std::memcpy(pairs + i, p, kPair);
    const __m512d both = widen<D>(pairs);
    to[0] = _mm512_movedup_pd(both);
    to[1] = _mm512_permute_pd(both, 0xFF);
  }

 private:
  static __mmask8 first(int n) { return static_cast<__mmask8>((1u << n) - 1u); }
};

void narrow_16(const float* in, std::int64_t n, std::uint16_t* out) {
  for (; n > 0; n -= 16, in += 16, out += 16) {
    const auto some = static_cast<__mmask16>(n >= 16 ? 0xFFFFu : (1u << n) - 1u);
    const __m256i half =
        _mm512_cvtps_ph(_mm512_maskz_loadu_ps(some, in), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm512_mask_storeu_epi16(out, some, _mm512_castsi256_si512(half));
  }
}

void round_16(const float* in, std::int64_t n, std::uint16_t* out) {
  const auto some = [](std::int64_t count) {
    return static_cast<int>(count < 0 ? 0 : count < F32::kLanes ? count : F32::kLanes);
  };
  for (; n > 0; n -= 32, in += 32, out += 32)
    F32::store_rounded(out, F32::load_part(in, some(n)), F32::load_part(in + 16, some(n - 16)), n, false);
}

void stream_line(void* to, const void* from) {
  _mm512_stream_si512(static_cast<__m512i*>(to), _mm512_load_si512(from));
}

#include "kernels/convert.inl"
#include "kernels/matmul.inl"
#include "kernels/softmax.inl"

#include "kernels/convolve.inl"
#include "kernels/dots.inl"

constinit const Gemm f32 = gemm<F32, 14, 2, 32>("f32");
constinit const Gemm f64 = gemm<F64, 14, 2, 32>("f64");

}  // namespace

extern const Products products_avx512;
constinit const Products products_avx512{.f32 = &f32,
                                         .f64 = &f64,
                                         .bf16 = nullptr,
                                         EJK_CONVERT_KERNELS,
                                         EJK_SOFTMAX_KERNELS,
                                         EJK_CONVOLVE_KERNELS,
                                         EJK_DOTS_KERNELS};

}  // namespace ejk::kernels
