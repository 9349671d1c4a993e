// Decoded codes of every format and instruction set against their tables of numbers.
#include "kernels/codes.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <cstdint>
#include <vector>

#include "support/instruction_sets.hpp"

using namespace ejk;

TEST_CASE(
    "codes of every format become the numbers of its table times scale and factor, on every instruction set") {
  struct Row {
    const FloatFormat* format;
    const float* numbers;
  };
  const Row rows[] = {{&kFloat8E4M3Fn, detail::kFloat8Values<kFloat8E4M3Fn>.data()},
                      {&kFloat8E5M2, detail::kFloat8Values<kFloat8E5M2>.data()},
                      {&kFloat8E4M3Fnuz, detail::kFloat8Values<kFloat8E4M3Fnuz>.data()},
                      {&kFloat8E5M2Fnuz, detail::kFloat8Values<kFloat8E5M2Fnuz>.data()},
                      {&kFloat6E2M3, detail::kFloat8Values<kFloat6E2M3>.data()},
                      {&kFloat6E3M2, detail::kFloat8Values<kFloat6E3M2>.data()},
                      {&kFloat4E2M1, detail::kFloat8Values<kFloat4E2M1>.data()}};
  std::vector<std::uint8_t> codes(256);
  std::vector<float> scales(257), out(256);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i * 37 + 11);
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = 0.75f + static_cast<float>(i % 9);
  for (const kernels::Kernels* set : test::instruction_sets()) {
    CAPTURE(set->name);
    for (const Row& row : rows)
      for (const std::int64_t block : {1, 3, 16, 32, 128, 1000})
        for (const std::int64_t first : {std::int64_t{0}, block / 2})
          for (const std::int64_t n : {0, 1, 31, 200, 256}) {
            set->codes.decode(*row.format, codes.data(), n, scales.data(), block, first, 1.5f, out.data());
            bool same = true;
            for (std::int64_t i = 0; i < n; ++i) {
              const auto at = static_cast<std::size_t>(i);
              const float scale = scales[static_cast<std::size_t>((first + i) / block)];
              const float expected = row.numbers[codes[at]] * scale * 1.5f;
              same = same && std::bit_cast<std::uint32_t>(out[at]) == std::bit_cast<std::uint32_t>(expected);
            }
            CHECK(same);
          }
  }
}
