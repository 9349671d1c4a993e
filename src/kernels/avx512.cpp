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
#define EJK_LOOKS_UP_CODES
#define EJK_CONVERTS_CODES
struct CodeLanes {
  static constexpr int kBytes = 64;
  using Bits = __m512i;

  static __m512i widen(const std::uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  // Lane i has half i of the bytes in its lowest bits.
  template <bool kHighFirst>
  static __m512i spread(const void* p) {
    const __m512i words = _mm512_castsi128_si512(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
    const __m512i word = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m512i low_first = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28),
                  high_first = _mm512_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24, 4, 0, 12, 8, 20, 16, 28, 24);
    return _mm512_srlv_epi32(_mm512_permutexvar_epi32(word, words), kHighFirst ? high_first : low_first);
  }
  static std::int32_t largest(__m512i v) { return _mm512_reduce_max_epi32(v); }
  // Lane i: the largest lane of v[i].
  static __m512i largest_of_each(const __m512i* v) {
    const auto in_pairs = [](__m512i a, __m512i b) {
      return _mm512_max_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    };
    const auto of_lines = [](__m512i a, __m512i b) {
      return _mm512_max_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xDD));
    };
    __m512i fours[4];
    for (int i = 0; i < 4; ++i) {
      const __m512i a = in_pairs(v[4 * i], v[4 * i + 1]), b = in_pairs(v[4 * i + 2], v[4 * i + 3]);
      fours[i] = _mm512_max_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    }
    return of_lines(of_lines(fours[0], fours[1]), of_lines(fours[2], fours[3]));
  }
  using Counter = std::int64_t;
  static void count_greater(__m512i a, __m512i b, Counter& counter) {
    counter += _mm_popcnt_u32(_mm512_cmpgt_epi32_mask(a, b));
  }
  static __m512 multiply_add(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
  static std::int64_t sum_of(Counter counter) { return counter; }
  template <class Codes>
  static void narrow_16(const Codes* codes, std::uint8_t* to) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm512_cvtepi32_epi8(__builtin_bit_cast(__m512i, codes[0])));
  }
  static __m512 look_up(__m512 numbers, __m512i codes) { return _mm512_permutexvar_ps(codes, numbers); }
  // In each lane, bits of the codes that are not in a set of 256 bits.
  static __m512i bits_not_in(const std::uint8_t* set, const std::uint8_t* codes) {
    const auto table = [](const std::uint8_t* bytes) {
      return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
    };
    const __m512i code = _mm512_loadu_si512(codes);
    const __m512i byte = _mm512_and_si512(_mm512_srli_epi16(code, 3), _mm512_set1_epi8(15));
    const __m512i here = _mm512_mask_shuffle_epi8(_mm512_shuffle_epi8(table(set), byte),
                                                  _mm512_movepi8_mask(code), table(set + 16), byte);
    const __m512i bit = _mm512_shuffle_epi8(_mm512_set1_epi64(static_cast<long long>(0x8040201008040201)),
                                            _mm512_and_si512(code, _mm512_set1_epi8(7)));
    return _mm512_andnot_si512(here, bit);
  }
  static bool any(__m512i v) { return _mm512_test_epi32_mask(v, v) != 0; }
  using Largest = __m256i;
  // 32 codes of e4m3, as 2⁻⁸ of their numbers, or of e5m2; `most`: the largest of magnitudes, doubled.
  template <bool kE4M3>
  static void convert(const std::uint8_t* codes, __m512& low, __m512& high, Largest& most) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
    most = _mm256_max_epu8(most, _mm256_add_epi8(bytes, bytes));
    const auto floats = [](__m128i some) {
      const __m256i wide = _mm256_cvtepi8_epi16(some);
      return _mm512_cvtph_ps(kE4M3 ? _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(-0x4080))
                                   : _mm256_slli_epi16(wide, 8));
    };
    low = floats(_mm256_castsi256_si128(bytes));
    high = floats(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + 16)));
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
