// Grouped matmul and its transposed form: sets of matrix products, a group's rows of lhs times its matrix, or
// lhs and rhs over the group's part of the contraction, partitioned into tasks across all groups. Rows
// without a product are filled first. The whole result is computed like the part of a rank (parts.hpp).
// tests: tests/matmul/test_grouped.cpp
#include "ejk/grouped_matmul.hpp"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "core/require.hpp"
#include "ejk/error.hpp"
#include "kernels/kernels.hpp"
#include "matmul/parts.hpp"
#include "matmul/problem.hpp"
#include "matmul/product.hpp"
#include "matmul/tasks.hpp"

namespace ejk {

namespace {

using matmul::Operands;
using matmul::Part;
using matmul::Problem;
using matmul::Product;
using matmul::Tasks;

// What is added to or kept, its columns side by side as the result's are; a copy where it is otherwise.
struct Kept {
  Array copy;
  const std::byte* data = nullptr;
  std::int64_t group_stride = 0, row_stride = 0;

  const std::byte* row(std::int64_t group, std::int64_t row) const {
    return data == nullptr ? nullptr : data + group * group_stride + row * row_stride;
  }
};
Kept with_rows(const std::optional<ArrayView>& view) {
  if (!view) return {};
  Kept kept;
  const bool has_rows = view->strides.back() == size_of(view->dtype) || view->shape.back() == 1;
  if (!has_rows) kept.copy = Array::copy_of(*view);
  const ArrayView rows = has_rows ? *view : kept.copy.view();
  kept.data = rows.data;
  kept.row_stride = rows.strides[rows.strides.size() - 2];
  if (rows.rank() == 3) kept.group_stride = rows.strides[0];
  return kept;
}

// Rows of a result: existing's, or zeros.
void fill_rows(std::int64_t rows, std::int64_t row_bytes, const std::byte* existing,
               std::int64_t existing_stride, std::byte* out) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 20;
  const std::int64_t bytes = rows * row_bytes;
  const auto work = static_cast<double>(bytes) / 8;
  if (existing != nullptr && existing_stride != row_bytes) {
    const std::int64_t at_once = std::max<std::int64_t>(1, kPiece / std::max<std::int64_t>(1, row_bytes));
    core::parallel_for(core::ceil_div(rows, at_once), work, [&](std::int64_t piece) {
      for (std::int64_t r = piece * at_once; r < std::min(rows, (piece + 1) * at_once); ++r)
        std::memcpy(out + r * row_bytes, existing + r * existing_stride, static_cast<std::size_t>(row_bytes));
    });
    return;
  }
  if (existing == out) return;
  core::parallel_for(core::ceil_div(bytes, kPiece), work, [&](std::int64_t piece) {
    const std::int64_t at = piece * kPiece;
    const auto count = static_cast<std::size_t>(std::min(kPiece, bytes - at));
    if (existing != nullptr)
      std::memcpy(out + at, existing + at, count);
    else
      std::memset(out + at, 0, count);
  });
}

// The product of group g in a part, without pointers: its rows [begin, end), of factors with these strides.
struct GroupRows {
  Product product;
  std::int64_t begin, end;
  std::int64_t in_all;  // that the group makes in the whole result
};
GroupRows rows_of(const Problem& p, const Part& part, const Shape& lhs, const Shape& rhs, bool boxes_rhs,
                  std::int64_t g) {
  Product product;
  product.a = {nullptr, p.lhs.dtype, lhs[0], lhs[1]};
  product.b = {nullptr, p.rhs.dtype, rhs[rhs.size() - 2], rhs.back()};
  product.b_boxes = {boxes_rhs, p.transpose_rhs, nullptr, g, part.columns.begin};
  if (p.transpose_rhs) std::swap(product.b.row_stride, product.b.column_stride);
  const bool by_rows = p.cut == Problem::Cut::rows;
  std::int64_t begin = part.rows.begin, end = part.rows.end;
  if (by_rows) {
    begin = std::max(begin, p.range(g).begin);
    end = std::max(begin, std::min(end, p.range(g).end));
  }
  product.rows = end - begin;
  product.k = by_rows ? p.k : p.range(g).count();
  product.columns = part.columns.count();
  product.dtype = p.out.dtype;
  return {product, begin, end, by_rows ? p.range(g).count() : p.k};
}

// The operands and `out` are those of the part alone. rhs_source: null, or all of rhs, which then is a type
// without elements.
void compute(const Problem& p, const Part& part, const Operands& operands, const ArraySource* rhs_source,
             std::byte* out, const WorkProgress& progress) {
  const auto& [lhs, rhs, existing_out] = operands;
  const Kept existing = with_rows(existing_out);
  const std::int64_t rows = part.rows.count(), row_bytes = part.columns.count() * size_of(p.out.dtype);
  const bool by_rows = p.cut == Problem::Cut::rows;
  const bool adds = existing.data != nullptr && p.existing == Existing::add;
  // Rows [begin, end) of a group's matrix, or of the result where groups divide its rows.
  const auto fill = [&](std::int64_t group, std::int64_t begin, std::int64_t end, bool with_existing) {
    if (begin >= end) return;
    const std::int64_t first = begin - part.rows.begin;
    fill_rows(end - begin, row_bytes, with_existing ? existing.row(group, first) : nullptr,
              existing.row_stride, out + (group * rows + first) * row_bytes);
  };
  const IndexRange groups = matmul::groups_of(p, part);
  if (by_rows) {  // rows of none of these groups
    std::int64_t next = part.rows.begin;
    for (std::int64_t g = groups.begin; g < groups.end; ++g) {
      if (p.range(g).count() == 0) continue;
      fill(0, next, std::min(part.rows.end, p.range(g).begin), true);
      next = std::max(next, p.range(g).end);
    }
    fill(0, next, part.rows.end, true);
  }
  // Where the given rows of lhs begin, or of both factors.
  const std::int64_t first_row =
      by_rows ? std::max(part.rows.begin, p.around({0, p.groups}).begin) : p.around(groups).begin;
  const bool stream = (by_rows ? 1 : groups.count()) * rows * row_bytes >= kernels::kLargerThanCaches;
  Tasks tasks(matmul::arithmetic_of(p), p.tiling);
  for (std::int64_t g = groups.begin; g < groups.end; ++g) {
    GroupRows made = rows_of(p, part, lhs.strides, rhs.strides, rhs_source != nullptr, g);
    Product& product = made.product;
    const std::int64_t group = by_rows ? 0 : g - groups.begin, row = made.begin - part.rows.begin;
    if (product.k == 0) {  // what is added to stays as it is, whatever the arithmetic
      fill(group, made.begin, made.end, adds);
      continue;
    }
    product.a.data = by_rows ? lhs.data + (made.begin - first_row) * lhs.strides[0]
                             : lhs.data + (p.range(g).begin - first_row) * lhs.strides[1];
    if (rhs_source != nullptr)
      product.b_boxes.source = rhs_source;
    else
      product.b.data =
          by_rows ? rhs[g - groups.begin].data : rhs.data + (p.range(g).begin - first_row) * rhs.strides[0];
    product.out = out + (group * rows + row) * row_bytes;
    product.out_stride = row_bytes;
    product.stream = stream;
    if (adds) product.added = existing.row(group, row);
    product.added_stride = existing.row_stride;
    tasks.add(product, made.in_all, p.n);
  }
  tasks.run(progress);
}

std::int64_t work_bytes_of(const Problem& p, const Part& part, bool boxes_rhs) {
  Tasks tasks(matmul::arithmetic_of(p), p.tiling);
  const IndexRange groups = matmul::groups_of(p, part);
  for (std::int64_t g = groups.begin; g < groups.end; ++g)
    if (const GroupRows made = rows_of(p, part, p.lhs.strides, p.rhs.strides, boxes_rhs, g);
        made.product.k > 0)
      tasks.add(made.product, made.in_all, p.n);
  return tasks.work_bytes() +
         (p.existing_has_rows ? 0 : byte_count(matmul::box_of(p, part).count, p.out.dtype));
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

double GroupedMatmulPlan::flop() const { return matmul::flop_of(*problem_, matmul::whole_part(*problem_)); }

std::vector<RankWork> GroupedMatmulPlan::work(std::int64_t ranks, const GroupedMatmulRun& run) const {
  core::require_ranks(ranks);
  const Problem& p = *problem_;
  std::vector<RankWork> all;
  for (const std::vector<Part>& parts : matmul::divide(p, ranks)) {
    const bool is_first = all.empty(), reads_all = ranks == 1 || (run.verdict && is_first);
    RankWork work;
    // Reads operands of these shapes; returns the memory for them.
    const auto read = [&](const Shape& lhs, const Shape& rhs, const Shape& existing) {
      std::int64_t buffered = 0;
      const auto add = [&](const Shape& shape, DType dtype, bool is_mapped) {
        const std::int64_t bytes = byte_count(shape, dtype);
        work.read_bytes += bytes;
        if (!is_mapped) buffered += bytes;
      };
      add(lhs, p.lhs.dtype, run.maps_lhs);
      add(rhs, p.rhs.dtype, run.maps_rhs || run.boxes_rhs);
      if (p.has_existing) add(existing, p.out.dtype, run.maps_existing);
      return buffered;
    };
    const std::int64_t arguments = reads_all ? read(p.lhs.shape, p.rhs.shape, p.out.shape) : 0;
    std::int64_t most = 0;  // for any part
    for (const Part& part : parts) {
      const ArrayBox box = matmul::box_of(p, part);
      const GroupedMatmulNeeds needs = matmul::needs_of(p, part);
      const std::int64_t buffered = reads_all ? 0 : read(needs.lhs.count, needs.rhs.count, box.count);
      work.cost += matmul::flop_of(p, part);
      work.written_bytes += byte_count(box.count, p.out.dtype);
      most = std::max(most, buffered + work_bytes_of(p, part, run.boxes_rhs));
    }
    work.peak_bytes = arguments + work.written_bytes + most;
    if (run.verdict && is_first) {
      work.read_bytes += run.verdict->read_bytes;
      work.peak_bytes += (ranks > 1 ? p.out.bytes() : 0) + run.verdict->bytes;
    } else if (run.verdict) {
      work.sent_bytes = work.written_bytes;
    }
    all.push_back(work);
  }
  return all;
}

std::vector<std::vector<ArrayBox>> GroupedMatmulPlan::divide(std::int64_t ranks) const {
  core::require_ranks(ranks);
  std::vector<std::vector<ArrayBox>> boxes;
  for (const std::vector<Part>& parts : matmul::divide(*problem_, ranks)) {
    boxes.emplace_back();
    for (const Part& part : parts) boxes.back().push_back(matmul::box_of(*problem_, part));
  }
  return boxes;
}

GroupedMatmulNeeds GroupedMatmulPlan::needs(const ArrayBox& box) const {
  return matmul::needs_of(*problem_, matmul::part_of(*problem_, box));
}

void GroupedMatmulPlan::run(const ArrayView& lhs, const ArrayView& rhs,
                            const std::optional<ArrayView>& existing_out, const MutableArrayView& out,
                            const WorkProgress& progress) const {
  const Operands operands{lhs, rhs, existing_out};
  matmul::check_types(*problem_, operands, out.dtype, out.shape);
  const Part whole = matmul::whole_part(*problem_);
  const GroupedMatmulNeeds needs = matmul::needs_of(*problem_, whole);
  const ArrayView lhs_used = box_of(lhs, needs.lhs), rhs_used = box_of(rhs, needs.rhs);
  compute(*problem_, whole, {lhs_used, rhs_used, existing_out}, nullptr, out.data, progress);
}

void GroupedMatmulPlan::run(const ArrayBox& box, const ArrayView& lhs, const ArrayView& rhs,
                            const std::optional<ArrayView>& existing_out, const MutableArrayView& out,
                            const WorkProgress& progress) const {
  const Part part = matmul::part_of(*problem_, box);
  const GroupedMatmulNeeds needs = matmul::needs_of(*problem_, part);
  const Operands operands{lhs, rhs, existing_out};
  matmul::check_types(*problem_, needs.lhs.count, needs.rhs.count, box.count, operands, out.dtype, out.shape);
  compute(*problem_, part, operands, nullptr, out.data, progress);
}

void GroupedMatmulPlan::run(const ArrayBox& box, const ArrayView& lhs, const ArraySource& rhs,
                            const std::optional<ArrayView>& existing_out, const MutableArrayView& out,
                            const WorkProgress& progress) const {
  const Problem& p = *problem_;
  if (p.cut != Problem::Cut::rows || !rhs.random_access())
    throw Error(Error::Kind::internal, "rhs is read in boxes from random access, of plain products alone");
  const Part part = matmul::part_of(p, box);
  const GroupedMatmulNeeds needs = matmul::needs_of(p, part);
  if (rhs.shape() != p.rhs.shape || rhs.dtype() != p.rhs.dtype)
    throw core::invalid("rhs is {}; it was planned as {}", to_string(type_of(rhs)), to_string(p.rhs));
  const ArrayView rhs_type(nullptr, rhs.dtype(), needs.rhs.count);
  const Operands operands{lhs, rhs_type, existing_out};
  matmul::check_types(p, needs.lhs.count, needs.rhs.count, box.count, operands, out.dtype, out.shape);
  compute(p, part, operands, &rhs, out.data, progress);
}

Array grouped_matmul(const ArrayView& lhs, const ArrayView& rhs, const IntegerArray& group_sizes,
                     const GroupedMatmulOptions& options) {
  return multiply(lhs, rhs, group_sizes, options);
}

Array transposed_grouped_matmul(const ArrayView& lhs, const ArrayView& rhs, const IntegerArray& group_sizes,
                                const TransposedGroupedMatmulOptions& options) {
  return multiply(lhs, rhs, group_sizes, options);
}

}  // namespace ejk
