// Tasks of a grouped product: every product is cut into equal blocks, sorted by size; the smallest are cut
// once more. Cost: sorting at most 2¹⁸ tasks more than products.
// tests: tests/matmul/test_tasks.cpp
#include "matmul/tasks.hpp"

#include <algorithm>
#include <limits>

#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "core/progress.hpp"

namespace ejk::matmul {

namespace {

// A is packed once for every block of columns, B for every block of rows: 512 rows make packing B a hundredth
// of the work. Blocks become smaller only to give each of several threads several tasks; with one thread in columns
// alone, so that its B stays in the second-level cache.
constexpr std::int64_t kRows = 512, kColumns = 1024, kLeastRows = 128, kLeastColumns = 256,
                       kTasksPerThread = 4;

// The last tasks of several threads are cut finer, so that they end together. A part has 64 rows or more.
constexpr double kLastShare = 0.15;
constexpr std::int64_t kLastRows = 64;

// The most tasks of all products: a tiling of single elements must not take more memory than the arrays.
constexpr std::int64_t kMostTasks = std::int64_t{1} << 18;

// Multiply-adds of a thread in a nanosecond, for the number of threads. A core of tests/bench/README.md does
// at most 29 (float64) to 117 (bfloat16).
constexpr double kRate = 20;

double work_of(const Product& p) {
  return static_cast<double>(p.rows) * static_cast<double>(p.columns) * static_cast<double>(p.k + 1);
}

Product part_of(const Product& product, std::int64_t row, std::int64_t rows, std::int64_t column,
                std::int64_t columns) {
  const std::int64_t across = column * size_of(product.dtype);
  Product part = product;
  part.rows = rows;
  part.columns = columns;
  part.a.data = static_cast<const std::byte*>(product.a.data) + row * product.a.row_stride;
  if (product.b_boxes.used)
    part.b_boxes.column += column;
  else
    part.b.data = static_cast<const std::byte*>(product.b.data) + column * product.b.column_stride;
  part.out = static_cast<std::byte*>(product.out) + row * product.out_stride + across;
  if (product.added != nullptr)
    part.added = static_cast<const std::byte*>(product.added) + row * product.added_stride + across;
  return part;
}

// The last tasks, in quarters.
void split_last(std::vector<Product>& tasks, double work) {
  std::vector<Product> last;
  for (double taken = 0; !tasks.empty() && taken < work * kLastShare; tasks.pop_back()) {
    taken += work_of(tasks.back());
    last.push_back(tasks.back());
  }
  std::reverse(last.begin(), last.end());
  for (const Product& p : last) {
    const std::int64_t parts = std::clamp<std::int64_t>(p.rows / kLastRows, 1, 4);
    for (std::int64_t i = 0; i < parts; ++i) {
      const std::int64_t row = i * p.rows / parts;
      tasks.push_back(part_of(p, row, (i + 1) * p.rows / parts - row, 0, p.columns));
    }
  }
}

}  // namespace

void Tasks::add(const Product& product, std::int64_t rows_in_all, std::int64_t columns_in_all) {
  products_.push_back(product);
  products_.back().direct_k = direct_k(arithmetic_, rows_in_all);
  products_.back().few_columns = has_few_columns(columns_in_all);
}

Tiling Tasks::block_for(int threads) const {
  if (tiling_) return *tiling_;
  const auto tasks = [&](std::int64_t rows, std::int64_t columns) {
    std::int64_t count = 0;
    for (const Product& p : products_)
      count += core::ceil_div(p.rows, rows) * core::ceil_div(p.columns, columns);
    return count;
  };
  Tiling block{kRows, 0, kColumns};
  const std::int64_t wanted = kTasksPerThread * threads;
  while (block.tn > kLeastColumns && tasks(block.tm, block.tn) < wanted) block.tn /= 2;
  while (threads > 1 && block.tm > kLeastRows && tasks(block.tm, block.tn) < wanted) block.tm /= 2;
  return block;
}

Tasks::Parts Tasks::parts_of(const Product& product, const Tiling& block) const {
  const std::int64_t most_parts = std::max<std::int64_t>(
      1, kMostTasks / std::max<std::int64_t>(1, static_cast<std::int64_t>(products_.size())));
  const std::int64_t columns = core::ceil_div(product.columns, std::max(block.tn, arithmetic_.gemm->nr));
  return {std::min(core::ceil_div(product.rows, block.tm), std::max<std::int64_t>(1, most_parts / columns)),
          columns};
}

// Even parts: a last one of a few rows would have B packed for them alone. Columns in whole tiles.
std::vector<Product> Tasks::cut(const Tiling& block, int threads) const {
  const std::int64_t nr = arithmetic_.gemm->nr;
  std::vector<Product> tasks;
  double work = 0;
  for (const Product& p : products_) {
    if (p.rows == 0 || p.columns == 0) continue;
    work += work_of(p);
    const auto [row_parts, column_parts] = parts_of(p, block);
    const std::int64_t columns = core::round_up(core::ceil_div(p.columns, column_parts), nr);
    for (std::int64_t i = 0; i < row_parts; ++i) {
      const std::int64_t row = i * p.rows / row_parts, rows = (i + 1) * p.rows / row_parts - row;
      for (std::int64_t column = 0; column < p.columns; column += columns)
        tasks.push_back(part_of(p, row, rows, column, std::min(columns, p.columns - column)));
    }
  }
  std::stable_sort(tasks.begin(), tasks.end(),
                   [](const Product& a, const Product& b) { return work_of(a) > work_of(b); });
  if (threads > 1) split_last(tasks, work);
  return tasks;
}

double Tasks::work() const {
  double work = 0;
  for (const Product& p : products_) work += work_of(p);
  return work;
}

int Tasks::threads() const {
  return core::threads_for(std::numeric_limits<std::int64_t>::max(), work() / kRate);
}

std::int64_t Tasks::work_bytes() const {
  const Tiling block = block_for(threads());
  std::int64_t tasks = 0, most = 0;
  for (const Product& p : products_) {
    if (p.rows == 0 || p.columns == 0) continue;
    const Parts parts = parts_of(p, block);
    Product part = p;
    part.rows = core::ceil_div(p.rows, parts.rows);
    const std::int64_t whole = core::round_up(core::ceil_div(p.columns, parts.columns), arithmetic_.gemm->nr);
    part.columns = std::min(whole, p.columns);
    most = std::max(most, workspace_bytes(arithmetic_, part, block.tk));
    tasks += parts.rows * parts.columns;
  }
  // Sorting takes the list of tasks twice.
  constexpr auto kProduct = static_cast<std::int64_t>(sizeof(Product));
  return std::min<std::int64_t>(threads(), tasks) * most +
         kProduct * (static_cast<std::int64_t>(products_.size()) + 2 * tasks);
}

void Tasks::run(const std::function<void(std::int64_t, std::int64_t)>& progress) const {
  const int threads = this->threads();
  const Tiling block = block_for(threads);
  std::vector<Product> tasks = cut(block, threads);
  const auto count = static_cast<std::int64_t>(tasks.size());
  // Threads mostly take turns.
  const auto turn = static_cast<std::size_t>(threads);
  for (std::size_t i = 0; i + turn < tasks.size(); ++i) {
    const Product& next = tasks[i + turn];
    if (next.direct_k > 0 && !next.b_boxes.used && next.b.column_stride == size_of(next.b.dtype))
      tasks[i].next = {next.b.data, next.k, next.columns * next.b.column_stride, next.b.row_stride};
  }
  core::Progress done(progress, count);
  const auto compute = [&](std::int64_t i) {
    const Product& task = tasks[static_cast<std::size_t>(i)];
    multiply(arithmetic_, task, block.tk, core::Workspace::of_this_thread());
    if (task.stream) kernels::active().stream_fence();
    done.add(1);
  };
  core::parallel_for(count, work() / kRate, compute);
}

}  // namespace ejk::matmul
