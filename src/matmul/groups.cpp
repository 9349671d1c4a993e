// Group sizes, checked, as offsets.
//
// One pass over the sizes; sums are 64-bit and checked, so sizes of any integer dtype are added without
// wrapping around. Source: include/ejk/groups.hpp.
// tests: tests/matmul/test_groups.cpp
#include "ejk/groups.hpp"

#include <fmt/format.h>

#include "core/checked.hpp"
#include "core/offsets.hpp"

namespace ejk {

namespace {

Error invalid(const ArraySource& source, std::string why) {
  return std::move(Error(Error::Kind::input, std::move(why)).at(source.name()));
}

}  // namespace

std::vector<std::int64_t> group_offsets(const ArraySource& group_sizes, std::int64_t m, bool strict) {
  if (m < 0) throw Error(Error::Kind::input, fmt::format("m is {}; it is at least 0", m));
  const std::vector<std::int64_t> sizes = core::read_integers(group_sizes, "group_sizes");
  std::vector<std::int64_t> offsets{0};
  offsets.reserve(sizes.size() + 1);
  for (std::size_t g = 0; g < sizes.size(); ++g) {
    if (sizes[g] < 0)
      throw invalid(group_sizes, fmt::format("group_sizes[{}] is {}; a size is at least 0", g, sizes[g]));
    const auto end = core::checked_add(offsets.back(), sizes[g]);
    if (!end)
      throw invalid(group_sizes,
                    fmt::format("group_sizes[{}] is {}: the sum up to it passes 63 bits", g, sizes[g]));
    if (*end > m)
      throw invalid(group_sizes,
                    fmt::format("group_sizes[{}] is {}: the sum up to it is {}, more than m = {}", g,
                                sizes[g], *end, m));
    offsets.push_back(*end);
  }
  if (strict && offsets.back() < m)
    throw invalid(group_sizes, fmt::format("group_sizes of {} groups sum to {}, less than m = {}",
                                           sizes.size(), offsets.back(), m))
        .hint("without strict, rows past the last group belong to none");
  return offsets;
}

}  // namespace ejk
