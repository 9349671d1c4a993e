// Kernels for AVX-512 F and BW: comparisons give masks, so 64 truth values are one instruction or a few.
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/isa.hpp"
#include "kernels/kernels.hpp"

namespace ejk::kernels {

namespace {

std::uint64_t word_8(const unsigned char* p) {
  const __m512i v = _mm512_loadu_si512(p);
  return _mm512_test_epi8_mask(v, v);
}

std::uint64_t word_16(const unsigned char* p) {
  const __m512i a = _mm512_loadu_si512(p), b = _mm512_loadu_si512(p + 64);
  return _mm512_test_epi16_mask(a, a) | static_cast<std::uint64_t>(_mm512_test_epi16_mask(b, b)) << 32;
}

std::uint64_t word_32(const unsigned char* p) {
  std::uint64_t word = 0;
  for (int i = 0; i < 4; ++i) {
    const __m512i v = _mm512_loadu_si512(p + 64 * i);
    word |= static_cast<std::uint64_t>(_mm512_test_epi32_mask(v, v)) << (16 * i);
  }
  return word;
}

std::uint64_t word_64(const unsigned char* p) {
  std::uint64_t word = 0;
  for (int i = 0; i < 8; ++i) {
    const __m512i v = _mm512_loadu_si512(p + 64 * i);
    word |= static_cast<std::uint64_t>(_mm512_test_epi64_mask(v, v)) << (8 * i);
  }
  return word;
}

std::uint64_t equal_word(const std::int32_t* p, std::int32_t value) {
  const __m512i wanted = _mm512_set1_epi32(value);
  std::uint64_t word = 0;
  for (int i = 0; i < 4; ++i) {
    const __m512i v = _mm512_loadu_si512(p + 16 * i);
    word |= static_cast<std::uint64_t>(_mm512_cmpeq_epi32_mask(v, wanted)) << (16 * i);
  }
  return word;
}

void expand_word(std::uint64_t word, std::uint8_t* out) {
  _mm512_storeu_si512(out, _mm512_maskz_set1_epi8(word, 1));
}

#include "kernels/bits.inl"

struct Vector32 {
  using T = std::uint32_t;
  static constexpr std::int64_t kLanes = 16;
  __m512i v;

  static Vector32 of(const T* p) { return {_mm512_loadu_si512(p)}; }
  static Vector32 all(T x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
  Vector32 plus(const Vector32& other) const { return {_mm512_add_epi32(v, other.v)}; }
  Vector32 below(std::int64_t lane, const Vector32& after) const {
    return {_mm512_mask_blend_epi32(static_cast<__mmask16>((1u << lane) - 1), after.v, v)};
  }
  void store(T* p) const { _mm512_store_si512(p, v); }
  void stream(T* p) const { _mm512_stream_si512(reinterpret_cast<__m512i*>(p), v); }
};

struct Vector64 {
  using T = std::uint64_t;
  static constexpr std::int64_t kLanes = 8;
  __m512i v;

  static Vector64 of(const T* p) { return {_mm512_loadu_si512(p)}; }
  static Vector64 all(T x) { return {_mm512_set1_epi64(static_cast<long long>(x))}; }
  Vector64 plus(const Vector64& other) const { return {_mm512_add_epi64(v, other.v)}; }
  Vector64 below(std::int64_t lane, const Vector64& after) const {
    return {_mm512_mask_blend_epi64(static_cast<__mmask8>((1u << lane) - 1), after.v, v)};
  }
  void store(T* p) const { _mm512_store_si512(p, v); }
  void stream(T* p) const { _mm512_stream_si512(reinterpret_cast<__m512i*>(p), v); }
};

void stream_fence() { _mm_sfence(); }

#define EJK_WIDENS_FLOAT16
void widen_float16(const std::uint16_t* from, float* to) {
  for (int i = 0; i < 32; i += 16)
    _mm512_storeu_ps(to + i, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i))));
}

#define EJK_CODE_LANES
struct CodeLanes {
  static constexpr int kBytes = 64;

  static __m256i words(const std::uint8_t* p) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  template <class Words>
  static __m512 widen(Words words) {
    return _mm512_cvtph_ps(__builtin_bit_cast(__m256i, words));
  }
  static __m512 multiply_add(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
  template <class Ints>
  static void narrow_16(const Ints* codes, std::uint8_t* to) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm512_cvtepi32_epi8(__builtin_bit_cast(__m512i, codes[0])));
  }
};

#include "kernels/close.inl"
#include "kernels/codes.inl"
#include "kernels/progression.inl"

}  // namespace

extern const Kernels avx512;
constinit const Kernels avx512{.name = "avx512",
                               .needs = kAvx512f | kAvx512bw | kPopcnt,
                               EJK_BITS_KERNELS,
                               EJK_PROGRESSION_KERNELS,
                               EJK_CLOSE_KERNELS,
                               EJK_CODES_KERNELS};

}  // namespace ejk::kernels
