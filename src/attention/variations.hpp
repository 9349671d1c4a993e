// Known faults of attention kernels, each a Variation of the reference.
// tests: tests/attention/test_fault_models.cpp
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention/plan.hpp"
#include "attention/reference.hpp"

namespace ejk::attn {

/// One fault. Plausible ones of different kinds are also tried in pairs.
struct Change {
  std::string kind, text;
  std::function<void(Variation&)> apply;
  bool plausible = false;
  bool is_of_out = false;  // it changes nothing but out
  bool of_loop = false;    // of a loop over tiles of keys in the forward pass: not tried for a few elements
};

inline constexpr std::int64_t kTileSizes[] = {16, 32, 64, 128, 256};

inline constexpr double kLn2 = 0.69314718055994530942;

class Changes {
 public:
  Changes(const Plan& plan, const CheckedArguments& setup);

  const std::vector<Change>& of_scores() const { return of_scores_; }
  const std::vector<Change>& of_forward() const { return of_forward_; }
  /// Those of its loop that happen in one tile: there are many.
  static std::vector<Change> of_one_tile(const CheckedArguments& setup);
  /// Of these a tile of keys that is left out.
  static std::vector<Change> of_left_out_tile(const CheckedArguments& setup);
  /// Of gradients: one tile of keys, or of queries where they are of keys, that is not added.
  static std::vector<Change> of_one_gradient_tile(const CheckedArguments& setup, bool of_key);
  const std::vector<Change>& of_gradients() const { return of_gradients_; }

 private:
  std::vector<Change> of_scores_, of_forward_, of_gradients_;
};

}  // namespace ejk::attn
