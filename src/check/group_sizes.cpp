// Group sizes, in one pass; their sum in 128 bits cannot overflow.
// tests: tests/check/test_groups.cpp
#include <fmt/format.h>

#include <limits>

#include "check/groups.hpp"
#include "check/integers.hpp"

namespace ejk {

Findings check_group_sizes(const IntegerArray& group_sizes, std::optional<std::int64_t> m,
                           const CheckOptions& options) {
  check::require_integers(*group_sizes, "group_sizes", 1, 1, "a 1-D array");
  check::require_claim("m", m.value_or(0), 0);
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  Findings found(rules_of("group-sizes"), options.most_findings);
  check::Load load;
  __extension__ __int128 sum = 0;
  std::int64_t first = 0, before = 0;
  bool ascends = true;
  check::scan(*group_sizes, options, [&](std::span<const std::int64_t> sizes, std::int64_t begin) {
    for (std::size_t k = 0; k < sizes.size(); ++k) {
      const std::int64_t g = begin + static_cast<std::int64_t>(k), size = sizes[k];
      if (size < 0) check::add(found, "negative", g, "group_sizes", {g}, size, "less than 0");
      ascends = ascends && before <= size;
      if (g == 0) first = size;
      before = size;
      const bool fitted = sum <= kMost;
      sum += size;
      load.add(g, size);
      if (fitted && sum > kMost)
        check::add(found, "int32", g, "group_sizes", {g}, size,
                   fmt::format("the sum up to it is beyond {}", kMost));
    }
  });
  if (m && sum != *m) {
    const bool fits = sum <= INT64_MAX && sum >= INT64_MIN;
    check::add(found, "sum", 0, "group_sizes", {},
               fits ? ReportValue(static_cast<std::int64_t>(sum)) : ReportValue(static_cast<double>(sum)),
               "the sum of the sizes; " + check::there_are(*m, "row") +
                   (ascends && before == *m ? ". They never decrease and end there: ends of groups?" : ""));
  }
  const std::int64_t groups = group_sizes->shape()[0];
  if (groups >= (m ? 2 : 4) && ascends && first < before && !(m && sum == *m))
    check::add(found, "ends", 0, "group_sizes", {}, {},
               "they never decrease, as where groups end; the number of rows would tell");
  load.describe(found.facts(), "group");
  return found;
}

}  // namespace ejk
