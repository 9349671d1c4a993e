// References of computed arrays: what they name, and what is none.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "computed_reference.hpp"
#include "ejk/error.hpp"

using namespace ejk;
using namespace ejk::app;

namespace {

std::string error_of(const std::string& word) {
  try {
    (void)computed_reference(word);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a reference names its arrays, and settings by their names") {
  const auto mx = computed_reference(
      "mx(a.npz:v[0,:,1], b.npy, element=e2m3, layout=128x4, nibbles=high, axis=-2)[1:,::2]");
  REQUIRE(mx);
  CHECK(mx->scheme == QuantizationScheme::mx);
  CHECK(mx->arrays.at(0) == "a.npz:v[0,:,1]");
  CHECK(mx->arrays.at(1) == "b.npy");
  CHECK(mx->slice == "[1:,::2]");
  CHECK(mx->settings.element == ElementFormat::e2m3);
  CHECK(mx->settings.layout == ScaleLayout::tiles_128x4);
  CHECK(mx->settings.nibbles == NibbleOrder::high);
  CHECK(mx->settings.axis == -2);

  const auto nvfp4 = computed_reference("nvfp4(m.h5:/w, m.h5:/s, 0.25, global=divide)");
  REQUIRE(nvfp4);
  CHECK(nvfp4->number == 0.25F);
  CHECK(nvfp4->settings.global == GlobalScale::divides);
  const auto with_array = computed_reference("nvfp4(v.npy, s.npy, g.npy)");
  REQUIRE(with_array);
  CHECK(with_array->arrays.at(2) == "g.npy");
  CHECK(!with_array->number);

  const auto with_number = computed_reference("fp8(v.npy, 0.5)");
  REQUIRE(with_number);
  CHECK(with_number->number == 0.5F);

  const auto fp8 = computed_reference("fp8(v.npy,s.npy,block=128x64)");
  REQUIRE(fp8);
  CHECK(fp8->settings.block->rows == 128);
  CHECK(fp8->settings.block->columns == 64);
  CHECK(computed_reference("gptoss(b.npy, s.npy)")->scheme == QuantizationScheme::gptoss);

  const auto rows = computed_reference("rows(mx(a.npy, b.npy), r.h5:/token)[:4]");
  REQUIRE(rows);
  CHECK(!rows->scheme);
  CHECK(rows->arrays == std::vector<std::string>{"mx(a.npy, b.npy)", "r.h5:/token"});
  CHECK(rows->slice == "[:4]");
}

TEST_CASE("names of files that begin alike are no such reference") {
  for (const char* word :
       {"mx.npy", "mx_(a).npy", "mx(1).npy", "fp8(a,b).npz:x", "./mx(a,b)", "nvfp4", "max(a, b)", "rows.npy"})
    CHECK_MESSAGE(!computed_reference(word), word);
}

TEST_CASE("mistakes in them are one line that names the reference") {
  CHECK(error_of("mx(a.npy, b.npy") == "mx(a.npy, b.npy: the parenthesis '(' is not closed");
  CHECK(error_of("mx(a.npy)") == "mx(a.npy): mx takes 2 arrays, not 1");
  CHECK(error_of("nvfp4(a.npy, b.npy)") == "nvfp4(a.npy, b.npy): nvfp4 takes 3 arrays, not 2");
  CHECK(error_of("rows(a.npy)") == "rows(a.npy): rows takes 2 arrays, not 1");
  CHECK(error_of("rows(a.npy, b.npy, axis=1)") == "rows(a.npy, b.npy, axis=1): rows has no options");
  CHECK(error_of("mx(a.npy, b.npy, nibble=low)") ==
        "mx(a.npy, b.npy, nibble=low): there is no option 'nibble'");
  CHECK(error_of("mx(a.npy, b.npy, axis=1, axis=1)") ==
        "mx(a.npy, b.npy, axis=1, axis=1): axis is given twice");
  CHECK(error_of("mx(a.npy, axis=1, b.npy)") == "mx(a.npy, axis=1, b.npy): an array follows the option axis");
  CHECK(error_of("fp8(a.npy, b.npy, block=128)").starts_with("fp8(a.npy, b.npy, block=128): block"));
}

TEST_CASE("a word that is nearly a function is told from a file's name") {
  CHECK(nearest_function("nvfp5(a.npy, b.npy, 1)") == "nvfp4");
  CHECK(nearest_function("mxf(a.npy, b.npy)") == "mx");
  for (const char* word : {"nvfp5", "nvfp5(a.npy)", "nvfp5(a,b).npz", "abs(a, b)"})
    CHECK_MESSAGE(!nearest_function(word), word);
}
