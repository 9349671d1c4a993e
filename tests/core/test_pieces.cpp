// Pieces: together they are the array, in order, and none is larger than asked.
#include "core/pieces.hpp"

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
