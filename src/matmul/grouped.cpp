// Grouped matmul and its transposed form.
//
// Both are sets of products of one kind: a group's rows of lhs times its matrix, or all of lhs's rows over
// the group's part of the contraction times the group's rows of rhs. They are cut into tasks across all
// groups. Rows that no product covers are filled first.
//
// tests: tests/matmul/test_grouped.cpp
#include "ejk/grouped_matmul.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "ejk/error.hpp"
#include "ejk/groups.hpp"
#include "kernels/kernels.hpp"
#include "matmul/product.hpp"
#include "matmul/tasks.hpp"

namespace ejk {

namespace {

using matmul::Arithmetic;
using matmul::Product;
using matmul::Tasks;

Error invalid(std::string message) { return Error(Error::Kind::input, std::move(message)); }

// --- the door

struct Problem {
  std::vector<std::int64_t> offsets;  // of groups
  std::int64_t m, k, n;
  std::int64_t first_group, groups;  // those computed
  Shape shape;                       // of the result

  std::int64_t groups_in_all() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
  std::int64_t begin(std::int64_t g) const { return offsets[static_cast<std::size_t>(first_group + g)]; }
  std::int64_t rows(std::int64_t g) const { return begin(g + 1) - begin(g); }
};

void check_factor(const ArrayView& view, const char* name, std::int64_t rank, const char* form) {
  if (view.rank() != rank)
    throw invalid(fmt::format("{} is {}, not of shape {}", name, form, to_string(view.shape)));
  if (!is_float(view.dtype))
    throw invalid(
        fmt::format("{} is float16, bfloat16, float32 or float64, not {}", name, name_of(view.dtype)));
}

void check_result(DType dtype, const std::optional<ArrayView>& existing, const Shape& shape) {
  if (!is_float(dtype))
    throw invalid(fmt::format("the result is float16, bfloat16, float32 or float64, not {}", name_of(dtype)));
  byte_count(shape, dtype);
  if (!existing) return;
  if (existing->shape != shape)
    throw invalid(fmt::format("existing_out has the shape {}, the result {}", to_string(existing->shape),
                              to_string(shape)));
  if (existing->dtype != dtype)
    throw invalid(fmt::format("existing_out is {}, the result {}", name_of(existing->dtype), name_of(dtype)));
}

void check_tiling(const std::optional<Tiling>& tiling, std::int64_t m, bool strict) {
  if (!tiling) return;
  if (tiling->tm < 1 || tiling->tk < 1 || tiling->tn < 1)
    throw invalid(
        fmt::format("a tiling has positive lengths, not {} x {} x {}", tiling->tm, tiling->tk, tiling->tn));
  if (strict && m % tiling->tm != 0)
    throw invalid(fmt::format("m = {} is not a multiple of tm = {}", m, tiling->tm));
}

void check_offset(std::int64_t offset, std::int64_t groups, const ArraySource& group_sizes) {
  if (offset < 0 || offset > groups)
    throw std::move(
        Error(Error::Kind::usage, fmt::format("group_offset is {}, beyond the {} that there are", offset,
                                              groups == 1 ? "1 group" : fmt::format("{} groups", groups)))
            .at(group_sizes.name()));
}

Problem check(const ArrayView& lhs, const ArrayView& rhs, const ArraySource& group_sizes,
              const GroupedMatmulOptions& options) {
  check_factor(lhs, "lhs", 2, "(m, k)");
  check_factor(rhs, "rhs", 3, options.transpose_rhs ? "(groups, n, k)" : "(groups, k, n)");
  Problem p;
  p.m = lhs.shape[0];
  p.k = lhs.shape[1];
  p.n = rhs.shape[options.transpose_rhs ? 1 : 2];
  const std::int64_t rhs_k = rhs.shape[options.transpose_rhs ? 2 : 1];
  if (rhs_k != p.k)
    throw invalid(fmt::format("lhs {} has k = {}, rhs {} has k = {}", to_string(lhs.shape), p.k,
                              to_string(rhs.shape), rhs_k));
  check_tiling(options.tiling, p.m, options.strict);
  p.offsets = group_offsets(group_sizes, p.m, options.strict);
  p.first_group = options.group_offset;
  p.groups = rhs.shape[0];
  check_offset(p.first_group, p.groups_in_all(), group_sizes);
  if (p.groups > p.groups_in_all() - p.first_group)
    throw invalid(fmt::format("rhs has {} matrices, and from group_offset {} on there are {} of {} groups",
                              p.groups, p.first_group, p.groups_in_all() - p.first_group, p.groups_in_all()));
  p.shape = {p.m, p.n};
  check_result(options.dtype, options.existing_out, p.shape);
  return p;
}

Problem check(const ArrayView& lhs, const ArrayView& rhs, const ArraySource& group_sizes,
              const TransposedGroupedMatmulOptions& options) {
  check_factor(lhs, "lhs", 2, "(k, m)");
  check_factor(rhs, "rhs", 2, "(m, n)");
  Problem p;
  p.k = lhs.shape[0];
  p.m = lhs.shape[1];
  p.n = rhs.shape[1];
  if (rhs.shape[0] != p.m)
    throw invalid(fmt::format("lhs {} has m = {}, rhs {} has m = {}", to_string(lhs.shape), p.m,
                              to_string(rhs.shape), rhs.shape[0]));
  check_tiling(options.tiling, p.m, options.strict);
  p.offsets = group_offsets(group_sizes, p.m, options.strict);
  p.first_group = options.group_offset;
  check_offset(p.first_group, p.groups_in_all(), group_sizes);
  const std::int64_t left = p.groups_in_all() - p.first_group;
  p.groups = options.num_actual_groups.value_or(left);
  if (p.groups < 0 || p.groups > left)
    throw Error(Error::Kind::usage,
                fmt::format("num_actual_groups is {}, and from group_offset {} on there are {} of {} groups",
                            p.groups, p.first_group, left, p.groups_in_all()));
  p.shape = {p.groups, p.k, p.n};
  check_result(options.dtype, options.existing_out, p.shape);
  return p;
}

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

// The product that group g makes, but for where its parts lie.
Product product_of(const Problem& p, const ArrayView& lhs, const ArrayView& rhs,
                   const GroupedMatmulOptions& options, std::int64_t g) {
  Product product;
  product.a = {nullptr, lhs.dtype, lhs.strides[0], lhs.strides[1]};
  product.b = {nullptr, rhs.dtype, rhs.strides[1], rhs.strides[2]};
  if (options.transpose_rhs) std::swap(product.b.row_stride, product.b.column_stride);
  product.rows = p.rows(g);
  product.k = p.k;
  product.columns = p.n;
  product.dtype = options.dtype;
  return product;
}

Product product_of(const Problem& p, const ArrayView& lhs, const ArrayView& rhs,
                   const TransposedGroupedMatmulOptions& options, std::int64_t g) {
  Product product;
  product.a = {nullptr, lhs.dtype, lhs.strides[0], lhs.strides[1]};
  product.b = {nullptr, rhs.dtype, rhs.strides[0], rhs.strides[1]};
  product.rows = p.k;
  product.k = p.rows(g);
  product.columns = p.n;
  product.dtype = options.dtype;
  return product;
}

template <class Options>
std::int64_t work_bytes(const ArrayView& lhs, const ArrayView& rhs, const ArraySource& group_sizes,
                        const Options& options) {
  const Problem p = check(lhs, rhs, group_sizes, options);
  Tasks tasks(matmul::arithmetic_of(lhs.dtype, rhs.dtype, kernels::active_for_products()), options.tiling);
  for (std::int64_t g = 0; g < p.groups; ++g)
    if (const Product product = product_of(p, lhs, rhs, options, g); product.k > 0) tasks.add(product);
  const bool copies = options.existing_out && !options.existing_out->is_c_contiguous();
  return tasks.work_bytes() + (copies ? byte_count(p.shape, options.dtype) : 0);
}

void compute(const Problem& p, const ArrayView& lhs, const ArrayView& rhs,
             const GroupedMatmulOptions& options, void* out) {
  const Arithmetic arithmetic = matmul::arithmetic_of(lhs.dtype, rhs.dtype, kernels::active_for_products());
  const Kept existing = in_c_order(options.existing_out);
  const std::int64_t row_bytes = p.n * size_of(options.dtype);
  auto* to = static_cast<std::byte*>(out);
  fill_rows(0, p.begin(0), row_bytes, existing.data, to);
  fill_rows(p.begin(p.groups), p.m, row_bytes, existing.data, to);

  Tasks tasks(arithmetic, options.tiling);
  const bool adds = existing.data != nullptr && options.existing == Existing::add;
  for (std::int64_t g = 0; g < p.groups; ++g) {
    if (p.k == 0) {  // what is added to stays as it is, whatever the arithmetic
      fill_rows(p.begin(g), p.begin(g + 1), row_bytes, adds ? existing.data : nullptr, to);
      continue;
    }
    Product product = product_of(p, lhs, rhs, options, g);
    product.a.data = lhs.data + p.begin(g) * lhs.strides[0];
    product.b.data = rhs[g].data;
    product.out = to + p.begin(g) * row_bytes;
    product.out_stride = row_bytes;
    product.stream = byte_count(p.shape, options.dtype) >= kernels::kBeyondCaches;
    if (adds) product.added = existing.data + p.begin(g) * row_bytes;
    product.added_stride = row_bytes;
    tasks.add(product);
  }
  tasks.run(options.progress);
}

void compute(const Problem& p, const ArrayView& lhs, const ArrayView& rhs,
             const TransposedGroupedMatmulOptions& options, void* out) {
  const Arithmetic arithmetic = matmul::arithmetic_of(lhs.dtype, rhs.dtype, kernels::active_for_products());
  const Kept existing = in_c_order(options.existing_out);
  const std::int64_t row_bytes = p.n * size_of(options.dtype), slice_bytes = p.k * row_bytes;
  Tasks tasks(arithmetic, options.tiling);
  for (std::int64_t g = 0; g < p.groups; ++g) {
    if (p.rows(g) == 0) {  // existing_out as it is, whatever the arithmetic
      fill_rows(g * p.k, (g + 1) * p.k, row_bytes, existing.data, static_cast<std::byte*>(out));
      continue;
    }
    Product product = product_of(p, lhs, rhs, options, g);
    product.a.data = lhs.data + p.begin(g) * lhs.strides[1];
    product.b.data = rhs.data + p.begin(g) * rhs.strides[0];
    product.out = static_cast<std::byte*>(out) + g * slice_bytes;
    product.out_stride = row_bytes;
    product.stream = byte_count(p.shape, options.dtype) >= kernels::kBeyondCaches;
    if (existing.data != nullptr) product.added = existing.data + g * slice_bytes;
    product.added_stride = row_bytes;
    tasks.add(product);
  }
  tasks.run(options.progress);
}

template <class Options>
Array multiply(const ArrayView& lhs, const ArrayView& rhs, const ArraySource& group_sizes,
               const Options& options) {
  const Problem p = check(lhs, rhs, group_sizes, options);
  Array out(options.dtype, p.shape);
  compute(p, lhs, rhs, options, out.data());
  return out;
}

}  // namespace

Shape grouped_matmul_shape(const ArrayView& lhs, const ArrayView& rhs, const ArraySource& group_sizes,
                           const GroupedMatmulOptions& options) {
  return check(lhs, rhs, group_sizes, options).shape;
}

Shape transposed_grouped_matmul_shape(const ArrayView& lhs, const ArrayView& rhs,
                                      const ArraySource& group_sizes,
                                      const TransposedGroupedMatmulOptions& options) {
  return check(lhs, rhs, group_sizes, options).shape;
}

std::int64_t grouped_matmul_work_bytes(const ArrayView& lhs, const ArrayView& rhs,
                                       const ArraySource& group_sizes, const GroupedMatmulOptions& options) {
  return work_bytes(lhs, rhs, group_sizes, options);
}

std::int64_t transposed_grouped_matmul_work_bytes(const ArrayView& lhs, const ArrayView& rhs,
                                                  const ArraySource& group_sizes,
                                                  const TransposedGroupedMatmulOptions& options) {
  return work_bytes(lhs, rhs, group_sizes, options);
}

void grouped_matmul_into(const ArrayView& lhs, const ArrayView& rhs, const ArraySource& group_sizes,
                         const GroupedMatmulOptions& options, void* out) {
  compute(check(lhs, rhs, group_sizes, options), lhs, rhs, options, out);
}

void transposed_grouped_matmul_into(const ArrayView& lhs, const ArrayView& rhs,
                                    const ArraySource& group_sizes,
                                    const TransposedGroupedMatmulOptions& options, void* out) {
  compute(check(lhs, rhs, group_sizes, options), lhs, rhs, options, out);
}

Array grouped_matmul(const ArrayView& lhs, const ArrayView& rhs, const ArraySource& group_sizes,
                     const GroupedMatmulOptions& options) {
  return multiply(lhs, rhs, group_sizes, options);
}

Array transposed_grouped_matmul(const ArrayView& lhs, const ArrayView& rhs, const ArraySource& group_sizes,
                                const TransposedGroupedMatmulOptions& options) {
  return multiply(lhs, rhs, group_sizes, options);
}

}  // namespace ejk
