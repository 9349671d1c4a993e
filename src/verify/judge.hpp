// Whether elements of two arrays agree, as ejk/compare.hpp says it: one judgement for all that compares them.
// tests: tests/verify/test_compare.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ejk/compare.hpp"

namespace ejk::verify {

class Judge {
 public:
  static constexpr std::int64_t kBlock = 2048;  // the most elements that are judged at a time

  Judge(DType actual, DType expected, double rtol, double atol, NanEqual nan)
      : actual_(actual), expected_(expected), rtol_(rtol), atol_(atol), nan_(nan) {}

  /// What one thread needs.
  struct Room {
    std::vector<std::byte> actual, expected, wide_actual, wide_expected;
  };

  /// differs[i] = 1 where element i of n does not agree, else 0; how many do not. Much faster where all surely agree.
  std::int64_t mark(const std::byte* a, const std::byte* e, std::int64_t n, Room& room,
                    std::uint8_t* differs) const;

 private:
  DType actual_, expected_;
  double rtol_, atol_;
  NanEqual nan_;
};

}  // namespace ejk::verify
