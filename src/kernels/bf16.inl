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
  static Pack load_b(const char* p) { return pack(_mm512_load_si512(p)); }
  static Pack spread_a(const char* p) { return pack(_mm512_set1_epi32(*reinterpret_cast<const int*>(p))); }
  static Vec mac(Vec sum, Pack a, Pack b) { return _mm512_dpbf16_ps(sum, a, b); }

  // 32 elements of each of two rows to 32 pairs; zeros where there is no second row.
  static void interleave(const char* first_row, const char* second_row, Pack& low_pairs, Pack& high_pairs) {
    const __m512i a = _mm512_loadu_si512(first_row);
    const __m512i b = second_row == nullptr ? _mm512_setzero_si512() : _mm512_loadu_si512(second_row);
    alignas(64) static constexpr std::uint16_t kOrder[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                             37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                             11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i low = _mm512_load_si512(kOrder), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    low_pairs = pack(_mm512_permutex2var_epi16(a, low, b));
    high_pairs = pack(_mm512_permutex2var_epi16(a, high, b));
  }

 private:
  static Pack pack(__m512i v) {
    Pack p;
    std::memcpy(&p, &v, sizeof p);
    return p;
  }
  static __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
};
