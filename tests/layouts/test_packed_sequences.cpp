// Masks of packed sequences in padded positions and back, by plain loops.
#include "layouts/packed_sequences.hpp"

#include <doctest/doctest.h>

#include "ejk/mask_layouts.hpp"
#include "support/failure.hpp"
#include "support/plain_layouts.hpp"

using namespace ejk;
using plain::between;

TEST_CASE("packed sequences: each moves to its blocks, pairs of two sequences and padding are False") {
  plain::Random random{21};
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    const std::int64_t count = between(random, 1, 5);
    std::vector<std::int64_t> cu_q{0}, cu_kv{0};
    for (std::int64_t s = 0; s < count; ++s) {
      cu_q.push_back(cu_q.back() + between(random, s == 0, 30));
      cu_kv.push_back(cu_kv.back() + between(random, s == 0, 80));
    }
    const BlockShape block{between(random, 1, 12), between(random, 1, 70)};
    const auto sequences =
        std::make_shared<const blocks::PackedSequences>(blocks::packed_sequences(cu_q, cu_kv, block));
    const plain::Pair of = plain::random_mask(random, cu_q.back(), cu_kv.back(), 2);
    const Mask padded = blocks::padded_mask(of.mask, sequences);
    const std::int64_t width = sequences->kv.padded.back();
    std::vector<std::uint8_t> wanted(static_cast<std::size_t>(sequences->q.padded.back() * width)),
        inside(of.elements.size());
    std::int64_t q_blocks = 0, kv_blocks = 0;
    for (std::size_t s = 0; s + 1 < cu_q.size(); ++s) {
      for (std::int64_t q = cu_q[s]; q < cu_q[s + 1]; ++q)
        for (std::int64_t k = cu_kv[s]; k < cu_kv[s + 1]; ++k) {
          const auto at = static_cast<std::size_t>(q * cu_kv.back() + k);
          inside[at] = of.elements[at];
          wanted[static_cast<std::size_t>((q_blocks * block.q + q - cu_q[s]) * width + kv_blocks * block.kv +
                                          k - cu_kv[s])] = of.elements[at];
        }
      q_blocks += (cu_q[s + 1] - cu_q[s] + block.q - 1) / block.q;
      kv_blocks += (cu_kv[s + 1] - cu_kv[s] + block.kv - 1) / block.kv;
    }
    REQUIRE(plain::elements_of(padded) == wanted);
    const Mask back = blocks::packed_mask(padded, sequences);
    REQUIRE(plain::elements_of(back) == inside);
    // Blocks of any size are classified as the elements are.
    for (const auto& [mask, elements] : {std::pair{padded, wanted}, std::pair{back, inside}}) {
      const BlockShape other{between(random, 1, 20), between(random, 1, 80)};
      const auto of_elements =
          array_mask(make_source(plain::array_of(mask.q_length(), mask.kv_length(), elements)));
      const auto states = [&](const Mask& m) {
        return make_mask_arrays({m}, other, {.layout = MaskLayout::bsr, .pad = true}).summaries[0];
      };
      const MaskSummary a = states(mask), b = states(of_elements);
      REQUIRE(a.full_blocks == b.full_blocks);
      REQUIRE(a.partial_blocks == b.partial_blocks);
      REQUIRE(a.true_elements == b.true_elements);
    }
    const std::int64_t q = between(random, 0, cu_q.back() - 1), s = sequences->q.sequence_of(q);
    CHECK(q >= cu_q[static_cast<std::size_t>(s)]);
    CHECK(q < cu_q[static_cast<std::size_t>(s) + 1]);
    CHECK(sequences->q.padded_position(q) ==
          sequences->q.first_block(s) * block.q + q - cu_q[static_cast<std::size_t>(s)]);
  }
  const auto offsets = [](const std::vector<std::int64_t>& values, const char* name) {
    return make_source(Array::from<std::int64_t>({std::ssize(values)}, values), name);
  };
  CHECK(plain::failure([&] {
          blocks::read_sequences(*offsets({0, 4}, "q.npy"), *offsets({0, 2, 4}, "k.npy"));
        }) == "k.npy has 3 elements, and q.npy has 2: as many sequences of keys as of queries");
  CHECK(plain::failure([] {
          blocks::packed_sequences({0, 4}, {0, 2, 4}, {2, 2});
        }) == "1 sequences of queries and 2 of keys");
  CHECK(plain::failure([] {
          blocks::packed_sequences({0, 1, 2}, {0, 1, 2}, {std::int64_t{1} << 48, 2});
        }).find("more than 2^48 positions") != std::string::npos);
}
