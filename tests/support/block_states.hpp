// The states of all blocks, including those not stored.
#pragma once

#include <cstdint>
#include <vector>

#include "ejk/report.hpp"

namespace ejk::test {

inline std::vector<std::uint8_t> all_states(const BlockStates& states) {
  std::vector<std::uint8_t> all;
  for (std::int64_t i = 0; i < states.rows(); ++i)
    for (std::int64_t j = 0; j < states.columns(); ++j) all.push_back(states.at(i, j));
  return all;
}

}  // namespace ejk::test
