// Chunks and back: golden cases, every box against a plain loop, mapped, transposed and forward-only sources.
#include <doctest/doctest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "ejk/array_math.hpp"
#include "io/support.hpp"
#include "support/equal.hpp"
#include "support/golden.hpp"

using namespace ejk;

namespace {

using Source = std::shared_ptr<const ArraySource>;

Number number_of(const nlohmann::json& json) {
  if (json.is_boolean()) return std::int64_t{json.get<bool>() ? 1 : 0};
  if (json.is_number_integer()) return json.get<std::int64_t>();
  return json.get<double>();
}

// Boxes at random, read one by one, against the same part of the whole.
void check_boxes(const ArraySource& source, std::mt19937_64& random) {
  const Array whole = read_all(source);
  for (int i = 0; i < 40; ++i) {
    Shape start, count;
    for (const std::int64_t length : source.shape()) {
      start.push_back(static_cast<std::int64_t>(random()) & 0xFFFF);
      start.back() %= length;
      count.push_back(1 + (static_cast<std::int64_t>(random() & 0xFFFF) % (length - start.back())));
    }
    Array box(source.dtype(), count), wanted(source.dtype(), count);
    source.read(start, count, box.data());
    make_source(whole.view())->read(start, count, wanted.data());
    CHECK(test::same(box, wanted));
  }
}

}  // namespace

TEST_CASE("chunk_array: golden cases") {
  for (const golden::Case& c : golden::load("chunk_array")) {
    CAPTURE(c.name);
    const auto run = [&] {
      return read_all(*chunk_array(make_source(c.in.at("x").view(), "x"), c.params.at("chunk_size"),
                                   c.params.at("axis"), number_of(c.params.at("pad_value"))));
    };
    if (c.is_error)
      CHECK_THROWS_AS(run(), Error);
    else
      golden::check_equal(run(), c, "out");
  }
}

TEST_CASE("unchunk_array: golden cases") {
  for (const golden::Case& c : golden::load("unchunk_array")) {
    CAPTURE(c.name);
    const auto run = [&] {
      return read_all(*unchunk_array(make_source(c.in.at("x").view(), "x"), c.params.at("original_length"),
                                     c.params.at("axis")));
    };
    if (c.is_error)
      CHECK_THROWS_AS(run(), Error);
    else
      golden::check_equal(run(), c, "out");
  }
}

TEST_CASE("chunks and back are the same array, on every axis, in boxes, from any source") {
  std::mt19937_64 random(5);
  const Array x = test::counting({4, 6, 5});
  ArrayView turned = x.view();
  std::swap(turned.shape[0], turned.shape[2]);
  std::swap(turned.strides[0], turned.strides[2]);
  for (const Source& source : {make_source(x.view()), make_source(turned),
                               Source(std::make_shared<test::Unmapped>(Array::copy_of(x.view())))})
    for (std::int64_t axis = -3; axis < 3; ++axis)
      for (std::int64_t chunk = 1; chunk < 8; ++chunk) {
        CAPTURE(axis);
        CAPTURE(chunk);
        const auto chunked = chunk_array(source, chunk, axis, std::int64_t{-7});
        check_boxes(*chunked, random);
        const std::int64_t length = source->shape()[static_cast<std::size_t>(axis < 0 ? axis + 3 : axis)];
        const auto back = unchunk_array(chunked, length, axis);
        check_boxes(*back, random);
        CHECK(test::same(read_all(*back), read_all(*source)));
        if (const auto view = back->mapped()) CHECK(test::same(Array::copy_of(*view), read_all(*source)));
        // The padding, and nothing but the padding, is -7.
        const auto elements = read_all(*chunked);
        const auto all = elements.elements<std::int32_t>();
        CHECK(std::count(all.begin(), all.end(), -7) == elements.size() - x.size());
      }
}

TEST_CASE("what a dtype cannot hold is no padding") {
  const auto bytes = make_source(Array(DType::uint8, {3}), "x");
  CHECK(test::error_of(Error::Kind::usage, [&] { chunk_array(bytes, 2, 0, std::int64_t{300}); }) ==
        "x: uint8 cannot hold the padding value 300");
  CHECK_THROWS_AS(chunk_array(bytes, 2, 0, 0.5), Error);
  CHECK_THROWS_AS(chunk_array(make_source(Array(DType::boolean, {3})), 2, 0, std::int64_t{2}), Error);
  const Array half = read_all(*chunk_array(make_source(Array(DType::float16, {1})), 2, 0, 1e6));
  CHECK(half.elements<float16>()[1].bits == 0x7C00);
}

TEST_CASE("sizes that do not fit are named") {
  const auto x = make_source(Array(DType::int8, {3, 4}), "x");
  CHECK(test::contains(test::error_of(Error::Kind::input, [&] { chunk_array(x, INT64_MAX, 0); }), "64 bits"));
  CHECK(test::contains(test::error_of(Error::Kind::usage, [&] { unchunk_array(x, 13); }),
                       "x: length 13 is not from 0 to 12, what 3 chunks of 4 hold"));
  CHECK_THROWS_AS(unchunk_array(make_source(Array(DType::int8, {3})), 1), Error);
  CHECK_THROWS_AS(unchunk_array(x, 1, -2), Error);
  CHECK(read_all(*unchunk_array(make_source(Array(DType::int8, {3, 0})), 0)).shape() == Shape{0});
}
