// Units of values: in text ("12.3 %", "1.5 GiB") and as the ending of a JSON key ("_bytes").
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ejk/report.hpp"

namespace ejk::report {

/// A number with its unit as in "1,024 blocks".
std::string with_unit(const ReportValue& value, Unit unit);

/// A cell of a table, without its unit; elements in as many digits as distinguish those of the row.
std::string cell(const Table& table, std::size_t row, std::size_t column);

/// A share in percent with as many digits as tell it from 0 % and 100 %.
std::string percent(double share);

/// "_bytes" for Unit::bytes; empty for most.
std::string_view key_ending(Unit unit);

}  // namespace ejk::report
