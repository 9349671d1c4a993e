// Fault models of attention and its gradients, for results that are out of tolerance.
#pragma once

#include <memory>
#include <vector>

#include "attention/against.hpp"

namespace ejk::attn {

/// Adds explanations of the elements out of tolerance. `arrays`: all results; `tried`: masks to try first.
void explain(const ActualAttention& given, const std::vector<std::unique_ptr<ActualArray>>& arrays,
             const std::vector<TriedMask>& tried, Against& against);

double explain_bytes(const CheckedArguments& setup);

}  // namespace ejk::attn
