// Grouped matmul and its transposed form.
//
// Both are sets of products of one kind: a group's rows of lhs times its matrix, or all of lhs's rows over
// the group's part of the contraction times the group's rows of rhs. They are cut into tasks across all
// groups. Rows that no product covers are filled first.
//
// tests: tests/matmul/test_grouped.cpp
#include "ejk/grouped_matmul.hpp"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "ejk/error.hpp"
#include "kernels/kernels.hpp"
#include "matmul/against.hpp"
#include "matmul/check.hpp"
#include "matmul/problem.hpp"
#include "matmul/product.hpp"
#include "matmul/tasks.hpp"

namespace ejk {

namespace {

using matmul::Arithmetic;
using matmul::Operands;
using matmul::Problem;
using matmul::Product;
using matmul::Tasks;

// --- the work

// C order, as results and what they are added to have it; a copy where it is otherwise.
struct Kept {
  Array copy;
  const std::byte* data = nullptr;
};
Kept in_c_order(const std::optional<ArrayView>& view) {
  if (!view) return {};
  if (view->is_c_contiguous()) return {{}, view->data};
  Kept e{Array::copy_of(*view), nullptr};
  e.data = e.copy.data();
  return e;
}

// Rows [begin, end) of a result: existing's, or zeros.
void fill_rows(std::int64_t begin, std::int64_t end, std::int64_t row_bytes, const std::byte* existing,
               std::byte* out) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 20;
  if (existing == out) return;
  const std::int64_t from = begin * row_bytes, bytes = (end - begin) * row_bytes;
  const auto fill = [&](std::int64_t piece) {
    const std::int64_t at = from + piece * kPiece;
    const auto count = static_cast<std::size_t>(std::min(kPiece, from + bytes - at));
    if (existing != nullptr)
      std::memcpy(out + at, existing + at, count);
    else
      std::memset(out + at, 0, count);
  };
  core::parallel_for(core::ceil_div(bytes, kPiece), static_cast<double>(bytes) / 8, fill);
}

Arithmetic arithmetic_of(const Problem& p) {
  const bool narrow = p.lhs.dtype == DType::bfloat16 && p.rhs.dtype == DType::bfloat16;
  return matmul::arithmetic_of(p.lhs.dtype, p.rhs.dtype,
                               narrow ? kernels::active_for_bf16() : kernels::active());
}

// The product that group g makes, of factors with these strides, but for where its parts lie.
Product product_of(const Problem& p, const Shape& lhs, const Shape& rhs, std::int64_t g) {
  Product product;
  product.a = {nullptr, p.lhs.dtype, lhs[0], lhs[1]};
  product.b = {nullptr, p.rhs.dtype, rhs[rhs.size() - 2], rhs.back()};
  if (p.transpose_rhs) std::swap(product.b.row_stride, product.b.column_stride);
  const bool by_rows = p.cut == Problem::Cut::rows;
  product.rows = by_rows ? p.rows(g) : p.k;
  product.k = by_rows ? p.k : p.rows(g);
  product.columns = p.n;
  product.dtype = p.out.dtype;
  return product;
}

// Rows [first, end) of the result, seen as a matrix of n columns, that group g makes.
struct Rows {
  std::int64_t first, end;
};
Rows rows_of(const Problem& p, std::int64_t g) {
  if (p.cut == Problem::Cut::rows) return {p.begin(g), p.begin(g + 1)};
  return {g * p.k, (g + 1) * p.k};
}

void compute(const Problem& p, const Operands& operands, std::byte* out, const WorkProgress& progress) {
  const auto& [lhs, rhs, existing_out] = operands;
  const Kept existing = in_c_order(existing_out);
  const std::int64_t row_bytes = p.n * size_of(p.out.dtype);
  const bool by_rows = p.cut == Problem::Cut::rows;
  const bool adds = existing.data != nullptr && p.existing == Existing::add;
  if (by_rows) {
    fill_rows(0, p.begin(0), row_bytes, existing.data, out);
    fill_rows(p.begin(p.groups), p.m, row_bytes, existing.data, out);
  }
  Tasks tasks(arithmetic_of(p), p.tiling);
  for (std::int64_t g = 0; g < p.groups; ++g) {
    Product product = product_of(p, lhs.strides, rhs.strides, g);
    const Rows rows = rows_of(p, g);
    if (product.k == 0) {  // what is added to stays as it is, whatever the arithmetic
      fill_rows(rows.first, rows.end, row_bytes, adds ? existing.data : nullptr, out);
      continue;
    }
    product.a.data = lhs.data + p.begin(g) * lhs.strides[by_rows ? 0 : 1];
    product.b.data = by_rows ? rhs[g].data : rhs.data + p.begin(g) * rhs.strides[0];
    product.out = out + rows.first * row_bytes;
    product.out_stride = row_bytes;
    product.stream = p.out.bytes() >= kernels::kBeyondCaches;
    if (adds) product.added = existing.data + rows.first * row_bytes;
    product.added_stride = row_bytes;
    tasks.add(product);
  }
  tasks.run(progress);
}

std::optional<ArrayType> type_of_any(const std::optional<ArrayView>& view) {
  return view ? std::optional(type_of(*view)) : std::nullopt;
}

template <class Options>
Array multiply(const ArrayView& lhs, const ArrayView& rhs, const IntegerArray& group_sizes,
               const Options& options) {
  const GroupedMatmulPlan plan(type_of(lhs), type_of(rhs), group_sizes, options,
                               type_of_any(options.existing_out));
  Array out(plan.out().dtype, plan.out().shape);
  plan.run(lhs, rhs, options.existing_out, out.mutable_view(), options.progress);
  return out;
}

}  // namespace

GroupedMatmulPlan::GroupedMatmulPlan(const ArrayType& lhs, const ArrayType& rhs,
                                     const IntegerArray& group_sizes, const GroupedMatmulSettings& settings,
                                     const std::optional<ArrayType>& existing_out)
    : problem_(
          std::make_shared<const Problem>(matmul::checked(lhs, rhs, group_sizes, settings, existing_out))) {}

GroupedMatmulPlan::GroupedMatmulPlan(const ArrayType& lhs, const ArrayType& rhs,
                                     const IntegerArray& group_sizes,
                                     const TransposedGroupedMatmulSettings& settings,
                                     const std::optional<ArrayType>& existing_out)
    : problem_(
          std::make_shared<const Problem>(matmul::checked(lhs, rhs, group_sizes, settings, existing_out))) {}

const ArrayType& GroupedMatmulPlan::out() const { return problem_->out; }

const std::optional<Tiling>& GroupedMatmulPlan::tiling() const { return problem_->tiling; }

double GroupedMatmulPlan::flop() const {
  const Problem& p = *problem_;
  return 2.0 * static_cast<double>(p.begin(p.groups) - p.begin(0)) * static_cast<double>(p.k) *
         static_cast<double>(p.n);
}

std::int64_t GroupedMatmulPlan::work_bytes() const {
  const Problem& p = *problem_;
  Tasks tasks(arithmetic_of(p), p.tiling);
  for (std::int64_t g = 0; g < p.groups; ++g)
    if (const Product product = product_of(p, p.lhs.strides, p.rhs.strides, g); product.k > 0)
      tasks.add(product);
  return tasks.work_bytes() + (p.existing_is_in_c_order ? 0 : p.out.bytes());
}

std::int64_t GroupedMatmulPlan::check_bytes() const { return matmul::check_bytes(*problem_); }

void GroupedMatmulPlan::run(const ArrayView& lhs, const ArrayView& rhs,
                            const std::optional<ArrayView>& existing_out, const MutableArrayView& out,
                            const WorkProgress& progress) const {
  const Operands operands{lhs, rhs, existing_out};
  matmul::check_types(*problem_, operands, out.dtype, out.shape);
  compute(*problem_, operands, out.data, progress);
}

MatmulCheck GroupedMatmulPlan::check(const ArrayView& lhs, const ArrayView& rhs,
                                     const std::optional<ArrayView>& existing_out, const ArrayView& out,
                                     const WorkProgress& progress) const {
  const Operands operands{lhs, rhs, existing_out};
  matmul::check_types(*problem_, operands, out.dtype, out.shape);
  return matmul::check(*problem_, operands, out, progress);
}

Against GroupedMatmulPlan::compare(const ArrayView& lhs, const ArrayView& rhs,
                                   const std::optional<ArrayView>& existing_out, const ArrayView& own,
                                   const ArrayView& given, Explain explain,
                                   const WorkProgress& progress) const {
  const Operands operands{lhs, rhs, existing_out};
  return matmul::compare(*problem_, operands, own, given, explain, progress);
}

std::int64_t GroupedMatmulPlan::compare_bytes() const { return matmul::compare_bytes(*problem_); }

Array grouped_matmul(const ArrayView& lhs, const ArrayView& rhs, const IntegerArray& group_sizes,
                     const GroupedMatmulOptions& options) {
  return multiply(lhs, rhs, group_sizes, options);
}

Array transposed_grouped_matmul(const ArrayView& lhs, const ArrayView& rhs, const IntegerArray& group_sizes,
                                const TransposedGroupedMatmulOptions& options) {
  return multiply(lhs, rhs, group_sizes, options);
}

}  // namespace ejk
