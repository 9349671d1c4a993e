// Rows to look at where all of them would take too long.
// tests: tests/verify/test_sample.cpp
#pragma once

#include <cstdint>
#include <vector>

namespace ejk::verify {

/// Of `rows` rows, in order: the first, the last, and `more` between them, one at random from each of as many
/// equal parts; all where there are no more. The same for the same seed on any machine.
std::vector<std::int64_t> sample_rows(std::int64_t rows, std::int64_t more, std::int64_t seed = 0);

}  // namespace ejk::verify
