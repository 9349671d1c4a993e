// Bit matrices, in which masks are evaluated, composed, compared and stored.
//
// Row r begins at word r · row_words; column c is bit c % 64 of word c / 64 in its row; bits after the last
// column are 0 in its word. Further words of a row may have any value.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

namespace ejk::mask {

using Word = std::uint64_t;

constexpr std::int64_t words_for(std::int64_t bits) { return (bits + 63) / 64; }

/// The `n` lowest bits, 0 ≤ n ≤ 64.
constexpr Word low_bits(std::int64_t n) { return n >= 64 ? ~Word{0} : (Word{1} << n) - 1; }

/// Word `w` of a row of `words` words whose bits are moved: each bit is that of the column before, or after.
inline Word columns_before(const Word* row, std::int64_t w) {
  return row[w] << 1 | (w > 0 ? row[w - 1] >> 63 : 0);
}
inline Word columns_after(const Word* row, std::int64_t w, std::int64_t words) {
  return row[w] >> 1 | (w + 1 < words ? row[w + 1] << 63 : 0);
}

inline void set_bits(Word* words, std::int64_t begin, std::int64_t end) {
  if (begin >= end) return;
  const std::int64_t first = begin / 64, last = (end - 1) / 64;
  const Word head = ~low_bits(begin % 64), tail = low_bits((end - 1) % 64 + 1);
  if (first == last) {
    words[first] |= head & tail;
    return;
  }
  words[first] |= head;
  std::fill(words + first + 1, words + last, ~Word{0});
  words[last] |= tail;
}

/// Bits [begin, begin + count), count ≤ 64, of words that end before `words_end`.
inline Word get_bits(const Word* words, std::int64_t begin, std::int64_t count, const Word* words_end) {
  const Word* w = words + begin / 64;
  const std::int64_t shift = begin % 64;
  Word value = *w >> shift;
  if (shift != 0 && w + 1 < words_end) value |= w[1] << (64 - shift);
  return value & low_bits(count);
}

/// ORs the bits [0, n) of `from` into those that begin at bit `begin`.
inline void put_bits(Word* to, std::int64_t begin, const Word* from, std::int64_t n) {
  const std::int64_t shift = begin % 64;
  to += begin / 64;
  for (std::int64_t w = 0; w < words_for(n); ++w) {
    to[w] |= from[w] << shift;
    if (shift != 0 && (from[w] >> (64 - shift)) != 0) to[w + 1] |= from[w] >> (64 - shift);
  }
}

/// Transposes 64 × 64 bits, one word a row: swaps ever smaller squares off the diagonal.
inline void transpose_64(Word* rows) {
  Word keep = 0x00000000FFFFFFFFull;
  for (int size = 32; size != 0; size >>= 1, keep ^= keep << size)
    for (int k = 0; k < 64; k = (k + size + 1) & ~size) {
      const Word swap = ((rows[k] >> size) ^ rows[k + size]) & keep;
      rows[k] ^= swap << size;
      rows[k + size] ^= swap;
    }
}

struct BitRows {
  Word* words = nullptr;
  std::int64_t row_words = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;

  Word* row(std::int64_t r) const { return words + r * row_words; }
};

/// The transpose of rows of bits; `to` has a row for each column, or as many as whole words have.
inline void transpose(const BitRows& from, const BitRows& to) {
  for (std::int64_t r = 0; r < from.rows; r += 64)
    for (std::int64_t w = 0; w < words_for(from.columns); ++w) {
      Word square[64] = {};
      for (std::int64_t k = r; k < std::min(r + 64, from.rows); ++k) square[k - r] = from.row(k)[w];
      transpose_64(square);
      for (std::int64_t k = 64 * w; k < std::min(64 * w + 64, to.rows); ++k)
        to.row(k)[r / 64] = square[k - 64 * w];
    }
}

/// Copies columns [column, column + width) of all rows to `out`, row_words words a row, padded with zeros.
inline void gather(const BitRows& panel, std::int64_t column, std::int64_t width, std::int64_t row_words,
                   Word* out) {
  if (column % 64 == 0 && (width % 64 == 0 || column + width == panel.columns)) {
    const Word* from = panel.words + column / 64;
    if (row_words == 2 && width > 64) {  // blocks of 128, the most common ones
      for (std::int64_t r = 0; r < panel.rows; ++r, from += panel.row_words)
        out[2 * r] = from[0], out[2 * r + 1] = from[1];
      return;
    }
    const std::int64_t words = words_for(width);
    for (std::int64_t r = 0; r < panel.rows; ++r, from += panel.row_words, out += row_words) {
      std::copy(from, from + words, out);
      std::fill(out + words, out + row_words, Word{0});
    }
    return;
  }
  for (std::int64_t r = 0; r < panel.rows; ++r, out += row_words) {
    const Word* row = panel.row(r);
    for (std::int64_t w = 0; w < row_words; ++w) {
      const std::int64_t begin = 64 * w, count = std::min<std::int64_t>(64, width - begin);
      out[w] = count > 0 ? get_bits(row, column + begin, count, row + panel.row_words) : 0;
    }
  }
}

/// Reusable workspace for rows of bits.
class BitBuffer {
 public:
  /// rows × columns bits, uninitialised.
  BitRows rows(std::int64_t row_count, std::int64_t columns) {
    return rows(row_count, columns, words_for(columns));
  }
  /// The same with rows an odd number of cache lines apart, against conflict misses in gather().
  BitRows rows_for_gather(std::int64_t row_count, std::int64_t columns) {
    constexpr std::int64_t kLine = 8;  // words
    const std::int64_t lines = (words_for(columns) + kLine - 1) / kLine;
    return rows(row_count, columns, (lines | 1) * kLine);
  }

 private:
  BitRows rows(std::int64_t row_count, std::int64_t columns, std::int64_t row_words) {
    if (static_cast<std::int64_t>(words_.size()) < row_count * row_words)
      words_.resize(static_cast<std::size_t>(row_count * row_words));
    return {words_.data(), row_words, row_count, columns};
  }

  std::vector<Word> words_;
};

/// Calls f(begin, end) for every maximal range of ones (`value` true) or zeros among the first n bits.
template <class F>
void for_each_run(std::span<const Word> words, std::int64_t n, bool value, F&& f) {
  const auto next = [&](std::int64_t from, bool wanted) {
    while (from < n) {
      const Word w =
          wanted ? words[static_cast<std::size_t>(from / 64)] : ~words[static_cast<std::size_t>(from / 64)];
      const Word rest = w >> (from % 64);
      if (rest != 0) return std::min(n, from + std::countr_zero(rest));
      from = (from / 64 + 1) * 64;
    }
    return n;
  };
  for (std::int64_t begin = next(0, value); begin < n;) {
    const std::int64_t end = next(begin, !value);
    f(begin, end);
    begin = next(end, value);
  }
}

}  // namespace ejk::mask
