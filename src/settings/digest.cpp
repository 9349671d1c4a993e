// SHA-256 and MD5. Both pad a message in the same way (a one bit, zeros, the length in bits) and process
// blocks of 64 bytes; SHA-256 is big-endian, MD5 little-endian.
// tests: tests/settings/test_digest.cpp
#include "settings/digest.hpp"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace ejk::settings {

namespace {

using Word = std::uint32_t;
using Block = std::array<Word, 16>;

enum class FirstByte { high, low };

Word word_at(const unsigned char* bytes, FirstByte first) {
  Word word = 0;
  for (int i = 0; i < 4; ++i) word |= Word{bytes[i]} << (first == FirstByte::high ? 24 - 8 * i : 8 * i);
  return word;
}

// Calls work(block) for every block of the padded message.
template <class Work>
void for_each_block(std::string_view text, FirstByte first, Work&& work) {
  std::string end(text.substr(text.size() / 64 * 64));
  end += '\x80';
  while (end.size() % 64 != 56) end += '\0';
  const std::uint64_t bits = std::uint64_t{text.size()} * 8;
  for (int i = 0; i < 8; ++i)
    end += static_cast<char>(bits >> (first == FirstByte::high ? 56 - 8 * i : 8 * i) & 0xFF);

  const auto each = [&](std::string_view part) {
    for (; part.size() >= 64; part.remove_prefix(64)) {
      Block block{};
      for (std::size_t i = 0; i < 16; ++i)
        block[i] = word_at(reinterpret_cast<const unsigned char*>(part.data()) + 4 * i, first);
      work(block);
    }
  };
  each(text);
  each(end);
}

// The first 32 bits of the fractional part of a root of the n-th prime: of its square root for SHA-256's
// start, of its cube root for its rounds. Found by bisection in whole numbers.
template <int kPower>
constexpr Word root_bits(Word prime) {
  // The largest r with r^kPower ≤ prime · 2^(32 kPower) has 32 bits behind the point.
  using Wide = __uint128_t;
  std::uint64_t low = 0, high = std::uint64_t{1} << 38;
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    const Wide power = kPower == 2 ? Wide{middle} * middle : Wide{middle} * middle * middle;
    if (power <= Wide{prime} << (32 * kPower))
      low = middle;
    else
      high = middle;
  }
  return static_cast<Word>(low);
}

constexpr std::array<Word, 64> kPrimes = [] {
  std::array<Word, 64> primes{};
  std::size_t found = 0;
  for (Word n = 2; found < primes.size(); ++n) {
    bool prime = true;
    for (std::size_t i = 0; i < found; ++i) prime = prime && n % primes[i] != 0;
    if (prime) primes[found++] = n;
  }
  return primes;
}();

constexpr std::array<Word, 64> kSha256Rounds = [] {
  std::array<Word, 64> constants{};
  for (std::size_t i = 0; i < 64; ++i) constants[i] = root_bits<3>(kPrimes[i]);
  return constants;
}();

// floor(2^32 |sin(i + 1)|), the definition itself.
const std::array<Word, 64>& md5_rounds() {
  static const std::array<Word, 64> constants = [] {
    std::array<Word, 64> c{};
    for (std::size_t i = 0; i < 64; ++i)
      c[i] = static_cast<Word>(std::floor(std::fabs(std::sin(static_cast<double>(i + 1))) * 0x1p32));
    return c;
  }();
  return constants;
}

}  // namespace

std::string sha256_hex(std::string_view text) {
  std::array<Word, 8> state{};
  for (std::size_t i = 0; i < 8; ++i) state[i] = root_bits<2>(kPrimes[i]);

  for_each_block(text, FirstByte::high, [&](const Block& block) {
    std::array<Word, 64> w{};
    for (std::size_t t = 0; t < 64; ++t) {
      if (t < 16) {
        w[t] = block[t];
        continue;
      }
      const Word s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
      const Word s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
      w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (std::size_t t = 0; t < 64; ++t) {
      const Word big1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
      const Word t1 = h + big1 + ((e & f) ^ (~e & g)) + kSha256Rounds[t] + w[t];
      const Word big0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
      const Word t2 = big0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const std::array<Word, 8> added{a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < 8; ++i) state[i] += added[i];
  });
  std::string hex;
  for (const Word word : state) hex += fmt::format("{:08x}", word);
  return hex;
}

std::string md5_hex(std::string_view text) {
  constexpr int shifts[4][4] = {{7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};
  std::array<Word, 4> state{0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476};

  for_each_block(text, FirstByte::low, [&](const Block& block) {
    auto [a, b, c, d] = state;
    for (std::size_t t = 0; t < 64; ++t) {
      const std::size_t round = t / 16;
      const Word mix = round == 0   ? (b & c) | (~b & d)
                       : round == 1 ? (b & d) | (c & ~d)
                       : round == 2 ? b ^ c ^ d
                                    : c ^ (b | ~d);
      const std::size_t k = round == 0   ? t
                            : round == 1 ? (5 * t + 1) % 16
                            : round == 2 ? (3 * t + 5) % 16
                                         : 7 * t % 16;
      const Word sum = a + mix + md5_rounds()[t] + block[k];
      a = d, d = c, c = b;
      b += std::rotl(sum, shifts[round][t % 4]);
    }
    const std::array<Word, 4> added{a, b, c, d};
    for (std::size_t i = 0; i < 4; ++i) state[i] += added[i];
  });
  std::string hex;
  for (const Word word : state)
    for (int i = 0; i < 4; ++i) hex += fmt::format("{:02x}", word >> (8 * i) & 0xFF);
  return hex;
}

}  // namespace ejk::settings
