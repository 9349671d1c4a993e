// Encoding: the tables of scale codes and ties, the documented example, layouts, threads; what torchao
// writes (tests/golden/quantize.h5).
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "ejk/array_math.hpp"
#include "ejk/quantize.hpp"
#include "io/support.hpp"
#include "kernels/kernels.hpp"
#include "quantize/encode.hpp"
#include "support/arrays.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"
#include "support/threads.hpp"

using namespace ejk;
using Scheme = QuantizationScheme;

namespace {

std::vector<int> scale_codes(ElementFormat element, float amax) {
  std::vector<int> codes;
  for (const ScaleRule rule : {ScaleRule::floor, ScaleRule::ceil, ScaleRule::rceil, ScaleRule::even})
    codes.push_back(
        quantize::e8m0_rule(rule, quantize::row_of(element)).code(std::bit_cast<std::uint32_t>(amax)));
  return codes;
}

std::vector<std::uint8_t> codes_of(const quantize::ElementRow& row, const std::vector<float>& x,
                                   ElementRounding rounding) {
  kernels::EncodeCounts counts;
  std::vector<std::uint8_t> codes(x.size());
  std::vector<float> decoded(x.size());
  const float one = 1;
  const auto n = static_cast<std::int64_t>(x.size());
  kernels::active().codes.encode(*row.format, static_cast<kernels::Ties>(rounding), x.data(), n,
                                 {&one, &one, 1, kernels::ScaleUse::multiplies, n}, codes.data(),
                                 decoded.data(), counts);
  return codes;
}

int code_of(ElementFormat element, float x, ElementRounding rounding = ElementRounding::even) {
  return codes_of(quantize::row_of(element), {x}, rounding)[0];
}

Quantized quantized(const Array& x, const QuantizeSettings& settings) {
  return quantize_array(*make_source(x.view(), "x.npy"), settings);
}

Array decoded_again(const Quantized& q) {
  QuantizedArrays arrays{q.settings.scheme, make_source(q.values.view(), "v"),
                         make_source(q.scales.view(), "s")};
  const Array global = Array::from<float>({}, std::vector<float>{q.global_scale.value_or(1)});
  arrays.global_scale = make_source(global.view(), "g");
  return read_all(*decoded_array(
      arrays, {.element = q.settings.element, .block = q.settings.block, .layout = q.settings.layout}));
}

}  // namespace

TEST_CASE("scale codes of floor, ceil, rceil and even") {
  using Codes = std::vector<int>;
  constexpr auto e4m3 = ElementFormat::e4m3, e2m1 = ElementFormat::e2m1;
  for (const std::uint32_t nan : {0x7FFFFFFFu, 0x7F800001u})
    CHECK(scale_codes(e2m1, std::bit_cast<float>(nan)) == Codes{255, 255, 255, 255});
  CHECK(scale_codes(e2m1, 0x1p-127f) == Codes{0, 0, 0, 0});
  CHECK(scale_codes(e4m3, 1) == Codes{119, 119, 119, 119});
  CHECK(scale_codes(e4m3, 1.5f) == Codes{119, 120, 119, 119});
  CHECK(scale_codes(e4m3, 1.75f) == Codes{119, 120, 119, 119});
  CHECK(scale_codes(e4m3, 1.7500001f) == Codes{119, 120, 120, 119});
  CHECK(scale_codes(e4m3, 1.9f) == Codes{119, 120, 120, 119});
  CHECK(scale_codes(e4m3, 1.94f) == Codes{119, 120, 120, 120});
  CHECK(scale_codes(e4m3, 448) == Codes{127, 128, 127, 127});
  CHECK(scale_codes(e4m3, 449) == Codes{127, 128, 128, 127});
  CHECK(scale_codes(e2m1, 1) == Codes{125, 125, 125, 125});
  CHECK(scale_codes(e2m1, 1.74f) == Codes{125, 126, 126, 125});
  CHECK(scale_codes(e2m1, 1.75f) == Codes{125, 126, 126, 126});
  CHECK(scale_codes(e2m1, 6) == Codes{127, 128, 127, 127});
  CHECK(scale_codes(e2m1, 6.5f) == Codes{127, 128, 128, 127});
  CHECK(scale_codes(e2m1, 7) == Codes{127, 128, 128, 128});
  CHECK(scale_codes(e4m3, 0) == Codes{0, 0, 0, 0});
  CHECK(scale_codes(e4m3, 1e-40f) == Codes{0, 0, 0, 0});
  CHECK(scale_codes(e4m3, INFINITY) == Codes{247, 247, 254, 247});
  CHECK(scale_codes(e4m3, NAN) == Codes{255, 255, 255, 255});
}

TEST_CASE("E8M0 scales of magnitudes of every exponent") {
  std::vector<std::uint32_t> largest = {0x7F800000, 0x7F800001, 0x7FFFFFFF};
  for (std::uint32_t exponent = 0; exponent < 255; ++exponent)
    for (const std::uint32_t fraction : {0u, 1u, 0x3FFFFFu, 0x600000u, 0x600001u, 0x7FFFFFu})
      largest.push_back(exponent << 23 | fraction);
  // Of e4m3, whose largest number is 1.75 · 2^8, amax times a power of two is rounded to a power of two: down,
  // up, up from 1.75, and down after its fraction to 3 bits.
  for (const ScaleRule rule : {ScaleRule::floor, ScaleRule::ceil, ScaleRule::rceil, ScaleRule::even}) {
    CAPTURE(name_of(rule));
    const quantize::E8M0Rule by = quantize::e8m0_rule(rule, quantize::row_of(ElementFormat::e4m3));
    int wrong = 0;
    for (const std::uint32_t bits : largest) {
      const double size = std::bit_cast<float>(bits);
      int expected = rule == ScaleRule::rceil ? 254 : 247;
      if (std::isnan(size)) expected = 255;
      if (std::isfinite(size)) {
        double least =
            size / (rule == ScaleRule::rceil ? 448 : 256);  // 2^(code - 127) is the power next to this
        if (rule == ScaleRule::even && size >= 0x1p-126) {
          const double unit = std::ldexp(1, std::ilogb(least) - 3);
          least = std::floor(least / unit + 0.5) * unit;
        }
        int exponent = least > 0 ? std::ilogb(least) : -127;
        const bool up = rule == ScaleRule::ceil || rule == ScaleRule::rceil;
        if (up && least > std::ldexp(1, exponent)) ++exponent;
        expected = std::clamp(exponent + 127, 0, 254);
      }
      wrong += by.code(bits) != expected;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("ties of e2m1") {
  const float x[] = {0, -0.0f, .25f, .2500001f, .75f, -.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5, 5.0001f, 6, -.1f};
  const int even[] = {0, 8, 0, 1, 2, 10, 2, 4, 4, 6, 6, 7, 7, 8};
  const int away[] = {0, 8, 1, 1, 2, 10, 3, 4, 5, 6, 7, 7, 7, 8};
  const int down[] = {0, 8, 0, 1, 1, 9, 2, 3, 4, 5, 6, 7, 7, 8};
  for (std::size_t i = 0; i < std::size(x); ++i) {
    CAPTURE(x[i]);
    CHECK(code_of(ElementFormat::e2m1, x[i]) == even[i]);
    CHECK(code_of(ElementFormat::e2m1, x[i], ElementRounding::away) == away[i]);
    CHECK(code_of(ElementFormat::e2m1, x[i], ElementRounding::down) == down[i]);
  }
  CHECK(code_of(ElementFormat::e2m1, NAN) == 7);
  CHECK(code_of(ElementFormat::e2m1, -INFINITY) == 15);
  CHECK(code_of(ElementFormat::e4m3, -NAN) == 0xFF);
  CHECK(code_of(ElementFormat::e4m3, INFINITY) == 0x7E);
  CHECK(code_of(ElementFormat::e5m2, 1e30f) == 0x7B);
}

TEST_CASE("nvfp4: the documented example") {
  Array x(DType::float32, {1, 32});
  x.elements<float>()[0] = 1.5f, x.elements<float>()[1] = -.2f, x.elements<float>()[20] = 3;
  const Quantized q = quantized(x, {.scheme = Scheme::nvfp4});
  CHECK(*q.global_scale == 3.0f / 2688);
  CHECK(q.scales.dtype() == DType::float8_e4m3fn);
  CHECK(q.scales.data()[0] == std::byte{0x76});
  CHECK(q.scales.data()[1] == std::byte{0x7E});
  CHECK(q.values.data()[0] == std::byte{0xA7});
  // 3 / 2688 is not exact in float32.
  CHECK(decoded_again(q).elements<float>()[0] == doctest::Approx(1.5));
  CHECK(decoded_again(q).elements<float>()[1] == doctest::Approx(-.25));
}

TEST_CASE("what is decoded again has no larger error than reported, and counts are those of a plain loop") {
  std::mt19937_64 engine(8);
  for (const Scheme scheme : {Scheme::mx, Scheme::nvfp4, Scheme::fp8})
    for (const std::int64_t k : {32, 100, 12672}) {  // the last one in five pieces
      Array x = plain::random(DType::float32, {3, 7, k}, engine);
      std::fill_n(x.elements<float>().begin(), k, 0.0f);
      for (const std::int64_t at : {k + 3, 9 * k + 31})
        x.elements<float>()[static_cast<std::size_t>(at)] = NAN;
      QuantizeSettings settings{.scheme = scheme};
      if (scheme == Scheme::fp8) settings.block = ScaleBlock{2, 48};
      if (scheme == Scheme::mx) settings.element = ElementFormat::e2m3, settings.rule = ScaleRule::floor;
      const Quantized q = quantized(x, settings);
      const Array y = decoded_again(q);
      REQUIRE(y.shape() == x.shape());
      double worst = -1, signal = 0, noise = 0;
      std::int64_t lost = 0, worst_at = 0;
      for (std::size_t i = 0; i < static_cast<std::size_t>(x.size()); ++i) {
        const double a = x.elements<float>()[i], e = a - y.elements<float>()[i];
        if (std::isnan(a)) continue;
        lost += std::isnan(e);
        if (std::isnan(e)) continue;
        if (std::abs(e) > worst) worst = std::abs(e), worst_at = static_cast<std::int64_t>(i);
        signal += a * a, noise += e * e;
      }
      CHECK(q.largest_error == worst);
      CHECK(q.largest_error_index == Shape{worst_at / (7 * k), worst_at / k % 7, worst_at % k});
      CHECK(q.signal == doctest::Approx(signal));
      CHECK(q.noise == doctest::Approx(noise));
      CHECK(q.lost == lost);
      CHECK((q.lost > 0) == (scheme == Scheme::mx));  // NaN is a scale of mx alone
      const std::int64_t each = scheme == Scheme::mx ? 32 : 16;
      CHECK(q.zero_blocks == (scheme == Scheme::fp8 ? 0 : (k + each - 1) / each));
      for (const int count : {1, 2, 7}) {
        const Threads threads(count);
        const Quantized again = quantized(x, settings);
        CHECK(plain::same_bytes(again.values, q.values));
        CHECK(plain::same_bytes(again.scales, q.scales));
        CHECK(again.noise == q.noise);
        CHECK(again.largest_error == q.largest_error);
        CHECK(again.largest_error_index == q.largest_error_index);
      }
    }
}

TEST_CASE("short rows that end within a block are encoded as rows of whole blocks that end with zeros") {
  std::mt19937_64 engine(12);
  const QuantizeSettings all[] = {{.scheme = Scheme::mx},
                                  {.scheme = Scheme::mx, .element = ElementFormat::e3m2},
                                  {.scheme = Scheme::mx, .element = ElementFormat::e2m1},
                                  {.scheme = Scheme::nvfp4},
                                  {.scheme = Scheme::fp8, .block = ScaleBlock{1, 32}}};
  for (const QuantizeSettings& settings : all)
    for (const DType dtype : {DType::float32, DType::bfloat16})
      for (const std::int64_t columns : {4, 36, 100, 252, 508})
        for (const bool has_nan : {false, true}) {
          CAPTURE(columns);
          CAPTURE(has_nan);
          constexpr std::int64_t kRows = 700;
          const std::int64_t whole = (columns + 31) / 32 * 32;
          Array x = plain::random(dtype, {kRows, columns}, engine);
          Array y(dtype, {kRows, whole});
          const std::int64_t size = size_of(dtype);
          for (std::int64_t r = 0; r < kRows; ++r)
            std::memcpy(y.data() + r * whole * size, x.data() + r * columns * size,
                        static_cast<std::size_t>(columns * size));
          if (has_nan)
            for (const std::int64_t row : {0, 40, 699}) {
              const auto nan = static_cast<std::uint32_t>(0x7FC00000u >> (dtype == DType::float32 ? 0 : 16));
              std::memcpy(x.data() + row * columns * size, &nan, static_cast<std::size_t>(size));
              std::memcpy(y.data() + row * whole * size, &nan, static_cast<std::size_t>(size));
            }
          const Quantized a = quantized(x, settings), b = quantized(y, settings);
          const std::int64_t row_bytes = a.values.bytes() / kRows, whole_bytes = b.values.bytes() / kRows;
          const std::int64_t scales = a.scales.bytes() / kRows, whole_scales = b.scales.bytes() / kRows;
          bool same = true;
          for (std::int64_t r = 0; r < kRows; ++r) {
            same = same && std::memcmp(a.values.data() + r * row_bytes, b.values.data() + r * whole_bytes,
                                       static_cast<std::size_t>(row_bytes)) == 0;
            same = same && std::memcmp(a.scales.data() + r * scales, b.scales.data() + r * whole_scales,
                                       static_cast<std::size_t>(scales)) == 0;
          }
          CHECK(same);
          CHECK(a.saturated == b.saturated);
          CHECK(a.flushed == b.flushed);
          CHECK(a.nans == b.nans);
          if (!has_nan) CHECK(a.lost == 0);
          CHECK(a.signal == doctest::Approx(b.signal));
          CHECK(a.noise == doctest::Approx(b.noise));
          CHECK(a.largest_error == b.largest_error);
          CHECK(a.largest_error_index == b.largest_error_index);
        }
}

TEST_CASE("fp8: scales of blocks in rows, and codes that are used, are those of a plain loop") {
  std::mt19937 engine(13);
  std::normal_distribution<float> normal;
  for (const Shape& shape : {Shape{300, 36}, Shape{2, 70000}, Shape{1, 65537}, Shape{17, 5000}})
    for (const std::int64_t block : {1, 8, 16, 48, 2048, 4096, 100000})
      for (const int threads : {1, 7}) {
        CAPTURE(to_string(shape));
        CAPTURE(block);
        const Threads some(threads);
        Array x(DType::float32, shape);
        for (float& element : x.elements<float>()) element = std::max(normal(engine), 0.0f);
        const Quantized q = quantized(x, {.scheme = Scheme::fp8, .block = ScaleBlock{1, block}});
        const std::int64_t columns = shape[1], blocks = (columns + block - 1) / block;
        std::int64_t wrong = 0, zero_blocks = 0;
        for (std::int64_t r = 0; r < shape[0]; ++r)
          for (std::int64_t b = 0; b < blocks; ++b) {
            const auto row = x.elements<float>().begin() + r * columns;
            const float most = *std::max_element(row + b * block, row + std::min(columns, (b + 1) * block));
            zero_blocks += most == 0;
            wrong += q.scales.elements<float>()[static_cast<std::size_t>(r * blocks + b)] !=
                     (most == 0 ? 1 : most / 448);
          }
        CHECK(wrong == 0);
        CHECK(q.zero_blocks == zero_blocks);
        std::vector<bool> used(256);
        for (std::int64_t i = 0; i < x.size(); ++i)
          used[std::to_integer<std::size_t>(q.values.data()[i])] = true;
        CHECK(q.codes_used == std::count(used.begin(), used.end(), true));
      }
}

TEST_CASE("elements of every type are encoded as their float32 numbers") {
  std::mt19937_64 engine(14);
  for (const DType dtype : test::kAllTypes)
    for (const Scheme scheme : {Scheme::mx, Scheme::nvfp4, Scheme::fp8}) {
      CAPTURE(name_of(dtype));
      Array small = plain::random(DType::float32, {5, 2600}, engine);
      for (float& element : small.elements<float>()) element = std::floor(std::abs(4 * element));
      const Array x = read_all(*convert_array(make_source(small.view()), dtype));
      const Array floats = read_all(*convert_array(make_source(x.view()), DType::float32));
      const Quantized a = quantized(x, {.scheme = scheme}), b = quantized(floats, {.scheme = scheme});
      CHECK(plain::same_bytes(a.values, b.values));
      CHECK(plain::same_bytes(a.scales, b.scales));
      CHECK(a.noise == b.noise);
    }
}

TEST_CASE("arrays of an earlier result are written to again if they fit, and are as if new") {
  std::mt19937_64 engine(15);
  const Array x = plain::random(DType::float32, {300, 256}, engine);
  for (const ScaleLayout layout : {ScaleLayout::linear, ScaleLayout::tiles_128x4})
    for (const Shape& before : {Shape{300, 256}, Shape{256, 300}}) {
      const QuantizeSettings settings{.scheme = Scheme::mx, .layout = layout};
      Quantized earlier = quantized(plain::random(DType::float32, before, engine), settings);
      std::fill_n(earlier.values.data(), earlier.values.bytes(), std::byte{0xFF});
      std::fill_n(earlier.scales.data(), earlier.scales.bytes(), std::byte{0xFF});
      const std::byte* const values = earlier.values.data();
      const Quantized again = quantize_array(*make_source(x.view()), settings, {}, std::move(earlier));
      const Quantized fresh = quantized(x, settings);
      CHECK(plain::same_bytes(again.values, fresh.values));
      CHECK(plain::same_bytes(again.scales, fresh.scales));
      CHECK((again.values.data() == values) == (before == x.shape()));
      CHECK(again.noise == fresh.noise);
    }
}

TEST_CASE("fp8: scales of all, rows and blocks; powers of two, also four in a word") {
  const Array x = plain::array_of(DType::float32, {2, 4}, {1, -448, 0, 2, 0, 0, 0, 0});
  CHECK(quantized(x, {.scheme = Scheme::fp8}).scales.elements<float>()[0] == 1);
  const Quantized rows = quantized(x, {.scheme = Scheme::fp8, .block = ScaleBlock{1, 4}});
  CHECK(rows.scales.shape() == Shape{2, 1});
  CHECK(rows.scales.elements<float>()[1] == 1);
  CHECK(rows.zero_blocks == 1);
  const Quantized blocks = quantized(x, {.scheme = Scheme::fp8, .block = ScaleBlock{128, 3}});
  CHECK(blocks.scales.shape() == Shape{1, 2});
  CHECK(blocks.scales.elements<float>()[1] == 2.0f / 448);
  const Quantized powers =
      quantized(x, {.scheme = Scheme::fp8, .block = ScaleBlock{128, 3}, .power_of_two = true});
  CHECK(powers.scales.elements<float>()[1] == 0x1p-7f);
  const Quantized words = quantized(x, {.scheme = Scheme::fp8,
                                        .block = ScaleBlock{128, 3},
                                        .layout = ScaleLayout::packed_columns,
                                        .power_of_two = true});
  CHECK(words.scales.elements<std::int32_t>()[0] == (127 | 120 << 8));
  CHECK(plain::same_bytes(decoded_again(words), decoded_again(powers)));
}

TEST_CASE(
    "nvfp4: codes are the nearest of what is decoded, of bfloat16, whose ties are many, as of float32") {
  std::mt19937 engine(9);
  std::normal_distribution<float> normal;
  for (const bool is_bfloat16 : {true, false})
    for (const std::optional<float> global : {std::optional<float>{}, std::optional<float>{0.001f}}) {
      Array x(DType::float32, {64, 2048});
      for (float& f : x.elements<float>()) {
        f = normal(engine);
        if (is_bfloat16) f = static_cast<float>(bfloat16(f));
      }
      const Quantized q = quantized(x, {.scheme = Scheme::nvfp4, .global = global});
      const float* const numbers = quantize::row_of(ElementFormat::e2m1).values;
      const float* const scales = detail::kFloat8Values<kFloat8E4M3Fn>.data();
      int wrong = 0;
      for (std::int64_t i = 0; i < x.size(); ++i) {
        const auto byte = std::to_integer<unsigned>(q.values.data()[i / 2]);
        const unsigned code = i % 2 == 0 ? byte & 15u : byte >> 4;
        const float scale = scales[std::to_integer<unsigned>(q.scales.data()[i / 16])];
        const auto distance = [&](unsigned other) {
          return std::abs(double{x.elements<float>()[static_cast<std::size_t>(i)]} -
                          double{numbers[other] * scale * *q.global_scale});
        };
        for (unsigned other = 0; other < 16; ++other) wrong += distance(other) < distance(code);
      }
      CHECK(wrong == 0);
    }
}

TEST_CASE("nvfp4: zeros whose scale is NaN, as 1 / global is infinite, are lost, and no others") {
  const Quantized q = quantized(Array(DType::float32, {5, 2}), {.scheme = Scheme::nvfp4, .global = 1e-44f});
  CHECK(std::isnan(decoded_again(q).elements<float>()[0]));
  CHECK(q.lost == 10);
}

TEST_CASE("NaN: signs are those of the elements that are NaN, of others in their block none") {
  Array x(DType::float32, {1, 32});
  x.elements<float>()[0] = -NAN, x.elements<float>()[1] = -2, x.elements<float>()[2] = NAN;
  const Quantized q = quantized(x, {.scheme = Scheme::mx});
  CHECK(q.scales.data()[0] == std::byte{255});
  CHECK(q.values.data()[0] == std::byte{0xFF});
  CHECK(q.values.data()[1] == std::byte{0x7F});
  CHECK(q.values.data()[2] == std::byte{0x7F});
}

TEST_CASE("arrays without an element are encoded and decoded again") {
  for (const Scheme scheme : {Scheme::mx, Scheme::nvfp4, Scheme::fp8})
    for (const Shape& shape : {Shape{0, 64}, Shape{5, 0}, Shape{0}}) {
      CAPTURE(to_string(shape));
      const Quantized q = quantized(Array(DType::float32, shape), {.scheme = scheme});
      CHECK(decoded_again(q).shape() == shape);
    }
}

TEST_CASE("NaN and infinities") {
  Array x(DType::float32, {1, 64});
  x.elements<float>()[0] = NAN, x.elements<float>()[1] = 2, x.elements<float>()[40] = INFINITY,
  x.elements<float>()[41] = 1;
  const Quantized mx = quantized(x, {.scheme = Scheme::mx, .element = ElementFormat::e2m1});
  CHECK(mx.scales.data()[0] == std::byte{255});
  CHECK(mx.scales.data()[1] == std::byte{254});
  CHECK(mx.nans == 1);
  CHECK(mx.saturated == 1);
  const Quantized nv = quantized(x, {.scheme = Scheme::nvfp4});
  CHECK((nv.values.data()[0] & std::byte{15}) == std::byte{7});
  CHECK(nv.nans == 1);
  CHECK(nv.saturated == 1);
  CHECK(*nv.global_scale == 2.0f / 2688);
  const Quantized zero = quantized(Array(DType::float32, {1, 16}), {.scheme = Scheme::nvfp4});
  CHECK(*zero.global_scale == 1);
  CHECK(zero.zero_blocks == 1);
}

TEST_CASE("settings that a scheme does not have") {
  const Array x(DType::float32, {2, 33});
  const auto failure = [&](const QuantizeSettings& s) {
    return plain::failure_and_hint([&] { quantized(x, s); });
  };
  CHECK(failure({.scheme = Scheme::mx, .element = ElementFormat::e2m1}) ==
        "x.npy: the last axis has 33 elements, and 2 of e2m1 make whole bytes");
  CHECK(failure({.scheme = Scheme::nvfp4, .element = ElementFormat::e4m3}) ==
        "nvfp4 has elements e2m1, not e4m3");
  CHECK(failure({.scheme = Scheme::nvfp4, .rule = ScaleRule::floor}) ==
        "a scale rule is of scales that are powers of two, as of mx");
  CHECK(failure({.scheme = Scheme::mx, .block = ScaleBlock{1, 8}}) ==
        "mx has blocks of its own; block is of fp8");
  CHECK(failure({.scheme = Scheme::fp8, .layout = ScaleLayout::tiles_128x4}) ==
        "layout 128x4 is of scales of one byte, and those of fp8 are float32");
  CHECK(failure({.scheme = Scheme::nvfp4, .global = 0.0f}) == "the global scale 0 is not a number above 0");
}

namespace {

ElementFormat element_of(const std::string& name) {
  for (const ElementFormat element : {ElementFormat::e4m3, ElementFormat::e5m2, ElementFormat::e2m3,
                                      ElementFormat::e3m2, ElementFormat::e2m1})
    if (name_of(element) == name) return element;
  return ElementFormat::e4m3;
}

QuantizeSettings settings_of(const golden::Case& c) {
  QuantizeSettings settings{.scheme = c.params.at("scheme") == "mx" ? Scheme::mx : Scheme::nvfp4};
  if (c.params.contains("element")) settings.element = element_of(c.params.at("element"));
  for (const ScaleRule rule : {ScaleRule::floor, ScaleRule::ceil, ScaleRule::rceil, ScaleRule::even})
    if (c.params.contains("rule") && c.params.at("rule") == std::string(name_of(rule))) settings.rule = rule;
  for (const ElementRounding rounding : {ElementRounding::even, ElementRounding::away, ElementRounding::down})
    if (c.params.value("rounding", "even") == name_of(rounding)) settings.rounding = rounding;
  return settings;
}

std::int64_t bytes_differ(const Array& a, const Array& b) {
  REQUIRE(a.bytes() == b.bytes());
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < a.bytes(); ++i) count += a.data()[i] != b.data()[i];
  return count;
}

}  // namespace

TEST_CASE("blocks as torchao encodes them, and codes as ml_dtypes has them") {
  for (const golden::Case& c : golden::load("quantize")) {
    CAPTURE(c.name);
    const Array& x = c.in.at("x");
    if (c.name.starts_with("codes_")) {
      const auto floats = x.elements<float>();
      const std::vector<std::uint8_t> codes = codes_of(quantize::row_of(element_of(c.params.at("element"))),
                                                       {floats.begin(), floats.end()}, ElementRounding::even);
      CHECK(std::equal(codes.begin(), codes.end(), c.out.at("codes").elements<std::uint8_t>().begin()));
      continue;
    }
    QuantizeSettings settings = settings_of(c);
    const Quantized q = quantized(x, settings);
    CHECK(bytes_differ(q.values, c.out.at("values")) == 0);
    CHECK(bytes_differ(q.scales, c.out.at("scales")) == 0);
    if (q.global_scale) CHECK(*q.global_scale == c.out.at("global").elements<float>()[0]);
    settings.layout = ScaleLayout::tiles_128x4;
    CHECK(bytes_differ(quantized(x, settings).scales, c.out.at("blocked")) == 0);
  }
}

TEST_CASE("blocks as microxcaling, ModelOpt and compressed-tensors encode them") {
  for (const golden::Case& c : golden::load("quantize_others")) {
    CAPTURE(c.name);
    const Quantized q = quantized(c.in.at("x"), settings_of(c));
    for (const auto& one : c.out) {
      const std::string& name = one.first;
      const Array& expected = one.second;
      CAPTURE(name);
      if (name == "decoded") CHECK(bytes_differ(decoded_again(q), expected) == 0);
      if (name == "values") CHECK(bytes_differ(q.values, expected) == 0);
      if (name == "scales") CHECK(bytes_differ(q.scales, expected) == 0);
      if (name == "global") CHECK(*q.global_scale == expected.elements<float>()[0]);
      if (name == "global_divides")
        CHECK(1 / *q.global_scale == doctest::Approx(expected.elements<float>()[0]));
    }
  }
}

TEST_CASE("codes that only the ends of rows have stay used") {
  const Threads one(1);
  const std::vector<float> numbers{0, .5, 1, 1.5, 2, 3, 4, 6, -3, -4, -6};  // of e2m1, by a scale of 1
  constexpr std::int64_t kStep = 2048, kColumns = kStep + 2;
  Array x(DType::float32, {2, kColumns});
  const std::span<float> elements = x.elements<float>();
  for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = numbers[i % numbers.size()];
  elements[kStep] = -.5f;  // of four codes that the rows before and behind lack
  elements[kStep + 1] = 6;
  CHECK(quantized(x, {.scheme = Scheme::mx, .element = ElementFormat::e2m1}).codes_used ==
        std::ssize(numbers) + 1);
}
