// The usual mistakes of attention and its gradients, tried on rows that are beyond their bound.
#pragma once

#include <memory>
#include <vector>

#include "attention/against.hpp"

namespace ejk::attn {

/// Adds to `against` what makes the elements agree that are beyond their bound. `arrays` are all that were given;
/// `tried` are masks that are tried first.
void explain(const GivenAttention& given, const std::vector<std::unique_ptr<GivenArray>>& arrays,
             const std::vector<TriedMask>& tried, Against& against);

/// Bytes that this takes beside what is there.
double explain_bytes(const CheckedArguments& setup);

}  // namespace ejk::attn
