// Codes of every format on every instruction set: decoded against their tables of numbers, encoded against the
// nearest number by search, errors and largest magnitudes against plain loops.
#include "kernels/codes.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <string_view>
#include <vector>

#include "support/instruction_sets.hpp"

using namespace ejk;

namespace {

struct Row {
  const FloatFormat* format;
  const float* numbers;
};
const Row kRows[] = {{&kFloat8E4M3Fn, detail::kFloat8Values<kFloat8E4M3Fn>.data()},
                     {&kFloat8E5M2, detail::kFloat8Values<kFloat8E5M2>.data()},
                     {&kFloat8E4M3Fnuz, detail::kFloat8Values<kFloat8E4M3Fnuz>.data()},
                     {&kFloat8E5M2Fnuz, detail::kFloat8Values<kFloat8E5M2Fnuz>.data()},
                     {&kFloat6E2M3, detail::kFloat8Values<kFloat6E2M3>.data()},
                     {&kFloat6E3M2, detail::kFloat8Values<kFloat6E3M2>.data()},
                     {&kFloat4E2M1, detail::kFloat8Values<kFloat4E2M1>.data()}};

// The code of a float by search of the two numbers next to it.
std::uint8_t code_by_search(const Row& row, float x, kernels::Ties ties, kernels::EncodeCounts& counts) {
  const detail::FloatCodes codes(*row.format);
  const std::uint32_t sign = std::signbit(x) ? codes.sign : 0;
  if (std::isnan(x)) {
    ++counts.nans;
    if (row.format->special == SpecialCodes::none) return static_cast<std::uint8_t>(codes.largest);
    return static_cast<std::uint8_t>(codes.nan | sign);
  }
  const double size = std::abs(double{x});
  std::uint32_t low = 0;  // the largest code of a number that is not larger
  for (std::uint32_t bit = 128; bit > 0; bit /= 2)
    if (low + bit <= codes.largest && double{row.numbers[low + bit]} <= size) low += bit;
  std::uint32_t code = low;
  const double below = row.numbers[low];
  // The number that would follow the largest one.
  const double above = low < codes.largest ? double{row.numbers[low + 1]} : 2 * below - row.numbers[low - 1];
  const double middle = (below + above) / 2;
  if (size > middle ||
      (size == middle && (ties == kernels::Ties::away || (ties == kernels::Ties::even && low % 2 == 1))))
    ++code;
  if (code > codes.largest) ++counts.overflows, code = codes.largest;
  counts.flushed += code == 0 && x != 0;
  return static_cast<std::uint8_t>(code | sign);
}

// Every bfloat16 pattern, ties of all formats and their neighbours, and random patterns.
std::vector<float> inputs() {
  std::vector<float> x;
  for (std::uint32_t pattern = 0; pattern < 0x10000; ++pattern)
    x.push_back(std::bit_cast<float>(pattern << 16));
  for (const Row& row : kRows)
    for (std::uint32_t code = 0; code < detail::FloatCodes(*row.format).largest; ++code) {
      const float middle = (row.numbers[code] + row.numbers[code + 1]) / 2;
      for (const float tie : {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, INFINITY)})
        x.insert(x.end(), {tie, -tie});
    }
  std::mt19937 engine(5);
  for (int i = 0; i < 100000; ++i) {
    x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(engine())));
    // Of the numbers' own range.
    x.push_back(std::ldexp(static_cast<float>(engine()), -static_cast<int>(20 + engine() % 40)));
  }
  return x;
}

}  // namespace

TEST_CASE(
    "codes of every format become the numbers of its table times scale and factor, on every instruction set") {
  std::vector<std::uint8_t> all(256);
  std::vector<float> usual(257), out(300);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint8_t>(i * 37 + 11);
  for (std::size_t i = 0; i < usual.size(); ++i) usual[i] = 0.75f + static_cast<float>(i % 9);
  // Scales that overflow if they are scaled again, or are subnormal, each alone and in its own place.
  std::vector<std::vector<float>> all_scales = {usual};
  std::size_t place = 0;
  for (const float extreme :
       {FLT_MAX, -0x1.8p120f, 0x1p120f, -0x1p120f, 0x1.8p119f, 0x1p-140f, 0.0f, -0.0f}) {
    all_scales.push_back(usual);
    all_scales.back()[place++] = extreme;
  }
  for (const Row& row : kRows) {
    std::vector<std::uint8_t> numbers = all;
    for (std::uint8_t& code : numbers)
      if (std::isnan(row.numbers[code])) code = 1;
    for (const auto* codes : {&all, &numbers})
      for (const std::vector<float>& scales : all_scales)
        for (const float factor : {1.0f, 1.5f})
          for (const std::int64_t block : {1, 3, 16, 32, 50, 128, 1000})
            for (const std::int64_t first : {std::int64_t{0}, block / 2})
              for (const std::int64_t n : {0, 1, 31, 200, 256})
                for (const kernels::Kernels* set : test::instruction_sets()) {
                  CAPTURE(set->name);
                  std::fill(out.begin(), out.end(), -7.0f);
                  set->codes.decode(*row.format, codes->data(), n, {scales.data(), block, first}, factor,
                                    out.data());
                  bool same = std::all_of(out.begin() + n, out.end(), [](float x) { return x == -7; });
                  for (std::int64_t i = 0; i < n; ++i) {
                    const auto at = static_cast<std::size_t>(i);
                    const float scale = scales[static_cast<std::size_t>((first + i) / block)];
                    const float expected = row.numbers[(*codes)[at]] * scale * factor;
                    same = same &&
                           std::bit_cast<std::uint32_t>(out[at]) == std::bit_cast<std::uint32_t>(expected);
                  }
                  CHECK(same);
                }
  }
}

TEST_CASE("floats become the nearest codes for every rounding of ties, on every instruction set") {
  using kernels::Ties;
  const std::vector<float> x = inputs();
  const auto n = static_cast<std::int64_t>(x.size());
  std::vector<std::uint8_t> expected(x.size()), codes(x.size());
  std::vector<float> decoded(x.size());
  const float one = 1;
  for (const Row& row : kRows)
    for (const Ties ties : {Ties::even, Ties::away, Ties::down}) {
      if (row.format->special == SpecialCodes::fnuz) continue;
      kernels::EncodeCounts counts;
      for (std::size_t i = 0; i < x.size(); ++i) expected[i] = code_by_search(row, x[i], ties, counts);
      for (const kernels::Kernels* set : test::instruction_sets()) {
        CAPTURE(set->name);
        kernels::EncodeCounts found;
        set->codes.encode(*row.format, ties, x.data(), n, {&one, &one, 1, kernels::ScaleUse::multiplies, n},
                          codes.data(), decoded.data(), found);
        CHECK(codes == expected);
        CHECK(found.overflows == counts.overflows);
        CHECK(found.flushed == counts.flushed);
        CHECK(found.nans == counts.nans);
      }
    }
}

TEST_CASE("codes and largest magnitudes of blocks are those of plain loops, on every instruction set") {
  std::vector<float> x = inputs();
  std::shuffle(x.begin(), x.end(), std::mt19937(6));
  x.resize(3000);
  x[0] = NAN, x[1] = -INFINITY;
  std::vector<float> scales(3002);
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = 0.3f + static_cast<float>(i % 9);
  std::vector<std::uint8_t> codes(x.size());
  std::vector<float> decoded(x.size());
  std::vector<std::uint32_t> largest(scales.size()), largest_of_all(scales.size());
  for (const kernels::Kernels* set : test::instruction_sets()) {
    CAPTURE(set->name);
    for (const Row& row : {kRows[0], kRows[1], kRows[6]})
      for (const std::int64_t block : {1, 3, 16, 32, 1000})
        for (const std::int64_t first : {std::int64_t{0}, block / 2})
          for (const bool divides : {false, true})
            for (const std::int64_t n : {1, 2, 31, 3000}) {
              kernels::EncodeCounts counts, ignored;
              set->codes.encode(
                  *row.format, kernels::Ties::even, x.data(), n,
                  {scales.data(), scales.data(), 1,
                   divides ? kernels::ScaleUse::divides : kernels::ScaleUse::multiplies, block, first},
                  codes.data(), decoded.data(), counts);
              set->codes.largest(x.data(), n, block, first, true, largest.data());
              set->codes.largest(x.data(), n, block, first, false, largest_of_all.data());
              std::vector<std::uint32_t> most(scales.size()), most_of_all(scales.size());
              int wrong = 0;
              std::int64_t nans = 0;
              for (std::int64_t i = 0; i < n; ++i) {
                const auto at = static_cast<std::size_t>(i),
                           b = static_cast<std::size_t>((first + i) / block);
                const float scaled = divides ? x[at] / scales[b] : x[at] * scales[b];
                wrong += codes[at] != code_by_search(row, scaled, kernels::Ties::even, ignored);
                nans += std::isnan(x[at]);
                most_of_all[b] = std::max(most_of_all[b], std::bit_cast<std::uint32_t>(std::abs(x[at])));
                if (!std::isfinite(x[at])) continue;
                most[b] = std::max(most[b], std::bit_cast<std::uint32_t>(std::abs(x[at])));
              }
              CHECK(wrong == 0);
              CHECK(counts.nans == nans);
              const std::int64_t blocks = (first + n + block - 1) / block;
              CHECK(std::equal(most.begin(), most.begin() + blocks, largest.begin()));
              CHECK(std::equal(most_of_all.begin(), most_of_all.begin() + blocks, largest_of_all.begin()));
            }
  }
}

TEST_CASE("floats of 16 bits as float32, bit for bit, on every instruction set") {
  std::vector<std::uint16_t> words(1 << 16);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = static_cast<std::uint16_t>(i);
  std::vector<float> out(words.size());
  for (const kernels::Kernels* set : test::instruction_sets())
    for (const DType dtype : {DType::float16, DType::bfloat16})
      for (const std::size_t begin :
           {std::size_t{0}, std::size_t{1}, std::size_t{65529}}) {  // whole registers and parts of one
        CAPTURE(set->name);
        set->codes.widen(dtype, words.data() + begin, std::ssize(words) - static_cast<std::int64_t>(begin),
                         out.data());
        int wrong = 0;
        for (std::size_t i = begin; i < words.size(); ++i) {
          const std::uint32_t word = words[i], sign = word >> 15 << 31;
          std::uint32_t expected = word << 16;
          if (dtype == DType::float16) {
            const std::uint32_t exponent = word >> 10 & 31, fraction = word & 0x3FF;
            const float number = std::ldexp(static_cast<float>(exponent == 0 ? fraction : fraction | 0x400),
                                            static_cast<int>(std::max(exponent, 1u)) - 25);
            expected = exponent == 31 ? sign | 0x7F800000 | fraction << 13
                                      : sign | std::bit_cast<std::uint32_t>(number);
          }
          wrong += std::bit_cast<std::uint32_t>(out[i - begin]) != expected;
        }
        CHECK(wrong == 0);
      }
}

TEST_CASE("codes, counts and errors of finite blocks are those of a plain loop, on every instruction set") {
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  std::vector<float> x(3000), encode(3020), decode(3020), decoded(x.size());
  for (float& element : x) element = normal(random);
  std::vector<std::uint8_t> codes(x.size());
  for (const Row& row : {kRows[0], kRows[1], kRows[6]})
    for (const std::int64_t block : {1, 3, 16, 30, 32, 1000})
      for (const std::int64_t first : {std::int64_t{0}, std::int64_t{16} % block, block / 2})
        for (const std::int64_t n : {1, 17, 31, 1000, 3000})
          for (const bool divides : {false, true})
            for (const float factor : {1.0f, 0.75f}) {
              // Some elements are above the largest number, some become 0.
              for (std::size_t b = 0; b < encode.size(); ++b) {
                const float scale =
                    static_cast<float>(2 / row.format->largest) * (1 + static_cast<float>(b % 5) / 8);
                encode[b] = divides ? scale : 1 / scale;
                decode[b] = scale / factor;
              }
              kernels::EncodeCounts expected;
              kernels::CodeErrors expected_errors;
              std::vector<std::uint8_t> expected_codes;
              for (std::int64_t i = 0; i < n; ++i) {
                const auto at = static_cast<std::size_t>(i),
                           b = static_cast<std::size_t>((first + i) / block);
                const float scaled = divides ? x[at] / encode[b] : x[at] * encode[b];
                expected_codes.push_back(code_by_search(row, scaled, kernels::Ties::even, expected));
                const float back = row.numbers[expected_codes.back()] * decode[b] * factor;
                const double error = std::abs(static_cast<double>(x[at]) - static_cast<double>(back));
                if (static_cast<float>(error) > static_cast<float>(expected_errors.largest))
                  expected_errors.largest = error, expected_errors.largest_at = i;
              }
              for (const kernels::Kernels* set : test::instruction_sets()) {
                CAPTURE(set->name);
                CAPTURE(block);
                CAPTURE(n);
                kernels::EncodeCounts counts;
                kernels::CodeErrors errors;
                set->codes.encode(
                    *row.format, kernels::Ties::even, x.data(), n,
                    {encode.data(), decode.data(), factor,
                     divides ? kernels::ScaleUse::divides : kernels::ScaleUse::multiplies, block, first},
                    codes.data(), decoded.data(), counts);
                set->codes.errors(x.data(), decoded.data(), n, 0, errors);
                CHECK(std::equal(expected_codes.begin(), expected_codes.end(), codes.begin()));
                CHECK(counts.overflows == expected.overflows);
                CHECK(counts.flushed == expected.flushed);
                CHECK(errors.largest == expected_errors.largest);
                CHECK(errors.largest_at == expected_errors.largest_at);
              }
            }
}

TEST_CASE("totals of errors are those of a plain loop over decoded codes, on every instruction set") {
  std::mt19937 random(7);
  std::vector<float> x(3000), encode(189), decode(189), decoded(x.size()), at_once(x.size());
  std::vector<std::uint8_t> codes(x.size());
  constexpr std::int64_t kBlock = 16, kFirst = 5, kAt = 1000;
  constexpr float kFactor = 0.75f;
  for (const std::string_view kind : {"usual", "tiny", "huge", "exact", "zeros", "one NaN", "infinities",
                                      "a scale is NaN", "growing", "equal"}) {
    CAPTURE(kind);
    const int exponent = kind == "tiny" ? -80 : kind == "huge" ? 70 : 0;
    for (std::size_t b = 0; b < encode.size(); ++b) {
      encode[b] = std::ldexp(1.0f, exponent + static_cast<int>(random() % 3));
      decode[b] = encode[b] / kFactor;
    }
    std::normal_distribution<float> normal(0, std::ldexp(2.0f, exponent));
    for (float& element : x) element = normal(random);
    if (kind == "exact")
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = encode[(i + kFirst) / kBlock] * 1.5f;
    if (kind == "zeros") std::fill(x.begin(), x.begin() + 1000, 0.0f);
    if (kind == "one NaN") x[700] = NAN;
    if (kind == "infinities") x[0] = INFINITY, x.back() = -INFINITY;
    if (kind == "a scale is NaN") encode[40] = decode[40] = NAN;
    // In steps: later registers and chunks have the largest error.
    if (kind == "growing")
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = 100 + std::floor(static_cast<float>(i) / 50);
    // Of errors that are equal in float32 the first one is reported.
    if (kind == "equal") {
      std::fill(x.begin(), x.end(), 777.77f);
      std::fill(encode.begin(), encode.end(), 0.001f), std::fill(decode.begin(), decode.end(), 0.001f);
    }
    for (const Row& row : {kRows[0], kRows[1], kRows[6]})
      for (const std::int64_t n : {0, 1, 3, 4, 7, 8, 16, 17, 255, 1023, 1024, 1025, 3000})
        for (const kernels::Kernels* set : test::instruction_sets()) {
          CAPTURE(set->name);
          CAPTURE(n);
          kernels::EncodeCounts found;
          kernels::CodeErrors totals;
          set->codes.encode(
              *row.format, kernels::Ties::even, x.data(), n,
              {encode.data(), decode.data(), kFactor, kernels::ScaleUse::divides, kBlock, kFirst},
              codes.data(), at_once.data(), found);
          set->codes.errors(x.data(), at_once.data(), n, kAt, totals);
          set->codes.decode(*row.format, codes.data(), n, {decode.data(), kBlock, kFirst}, kFactor,
                            decoded.data());
          double signal = 0, noise = 0, worst = -1;
          std::int64_t worst_at = 0, lost = 0;
          kernels::EncodeCounts counts;
          std::int64_t different = 0;
          for (std::int64_t i = 0; i < n; ++i) {
            const double value = x[static_cast<std::size_t>(i)], back = decoded[static_cast<std::size_t>(i)];
            const float scale = encode[static_cast<std::size_t>((kFirst + i) / kBlock)];
            if (std::isnan(value) || !std::isnan(scale))
              code_by_search(row, x[static_cast<std::size_t>(i)] / scale, kernels::Ties::even, counts);
            if (!std::isfinite(value)) continue;
            lost += std::isnan(back);
            different += std::isnan(back) != std::isnan(at_once[static_cast<std::size_t>(i)]);
            if (std::isnan(back)) continue;
            different += std::bit_cast<std::uint32_t>(decoded[static_cast<std::size_t>(i)]) !=
                         std::bit_cast<std::uint32_t>(at_once[static_cast<std::size_t>(i)]);
            signal += value * value, noise += (value - back) * (value - back);
            if (std::abs(value - back) > worst) worst = std::abs(value - back), worst_at = kAt + i;
          }
          CHECK(std::abs(totals.signal - signal) <= 1e-5 * signal);
          CHECK(std::abs(totals.noise - noise) <= 1e-5 * noise);
          CHECK(totals.largest == worst);
          CHECK(totals.largest_at == worst_at);
          CHECK(totals.lost == lost);
          CHECK(different == 0);
          CHECK(found.overflows == counts.overflows);
          CHECK(found.flushed == counts.flushed);
          CHECK(found.nans == counts.nans);
        }
  }
}
