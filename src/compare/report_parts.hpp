// Report parts that all checks have in common.
// tests: tests/compare/test_report_parts.cpp
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "ejk/program/explain.hpp"
#include "ejk/report.hpp"

namespace ejk::verify {

template <class T>
ReportValue value_or_null(const std::optional<T>& value) {
  return value ? ReportValue(*value) : ReportValue();
}

inline ReportValue text_or_null(std::string text) {
  return text.empty() ? ReportValue() : ReportValue(std::move(text));
}

Report describe_check(bool passed, bool every_element, std::int64_t elements, std::int64_t compared,
                      std::int64_t violating);

/// Difference, tolerance if `with_allowed`, index, result, reference. `name`: the key of the first column.
Table table_of_differences(const char* name, bool with_allowed);

/// A remark where nothing was computed, or nearly all compared elements are 0 on both sides.
void warn_if_vacuous(Report& report, bool computed, std::int64_t compared, std::int64_t nonzero);

/// Rows that belong to no group, some of them wrong, apart from those of groups. `counted`: the key of
/// `wrong`, elements.
Section no_group_section(std::int64_t rows, const char* counted, std::int64_t elements, std::int64_t wrong,
                         std::int64_t not_numbers, bool groups_agree);

/// The text of the first cause, its share unless that is all, and how many others there are.
std::string text_of_causes(const Explanation& first, std::size_t others);

/// "12.5 % of the elements differ, by up to 2.98 at (0, 0, 1, 31): times 2", or "close".
std::string verdict_of(const Explained& explained);

/// The error in units of what is allowed; infinite where it is not finite.
double excess_of(const NoWorseThan& rule);
Section section_of(const NoWorseThan& rule);
/// Of a library, one for each array.
Section section_of(const std::vector<PassRule>& rules);

/// Fields, pictures and tables become details, but for tables of these keys.
void keep_brief(Report& report, std::initializer_list<std::string_view> tables);

}  // namespace ejk::verify
