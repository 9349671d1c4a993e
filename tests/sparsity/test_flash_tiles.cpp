// Tiles of FlashAttention-4, as its own functions choose them, and the sizes of blocks that its checks take.
#include "ejk/sparsity.hpp"

#include <doctest/doctest.h>

#include "support/arrays.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"

using namespace ejk;

TEST_CASE("tiles and blocks that fit them are those of FlashAttention-4") {
  int cases = 0, taken = 0;
  for (const golden::Case& c : golden::load("fa4_tiles")) {
    const Direction direction = c.name == "backward" ? Direction::dkv : Direction::forward;
    const auto in = plain::doubles(c.in.at("cases").view()), tiles = plain::doubles(c.out.at("tiles").view()),
               runs = plain::doubles(c.out.at("runs").view());
    for (std::size_t n = 0; n < runs.size(); ++n) {
      const auto at = [&](std::size_t column) { return static_cast<std::int64_t>(in[6 * n + column]); };
      const Fa4Kernel kernel{at(0) == 90 ? Fa4Arch::sm90 : Fa4Arch::sm100, at(1), at(2), direction,
                             c.name == "varlen"};
      const BlockShape block{at(3), at(4)}, tile = fa4_tile(kernel, block, at(5));
      CAPTURE(n);
      CHECK(static_cast<double>(tile.q) == tiles[2 * n]);
      CHECK(static_cast<double>(tile.kv) == tiles[2 * n + 1]);
      const std::string why = fa4_refusal(kernel, block, at(5));
      CHECK_MESSAGE(why.empty() == (runs[n] != 0), why);
      ++cases, taken += runs[n] != 0;
    }
  }
  CHECK(cases == 3 * 2816);
  CHECK(taken > 500);
  CHECK(cases - taken > 500);
}

TEST_CASE("what a kernel does not take says which length and why") {
  CHECK(fa4_refusal({Fa4Arch::sm90, 128, 128}, {128, 256}, 1024) ==
        "sm90 has tiles of 128 keys at this head size, and blocks have 256, not as many");
  CHECK(fa4_refusal({Fa4Arch::sm100, 128, 128}, {128, 128}, 1024) ==
        "sm100 has tiles of 256 queries, and blocks have 128, not a multiple");
  CHECK(fa4_refusal({Fa4Arch::sm100, 128, 128}, {128, 128}, 128) == "");
  const Fa4Kernel backward{Fa4Arch::sm100, 192, 192, Direction::dkv};
  CHECK(
      fa4_refusal(backward, {128, 128}, 1024) ==
      "sm100's backward pass has pairs of tiles of 128 keys at head size 192, and blocks have 128, not a multiple");
  CHECK(fa4_refusal({Fa4Arch::sm100, 256, 256, Direction::dkv}, {128, 128}, 1024) ==
        "sm100's backward pass takes no blocks at head size 256");
  CHECK(fa4_refusal({Fa4Arch::sm90, 128, 128, Direction::forward, true}, {256, 128}, 1024) ==
        "sm90 has tiles of 128 queries for packed sequences, and blocks have 256, not as many");
  CHECK(plain::failure(
            [] {
              fa4_tile({Fa4Arch::sm90, 257, 128}, {128, 128}, 1);
            },
            Error::Kind::usage) == "a head has 1 to 256 elements, not 257");
}
