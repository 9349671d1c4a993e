// Groups: rows of a matrix that belong to experts, one run of consecutive rows a group, and the metadata by
// which a tiled kernel walks them.
//
// Group g of G has n_g ≥ 0 rows, s_g … e_g − 1, where e_g = n_0 + … + n_g and s_g = e_g − n_g. Rows from
// e_{G−1} on belong to no group. Source: megablox in JAX and ejkernel's grouped matmul, whose arrays these
// equal to the element, except that tiles are counted in integers; src/matmul/groups.cpp states the
// procedure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/report.hpp"

namespace ejk {

/// 0, e_0, …, e_{G−1} of group_sizes (G,), any integer dtype, over m rows. Throws Error{input} that names the
/// index: another rank or dtype, a negative size, a sum above m; with `strict` also a sum below m.
std::vector<std::int64_t> group_offsets(const ArraySource& group_sizes, std::int64_t m, bool strict = false);

}  // namespace ejk
