// Report of a check: the keys and labels that all checks have.
// tests: tests/compare/test_report_parts.cpp
#include "compare/report_parts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>
#include <variant>

#include "ejk/compare.hpp"
#include "ejk/program/text.hpp"

namespace ejk::verify {

Report describe_check(bool passed, bool every_element, std::int64_t elements, std::int64_t compared,
                      std::int64_t violating) {
  Report report;
  report.add("passed", "within the tolerance", passed)
      .add("method", "compared with float64", std::string(every_element ? "every element" : "sampled rows"))
      .add("elements", "elements", elements, Unit::count)
      .add("compared", "compared", compared, Unit::count)
      .add("violating", "beyond the tolerance", violating, Unit::count);
  return report;
}

Table table_of_differences(const char* name, bool with_allowed) {
  Table table{
      "differences", "largest differences from float64", {{name, ""}, {"difference", "difference"}}, {}};
  if (with_allowed) table.columns.push_back({"allowed", "allowed"});
  table.columns.insert(
      table.columns.end(),
      {{"index", "index"}, {"value", "result", Unit::value}, {"reference", "float64", Unit::value}});
  return table;
}

void warn_if_vacuous(Report& report, bool computed, std::int64_t compared, std::int64_t nonzero) {
  if (!computed)
    report.add(Remark{"Nothing was computed, so there was nothing to check."});
  else if (nonzero * 100 < compared)
    report.add(Remark{fmt::format("This proves little: of {} elements compared, {} are not 0.",
                                  format_count(compared), format_count(nonzero))});
}

Section no_group_section(std::int64_t rows, const char* counted, std::int64_t elements, std::int64_t wrong,
                         std::int64_t not_numbers, bool groups_agree) {
  Report report;
  report.add("rows", "rows", rows, Unit::rows)
      .add("elements", "elements", elements, Unit::count)
      .add(counted, "of them wrong", wrong, Unit::count)
      .add("not_numbers", "of them NaN or infinite", not_numbers, Unit::count)
      .add("groups_agree", "rows of groups agree", groups_agree);
  report.add(Remark{
      groups_agree
          ? "Only rows of no group are wrong: many kernels leave them uninitialised. What reads them must ignore "
            "them, or they must be set to 0."
          : "Rows of no group are wrong, as many kernels leave them uninitialised, and rows of groups are, too."});
  return {"no_group", "rows of no group", std::make_shared<Report>(std::move(report))};
}

std::string text_of_causes(const Explanation& first, std::size_t others) {
  constexpr double kAll = 0.995;
  std::string text = first.text;
  if (first.share_explained < kAll)
    text += fmt::format(" ({} of it)", to_text(first.share_explained, Unit::share));
  if (others > 0) text += fmt::format(", and {} more cause{}", others, others == 1 ? "" : "s");
  return text;
}

std::string verdict_of(const Explained& explained) {
  const Comparison& c = explained.comparison;
  if (c.close) return "close";
  if (!c.same_shape()) {
    const std::string text =
        fmt::format("the shapes differ, {} and {}", to_string(c.actual_shape), to_string(c.expected_shape));
    return !explained.permuted
               ? text
               : fmt::format("{}: the axes are in another order{}", text,
                             explained.permuted->comparison.close ? "" : ", and elements differ then");
  }
  if (explained.no_worse_than) {
    const NoWorseThan& rule = *explained.no_worse_than;
    if (!rule.error) return "elements are NaN or infinite on one side";
    const std::string by =
        fmt::format("the error is {:.3g}, that of the other implementation {:.3g}, and {:.3g} is allowed",
                    *rule.error, rule.reference_error, rule.allowed);
    return explained.explanations.empty()
               ? by
               : by + ": " + text_of_causes(explained.explanations[0], explained.explanations.size() - 1);
  }
  std::string text =
      fmt::format("{} of the elements differ", to_text(share_of(c.differing, c.elements), Unit::share));
  if (c.largest_absolute)
    text += fmt::format(", by up to {:.3g} at {}", c.largest_absolute->amount,
                        to_string(c.largest_absolute->index));
  else if (c.differing > 0)
    text += ", all of them NaN or infinite on one side";
  if (std::find(c.failed.begin(), c.failed.end(), "metric") != c.failed.end()) {
    if (c.rms_ratio && c.one_sided_nans + c.one_sided_infinities == 0)
      text = fmt::format("the RMS of the error is {:.3g} of that of EXPECTED, and {:.3g} is allowed",
                         *c.rms_ratio, c.rule->rtol);
    else
      text += "; the metric is out of its limit";
  }
  if (explained.axes.empty()) return text;  // no explanation was tried
  if (explained.explanations.empty()) return text + ": nothing that was tried accounts for it";
  constexpr double kMost = 0.5;
  if (explained.share_explained < kMost) return text + ": nothing that was tried accounts for most of it";
  return text + ": " + text_of_causes(explained.explanations[0], explained.explanations.size() - 1);
}

double excess_of(const NoWorseThan& rule) {
  if (!rule.error) return std::numeric_limits<double>::infinity();
  return rule.passes() && rule.allowed == 0 ? 0 : *rule.error / rule.allowed;
}

Section section_of(const NoWorseThan& rule) {
  auto report = std::make_shared<Report>();
  report->add("factor", "factor", rule.factor)
      .add("error", "error", value_or_null(rule.error))
      .add("reference_error", "error of the other", rule.reference_error)
      .add("allowed", "allowed", rule.allowed);
  return {"no_worse_than", "beside another implementation", std::move(report)};
}

Section section_of(const std::vector<PassRule>& rules) {
  auto report = std::make_shared<Report>();
  std::vector<std::string> texts;
  for (const PassRule& rule : rules)
    if (std::string text = text_of(rule); std::find(texts.begin(), texts.end(), text) == texts.end())
      texts.push_back(std::move(text));
  report->add("name", "of", rules[0].name)
      .add("text", "what it is", fmt::format("{}", fmt::join(texts, "; ")));
  return {"tolerance", "the tolerance", std::move(report)};
}

void keep_brief(Report& report, std::initializer_list<std::string_view> tables) {
  report.move_to_details([tables](const Report::Item& item) {
    if (const auto* table = std::get_if<Table>(&item))
      return std::find(tables.begin(), tables.end(), table->key) != tables.end();
    const auto* const section = std::get_if<Section>(&item);
    if (section != nullptr && (section->key == "no_worse_than" || section->key == "tolerance"))
      return false;  // the verdict has it
    return !std::holds_alternative<Field>(item) && !std::holds_alternative<BlockPicture>(item);
  });
}

}  // namespace ejk::verify

namespace ejk {

Table table_of(const std::vector<Explanation>& explanations) {
  Table table{"explanations",
              "what accounts for it",
              {{"kind", "kind"}, {"share_explained", "of what differs", Unit::share}, {"text", "what it is"}},
              {}};
  for (const Explanation& e : explanations) table.rows.push_back({e.kind, e.share_explained, e.text});
  return table;
}

}  // namespace ejk
