// Small arrays of given or random numbers, with any strides, and their elements as numbers.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "ejk/array.hpp"

namespace plain {

using ejk::Array;
using ejk::ArrayView;
using ejk::DType;
using ejk::Shape;
using Sizes = std::vector<std::int64_t>;

inline const std::vector<DType> kFloats{DType::float16, DType::bfloat16, DType::float32, DType::float64};

/// The elements in C order.
inline std::vector<double> doubles(const ArrayView& view) {
  const Array copy = Array::copy_of(view);
  std::vector<double> out;
  out.reserve(static_cast<std::size_t>(copy.size()));
  ejk::dispatch(copy.dtype(), [&]<class T>(std::type_identity<T>) {
    for (const T v : copy.elements<T>()) {
      if constexpr (ejk::is_small_float<T>)
        out.push_back(static_cast<float>(v));
      else
        out.push_back(static_cast<double>(v));
    }
  });
  return out;
}

/// x as an element of this type holds it.
inline double rounded(double x, DType dtype) {
  const auto f = static_cast<float>(x);
  if (dtype == DType::bfloat16) return static_cast<float>(ejk::bfloat16(f));
  if (dtype == DType::float16) return static_cast<float>(ejk::float16(f));
  return dtype == DType::float32 ? f : x;
}

inline Array array_of(DType dtype, Shape shape, const std::vector<double>& values) {
  Array out(dtype, std::move(shape));
  REQUIRE(out.size() == static_cast<std::int64_t>(values.size()));
  ejk::dispatch(dtype, [&]<class T>(std::type_identity<T>) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if constexpr (ejk::is_small_float<T>)
        out.elements<T>()[i] = T(static_cast<float>(values[i]));
      else
        out.elements<T>()[i] = static_cast<T>(values[i]);
    }
  });
  return out;
}

/// f of each element.
template <class F>
Array mapped(const Array& array, F&& f) {
  std::vector<double> values = doubles(array.view());
  std::transform(values.begin(), values.end(), values.begin(), f);
  return array_of(array.dtype(), array.shape(), values);
}

inline Array filled(DType dtype, Shape shape, double value) {
  const auto n = static_cast<std::size_t>(ejk::element_count(shape));
  return array_of(dtype, std::move(shape), std::vector<double>(n, value));
}

inline Array random(DType dtype, Shape shape, std::mt19937_64& engine) {
  std::normal_distribution<double> normal;
  std::vector<double> values(static_cast<std::size_t>(ejk::element_count(shape)));
  for (double& v : values) v = normal(engine);
  return array_of(dtype, std::move(shape), values);
}

inline std::shared_ptr<const ejk::ArraySource> source(const Sizes& sizes, const char* name = "sizes.npy") {
  return ejk::make_source(Array::from<std::int64_t>({std::ssize(sizes)}, sizes), name);
}

/// The same values with other strides: `how` 0 C order, 1 Fortran order, 2 every other element of every axis,
/// 3 all axes backwards.
class Laid {
 public:
  Laid(const Array& array, int how) {
    const Shape& shape = array.shape();
    Shape places = shape;
    if (how == 2)
      for (auto& length : places) length = 2 * length + 1;
    if (how == 1) std::reverse(places.begin(), places.end());
    memory_ = filled(array.dtype(), places, std::numeric_limits<double>::quiet_NaN());
    view_ = memory_.view();
    view_.shape = shape;
    if (how == 1) std::reverse(view_.strides.begin(), view_.strides.end());
    for (std::size_t d = 0; d < shape.size(); ++d) {
      if (how == 2) view_.data += view_.strides[d], view_.strides[d] *= 2;
      if (how == 3 && shape[d] > 0)
        view_.data += (shape[d] - 1) * view_.strides[d], view_.strides[d] = -view_.strides[d];
    }
    const std::int64_t item = ejk::size_of(array.dtype());
    Shape at(shape.size());
    for (std::int64_t i = 0; i < array.size(); ++i) {
      std::int64_t rest = i, place = view_.data - memory_.data();
      for (std::size_t d = shape.size(); d-- > 0; rest /= shape[d])
        place += rest % shape[d] * view_.strides[d];
      std::copy_n(array.data() + i * item, item, memory_.data() + place);
    }
  }
  const ArrayView& view() const { return view_; }

 private:
  Array memory_;
  ArrayView view_;
};

inline bool same_bytes(const Array& a, const Array& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         std::equal(a.data(), a.data() + a.bytes(), b.data());
}

}  // namespace plain
