// 16-bit results in AVX-512 registers, for two instruction sets.

// The first n of 32, or all of them past the caches.
inline void store_16(std::uint16_t* p, __m512i v, std::int64_t n, bool past) {
  if (past)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(p), v);
  else if (n >= 32)
    _mm512_storeu_si512(p, v);
  else
    _mm512_mask_storeu_epi16(p, (1u << n) - 1u, v);
}
