// What a backward pass begins with, for a variation of attention, by the library's kernels.
// tests: tests/attention/test_saved.cpp
#pragma once

#include <optional>

#include "attention/problem.hpp"
#include "attention/reference.hpp"

namespace ejk::attn {

/// lse and δ of every query. Nothing where the kernels cannot compute the variation: another order of the
/// soft cap, a bias that is multiplied or another one's, rounding.
std::optional<Reference::Saved> saved_by_kernels(const CheckedArguments& setup, const MaskPlan& plan,
                                                 const Variation& variation, const ArrayView& dout);

}  // namespace ejk::attn
