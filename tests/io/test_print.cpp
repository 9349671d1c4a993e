// Arrays as text for numpy.loadtxt.
#include <fmt/format.h>

#include <limits>

#include "io/support.hpp"

using namespace ejk;
using namespace ejk::test;

namespace {

std::string printed(const Array& a) {
  Folder folder;
  std::FILE* f = std::fopen((folder / "t").c_str(), "w");
  print_array(f, *make_source(a.view()));
  std::fclose(f);
  return get(folder / "t");
}

}  // namespace

TEST_CASE("the last axis is a line, and a blank line stands between 2-D slices") {
  CHECK(printed(counting({})) == "0\n");
  CHECK(printed(counting({3})) == "0 1 2\n");
  CHECK(printed(counting({2, 3})) == "0 1 2\n3 4 5\n");
  CHECK(printed(counting({2, 2, 2})) == "0 1\n2 3\n\n4 5\n6 7\n");
  CHECK(printed(counting({2, 1, 1, 2})) == "0 1\n\n2 3\n");
  CHECK(printed(counting({0})).empty());
  CHECK(printed(counting({2, 0})).empty());
}

TEST_CASE("numbers are the shortest that read back exactly") {
  const double doubles[] = {0.1,          1, -0.0, 1e300, 1.0 / 3, std::numeric_limits<double>::infinity(),
                            -std::nan("")};
  CHECK(printed(Array::from<double>({7}, doubles)) == "0.1 1 -0 1e+300 0.3333333333333333 inf nan\n");
  const float floats[] = {0.1f, 16777216.f};
  CHECK(printed(Array::from<float>({2}, floats)) == "0.1 16777216\n");
  const float16 halves[] = {float16(0.1f), float16(65504.f), float16(-1e9f), float16(6e-8f), float16(1.5f)};
  CHECK(printed(Array::from<float16>({5}, halves)) == "0.1 65504 -inf 6e-08 1.5\n");
  const bfloat16 brains[] = {bfloat16(0.1f), bfloat16(3e38f), bfloat16(std::nanf(""))};
  CHECK(printed(Array::from<bfloat16>({3}, brains)) == "0.1 3e+38 nan\n");
  const std::int8_t bytes[] = {-128, 65};
  CHECK(printed(Array::from<std::int8_t>({2}, bytes)) == "-128 65\n");
  const std::uint64_t large[] = {std::numeric_limits<std::uint64_t>::max()};
  CHECK(printed(Array::from<std::uint64_t>({1}, large)) == "18446744073709551615\n");
  Array flags(DType::boolean, {3});
  flags.data()[1] = std::byte{7};
  CHECK(printed(flags) == "0 1 0\n");
}

TEST_CASE("every finite 16-bit float reads back as itself") {
  for (const DType dtype : {DType::float16, DType::bfloat16}) {
    Array all(dtype, {65536});
    for (unsigned i = 0; i < 65536; ++i)
      reinterpret_cast<std::uint16_t*>(all.data())[i] = static_cast<std::uint16_t>(i);
    const std::string text = printed(all);
    const char* at = text.c_str();
    bool exact = true;
    for (unsigned i = 0; i < 65536; ++i) {
      char* end = nullptr;
      const float value = std::strtof(at, &end);
      const std::uint16_t bits = dtype == DType::float16 ? float16(value).bits : bfloat16(value).bits;
      exact = exact && end != at && (bits == i || std::isnan(value));
      at = end;
    }
    CHECK(exact);
  }
}

TEST_CASE("a full disk is an error, not a short output") {
  std::FILE* full = std::fopen("/dev/full", "w");
  CHECK(contains(error_of(Error::Kind::output, [&] { print_array(full, *make_source(counting({10}))); }),
                 "No space left on device"));
  CHECK(contains(error_of(Error::Kind::output, [&] { print_array(full, *make_source(counting({100000}))); }),
                 "No space left on device"));
  std::fclose(full);
}
