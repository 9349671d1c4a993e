// Faults of the catalogue for one attention problem: each variant is a Variation of the reference.
// tests: tests/verdict/audit/test_attention.cpp
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "attention/plan.hpp"
#include "ejk/audit.hpp"
#include "verdict/attention/reference.hpp"

namespace ejk::audits {

struct Variant {
  const Fault* fault = nullptr;
  std::string parameter;  // empty: the fault has none
  std::string text;       // what this kernel does
  attn::Variation variation = {};
  enum class Zeros : std::uint8_t { none, all, tail } zeros = Zeros::none;
  std::string remedy = {};  // what would show it, where nothing changes
};

struct AttentionFaults {
  std::vector<Variant> variants;
  std::vector<Audit::NotTried> not_tried;
};

/// Queries of a tile of `tail-unwritten`.
inline constexpr std::int64_t kWrittenTile = 64;

AttentionFaults faults_of_forward(const attn::Plan& plan, const attn::CheckedArguments& setup,
                                  bool aligns_bottom_right);
AttentionFaults faults_of_gradients(const attn::CheckedArguments& setup);

}  // namespace ejk::audits
