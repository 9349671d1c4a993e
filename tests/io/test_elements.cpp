// Elements written into a file that is laid out: the bytes are those of a file that is written in one go.
#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "ejk/io.hpp"
#include "ejk/text.hpp"
#include "io/support.hpp"

using ejk::Array;
using ejk::ArrayBox;
using ejk::DType;
using ejk::Shape;

namespace {

Array numbered(const Shape& shape) {
  Array array(DType::int32, shape);
  std::int32_t next = 1;
  for (std::int32_t& value : array.elements<std::int32_t>()) value = next++;
  return array;
}

// A box cut in two along some axis, again and again.
std::vector<ArrayBox> random_boxes(const Shape& shape, std::mt19937& random) {
  std::vector<ArrayBox> boxes{ejk::whole_box(shape)};
  for (int cut = 0; cut < 5 && !shape.empty(); ++cut) {
    ArrayBox& box = boxes[random() % boxes.size()];
    const std::size_t axis = random() % shape.size();
    if (box.count[axis] < 2) continue;
    ArrayBox rest = box;
    const std::int64_t at = 1 + static_cast<std::int64_t>(random()) % (box.count[axis] - 1);
    rest.start[axis] += at;
    rest.count[axis] -= at;
    box.count[axis] = at;
    boxes.push_back(rest);
  }
  return boxes;
}

}  // namespace

TEST_CASE("boxes of an array written to their place make the same file as the whole array") {
  std::mt19937 random(1);
  const ejk::test::Folder folder;
  for (const Shape& shape : {Shape{}, {1}, {7}, {3, 5}, {4, 1, 6}, {2, 3, 4, 5}, {0, 4}, {1200, 700}}) {
    const Array array = numbered(shape), other = numbered({3}), more = numbered({70, 20});
    const auto source = ejk::make_source(array.view());
    const std::vector<ejk::NamedArray> arrays{
        {"x", source}, {"y", ejk::make_source(other.view())}, {"z", ejk::make_source(more.view())}};
    for (const char* name : {"a.npy", "a.h5", "a/", "a.npz"}) {
      const bool one = std::string(name) == "a.npy";
      const auto write = [&](const std::string& target, const ejk::WriteOptions& options) {
        const std::string word = folder / target;
        if (one)
          write_array(ejk::parse_output(word), arrays[0], options);
        else
          write_arrays(ejk::parse_output(word), arrays, options);
      };
      ejk::WriteOptions whole;
      whole.overwrite = true;
      write(std::string("whole-") + name, whole);
      std::size_t filled = 0;
      ejk::WriteOptions by_boxes = whole;
      by_boxes.fill = [&](std::size_t n, const ejk::ElementPlace& place) {
        ++filled;
        const ejk::ArraySource& from = *arrays[n].source;
        for (const ArrayBox& box : random_boxes(from.shape(), random)) {
          const Array part = Array::copy_of(box_of(*from.mapped(), box));
          ejk::ElementPlace here = place;
          here.is_local = random() % 2 == 0;  // the same, through a mapping where runs are short
          write_elements(here, from.shape(), box, *ejk::make_source(part.view()));
        }
      };
      write(std::string("boxes-") + name, by_boxes);
      const auto same = [&](const std::string& file) {
        return ejk::test::get(folder / ("whole-" + file)) == ejk::test::get(folder / ("boxes-" + file));
      };
      CAPTURE(name);
      CAPTURE(ejk::to_string(shape));
      if (std::string(name) == "a/") {
        CHECK(same("a/x.npy"));
        CHECK(same("a/y.npy"));
        CHECK(same("a/z.npy"));
      } else {
        CHECK(same(name));
      }
      // An .npz has checksums of its members in front of them.
      const std::size_t with_elements = (array.size() > 0 ? 1u : 0u) + (one ? 0u : 2u);
      CHECK(filled == (std::string(name) == "a.npz" ? 0 : with_elements));
    }
  }
}

TEST_CASE("a place that cannot be written is an error that names the file") {
  const Array array = numbered({2});
  CHECK_THROWS_WITH_AS(write_elements({"/nowhere/at/all", "out.npy", 0, false}, {2}, ejk::whole_box({2}),
                                      *ejk::make_source(array.view())),
                       doctest::Contains("out.npy"), ejk::Error);
}
