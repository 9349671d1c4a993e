// Row samples, where all rows take too long.
// tests: tests/verify/test_sample.cpp
#pragma once

#include <cstdint>
#include <vector>

namespace ejk::verify {

/// The first, the last, and `more` between them, one at random from each of as many equal parts; all if there
/// are no more. Deterministic for a seed.
std::vector<std::int64_t> sample_rows(std::int64_t rows, std::int64_t more, std::int64_t seed = 0);

}  // namespace ejk::verify
