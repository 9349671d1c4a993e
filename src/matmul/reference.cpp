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
#include "ejk/groups.hpp"

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

struct Result {
  std::vector<GroupProduct> products;
  Shape shape;
  DType dtype;
  const std::optional<ArrayView>& existing;
  Existing use;
  const std::function<void(std::int64_t, std::int64_t)>& progress;
};

void evaluate(const Result& result, void* out) {
  const std::int64_t columns = result.shape.back(), item = size_of(result.dtype);
  auto* const to = static_cast<std::byte*>(out);
  const bool add = result.existing && result.use == Existing::add;
  if (!result.existing)
    std::memset(to, 0, static_cast<std::size_t>(byte_count(result.shape, result.dtype)));
  else if (result.existing->data != to)
    copy_elements(*result.existing, to);

  struct Task {
    const GroupProduct* product;
    std::int64_t first_row, rows;
  };
  std::vector<Task> tasks;
  for (const GroupProduct& product : result.products)
    for (std::int64_t row = 0; row < product.a.shape[0]; row += kRows)
      // Nothing to add leaves what there is, to the bit.
      if (!add || product.a.shape[1] > 0)
        tasks.push_back({&product, row, std::min(kRows, product.a.shape[0] - row)});
  const std::int64_t tiles = core::ceil_div(columns, kColumns), all = std::ssize(tasks) * tiles;
  std::int64_t done = 0;
  std::mutex one_at_a_time;
  double work = 0;
  for (const GroupProduct& product : result.products)
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
        load(result.dtype, row, item, count, there.data());
        for (std::int64_t j = 0; j < count; ++j) sum[j] += there[static_cast<std::size_t>(j)];
      }
      store(sum, count, result.dtype, row);
    }
    if (result.progress) {
      const std::scoped_lock lock(one_at_a_time);
      result.progress(++done, all);
    }
  });
}

}  // namespace

std::vector<GroupProduct> products_of(const ArrayView& lhs, const ArrayView& rhs,
                                      std::span<const std::int64_t> offsets,
                                      const GroupedMatmulOptions& options) {
  std::vector<GroupProduct> products;
  for (std::int64_t r = 0; r < rhs.shape[0]; ++r) {
    const auto group = static_cast<std::size_t>(options.group_offset + r);
    const std::int64_t begin = offsets[group], end = offsets[group + 1];
    if (begin < end)
      products.push_back(
          {rows_from(lhs, begin, end), options.transpose_rhs ? transposed(rhs[r]) : rhs[r], begin});
  }
  return products;
}

std::vector<GroupProduct> products_of(const ArrayView& lhs, const ArrayView& rhs,
                                      std::span<const std::int64_t> offsets,
                                      const TransposedGroupedMatmulOptions& options) {
  const std::int64_t k = lhs.shape[0];
  const std::int64_t groups =
      options.num_actual_groups.value_or(std::ssize(offsets) - 1 - options.group_offset);
  std::vector<GroupProduct> products;
  for (std::int64_t a = 0; a < groups; ++a) {
    const auto group = static_cast<std::size_t>(options.group_offset + a);
    const std::int64_t begin = offsets[group], end = offsets[group + 1];
    products.push_back({columns_from(lhs, begin, end), rows_from(rhs, begin, end), a * k});
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

void reference_grouped_matmul(const ArrayView& lhs, const ArrayView& rhs, const ArraySource& group_sizes,
                              const GroupedMatmulOptions& options, void* out) {
  const Shape shape = grouped_matmul_shape(lhs, rhs, group_sizes, options);
  const auto offsets = group_offsets(group_sizes, lhs.shape[0], options.strict);
  evaluate({products_of(lhs, rhs, offsets, options), shape, options.dtype, options.existing_out,
            options.existing, options.progress},
           out);
}

void reference_transposed_grouped_matmul(const ArrayView& lhs, const ArrayView& rhs,
                                         const ArraySource& group_sizes,
                                         const TransposedGroupedMatmulOptions& options, void* out) {
  const Shape shape = transposed_grouped_matmul_shape(lhs, rhs, group_sizes, options);
  const auto offsets = group_offsets(group_sizes, lhs.shape[1], options.strict);
  evaluate({products_of(lhs, rhs, offsets, options), shape, options.dtype, options.existing_out,
            Existing::add, options.progress},
           out);
}

}  // namespace ejk::matmul
