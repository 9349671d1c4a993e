// Elements written into a pre-sized file: the bytes are those of a file written sequentially.
#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "ejk/io.hpp"
#include "ejk/program/text.hpp"
#include "io/support.hpp"
#include "support/boxes.hpp"

using ejk::Array;
using ejk::ArrayBox;
using ejk::DType;
using ejk::Shape;

TEST_CASE("boxes of an array written to their place make the same file as the whole array") {
  std::mt19937 random(1);
  const ejk::test::Folder folder;
  for (const Shape& shape : {Shape{}, {1}, {7}, {3, 5}, {4, 1, 6}, {2, 3, 4, 5}, {0, 4}, {1200, 700}}) {
    const Array array = ejk::test::numbered(DType::int32, shape),
                other = ejk::test::numbered(DType::int32, {3}),
                more = ejk::test::numbered(DType::int32, {70, 20});
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
      by_boxes.fill = [&](std::size_t n, const ejk::ElementRegion& place) {
        ++filled;
        const ejk::ArraySource& from = *arrays[n].source;
        for (const ArrayBox& box : ejk::test::random_boxes(from.shape(), 6, random)) {
          const Array part = Array::copy_of(box_of(*from.mapped(), box));
          ejk::ElementRegion here = place;
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
  const Array array = ejk::test::numbered(DType::int32, {2});
  CHECK_THROWS_WITH_AS(write_elements({"/nowhere/at/all", "out.npy", 0, false}, {2}, ejk::whole_box({2}),
                                      *ejk::make_source(array.view())),
                       doctest::Contains("out.npy"), ejk::Error);
}
