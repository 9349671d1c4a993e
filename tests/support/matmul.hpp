// Grouped products: plans and checked arguments from options, random group sizes, options of golden cases.
#pragma once

#include <limits>
#include <random>

#include "ejk/grouped_matmul.hpp"
#include "matmul/problem.hpp"
#include "support/arrays.hpp"
#include "support/golden.hpp"

namespace plain {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Rows, contraction and columns of a product.
struct Lengths {
  std::int64_t m, k, n;
};

/// `groups` sizes that sum to at most m, some of them 0; to m itself when `all`.
inline Sizes random_sizes(std::int64_t groups, std::int64_t m, bool all, std::mt19937_64& engine) {
  Sizes sizes(static_cast<std::size_t>(groups));
  std::int64_t rest = m;
  for (std::int64_t& size : sizes) {
    if (engine() % 4 == 0) continue;
    size = static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(2 * m / groups + 1));
    size = std::min(size, rest);
    rest -= size;
  }
  if (all && groups > 0) sizes[engine() % sizes.size()] += rest;
  return sizes;
}

template <class Options>
std::optional<ejk::ArrayType> existing_type(const Options& options) {
  return options.existing_out ? std::optional(type_of(*options.existing_out)) : std::nullopt;
}

/// The plan of what these options ask for, and the checked arguments that it is made from.
template <class Options>
ejk::GroupedMatmulPlan plan_of(const ArrayView& lhs, const ArrayView& rhs, const ejk::ArraySource& sizes,
                               const Options& options) {
  return {type_of(lhs), type_of(rhs), sizes, options, existing_type(options)};
}
template <class Options>
ejk::matmul::Problem problem_of(const ArrayView& lhs, const ArrayView& rhs, const ejk::ArraySource& sizes,
                                const Options& options) {
  return ejk::matmul::checked(type_of(lhs), type_of(rhs), sizes, options, existing_type(options));
}

}  // namespace plain

namespace golden {

template <class How>
How options_of(const Case& c) {
  How how;
  how.dtype = *ejk::dtype_named(c.params.at("preferred_element_type").get<std::string>());
  const auto& tiling = c.params.at("tiling");
  how.tiling = ejk::Tiling{tiling[0], tiling[1], tiling[2]};
  if (!c.params.at("group_offset").is_null()) how.group_offset = c.params.at("group_offset");
  how.strict = c.params.at("strict");
  if (c.in.contains("existing_out")) how.existing_out = c.in.at("existing_out").view();
  if constexpr (std::is_same_v<How, ejk::GroupedMatmulOptions>)
    how.transpose_rhs = c.params.at("transpose_rhs");
  else if (!c.params.at("num_actual_groups").is_null())
    how.num_actual_groups = c.params.at("num_actual_groups");
  return how;
}

}  // namespace golden
