// Checks of the arguments of grouped products: ranks, dtypes and lengths that must agree, then group sizes,
// then what depends on both. Cost: group sizes are read once.
// tests: tests/matmul/test_grouped.cpp
#include "matmul/problem.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/checked.hpp"
#include "core/require.hpp"
#include "ejk/error.hpp"
#include "ejk/grouped_matmul.hpp"
#include "ejk/groups.hpp"

namespace ejk::matmul {

namespace {

using core::invalid;

void check_factor(const ArrayType& type, const char* name, std::int64_t rank, const char* form) {
  if (!is_wide_float(type.dtype))
    throw Error(Error::Kind::input,
                fmt::format("{} is {}; float16, bfloat16, float32 and float64 are multiplied", name,
                            name_of(type.dtype)),
                Error::Code::not_floats)
        .about(name);
  if (type.rank() != rank)
    throw invalid(fmt::format("{} is {}, not of shape {}", name, form, to_string(type.shape))).about(name);
}

void set_tiling(Problem& p, const std::optional<Tiling>& given, const TilingTable* table, bool strict) {
  p.tiling = given;
  if (!given && table != nullptr) {
    p.table = table->name();
    if (const TilingTable::Row* row = table->find(p.m, p.k, p.n)) {
      p.tiling = row->tiling;
      p.tiling_line = row->line;
    }
  }
  if (!p.tiling) return;
  const Tiling& tiling = *p.tiling;
  if (tiling.tm < 1 || tiling.tk < 1 || tiling.tn < 1)
    throw invalid(
        fmt::format("a tiling has positive lengths, not {} x {} x {}", tiling.tm, tiling.tk, tiling.tn));
  if (strict && p.m % tiling.tm != 0)
    throw invalid(fmt::format("m = {} is not a multiple of tm = {}", p.m, tiling.tm));
}

// `computed`: how many groups are, if it is known without the groups.
void set_groups(Problem& p, const IntegerArray& groups_given, GroupsGiven form, std::int64_t group_offset,
                std::int64_t computed, bool strict) {
  p.ranges = form == GroupsGiven::sizes
                 ? GroupRanges(group_offsets(groups_given, p.m, strict))
                 : GroupRanges::of_rows(groups_given, p.m,
                                        core::checked_add(std::max<std::int64_t>(group_offset, 0), computed)
                                            .value_or(std::numeric_limits<std::int64_t>::max()),
                                        strict);
  p.has_labels = form == GroupsGiven::row_groups;
  p.first_group = group_offset;
  const std::int64_t groups = p.groups_in_all();
  if (group_offset < 0 || group_offset > groups)
    throw std::move(core::usage("group_offset is {}, beyond the {} that there are", group_offset,
                                groups == 1 ? "1 group" : fmt::format("{} groups", groups))
                        .at(groups_given->name()));
}

void set_out(Problem& p, DType dtype, Shape shape, const std::optional<ArrayType>& existing) {
  if (!is_wide_float(dtype))
    throw invalid(
        fmt::format("the result must be float16, bfloat16, float32 or float64, not {}", name_of(dtype)));
  p.out = {dtype, shape};
  if (!existing) return;
  if (existing->shape != shape)
    throw invalid(fmt::format("existing_out has the shape {}, the result {}", to_string(existing->shape),
                              to_string(shape)))
        .about("existing_out");
  if (existing->dtype != dtype)
    throw invalid(fmt::format("existing_out is {}, the result {}", name_of(existing->dtype), name_of(dtype)))
        .about("existing_out");
  p.has_existing = true;
  p.existing_has_rows = existing->strides.back() == size_of(dtype) || shape.back() == 1;
}

}  // namespace

Problem checked(const ArrayType& lhs, const ArrayType& rhs, const IntegerArray& group_sizes,
                const GroupedMatmulSettings& settings, const std::optional<ArrayType>& existing_out) {
  check_factor(lhs, "lhs", 2, "(m, k)");
  check_factor(rhs, "rhs", 3, settings.transpose_rhs ? "(groups, n, k)" : "(groups, k, n)");
  Problem p;
  p.cut = Problem::Cut::rows;
  p.lhs = lhs;
  p.rhs = rhs;
  p.existing = settings.existing;
  p.transpose_rhs = settings.transpose_rhs;
  p.m = lhs.shape[0];
  p.k = lhs.shape[1];
  p.n = rhs.shape[settings.transpose_rhs ? 1 : 2];
  const std::int64_t rhs_k = rhs.shape[settings.transpose_rhs ? 2 : 1];
  if (rhs_k != p.k)
    throw Error(Error::Kind::input,
                fmt::format("lhs {} has k = {}, rhs {} has k = {}", to_string(lhs.shape), p.k,
                            to_string(rhs.shape), rhs_k),
                p.n != p.k               ? Error::Code::other
                : settings.transpose_rhs ? Error::Code::plain_rhs
                                         : Error::Code::transposed_rhs)
        .about("lhs");
  set_tiling(p, settings.tiling, settings.tiling_table, settings.strict);
  p.groups = rhs.shape[0];
  set_groups(p, group_sizes, settings.groups, settings.group_offset, p.groups, settings.strict);
  if (p.groups > p.groups_in_all() - p.first_group)
    throw invalid(fmt::format("rhs has {} matrices, and from group_offset {} on there are {} of {} groups",
                              p.groups, p.first_group, p.groups_in_all() - p.first_group, p.groups_in_all()))
        .about("rhs");
  set_out(p, settings.dtype, {p.m, p.n}, existing_out);
  return p;
}

Problem checked(const ArrayType& lhs, const ArrayType& rhs, const IntegerArray& group_sizes,
                const TransposedGroupedMatmulSettings& settings,
                const std::optional<ArrayType>& existing_out) {
  check_factor(lhs, "lhs", 2, "(k, m)");
  check_factor(rhs, "rhs", 2, "(m, n)");
  Problem p;
  p.cut = Problem::Cut::contraction;
  p.lhs = lhs;
  p.rhs = rhs;
  p.k = lhs.shape[0];
  p.m = lhs.shape[1];
  p.n = rhs.shape[1];
  if (rhs.shape[0] != p.m)
    throw Error(Error::Kind::input,
                fmt::format("lhs {} has m = {}, rhs {} has m = {}", to_string(lhs.shape), p.m,
                            to_string(rhs.shape), rhs.shape[0]),
                rhs.shape[0] == p.k ? Error::Code::transposed_lhs : Error::Code::other)
        .about("lhs");
  set_tiling(p, settings.tiling, settings.tiling_table, settings.strict);
  set_groups(p, group_sizes, settings.groups, settings.group_offset,
             settings.num_actual_groups ? std::max<std::int64_t>(*settings.num_actual_groups, 0) : 0,
             settings.strict);
  const std::int64_t left = p.groups_in_all() - p.first_group;
  p.groups = settings.num_actual_groups.value_or(left);
  if (p.groups < 0 || p.groups > left)
    throw core::usage("num_actual_groups is {}, and from group_offset {} on there are {} of {} groups",
                      p.groups, p.first_group, left, p.groups_in_all());
  set_out(p, settings.dtype, {p.groups, p.k, p.n}, existing_out);
  return p;
}

void check_types(const Problem& problem, const Operands& operands, DType out_dtype, const Shape& out_shape) {
  check_types(problem, problem.lhs.shape, problem.rhs.shape, problem.out.shape, operands, out_dtype,
              out_shape);
}

void check_types(const Problem& problem, const Shape& lhs, const Shape& rhs, const Shape& out,
                 const Operands& operands, DType out_dtype, const Shape& out_shape) {
  const auto require = [](const char* name, const ArrayType& planned, const Shape& planned_shape, DType dtype,
                          const Shape& shape) {
    if (dtype != planned.dtype || shape != planned_shape)
      throw invalid(fmt::format("{} is {} {}; it was planned as {} {}", name, name_of(dtype),
                                to_string(shape), name_of(planned.dtype), to_string(planned_shape)));
  };
  require("lhs", problem.lhs, lhs, operands.lhs.dtype, operands.lhs.shape);
  require("rhs", problem.rhs, rhs, operands.rhs.dtype, operands.rhs.shape);
  require("out", problem.out, out, out_dtype, out_shape);
  const auto& existing = operands.existing_out;
  if (existing.has_value() != problem.has_existing)
    throw invalid(fmt::format("existing_out is {}, and the plan was made {} it",
                              existing ? "given" : "not given", existing ? "without" : "for"));
  if (existing) require("existing_out", problem.out, out, existing->dtype, existing->shape);
}

}  // namespace ejk::matmul
