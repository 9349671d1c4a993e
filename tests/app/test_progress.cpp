// The progress line on terminals of any width.
#include "progress.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

using namespace ejk::app;

TEST_CASE("a progress bar leaves the last column of a terminal free, however narrow that is") {
  for (int columns = 0; columns <= 240; ++columns)
    for (const double share : {0.0, 0.001, 0.07, 0.5, 1.0})
      for (const double elapsed : {0.1, 59.0, 3599.0, 80000.0})
        CHECK(static_cast<int>(progress_line(share, elapsed, columns).size()) < std::max(columns, 1));
}

TEST_CASE("a narrow terminal has less of the progress bar, the percentage last of all") {
  CHECK(progress_line(0.5, 90, 80) == "[###############               ]  50 %, 1:30 min left");
  CHECK(progress_line(0.5, 90, 40) == "[#######        ]  50 %, 1:30 min left");
  CHECK(progress_line(0.5, 90, 20) == "[##   ]  50 %");
  CHECK(progress_line(0.5, 90, 10) == " 50 %");
  CHECK(progress_line(0, 0, 80) == "[                              ]   0 %");
}
