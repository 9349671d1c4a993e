// Loops over 64 elements at a time. The including file defines word_8, word_16, word_32, word_64 (which of 64
// elements are not 0), equal_word (64 comparisons), expand_word (64 bits to 64 bytes).

using Word = std::uint64_t;

// An address to prefetch, which may be past the end: it is never dereferenced.
[[gnu::always_inline]] inline const void* address_ahead(const void* p, std::int64_t bytes) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a pointer that far would have to stay within the array
  return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(p) +
                                       static_cast<std::uintptr_t>(bytes));
}

// Prefetches the lines of a word's elements ahead: the hardware stops at every page of 4 KiB.
template <int lines, std::int64_t bytes_ahead = 512>
void prefetch_ahead(const void* p) {
  for (int i = 0; i < lines; ++i) __builtin_prefetch(address_ahead(p, bytes_ahead + 64 * i));
}

// The last, incomplete word reads from a copy padded with zeros: nothing behind the run is touched.
#define EJK_NONZERO_BITS(width, bytes)                                   \
  void nonzero_bits_##width(const void* in, std::int64_t n, Word* out) { \
    const auto* p = static_cast<const unsigned char*>(in);               \
    for (; n >= 64; n -= 64, p += 64 * (bytes)) {                        \
      prefetch_ahead<bytes>(p);                                          \
      *out++ = word_##width(p);                                          \
    }                                                                    \
    if (n > 0) {                                                         \
      alignas(64) unsigned char tail[64 * (bytes)] = {};                 \
      std::memcpy(tail, p, static_cast<std::size_t>(n) * (bytes));       \
      *out = word_##width(tail);                                         \
    }                                                                    \
  }
EJK_NONZERO_BITS(8, 1)
EJK_NONZERO_BITS(16, 2)
EJK_NONZERO_BITS(32, 4)
EJK_NONZERO_BITS(64, 8)
#undef EJK_NONZERO_BITS

void equal_bits_32(const std::int32_t* in, std::int64_t n, std::int32_t value, Word* out) {
  for (; n >= 64; n -= 64, in += 64) *out++ = equal_word(in, value);
  if (n > 0) {
    alignas(64) std::int32_t tail[64] = {};
    std::memcpy(tail, in, static_cast<std::size_t>(n) * 4);
    *out = equal_word(tail, value) & (~Word{0} >> (64 - n));
  }
}

void fold_bits(const Word* words, std::int64_t n, Word* any, Word* all) {
  for (std::int64_t i = 0; i < n; ++i) {
    any[i] |= words[i];
    all[i] &= words[i];
  }
}

std::int64_t count_bits(const Word* words, std::int64_t n) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < n; ++i) count += __builtin_popcountll(words[i]);
  return count;
}

void expand_bits(const Word* bits, std::int64_t n, std::uint8_t* out) {
  for (; n >= 64; n -= 64, out += 64) expand_word(*bits++, out);
  if (n > 0) {
    alignas(64) std::uint8_t tail[64];
    expand_word(*bits, tail);
    std::memcpy(out, tail, static_cast<std::size_t>(n));
  }
}

#define EJK_BITS_KERNELS                                                                                    \
  .nonzero_bits_8 = nonzero_bits_8, .nonzero_bits_16 = nonzero_bits_16, .nonzero_bits_32 = nonzero_bits_32, \
  .nonzero_bits_64 = nonzero_bits_64, .equal_bits_32 = equal_bits_32, .fold_bits = fold_bits,               \
  .count_bits = count_bits, .expand_bits = expand_bits
