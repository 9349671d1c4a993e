// tests: tests/matmul/test_reference.cpp
#include "matmul/reference.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <mutex>
#include <numeric>

#include "core/checked.hpp"
#include "core/parallel.hpp"

namespace ejk::matmul {

namespace {

// Rows and columns of a task: the sums of one stay in a cache, and converting b is shared by its rows.
constexpr std::int64_t kRows = 32, kColumns = 256;

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

void reference_product(const Problem& problem, const Operands& operands, std::byte* to,
                       const WorkProgress& progress) {
  const auto& existing = operands.existing_out;
  const DType dtype = problem.out.dtype;
  const std::int64_t columns = problem.n, item = size_of(dtype);
  const bool add = existing && problem.existing == Existing::add;
  if (!existing)
    std::memset(to, 0, static_cast<std::size_t>(problem.out.bytes()));
  else if (existing->data != to)
    copy_elements(*existing, to);

  const std::vector<GroupProduct> products = products_of(problem, operands.lhs, operands.rhs);
  struct Task {
    const GroupProduct* product;
    std::int64_t first_row, rows;
  };
  std::vector<Task> tasks;
  for (const GroupProduct& product : products)
    for (std::int64_t row = 0; row < product.a.shape[0]; row += kRows)
      // Nothing to add leaves what there is, to the bit.
      if (!add || product.a.shape[1] > 0)
        tasks.push_back({&product, row, std::min(kRows, product.a.shape[0] - row)});
  const std::int64_t tiles = core::ceil_div(columns, kColumns), all = std::ssize(tasks) * tiles;
  std::int64_t done = 0;
  std::mutex one_at_a_time;
  double work = 0;
  for (const GroupProduct& product : products)
    work += static_cast<double>(product.a.shape[0]) * static_cast<double>((product.a.shape[1] + 1) * columns);
  core::parallel_for(all, work, [&](std::int64_t i) {
    const Task& task = tasks[static_cast<std::size_t>(i / tiles)];
    const std::int64_t first = i % tiles * kColumns, count = std::min(kColumns, columns - first);
    std::vector<std::int64_t> rows(static_cast<std::size_t>(task.rows));
    std::iota(rows.begin(), rows.end(), task.first_row);
    std::vector<double> sums(static_cast<std::size_t>(task.rows * count)), there;
    multiply_rows(*task.product, rows, first, count, sums.data());
    for (std::int64_t r = 0; r < task.rows; ++r) {
      std::byte* const row = to + ((task.product->row + task.first_row + r) * columns + first) * item;
      double* const sum = sums.data() + r * count;
      if (add) {
        there.resize(static_cast<std::size_t>(count));
        load(dtype, row, item, count, there.data());
        for (std::int64_t j = 0; j < count; ++j) sum[j] += there[static_cast<std::size_t>(j)];
      }
      store(sum, count, dtype, row);
    }
    if (progress) {
      const std::scoped_lock lock(one_at_a_time);
      progress(++done, all);
    }
  });
}

std::vector<GroupProduct> products_of(const Problem& problem, const ArrayView& lhs, const ArrayView& rhs) {
  std::vector<GroupProduct> products;
  for (std::int64_t g = 0; g < problem.groups; ++g) {
    const std::int64_t begin = problem.begin(g), end = problem.begin(g + 1);
    if (problem.cut == Problem::Cut::contraction)
      products.push_back({columns_from(lhs, begin, end), rows_from(rhs, begin, end), g * problem.k});
    else if (begin < end)
      products.push_back(
          {rows_from(lhs, begin, end), problem.transpose_rhs ? transposed(rhs[g]) : rhs[g], begin});
  }
  return products;
}

Precision precision_for(const ArrayView& a, const ArrayView& b) {
  return a.dtype == DType::float64 || b.dtype == DType::float64 ? Precision::extended : Precision::float64;
}

void store(const double* from, std::int64_t count, DType dtype, std::byte* out) {
  dispatch(dtype, [&]<class T>(std::type_identity<T>) {
    for (std::int64_t i = 0; i < count; ++i) {
      T value;
      if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>)
        value = T(core::rounded_to_odd(from[i]));
      else
        value = static_cast<T>(from[i]);
      std::memcpy(out + i * static_cast<std::int64_t>(sizeof(T)), &value, sizeof value);
    }
  });
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
