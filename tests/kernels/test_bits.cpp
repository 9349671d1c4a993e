// Bit kernels: on every instruction set of this machine the bits of a plain loop, at every length around the
// tiles and any alignment, and no access past the end.
#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <vector>

#include "kernels/isa.hpp"
#include "kernels/kernels.hpp"
#include "support/instruction_sets.hpp"

using namespace ejk::kernels;

namespace {

template <class T>
void check_nonzero(Kernels::NonzeroBits* kernel, std::mt19937_64& random) {
  for (std::int64_t n = 0; n <= 300; ++n) {
    std::vector<unsigned char> raw(static_cast<std::size_t>(n + 1) * sizeof(T));
    unsigned char* in =
        raw.data() + n % static_cast<std::int64_t>(sizeof(T) + 1) % static_cast<std::int64_t>(sizeof(T));
    std::vector<T> values(static_cast<std::size_t>(n));
    for (T& v : values) v = random() % 2 == 0 ? T{0} : static_cast<T>(T{1} << (random() % (8 * sizeof(T))));
    if (n > 0) std::memcpy(in, values.data(), values.size() * sizeof(T));
    std::vector<std::uint64_t> out(static_cast<std::size_t>((n + 63) / 64 + 1), 0xABCD);
    kernel(in, n, out.data());
    bool right = out.back() == 0xABCD;
    for (std::size_t i = 0; i + 1 < out.size(); ++i)
      for (std::size_t b = 0; b < 64; ++b) {
        const bool expected = 64 * i + b < values.size() && values[64 * i + b] != 0;
        right = right && (out[i] >> b & 1) == expected;
      }
    CHECK_MESSAGE(right, n);
  }
}

}  // namespace

TEST_CASE("bit kernels equal a plain loop on every instruction set at hand") {
  for (const Kernels* k : test::instruction_sets()) {
    CAPTURE(k->name);
    std::mt19937_64 random(1);
    check_nonzero<std::uint8_t>(k->nonzero_bits_8, random);
    check_nonzero<std::uint16_t>(k->nonzero_bits_16, random);
    check_nonzero<std::uint32_t>(k->nonzero_bits_32, random);
    check_nonzero<std::uint64_t>(k->nonzero_bits_64, random);
    for (std::int64_t n = 0; n <= 300; ++n) {
      std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
      for (auto& id : ids) id = static_cast<std::int32_t>(random() % 3) - 1;
      std::vector<std::uint64_t> bits(static_cast<std::size_t>((n + 63) / 64 + 1), 0xABCD);
      bool right = true;
      for (const std::int32_t wanted : {-1, 0, 1}) {
        k->equal_bits_32(ids.data(), n, wanted, bits.data());
        for (std::size_t i = 0; i < 64 * (bits.size() - 1); ++i)
          right = right && (bits[i / 64] >> (i % 64) & 1) == (i < ids.size() && ids[i] == wanted);
      }
      std::vector<std::uint64_t> any(bits.size(), 0x5), all(bits.size(), ~std::uint64_t{0x9});
      k->fold_bits(bits.data(), static_cast<std::int64_t>(bits.size()) - 1, any.data(), all.data());
      for (std::size_t w = 0; w + 1 < bits.size(); ++w)
        right = right && any[w] == (bits[w] | 0x5) && all[w] == (bits[w] & ~std::uint64_t{0x9});
      right = right && any.back() == 0x5 && all.back() == ~std::uint64_t{0x9};
      std::int64_t ones = 0;
      for (const auto id : ids) ones += id == 1;
      CHECK(k->count_bits(bits.data(), (n + 63) / 64) == ones);
      std::vector<std::uint8_t> bytes(static_cast<std::size_t>(n) + 1, 7);
      k->expand_bits(bits.data(), n, bytes.data());
      for (std::size_t i = 0; i < ids.size(); ++i)
        right = right && bytes[i] == (bits[i / 64] >> (i % 64) & 1);
      CHECK_MESSAGE((right && bits.back() == 0xABCD && bytes.back() == 7), n);
    }
  }
}

TEST_CASE("the portable row runs anywhere and the active one can run here") {
  CHECK(test::instruction_sets().back()->needs == 0);
  CHECK(supported(active()));
}
