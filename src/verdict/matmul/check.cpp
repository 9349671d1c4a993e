// Comparison of a grouped product with its reference, element by element or, where that takes too long, by
// some rows and Freivalds' test of all: out · x against lhs · (rhs · x), which reads each array once.
// Its tolerance: the errors e_j of a row are independent of the signs x_j, so by Hoeffding's inequality |Σ
// x_j e_j| > s · ‖e‖₂ has a probability below 2 exp(−s²/2), with ‖e‖₂ ≤ Σ_p |a_p| · ‖b_p‖₂ · bound + …; s =
// 9, or √n, with which it is certain.
// tests: tests/verdict/matmul/test_check.cpp
#include "verdict/matmul/against.hpp"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "compare/error_stats.hpp"
#include "compare/report_parts.hpp"
#include "compare/sample.hpp"
#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "core/splitmix64.hpp"
#include "ejk/matmul_check.hpp"
#include "verdict/matmul/reference.hpp"
#include "verdict/matmul/tolerance.hpp"

namespace ejk::matmul {

namespace {

// Of a task: its sums (64 KiB) stay in a second-level cache, and its rows share the conversion of rhs.
constexpr std::int64_t kRowsOfPart = 32, kColumnsOfPart = 256;

// A result, its products, and its tolerance.
struct CheckedProduct {
  std::vector<GroupProduct> products;
  const std::optional<ArrayView>& existing;
  Existing use;
  const ArrayView& out;
  Tolerance tolerance;
  bool extended;
  const WorkProgress& progress;

  std::int64_t columns() const { return out.shape.back(); }
  std::int64_t rows() const { return out.rank() == 2 ? out.shape[0] : out.shape[0] * out.shape[1]; }
  bool adds() const { return existing && use == Existing::add; }
};

struct Position {
  std::int64_t row = 0, column = 0;
  bool operator<(const Position& other) const {
    return std::pair(row, column) < std::pair(other.row, other.column);
  }
};

using Stats = verify::ErrorStats<Position>;

// Rows to be compared: of a product (counted within it), or without one a run in which nothing is computed.
struct Task {
  const GroupProduct* product = nullptr;
  std::vector<std::int64_t> rows;
  std::int64_t first_row = 0, count = 0;  // without a product
};

void add_rows(std::vector<Task>& tasks, const GroupProduct& product, const std::vector<std::int64_t>& rows) {
  for (std::size_t begin = 0; begin < rows.size(); begin += kRowsOfPart) {
    const std::size_t end = std::min(rows.size(), begin + kRowsOfPart);
    tasks.push_back({&product,
                     {rows.begin() + static_cast<std::ptrdiff_t>(begin),
                      rows.begin() + static_cast<std::ptrdiff_t>(end)}});
  }
}

std::vector<Task> other_rows(const CheckedProduct& problem) {
  std::vector<Task> tasks;
  std::int64_t next = 0;
  const auto up_to = [&](std::int64_t end) {
    for (; next < end; next += std::min(kRowsOfPart, end - next))
      tasks.push_back({nullptr, {}, next, std::min(kRowsOfPart, end - next)});
  };
  for (const GroupProduct& product : problem.products) {
    up_to(product.row);
    next = product.row + product.a.shape[0];
  }
  up_to(problem.rows());
  return tasks;
}

class Comparison {
 public:
  explicit Comparison(const CheckedProduct& problem)
      : problem_(problem),
        stats_(problem.out.dtype),
        tiles_(core::ceil_div(problem.columns(), kColumnsOfPart)) {}

  void run(const std::vector<Task>& tasks) {
    const std::int64_t all = std::ssize(tasks) * tiles_;
    std::int64_t done = 0;
    std::mutex one_at_a_time;
    double work = 0;
    for (const Task& task : tasks) {
      const std::int64_t rows = task.product ? std::ssize(task.rows) : task.count;
      work +=
          static_cast<double>(rows) * static_cast<double>(task.product ? task.product->a.shape[1] + 1 : 1);
    }
    work *= static_cast<double>(problem_.columns());
    core::parallel_reduce(
        all, core::threads_for(all, work), [&] { return Stats(problem_.out.dtype); },
        [&](Stats& stats, std::int64_t i) {
          const Task& task = tasks[static_cast<std::size_t>(i / tiles_)];
          const std::int64_t first = i % tiles_ * kColumnsOfPart;
          const std::int64_t columns = std::min(kColumnsOfPart, problem_.columns() - first);
          if (task.product)
            compare_products(task, first, columns, stats);
          else
            compare_others(task, first, columns, stats);
          if (!problem_.progress) return;
          const std::scoped_lock lock(one_at_a_time);
          problem_.progress(++done, all);
        },
        [&](const Stats& stats) { stats_.join(stats); });
  }

  const Stats& stats() const { return stats_; }

 private:
  void compare_products(const Task& task, std::int64_t first, std::int64_t columns, Stats& stats) const {
    const Tolerance& tolerance = problem_.tolerance;
    const std::int64_t depth = task.product->a.shape[1], rows = std::ssize(task.rows);
    std::vector<double> sums(static_cast<std::size_t>(rows * columns)), magnitudes(sums.size());
    std::vector<double> values(static_cast<std::size_t>(columns)), there(values.size());
    multiply_rows(*task.product, task.rows, first, columns, sums.data(), magnitudes.data(),
                  tolerance.flushed);
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t row = task.product->row + task.rows[static_cast<std::size_t>(r)];
      Matrix{problem_.out}.load_row(row, first, columns, values.data());
      if (problem_.adds()) Matrix{*problem_.existing}.load_row(row, first, columns, there.data());
      for (std::int64_t j = 0; j < columns; ++j) {
        const auto at = static_cast<std::size_t>(r * columns + j), c = static_cast<std::size_t>(j);
        const double reference = sums[at] + there[c], magnitude = magnitudes[at] + std::abs(there[c]);
        stats.see({row, first + j}, values[c], reference, tolerance.of_element(depth, magnitude, reference),
                  depth > 0 && magnitude > tolerance.most);
      }
    }
  }

  void compare_others(const Task& task, std::int64_t first, std::int64_t columns, Stats& stats) const {
    std::vector<double> values(static_cast<std::size_t>(columns)), there(values.size());
    for (std::int64_t row = task.first_row; row < task.first_row + task.count; ++row) {
      Matrix{problem_.out}.load_row(row, first, columns, values.data());
      if (problem_.existing) Matrix{*problem_.existing}.load_row(row, first, columns, there.data());
      for (std::int64_t j = 0; j < columns; ++j) {
        const auto c = static_cast<std::size_t>(j);
        stats.see({row, first + j}, values[c], there[c], 0);
      }
    }
  }

  const CheckedProduct& problem_;
  Stats stats_;
  std::int64_t tiles_;
};

// Σ x_j v_j and Σ v_j² over a row; x_j is 1 or −1.
struct RowSum {
  long double signed_sum = 0;
  double squares = 0;
};

class VectorTest {
 public:
  explicit VectorTest(const CheckedProduct& problem)
      : problem_(problem), signs_(static_cast<std::size_t>(problem.columns())) {
    for (std::size_t j = 0; j < signs_.size(); ++j) signs_[j] = (core::splitmix64(j) & 1u) != 0 ? 1 : -1;
  }

  enum class Verdict { right, failing, open };

  /// The verdict on each row of each product.
  std::vector<std::vector<Verdict>> run() const {
    const auto& products = problem_.products;
    struct Part {
      std::size_t product;
      std::int64_t first, count;
    };
    // y = b · x and the length of each row of b
    std::vector<std::vector<RowSum>> y(products.size());
    std::vector<std::vector<Verdict>> verdicts(products.size());
    std::vector<Part> depth_parts, row_parts;
    double depth_elements = 0, row_elements = 0;
    for (std::size_t i = 0; i < products.size(); ++i) {
      const std::int64_t rows = products[i].a.shape[0], depth = products[i].a.shape[1];
      depth_elements += static_cast<double>(depth) * static_cast<double>(problem_.columns());
      row_elements += static_cast<double>(rows) * static_cast<double>(depth + problem_.columns());
      y[i].resize(static_cast<std::size_t>(depth));
      verdicts[i].resize(static_cast<std::size_t>(rows));
      for (std::int64_t p = 0; p < depth; p += kRowsOfPart)
        depth_parts.push_back({i, p, std::min(kRowsOfPart, depth - p)});
      for (std::int64_t r = 0; r < rows; r += kRowsOfPart)
        row_parts.push_back({i, r, std::min(kRowsOfPart, rows - r)});
    }
    core::parallel_for(std::ssize(depth_parts), depth_elements, [&](std::int64_t i) {
      const Part& part = depth_parts[static_cast<std::size_t>(i)];
      sum_rows(products[part.product].b, part.first, part.count, problem_.tolerance.flushed,
               y[part.product].data() + part.first);
    });
    core::parallel_for(std::ssize(row_parts), row_elements, [&](std::int64_t i) {
      const Part& part = row_parts[static_cast<std::size_t>(i)];
      for (std::int64_t r = part.first; r < part.first + part.count; ++r)
        verdicts[part.product][static_cast<std::size_t>(r)] =
            verdict(products[part.product], y[part.product], r);
    });
    return verdicts;
  }

 private:
  // Rows of b; tiles of columns in the outer loop, so that any strides use whole cache lines.
  void sum_rows(const ArrayView& b, std::int64_t first, std::int64_t count, double flushed,
                RowSum* sums) const {
    double values[kColumnsOfPart];
    for (std::int64_t j = 0; j < b.shape[1]; j += kColumnsOfPart) {
      const std::int64_t columns = std::min(kColumnsOfPart, b.shape[1] - j);
      for (std::int64_t p = 0; p < count; ++p) {
        load(b.dtype, b.data + (first + p) * b.strides[0] + j * b.strides[1], b.strides[1], columns, values);
        add(values, j, columns, flushed, sums[p]);
      }
    }
  }

  void add(const double* values, std::int64_t first, std::int64_t count, double flushed, RowSum& sum) const {
    const double* const x = signs_.data() + first;
    if (problem_.extended)
      for (std::int64_t j = 0; j < count; ++j) sum.signed_sum += static_cast<long double>(x[j]) * values[j];
    else
      sum.signed_sum += std::inner_product(values, values + count, x, 0.0);
    for (std::int64_t j = 0; j < count; ++j) {
      const double size = std::abs(values[j]) < 0x1p-126 ? flushed * values[j] : values[j];
      sum.squares += size * size;
    }
  }

  RowSum sum_row(const ArrayView& array, std::int64_t row) const {
    RowSum sum;
    double values[kColumnsOfPart];
    for (std::int64_t j = 0; j < problem_.columns(); j += kColumnsOfPart) {
      const std::int64_t columns = std::min(kColumnsOfPart, problem_.columns() - j);
      Matrix{array}.load_row(row, j, columns, values);
      add(values, j, columns, 1, sum);
    }
    return sum;
  }

  Verdict verdict(const GroupProduct& product, const std::vector<RowSum>& y, std::int64_t row) const {
    const Tolerance& tolerance = problem_.tolerance;
    const std::int64_t depth = product.a.shape[1];
    const RowSum out = sum_row(problem_.out, product.row + row);
    long double expected = 0;
    double size = 0;  // ≥ the length of the row of X
    double a[kColumnsOfPart];
    for (std::int64_t p = 0; p < depth; p += kColumnsOfPart) {
      const std::int64_t count = std::min(kColumnsOfPart, depth - p);
      load(product.a.dtype, product.a.data + row * product.a.strides[0] + p * product.a.strides[1],
           product.a.strides[1], count, a);
      for (std::int64_t q = 0; q < count; ++q) {
        const RowSum& b = y[static_cast<std::size_t>(p + q)];
        expected += a[q] * b.signed_sum;
        const double factor = std::abs(a[q]) < 0x1p-126 ? tolerance.flushed * a[q] : a[q];
        size += std::abs(factor) * std::sqrt(b.squares);
      }
    }
    if (problem_.adds()) {
      const RowSum there = sum_row(*problem_.existing, product.row + row);
      expected += there.signed_sum;
      size += std::sqrt(there.squares);
    }
    const double length = std::sqrt(out.squares), n = static_cast<double>(problem_.columns());
    const double sure = std::sqrt(n);
    const double rounding = tolerance.of_sums(depth) * size + tolerance.result.epsilon() * length +
                            tolerance.at_the_end(depth) * sure;
    const double evaluation =
        (n + static_cast<double>(depth)) * tolerance.evaluation_unit * sure * (size + length);
    // The result's length replaces the reference's; they differ by less than a hundredth.
    const double allowed = 1.01 * (std::min(9.0, sure) * rounding + evaluation);
    const auto difference = static_cast<double>(std::abs(out.signed_sum - expected));
    if (!std::isfinite(difference) || !std::isfinite(allowed)) return Verdict::open;
    return difference <= allowed ? Verdict::right : Verdict::failing;
  }

  const CheckedProduct& problem_;
  std::vector<double> signs_;
};

MatmulCheck check_problem(const CheckedProduct& problem, const CheckEffort& effort) {
  MatmulCheck result;
  result.dtype = problem.out.dtype;
  result.elements = element_count(problem.out.shape);
  const double work = multiply_adds(problem.products), scale = problem.extended ? 8 : 1;
  const bool every = work * scale <= static_cast<double>(effort.every_element);
  result.method = every ? MatmulCheck::Method::every_element : MatmulCheck::Method::sampled_rows;

  std::vector<Task> tasks = other_rows(problem);
  for (const Task& task : tasks) result.compared_other += task.count * problem.columns();
  if (every) {
    for (const GroupProduct& product : problem.products) {
      std::vector<std::int64_t> rows(static_cast<std::size_t>(product.a.shape[0]));
      std::iota(rows.begin(), rows.end(), 0);
      add_rows(tasks, product, rows);
    }
  } else {
    using Verdict = VectorTest::Verdict;
    const auto verdicts = VectorTest(problem).run();
    std::vector<std::vector<std::int64_t>> chosen(problem.products.size());
    const double share = std::min(1.0, static_cast<double>(effort.samples) / (work * scale));
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      const GroupProduct& product = problem.products[i];
      const std::int64_t rows = product.a.shape[0];
      if (rows == 0) continue;
      const auto more = static_cast<std::int64_t>(share * static_cast<double>(rows)) - 2;
      chosen[i] = verify::sample_rows(rows, std::max<std::int64_t>(more, 0), product.row);
      result.rows_by_vector += rows;
    }
    // Those that fail before those of which it says nothing: a few in any case, more while there is time.
    double left = static_cast<double>(effort.samples) / scale;
    int few = 16;
    for (const Verdict verdict : {Verdict::failing, Verdict::open})
      for (std::size_t i = 0; i < chosen.size(); ++i) {
        const GroupProduct& product = problem.products[i];
        const double cost = static_cast<double>(product.a.shape[1]) * static_cast<double>(problem.columns());
        for (std::int64_t r = 0; r < product.a.shape[0]; ++r) {
          if (verdicts[i][static_cast<std::size_t>(r)] != verdict) continue;
          if (left >= cost || few > 0) {
            left -= cost;
            --few;
            chosen[i].push_back(r);
          } else {
            ++(verdict == Verdict::failing ? result.rows_refuted : result.rows_open);
          }
        }
      }
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      std::sort(chosen[i].begin(), chosen[i].end());
      chosen[i].erase(std::unique(chosen[i].begin(), chosen[i].end()), chosen[i].end());
      add_rows(tasks, problem.products[i], chosen[i]);
    }
  }

  Comparison comparison(problem);
  comparison.run(tasks);
  const Stats& stats = comparison.stats();
  result.compared = stats.compared;
  result.nonzero = stats.nonzero;
  result.violating = stats.violating;
  const auto found = [&](const auto& largest, double size) -> std::optional<MatmulDifference> {
    if (!largest.found) return std::nullopt;
    return MatmulDifference{Matrix{problem.out}.index_of(largest.at.row, largest.at.column),
                            largest.item.value, largest.item.reference, size};
  };
  result.largest_absolute = found(stats.absolute, stats.absolute.measure);
  result.largest_relative = found(stats.relative, stats.relative.measure);
  result.largest_ulps = found(stats.ulps, stats.ulps.measure);
  result.worst = found(stats.worst, stats.worst.item.size);
  return result;
}

}  // namespace

MatmulCheck check(const Problem& problem, const Operands& operands, const ArrayView& out,
                  const WorkProgress& progress, const CheckEffort& effort) {
  const auto& [lhs, rhs, existing] = operands;
  return check_problem(
      {products_of(problem, lhs, rhs), existing, problem.existing, out, Tolerance::of(lhs, rhs, out.dtype),
       precision_for(lhs, rhs) == Precision::extended, progress},
      effort);
}

std::int64_t check_bytes(const Problem& problem) {
  // Two numbers and their vectors for each row of rhs, of which each group has k or its own.
  constexpr std::int64_t kBytesOfARow = 48;
  return kBytesOfARow * (problem.cut == Problem::Cut::rows ? problem.groups * problem.k : problem.m);
}

}  // namespace ejk::matmul

namespace ejk {

MatmulCheck check_results(const GroupedMatmulPlan& plan, const ArrayView& lhs, const ArrayView& rhs,
                          const std::optional<ArrayView>& existing_out, const ArrayView& out,
                          const WorkProgress& progress) {
  const matmul::Operands operands{lhs, rhs, existing_out};
  matmul::check_types(plan.internal(), operands, out.dtype, out.shape);
  return matmul::check(plan.internal(), operands, out, progress);
}

std::int64_t bytes_to_check(const GroupedMatmulPlan& plan) { return matmul::check_bytes(plan.internal()); }

Report describe(const MatmulCheck& check) {
  const bool every = check.method == MatmulCheck::Method::every_element;
  Report report =
      verify::describe_check(check.passed(), every, check.elements, check.compared, check.violating);
  report.add("violating_share", "share of those", share_of(check.violating, check.compared), Unit::share);
  if (!every) {
    report.add("rows_by_vector", "all rows by a random vector", check.rows_by_vector, Unit::rows)
        .add("rows_refuted", "that it refutes, not compared", check.rows_refuted, Unit::rows);
    if (check.rows_open > 0) report.add("rows_open", "of which it says nothing", check.rows_open, Unit::rows);
  }
  Table table = verify::table_of_differences("kind", false);
  const auto row = [&](const char* kind, const std::optional<MatmulDifference>& d) {
    if (d) table.rows.push_back({std::string(kind), d->size, d->index, d->value, d->reference});
  };
  row("absolute", check.largest_absolute);
  row("relative", check.largest_relative);
  row("ulps", check.largest_ulps);
  row("worst", check.worst);
  report.add(std::move(table));
  verify::warn_if_vacuous(report, check.compared != check.compared_other, check.compared, check.nonzero);
  return report;
}

}  // namespace ejk
