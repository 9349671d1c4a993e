// Layouts of scales there and back, for grids of every raggedness; documented offsets and words.
#include <doctest/doctest.h>

#include <algorithm>

#include "ejk/quantize.hpp"
#include "quantize/scale_grid.hpp"
#include "support/arrays.hpp"
#include "support/failure.hpp"

using namespace ejk;

namespace {

constexpr ScaleLayout kTiled[] = {ScaleLayout::tiles_128x4, ScaleLayout::tiles_8x4,
                                  ScaleLayout::packed_columns};

Array counted_codes(Shape shape) {
  Array a(DType::uint8, std::move(shape));
  for (std::int64_t i = 0; i < a.size(); ++i) a.data()[i] = static_cast<std::byte>(1 + i % 254);
  return a;
}

Array converted(const Array& a, ScaleLayout from, ScaleLayout to,
                std::optional<ScaleGridSize> grid = std::nullopt) {
  return convert_scale_layout(*make_source(a.view(), "s.npy"), from, to, grid);
}

}  // namespace

TEST_CASE("scales of any grid survive every layout, and padding is 0") {
  for (const ScaleLayout layout : kTiled)
    for (const std::int64_t rows : {1, 7, 8, 9, 33, 127, 128, 130, 257})
      for (const std::int64_t columns : {1, 3, 4, 5, 56}) {
        CAPTURE(name_of(layout));
        CAPTURE(rows);
        CAPTURE(columns);
        const Array linear = counted_codes({2, rows, columns});
        const Array stored = converted(linear, ScaleLayout::linear, layout);
        CHECK(stored.shape() == quantize::stored_shape(layout, {2, rows, columns}));
        CHECK(plain::same_bytes(converted(stored, layout, ScaleLayout::linear, ScaleGridSize{rows, columns}),
                                linear));
        const auto zeros = std::count(stored.data(), stored.data() + stored.bytes(), std::byte{0});
        CHECK(zeros == stored.bytes() - linear.bytes());
        // Every scale is where the decoder reads it.
        CHECK(plain::same_bytes(
            converted(converted(stored, layout, ScaleLayout::tiles_8x4, ScaleGridSize{rows, columns}),
                      ScaleLayout::tiles_8x4, ScaleLayout::linear, ScaleGridSize{rows, columns}),
            linear));
      }
}

TEST_CASE("offsets in tiles of 128 x 4: 32 rows of four scales, four times") {
  const quantize::StoredGrid grid = quantize::StoredGrid{ScaleLayout::tiles_128x4, 300, 9};
  for (std::int64_t r = 0; r < 300; ++r)
    for (std::int64_t c = 0; c < 9; ++c)
      CHECK(grid.offset(r, c) == 512 * (r / 128 * 3 + c / 4) + 16 * (r % 32) + 4 * ((r % 128) / 32) + c % 4);
  CHECK(grid.codes() == 384 * 12);
}

TEST_CASE("four E8M0 codes in a word, of codes and of powers of two") {
  const Array numbers = Array::from<float>({1, 5}, std::vector<float>{0x1p-8f, 0x1p-7f, 1, 8, 2});
  const Array words = converted(numbers, ScaleLayout::linear, ScaleLayout::packed_columns);
  CHECK(words.dtype() == DType::int32);
  CHECK(words.elements<std::uint32_t>()[0] == 0x827F7877u);
  CHECK(words.elements<std::uint32_t>()[1] == 0x80u);
  const Array least = Array::from<float>({1, 2}, std::vector<float>{0x1p-127f, 0x1p127f});
  CHECK(converted(least, ScaleLayout::linear, ScaleLayout::packed_columns).elements<std::uint32_t>()[0] ==
        0xFE00u);
  const Array three = Array::from<float>({1, 2}, std::vector<float>{1, 3});
  CHECK(plain::failure([&] { converted(three, ScaleLayout::linear, ScaleLayout::packed_columns); }) ==
        "s.npy: element (0, 1) is 3, not a power of two from 2^-127 to 2^127");
}

TEST_CASE("tiles may be flattened; grids that do not fit are refused") {
  const Array linear = counted_codes({130, 5});
  Array flat = converted(linear, ScaleLayout::linear, ScaleLayout::tiles_128x4);
  flat = std::move(flat).reshaped({256 * 8});
  CHECK(plain::same_bytes(
      converted(flat, ScaleLayout::tiles_128x4, ScaleLayout::linear, ScaleGridSize{130, 5}), linear));
  const auto failure = [&](const Array& a, ScaleLayout from, std::optional<ScaleGridSize> grid) {
    return plain::failure_and_hint([&] { converted(a, from, ScaleLayout::linear, grid); });
  };
  CHECK(failure(flat, ScaleLayout::tiles_128x4, ScaleGridSize{130, 9}) ==
        "s.npy: scales of shape (2048,), and a grid of 130x9 has (256, 12) in layout 128x4");
  CHECK(failure(flat, ScaleLayout::tiles_128x4, std::nullopt) ==
        "layout 128x4 has padding, and the scales' rows and columns are needed");
  CHECK(failure(plain::filled(DType::float32, {1, 4}, 1), ScaleLayout::tiles_8x4, ScaleGridSize{1, 4}) ==
        "s.npy: scales of type float32, and layout 8x4 is of one byte each");
  CHECK(failure(linear, ScaleLayout::packed_columns, ScaleGridSize{130, 20}) ==
        "s.npy: scales of type uint8, and layout deepgemm is of int32, four codes in each");
}

TEST_CASE("the decoder reads scales in every layout, along the last axis and another") {
  std::mt19937_64 engine(7);
  const std::int64_t rows = 131, k = 160;
  Array v(DType::uint8, {2, rows, k / 2});
  for (std::int64_t i = 0; i < v.bytes(); ++i) v.data()[i] = static_cast<std::byte>(engine() & 255u);
  const Array s = counted_codes({2, rows, k / 32});
  const QuantizedArrays linear{QuantizationScheme::mx, make_source(v.view(), "v"),
                               make_source(s.view(), "s")};
  const Array expected = read_all(*decoded_array(linear));
  // The same with the axis of blocks before that of rows.
  const auto swapped = [](const Array& a) {
    ArrayView view = a.view();
    std::swap(view.shape[1], view.shape[2]), std::swap(view.strides[1], view.strides[2]);
    return Array::copy_of(view);
  };
  const Array vt = swapped(v), et = swapped(expected);
  for (const ScaleLayout layout : kTiled) {
    CAPTURE(name_of(layout));
    const Array stored = converted(s, ScaleLayout::linear, layout);
    CHECK(plain::same_bytes(
        read_all(*decoded_array({QuantizationScheme::mx, linear.values, make_source(stored.view(), "s")},
                                {.layout = layout})),
        expected));
    CHECK(plain::same_bytes(read_all(*decoded_array({QuantizationScheme::mx, make_source(vt.view(), "v"),
                                                     make_source(stored.view(), "s")},
                                                    {.layout = layout, .axis = 1})),
                            et));
  }
}

TEST_CASE("scales without elements cost nothing, however long their other axes are") {
  const std::int64_t many = std::int64_t{1} << 40;
  for (const ScaleLayout layout : kTiled)
    for (const Shape& shape : {Shape{many, 0}, Shape{0, many}, Shape{many, 0, 4}, Shape{many, 4, 0}}) {
      CAPTURE(name_of(layout));
      CAPTURE(to_string(shape));
      CHECK(converted(Array(DType::uint8, shape), ScaleLayout::linear, layout).shape() ==
            quantize::stored_shape(layout, shape));
    }
}
