// Shapes, strides, copies and sources in memory.
#include "ejk/array.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

using namespace ejk;

TEST_CASE("sizes that do not fit 64 bits are errors, empty arrays are not") {
  CHECK(element_count(Shape{}) == 1);
  CHECK(element_count(Shape{3, 0, 5}) == 0);
  CHECK_THROWS_AS(element_count(Shape{INT64_MAX, 2}), Error);
  CHECK_THROWS_AS(element_count(Shape{-1, 2}), Error);
  CHECK_THROWS_AS(byte_count(Shape{INT64_MAX / 4}, DType::float64), Error);
  // Empty, but the strides of its other axes would not fit.
  CHECK_THROWS_AS(element_count(Shape{0, INT64_MAX, 4}), Error);
  CHECK_THROWS_AS(byte_count(Shape{0, INT64_MAX / 4}, DType::float64), Error);
}

TEST_CASE("copies follow any strides, and a large array is as good as a small one") {
  for (const std::int64_t rows : {3, 3000}) {
    const std::int64_t columns = 1000;
    std::vector<std::int32_t> values(static_cast<std::size_t>(rows * columns));
    std::iota(values.begin(), values.end(), 0);
    // The transpose, every second row, backwards.
    const ArrayView view{reinterpret_cast<const std::byte*>(values.data()) + (rows - 1) / 2 * 2 * columns * 4,
                         DType::int32,
                         {columns, (rows + 1) / 2},
                         {4, -2 * columns * 4}};
    const Array copy = Array::copy_of(view);
    const auto got = copy.elements<std::int32_t>();
    bool equal = true;
    for (std::int64_t c = 0; c < columns; ++c)
      for (std::int64_t r = 0; r < view.shape[1]; ++r)
        equal = equal && got[static_cast<std::size_t>(c * view.shape[1] + r)] ==
                             ((rows - 1) / 2 * 2 - 2 * r) * columns + c;
    CHECK(equal);
  }
}

TEST_CASE("new arrays are zero and sources read boxes") {
  Array a(DType::int64, {1024, 1024});
  CHECK(std::all_of(a.elements<std::int64_t>().begin(), a.elements<std::int64_t>().end(),
                    [](auto x) { return x == 0; }));
  a.elements<std::int64_t>()[5 * 1024 + 7] = 42;
  const auto source = make_source(std::move(a), "a");
  std::int64_t box[6] = {};
  source->read(Shape{4, 6}, Shape{2, 3}, box);
  CHECK(box[4] == 42);
  CHECK(std::accumulate(box, box + 6, std::int64_t{0}) == 42);
  CHECK(read_all(*source).elements<std::int64_t>()[5 * 1024 + 7] == 42);
}
