// Options that state when numbers agree, for comparisons and audits.
#pragma once

#include <optional>
#include <string>

#include "ejk/compare.hpp"

namespace ejk::app {

/// At least 0, and finite. Throws Error{usage}.
double read_tolerance(const std::string& word);

/// The limit of --metric cos, snr or rel: that of --at-least, of rel that of --at-most. Throws Error{usage} without it,
/// and for the other one.
MetricLimit metric_limit(const std::string& metric, const std::optional<double>& at_least,
                         const std::optional<double>& at_most);

}  // namespace ejk::app
