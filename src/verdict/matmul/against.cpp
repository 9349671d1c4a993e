// Every row of a given product beside its reference or, where that takes too long, beside the library's own
// within the bounds of both, with X ≤ ‖a‖·‖b‖. Cost: a pass over all arrays.
// tests: tests/verdict/matmul/test_against.cpp
#include "verdict/matmul/against.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <span>

#include "core/parallel.hpp"
#include "ejk/matmul_check.hpp"
#include "verdict/against.hpp"
#include "verdict/explain_rows.hpp"

namespace ejk::matmul {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Lengths {
  std::vector<double> a, b;
};

Lengths lengths_of(const GroupProduct& product, double flushed) {
  const auto add = [=](double value, double& sum) {
    const double size = std::abs(value) < 0x1p-126 ? flushed * value : value;
    sum += size * size;
  };
  Lengths all{std::vector<double>(static_cast<std::size_t>(product.a.shape[0])),
              std::vector<double>(static_cast<std::size_t>(product.b.shape[1]))};
  std::vector<double> row(static_cast<std::size_t>(std::max(product.a.shape[1], product.b.shape[1])));
  for (std::size_t i = 0; i < all.a.size(); ++i) {
    const auto n = product.a.shape[1];
    load(product.a.dtype, product.a.data + static_cast<std::int64_t>(i) * product.a.strides[0],
         product.a.strides[1], n, row.data());
    for (std::int64_t p = 0; p < n; ++p) add(row[static_cast<std::size_t>(p)], all.a[i]);
    all.a[i] = std::sqrt(all.a[i]);
  }
  for (std::int64_t p = 0; p < product.b.shape[0]; ++p) {
    load(product.b.dtype, product.b.data + p * product.b.strides[0], product.b.strides[1], product.b.shape[1],
         row.data());
    for (std::size_t j = 0; j < all.b.size(); ++j) add(row[j], all.b[j]);
  }
  for (double& sum : all.b) sum = std::sqrt(sum);
  return all;
}

// A row in which nothing is computed: existing_out's, or zeros; exactly, but for another dtype's rounding.
void load_kept(const ActualProduct& it, std::int64_t row, double* values, double* allowed) {
  const auto n = static_cast<std::size_t>(it.columns());
  std::fill_n(values, n, 0.0);
  if (it.operands.existing_out) Matrix{*it.operands.existing_out}.load_row(row, 0, it.columns(), values);
  const bool rounds = it.given.dtype != it.problem.out.dtype;
  for (std::size_t j = 0; j < n; ++j)
    allowed[j] = rounds ? it.tolerance.result.epsilon() / 2 * std::abs(values[j]) +
                              it.tolerance.result.spacing_at(0) / 2
                        : 0;
}

using Expected = std::function<void(std::int64_t row, double* values, double* allowed)>;

Expected by_reference(const ActualProduct& it) {
  return [&it](std::int64_t row, double* values, double* allowed) {
    const GroupProduct* product = it.product_of(row);
    if (product == nullptr) return load_kept(it, row, values, allowed);
    const std::int64_t within = row - product->row, depth = product->a.shape[1];
    multiply_rows(*product, std::span(&within, 1), 0, it.columns(), values, allowed, it.tolerance.flushed);
    std::vector<double> there(static_cast<std::size_t>(it.columns()));
    if (it.adds()) Matrix{*it.operands.existing_out}.load_row(row, 0, it.columns(), there.data());
    for (std::size_t j = 0; j < there.size(); ++j) {
      values[j] += there[j];
      const double magnitude = allowed[j] + std::abs(there[j]);
      allowed[j] = depth > 0 && magnitude > it.tolerance.most
                       ? kInfinity
                       : it.tolerance.of_element(depth, magnitude, values[j]);
    }
  };
}

Expected by_own(const ActualProduct& it, const ArrayView& own) {
  const auto lengths = std::make_shared<std::vector<Lengths>>(it.products.size());
  double elements = 0;
  for (const GroupProduct& product : it.products)
    elements += static_cast<double>(product.a.shape[1]) *
                static_cast<double>(product.a.shape[0] + product.b.shape[1]);
  core::parallel_for(std::ssize(it.products), 2 * elements, [&](std::int64_t p) {
    (*lengths)[static_cast<std::size_t>(p)] =
        lengths_of(it.products[static_cast<std::size_t>(p)], it.tolerance.flushed);
  });
  const Tolerance of_own = Tolerance::of(it.operands.lhs, it.operands.rhs, own.dtype);
  return [&it, own, lengths, of_own](std::int64_t row, double* values, double* allowed) {
    const GroupProduct* product = it.product_of(row);
    if (product == nullptr) return load_kept(it, row, values, allowed);
    const Lengths& size = (*lengths)[static_cast<std::size_t>(product - it.products.data())];
    const std::int64_t depth = product->a.shape[1];
    Matrix{own}.load_row(row, 0, it.columns(), values);
    std::vector<double> there(static_cast<std::size_t>(it.columns()));
    if (it.adds()) Matrix{*it.operands.existing_out}.load_row(row, 0, it.columns(), there.data());
    for (std::size_t j = 0; j < there.size(); ++j) {
      const double magnitude =
          size.a[static_cast<std::size_t>(row - product->row)] * size.b[j] + std::abs(there[j]);
      const double reference = std::isfinite(values[j]) ? values[j] : 0;
      allowed[j] = depth > 0 && magnitude > it.tolerance.most
                       ? kInfinity
                       : of_own.of_element(depth, magnitude, reference) +
                             it.tolerance.of_element(depth, magnitude, reference);
    }
  };
}

}  // namespace

ActualProduct::ActualProduct(const Problem& p, const Operands& arrays, const ArrayView& result,
                             Accumulator accumulator)
    : problem(p),
      operands(arrays),
      given(result),
      products(products_of(p, arrays.lhs, arrays.rhs)),
      tolerance(Tolerance::of_given(arrays.lhs, arrays.rhs, result.dtype)) {
  tolerance.accumulator = accumulator;
}

std::int64_t ActualProduct::group_of(std::int64_t row) const {
  if (problem.cut == Problem::Cut::contraction) return problem.first_group + row / problem.k;
  return problem.ranges.group_of(row);
}

const GroupProduct* ActualProduct::product_of(std::int64_t row) const {
  auto after = std::upper_bound(products.begin(), products.end(), row,
                                [](std::int64_t r, const GroupProduct& product) { return r < product.row; });
  if (after == products.begin()) return nullptr;
  --after;
  return row < after->row + after->a.shape[0] ? &*after : nullptr;
}

Against compare(const Problem& problem, const Operands& operands, const ArrayView& own,
                const ArrayView& given, Explain explain, const WorkProgress& progress,
                const CheckEffort& effort, const std::vector<std::string>& tiles, Accumulator accumulator,
                const OtherResults& other) {
  check_types(problem, operands, own.dtype, own.shape);
  verify::require_given(given, problem.out.shape, "result", "given");
  const ActualProduct it(problem, operands, given, accumulator);
  const double work =
      multiply_adds(it.products) * (precision_for(operands.lhs, operands.rhs) == Precision::extended ? 8 : 1);
  const bool whole = work <= static_cast<double>(effort.every_element);
  const bool by_rows = problem.cut == Problem::Cut::rows;

  verify::ResultRows rows;
  rows.name = "out";
  rows.dtype = given.dtype;
  rows.rows = it.rows();
  rows.columns = it.columns();
  rows.axes = {{"group", "groups", problem.groups_in_all(), verify::RowAxis::Kind::part, "rows of no group"},
               {"row", "rows", by_rows ? problem.m : problem.k, verify::RowAxis::Kind::position}};
  rows.array_axes = by_rows ? std::vector<std::size_t>{1} : std::vector<std::size_t>{0, 1};
  rows.tiles = tiles.empty() ? std::vector<std::string>{"row", "column"} : tiles;
  rows.column = "column";
  rows.columns_name = "columns";
  rows.place = [&it, by_rows, k = problem.k](std::int64_t row, std::int64_t* at) {
    at[0] = it.group_of(row);
    at[1] = by_rows ? row : row % k;
  };
  rows.index = [&given](std::int64_t row, std::int64_t column) {
    return Matrix{given}.index_of(row, column);
  };
  rows.given = [&given, n = it.columns()](std::int64_t row, double* values) {
    Matrix{given}.load_row(row, 0, n, values);
  };
  rows.expected = whole ? by_reference(it) : by_own(it, own);
  const verify::ResultRows* const all[] = {&rows};
  verify::require_tiles(all, tiles);

  Against against;
  against.method = whole ? Against::Method::float64 : Against::Method::own_result;
  if (!other.results.empty()) {
    const ArrayView& beside = other.results[0].value();
    verify::require_given(beside, problem.out.shape, "result", "other");
    verify::judge_beside(
        rows,
        [&](std::int64_t row, double* values) { Matrix{beside}.load_row(row, 0, it.columns(), values); },
        other.factor, against, whole ? work : 0);
  }
  const verify::RowCounts counts =
      verify::compare_rows(rows, against, whole ? work : 0, [&](std::int64_t done) {
        if (progress) progress(done, rows.rows);
      });
  if (explain == Explain::yes) {
    against.tried = true;
    if (!against.agrees()) ejk::matmul::explain(it, rows, counts, against);
  }
  return against;
}

std::int64_t compare_bytes(const Problem& problem, Explain explain) {
  const bool by_rows = problem.cut == Problem::Cut::rows;
  const std::int64_t lengths =
      by_rows ? problem.m + problem.groups * problem.n : problem.groups * (problem.k + problem.n);
  const std::int64_t rows = by_rows ? problem.m : problem.groups * problem.k;
  return 8 * lengths + verify::bytes_of_rows(rows) +
         (explain == Explain::yes ? verify::bytes_of_values(rows * problem.n) : 0);
}

}  // namespace ejk::matmul

namespace ejk {

Against compare_results(const GroupedMatmulPlan& plan, const ArrayView& lhs, const ArrayView& rhs,
                        const std::optional<ArrayView>& existing_out, const ArrayView& own,
                        const ArrayView& given, Explain explain, const WorkProgress& progress,
                        const std::vector<std::string>& tiles, Accumulator accumulator,
                        const OtherResults& other) {
  const matmul::Operands operands{lhs, rhs, existing_out};
  return matmul::compare(plan.internal(), operands, own, given, explain, progress, {}, tiles, accumulator,
                         other);
}

std::int64_t bytes_to_compare(const GroupedMatmulPlan& plan, Explain explain) {
  return matmul::compare_bytes(plan.internal(), explain);
}

}  // namespace ejk
