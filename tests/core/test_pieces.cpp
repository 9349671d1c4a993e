// Pieces cover the array once, in order, within the requested size.
#include "core/pieces.hpp"

#include <algorithm>
#include <numeric>

#include "io/support.hpp"

using namespace ejk;
using namespace ejk::test;

TEST_CASE("pieces cover every element once, in C order, and none is too large") {
  for (const Shape& shape :
       {Shape{}, Shape{7}, Shape{2, 3, 4}, Shape{5, 1, 3}, Shape{1, 1}, Shape{3, 0, 2}}) {
    const Array all = counting(shape);
    const auto source = make_source(Array::copy_of(all.view()));
    for (std::int64_t most = 1; most <= all.size() + 1; ++most) {
      std::vector<std::int32_t> seen;
      core::for_each_piece(shape, most, [&](const Shape& start, const Shape& count) {
        const std::int64_t n = element_count(count);
        CHECK(n <= most);
        seen.resize(seen.size() + static_cast<std::size_t>(n));
        source->read(start, count, seen.data() + seen.size() - static_cast<std::size_t>(n));
      });
      CHECK(std::equal(seen.begin(), seen.end(), all.elements<std::int32_t>().begin(),
                       all.elements<std::int32_t>().end()));
    }
  }
}

TEST_CASE("boxes make up any run of elements, in C order, at most two for each axis") {
  for (const Shape& shape :
       {Shape{}, Shape{7}, Shape{2, 3, 4}, Shape{5, 1, 3}, Shape{1, 1}, Shape{1, 4, 1}}) {
    const Array all = counting(shape);
    const auto source = make_source(Array::copy_of(all.view()));
    for (std::int64_t begin = 0; begin <= all.size(); ++begin) {
      for (std::int64_t end = begin; end <= all.size(); ++end) {
        std::vector<std::int32_t> seen;
        std::size_t boxes = 0;
        core::for_each_box(shape, begin, end, [&](const Shape& start, const Shape& count) {
          ++boxes;
          const auto n = static_cast<std::size_t>(element_count(count));
          seen.resize(seen.size() + n);
          source->read(start, count, seen.data() + seen.size() - n);
        });
        CHECK(boxes <= std::max<std::size_t>(1, 2 * shape.size()));
        REQUIRE(static_cast<std::int64_t>(seen.size()) == end - begin);
        CHECK(std::equal(seen.begin(), seen.end(), all.elements<std::int32_t>().begin() + begin));
      }
    }
  }
}

TEST_CASE("ranges of equal cost have every item once, in order, and cost at most a part and an item") {
  const auto costs_of = [](std::int64_t run, const std::vector<std::int64_t>& bounds,
                           const std::vector<double>& costs) {
    return std::accumulate(costs.begin() + bounds[static_cast<std::size_t>(run)],
                           costs.begin() + bounds[static_cast<std::size_t>(run) + 1], 0.0);
  };
  for (const std::vector<double>& costs : {std::vector<double>{},
                                           {5},
                                           {1, 1, 1, 1},
                                           {0, 0, 0},
                                           {1, 2, 3, 4, 5, 6, 7},
                                           {100, 1, 1, 1},
                                           {0, 9, 0, 9}})
    for (const std::int64_t parts : {1, 2, 3, 8}) {
      const std::vector<std::int64_t> bounds = ejk::core::even_runs(costs, parts);
      REQUIRE(static_cast<std::int64_t>(bounds.size()) == parts + 1);
      CHECK(bounds.front() == 0);
      CHECK(bounds.back() == static_cast<std::int64_t>(costs.size()));
      CHECK(std::is_sorted(bounds.begin(), bounds.end()));
      const double all = std::accumulate(costs.begin(), costs.end(), 0.0);
      const double largest = costs.empty() ? 0 : *std::max_element(costs.begin(), costs.end());
      for (std::int64_t run = 0; run < parts; ++run)
        CHECK(costs_of(run, bounds, costs) <= all / static_cast<double>(parts) + largest);
    }
  CHECK(ejk::core::even_runs(std::vector<double>{0, 0, 0, 0}, 2) == std::vector<std::int64_t>{0, 2, 4});
}
