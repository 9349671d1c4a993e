// Comparison of elements: whether two elements agree by the definition of ejk/compare.hpp.
// tests: tests/compare/test_compare.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

#include "ejk/compare.hpp"

namespace ejk::verify {

class ElementComparer {
 public:
  static constexpr std::int64_t kBlock = 2048;  // the largest block of mark()

  /// Within rtol and atol, within max_ulp units in the last place, or both. `form`: allclose, or a rule of a library by
  /// element.
  struct Rule {
    double rtol = 0, atol = 0;
    NanEqual nan = NanEqual::yes;
    bool by_size = true;
    std::optional<std::int64_t> max_ulp = {};
    /// The largest difference of an element out of tolerance; none: unlimited.
    struct Hard {
      double rtol = 0, atol = 0;
    };
    std::optional<Hard> hard = {};
    PassRule::Form form = PassRule::Form::allclose;
  };
  ElementComparer(DType actual, DType expected, const Rule& rule)
      : actual_(actual), expected_(expected), rule_(rule) {}

  struct Workspace {
    std::vector<std::byte> actual, expected, wide_actual, wide_expected;
  };

  /// differs[i] = 1 where element i of n is out of tolerance, else 0; returns how many are.
  std::int64_t mark(const std::byte* a, const std::byte* e, std::int64_t n, Workspace& workspace,
                    std::uint8_t* differs) const;

 private:
  DType actual_, expected_;
  Rule rule_;
};

void require_tolerances(std::initializer_list<std::optional<double>> tolerances);

ElementComparer::Rule rule_of(const Comparison& comparison, const Tolerance& tolerance);

}  // namespace ejk::verify
