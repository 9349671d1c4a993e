// Sizes of groups: what claims say of them, with padding, and their balance for reports.
// tests: tests/check/test_groups.cpp
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/checked.hpp"
#include "ejk/check.hpp"
#include "ejk/report.hpp"

namespace ejk::check {

/// The rows of each group by the claimed group_sizes, or by the choices of the claimed topk_ids; nothing without
/// either. Throws Error{usage} for both, Error{input} for a choice that is no expert.
std::optional<std::vector<std::int64_t>> claimed_sizes(const GroupMetadataClaims& claims);

/// Rounded up to a multiple of `align`, at most INT64_MAX; 0 for negative rows.
inline std::int64_t padded_rows(std::int64_t rows, std::int64_t align) {
  const auto sum = core::checked_add(std::max<std::int64_t>(rows, 0), align - 1);
  return sum ? *sum / align * align : INT64_MAX;
}

/// Sizes of groups, or loads of experts, added one by one.
class Load {
 public:
  void add(std::int64_t group, std::int64_t rows) {
    ++groups_;
    empty_ += rows == 0;
    sum_ += static_cast<double>(rows);
    if (groups_ == 1 || rows > largest_) largest_ = rows, largest_group_ = group;
  }

  /// Names in the report: `group`, plural `groups`.
  void describe(Report& report, const std::string& group) const {
    const double count = static_cast<double>(groups_), mean = groups_ > 0 ? sum_ / count : 0;
    const auto share = [](double part, double whole) {
      return whole > 0 ? ReportValue(part / whole) : ReportValue();
    };
    report.add(group + "s", group + "s", groups_, Unit::count)
        .add("rows", "rows", whole_number(sum_), Unit::count)
        .add("empty", "empty " + group + "s", empty_, Unit::count)
        .add("empty_share", "of all", share(static_cast<double>(empty_), count), Unit::share)
        .add("largest", "largest", groups_ > 0 ? ReportValue(largest_) : ReportValue(), Unit::rows)
        .add("largest_index", "the largest is " + group,
             groups_ > 0 ? ReportValue(largest_group_) : ReportValue())
        .add("max_over_mean", "largest over mean", share(static_cast<double>(largest_), mean));
  }

 private:
  std::int64_t groups_ = 0, empty_ = 0, largest_ = 0, largest_group_ = 0;
  double sum_ = 0;
};

}  // namespace ejk::check
