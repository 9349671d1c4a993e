// Dot products of few rows with many on every instruction set: what plain sums give, whatever rows and keys they
// are computed with, and no element beyond those that are said to be written.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/kernels.hpp"
#include "support/arrays.hpp"
#include "support/instruction_sets.hpp"

using namespace ejk;
using namespace ejk::kernels;

namespace {

template <class Real>
Dots<Real>* dots_of(const Kernels& set) {
  if constexpr (sizeof(Real) == 8)
    return set.products.dots_f64;
  else
    return set.products.dots_f32;
}

template <class Real>
void check(const Kernels& set, DType dtype, std::int64_t rows, std::int64_t keys, std::int64_t k,
           std::mt19937_64& random) {
  CAPTURE(rows);
  CAPTURE(keys);
  CAPTURE(k);
  CAPTURE(std::string(name_of(dtype)));
  const std::int64_t a_stride = (k + 15) / 16 * 16 + 16, out_stride = (keys + 15) / 16 * 16 + 3;
  // Rows of b lie apart, and behind them is what must not be read as theirs.
  const Array a = plain::random(DType::float64, {rows, k}, random),
              b = plain::random(dtype, {keys, k + 3}, random);
  const std::vector<double> a_values = plain::doubles(a.view()), b_values = plain::doubles(b.view());
  std::vector<Real> left(static_cast<std::size_t>(rows * a_stride + 1)),
      out(static_cast<std::size_t>(rows * out_stride), Real(77));
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t d = 0; d < k; ++d)
      left[static_cast<std::size_t>(r * a_stride + d)] =
          static_cast<Real>(a_values[static_cast<std::size_t>(r * k + d)]);
  const StridedMatrix matrix{b.data(), dtype, (k + 3) * size_of(dtype), size_of(dtype)};
  const Ahead next{b.data(), keys, k * size_of(dtype), matrix.row_stride};
  dots_of<Real>(set)(left.data(), a_stride, rows, matrix, keys, k, out.data(), out_stride, next);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t j = 0; j < keys; ++j) {
      double sum = 0, most = 0;
      for (std::int64_t d = 0; d < k; ++d) {
        const double term = static_cast<double>(left[static_cast<std::size_t>(r * a_stride + d)]) *
                            b_values[static_cast<std::size_t>(j * (k + 3) + d)];
        sum += term, most += std::abs(term);
      }
      const Real got = out[static_cast<std::size_t>(r * out_stride + j)];
      CHECK(std::abs(got - sum) <= 8 * static_cast<double>(std::numeric_limits<Real>::epsilon()) * most);
      // Alone it is the same.
      const StridedMatrix key{static_cast<const std::byte*>(matrix.data) + j * matrix.row_stride, dtype,
                              matrix.row_stride, matrix.column_stride};
      Real alone[kDotsKeys];
      dots_of<Real>(set)(left.data() + r * a_stride, a_stride, 1, key, 1, k, alone, kDotsKeys, {});
      CHECK(alone[0] == got);
    }
    for (std::int64_t j = (keys + 15) / 16 * 16; j < out_stride; ++j)
      CHECK(out[static_cast<std::size_t>(r * out_stride + j)] == 77);
  }
}

}  // namespace

TEST_CASE("dot products where rows lie, for all instruction sets") {
  for (const Kernels* set : ::test::instruction_sets()) {
    CAPTURE(std::string(set->name));
    std::mt19937_64 random(41);
    for (const DType dtype : plain::kFloats)
      for (const std::int64_t rows : {1, 2, 7})
        for (const std::int64_t keys : {1, 16, 37})
          for (const std::int64_t k : {0, 1, 13, 64}) {
            if (dtype != DType::float64) check<float>(*set, dtype, rows, keys, k, random);
            check<double>(*set, dtype, rows, keys, k, random);
          }
  }
}
