// Digests of 32 bytes for the bits of blocks that are too many to store or send.
//
// A digest is two sums of products, Σ (w[2i] + k[2i]) (w[2i+1] + k[2i+1]) modulo 2^128 with sums modulo 2^64,
// of the words w of the block under two keys k, drawn at random for each run. Two different blocks have equal
// digests with a probability of at most 2^-128, so any two of 2^31 blocks with one below 2^-66.
// Source: NH of "UMAC: Fast and Secure Message Authentication" (Black et al., CRYPTO 1999), twice.
// tests: tests/blocks/test_rank_scan.cpp
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include "mask/bits.hpp"

namespace ejk::mask {

__extension__ using DoubleWord = unsigned __int128;

using Digest = std::array<Word, 4>;

class Digester {
  using Sums = std::array<DoubleWord, 2>;

 public:
  using Seed = std::array<std::uint32_t, 8>;

  static Seed drawn_seed() {
    Seed seed{};
    std::random_device device;
    for (std::uint32_t& part : seed) part = device();
    return seed;
  }

  Digester(std::int64_t words, const Seed& seed) : words_(words) {
    std::seed_seq sequence(seed.begin(), seed.end());
    std::mt19937_64 random(sequence);
    for (auto& keys : keys_) {
      keys.resize(static_cast<std::size_t>(words + words % 2));
      for (Word& key : keys) key = random();
    }
    for (std::size_t n = 0; n < keys_.size(); ++n)
      for (std::size_t i = 0; i < keys_[n].size(); i += 2) zero_sums_[n] += product(n, i, 0, 0);
  }

  Digest operator()(const Word* w) const {
    Sums sums{};
    for (std::size_t n = 0; n < keys_.size(); ++n) {
      const Word* k = keys_[n].data();
      std::int64_t i = 0;
      for (; i + 2 <= words_; i += 2) sums[n] += DoubleWord{w[i] + k[i]} * DoubleWord{w[i + 1] + k[i + 1]};
      if (i < words_) sums[n] += DoubleWord{w[i] + k[i]} * DoubleWord{k[i + 1]};
    }
    return digest_of(sums);
  }

  /// The digest of a block from its non-zero words, added one by one.
  class Builder {
   public:
    explicit Builder(const Digester& of) : of_(of), sums_(of.zero_sums_) {}

    /// Bits of word `at` of the block, which come in order.
    void add(std::int64_t at, Word word) {
      const auto pair = static_cast<std::size_t>(at) & ~std::size_t{1};
      if (pair != pair_) {
        add_pair();
        pair_ = pair, words_ = {};
      }
      words_[static_cast<std::size_t>(at) & 1] |= word;
    }
    Digest digest() {
      add_pair();
      return digest_of(sums_);
    }

   private:
    void add_pair() {
      for (std::size_t n = 0; n < sums_.size(); ++n)
        sums_[n] += of_.product(n, pair_, words_[0], words_[1]) - of_.product(n, pair_, 0, 0);
    }

    const Digester& of_;
    Sums sums_;
    std::size_t pair_ = 0;
    std::array<Word, 2> words_{};
  };

 private:
  DoubleWord product(std::size_t n, std::size_t i, Word first, Word second) const {
    return DoubleWord{first + keys_[n][i]} * DoubleWord{second + keys_[n][i + 1]};
  }

  static Digest digest_of(const Sums& sums) {
    Digest digest;
    for (std::size_t n = 0; n < sums.size(); ++n) {
      digest[2 * n] = static_cast<Word>(sums[n]);
      digest[2 * n + 1] = static_cast<Word>(sums[n] >> 64);
    }
    return digest;
  }

  std::int64_t words_;
  std::array<std::vector<Word>, 2> keys_;
  Sums zero_sums_{};
};

}  // namespace ejk::mask
