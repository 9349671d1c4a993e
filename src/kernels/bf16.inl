// Pairs of bfloat16 in AVX-512 registers: the arithmetic of kernels/matmul.inl for two instruction sets.

struct Bf16 {
  using Sum = float;
  using Vec = __m512;
  using Pack = __m512bh;
  static constexpr int kLanes = 16;
  static constexpr std::int64_t kUnit = 4, kKr = 2, kKc = 512;

  static Vec zero() { return _mm512_setzero_ps(); }
  static Vec load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
  static void stream(float* p, Vec v) { _mm512_stream_ps(p, v); }
  static Vec load_part(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store_part(float* p, Vec v, int n) { _mm512_mask_storeu_ps(p, first(n), v); }
  // The instruction takes subnormal numbers as zero, which sums of mac() never are.
  static void store_rounded(std::uint16_t* p, Vec low, Vec high, std::int64_t n, bool past) {
    const __m512bh rounded = _mm512_cvtne2ps_pbh(high, low);
    __m512i bits;
    std::memcpy(&bits, &rounded, sizeof bits);
    store_16(p, bits, n, past);
  }
  static Pack load_b(const char* p) { return pack(_mm512_load_si512(p)); }
  static Pack spread_a(const char* p) { return pack(_mm512_set1_epi32(*reinterpret_cast<const int*>(p))); }
  static Vec mac(Vec sum, Pack a, Pack b) { return _mm512_dpbf16_ps(sum, a, b); }

  template <DType D>
  static Vec widen_part(const char* p, int n) {
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16((1u << n) - 1u, p));
  }

  // 32 elements of each of two rows to 32 pairs.
  static void interleave(Vec first_row, Vec second_row, Pack& low_pairs, Pack& high_pairs) {
    const __m512i a = _mm512_castps_si512(first_row), b = _mm512_castps_si512(second_row), low = order();
    low_pairs = pack(_mm512_permutex2var_epi16(a, low, b));
    high_pairs = pack(_mm512_permutex2var_epi16(a, _mm512_add_epi16(low, _mm512_set1_epi16(16)), b));
  }

  static Vec lanes(const char* p, std::int64_t stride) {
    const auto at = [&](std::int64_t i) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i * stride));
    };
    const __m512i two = _mm512_inserti32x4(_mm512_castsi128_si512(at(0)), at(1), 1);
    return _mm512_castsi512_ps(_mm512_inserti32x4(_mm512_inserti32x4(two, at(2), 2), at(3), 3));
  }

 private:
  static __m512i order() {
    alignas(64) static constexpr std::uint16_t kOrder[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                             37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                             11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    return _mm512_load_si512(kOrder);
  }
  static Pack pack(__m512i v) {
    Pack p;
    std::memcpy(&p, &v, sizeof p);
    return p;
  }
  static __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
};
