// Rows by index: every box against a plain loop, mapped and forward-only sources, and indices that are no rows.
#include <doctest/doctest.h>

#include <random>

#include "ejk/array_math.hpp"
#include "support/arrays.hpp"
#include "support/failure.hpp"

using namespace ejk;

TEST_CASE("take_rows is x[rows], whatever box is read") {
  std::mt19937 random(8);
  const std::vector<double> numbers = [&] {
    std::vector<double> all(9 * 4 * 3);
    for (double& x : all) x = static_cast<double>(random() % 1000);
    return all;
  }();
  const Array x = plain::array_of(DType::int16, {9, 4, 3}, numbers);
  const std::vector<std::int64_t> rows{3, 4, 5, 0, 0, 8, 7, 1, 2, 3, 4, 8};
  for (const bool is_mapped : {true, false}) {
    const auto mapped = make_source(x.view());
    const auto source =
        is_mapped ? mapped
                  : generated_source(
                        {x.dtype(), x.shape()}, "x",
                        [&](std::span<const std::int64_t> start, std::span<const std::int64_t> count,
                            void* out) { mapped->read(start, count, out); },
                        ArrayAccess(ArrayAccess::Order::sequential));
    const auto taken = take_rows(source, rows);
    REQUIRE(taken->shape() == Shape{12, 4, 3});
    for (std::int64_t first = 0; first < 12; ++first)
      for (std::int64_t end = first; end <= 12; ++end) {
        const Shape start{first, 1, 0}, count{end - first, 2, 2};
        Array box(DType::int16, count);
        taken->read(start, count, box.data());
        std::size_t at = 0;
        for (std::int64_t i = first; i < end; ++i)
          for (std::int64_t j = 1; j < 3; ++j)
            for (std::int64_t k = 0; k < 2; ++k)
              REQUIRE(box.elements<std::int16_t>()[at++] ==
                      numbers[static_cast<std::size_t>((rows[static_cast<std::size_t>(i)] * 4 + j) * 3 + k)]);
      }
  }
}

TEST_CASE("indices that are no rows are named, and so is an array without any") {
  const auto x = make_source(plain::array_of(DType::float32, {3}, {1, 2, 3}), "x");
  for (const std::int64_t wrong : {std::int64_t{-1}, std::int64_t{3}, INT64_MAX, INT64_MIN})
    CHECK(plain::failure([&] {
            (void)take_rows(x, std::vector<std::int64_t>{0, wrong});
          }) == "array: element 1 is " + std::to_string(wrong) + "; x has 3 rows");
  CHECK(plain::failure([] {
          (void)take_rows(make_source(Array(DType::float32, {}), "x"), std::vector<std::int64_t>{0});
        }) == "x: a single number has no rows");
  CHECK(take_rows(x, std::vector<std::int64_t>{})->shape() == Shape{0});
  CHECK(take_rows(x, std::vector<std::int64_t>{1})->name() == "x");
  CHECK(take_rows(x, std::vector<std::int64_t>{1}, "rows(x, i)")->name() == "rows(x, i)");
}
