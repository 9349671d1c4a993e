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
std::uint8_t code_by_search(const Row& row, float x, kernels::Ties ties, kernels::EncodeTotals& counts) {
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
  std::vector<Row> rows(std::begin(kRows), std::end(kRows));
  rows.push_back({&kFloat8E8M0Fnu, detail::kFloat8Values<kFloat8E8M0Fnu>.data()});
  for (const Row& row : rows) {
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
                  set->codes.decode(*row.format, {codes->data(), n, scales.data(), block, first, factor},
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

TEST_CASE("rows of codes are decoded wherever they begin, two in a byte or one, on every instruction set") {
  using kernels::CodeHalves;
  constexpr std::int64_t kLines = 3, kStride = 230, kScalesStride = 210;
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(kLines * kStride));
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 89 + 5);
  std::vector<float> scales(static_cast<std::size_t>(kLines * kScalesStride));
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = 0.5f + static_cast<float>(i % 11);
  const auto code_at = [&](CodeHalves halves, std::int64_t row, std::int64_t i) -> std::uint8_t {
    const bool is_packed = halves == CodeHalves::low_first || halves == CodeHalves::high_first;
    const std::uint8_t byte = bytes[static_cast<std::size_t>(row * kStride + (is_packed ? i / 2 : i))];
    const bool is_high =
        is_packed ? (i % 2 == 0) == (halves == CodeHalves::high_first) : halves == CodeHalves::high;
    return is_high ? byte >> 4 : byte & 15;
  };
  for (const CodeHalves halves :
       {CodeHalves::low_first, CodeHalves::high_first, CodeHalves::low, CodeHalves::high})
    for (const std::int64_t start : {0, 1, 16, 31})
      for (const std::int64_t block : {1, 2, 5, 16, 32, 64, 1000})
        for (const std::int64_t n : {1, 2, 7, 8, 9, 15, 16, 17, 33, 64, 160})
          for (const std::int64_t stride : {std::int64_t{0}, kScalesStride})
            for (const std::int64_t ahead : {0, 40})
              for (const kernels::Kernels* set : test::instruction_sets()) {
                const bool is_packed = halves == CodeHalves::low_first || halves == CodeHalves::high_first;
                const kernels::CodeRows rows{.bytes = bytes.data() + (is_packed ? start / 2 : start),
                                             .n = n,
                                             .scales = scales.data(),
                                             .block = block,
                                             .first = start % block,
                                             .factor = 1.5f,
                                             .halves = halves,
                                             .skipped = is_packed ? start % 2 : 0,
                                             .rows = kLines,
                                             .stride = kStride,
                                             .scales_stride = stride,
                                             .ahead = ahead};
                std::vector<float> out(static_cast<std::size_t>(kLines * n));
                set->codes.decode(kFloat4E2M1, rows, out.data());
                std::int64_t wrong = 0;
                for (std::int64_t r = 0; r < kLines; ++r)
                  for (std::int64_t i = 0; i < n; ++i) {
                    const float scale =
                        scales[static_cast<std::size_t>(r * stride + (rows.first + i) / block)];
                    const float number = detail::kFloat8Values<kFloat4E2M1>[code_at(halves, r, start + i)];
                    wrong += out[static_cast<std::size_t>(r * n + i)] != number * scale * 1.5f;
                  }
                CAPTURE(set->name);
                CAPTURE(static_cast<int>(halves));
                CAPTURE(start);
                CAPTURE(block);
                CAPTURE(n);
                CAPTURE(stride);
                CHECK(wrong == 0);
              }
}

TEST_CASE("contiguous rows, short ones too, are decoded as each alone; a row may have a NaN, or no element") {
  std::mt19937 random(9);
  std::vector<std::uint8_t> bytes(5000);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random() % 0x7F);
  bytes[777] = 0xFF;
  std::vector<float> scales(5000);
  for (float& scale : scales) scale = 0.5f + static_cast<float>(random() % 7);
  // Elements of a row, of a block, before the first one in it, and scales from row to row.
  const std::int64_t cases[][4] = {{1, 1, 0, 1},    {1, 1000, 3, 0},   {4, 4, 0, 1},    {6, 3, 0, 2},
                                   {8, 64, 5, 0},   {8, 8, 2, 1},      {64, 32, 0, 2},  {96, 96, 0, 1},
                                   {100, 32, 0, 4}, {128, 1000, 0, 0}, {200, 16, 0, 13}};
  for (const Row& row : kRows)
    for (const auto& some : cases)
      for (const std::int64_t rows : {1, 2, 7, 23})
        for (const kernels::Kernels* set : test::instruction_sets()) {
          const std::int64_t n = some[0], block = some[1], first = some[2], stride = some[3];
          const bool is_packed = row.format->bits() == 4 && n % 2 == 0;
          kernels::CodeRows all{
              .bytes = bytes.data(), .n = n, .scales = scales.data(), .block = block, .first = first};
          if (is_packed) all.halves = kernels::CodeHalves::low_first;
          all.rows = rows, all.stride = is_packed ? n / 2 : n, all.scales_stride = stride;
          std::vector<float> out(static_cast<std::size_t>(rows * n)), alone(static_cast<std::size_t>(n));
          set->codes.decode(*row.format, all, out.data());
          bool same = true;
          for (std::int64_t r = 0; r < rows; ++r) {
            kernels::CodeRows one = all;
            one.rows = 1;
            one.bytes += r * all.stride, one.scales += r * stride;
            set->codes.decode(*row.format, one, alone.data());
            same = same && std::memcmp(alone.data(), out.data() + r * n, alone.size() * sizeof(float)) == 0;
          }
          CAPTURE(set->name);
          CAPTURE(n);
          CAPTURE(rows);
          CHECK(same);
          set->codes.decode(*row.format, {.rows = rows}, nullptr);
        }
}

TEST_CASE("floats become the nearest codes for every rounding of ties, on every instruction set") {
  using kernels::Ties;
  const std::vector<float> x = inputs();
  const auto n = static_cast<std::int64_t>(x.size());
  std::vector<std::uint8_t> expected(x.size()), codes(x.size());
  const float one = 1;
  for (const Row& row : kRows)
    for (const Ties ties : {Ties::even, Ties::away, Ties::down}) {
      if (row.format->special == SpecialCodes::fnuz) continue;
      kernels::EncodeTotals counts;
      for (std::size_t i = 0; i < x.size(); ++i) expected[i] = code_by_search(row, x[i], ties, counts);
      for (const kernels::Kernels* set : test::instruction_sets()) {
        CAPTURE(set->name);
        kernels::EncodeTotals found;
        set->codes.encode(*row.format, ties, x.data(), n, {&one, &one, 1, kernels::ScaleUse::multiplies}, n,
                          0, 0, codes.data(), found);
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
  std::vector<std::uint32_t> largest(scales.size()), largest_of_all(scales.size());
  for (const kernels::Kernels* set : test::instruction_sets()) {
    CAPTURE(set->name);
    for (const Row& row : {kRows[0], kRows[1], kRows[6]})
      for (const std::int64_t block : {1, 3, 16, 32, 1000})
        for (const std::int64_t first : {std::int64_t{0}, block / 2})
          for (const bool divides : {false, true})
            for (const std::int64_t n : {1, 2, 31, 3000}) {
              kernels::EncodeTotals counts, ignored;
              set->codes.encode(*row.format, kernels::Ties::even, x.data(), n,
                                {scales.data(), scales.data(), 1,
                                 divides ? kernels::ScaleUse::divides : kernels::ScaleUse::multiplies},
                                block, first, 0, codes.data(), counts);
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

TEST_CASE("E8M0 scales, their numbers and inverses, on every instruction set") {
  std::vector<std::uint32_t> largest = {0x7F800000, 0x7F800001, 0x7FFFFFFF};
  for (std::uint32_t exponent = 0; exponent < 255; ++exponent)
    for (const std::uint32_t fraction : {0u, 1u, 0x3FFFFFu, 0x600000u, 0x600001u, 0x7FFFFFu})
      largest.push_back(exponent << 23 | fraction);
  const auto n = std::ssize(largest);
  const float* const table = detail::kFloat8Values<kFloat8E8M0Fnu>.data();
  std::vector<std::uint8_t> codes(largest.size());
  std::vector<float> numbers(largest.size()), inverses(largest.size());
  // Of e4m3, whose largest number is 1.75 · 2^8, amax times a power of two is rounded to a power of two: down,
  // down after its fraction to 3 bits, up, and up from 1.75.
  for (const std::string_view kind : {"floor", "even", "ceil", "rceil"}) {
    CAPTURE(kind);
    const bool up = kind == "ceil" || kind == "rceil";
    kernels::E8M0Rule rule{.offset = 8, .infinity = kind == "rceil" ? 254 : 247};
    if (kind == "even") rule.added = 1u << 19;
    if (kind == "ceil") rule.last_fraction = 0;
    if (kind == "rceil") rule.last_fraction = 0x600000;
    for (const kernels::Kernels* set : test::instruction_sets()) {
      CAPTURE(set->name);
      set->codes.scales(rule, largest.data(), n, codes.data(), numbers.data(), inverses.data());
      int wrong = 0;
      for (std::size_t i = 0; i < largest.size(); ++i) {
        const double size = std::bit_cast<float>(largest[i]);
        int expected = kind == "rceil" ? 254 : 247;
        if (std::isnan(size)) expected = 255;
        if (std::isfinite(size)) {
          double least = size / (kind == "rceil" ? 448 : 256);  // 2^(code - 127) is the power next to this
          if (kind == "even" && size >= 0x1p-126) {
            const double unit = std::ldexp(1, std::ilogb(least) - 3);
            least = std::floor(least / unit + 0.5) * unit;
          }
          int exponent = least > 0 ? std::ilogb(least) : -127;
          if (up && least > std::ldexp(1, exponent)) ++exponent;
          expected = std::clamp(exponent + 127, 0, 254);
        }
        wrong += codes[i] != expected;
        const auto differ = [](float a, float b) {
          return std::bit_cast<std::uint32_t>(a) != std::bit_cast<std::uint32_t>(b);
        };
        wrong += differ(numbers[i], table[expected]);
        wrong += differ(inverses[i], table[expected == 255 ? 255 : 254 - expected]);
      }
      CHECK(wrong == 0);
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

TEST_CASE("codes in a set, and codes of 4 bits in pairs, on every instruction set") {
  std::mt19937 random(3);
  for (const kernels::Kernels* set : test::instruction_sets()) {
    CAPTURE(set->name);
    for (const std::int64_t n : {0, 2, 30, 64, 130, 200})
      for (int left_out = 0; left_out < 256; ++left_out) {
        std::uint8_t bits[32] = {};
        for (int code = 0; code < 256; ++code)
          if (code != left_out) bits[code / 8] = static_cast<std::uint8_t>(bits[code / 8] | 1 << code % 8);
        std::vector<std::uint8_t> codes(static_cast<std::size_t>(n));
        for (std::uint8_t& code : codes) do
            code = static_cast<std::uint8_t>(random());
          while (code == left_out);
        CHECK(set->codes.are_in(bits, codes.data(), n));
        if (n == 0) continue;
        codes[random() % codes.size()] = static_cast<std::uint8_t>(left_out);
        CHECK_FALSE(set->codes.are_in(bits, codes.data(), n));

        for (std::uint8_t& code : codes) code &= 15;
        std::vector<std::uint8_t> packed(codes.size() / 2);
        set->codes.pack(codes.data(), n, packed.data());
        int wrong = 0;
        for (std::size_t i = 0; i < codes.size(); ++i)
          wrong += (i % 2 == 0 ? packed[i / 2] & 15 : packed[i / 2] >> 4) != codes[i];
        CHECK(wrong == 0);
      }
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
              kernels::EncodeTotals expected;
              std::vector<std::uint8_t> expected_codes;
              for (std::int64_t i = 0; i < n; ++i) {
                const auto at = static_cast<std::size_t>(i),
                           b = static_cast<std::size_t>((first + i) / block);
                const float scaled = divides ? x[at] / encode[b] : x[at] * encode[b];
                expected_codes.push_back(code_by_search(row, scaled, kernels::Ties::even, expected));
                const float back = row.numbers[expected_codes.back()] * decode[b] * factor;
                const double error = std::abs(static_cast<double>(x[at]) - static_cast<double>(back));
                if (static_cast<float>(error) > static_cast<float>(expected.largest))
                  expected.largest = error, expected.largest_at = i;
              }
              for (const kernels::Kernels* set : test::instruction_sets()) {
                CAPTURE(set->name);
                CAPTURE(block);
                CAPTURE(n);
                const auto run = [&](float known) {
                  kernels::EncodeTotals totals{.known = known};
                  set->codes.encode(*row.format, kernels::Ties::even, x.data(), n,
                                    {encode.data(), decode.data(), factor,
                                     divides ? kernels::ScaleUse::divides : kernels::ScaleUse::multiplies},
                                    block, first, 0, codes.data(), totals);
                  return totals;
                };
                const kernels::EncodeTotals totals = run(0);
                CHECK(std::equal(expected_codes.begin(), expected_codes.end(), codes.begin()));
                CHECK(totals.overflows == expected.overflows);
                CHECK(totals.flushed == expected.flushed);
                CHECK(totals.largest == expected.largest);
                CHECK(totals.largest_at == expected.largest_at);
                // One as large as the known one is located, all smaller ones are not.
                const auto largest = static_cast<float>(expected.largest);
                CHECK(run(largest).largest_at == expected.largest_at);
                CHECK(run(std::nextafter(largest, INFINITY)).largest == -1);
              }
            }
}

TEST_CASE("totals of errors are those of a plain loop over decoded codes, on every instruction set") {
  std::mt19937 random(7);
  std::vector<float> x(3000), encode(189), decode(189), decoded(x.size());
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
          kernels::EncodeTotals totals;
          set->codes.encode(*row.format, kernels::Ties::even, x.data(), n,
                            {encode.data(), decode.data(), kFactor, kernels::ScaleUse::divides}, kBlock,
                            kFirst, kAt, codes.data(), totals);
          set->codes.decode(*row.format, {codes.data(), n, decode.data(), kBlock, kFirst, kFactor},
                            decoded.data());
          double signal = 0, noise = 0, worst = -1;
          std::int64_t worst_at = 0, lost = 0;
          kernels::EncodeTotals counts;
          for (std::int64_t i = 0; i < n; ++i) {
            const double value = x[static_cast<std::size_t>(i)], back = decoded[static_cast<std::size_t>(i)];
            const float scale = encode[static_cast<std::size_t>((kFirst + i) / kBlock)];
            if (std::isnan(value) || !std::isnan(scale))
              code_by_search(row, x[static_cast<std::size_t>(i)] / scale, kernels::Ties::even, counts);
            if (!std::isfinite(value)) continue;
            lost += std::isnan(back);
            if (std::isnan(back)) continue;
            signal += value * value, noise += (value - back) * (value - back);
            if (std::abs(value - back) > worst) worst = std::abs(value - back), worst_at = kAt + i;
          }
          CHECK(std::abs(totals.signal - signal) <= 1e-5 * signal);
          CHECK(std::abs(totals.noise - noise) <= 1e-5 * noise);
          CHECK(totals.largest == worst);
          CHECK(totals.largest_at == worst_at);
          CHECK(totals.lost == lost);
          CHECK(totals.overflows == counts.overflows);
          CHECK(totals.flushed == counts.flushed);
          CHECK(totals.nans == counts.nans);
        }
  }
}
