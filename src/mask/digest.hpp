// Digests of 32 bytes, which stand for the bits of a block where there are too many to keep or send.
//
// A digest is two sums of products, Σ (w[2i] + k[2i]) (w[2i+1] + k[2i+1]) modulo 2^128 with sums modulo 2^64, of the
// words w of the block under two keys k. For keys drawn at random, and independently of the blocks, two
// different blocks have the same digest with a chance of at most 2^-128, so that among as many as ids can
// name, 2^31, any two are merged with a chance below 2^-66. Keys are drawn anew by every run: no mask can be
// made to collide.
// Source: NH of "UMAC: Fast and Secure Message Authentication" (Black et al., CRYPTO 1999), twice.
// tests: tests/mask/test_team_scan.cpp
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
 public:
  using Seed = std::array<std::uint32_t, 8>;

  static Seed drawn_seed() {
    Seed seed{};
    std::random_device device;
    for (std::uint32_t& part : seed) part = device();
    return seed;
  }

  Digester(std::int64_t words, const Seed& seed) : words_(words), seed_(seed) {
    std::seed_seq sequence(seed.begin(), seed.end());
    std::mt19937_64 random(sequence);
    for (auto& keys : keys_) {
      keys.resize(static_cast<std::size_t>(words + words % 2));
      for (Word& key : keys) key = random();
    }
  }

  const Seed& seed() const { return seed_; }

  Digest operator()(const Word* w) const {
    Digest digest;
    for (std::size_t n = 0; n < keys_.size(); ++n) {
      const Word* k = keys_[n].data();
      DoubleWord sum = 0;
      std::int64_t i = 0;
      for (; i + 2 <= words_; i += 2) sum += DoubleWord{w[i] + k[i]} * DoubleWord{w[i + 1] + k[i + 1]};
      if (i < words_) sum += DoubleWord{w[i] + k[i]} * DoubleWord{k[i + 1]};
      digest[2 * n] = static_cast<Word>(sum);
      digest[2 * n + 1] = static_cast<Word>(sum >> 64);
    }
    return digest;
  }

 private:
  std::int64_t words_;
  Seed seed_;
  std::array<std::vector<Word>, 2> keys_;
};

}  // namespace ejk::mask
