// The usual mistakes of attention and its gradients, tried on rows that are beyond their bound.
#pragma once

#include <memory>
#include <vector>

#include "attention/against.hpp"

namespace ejk::attn {

/// What makes the rows agree that are beyond their bound, best first; shares are of all of them. `arrays` are all
/// that were given.
std::vector<Explanation> explanations_of(const GivenAttention& given,
                                         const std::vector<std::unique_ptr<GivenArray>>& arrays);

}  // namespace ejk::attn
