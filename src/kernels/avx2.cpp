// Kernels for AVX2.
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/isa.hpp"
#include "kernels/kernels.hpp"

namespace ejk::kernels {

namespace {

__m256i load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

std::uint32_t zero_bytes(__m256i v) {
  return static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(v, _mm256_setzero_si256())));
}

std::uint64_t word_8(const unsigned char* p) {
  return ~(zero_bytes(load(p)) | static_cast<std::uint64_t>(zero_bytes(load(p + 32))) << 32);
}

// 32 comparison results of 16 bits (0 or -1) to a mask in order; the permutation undoes packing by halves.
std::uint32_t mask_of_16(__m256i low, __m256i high) {
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xD8);
  return static_cast<std::uint32_t>(_mm256_movemask_epi8(packed));
}

std::uint64_t word_16(const unsigned char* p) {
  const __m256i zero = _mm256_setzero_si256();
  std::uint64_t word = 0;
  for (int i = 0; i < 2; ++i) {
    const __m256i low = _mm256_cmpeq_epi16(load(p + 64 * i), zero);
    const __m256i high = _mm256_cmpeq_epi16(load(p + 64 * i + 32), zero);
    word |= static_cast<std::uint64_t>(mask_of_16(low, high)) << (32 * i);
  }
  return ~word;
}

std::uint64_t equal_word(const std::int32_t* p, std::int32_t value) {
  const __m256i wanted = _mm256_set1_epi32(value);
  std::uint64_t word = 0;
  for (int i = 0; i < 8; ++i) {
    const __m256i same = _mm256_cmpeq_epi32(load(p + 8 * i), wanted);
    const auto mask = static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(same)));
    word |= static_cast<std::uint64_t>(mask) << (8 * i);
  }
  return word;
}

std::uint64_t word_32(const unsigned char* p) {
  const __m256i zero = _mm256_setzero_si256();
  std::uint64_t word = 0;
  for (int i = 0; i < 8; ++i) {
    const __m256i same = _mm256_cmpeq_epi32(load(p + 32 * i), zero);
    const auto mask = static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(same)));
    word |= static_cast<std::uint64_t>(mask) << (8 * i);
  }
  return ~word;
}

std::uint64_t word_64(const unsigned char* p) {
  const __m256i zero = _mm256_setzero_si256();
  std::uint64_t word = 0;
  for (int i = 0; i < 16; ++i) {
    const __m256i same = _mm256_cmpeq_epi64(load(p + 32 * i), zero);
    const auto mask = static_cast<std::uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(same)));
    word |= static_cast<std::uint64_t>(mask) << (4 * i);
  }
  return ~word;
}

void expand_word(std::uint64_t word, std::uint8_t* out) {
  // Byte b of each half shows the source byte b / 8 of that half; the test picks bit b % 8 of it.
  const __m256i source = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,  //
                                          2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
  const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ull));
  for (int i = 0; i < 2; ++i) {
    const __m256i all = _mm256_set1_epi32(static_cast<int>(word >> (32 * i)));
    const __m256i chosen = _mm256_and_si256(_mm256_shuffle_epi8(all, source), bit);
    const __m256i ones = _mm256_and_si256(_mm256_cmpeq_epi8(chosen, bit), _mm256_set1_epi8(1));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 32 * i), ones);
  }
}

#include "kernels/bits.inl"

struct Vector32 {
  using T = std::uint32_t;
  static constexpr std::int64_t kLanes = 8;
  __m256i v;

  static Vector32 of(const T* p) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))}; }
  static Vector32 all(T x) { return {_mm256_set1_epi32(static_cast<int>(x))}; }
  Vector32 plus(const Vector32& other) const { return {_mm256_add_epi32(v, other.v)}; }
  Vector32 below(std::int64_t lane, const Vector32& after) const {
    const __m256i here = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(lane)),
                                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return {_mm256_blendv_epi8(after.v, v, here)};
  }
  void store(T* p) const { _mm256_store_si256(reinterpret_cast<__m256i*>(p), v); }
  void stream(T* p) const { _mm256_stream_si256(reinterpret_cast<__m256i*>(p), v); }
};

struct Vector64 {
  using T = std::uint64_t;
  static constexpr std::int64_t kLanes = 4;
  __m256i v;

  static Vector64 of(const T* p) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))}; }
  static Vector64 all(T x) { return {_mm256_set1_epi64x(static_cast<long long>(x))}; }
  Vector64 plus(const Vector64& other) const { return {_mm256_add_epi64(v, other.v)}; }
  Vector64 below(std::int64_t lane, const Vector64& after) const {
    const __m256i here = _mm256_cmpgt_epi64(_mm256_set1_epi64x(lane), _mm256_setr_epi64x(0, 1, 2, 3));
    return {_mm256_blendv_epi8(after.v, v, here)};
  }
  void store(T* p) const { _mm256_store_si256(reinterpret_cast<__m256i*>(p), v); }
  void stream(T* p) const { _mm256_stream_si256(reinterpret_cast<__m256i*>(p), v); }
};

void stream_fence() { _mm_sfence(); }

#define EJK_CODE_LANES
struct CodeLanes {
  static constexpr int kBytes = 32;

  static __m128i words(const std::uint8_t* p) {
    return _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  template <class Words>
  static __m256 widen(Words words) {
    return _mm256_cvtph_ps(__builtin_bit_cast(__m128i, words));
  }
  static __m256 multiply_add(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
  template <class Ints>
  static void narrow_16(const Ints* codes, std::uint8_t* to) {
    const __m256i words = _mm256_permute4x64_epi64(
        _mm256_packus_epi32(__builtin_bit_cast(__m256i, codes[0]), __builtin_bit_cast(__m256i, codes[1])),
        0xD8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }
};

#include "kernels/close.inl"
#include "kernels/codes.inl"
#include "kernels/progression.inl"

}  // namespace

extern const Kernels avx2;
constinit const Kernels avx2{.name = "avx2",
                             .needs = kAvx2 | kFma | kF16c | kPopcnt,
                             EJK_BITS_KERNELS,
                             EJK_PROGRESSION_KERNELS,
                             EJK_CLOSE_KERNELS,
                             EJK_CODES_KERNELS};

}  // namespace ejk::kernels
