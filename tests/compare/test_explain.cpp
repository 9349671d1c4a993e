// Explanations of differences: faults of kernels, planted by plain loops, are named; noise has none.
#include "ejk/program/explain.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "ejk/array_math.hpp"
#include "io/support.hpp"
#include "support/arrays.hpp"
#include "support/threads.hpp"

using namespace ejk;

namespace {

// Random numbers as a kernel's results are: of either sign, none of them 0.
Array random_array(const Shape& shape, std::uint64_t seed) {
  Array array(DType::float32, shape);
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (float& x : array.elements<float>()) x = normal(random) + 1e-3F;
  return array;
}

// An element of an array in C order.
struct At {
  Array& array;
  float& operator()(const Shape& index) const {
    std::int64_t flat = 0;
    for (std::size_t d = 0; d < index.size(); ++d) flat = flat * array.shape()[d] + index[d];
    return array.elements<float>()[static_cast<std::size_t>(flat)];
  }
};

// f(index) for each element.
void for_each(const Shape& shape, const std::function<void(const Shape&)>& f) {
  Shape index(shape.size());
  for (std::int64_t i = 0; i < element_count(shape); ++i) {
    f(index);
    for (std::size_t d = shape.size(); d-- > 0;) {
      if (++index[d] < shape[d]) break;
      index[d] = 0;
    }
  }
}

using Fault = std::function<void(Array& actual, const Array& expected)>;

struct Planted {
  std::string name;
  Shape shape;
  Fault fault;
  std::vector<std::pair<std::string, std::string>> wanted;  // kinds, and what their texts hold
  ExplainOptions options = {};
  std::vector<DType> dtypes = {DType::float32, DType::bfloat16};
};

// actual[at(index)] = f(expected, index).
Fault each(const std::function<float(const At&, const Shape&)>& f) {
  return [f](Array& actual, const Array& expected) {
    Array copy = Array::copy_of(expected.view());
    const At to{actual}, from{copy};
    for_each(actual.shape(), [&](const Shape& index) { to(index) = f(from, index); });
  };
}

// Those of `axis` that `from` gives another index.
Fault moved(std::size_t axis, const std::function<std::int64_t(std::int64_t)>& from) {
  return each([=](const At& e, Shape index) {
    index[axis] = from(index[axis]);
    return e(index);
  });
}

Fault both(const Fault& first, const Fault& second) {
  return [=](Array& actual, const Array& expected) {
    first(actual, expected);
    const Array between = Array::copy_of(actual.view());
    second(actual, between);
  };
}

std::int64_t exchange(std::int64_t i, std::int64_t a, std::int64_t b) { return i == a ? b : i == b ? a : i; }

Fault fill(const Shape& begin, const Shape& end, float value) {
  return each([=](const At& e, const Shape& index) {
    for (std::size_t d = 0; d < index.size(); ++d)
      if (index[d] < begin[d] || index[d] >= end[d]) return e(index);
    return value;
  });
}

ExplainOptions with_axes(std::vector<std::string> names) {
  ExplainOptions options;
  options.axes = std::move(names);
  return options;
}

ExplainOptions with_groups(std::vector<std::int32_t> sizes) {
  ExplainOptions options;
  options.group_sizes = IntegerArray(std::move(sizes));
  return options;
}

ExplainOptions with_sequences(std::vector<std::int32_t> cu_seqlens) {
  ExplainOptions options;
  options.cu_seqlens = IntegerArray(std::move(cu_seqlens));
  return options;
}

const Shape kOut{2, 96, 4, 32};  // attention's batch, queries, heads, head_dim

// The factor of each block of the last axis, by row and block.
Fault scaled(std::int64_t block, const std::function<float(const Shape&, std::int64_t)>& factor) {
  return each([=](const At& e, const Shape& i) { return e(i) * factor(i, i.back() / block); });
}

// Elements larger than the largest code times the scale of their block of 32, a power of two rounded to nearest.
Fault cut_off(float largest) {
  return [=](Array& actual, const Array& expected) {
    const auto x = expected.elements<float>();
    for (std::size_t i = 0; i < x.size(); i += 32) {
      float most = 0;
      for (std::size_t j = i; j < i + 32; ++j) most = std::max(most, std::abs(x[j]));
      const float limit = largest * std::exp2(std::round(std::log2(most / largest)));
      for (std::size_t j = i; j < i + 32; ++j) actual.elements<float>()[j] = std::clamp(x[j], -limit, limit);
    }
  };
}

// Scales in proportion to the largest magnitudes of blocks of 16, read from other places: of block p(b) for
// block b of a matrix, or the reverse.
Fault scales_from(const std::function<std::int64_t(std::int64_t r, std::int64_t c, std::int64_t columns)>& p,
                  bool reverse) {
  return [=](Array& actual, const Array& expected) {
    const std::int64_t rows = expected.shape()[0], columns = expected.shape()[1] / 16;
    const auto x = expected.elements<float>();
    std::vector<float> scales(static_cast<std::size_t>(rows * columns)), moved = scales;
    for (std::size_t i = 0; i < x.size(); ++i) scales[i / 16] = std::max(scales[i / 16], std::abs(x[i]));
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c) {
        const auto here = static_cast<std::size_t>(r * columns + c),
                   there = static_cast<std::size_t>(p(r, c, columns));
        moved[reverse ? there : here] = scales[reverse ? here : there];
      }
    for (std::size_t i = 0; i < x.size(); ++i)
      actual.elements<float>()[i] = x[i] / scales[i / 16] * moved[i / 16];
  };
}

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
float with_upper_half(std::uint32_t bits) { return std::bit_cast<float>(bits & 0xFFFF0000U); }
// Ties to even.
float nearest_bfloat16(float x) { return with_upper_half(bits_of(x) + 0x7FFF + ((bits_of(x) >> 16) & 1)); }

std::vector<Planted> planted() {
  const auto lse_base_2 = each([](const At& e, const Shape& i) { return e(i) * 1.44269504F; });
  const auto times = [](float c) { return each([c](const At& e, const Shape& i) { return c * e(i); }); };
  const auto bf16 = each([](const At& e, const Shape& i) { return nearest_bfloat16(e(i)); });
  const std::vector<DType> f32{DType::float32};
  return {
      // Those of a kernel author's day.
      {"experts exchanged, by name",
       {8, 24, 40},
       moved(0, [](auto i) { return exchange(i, 3, 7); }),
       {{"exchanged", "group 3 and group 7 are exchanged"}},
       with_groups({9, 9, 9, 9, 9, 9, 9, 9})},
      {"a tile never written",
       {256, 192},
       fill({192, 64}, {256, 128}, 0),
       {{"unwritten", "tile (3, 1) of 64 x 64"}}},
      {"the last rows of a group missing",
       {100, 48},
       fill({35, 0}, {40, 48}, 0),
       {{"unwritten", "the last 5 of group 1"}},
       with_groups({10, 30, 40, 20})},
      {"a log-sum-exp in base 2", {2, 4, 96}, lse_base_2, {{"factor", "1 / ln 2"}}},
      {"experts exchanged and a tile unwritten",
       {8, 64, 64},
       both(moved(0, [](auto i) { return exchange(i, 3, 7); }), fill({1, 32, 0}, {2, 64, 32}, 0)),
       {{"exchanged", "3 and axis 0 at 7"}, {"unwritten", "tile (1, 0) of 32 x 32"}}},
      // Factors and offsets.
      {"twice", {300}, times(2), {{"factor", "2 times"}}},
      {"the sign", kOut, times(-1), {{"factor", "the sign"}}},
      {"base e for base 2", {2, 4, 96}, times(0.69314718F), {{"factor", "ln 2"}}},
      {"1 / √D", {64, 128}, times(1 / std::sqrt(128.0F)), {{"factor", "1 / √128"}}},
      {"a factor in some rows of one head",
       kOut,
       each([](const At& e, const Shape& i) {
         return e(i) * (i[2] == 1 && i[1] >= 40 && i[0] == 0 ? 3.5F : 1);
       }),
       {{"factor", "b 0, q 40 to 95, h 1: 3.5 times"}},
       with_axes({"b", "q", "h", "d"})},
      {"a factor for each row",
       {40, 64},
       each([](const At& e, const Shape& i) { return e(i) * (2 + static_cast<float>(i[0])); }),
       {{"factor", "each index of axis 0 has a factor of its own"}}},
      {"an offset in one entry",
       kOut,
       each([](const At& e, const Shape& i) { return e(i) - (i[0] == 1 ? 20 : 0); }),
       {{"offset", "axis 0 at 1: 20 too small"}}},
      // Indices of an axis.
      {"heads exchanged in one entry",
       kOut,
       each([](const At& e, Shape i) {
         if (i[0] == 1) i[2] = exchange(i[2], 0, 3);
         return e(i);
       }),
       {{"exchanged", "h 0 and h 3 are exchanged"}},
       with_axes({"b", "q", "h", "d"})},
      {"a head repeated",
       kOut,
       moved(2, [](auto i) { return i == 3 ? 1 : i; }),
       {{"repeated", "axis 2 at 3 holds what belongs to axis 2 at 1"}}},
      {"groups of rows exchanged",
       {80, 24},
       moved(0, [](auto i) { return i / 20 == 0   ? i + 40
                                    : i / 20 == 2 ? i - 40
                                                  : i; }),
       {{"exchanged", "group 0 and group 2 are exchanged"}},
       with_groups({20, 20, 20, 20})},
      {"columns in a circle",
       {48, 64},
       moved(1, [](auto i) { return (i + 5) % 64; }),
       {{"shifted", "i + 5"}}},
      {"one axis, shifted",
       {5000},
       moved(0, [](auto i) { return std::min<std::int64_t>(i + 1, 4999); }),
       {{"shifted", "i + 1"}}},
      // Axes.
      {"a square transposed",
       {64, 64},
       each([](const At& e, const Shape& i) {
         return e({i[1], i[0]});
       }),
       {{"transposed", "(axis 1, axis 0)"}}},
      {"heads before queries",
       {2, 24, 6, 16},
       [](Array& a, const Array& e) {
         std::size_t next = 0;
         Array copy = Array::copy_of(e.view());
         for (std::int64_t b = 0; b < 2; ++b)
           for (std::int64_t h = 0; h < 6; ++h)
             for (std::int64_t q = 0; q < 24; ++q)
               for (std::int64_t d = 0; d < 16; ++d) a.elements<float>()[next++] = At{copy}({b, q, h, d});
       },
       {{"transposed", "(b, h, q, d)"}},
       with_axes({"b", "q", "h", "d"})},
      // What was never written.
      {"NaN in a stripe",
       {128, 96},
       fill({0, 64}, {128, 80}, NAN),
       {{"unwritten", "axis 1 at 64 to 79 holds only nan"}}},
      {"a poison",
       {128, 96},
       fill({64, 0}, {96, 96}, -776),
       {{"unwritten", "axis 0 at 64 to 95 holds only -776"}}},
      {"a tile of one head",
       kOut,
       fill({1, 32, 2, 0}, {2, 64, 3, 32}, 0),
       {{"unwritten", "axis 0 at 1, axis 1 at 32 to 63, axis 2 at 2"}}},
      {"everything 0", {64, 32}, fill({0, 0}, {64, 32}, 0), {{"unwritten", "everything holds only 0"}}},
      {"a tile at the ragged edge",
       {200, 100},
       fill({192, 64}, {200, 100}, 0),
       {{"unwritten", "axis 0 at 192 to 199, axis 1 at 64 to 99"}}},
      {"the end of every sequence",
       {90, 32},
       both(fill({27, 0}, {30, 32}, 0), fill({80, 0}, {90, 32}, 0)),
       {{"unwritten", "the last 3 of sequence 0"}},
       with_sequences({0, 30, 60, 90})},
      // Rounding.
      {"rounded to bfloat16", {64, 64}, bf16, {{"rounding", "bfloat16"}}, {}, f32},
      // Quantised arrays.
      {"the halves of bytes exchanged",
       {60, 64},
       moved(1, [](auto i) { return i ^ 1; }),
       {{"nibbles", "axis 1"}}},
      {"bytes of halves of a block read as pairs",
       {60, 128},
       moved(1, [](auto i) { return i / 32 * 32 + i % 32 / 2 + i % 2 * 16; }),
       {{"nibbles", "bytes with elements j and j + 16 of blocks of 32 along axis 1 were read as pairs"}}},
      {"bytes of pairs read as halves of a block",
       {60, 128},
       moved(1, [](auto i) { return i / 32 * 32 + i % 16 * 2 + i % 32 / 16; }),
       {{"nibbles", "bytes with neighbours along axis 1 were read as elements j and j + 16"}}},
      {"subnormal scales with a leading 1",
       {48, 256},
       scaled(16,
              [](const Shape& i, auto b) {
                const auto m = static_cast<float>((i[0] * 5 + b * 3) % 20);
                return m >= 1 && m <= 7 ? (8 + m) / (2 * m) : 1.0F;
              }),
       {{"subnormal-scales", "blocks of 16 along axis 1 are (8 + m) / 2m times"}}},
      {"scales rounded down", {48, 256}, cut_off(448), {{"cut-off", "384 blocks of 32"}}, {}, f32},
      {"the same in bfloat16", {48, 256}, cut_off(448), {{"cut-off", "384 blocks"}}, {}, {DType::bfloat16}},
      {"the same of codes of 4 bits", {48, 256}, cut_off(6), {{"cut-off", "384 blocks"}}, {}, f32},
      {"gate and up rows interleaved",
       {64, 40},
       moved(0, [](auto i) { return i % 2 * 32 + i / 2; }),
       {{"interleaved-rows", "the halves of axis 0 are interleaved"}}},
      {"gate rows before up rows",
       {30, 64},
       moved(1, [](auto i) { return i % 32 * 2 + i / 32; }),
       {{"interleaved-rows", "one half of axis 1 follows the other"}}},
      {"scales of another rule",
       {48, 256},
       scaled(32, [](const Shape& i, auto b) { return (i[0] * 7 + b * 5) % 3 == 0 ? 2.0F : 1.0F; }),
       {{"scale-step", "blocks of 32 along axis 1 are twice"}}},
      {"the same of blocks of 128 x 128",
       {512, 384},
       scaled(128, [](const Shape& i, auto b) { return (i[0] / 128 + b) % 2 == 0 ? 0.5F : 1.0F; }),
       {{"scale-step", "blocks of 128 along axis 1 are half of"}}},
      {"linear scales read as 128x4",
       {256, 128},
       scales_from(
           [](auto r, auto c, auto columns) {
             return 512 * (r / 128 * (columns / 4) + c / 4) + 16 * (r % 32) + 4 * (r % 128 / 32) + c % 4;
           },
           false),
       {{"scale-layout", "in layout linear were read as 128x4"}}},
      {"128x4 scales read as linear",
       {128, 256},
       scales_from(
           [](auto r, auto c, auto columns) {
             return 512 * (r / 128 * (columns / 4) + c / 4) + 16 * (r % 32) + 4 * (r % 128 / 32) + c % 4;
           },
           true),
       {{"scale-layout", "in layout 128x4 were read as linear"}}},
      {"the same, and a block of NaN",
       {512, 128},
       both(fill({0, 0}, {1, 16}, 0), scales_from(
                                          [](auto r, auto c, auto columns) {
                                            return 512 * (r / 128 * (columns / 4) + c / 4) + 16 * (r % 32) +
                                                   4 * (r % 128 / 32) + c % 4;
                                          },
                                          true)),
       {{"scale-layout", "in layout 128x4 were read as linear"}}},
      {"8x4 scales read as linear",
       {40, 192},
       scales_from([](auto r, auto c,
                      auto columns) { return 32 * (r / 8 * (columns / 4) + c / 4) + 4 * (r % 8) + c % 4; },
                   true),
       {{"scale-layout", "in layout 8x4 were read as linear"}}},
      {"E8M0 read as int8",
       {32, 128},
       scaled(32, [](const Shape& i, auto b) { return (i[0] + b) % 7 == 0 ? 0x1p-129F : 0x1p127F; }),
       {{"e8m0-int8", "E8M0 scales were read as signed exponents"}}},
      {"int8 read as E8M0",
       {32, 128},
       each([](const At& e, const Shape& i) {
         return std::ldexp(e(i), (i[0] + i[1] / 32) % 7 == 0 ? -127 : 129);
       }),
       {{"e8m0-int8", "were read as E8M0"}}},
      // Together.
      {"a factor in one head and a stripe of NaN",
       kOut,
       both(each([](const At& e, const Shape& i) { return e(i) * (i[2] == 0 ? 2 : 1); }),
            fill({0, 0, 3, 0}, {2, 96, 4, 8}, NAN)),
       {{"factor", "axis 2 at 0: 2 times"}, {"unwritten", "axis 2 at 3, axis 3 at 0 to 7"}}},
      {"heads exchanged, but one entry negated",
       {6, 32, 4, 16},
       each([](const At& e, Shape i) {
         if (i[0] == 5) return -e(i);
         i[2] = exchange(i[2], 1, 2);
         return e(i);
       }),
       {{"exchanged", "axis 2 at 1 and axis 2 at 2"}, {"factor", "axis 0 at 5: -1 times"}}},
      // Scopes are named, whatever the size of the array.
      {"half of many rows twice",
       {600, 500},
       each([](const At& e, const Shape& i) { return e(i) * (i[0] >= 300 ? 2 : 1); }),
       {{"factor", "axis 0 at 300 to 599: 2 times"}}},
      {"one matrix of several transposed",
       {5, 256, 256},
       each([](const At& e, const Shape& i) {
         return i[0] == 3 ? e({3, i[2], i[1]}) : e(i);
       }),
       {{"transposed", "axis 0 at 3: "}}},
      {"heads exchanged in the second half of the queries",
       kOut,
       each([](const At& e, Shape i) {
         if (i[1] >= 48) i[2] = exchange(i[2], 0, 3);
         return e(i);
       }),
       {{"exchanged", "q 48 to 95: h 0 and h 3 are exchanged"}},
       with_axes({"b", "q", "h", "d"})},
      {"one head of one entry from the other",
       kOut,
       each([](const At& e, Shape i) {
         if (i[0] == 0 && i[2] == 1) i[0] = 1;
         return e(i);
       }),
       {{"repeated", "h 1: b 0 holds what belongs to b 1"}},
       with_axes({"b", "q", "h", "d"})},
      {"two exchanges, one of them of some rows",
       {8, 128, 32},
       each([](const At& e, Shape i) {
         const auto s = i[1];
         i[0] = exchange(i[0], 2, 5);
         if (s < 64) i[0] = exchange(i[0], 1, 6);
         return e(i);
       }),
       {{"exchanged", "axis 0 at 2 and axis 0 at 5 are exchanged"}, {"exchanged", "axis 1 at 0 to 63: "}}},
      {"key heads for query heads",
       {40, 8, 16},
       moved(1, [](auto i) { return i / 4; }),
       {{"repeated", "belongs to i / 4"}}},
      {"key heads in turn",
       {40, 8, 16},
       moved(1, [](auto i) { return i % 2; }),
       {{"repeated", "belongs to i mod 2"}}},
      {"the first head for the last",
       {40, 8, 16},
       moved(1, [](auto i) { return i % 7; }),
       {{"repeated", "axis 1 at 7 holds what belongs to axis 1 at 0"}}},
      {"a view instead of a transposition",
       {2, 24, 6, 16},
       [](Array& a, const Array& e) {
         Array copy = Array::copy_of(e.view());
         for_each({2, 24, 6, 16}, [&](const Shape& i) {
           const std::int64_t flat = ((i[0] * 6 + i[2]) * 24 + i[1]) * 16 + i[3];
           At{a}(i) = copy.elements<float>()[static_cast<std::size_t>(flat)];
         });
       },
       {{"transposed", "were taken to be in the order (axis 0, axis 2, axis 1, axis 3)"}}},
      {"many rows moved far",
       {40000, 8},
       moved(0, [](auto i) { return (i + 39900) % 40000; }),
       {{"shifted", "i - 100 modulo 40000"}},
       {},
       f32},
      {"a checkerboard of tiles",
       {128, 128},
       each([](const At& e, const Shape& i) { return (i[0] / 8 + i[1] / 8) % 2 == 0 ? 0 : e(i); }),
       {{"unwritten", "(tile (0, 0) of 8 x 8)"}}},
      {"cut off to bfloat16",
       {64, 64},
       each([](const At& e, const Shape& i) { return with_upper_half(bits_of(e(i))); }),
       {{"rounding", "cut off to bfloat16"}},
       {},
       f32},
      {"two boxes of 0 and a shifted block of rows",
       {256, 64},
       both(moved(0, [](auto i) { return i >= 128 && i < 192 ? i + 64 : i; }), fill({0, 0}, {32, 64}, 0)),
       {{"repeated", "axis 0 at 128 to 191"}, {"unwritten", "axis 0 at 0 to 31"}}},
  };
}

std::string said(const Explained& found) {
  std::string text;
  for (const Explanation& e : found.explanations) text += e.kind + ": " + e.text + "\n";
  return text;
}

bool says(const Explained& found, const std::string& kind, const std::string& part) {
  return std::any_of(found.explanations.begin(), found.explanations.end(), [&](const Explanation& e) {
    return e.kind == kind && e.text.find(part) != std::string::npos;
  });
}

std::shared_ptr<const ArraySource> in_memory(const std::shared_ptr<const ArraySource>& source) {
  return make_source(read_all(*source), source->name());
}

Explained explain(const Array& actual, const Array& expected, DType dtype, const ExplainOptions& options) {
  return explain_difference(*in_memory(convert_array(make_source(actual.view(), "actual"), dtype)),
                            *in_memory(convert_array(make_source(expected.view(), "expected"), dtype)),
                            options);
}

}  // namespace

TEST_CASE("faults of kernels are named, in float32 and bfloat16") {
  std::uint64_t seed = 0;
  for (const Planted& p : planted())
    for (const DType dtype : p.dtypes) {
      CAPTURE(p.name);
      CAPTURE(name_of(dtype));
      const Array expected = random_array(p.shape, ++seed);
      Array actual = Array::copy_of(expected.view());
      p.fault(actual, expected);
      const Explained found = explain(actual, expected, dtype, p.options);
      CAPTURE(said(found));
      REQUIRE(found.explanations.size() >= p.wanted.size());
      for (const auto& [kind, part] : p.wanted) CHECK(says(found, kind, part));
      CHECK(found.share_explained > 0.99);
    }
}

TEST_CASE("faults are named where rounding differences are all over the array") {
  std::uint64_t seed = 1000;
  for (const Planted& p : planted()) {
    if (p.dtypes.size() == 1 || element_count(p.shape) > 100'000)
      continue;  // rounding itself; not so many again
    CAPTURE(p.name);
    const Array expected = random_array(p.shape, ++seed);
    Array actual = Array::copy_of(expected.view());
    p.fault(actual, expected);
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (float& x : actual.elements<float>())
      if (x != 0 && x != -776) x *= 1 + 1e-6F * normal(random);
    const Explained found = explain(actual, expected, DType::float32, p.options);
    CAPTURE(said(found));
    for (const auto& [kind, part] : p.wanted) CHECK(says(found, kind, part));
    CHECK(found.share_explained > 0.98);
  }
}

TEST_CASE("one fp8 read as the other is named, from the codes and from their numbers") {
  struct Pair {
    DType written, read;
  };
  for (const Pair& p :
       {Pair{DType::float8_e4m3fnuz, DType::float8_e4m3fn},
        Pair{DType::float8_e4m3fn, DType::float8_e4m3fnuz}, Pair{DType::float8_e5m2fnuz, DType::float8_e5m2},
        Pair{DType::float8_e5m2, DType::float8_e5m2fnuz}}) {
    CAPTURE(name_of(p.written));
    CAPTURE(name_of(p.read));
    Array codes(DType::uint8, {64, 64});
    std::mt19937_64 random(3);
    for (std::int64_t i = 0; i < codes.size(); ++i) codes.data()[i] = static_cast<std::byte>(random());
    ArrayView actual = codes.view(), expected = codes.view();
    actual.dtype = p.read, expected.dtype = p.written;
    for (const DType dtype : {DType::float32, p.read}) {
      const auto a =
          dtype == p.read ? make_source(actual) : in_memory(convert_array(make_source(actual), dtype));
      const auto e =
          dtype == p.read ? make_source(expected) : in_memory(convert_array(make_source(expected), dtype));
      const Explained found = explain_difference(*a, *e, {});
      CAPTURE(said(found));
      CHECK(says(found, "fnuz",
                 std::string(name_of(p.written)) + " was read as " + std::string(name_of(p.read))));
    }
  }
}

TEST_CASE("noise gets no explanation") {
  std::mt19937_64 random(7);
  const std::vector<Shape> shapes{{3000}, {64, 48}, {2, 40, 4, 16}, {8, 24, 40}, {5, 5}, {1, 700}};
  int with_differences = 0;
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    const Shape& shape = shapes[static_cast<std::size_t>(round) % shapes.size()];
    const Array expected = random_array(shape, static_cast<std::uint64_t>(round) + 5000);
    Array actual = Array::copy_of(expected.view());
    std::normal_distribution<float> normal;
    const int kind = round / 6 % 5;
    for (float& x : actual.elements<float>()) {
      if (kind == 0) x = normal(random);                        // nothing to do with it
      if (kind == 1) x *= 1 + 3e-5F * normal(random);           // rounding, beyond the tolerance
      if (kind == 2) x += 0.1F * normal(random);                // noise
      if (kind == 3 && random() % 10 == 0) x = normal(random);  // a tenth is wrong
      if (kind == 4) x = std::nearbyint(x * 64) / 64 + 1e-4F * normal(random);  // quantized
    }
    const DType dtype = round % 2 == 0 ? DType::float32 : DType::bfloat16;
    const Explained found = explain(actual, expected, dtype, {});
    CAPTURE(said(found));
    CHECK(found.explanations.empty());
    CHECK(found.share_explained == 0);
    with_differences += !found.comparison.close;
  }
  CHECK(with_differences > 120);
}

TEST_CASE("elements that are cut off at one number everywhere are not those of scales") {
  const Array expected = random_array({48, 256}, 3);
  Array actual = Array::copy_of(expected.view());
  for (float& x : actual.elements<float>()) x = std::clamp(x, -1.75F, 1.75F);
  CHECK_FALSE(says(explain(actual, expected, DType::float32, {}), "cut-off", ""));
}

TEST_CASE("codes that are replaced by others get no explanation") {
  constexpr float kCodes[] = {0.5F, 1, 1.5F, 2, 3, 4, 6};
  for (int round = 0; round < 100; ++round) {
    CAPTURE(round);
    std::mt19937_64 random(static_cast<std::uint64_t>(round));
    const auto code = [&] { return kCodes[random() % 7] * (random() % 2 == 0 ? 1.0F : -1.0F); };
    Array expected(DType::float32, {24, 128}), actual(DType::float32, {24, 128});
    const std::uint64_t some = round % 3 == 0 ? 1 : round % 3 == 1 ? 4 : 50;
    for (std::size_t i = 0; i < 24 * 128; ++i) {
      const float scale = std::ldexp(1.0F, static_cast<int>(i / 32 * 7 % 5) - 8);
      expected.elements<float>()[i] = scale * code();
      actual.elements<float>()[i] = random() % some == 0 ? scale * code() : expected.elements<float>()[i];
    }
    const Explained found = explain(actual, expected, DType::float32, {});
    CAPTURE(said(found));
    CHECK(found.explanations.empty());
  }
}

TEST_CASE("noise in structured arrays gets no explanation") {
  std::mt19937_64 random(17);
  std::normal_distribution<float> normal;
  const auto is = [&](int percent) { return static_cast<int>(random() % 100) < percent; };
  std::vector<std::pair<std::string, std::function<float(const Shape&)>>> makers{
      {"sparse", [&](const Shape&) { return is(5) ? normal(random) : 0; }},
      {"rarely true", [&](const Shape&) { return is(2) ? 1.0F : 0.0F; }},
      {"mostly true", [&](const Shape&) { return is(90) ? 1.0F : 0.0F; }},
      {"counts", [&](const Shape&) { return static_cast<float>(random() % 3); }},
      {"causal", [&](const Shape& i) { return i.back() > i[0] ? 0 : normal(random); }},
  };
  for (const Shape& shape : {Shape{64, 64}, {30, 30}, {300, 3}, {4, 16, 40}, {200, 1}})
    for (const auto& maker : makers)
      for (int round = 0; round < 6; ++round) {
        const auto& value = maker.second;
        CAPTURE(maker.first);
        CAPTURE(to_string(shape));
        CAPTURE(round);
        Array actual(DType::float32, shape), expected(DType::float32, shape);
        for_each(shape, [&](const Shape& i) { At{actual}(i) = value(i), At{expected}(i) = value(i); });
        const Explained found = explain(actual, expected, DType::float32, {});
        CAPTURE(said(found));
        CHECK(found.explanations.empty());
      }
  // Lines of one number each.
  for (int round = 0; round < 6; ++round) {
    Array actual(DType::float32, {40, 64}), expected(DType::float32, {40, 64});
    for (std::int64_t r = 0; r < 40; ++r) {
      const float a = normal(random), e = normal(random);
      for (std::int64_t c = 0; c < 64; ++c) At{actual}({r, c}) = a, At{expected}({r, c}) = e;
    }
    const Explained found = explain(actual, expected, DType::float32, {});
    CAPTURE(said(found));
    CHECK(found.explanations.empty());
  }
}

TEST_CASE("masks whose edge is elsewhere are not called unwritten") {
  const auto window = [](std::int64_t n, std::int64_t left) {
    Array mask(DType::boolean, {n, n});
    for (std::int64_t q = 0; q < n; ++q)
      for (std::int64_t k = 0; k <= q; ++k)
        mask.elements<bool>()[static_cast<std::size_t>(q * n + k)] = q - k <= left;
    return mask;
  };
  for (const std::int64_t n : {16, 40, 64, 200}) {
    CAPTURE(n);
    for (const std::int64_t left : {n / 4 - 1, n / 4 + 1, n}) {
      const Array actual = window(n, left), expected = window(n, n / 4);
      const Explained found = explain_difference(*make_source(actual.view()), *make_source(expected.view()));
      CAPTURE(said(found));
      CHECK_FALSE(says(found, "unwritten", ""));
    }
  }
}

TEST_CASE("where is of those elements that the comparison counts, at the edge of what is allowed too") {
  std::mt19937_64 random(12);
  const std::vector<std::pair<DType, DType>> types{
      {DType::float16, DType::float16}, {DType::bfloat16, DType::bfloat16}, {DType::float32, DType::float32},
      {DType::float64, DType::float64}, {DType::float16, DType::bfloat16},  {DType::int32, DType::int32},
      {DType::int64, DType::float32}};
  for (const auto& pair : types)
    for (int round = 0; round < 4; ++round) {
      const DType of_actual = pair.first, of_expected = pair.second;
      CAPTURE(name_of(of_actual));
      CAPTURE(name_of(of_expected));
      constexpr std::int64_t n = 20000;
      const Tolerance tolerance{round % 2 == 0 ? 0.01 : 0.0, round < 2 ? 0.0 : 3.0};
      Array a(DType::float32, {n}), e(DType::float32, {n});
      for (std::size_t i = 0; i < n; ++i) {
        const float x = std::ldexp(static_cast<float>(random() % 2048), static_cast<int>(random() % 12) - 6);
        const auto allowed = static_cast<float>(*tolerance.atol + *tolerance.rtol * static_cast<double>(x));
        e.elements<float>()[i] = x;
        a.elements<float>()[i] = x + (random() % 2 == 0 ? 1 : -1) * allowed;
        if (random() % 50 == 0) a.elements<float>()[i] = random() % 2 == 0 ? NAN : INFINITY;
        if (random() % 50 == 0) e.elements<float>()[i] = random() % 2 == 0 ? NAN : INFINITY;
        if (is_integer(of_actual) && !std::isfinite(a.elements<float>()[i])) a.elements<float>()[i] = 0;
        if (is_integer(of_expected) && !std::isfinite(e.elements<float>()[i])) e.elements<float>()[i] = 0;
      }
      ExplainOptions options;
      options.tolerance = tolerance;
      const Explained found =
          explain_difference(*in_memory(convert_array(make_source(a.view()), of_actual)),
                             *in_memory(convert_array(make_source(e.view()), of_expected)), options);
      REQUIRE(found.comparison.differing > 0);
      REQUIRE(found.axes.size() == 1);
      CHECK(found.axes[0].indices == found.comparison.differing);
    }
}

TEST_CASE("what float64 does not tell apart, and NaN that differs from NaN, have no explanation") {
  Array a(DType::int64, {32, 32}), e(DType::int64, {32, 32});
  for (std::size_t i = 0; i < 1024; ++i) {
    e.elements<std::int64_t>()[i] = (std::int64_t{1} << 60) + static_cast<std::int64_t>(i * 7919);
    a.elements<std::int64_t>()[i] = e.elements<std::int64_t>()[i] + (i < 64 ? 1 : 0);
  }
  const Explained found = explain_difference(*make_source(a.view()), *make_source(e.view()));
  CHECK(found.comparison.differing == 64);
  CHECK(found.explanations.empty());
  CHECK(test::contains(found.not_tried, "float64"));
  REQUIRE(found.axes.size() == 2);  // where they are is known
  CHECK(found.axes[0].indices == 2);

  Array x = random_array({64, 64}, 3);
  for (std::size_t i = 0; i < 4096; i += 3) x.elements<float>()[i] = NAN;
  for (std::size_t i = 640; i < 704; ++i) x.elements<float>()[i] = NAN;
  ExplainOptions strict;
  strict.tolerance.nan = NanEqual::no;
  CHECK(explain(x, x, DType::float32, strict).explanations.empty());
}

TEST_CASE("elements that are nearly the same tell neither a factor nor an offset") {
  const Array noise = random_array({4, 400}, 11);
  Array actual(DType::float32, {4, 400}), expected(DType::float32, {4, 400});
  for (std::size_t i = 0; i < 1600; ++i) {
    expected.elements<float>()[i] = 4.1589F + 3e-4F * noise.elements<float>()[i];
    actual.elements<float>()[i] = expected.elements<float>()[i] + 0.0155F;
  }
  const Explained found = explain(actual, expected, DType::float32, {});
  CAPTURE(said(found));
  CHECK(found.explanations.empty());
}

TEST_CASE("of a few elements a factor that all have is named, and noise is not") {
  for (const std::uint64_t seed : {1U, 2U})
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16})
      for (std::int64_t n = 3; n < 8; ++n) {
        const Array expected = random_array({n}, seed + static_cast<std::uint64_t>(n));
        for (const float factor : {4.0F, 0.25F, -1.0F, 0.125F}) {
          Array actual = Array::copy_of(expected.view());
          for (float& x : actual.elements<float>()) x *= factor;
          const Explained found = explain(actual, expected, dtype, {});
          CHECK(says(
              found, "factor",
              fmt::format("{:g} times what it should be, to a unit in the last place: all {}", factor, n)));
          CHECK(found.share_explained == 1);
          actual.elements<float>()[0] *= 1.1F;
          CHECK(explain(actual, expected, dtype, {}).explanations.empty());
        }
        CHECK(explain(random_array({n}, 77 + seed), expected, dtype, {}).explanations.empty());
      }
}

TEST_CASE("integers that are off by one are told, and shuffled masks are not") {
  Array a(DType::int32, {4000}), e(DType::int32, {4000});
  for (std::size_t i = 0; i < 4000; ++i) {
    e.elements<std::int32_t>()[i] = static_cast<std::int32_t>(i / 3 * 7);
    a.elements<std::int32_t>()[i] = e.elements<std::int32_t>()[i] + (i >= 2000 ? 1 : 0);
  }
  const Explained off = explain_difference(*make_source(a.view()), *make_source(e.view()));
  CAPTURE(said(off));
  REQUIRE(off.explanations.size() == 1);
  CHECK(off.explanations[0].kind == "offset");
  CHECK(off.explanations[0].text == "axis 0 at 2000 to 3999: 1 too large");

  // A few that rounding made one less are no part of the array.
  for (std::size_t i = 0; i < 4000; ++i)
    a.elements<std::int32_t>()[i] = e.elements<std::int32_t>()[i] - (i % 431 == 70 ? 1 : 0);
  CHECK(explain_difference(*make_source(a.view()), *make_source(e.view())).explanations.empty());

  Array p(DType::boolean, {100, 100}), q(DType::boolean, {100, 100});
  std::mt19937_64 random(3);
  for (std::size_t i = 0; i < 10000; ++i) {
    p.elements<bool>()[i] = random() % 2 == 0;
    q.elements<bool>()[i] = random() % 2 == 0;
  }
  const Explained noise = explain_difference(*make_source(p.view()), *make_source(q.view()));
  CAPTURE(said(noise));
  CHECK(noise.explanations.empty());
}

TEST_CASE("where: indices of axes, groups and tiles that hold differences") {
  const Array expected = random_array({100, 64}, 1);
  Array actual = Array::copy_of(expected.view());
  fill({35, 16}, {40, 32}, 0)(actual, expected);
  ExplainOptions options = with_groups({10, 30, 40, 20});
  options.tile = {20, 16};
  const Explained found = explain(actual, expected, DType::float32, options);
  REQUIRE(found.axes.size() == 2);
  CHECK(found.axes[0].indices == 5);
  CHECK(found.axes[0].ranges.size() == 1);
  CHECK(found.axes[0].ranges[0].begin == 35);
  CHECK(found.axes[0].ranges[0].end == 40);
  CHECK(found.axes[0].whole.empty());
  CHECK(found.axes[0].zero.size() == 1);
  CHECK(found.axes[1].ranges[0].begin == 16);
  REQUIRE(found.runs.size() == 1);
  CHECK(found.runs[0].index == 1);
  CHECK(found.runs[0].differing == 80);
  CHECK(found.runs[0].elements == 30 * 64);
  REQUIRE(found.tiles);
  CHECK(found.tiles->rows == 5);
  CHECK(found.tiles->columns == 4);
  for (std::size_t t = 0; t < 20; ++t) CHECK(found.tiles->states->stored()[t] == (t == 5 ? 1 : 0));
}

TEST_CASE(
    "the same is said by any number of threads, and of arrays that are not in memory what can be said") {
  const Array expected = random_array({700, 1000}, 2);
  Array actual = Array::copy_of(expected.view());
  each([](const At& e, const Shape& i) { return e(i) * (i[0] >= 350 ? 2 : 1); })(actual, expected);
  std::string first;
  for (const int threads : {1, 2, 7}) {
    const Threads set(threads);
    const std::string json = to_json(describe(explain(actual, expected, DType::float32, {})), {"c", {}});
    if (first.empty()) first = json;
    CHECK(json == first);
  }
  const Explained streamed =
      explain_difference(test::Unmapped(Array::copy_of(actual.view())), *make_source(expected.view()));
  REQUIRE(streamed.explanations.size() == 1);
  CHECK(streamed.explanations[0].text == "axis 0 at 350 to 699: 2 times what it should be");
  moved(0, [](auto i) { return 699 - i; })(actual, expected);
  const Explained reversed =
      explain_difference(test::Unmapped(Array::copy_of(actual.view())), *make_source(expected.view()));
  CHECK(reversed.explanations.empty());
  CHECK(test::contains(reversed.not_tried, "exchanges"));
}

TEST_CASE("what does not fit is an error that says so") {
  const Array a = random_array({10, 10}, 1), e = random_array({10, 10}, 2);
  const auto error = [&](Error::Kind kind, const ExplainOptions& options) {
    return test::error_of(kind, [&] { explain(a, e, DType::float32, options); });
  };
  CHECK(test::contains(error(Error::Kind::usage, with_axes({"b"})), "1 names for the 2 axes"));
  CHECK(test::contains(error(Error::Kind::input, with_groups({3, 20})), "no axis of shape (10, 10)"));
  CHECK(test::contains(error(Error::Kind::input, with_groups({-3, 13})), "size 0 is -3"));
  CHECK(test::contains(error(Error::Kind::input, with_sequences({0, 4})), "no axis"));
  ExplainOptions tile;
  tile.tile = {0, 4};
  CHECK(test::contains(error(Error::Kind::usage, tile), "rows and columns"));
}

TEST_CASE("close arrays, other shapes, empty arrays and scalars have no where and no why") {
  const Array a = random_array({4, 4}, 1);
  CHECK(explain(a, a, DType::float32, {}).axes.empty());
  const Array other = random_array({4, 5}, 1);
  CHECK(explain(a, other, DType::float32, {}).axes.empty());
  CHECK(explain(Array(DType::float32, {0, 4}), Array(DType::float32, {0, 4}), DType::float32, {})
            .comparison.close);
  const Array one = random_array({}, 1), two = random_array({}, 2);
  const Explained scalars = explain(one, two, DType::float32, {});
  CHECK_FALSE(scalars.comparison.close);
  CHECK(scalars.explanations.empty());
}

TEST_CASE("of shapes that differ the order of axes in which elements agree is found") {
  std::mt19937_64 engine(41);
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    CAPTURE(name_of(dtype));
    const Array e = plain::random(dtype, {3, 8, 5, 8, 1}, engine);  // two axes of one length, and one of 1
    const auto values = plain::doubles(e.view());
    const std::vector<std::size_t> order{2, 1, 3, 0};  // of a: its axes are those of e
    std::vector<double> moved;
    for (std::size_t i = 0; i < 5; ++i)
      for (std::size_t j = 0; j < 8; ++j)
        for (std::size_t k = 0; k < 8; ++k)
          for (std::size_t l = 0; l < 3; ++l) moved.push_back(values[((l * 8 + j) * 5 + i) * 8 + k]);
    const auto explained = [&](const std::vector<double>& elements) {
      const Array a = plain::array_of(dtype, {1, 5, 8, 8, 3}, elements);
      return explain_difference(*make_source(a.view(), "a"), *make_source(e.view(), "e"));
    };
    const Explained right = explained(moved);
    REQUIRE(right.permuted);
    CHECK(right.permuted->axes == std::vector<std::int64_t>{4, 2, 1, 3, 0});
    CHECK(right.permuted->comparison.close);
    CHECK_FALSE(right.comparison.close);
    for (std::size_t i = 0; i < 100; ++i) moved[i] += 1;
    const Explained nearly = explained(moved);
    REQUIRE(nearly.permuted);
    CHECK(nearly.permuted->comparison.differing == 100);
    std::reverse(moved.begin(), moved.end());
    CHECK_FALSE(explained(moved).permuted);
  }
}

TEST_CASE("the picture of tiles has the axes that are wanted") {
  const Array e(DType::float32, {4, 6, 8});
  Array a(DType::float32, {4, 6, 8});
  a.elements<float>()[(2 * 6 + 5) * 8 + 1] = 1;
  const auto picture = [&](std::vector<std::string> axes, Shape tile) {
    ExplainOptions options;
    options.axes = {"b", "q", "d"};
    options.tile_axes = std::move(axes);
    options.tile = std::move(tile);
    return explain_difference(*make_source(a.view(), "a"), *make_source(e.view(), "e"), options)
        .tiles.value();
  };
  for (const auto& words : {std::vector<std::string>{"q", "b"}, {"1", "0"}, {"q", "0"}}) {
    const TileDifferences tiles = picture(words, {});
    CHECK(tiles.row_axis == 1);
    CHECK(tiles.column_axis == 0);
    CHECK(tiles.rows == 6);
    CHECK(tiles.columns == 4);
    for (std::int64_t q = 0; q < 6; ++q)
      for (std::int64_t b = 0; b < 4; ++b)
        CHECK(tiles.states->stored()[static_cast<std::size_t>(q * 4 + b)] == (q == 5 && b == 2 ? 1 : 0));
  }
  // The last axis down.
  const TileDifferences turned = picture({"d", "q"}, {1, 2});
  CHECK(turned.rows == 8);
  CHECK(turned.columns == 3);
  for (std::int64_t d = 0; d < 8; ++d)
    for (std::int64_t q = 0; q < 3; ++q)
      CHECK(turned.states->stored()[static_cast<std::size_t>(d * 3 + q)] == (d == 1 && q == 2 ? 1 : 0));
  const TileDifferences wide = picture({"b", "d"}, {2, 4});
  CHECK(wide.rows == 2);
  CHECK(wide.states->stored()[2] == 1);
  CHECK_THROWS_AS(picture({"b", "b"}, {}), Error);
  CHECK_THROWS_AS(picture({"b"}, {}), Error);
  CHECK_THROWS_AS(picture({"b", "x"}, {}), Error);
}

TEST_CASE("differences past the last group are counted apart from those in groups") {
  const Array expected = random_array({40, 6}, 71);
  ExplainOptions options;
  options.group_sizes =
      make_source(Array::from<std::int64_t>({3}, std::vector<std::int64_t>{10, 0, 21}), "sizes");
  const auto explained = [&](const Array& actual, bool in_order) {
    const auto given = [&](const Array& array) {
      if (!in_order) return make_source(array.view(), "x");
      const ArrayView all = array.view();
      return generated_source(
          {DType::float32, array.shape()}, "x",
          [all](const auto& start, const auto& count, void* out) {
            copy_elements(box_of(all, start, count), out);
          },
          ArrayAccess(ArrayAccess::Order::sequential));
    };
    return explain_difference(*given(actual), *given(expected), options);
  };
  for (const bool in_order : {false, true}) {
    Array actual = Array::copy_of(expected.view());
    const At at{actual};
    at({31, 0}) = std::numeric_limits<float>::quiet_NaN();
    at({39, 5}) = std::numeric_limits<float>::infinity();
    at({35, 2}) += 7;
    const Explained garbage = explained(actual, in_order);
    REQUIRE(garbage.no_group);
    CHECK(garbage.no_group->rows.begin == 31);
    CHECK(garbage.no_group->rows.end == 40);
    CHECK(garbage.no_group->comparison.differing == 3);
    CHECK(garbage.no_group->comparison.one_sided_nans == 1);
    CHECK(garbage.comparison.differing == 3);
    at({30, 0}) += 1;
    CHECK(explained(actual, in_order).no_group->comparison.differing == 3);
    actual = Array::copy_of(expected.view());
    at({30, 0}) += 1;
    CHECK_FALSE(explained(actual, in_order).no_group);
  }
}

TEST_CASE("0, NaN and infinities that are equal to others are unwritten, and no evidence for moves") {
  for (const float value : {0.0F, std::nanf(""), -std::numeric_limits<float>::infinity()}) {
    CAPTURE(value);
    Array expected = random_array({16, 64}, 7);
    const At right{expected};
    for_each({16, 64}, [&](const Shape& at) {
      if (at[0] >= 8 || at[1] > at[0] + 40) right(at) = value;
    });
    Array actual = Array::copy_of(expected.view());
    const At wrong{actual};
    for_each({16, 64}, [&](const Shape& at) {
      if (at[0] >= 3) wrong(at) = value;
    });
    const Explained found = explain_difference(*make_source(actual.view(), "a"),
                                               *make_source(expected.view(), "e"), ExplainOptions{});
    REQUIRE(!found.explanations.empty());
    for (const Explanation& e : found.explanations) CHECK(e.kind == "unwritten");
  }
}
