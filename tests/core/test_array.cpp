// Shapes, strides, copies and sources in memory.
#include "ejk/array.hpp"

#include <doctest/doctest.h>
#include <cstring>

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

TEST_CASE("a view is given its strides or lies in C order") {
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  const auto* data = reinterpret_cast<const std::byte*>(values.data());
  const ArrayView view{data, DType::float32, {2, 3}};
  CHECK(view.strides == Shape{12, 4});
  CHECK(view.is_c_contiguous());
  CHECK(view[1].as<float>()[2] == 6);
  CHECK(ArrayView{data, DType::float32, {}}.strides.empty());
  CHECK_THROWS_WITH((ArrayView{data, DType::float32, {2, 3}, {4}}), "a view of shape (2, 3) has 1 strides");
  CHECK_THROWS_WITH((ArrayView{data, DType::float32, {2, 3}, {}}), "a view of shape (2, 3) has 0 strides");
  CHECK_THROWS_AS((ArrayView{data, DType::float32, {-2, 3}}), Error);
  CHECK_THROWS_AS((ArrayView{data, DType::float32, {INT64_MAX, 3}}), Error);
}

TEST_CASE("view_of sees elements in C order, and tells their dtype") {
  std::vector<std::int16_t> values{1, 2, 3, 4, 5, 6};
  const ArrayView view = view_of(values.data(), {3, 2});
  CHECK(view.dtype == DType::int16);
  CHECK(view.shape == Shape{3, 2});
  CHECK(view.strides == Shape{4, 2});
  CHECK(view.data == reinterpret_cast<const std::byte*>(values.data()));
  const Array copy = Array::copy_of(view);
  CHECK(std::equal(values.begin(), values.end(), copy.elements<std::int16_t>().begin()));
}

TEST_CASE("an array that was moved from is empty") {
  const auto is_new = [](const Array& a) {
    return a.size() == 0 && a.bytes() == 0 && a.data() == nullptr && a.shape() == Shape{0} &&
           a.elements<std::byte>().empty();
  };
  Array a(DType::int32, {2, 3});
  a.elements<std::int32_t>()[5] = 7;
  Array b(std::move(a));
  CHECK(is_new(a));  // NOLINT(bugprone-use-after-move): what is tested
  CHECK(b.shape() == Shape{2, 3});
  CHECK(b.elements<std::int32_t>()[5] == 7);
  Array c;
  c = std::move(b);
  CHECK(is_new(b));  // NOLINT(bugprone-use-after-move): what is tested
  const Array d = std::move(c).reshaped({6});
  CHECK(is_new(c));  // NOLINT(bugprone-use-after-move): what is tested
  CHECK(d.elements<std::int32_t>()[5] == 7);
  const Array copy = Array::copy_of(c.view());  // NOLINT(bugprone-use-after-move): what is tested
  CHECK(copy.size() == 0);
}

TEST_CASE("a source cannot say of its access what is not so") {
  using Access = ArrayAccess;
  const std::vector<std::int32_t> values{1, 2, 3};
  const ArrayView view = view_of(values.data(), {3});
  const auto fill = [](std::span<const std::int64_t>, std::span<const std::int64_t>, void*) {};
  const auto make = [&](const Access& access) {
    return generated_source({DType::int32, {3}}, "x", fill, access);
  };
  Access look_at_nothing(Access::Order::any), view_in_order(view), other_type(view), other_shape(view),
      uniform_in_order(Access::Order::sequential), uniform_of_other_size(Access::Order::any);
  look_at_nothing.prefer = Access::Prefer::view;
  view_in_order.order = Access::Order::sequential;
  other_type.view->dtype = DType::float32;
  other_shape.view->shape = {2};
  uniform_in_order.uniform.resize(4);
  uniform_of_other_size.uniform.resize(8);
  for (const Access& access :
       {look_at_nothing, view_in_order, other_type, other_shape, uniform_in_order, uniform_of_other_size}) {
    try {
      make(access);
      FAIL_CHECK("no error was thrown");
    } catch (const Error& error) {
      CHECK(error.kind() == Error::Kind::internal);
    }
  }
  CHECK(make(Access(view))->random_access());
  CHECK(make(Access(view, Access::Prefer::read))->mapped()->data == view.data);
  CHECK_FALSE(make(Access(Access::Order::sequential))->random_access());
}

TEST_CASE("a source made from another one is that one, but for what it says") {
  class Released final : public ForwardingSource {
   public:
    explicit Released(std::shared_ptr<const ArraySource> inner) : ForwardingSource(std::move(inner)) {}
    void release(const std::byte*, std::int64_t bytes) const override { released += bytes; }
    mutable std::int64_t released = 0;
  };
  class Same final : public ForwardingSource {
   public:
    explicit Same(std::shared_ptr<const ArraySource> inner) : ForwardingSource(std::move(inner)) {}
  };
  class Flat final : public ForwardingSource {
   public:
    explicit Flat(const std::shared_ptr<const ArraySource>& inner)
        : ForwardingSource(inner, {inner->dtype(), {6}}, ArrayAccess(inner->access().order)) {}
  };
  const std::vector<std::int16_t> values{1, 2, 3, 4, 5, 6};
  const ArrayView view(reinterpret_cast<const std::byte*>(values.data()), DType::int16, {3, 2}, {2, 6});
  const auto inner = std::make_shared<Released>(make_source(view, "x"));
  const Same same(inner);
  CHECK(same.name() == "x");
  CHECK(same.dtype() == DType::int16);
  CHECK(same.shape() == Shape{3, 2});
  CHECK(type_of(same).strides == Shape{2, 6});
  CHECK(same.mapped()->data == view.data);
  CHECK(same.access().prefer == ArrayAccess::Prefer::view);
  CHECK(read_all(same).elements<std::int16_t>()[1] == 4);
  same.release(view.data, 12);
  CHECK(inner->released == 12);
  const Flat flat(inner);
  CHECK(flat.name() == "x");
  CHECK(flat.shape() == Shape{6});
  CHECK_FALSE(flat.mapped().has_value());
  CHECK(flat.random_access());
}

TEST_CASE("arrays whose last axis is not the one that lies side by side are copied whole") {
  for (const DType dtype : {DType::uint8, DType::uint16, DType::float32, DType::int64})
    for (const Shape& shape :
         {Shape{65, 70}, Shape{16, 16}, Shape{3, 40}, Shape{40, 3}, Shape{130, 5}, Shape{2, 33, 3, 67}})
      for (std::size_t axis = 0; axis + 1 < shape.size(); ++axis)
        for (const bool backwards : {false, true}) {
          // Memory has `axis` last.
          Shape order(shape);
          std::swap(order[axis], order.back());
          Array memory(dtype, order);
          for (std::int64_t i = 0; i < memory.bytes(); ++i)
            memory.data()[i] = static_cast<std::byte>(i * 7 + i / 251);
          ArrayView view = memory.view();
          std::swap(view.shape[axis], view.shape.back());
          std::swap(view.strides[axis], view.strides.back());
          if (backwards)
            view.data += (view.shape.back() - 1) * view.strides.back(), view.strides.back() *= -1;
          const Array copy = Array::copy_of(view);
          const std::int64_t size = size_of(dtype);
          const Shape strides = c_strides(shape, dtype);
          Shape index(shape.size(), 0);
          bool same = true;
          for (std::int64_t n = 0; n < copy.size(); ++n) {
            std::int64_t from = 0, to = 0;
            for (std::size_t d = 0; d < shape.size(); ++d)
              from += index[d] * view.strides[d], to += index[d] * strides[d];
            same =
                same && std::memcmp(copy.data() + to, view.data + from, static_cast<std::size_t>(size)) == 0;
            for (std::size_t d = shape.size(); d-- > 0 && ++index[d] == shape[d];) index[d] = 0;
          }
          CHECK_MESSAGE(same, name_of(dtype), ' ', to_string(shape), ", axis ", axis, ", ", backwards);
        }
}
