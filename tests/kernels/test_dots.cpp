// Dot products of few rows with many, on every instruction set: plain sums, independent of the rows and keys
// computed with them; nothing else is written.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "kernels/kernels.hpp"
#include "support/arrays.hpp"
#include "support/instruction_sets.hpp"

using namespace ejk;
using namespace ejk::kernels;

namespace {

enum class Form { rows, panels };

template <class Real>
Dots<Real>& dots_of(const Kernels& set, Form form) {
  if constexpr (sizeof(Real) == 8)
    return form == Form::rows ? *set.products.dots_f64 : *set.products.panel_dots_f64;
  else
    return form == Form::rows ? *set.products.dots_f32 : *set.products.panel_dots_f32;
}

// The left factor in its form. What is behind the last row of a panel must not show in any result.
template <class Real>
class Left {
 public:
  Left(const Array& rows, Form form)
      : values_(plain::doubles(rows.view())),
        k_(rows.shape()[1]),
        form_(form),
        stride_((k_ + 15) / 16 * 16 + 16) {
    const std::int64_t panel = kPanelRows<Real>, held = (rows.shape()[0] + panel - 1) / panel * panel;
    elements_.assign(static_cast<std::size_t>(held * stride_ + 1), Real{0});
    for (std::int64_t r = 0; r < held; ++r)
      for (std::int64_t d = 0; d < stride_; ++d)
        if (r < rows.shape()[0] && d < k_)
          elements_[at(r, d)] = static_cast<Real>(values_[static_cast<std::size_t>(r * k_ + d)]);
        else if (r >= rows.shape()[0])
          elements_[at(r, d)] = std::numeric_limits<Real>::quiet_NaN();
  }

  const Real* data() const { return elements_.data(); }
  std::int64_t stride() const { return stride_; }
  double operator()(std::int64_t r, std::int64_t d) const { return elements_[at(r, d)]; }

 private:
  std::size_t at(std::int64_t r, std::int64_t d) const {
    const std::int64_t panel = form_ == Form::rows ? 1 : kPanelRows<Real>;
    return static_cast<std::size_t>((r / panel * stride_ + d) * panel + r % panel);
  }

  std::vector<double> values_;
  std::int64_t k_;
  Form form_;
  std::int64_t stride_;
  std::vector<Real> elements_;
};

template <class Real>
void check(const Kernels& set, Form form, DType dtype, std::int64_t rows, std::int64_t keys, std::int64_t k,
           std::mt19937_64& random) {
  CAPTURE(form == Form::panels);
  CAPTURE(rows);
  CAPTURE(keys);
  CAPTURE(k);
  CAPTURE(std::string(name_of(dtype)));
  const std::int64_t out_stride = (keys + 15) / 16 * 16 + 3;
  // Rows of b lie apart, and behind them is what must not be read as theirs.
  const Array a = plain::random(DType::float64, {rows, k}, random),
              b = plain::random(dtype, {keys, k + 3}, random);
  const std::vector<double> b_values = plain::doubles(b.view());
  const Left<Real> left(a, form);
  std::vector<Real> out(static_cast<std::size_t>(rows * out_stride), Real(77));
  const StridedMatrix matrix{b.data(), dtype, (k + 3) * size_of(dtype), size_of(dtype)};
  const Ahead next{b.data(), keys, k * size_of(dtype), matrix.row_stride};
  Dots<Real>& dots = dots_of<Real>(set, form);
  dots(left.data(), left.stride(), rows, matrix, keys, k, out.data(), out_stride, next);
  if (form == Form::rows) {
    // The same where rows of b lie side by side, and behind each element of them what is none of theirs.
    const std::int64_t size = size_of(dtype), stride = (keys + 5) * size;
    const Array around = plain::random(dtype, {k + 1, keys + 5}, random);
    std::vector<std::byte> turned(around.data(), around.data() + around.bytes());
    for (std::int64_t j = 0; j < keys; ++j)
      for (std::int64_t d = 0; d < k; ++d)
        std::memcpy(turned.data() + d * stride + j * size, b.data() + (j * (k + 3) + d) * size,
                    static_cast<std::size_t>(size));
    std::vector<Real> same(out.size(), Real(77));
    dots(left.data(), left.stride(), rows, {turned.data(), dtype, size, stride}, keys, k, same.data(),
         out_stride, {turned.data(), k, keys * size, stride});
    bool right = true;
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t j = 0; j < out_stride; ++j)
        if (j < keys || j >= (keys + 15) / 16 * 16) {
          const auto at = static_cast<std::size_t>(r * out_stride + j);
          using Bits = std::conditional_t<sizeof(Real) == 4, std::uint32_t, std::uint64_t>;
          right = right && std::bit_cast<Bits>(same[at]) == std::bit_cast<Bits>(out[at]);
        }
    CHECK_MESSAGE(right, "rows side by side");
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    Array row(DType::float64, {1, k});
    for (std::int64_t d = 0; d < k; ++d) row.elements<double>()[static_cast<std::size_t>(d)] = left(r, d);
    const Left<Real> alone(row, form);
    for (std::int64_t j = 0; j < keys; ++j) {
      double sum = 0, most = 0;
      for (std::int64_t d = 0; d < k; ++d) {
        const double term = left(r, d) * b_values[static_cast<std::size_t>(j * (k + 3) + d)];
        sum += term, most += std::abs(term);
      }
      const Real got = out[static_cast<std::size_t>(r * out_stride + j)];
      CHECK(std::abs(got - sum) <= 8 * static_cast<double>(std::numeric_limits<Real>::epsilon()) * most);
      // Alone it is the same.
      const StridedMatrix key{static_cast<const std::byte*>(matrix.data) + j * matrix.row_stride, dtype,
                              matrix.row_stride, matrix.column_stride};
      Real product[kDotsKeys];
      dots(alone.data(), alone.stride(), 1, key, 1, k, product, kDotsKeys, {});
      CHECK(product[0] == got);
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
      for (const Form form : {Form::rows, Form::panels})
        for (const std::int64_t rows : {1, 2, 7, 18})
          for (const std::int64_t keys : {1, 16, 37, 70, 300})
            for (const std::int64_t k : {0, 1, 13, 64}) {
              if ((rows > 7 && keys == 37) || (rows > 2 && keys == 300)) continue;
              if (dtype != DType::float64) check<float>(*set, form, dtype, rows, keys, k, random);
              check<double>(*set, form, dtype, rows, keys, k, random);
            }
  }
}

TEST_CASE("rows side by side are turned, whatever their number and length") {
  std::mt19937_64 random(31);
  for (const Kernels* set : test::instruction_sets()) {
    CAPTURE(set->name);
    for (const DType dtype : {DType::float16, DType::float32, DType::float64})
      for (const std::int64_t rows : {1, 3, 8, 63, 64, 65, 130})
        for (const std::int64_t k : {1, 15, 16, 33, 64, 80}) {
          const Array in = plain::random(dtype, {k, rows}, random);
          const std::int64_t size = size_of(dtype), stride = (k + 15) / 16 * 16 * 8;
          std::vector<std::byte> out(static_cast<std::size_t>(rows * stride), std::byte{0xFF});
          set->products.turn_rows({in.data(), dtype, size, rows * size}, rows, k, out.data(), stride);
          bool right = true;
          for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t d = 0; d < k; ++d)
              right =
                  right && std::memcmp(out.data() + r * stride + d * size, in.data() + (d * rows + r) * size,
                                       static_cast<std::size_t>(size)) == 0;
          CHECK_MESSAGE(right, name_of(dtype), ", rows ", rows, ", k ", k);
        }
  }
}
