// Partial results of attention over disjoint keys joined to the result over all of them, as for split keys,
// cascades, chunked prefill and context parallelism.
//
// With out_n and lse_n of part n, and m = max lse_n:
//   w_n = exp(lse_n − m),  out = Σ w_n out_n / Σ w_n,  lse = m + ln Σ w_n
// A part without keys for a row has lse = −∞ and no weight, whatever its out; a row that has none in any part
// has out = 0 and lse = −∞. Arithmetic is float64, in the order of the parts, rounded once. A sink belongs to
// one part: counted in each, it is counted as often. Cost: one pass over the parts.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/attention.hpp"

namespace ejk {

struct AttentionState {
  ArrayView out;  // any float dtype, in the layout
  ArrayView lse;  // any float dtype
};

struct MergeSettings {
  std::optional<AttentionLayout> layout;  // of out; absent: bshd of four axes, thd of three
  std::optional<LseLayout> lse_layout;    // absent: the one that fits, hn where both do
  LseBase lse_base = LseBase::e;
  LseEmpty lse_empty = LseEmpty::minus_infinity;  // or infinity: then +∞ is a part without keys, too
  std::optional<DType> dtype;                     // of out; absent: of the first part's
};

struct MergedStates {
  Array out;  // shaped as a part's
  Array lse;  // shaped as a part's; float32, float64 where any lse is
  std::int64_t parts = 0;
  std::int64_t rows = 0, rows_without_key = 0;
  std::int64_t rows_not_finite = 0;  // with an lse of NaN or +∞ in a part
  Shape first_row_not_finite;        // its index in lse; empty where there is none
};

/// Throws Error{input} for no part, other shapes than those of the first part, an lse that does not fit.
MergedStates merge_states(const std::vector<AttentionState>& parts, const MergeSettings& settings = {});

/// The parts of stacked arrays: index n of this axis of both. Throws Error{input} without such an axis.
std::vector<AttentionState> unstacked(const AttentionState& stacked, std::int64_t axis);

Report describe(const MergedStates& merged);

}  // namespace ejk
