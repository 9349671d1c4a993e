// Decoding against plain loops over codes and scales, for every scheme, axis, layout and box.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "ejk/quantize.hpp"
#include "io/support.hpp"
#include "quantize/elements.hpp"
#include "support/arrays.hpp"
#include "support/failure.hpp"
#include "support/threads.hpp"

using namespace ejk;
using Scheme = QuantizationScheme;

namespace {

using Source = std::shared_ptr<const ArraySource>;

Array random_bytes(DType dtype, Shape shape, std::mt19937_64& engine, int below = 256) {
  Array a(dtype, std::move(shape));
  for (std::int64_t i = 0; i < a.bytes(); ++i)
    a.data()[i] = static_cast<std::byte>(engine() % static_cast<std::uint64_t>(below));
  return a;
}

Array bytes_of(Shape shape, std::initializer_list<int> bytes, DType dtype = DType::uint8) {
  Array a(dtype, std::move(shape));
  std::int64_t i = 0;
  for (const int byte : bytes) a.data()[i++] = static_cast<std::byte>(byte);
  return a;
}

Source source_of(const Array& a, const char* name) { return make_source(a.view(), name); }

std::vector<float> floats_of(const ArraySource& source) {
  const Array all = read_all(source);
  const auto x = all.elements<float>();
  return {x.begin(), x.end()};
}

bool same_floats(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

/// By the definition: sign, exponent and mantissa of a code.
double number_of(const FloatFormat& f, unsigned code) {
  const unsigned magnitude = code & ((1u << (f.bits() - 1)) - 1), sign = code >> (f.bits() - 1) & 1;
  const unsigned exponent = magnitude >> f.mantissa_bits,
                 fraction = magnitude & ((1u << f.mantissa_bits) - 1);
  const double significand = fraction * std::ldexp(1.0, -f.mantissa_bits) + (exponent > 0 ? 1 : 0);
  const double value = significand * std::ldexp(1.0, static_cast<int>(exponent > 0 ? exponent : 1) - f.bias);
  return sign != 0 ? -value : value;
}

unsigned code_at(const Array& packed, std::int64_t row, std::int64_t i, int bits, std::int64_t row_bytes,
                 bool high_first = false) {
  const auto byte = [&](std::int64_t at) {
    return static_cast<unsigned>(packed.data()[row * row_bytes + at]);
  };
  if (bits == 8) return byte(i);
  if (bits == 4) return byte(i / 2) >> ((i % 2 != 0) != high_first ? 4 : 0) & 15u;
  const std::int64_t group = i / 4 * 3;
  const unsigned word = byte(group) | byte(group + 1) << 8 | byte(group + 2) << 16;
  return word >> (6 * (i % 4)) & 63u;
}

// All of a source, read in boxes that begin and end anywhere.
bool boxes_agree(const ArraySource& source, std::mt19937_64& engine) {
  const Array all = read_all(source);
  const Shape& shape = source.shape();
  for (int time = 0; time < 40; ++time) {
    Shape start(shape.size()), count(shape.size());
    for (std::size_t d = 0; d < shape.size(); ++d) {
      start[d] = static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(shape[d]));
      count[d] = 1 + static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(shape[d] - start[d]));
    }
    std::vector<float> box(static_cast<std::size_t>(element_count(count)));
    source.read(start, count, box.data());
    Array expected = Array::copy_of(box_of(all.view(), start, count));
    for (std::size_t i = 0; i < box.size(); ++i)
      if (!same_floats(box[i], expected.elements<float>()[i])) return false;
  }
  return true;
}

const Array kOne = Array::from<float>({}, std::vector<float>{1});

}  // namespace

TEST_CASE("the numbers of codes are those of their formats") {
  for (const quantize::ElementRow& row : quantize::kElements) {
    CAPTURE(row.name);
    for (unsigned code = 0; code < 1u << row.format->bits(); ++code)
      if (std::isfinite(row.values[code])) CHECK(row.values[code] == number_of(*row.format, code));
  }
  const float* e2m1 = quantize::row_of(ElementFormat::e2m1).values;
  const float expected[] = {0, .5, 1, 1.5, 2, 3, 4, 6};
  for (int code = 0; code < 8; ++code) {
    CHECK(e2m1[code] == expected[code]);
    CHECK(e2m1[code + 8] == -expected[code]);
  }
  CHECK(quantize::row_of(ElementFormat::e2m3).values[31] == 7.5f);
  CHECK(quantize::row_of(ElementFormat::e2m3).values[1] == .125f);
  CHECK(quantize::row_of(ElementFormat::e3m2).values[31] == 28);
  CHECK(quantize::row_of(ElementFormat::e3m2).values[1] == .0625f);
  CHECK(quantize::kE8M0[127] == 1);
  CHECK(quantize::kE8M0[0] == 0x1p-127f);
  CHECK(std::isnan(quantize::kE8M0[255]));
}

TEST_CASE("four codes of 6 bits are in three bytes, the first lowest") {
  const Array v = bytes_of({1, 3}, {0x81, 0x30, 0x10}), s = bytes_of({1, 1}, {127});
  const auto x = floats_of(
      *decoded_array({Scheme::mx, source_of(v, "v"), source_of(s, "s")}, {.element = ElementFormat::e2m3}));
  CHECK(x == std::vector<float>{.125f, .25f, .375f, .5f});
}

TEST_CASE("mx: elements times the powers of two of their blocks of 32, at any length and in any box") {
  std::mt19937_64 engine(1);
  for (const ElementFormat element : {ElementFormat::e4m3, ElementFormat::e5m2, ElementFormat::e2m3,
                                      ElementFormat::e3m2, ElementFormat::e2m1})
    for (const std::int64_t k : {4, 32, 100, 2304}) {
      const quantize::ElementRow& row = quantize::row_of(element);
      CAPTURE(row.name);
      CAPTURE(k);
      const std::int64_t bytes = k / row.group_codes * row.group_bytes, blocks = (k + 31) / 32;
      const Array v = random_bytes(DType::uint8, {3, 5, bytes}, engine);
      const Array s = random_bytes(DType::uint8, {3, 5, blocks}, engine);
      const Source x =
          decoded_array({Scheme::mx, source_of(v, "v"), source_of(s, "s")}, {.element = element}, "x");
      CHECK(x->name() == "x");
      REQUIRE(x->shape() == Shape{3, 5, k});
      const auto got = floats_of(*x);
      bool all = true;
      for (std::int64_t i = 0; i < 15 * k; ++i) {
        const unsigned code = code_at(v, i / k, i % k, row.format->bits(), bytes);
        const unsigned scale = static_cast<unsigned>(s.data()[i / k * blocks + i % k / 32]);
        const double number = row.values[code];
        const double expected = scale == 255 ? NAN : number * std::ldexp(1.0, static_cast<int>(scale) - 127);
        all = all && same_floats(got[static_cast<std::size_t>(i)], static_cast<float>(expected));
      }
      CHECK(all);
      CHECK(boxes_agree(*x, engine));
    }
}

TEST_CASE("mx: the type of the values is that of the elements, and packed uint8 is e2m1") {
  const Array v = bytes_of({1, 2}, {0x38, 0xC8}, DType::float8_e4m3fn), s = bytes_of({1, 1}, {128});
  CHECK(floats_of(*decoded_array({Scheme::mx, source_of(v, "v"), source_of(s, "s")})) ==
        std::vector<float>{2, -8});
  const Array half = bytes_of({1, 2}, {0x38, 0xC8}, DType::float8_e4m3fnuz);
  CHECK(floats_of(*decoded_array({Scheme::mx, source_of(half, "v"), source_of(s, "s")})) ==
        std::vector<float>{1, -4});
  const Array packed = bytes_of({1, 2}, {0xA7, 0x10}), e8m0 = bytes_of({1, 1}, {127}, DType::float8_e8m0fnu);
  CHECK(floats_of(*decoded_array({Scheme::mx, source_of(packed, "v"), source_of(e8m0, "s")})) ==
        std::vector<float>{6, -1, 0, .5f});
  CHECK(floats_of(*decoded_array({Scheme::mx, source_of(packed, "v"), source_of(e8m0, "s")},
                                 {.nibbles = NibbleOrder::high})) == std::vector<float>{-1, 6, .5f, 0});
}

TEST_CASE("a byte has elements j and j + 16 of a block of 32, along any axis and in any box") {
  std::mt19937_64 engine(7);
  for (const std::int64_t axis : {0, 1}) {
    const Shape packed = axis == 0 ? Shape{48, 5} : Shape{5, 48},
                blocks = axis == 0 ? Shape{3, 5} : Shape{5, 3};
    const Array v = random_bytes(DType::uint8, packed, engine),
                s = random_bytes(DType::uint8, blocks, engine, 255);
    const Source x = decoded_array({Scheme::mx, source_of(v, "v"), source_of(s, "s")},
                                   {.nibbles = NibbleOrder::split, .axis = axis});
    const auto got = floats_of(*x);
    for (std::int64_t line = 0; line < 5; ++line)
      for (std::int64_t i = 0; i < 96; ++i) {
        const std::int64_t byte = i / 32 * 16 + i % 16, block = i / 32;
        const auto code = static_cast<unsigned>(v.data()[axis == 0 ? byte * 5 + line : line * 48 + byte]) >>
                              (i % 32 < 16 ? 0 : 4) &
                          15U;
        const auto scale = static_cast<int>(s.data()[axis == 0 ? block * 5 + line : line * 3 + block]);
        CHECK(got[static_cast<std::size_t>(axis == 0 ? i * 5 + line : line * 96 + i)] ==
              static_cast<float>(std::ldexp(number_of(kFloat4E2M1, code), scale - 127)));
      }
    CHECK(boxes_agree(*x, engine));
  }
  const Array blocks = random_bytes(DType::uint8, {3, 2, 16}, engine),
              scales = bytes_of({3, 2}, {127, 127, 127, 127, 127, 127});
  const auto x = floats_of(*decoded_array({Scheme::gptoss, source_of(blocks, "v"), source_of(scales, "s")},
                                          {.nibbles = NibbleOrder::split}));
  CHECK(x[32 + 21] == number_of(kFloat4E2M1, static_cast<unsigned>(blocks.data()[16 + 5]) >> 4));
}

TEST_CASE("nvfp4: the documented example, and a number is rounded once") {
  const Array v = bytes_of({1, 8}, {0xA7, 0, 0, 0, 0, 0, 0, 0});
  const Array s = bytes_of({1, 1}, {0x76}, DType::float8_e4m3fn);
  const Array g = Array::from<float>({1}, std::vector<float>{896});
  const auto x =
      floats_of(*decoded_array({Scheme::nvfp4, source_of(v, "v"), source_of(s, "s"), source_of(g, "g")},
                               {.global = GlobalScale::divides}));
  CHECK(x[0] == 1.5f);
  CHECK(x[1] == -.25f);
  CHECK(x[2] == 0);

  std::mt19937_64 engine(2);
  const Array values = random_bytes(DType::uint8, {4, 3, 40}, engine);
  const Array scales = random_bytes(DType::uint8, {4, 3, 5}, engine, 127);
  const Array globals = plain::random(DType::float32, {4}, engine);
  for (const GlobalScale use : {GlobalScale::multiplies, GlobalScale::divides}) {
    const Source y = decoded_array(
        {Scheme::nvfp4, source_of(values, "v"), source_of(scales, "s"), source_of(globals, "g")},
        {.global = use});
    const auto got = floats_of(*y);
    for (std::int64_t i = 0; i < 4 * 3 * 80; ++i) {
      const double element = number_of(kFloat4E2M1, code_at(values, i / 80, i % 80, 4, 40));
      const double scale =
          number_of(kFloat8E4M3Fn, static_cast<unsigned>(scales.data()[i / 80 * 5 + i % 80 / 16]));
      const double global = globals.elements<float>()[static_cast<std::size_t>(i / 240)];
      CHECK(got[static_cast<std::size_t>(i)] == static_cast<float>(use == GlobalScale::divides
                                                                       ? element * scale / global
                                                                       : element * scale * global));
    }
    CHECK(boxes_agree(*y, engine));
  }
}

TEST_CASE("another axis may be packed and scaled") {
  std::mt19937_64 engine(3);
  for (const ElementFormat element : {ElementFormat::e2m1, ElementFormat::e3m2, ElementFormat::e4m3}) {
    const quantize::ElementRow& row = quantize::row_of(element);
    const std::int64_t k = 72, n = 7, bytes = k / row.group_codes * row.group_bytes;
    // The same as the transpose of values along the last axis.
    const Array v = random_bytes(DType::uint8, {2, n, bytes}, engine, 120),
                s = random_bytes(DType::uint8, {2, n, 3}, engine, 250);
    const auto transposed = [](const Array& a) {
      ArrayView view = a.view();
      std::swap(view.shape[1], view.shape[2]), std::swap(view.strides[1], view.strides[2]);
      return view;
    };
    const auto last =
        floats_of(*decoded_array({Scheme::mx, source_of(v, "v"), source_of(s, "s")}, {.element = element}));
    const Array vt = Array::copy_of(transposed(v)), st = Array::copy_of(transposed(s));
    for (const bool copied : {true, false}) {
      const Source x = decoded_array({Scheme::mx, make_source(copied ? vt.view() : transposed(v), "v"),
                                      make_source(copied ? st.view() : transposed(s), "s")},
                                     {.element = element, .axis = -2});
      REQUIRE(x->shape() == Shape{2, k, n});
      const auto got = floats_of(*x);
      bool all = true;
      for (std::int64_t b = 0; b < 2; ++b)
        for (std::int64_t i = 0; i < k; ++i)
          for (std::int64_t j = 0; j < n; ++j)
            all = all && same_floats(got[static_cast<std::size_t>((b * k + i) * n + j)],
                                     last[static_cast<std::size_t>((b * n + j) * k + i)]);
      CHECK(all);
      CHECK(boxes_agree(*x, engine));
    }
  }
}

TEST_CASE("rows of several axes, with one scale, or those of tokens, heads or batches") {
  std::mt19937_64 engine(12);
  const Shape shape{2, 5, 3, 40};
  const Array v = random_bytes(DType::float8_e4m3fn, shape, engine, 0x7F);
  for (const Shape& scales :
       {Shape{}, Shape{2, 5, 3, 1}, Shape{2, 5, 3, 5}, Shape{1, 1, 3, 1}, Shape{1, 5, 1, 1},
        Shape{2, 1, 1, 1}, Shape{2, 5, 1, 5}, Shape{1, 1, 1, 40}, Shape{2, 5, 3, 40}}) {
    CAPTURE(to_string(scales));
    const Array s = plain::random(DType::float32, scales, engine);
    const Source x = decoded_array({Scheme::fp8, source_of(v, "v"), source_of(s, "s")}, {});
    const std::vector<float> got = floats_of(*x);
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < std::ssize(got); ++i) {
      const Shape index{i / 600, i / 120 % 5, i / 40 % 3, i % 40};
      std::int64_t at = 0;
      for (std::size_t d = 0; d < scales.size(); ++d) at = at * scales[d] + index[d] * scales[d] / shape[d];
      const auto code = std::to_integer<unsigned>(v.data()[i]);
      const auto number = static_cast<float>(number_of(kFloat8E4M3Fn, code));
      wrong += got[static_cast<std::size_t>(i)] != number * s.elements<float>()[static_cast<std::size_t>(at)];
    }
    CHECK(wrong == 0);
    CHECK(boxes_agree(*x, engine));
  }
}

TEST_CASE("the bytes of a box are those that its elements depend on") {
  std::mt19937_64 engine(8);
  for (const ElementFormat element : {ElementFormat::e2m1, ElementFormat::e3m2, ElementFormat::e4m3})
    for (const int axis : {-1, -2, 0}) {
      const quantize::ElementRow& row = quantize::row_of(element);
      Shape stored{8, 12, 16}, scales{8, 12, 16};
      const auto packed = static_cast<std::size_t>((axis + 3) % 3);
      stored[packed] = stored[packed] / row.group_codes * row.group_bytes, scales[packed] = 1;
      Array v = random_bytes(DType::uint8, stored, engine, 120);
      const Array s = random_bytes(DType::uint8, scales, engine, 250);
      const Source x = decoded_array({Scheme::mx, source_of(v, "v"), source_of(s, "s")},
                                     {.element = element, .axis = axis});
      for (int time = 0; time < 30; ++time) {
        Shape start(3), count(3);
        for (std::size_t d = 0; d < 3; ++d) {
          start[d] = static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(x->shape()[d]));
          count[d] =
              1 + static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(x->shape()[d] - start[d]));
        }
        std::vector<float> before(static_cast<std::size_t>(element_count(count))), after = before;
        x->read(start, count, before.data());
        const auto bytes = x->bytes_of(start, count);
        REQUIRE(bytes);
        // All others change.
        const Array kept = Array::copy_of(*bytes), all = Array::copy_of(v.view());
        for (std::int64_t i = 0; i < v.bytes(); ++i) v.data()[i] ^= std::byte{0x55};
        std::int64_t at = 0;
        for (std::int64_t a = 0; a < bytes->shape[0]; ++a)
          for (std::int64_t b = 0; b < bytes->shape[1]; ++b)
            for (std::int64_t c = 0; c < bytes->shape[2]; ++c)
              v.data()[bytes->data - v.data() + a * bytes->strides[0] + b * bytes->strides[1] +
                       c * bytes->strides[2]] = kept.data()[at++];
        x->read(start, count, after.data());
        CHECK(std::equal(before.begin(), before.end(), after.begin(), same_floats));
        std::memcpy(v.data(), all.data(), static_cast<std::size_t>(v.bytes()));
        // No more than whole groups.
        const std::int64_t groups = (count[packed] + 2 * (row.group_codes - 1)) / row.group_codes;
        CHECK(bytes->shape[packed] <= groups * row.group_bytes);
      }
    }
}

TEST_CASE("fp8: one scale, or those of rows, columns and blocks, whose last ones are partial") {
  std::mt19937_64 engine(4);
  const Array v = random_bytes(DType::float8_e4m3fn, {10, 70}, engine, 0x7F);
  const auto check = [&](const Array& s, std::int64_t rows, std::int64_t columns,
                         const DecodeSettings& settings) {
    const Source x = decoded_array({Scheme::fp8, source_of(v, "v"), source_of(s, "s")}, settings);
    REQUIRE(x->shape() == Shape{10, 70});
    const auto got = floats_of(*x);
    const auto scales = plain::doubles(s.view());
    const std::int64_t across = (70 + columns - 1) / columns;
    bool all = true;
    for (std::int64_t i = 0; i < 700; ++i) {
      const double element = number_of(kFloat8E4M3Fn, static_cast<unsigned>(v.data()[i]));
      const double scale = scales[static_cast<std::size_t>(i / 70 / rows * across + i % 70 / columns)];
      all = all && got[static_cast<std::size_t>(i)] == static_cast<float>(element * scale);
    }
    CHECK(all);
    CHECK(boxes_agree(*x, engine));
  };
  check(plain::random(DType::float32, {}, engine), 10, 70, {});
  check(plain::random(DType::bfloat16, {1}, engine), 10, 70, {});
  check(plain::random(DType::float32, {10, 1}, engine), 1, 70, {});
  check(plain::random(DType::float32, {1, 70}, engine), 10, 1, {});
  check(plain::random(DType::float32, {5, 7}, engine), 2, 10, {.block = ScaleBlock{2, 10}});
  check(plain::random(DType::float32, {5, 35}, engine), 2, 2, {});
  check(plain::random(DType::float32, {10, 70}, engine), 1, 1, {});
  check(plain::random(DType::float32, {3, 3}, engine), 4, 32, {.block = ScaleBlock{4, 32}});
  check(plain::random(DType::float16, {1, 1}, engine), 128, 128, {.block = ScaleBlock{128, 128}});
  check(plain::random(DType::float8_e8m0fnu, {5, 35}, engine), 2, 2, {});
  const Array scalar = bytes_of({}, {0x40}, DType::float8_e4m3fn), two = plain::filled(DType::float32, {}, 2);
  CHECK(floats_of(*decoded_array({Scheme::fp8, source_of(scalar, "v"), source_of(two, "s")}))[0] == 4);
}

TEST_CASE(
    "rows are decoded alike whether they and their scales are side by side or apart, one scale or several") {
  std::mt19937_64 engine(8);
  // The first columns of a wider array.
  const auto apart = [&](const Array& a) {
    const std::int64_t columns = a.shape()[2], size = size_of(a.dtype());
    Array wide(a.dtype(), {a.shape()[0], a.shape()[1], columns + 3});
    for (std::int64_t row = 0; row < a.shape()[0] * a.shape()[1]; ++row)
      std::memcpy(wide.data() + row * (columns + 3) * size, a.data() + row * columns * size,
                  static_cast<std::size_t>(columns * size));
    return wide;
  };
  const auto columns_of = [](const Array& wide, std::int64_t columns) {
    return box_of(wide.view(), Shape{0, 0, 0}, Shape{wide.shape()[0], wide.shape()[1], columns});
  };
  struct Case {
    Scheme scheme;
    std::int64_t bytes, scales;  // of a row; of 0 scales there is one in all
    DType dtype;
  };
  for (const Case& c : {Case{Scheme::mx, 64, 2, DType::uint8}, Case{Scheme::mx, 48, 3, DType::uint8},
                        Case{Scheme::fp8, 64, 1, DType::float32}, Case{Scheme::fp8, 64, 4, DType::float32},
                        Case{Scheme::fp8, 64, 0, DType::float32}, Case{Scheme::nvfp4, 64, 8, DType::uint8}}) {
    CAPTURE(c.scales);
    CAPTURE(c.bytes);
    const bool is_packed = c.scheme == Scheme::nvfp4 || c.bytes == 48;
    const Array v =
        random_bytes(is_packed ? DType::uint8 : DType::float8_e4m3fn, {3, 40, c.bytes}, engine, 120);
    const Shape grid = c.scales == 0 ? Shape{1, 1, 1} : Shape{3, 40, c.scales};
    const Array s = c.dtype == DType::float32 ? plain::random(c.dtype, grid, engine)
                                              : random_bytes(c.dtype, grid, engine, 120);
    const Array wide_v = apart(v), wide_s = apart(s);
    const auto decoded = [&](const ArrayView& values, const ArrayView& scales) {
      return floats_of(*decoded_array(
          {c.scheme, make_source(values, "v"), make_source(scales, "s"), source_of(kOne, "g")}, {}));
    };
    const auto expected = decoded(columns_of(wide_v, c.bytes), columns_of(wide_s, grid[2]));
    CHECK(decoded(v.view(), s.view()) == expected);
    CHECK(decoded(v.view(), columns_of(wide_s, grid[2])) == expected);
    CHECK(decoded(columns_of(wide_v, c.bytes), s.view()) == expected);
  }
  // A global scale for each row.
  const Array v = random_bytes(DType::uint8, {6, 40}, engine),
              s = random_bytes(DType::uint8, {6, 5}, engine, 120),
              g = plain::random(DType::float32, {6}, engine);
  const auto all =
      floats_of(*decoded_array({Scheme::nvfp4, source_of(v, "v"), source_of(s, "s"), source_of(g, "g")}));
  for (std::int64_t row = 0; row < 6; ++row) {
    const auto row_of = [&](const Array& a) {
      return make_source(box_of(a.view(), Shape{row, 0}, Shape{1, a.shape()[1]}), "row");
    };
    const auto one = floats_of(*decoded_array(
        {Scheme::nvfp4, row_of(v), row_of(s), make_source(box_of(g.view(), Shape{row}, Shape{1}), "g")}));
    CHECK(std::equal(one.begin(), one.end(), all.begin() + row * 80));
  }
}

TEST_CASE("gptoss: blocks are an axis of their own") {
  std::mt19937_64 engine(5);
  const Array v = random_bytes(DType::uint8, {2, 3, 4, 16}, engine),
              s = random_bytes(DType::uint8, {2, 3, 4}, engine, 250);
  const Source x = decoded_array({Scheme::gptoss, source_of(v, "v"), source_of(s, "s")});
  REQUIRE(x->shape() == Shape{2, 3, 128});
  ArrayView joined = v.view();
  joined.shape = {2, 3, 64}, joined.strides = {192, 64, 1};
  CHECK(floats_of(*x) ==
        floats_of(*decoded_array({Scheme::mx, make_source(joined, "v"), source_of(s, "s")})));
  CHECK(boxes_agree(*x, engine));
}

TEST_CASE("no element and no block") {
  const Array v = bytes_of({0, 16}, {}), s = bytes_of({0, 1}, {});
  CHECK(decoded_array({Scheme::mx, source_of(v, "v"), source_of(s, "s")})->shape() == Shape{0, 32});
  const Array w = bytes_of({3, 0}, {}), t = bytes_of({3, 0}, {});
  CHECK(read_all(*decoded_array({Scheme::mx, source_of(w, "v"), source_of(t, "s")})).size() == 0);
}

TEST_CASE("the same bytes on any number of threads, from sources of one thread as well") {
  std::mt19937_64 engine(6);
  const Array v = random_bytes(DType::uint8, {300, 512}, engine),
              s = random_bytes(DType::uint8, {300, 32}, engine, 250);
  const auto sequential = [](const Array& a, const char* name) {
    return generated_source(
        {a.dtype(), a.shape()}, name,
        [&a](std::span<const std::int64_t> start, std::span<const std::int64_t> count, void* out) {
          copy_elements(box_of(a.view(), start, count), out);
        },
        ArrayAccess(ArrayAccess::Order::sequential));
  };
  const auto expected = floats_of(*decoded_array({Scheme::mx, source_of(v, "v"), source_of(s, "s")}));
  for (const int count : {1, 2, 7}) {
    const Threads threads(count);
    CHECK(floats_of(*decoded_array({Scheme::mx, source_of(v, "v"), source_of(s, "s")})) == expected);
    const Source x = decoded_array({Scheme::mx, sequential(v, "v"), sequential(s, "s")});
    CHECK_FALSE(x->random_access());
    CHECK(floats_of(*x) == expected);
  }
}

TEST_CASE("wrong arrays and settings are named, with what fits") {
  const auto failure = [](Scheme scheme, const Array& v, const Array& s, const DecodeSettings& settings = {},
                          const Array* g = &kOne) {
    return plain::failure_and_hint([&] {
      decoded_array({scheme, source_of(v, "v.npy"), source_of(s, "s.npy"), source_of(*g, "g.npy")}, settings);
    });
  };
  const Array u = bytes_of({4, 64}, {}), f = plain::filled(DType::float32, {4, 64}, 0);
  const Array e4m3 = bytes_of({4, 64}, {}, DType::float8_e4m3fn);
  const auto codes = [](Shape shape, DType dtype = DType::uint8) {
    return bytes_of(std::move(shape), {}, dtype);
  };
  CHECK(failure(Scheme::mx, u, codes({4, 3})) ==
        "s.npy: scales of shape (4, 3), and values (4, 64) of e2m1 need (4, 4)");
  CHECK(failure(Scheme::mx, u, codes({4, 2})) ==
        "s.npy: scales of shape (4, 2), and values (4, 64) of e2m1 need (4, 4) | element=e4m3 or e5m2 "
        "takes one code "
        "in a byte");
  CHECK(failure(Scheme::mx, u, codes({128, 4})) ==
        "s.npy: scales of shape (128, 4), and values (4, 64) of e2m1 need (4, 4) | layout=128x4 fits");
  CHECK(failure(Scheme::mx, u, codes({4, 4}), {.layout = ScaleLayout::tiles_8x4}) ==
        "s.npy: scales of shape (4, 4), and values (4, 64) of e2m1 need (8, 4) in layout 8x4");
  CHECK(failure(Scheme::mx, f, codes({4, 2})) ==
        "v.npy: the values are float32, and mx has 8-bit floats, or codes as uint8");
  CHECK(failure(Scheme::mx, u, codes({4, 4}, DType::int8)) ==
        "s.npy: the scales are int8, and mx has E8M0 as uint8 or float8_e8m0fnu");
  CHECK(failure(Scheme::mx, e4m3, codes({4, 2}), {.element = ElementFormat::e5m2}) ==
        "v.npy: the values are float8_e4m3fn, not codes of e5m2");
  CHECK(failure(Scheme::mx, u, codes({4, 4}), {.element = ElementFormat::e2m3}) ==
        "v.npy: axis 1 has 64 bytes, and 4 codes of e2m3 take 3");
  CHECK(failure(Scheme::nvfp4, e4m3, codes({4, 2})) ==
        "v.npy: the values are float8_e4m3fn, and nvfp4 has codes as uint8, two in a byte");
  CHECK(failure(Scheme::nvfp4, u, codes({4, 8}, DType::float8_e8m0fnu)) ==
        "s.npy: the scales are float8_e8m0fnu, and nvfp4 has float8_e4m3fn, or its codes as uint8");
  CHECK(failure(Scheme::nvfp4, u, codes({4, 8}), {}, &f) ==
        "g.npy: global scales of shape (4, 64), and values of shape (4, 128) have one, or (4,)");
  CHECK(failure(Scheme::fp8, u, f) ==
        "v.npy: the values are uint8, and which 8-bit float they are is unknown | element=e4m3 or "
        "element=e5m2 says "
        "it");
  CHECK(failure(Scheme::fp8, e4m3, plain::filled(DType::float32, {3, 64}, 0)) ==
        "s.npy: scales of shape (3, 64) do not divide values of shape (4, 64) | block=RxC says which rows "
        "and columns "
        "share a scale");
  CHECK(failure(Scheme::fp8, codes({587, 7168}, DType::float8_e4m3fn),
                plain::filled(DType::float32, {5, 56}, 0)) ==
        "s.npy: scales of shape (5, 56) do not divide values of shape (587, 7168) | block=128x128 fits");
  CHECK(failure(Scheme::fp8, e4m3, plain::filled(DType::int32, {4, 64}, 0)) ==
        "s.npy: the scales are int32, and fp8 has a float type, or E8M0 as uint8 or float8_e8m0fnu");
  CHECK(failure(Scheme::gptoss, u, codes({4})) ==
        "v.npy: blocks of shape (4, 64), and gptoss has (..., n, 16)");
  CHECK(failure(Scheme::mx, u, codes({4, 4}), {.block = ScaleBlock{1, 32}}) ==
        "mx has blocks of its own; block is of fp8");
  CHECK(failure(Scheme::mx, u, codes({4, 4}), {.axis = 2}) ==
        "v.npy of shape (4, 64) has no axis 2 | axis is one of -2 to 1");
  CHECK(failure(Scheme::fp8, e4m3, f, {.nibbles = NibbleOrder::high}) == "nibbles is of 4-bit elements");
  CHECK(failure(Scheme::nvfp4, u, e4m3, {.nibbles = NibbleOrder::split}) ==
        "nibbles=split is of blocks of 32: mx and gptoss");
}
