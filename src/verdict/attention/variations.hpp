// Known faults of attention kernels, each a Variation of the reference.
// tests: tests/verdict/attention/test_fault_models.cpp
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention/plan.hpp"
#include "verdict/attention/reference.hpp"

namespace ejk::attn {

/// One fault.
struct Change {
  std::string kind, text;
  std::function<void(Variation&)> apply;
  bool is_of_out = false;  // it changes nothing but out
  bool of_loop = false;    // of a loop over tiles of keys in the forward pass: not tried for a few elements
  bool is_coarse = false;  // a rounding that 16-bit weights show, too
};

inline constexpr std::int64_t kTileSizes[] = {16, 32, 64, 128, 256};

inline constexpr double kLn2 = 0.69314718055994530942;

/// Masks of problems; none: all pairs attend.
using ProblemMasks = std::shared_ptr<const std::vector<std::optional<Mask>>>;
/// Sets them, each at the index of its problem.
std::function<void(Variation&)> with_masks(ProblemMasks masks,
                                           std::function<std::size_t(const Problem&)> index);

/// Masks of packed sequences treated as one, by head: null where masks have lengths of their own.
ProblemMasks masks_of_one_sequence(const Plan& plan, const CheckedArguments& setup);
/// Sets such masks, and treats the sequences as one.
std::function<void(Variation&)> in_one_sequence(ProblemMasks of_heads);

struct Changes {
  std::vector<Change> of_scores;     // of masks, heads and weights, too: of the forward pass, or of all
  std::vector<Change> of_forward;    // of the forward pass alone: what a kernel reads, its loop over tiles
  std::vector<Change> of_gradients;  // of the backward pass, with the lse and δ of the reference

  Changes(const Plan& plan, const CheckedArguments& setup);
};

}  // namespace ejk::attn
