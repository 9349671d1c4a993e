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
#define EJK_LOOKS_UP_CODES
#define EJK_CONVERTS_CODES
struct CodeLanes {
  static constexpr int kBytes = 32;
  using Bits = __m256i;

  static __m256i widen(const std::uint8_t* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  // Lane i has half i of the bytes in its lowest bits.
  template <bool kHighFirst>
  static __m256i spread(const void* p) {
    std::int32_t word;
    std::memcpy(&word, p, sizeof word);
    const __m256i halves = kHighFirst ? _mm256_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24)
                                      : _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    return _mm256_srlv_epi32(_mm256_set1_epi32(word), halves);
  }
  static std::int32_t largest(__m256i v) {
    __m128i most = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    most = _mm_max_epi32(most, _mm_unpackhi_epi64(most, most));
    return _mm_cvtsi128_si32(_mm_max_epi32(most, _mm_shuffle_epi32(most, 1)));
  }
  // Lane i: the largest lane of v[i].
  static __m256i largest_of_each(const __m256i* v) {
    const auto in_pairs = [](__m256i a, __m256i b) {
      return _mm256_max_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    };
    __m256i fours[2];
    for (int i = 0; i < 2; ++i) {
      const __m256i a = in_pairs(v[4 * i], v[4 * i + 1]), b = in_pairs(v[4 * i + 2], v[4 * i + 3]);
      fours[i] = _mm256_max_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    }
    return _mm256_max_epi32(_mm256_permute2x128_si256(fours[0], fours[1], 0x20),
                            _mm256_permute2x128_si256(fours[0], fours[1], 0x31));
  }
  using Counter = __m256i;
  static void count_greater(__m256i a, __m256i b, Counter& counter) {
    counter = _mm256_sub_epi32(counter, _mm256_cmpgt_epi32(a, b));
  }
  static __m256 multiply_add(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
  static std::int64_t sum_of(Counter counter) {
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(counter), _mm256_extracti128_si256(counter, 1));
    sum = _mm_add_epi32(sum, _mm_unpackhi_epi64(sum, sum));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 1)));
  }
  template <class Codes>
  static void narrow_16(const Codes* codes, std::uint8_t* to) {
    const __m256i words = _mm256_permute4x64_epi64(
        _mm256_packus_epi32(__builtin_bit_cast(__m256i, codes[0]), __builtin_bit_cast(__m256i, codes[1])),
        0xD8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }
  // Bit 3 is the sign.
  static __m256 look_up(__m256 numbers, __m256i codes) {
    const __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32(codes, 3), 31);
    return _mm256_or_ps(_mm256_permutevar8x32_ps(numbers, codes), _mm256_castsi256_ps(sign));
  }
  // In each lane, bits of the codes that are not in a set of 256 bits.
  static __m256i bits_not_in(const std::uint8_t* set, const std::uint8_t* codes) {
    const auto table = [](const std::uint8_t* bytes) {
      return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
    };
    const __m256i code = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
    const __m256i byte = _mm256_and_si256(_mm256_srli_epi16(code, 3), _mm256_set1_epi8(15));
    const __m256i here = _mm256_blendv_epi8(_mm256_shuffle_epi8(table(set), byte),
                                            _mm256_shuffle_epi8(table(set + 16), byte), code);
    const __m256i bit = _mm256_shuffle_epi8(_mm256_set1_epi64x(static_cast<long long>(0x8040201008040201)),
                                            _mm256_and_si256(code, _mm256_set1_epi8(7)));
    return _mm256_andnot_si256(here, bit);
  }
  static bool any(__m256i v) { return _mm256_testz_si256(v, v) == 0; }
  using Largest = __m128i;
  // 16 codes of e4m3, as 2⁻⁸ of their numbers, or of e5m2; `most`: the largest of magnitudes, doubled.
  template <bool kE4M3>
  static void convert(const std::uint8_t* codes, __m256& low, __m256& high, Largest& most) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
    most = _mm_max_epu8(most, _mm_add_epi8(bytes, bytes));
    const auto floats = [](__m128i some) {
      const __m128i wide = _mm_cvtepi8_epi16(some);
      return _mm256_cvtph_ps(kE4M3 ? _mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(-0x4080))
                                   : _mm_slli_epi16(wide, 8));
    };
    low = floats(bytes);
    high = floats(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + 8)));
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
