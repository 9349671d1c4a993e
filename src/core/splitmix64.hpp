// Numbers that look random, the same everywhere: for samples that a second run repeats.
#pragma once

#include <cstdint>

namespace ejk::core {

/// The n-th output of splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
constexpr std::uint64_t splitmix64(std::uint64_t n) {
  n += 0x9E3779B97F4A7C15u;
  n = (n ^ (n >> 30)) * 0xBF58476D1CE4E5B9u;
  n = (n ^ (n >> 27)) * 0x94D049BB133111EBu;
  return n ^ (n >> 31);
}

}  // namespace ejk::core
