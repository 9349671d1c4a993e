// Reference sums. Elements are converted in short runs; sums of the chosen rows and columns stay in a cache.
// tests: tests/verdict/matmul/test_reference.cpp
#include "verdict/matmul/reference.hpp"

#include <algorithm>
#include <cmath>

namespace ejk::matmul {

ArrayView rows_from(const ArrayView& matrix, std::int64_t begin, std::int64_t end) {
  return {
      matrix.data + begin * matrix.strides[0], matrix.dtype, {end - begin, matrix.shape[1]}, matrix.strides};
}

ArrayView columns_from(const ArrayView& matrix, std::int64_t begin, std::int64_t end) {
  return {
      matrix.data + begin * matrix.strides[1], matrix.dtype, {matrix.shape[0], end - begin}, matrix.strides};
}

ArrayView transposed(const ArrayView& matrix) {
  return {
      matrix.data, matrix.dtype, {matrix.shape[1], matrix.shape[0]}, {matrix.strides[1], matrix.strides[0]}};
}

namespace {

template <class Sum>
void multiply(const GroupProduct& product, std::span<const std::int64_t> rows, std::int64_t first,
              std::int64_t columns, Sum* sums, double* magnitudes, double subnormal_weight) {
  constexpr std::int64_t kRun = 64;  // of the contraction: a is converted by that much
  constexpr double kNormal = 0x1p-126;
  const auto size_of_factor = [=](double value) {
    const double size = std::abs(value);
    return size < kNormal ? size * subnormal_weight : size;
  };
  const ArrayView &a = product.a, &b = product.b;
  const std::int64_t depth = a.shape[1], count = std::ssize(rows);
  std::vector<double> a_values(static_cast<std::size_t>(count * kRun)),
      b_values(static_cast<std::size_t>(columns)), b_sizes(static_cast<std::size_t>(columns));
  double *const av = a_values.data(), *const bv = b_values.data(), *const bs = b_sizes.data();
  for (std::int64_t begin = 0; begin < depth; begin += kRun) {
    const std::int64_t run = std::min(kRun, depth - begin);
    for (std::int64_t r = 0; r < count; ++r)
      load(a.dtype, a.data + rows[static_cast<std::size_t>(r)] * a.strides[0] + begin * a.strides[1],
           a.strides[1], run, av + r * kRun);
    for (std::int64_t p = 0; p < run; ++p) {
      load(b.dtype, b.data + (begin + p) * b.strides[0] + first * b.strides[1], b.strides[1], columns, bv);
      if (magnitudes) std::transform(bv, bv + columns, bs, size_of_factor);
      for (std::int64_t r = 0; r < count; ++r) {
        const double factor = av[r * kRun + p];
        Sum* const sum = sums + r * columns;
        for (std::int64_t j = 0; j < columns; ++j) sum[j] += static_cast<Sum>(factor) * bv[j];
        if (!magnitudes) continue;
        const double size = size_of_factor(factor);
        double* const magnitude = magnitudes + r * columns;
        for (std::int64_t j = 0; j < columns; ++j) magnitude[j] += size * bs[j];
      }
    }
  }
}

}  // namespace

std::vector<GroupProduct> products_of(const Problem& problem, const ArrayView& lhs, const ArrayView& rhs) {
  std::vector<GroupProduct> products;
  for (std::int64_t g = 0; g < problem.groups; ++g) {
    const auto [begin, end] = problem.range(g);
    if (problem.cut == Problem::Cut::contraction)
      products.push_back({columns_from(lhs, begin, end), rows_from(rhs, begin, end), g * problem.k});
    else if (begin < end)
      products.push_back(
          {rows_from(lhs, begin, end), problem.transpose_rhs ? transposed(rhs[g]) : rhs[g], begin});
  }
  return products;
}

double multiply_adds(std::span<const GroupProduct> products) {
  double all = 0;
  for (const GroupProduct& product : products)
    all += static_cast<double>(product.a.shape[0]) * static_cast<double>(product.a.shape[1]) *
           static_cast<double>(product.b.shape[1]);
  return all;
}

Precision precision_for(const ArrayView& a, const ArrayView& b) {
  return a.dtype == DType::float64 || b.dtype == DType::float64 ? Precision::extended : Precision::float64;
}

void multiply_rows(const GroupProduct& product, std::span<const std::int64_t> rows, std::int64_t first,
                   std::int64_t columns, double* sums, double* magnitudes, double subnormal_weight) {
  const std::int64_t size = std::ssize(rows) * columns;
  if (magnitudes) std::fill_n(magnitudes, size, 0.0);
  if (precision_for(product.a, product.b) == Precision::float64) {
    std::fill_n(sums, size, 0.0);
    multiply(product, rows, first, columns, sums, magnitudes, subnormal_weight);
  } else {
    std::vector<long double> wide(static_cast<std::size_t>(size));
    multiply(product, rows, first, columns, wide.data(), magnitudes, subnormal_weight);
    std::transform(wide.begin(), wide.end(), sums, [](long double sum) { return static_cast<double>(sum); });
  }
}

}  // namespace ejk::matmul
