// Slices against plain loops.
#include "io/slice.hpp"

#include <fmt/format.h>

#include "ejk/array_math.hpp"
#include "io/support.hpp"

using namespace ejk;
using namespace ejk::test;

namespace {

std::shared_ptr<const ArraySource> slice(std::shared_ptr<const ArraySource> source, const std::string& text) {
  return io::make_sliced_source(std::move(source), parse_reference("x" + text).slice, "x" + text);
}

// The elements that Python's rule selects along one axis.
std::vector<std::int64_t> selected(std::int64_t length, std::optional<std::int64_t> start,
                                   std::optional<std::int64_t> stop, std::int64_t step) {
  std::vector<std::int64_t> out;
  const auto from_end = [&](std::int64_t i) { return i < 0 ? i + length : i; };
  for (std::int64_t i = start ? std::max<std::int64_t>(from_end(*start), 0) : 0;
       i < std::min(stop ? from_end(*stop) : length, length); i += step)
    out.push_back(i);
  return out;
}

}  // namespace

TEST_CASE("every range of a small axis selects what Python's would, mapped or not") {
  const std::int64_t length = 5;
  for (const bool mapped : {true, false}) {
    const std::shared_ptr<const ArraySource> source =
        mapped ? make_source(counting({length})) : std::make_shared<Unmapped>(counting({length}));
    for (int a = -7; a <= 7; ++a)
      for (int b = -7; b <= 7; ++b)
        for (const int step : {1, 2, 3, 9}) {
          const std::string text = fmt::format("[{}:{}:{}]", a, b, step);
          const auto part = slice(source, text);
          const auto expected = selected(length, a, b, step);
          REQUIRE_MESSAGE(part->shape() == Shape{static_cast<std::int64_t>(expected.size())}, text);
          const Array got = read_all(*part);
          REQUIRE_MESSAGE(std::equal(expected.begin(), expected.end(), got.elements<std::int32_t>().begin()),
                          text);
          if (mapped) REQUIRE_MESSAGE(same(Array::copy_of(*part->mapped()), got), text);
        }
  }
}

TEST_CASE("slices of several axes are what a plain loop selects, in boxes too") {
  const Shape shape{4, 6, 5, 3};
  for (const bool mapped : {true, false}) {
    const std::shared_ptr<const ArraySource> source =
        mapped ? make_source(counting(shape)) : std::make_shared<Unmapped>(counting(shape));
    struct Case {
      const char* text;
      std::vector<std::int64_t> axes[4];
      Shape expected;
    };
    const std::vector<std::int64_t> all[4] = {{0, 1, 2, 3}, {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4}, {0, 1, 2}};
    for (const Case& c : {Case{"[1]", {{1}, all[1], all[2], all[3]}, {6, 5, 3}},
                          Case{"[...,-1]", {all[0], all[1], all[2], {2}}, {4, 6, 5}},
                          Case{"[::3,1::2,...,::2]", {{0, 3}, {1, 3, 5}, all[2], {0, 2}}, {2, 3, 5, 2}},
                          Case{"[:,::2,1:4]", {all[0], {0, 2, 4}, {1, 2, 3}, all[3]}, {4, 3, 3, 3}},
                          Case{"[2,::5,0,...]", {{2}, {0, 5}, {0}, all[3]}, {2, 3}},
                          Case{"[0,1,2,0]", {{0}, {1}, {2}, {0}}, {}},
                          Case{"[...]", {all[0], all[1], all[2], all[3]}, {4, 6, 5, 3}}}) {
      CAPTURE(c.text);
      const auto part = slice(source, c.text);
      REQUIRE(part->shape() == c.expected);
      std::vector<std::int32_t> expected;
      for (const auto i : c.axes[0])
        for (const auto j : c.axes[1])
          for (const auto k : c.axes[2])
            for (const auto l : c.axes[3])
              expected.push_back(static_cast<std::int32_t>(((i * 6 + j) * 5 + k) * 3 + l));
      const Array got = read_all(*part);
      CHECK(std::equal(expected.begin(), expected.end(), got.elements<std::int32_t>().begin(),
                       got.elements<std::int32_t>().end()));
      CHECK(part->mapped().has_value() == mapped);
      if (c.expected.empty()) continue;
      // A box within the slice: without the first and the last index of its first axis.
      Shape start(c.expected.size(), 0), count = c.expected;
      start[0] = 1, count[0] -= 1;
      Array box(DType::int32, count);
      part->read(start, count, box.data());
      CHECK(std::equal(box.elements<std::int32_t>().begin(), box.elements<std::int32_t>().end(),
                       expected.end() - static_cast<std::ptrdiff_t>(box.size())));
    }
  }
}

TEST_CASE("a large step reads the selected elements, not what lies between") {
  const auto source = std::make_shared<Unmapped>(counting({4000, 500}));
  const Array got = read_all(*slice(source, "[::2000]"));
  CHECK(got.elements<std::int32_t>()[500] == 1000000);
  CHECK(source->largest <= 1 << 20);
}

TEST_CASE("an index outside of its axis names axis, index and length") {
  const auto source = make_source(counting({3, 4}));
  CHECK(error_of(Error::Kind::input, [&] { slice(source, "[:,4]"); }) ==
        "x[:,4]: index 4 is out of bounds for axis 1 with length 4");
  CHECK(error_of(Error::Kind::input, [&] { slice(source, "[-4]"); }) ==
        "x[-4]: index -4 is out of bounds for axis 0 with length 3");
  CHECK(error_of(Error::Kind::input, [&] { slice(source, "[0,0,0]"); }) ==
        "x[0,0,0]: the slice has 3 entries, the array of shape (3, 4) has 2 axes");
  CHECK(slice(source, "[5:]")->shape() == Shape{0, 4});
}

TEST_CASE("a slice of a mapped file in the other byte order can be converted") {
  Folder folder;
  const std::string path = folder / "big.npy";
  std::string bytes = "\x93NUMPY\x01";
  std::string header = "{'descr': '>i4', 'fortran_order': False, 'shape': (4, 3), }";
  header.resize(117, ' ');
  header += '\n';
  bytes += {'\0', static_cast<char>(header.size()), '\0'};
  bytes += header;
  for (char i = 0; i < 12; ++i) bytes += std::string(3, '\0') + i;
  put(path, bytes);
  const auto part = open_array(path + "[1:3,::2]");
  CHECK(!part->mapped().has_value());
  const Array got = read_all(*convert_array(part, DType::float64));
  CHECK(std::vector<double>(got.elements<double>().begin(), got.elements<double>().end()) ==
        std::vector<double>{3, 5, 6, 8});
  const Array rows = read_all(*convert_array(open_array(path + "[0:2]"), DType::float64));
  CHECK(std::vector<double>(rows.elements<double>().begin(), rows.elements<double>().end()) ==
        std::vector<double>{0, 1, 2, 3, 4, 5});
}
