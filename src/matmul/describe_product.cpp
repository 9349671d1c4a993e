// Report on the plan of a grouped product: operands and cost.
// tests: tests/cli/grouped-matmul/grouped-matmul.case
#include <fmt/format.h>

#include "ejk/grouped_matmul.hpp"
#include "ejk/program/text.hpp"
#include "ejk/report.hpp"
#include "matmul/problem.hpp"

namespace ejk {

namespace {

const char* fate_of_other_rows(const matmul::Problem& p) {
  if (p.cut == matmul::Problem::Cut::contraction) return "left out";
  return p.has_existing ? "as they are in existing_out" : "0 in the result";
}

}  // namespace

Report describe(const GroupedMatmulPlan& plan) {
  const matmul::Problem& p = plan.internal();
  const std::int64_t rows = p.rows_in(p.around({0, p.groups})), in_groups = p.rows_in({0, p.m}),
                     rest = p.m - in_groups;
  std::int64_t empty = 0;
  for (std::int64_t g = 0; g < p.groups; ++g) empty += p.range(g).count() == 0;

  Report report;
  report.add("lhs", "lhs", p.lhs.shape)
      .add("rhs", "rhs", p.rhs.shape)
      .add("out", "out", p.out.shape)
      .add("factors", "factors", fmt::format("{}, {}", name_of(p.lhs.dtype), name_of(p.rhs.dtype)))
      .add("dtype", "dtype", std::string(name_of(p.out.dtype)))
      .add("groups", "groups", p.groups_in_all(), Unit::count)
      .add("first_group", "first computed", p.first_group, Unit::count)
      .add("groups_computed", "computed", p.groups, Unit::count)
      .add("empty_groups", "empty among them", empty, Unit::count)
      .add("rows", "their rows", rows, Unit::rows)
      .add("rows_of_other_groups", "rows of other groups", in_groups - rows, Unit::rows)
      .add("rows_of_no_group", "rows of no group", rest, Unit::rows)
      .add("work", "work", whole_number(plan.flop()), Unit::flop)
      .add("size", "size", p.out.bytes(), Unit::bytes)
      .add("tiling", "tiling", p.tiling ? to_string(*p.tiling) : std::string("automatic"));
  if (p.table)
    report.add("tiling_line", "line of the tiling table",
               p.tiling_line ? ReportValue(*p.tiling_line) : ReportValue());
  if (rest > 0 && !p.has_labels)  // labels say so themselves
    report.warnings.push_back(fmt::format("{} of {} rows belong to no group: they are {}", format_count(rest),
                                          format_count(p.m), fate_of_other_rows(p)));
  if (p.table && !p.tiling_line)
    report.warnings.push_back(fmt::format("{}: no line for m = {}, k = {}, n = {}", *p.table, p.m, p.k, p.n));
  return report;
}

}  // namespace ejk
