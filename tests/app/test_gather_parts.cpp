// gather_parts: assembly of arrays whose boxes are on different ranks.
#include "write_together.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "sources.hpp"
#include "support/boxes.hpp"
#include "support/thread_communicator.hpp"

using namespace ejk;
using namespace ejk::app;
using test::numbered;
using test::random_boxes;

namespace {

ArrayPart part_of(const Array& whole, const ArrayBox& box) {
  return {box, make_source(Array::copy_of(box_of(whole.view(), box)))};
}

bool same(const Array& a, const Array& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         std::equal(a.data(), a.data() + a.bytes(), b.data());
}

// What rank 0 gets of boxes that are dealt out in turn; nothing for the others.
void check_gathered(const Array& whole, const std::vector<ArrayBox>& boxes, std::int64_t ranks) {
  const std::vector<Array> got = test::results_of_ranks(ranks, [&](Communicator& comm) {
    std::vector<ArrayPart> parts;
    for (std::size_t b = 0; b < boxes.size(); ++b)
      if (static_cast<std::int64_t>(b) % comm.size() == comm.rank())
        parts.push_back(part_of(whole, boxes[b]));
    return gather_parts(comm, output_in_parts("x", type_of(whole.view()), std::move(parts)));
  });
  CHECK(same(got[0], whole));
  for (std::size_t r = 1; r < got.size(); ++r) CHECK(got[r].size() == 0);
}

}  // namespace

TEST_CASE("rank 0 gets the whole of an array that ranks hold in boxes") {
  std::mt19937 random(1);
  for (const Shape& shape : {Shape{}, Shape{0}, Shape{7}, Shape{3, 4, 5}, Shape{2, 0, 3}, Shape{2, 3, 4, 5}})
    for (const std::int64_t ranks : {1, 2, 3, 5, 16})
      for (const std::int64_t parts : {1, 4, 9})
        for (const DType dtype : {DType::uint8, DType::float64}) {
          CAPTURE(to_string(shape));
          CAPTURE(ranks);
          const Array whole = numbered(dtype, shape);
          check_gathered(whole, random_boxes(shape, parts, random), ranks);
        }
}

TEST_CASE("a large part goes in pieces, which are cut along any axis") {
  // Along the first axis, the second, and the last.
  for (const Shape& shape : {Shape{70, 1 << 19}, Shape{2, 37, 1 << 19}, Shape{2, (5 << 22) + 3}}) {
    CAPTURE(to_string(shape));
    const Array whole = numbered(DType::uint8, shape);
    ArrayBox first = whole_box(shape), second = first;
    first.count.back() = 1 << 19;
    second.start.back() = first.count.back();
    second.count.back() -= first.count.back();
    check_gathered(whole, {first, second}, 2);
    check_gathered(whole, {second, first}, 2);
  }
}

TEST_CASE("an array that all ranks can read is read by rank 0 alone") {
  const Array whole = numbered(DType::int32, {3, 2});
  const std::vector<Array> got = test::results_of_ranks(3, [&](Communicator& comm) {
    return gather_parts(comm, {"x", make_source(whole.view()), {}});
  });
  CHECK(same(got[0], whole));
  CHECK(got[1].size() == 0);
}
