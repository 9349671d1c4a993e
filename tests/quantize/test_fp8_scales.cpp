// The block of values that shares a scale of FP8, from shapes and names, and decoded arrays against plain loops.
#include "quantize/fp8_scales.hpp"

#include <doctest/doctest.h>

#include <random>
#include <string>

#include "support/arrays.hpp"
#include "support/failure.hpp"

using namespace ejk;
using quantize::block_of_scales;
using quantize::BlockRule;

namespace {

std::string block(const Shape& values, const Shape& scales, const BlockRule& rule = {}) {
  const auto found = block_of_scales(values, scales, rule);
  return found ? to_string(*found) : "none";
}

// 1 in all values.
Array ones(const Shape& shape) {
  Array codes(DType::float8_e4m3fn, shape);
  for (std::int64_t i = 0; i < codes.size(); ++i) codes.data()[i] = std::byte{0x38};
  return codes;
}

Array counted(const Shape& shape) {
  Array scales(DType::float32, shape);
  for (std::int64_t i = 0; i < scales.size(); ++i)
    scales.elements<float>()[static_cast<std::size_t>(i)] = static_cast<float>(i + 1);
  return scales;
}

std::string failure(const Shape& values, const Shape& scales, const std::string& name = "s.npy") {
  const Array v = ones(values), s = counted(scales);
  return plain::failure_and_hint([&] {
    decoded_array({QuantizationScheme::fp8, make_source(v.view(), "v.npy"), make_source(s.view(), name)});
  });
}

DecodedAs taken_of(const Array& v, const Array& s, const DecodeSettings& settings = {}) {
  DecodedAs taken;
  decoded_array({QuantizationScheme::fp8, make_source(v.view(), "v"), make_source(s.view(), "s")}, settings,
                "x", &taken);
  return taken;
}

}  // namespace

TEST_CASE("blocks that are no power of two are never guessed") {
  for (const std::int64_t rows : {130, 192, 448, 960}) {
    CAPTURE(rows);
    const std::int64_t blocks = (rows + 127) / 128;
    CHECK(block({rows, 16}, {blocks, 1}) == "none");
    CHECK(failure({rows, 16}, {blocks, 1}).ends_with("| block=128x128 fits"));
    CHECK(block({rows, 16}, {blocks, 1}, {.is_usual = true}) == "(128, 128)");
    CHECK(block({3, rows, 300}, {3, blocks, 3}, {.is_usual = true}) == "(1, 128, 128)");
  }
  CHECK(failure({130, 16}, {2, 1}) ==
        "s.npy: scales of shape (2, 1) divide values of shape (130, 16) into blocks of 65x16, which are not "
        "guessed | block=128x128 fits");
  CHECK(failure({8, 192}, {8, 2}).ends_with("| block=1x128 fits"));
  CHECK(failure({60, 8}, {5, 8}).ends_with("| block=RxC says which rows and columns share a scale"));
  CHECK(block({256, 512}, {2, 4}) == "(128, 128)");
  CHECK(block({64, 96}, {64, 3}) == "(1, 32)");
  CHECK(block({64, 96}, {64, 3}, {.guess = false}) == "none");
}

TEST_CASE(
    "scales of one, of rows, of columns and of single values follow from the shapes, whatever their name") {
  for (const bool is_usual : {false, true})
    for (const bool guess : {false, true}) {
      const BlockRule rule{.is_usual = is_usual, .guess = guess};
      CHECK(block({10, 70}, {}, rule) == "(10, 70)");
      CHECK(block({10, 70}, {1, 1, 1}, rule) == "(10, 70)");
      CHECK(block({10, 70}, {10, 1}, rule) == "(1, 70)");
      CHECK(block({10, 70}, {1, 70}, rule) == "(10, 1)");
      CHECK(block({10, 70}, {10, 70}, rule) == "(1, 1)");
      CHECK(block({2, 200, 70}, {2, 1, 1}, rule) == "(1, 200, 70)");
    }
  // A name says 128x128, so that no other block is guessed.
  CHECK(block({64, 128}, {2, 2}, {.is_usual = true}) == "none");
}

TEST_CASE("a given block is the only one") {
  CHECK(block({130, 70}, {2, 1}, {.block = ScaleBlock{128, 128}}) == "(128, 128)");
  CHECK(block({130, 70}, {130, 1}, {.block = ScaleBlock{128, 128}}) == "none");
  CHECK(block({130, 70}, {}, {.block = ScaleBlock{128, 128}}) == "none");
  CHECK(block({64, 70}, {}, {.block = ScaleBlock{128, 128}}) == "(128, 128)");
  CHECK(block({70}, {1}, {.block = ScaleBlock{128, 128}}) == "none");
}

TEST_CASE("a vector is of rows, else of experts, never of columns; a matrix of experts and rows") {
  CHECK(block({10, 16}, {10}) == "(1, 16)");
  CHECK(block({4, 8, 16}, {4, 8}) == "(1, 1, 16)");
  CHECK(block({4, 8, 16}, {8}) == "(4, 1, 16)");
  CHECK(block({4, 8, 16}, {4}) == "(1, 8, 16)");
  CHECK(block({8, 8, 16}, {8}) == "(8, 1, 16)");
  CHECK(block({4, 8, 16}, {4, 1}) == "(1, 8, 16)");
  CHECK(block({4, 8, 16}, {16}) == "none");
  CHECK(block({4, 8, 16}, {4, 4}) == "none");  // two rows a scale would be a guess
  CHECK(failure({10, 16}, {16}) ==
        "s.npy: scales of shape (16,) do not divide values of shape (10, 16) | scales of rows are (10,) or "
        "(10, 1), of columns (1, 16)");
  for (const Shape& shape : {Shape{4}, Shape{8}, Shape{4, 8}}) {
    CAPTURE(to_string(shape));
    const Array v = ones({4, 8, 16}), s = counted(shape);
    const Array x = read_all(
        *decoded_array({QuantizationScheme::fp8, make_source(v.view(), "v"), make_source(s.view(), "s")}));
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < x.size(); ++i) {
      const std::int64_t expert = i / 128, row = i / 16 % 8;
      const std::int64_t scale = shape.size() == 2 ? 8 * expert + row : shape[0] == 4 ? expert : row;
      wrong += x.elements<float>()[static_cast<std::size_t>(i)] != static_cast<float>(scale + 1);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("names of scales give blocks of 128x128, whose last ones are cut short") {
  for (const char* name : {"q.weight_scale_inv", "m.safetensors:q.weight_scale_inv", "m/q.scale.npy",
                           "m.h5:/q/weight_scale_inv[0:2]"}) {
    CAPTURE(name);
    CHECK(quantize::is_usual_block_name(name));
    const Array v = ones({130, 16}), s = counted({2, 1});
    const Array x = read_all(
        *decoded_array({QuantizationScheme::fp8, make_source(v.view(), "v"), make_source(s.view(), name)}));
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < x.size(); ++i)
      wrong += x.elements<float>()[static_cast<std::size_t>(i)] != (i / 16 < 128 ? 1 : 2);
    CHECK(wrong == 0);
  }
  for (const char* name : {"q.weight_scale", "scale", "scales.npy", "k_scale", "a[_scale_inv]"})
    CHECK(!quantize::is_usual_block_name(name));
  CHECK(failure({64, 128}, {2, 2}, "q.weight_scale_inv").starts_with("q.weight_scale_inv: scales of shape"));
}

TEST_CASE("a global scale divides where compressed-tensors names it") {
  for (const char* name : {"q.weight_global_scale", "m.safetensors:q.weight_global_scale",
                           "g/weight_global_scale.npy", "m.h5:/q/weight_global_scale[0]"})
    CHECK(quantize::global_use(name) == GlobalScale::divides);
  for (const char* name : {"", "q.weight_scale_2", "0.25", "m.npz:global_scale", "q.input_global_scale"})
    CHECK(quantize::global_use(name) == GlobalScale::multiplies);
}

TEST_CASE("what was taken is described") {
  const Array v = ones({130, 16});
  CHECK(to_string(taken_of(v, counted({}))) == "fp8 float8_e4m3fn, one scale, layout linear");
  CHECK(to_string(taken_of(v, counted({130}))) == "fp8 float8_e4m3fn, scales of rows, layout linear");
  CHECK(taken_of(v, counted({1, 16})).block == "column");
  CHECK(taken_of(v, counted({2, 1}), {.block = ScaleBlock{128, 128}}).block == "128x128");
  CHECK(taken_of(v, counted({65, 1})).block == "2x16");
  const Array w = ones({2, 8, 16});
  CHECK(taken_of(w, counted({2})).block == "matrix");
  CHECK(taken_of(w, counted({8})).block == "2x1x16");
  const Array codes(DType::uint8, {4, 16}), scales(DType::float8_e4m3fn, {4, 2}), g = counted({1});
  for (const char* name : {"q.weight_global_scale", "q.weight_scale_2"})
    for (const auto use : {std::optional<GlobalScale>(), std::optional(GlobalScale::multiplies)}) {
      DecodedAs taken;
      decoded_array({QuantizationScheme::nvfp4, make_source(codes.view(), "v"),
                     make_source(scales.view(), "s"), make_source(g.view(), name)},
                    {.nibbles = NibbleOrder::high, .global = use}, "x", &taken);
      CHECK(
          to_string(taken) ==
          std::string("nvfp4 e2m1, blocks of 1x16 along axis 1, layout linear, high nibble first, global ") +
              (!use && std::string(name) == "q.weight_global_scale" ? "divides" : "multiplies"));
    }
}
