// tests: tests/matmul/test_tasks.cpp
#include "matmul/tasks.hpp"

#include <algorithm>
#include <mutex>

#include "core/checked.hpp"
#include "core/parallel.hpp"

namespace ejk::matmul {

namespace {

// A block of B of kc × kColumns float32 takes half of a second-level cache of 1 MiB, and kRows rows use it
// often enough that packing it is a hundredth of the work.
constexpr std::int64_t kRows = 512, kColumns = 512;

// The last tasks are cut finer, so that no thread waits long for another's last one.
constexpr double kLastShare = 0.15;
constexpr std::int64_t kLeastRows = 64;

// Fewer multiplications than this are done before other threads have woken up.
constexpr std::int64_t kWorthThreads = std::int64_t{1} << 21;

double work_of(const Product& p) {
  return static_cast<double>(p.rows) * static_cast<double>(p.columns) * static_cast<double>(p.k + 1);
}

// Rows [begin, end) of a product.
Product rows_of(const Product& product, std::int64_t begin, std::int64_t end) {
  Product part = product;
  part.rows = end - begin;
  part.a.data = static_cast<const std::byte*>(product.a.data) + begin * product.a.row_stride;
  part.out = static_cast<std::byte*>(product.out) + begin * product.out_stride;
  if (product.added != nullptr)
    part.added = static_cast<const std::byte*>(product.added) + begin * product.added_stride;
  return part;
}

}  // namespace

Tasks::Tasks(const Arithmetic& arithmetic, const std::optional<Tiling>& tiling)
    : arithmetic_(arithmetic), block_(tiling.value_or(Tiling{kRows, 0, kColumns})) {}

void Tasks::add(const Product& product) {
  // Even parts: a last one of a few rows would have packed B for them alone. Columns in whole tiles.
  const std::int64_t nr = arithmetic_.gemm->nr;
  const std::int64_t row_parts = core::ceil_div(product.rows, block_.tm);
  const std::int64_t column_parts = core::ceil_div(product.columns, block_.tn);
  const std::int64_t columns =
      core::ceil_div(core::ceil_div(product.columns, std::max<std::int64_t>(column_parts, 1)), nr) * nr;
  for (std::int64_t i = 0; i < row_parts; ++i) {
    const std::int64_t row = i * product.rows / row_parts;
    for (std::int64_t column = 0; column < product.columns; column += columns) {
      Product task = rows_of(product, row, (i + 1) * product.rows / row_parts);
      task.columns = std::min(columns, product.columns - column);
      task.b.data = static_cast<const std::byte*>(product.b.data) + column * product.b.column_stride;
      const std::int64_t across = column * size_of(product.dtype);
      task.out = static_cast<std::byte*>(task.out) + across;
      if (product.added != nullptr) task.added = static_cast<const std::byte*>(task.added) + across;
      products_.push_back(task);
    }
  }
}

void Tasks::run(const std::function<void(std::int64_t, std::int64_t)>& progress) {
  std::stable_sort(products_.begin(), products_.end(),
                   [](const Product& a, const Product& b) { return work_of(a) > work_of(b); });
  double work = 0;
  for (const Product& p : products_) work += work_of(p);
  split_last(work);
  const auto count = static_cast<std::int64_t>(products_.size());
  const int threads = work < kWorthThreads ? 1 : omp_get_max_threads();
  std::mutex one_at_a_time;
  std::int64_t done = 0;
  const auto compute = [&](std::int64_t i) {
    multiply(arithmetic_, products_[static_cast<std::size_t>(i)], block_.tk, Workspace::of_this_thread());
    if (!progress) return;
    const std::lock_guard lock(one_at_a_time);
    progress(++done, count);
  };
  if (threads == 1)
    for (std::int64_t i = 0; i < count; ++i) compute(i);
  else
    core::parallel_for(count, compute);
}

void Tasks::split_last(double work) {
  std::vector<Product> last;
  for (double taken = 0; !products_.empty() && taken < work * kLastShare; products_.pop_back()) {
    taken += work_of(products_.back());
    last.push_back(products_.back());
  }
  for (auto p = last.rbegin(); p != last.rend(); ++p) {
    const std::int64_t parts = std::clamp<std::int64_t>(p->rows / kLeastRows, 1, 4);
    for (std::int64_t i = 0; i < parts; ++i)
      products_.push_back(rows_of(*p, i * p->rows / parts, (i + 1) * p->rows / parts));
  }
}

std::int64_t Tasks::workspace_bytes() const {
  std::int64_t most = 0;
  for (const Product& p : products_)
    most = std::max(most, matmul::workspace_bytes(arithmetic_, p.rows, p.k, p.columns, p.dtype));
  return most;
}

}  // namespace ejk::matmul
