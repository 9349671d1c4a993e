// The order of layers, mapped names, and the error added by each layer.
#include "ejk/program/compare_files.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "io/support.hpp"
#include "support/arrays.hpp"

using namespace ejk;

TEST_CASE("names are in natural order") {
  const std::vector<std::string> in_order{"",          "7",          "10",        "a",        "a2",
                                          "a002",      "a10",        "a10b",      "b",        "layer.2.k",
                                          "layer.2.v", "layer.10.k", "layer.x.k", "layers.1", "\xC3\xA9"};
  // Of equal numbers the one with more zeros is first in the order of bytes.
  std::vector<std::string> wanted = in_order;
  std::swap(wanted[4], wanted[5]);
  for (std::size_t i = 0; i < wanted.size(); ++i)
    for (std::size_t j = 0; j < wanted.size(); ++j) {
      CAPTURE(wanted[i]);
      CAPTURE(wanted[j]);
      CHECK(natural_less(wanted[i], wanted[j]) == (i < j));
    }
  CHECK(natural_less("l.99999999999999999999999998", "l.99999999999999999999999999"));
  CHECK_FALSE(natural_less("l.100000000000000000000000000", "l.99999999999999999999999999"));
}

TEST_CASE("a map of names keeps the text that the star stands for") {
  const NameMap map("model.layers.*.out=h.*.y");
  CHECK(map("model.layers.12.out") == "h.12.y");
  CHECK(map("model.layers..out") == "h..y");
  CHECK_FALSE(map("model.layers.12"));
  CHECK_FALSE(map("model.layers.out"));
  CHECK(map.left() == "model.layers.*.out");
  CHECK(NameMap("*=x/*")("a=b") == "x/a=b");
  CHECK(NameMap("x/*=*")("x/a") == "a");
  // What stands before and behind the star does not overlap.
  CHECK_FALSE(NameMap("aba*aba=*")("ababa"));
  for (const char* bad : {"", "a", "a*", "a*=b", "a=b*", "a**=b*", "a*=b*=c*", "a*=b**"}) {
    CAPTURE(bad);
    CHECK(test::contains(test::error_of(Error::Kind::usage, [&] { NameMap{bad}; }), "A*B=C*D"));
  }
}

TEST_CASE("a layer adds its error less that of the layer before") {
  const auto compared = [](const std::vector<double>& a, const std::vector<double>& e) {
    const Array x = plain::array_of(DType::float64, {std::ssize(a)}, a),
                y = plain::array_of(DType::float64, {std::ssize(e)}, e);
    return compare_arrays(*make_source(x.view()), *make_source(y.view()));
  };
  std::vector<Comparison> layers;
  layers.push_back(compared({1, 2}, {1, 2}));
  layers.push_back(compared({0, 0}, {0, 0}));
  layers.push_back(compared({1, 3}, {1, 2}));
  layers.push_back(compared({1, 2, 3}, {1, 2}));  // another shape
  layers.push_back(compared({NAN}, {1}));
  layers.push_back(compared({2, 4}, {1, 2}));
  layers.push_back(compared({2, 4, 0}, {1, 2, 0}));
  const LayerErrors errors = layer_errors(layers);
  REQUIRE(errors.layers.size() == 7);
  CHECK(errors.layers[0].rel == 0.0);
  CHECK(errors.layers[1].rel == 0.0);
  CHECK(errors.layers[1].added == 0.0);
  CHECK(*errors.layers[2].rel == doctest::Approx(1.0 / 15));
  CHECK(*errors.layers[2].added == *errors.layers[2].rel);
  CHECK_FALSE(errors.layers[3].rel);
  CHECK_FALSE(errors.layers[4].added);
  CHECK(*errors.layers[5].added == doctest::Approx(5.0 / 25 - 1.0 / 15));
  CHECK(*errors.layers[6].added == 0.0);
  CHECK(errors.first == 2);
  CHECK(errors.most_added == 5);
  CHECK_FALSE(layer_errors({}).first);
  CHECK_FALSE(layer_errors({layers.data(), 2}).most_added);
}
