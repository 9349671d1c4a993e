// What the reports of all checks have in common.
// tests: tests/verify/test_describe.cpp
#pragma once

#include <cstdint>

#include "ejk/report.hpp"

namespace ejk::verify {

/// part / whole; nothing where the whole is 0.
ReportValue share_of(std::int64_t part, std::int64_t whole);

/// What the report of a check begins with.
Report describe_check(bool passed, bool every_element, std::int64_t elements, std::int64_t compared,
                      std::int64_t violating);

/// A table of elements that stand out, without rows: difference, what is allowed where `with_allowed`, index,
/// result, reference. `name` is the key of the first column, which says what a row is about.
Table table_of_differences(const char* name, bool with_allowed);

/// Adds what a check may not prove: that nothing was computed, or that nearly all of the elements compared
/// are 0 on both sides.
void warn_if_vacuous(Report& report, bool computed, std::int64_t compared, std::int64_t nonzero);

}  // namespace ejk::verify
