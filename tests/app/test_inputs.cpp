// Inputs: each file is opened once and recorded, all arrays of a file, JSON within the memory limit.
#include "inputs.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "ejk/io.hpp"
#include "io/support.hpp"

using namespace ejk;
using namespace ejk::app;

namespace {

// Two arrays in one file.
std::string two_in(const std::string& path) {
  const std::vector<std::int32_t> values{1, 2, 3};
  write_arrays(parse_output(path), {{"a", make_source(Array::from<std::int32_t>({3}, values))},
                                    {"b", make_source(Array::from<std::int32_t>({3}, values))}});
  return path;
}

struct Opened {
  Budget budget{std::int64_t{1} << 30};
  Provenance provenance;
  Inputs inputs{false, budget, provenance};
};

std::vector<std::string> names_of(const std::vector<NamedInput>& inputs) {
  std::vector<std::string> names;
  for (const NamedInput& input : inputs) names.push_back(input.name);
  return names;
}

}  // namespace

TEST_CASE("an input is opened once, noted with its role, and its bytes are counted") {
  const test::Folder folder;
  const std::string a = two_in((folder / "x.npz")) + ":a";
  Opened o;
  const auto first = o.inputs.open("q", a);
  CHECK(o.inputs.open("k", a) == first);
  CHECK(o.provenance.inputs() == std::vector<std::pair<std::string, std::string>>{{"q", a}});
  CHECK(o.inputs.bytes_read() == 12);
}

TEST_CASE("a file gives all its arrays, a word that names one that one") {
  const test::Folder folder;
  for (const char* name : {"x.npz", "x.h5", "x/"}) {
    const std::string file = two_in((folder / name));
    Opened o;
    CHECK(names_of(o.inputs.arrays_in(file)) == std::vector<std::string>{"a", "b"});
  }
  Opened o;
  std::vector<NamedInput> one = o.inputs.arrays_in((folder / "x.h5") + ":/b");
  REQUIRE(one.size() == 1);
  CHECK(one[0].name == "b");
  CHECK(one[0].is_word);
  CHECK(read_all(*o.inputs.open(one[0])).elements<std::int32_t>()[0] == 1);
  CHECK(o.provenance.inputs().empty());  // looked at, not used
}

TEST_CASE("JSON is read where the memory for it is allowed") {
  const test::Folder folder;
  const std::string path = (folder / "p.json");
  std::ofstream(path) << R"({"a": [)" << std::string(100'000, ' ') << "1]}";
  Provenance provenance;
  const Budget large(std::int64_t{1} << 30), small(100'000);
  Inputs inputs(false, large, provenance);
  CHECK_NOTHROW(inputs.read_json("params", path));
  CHECK(provenance.inputs().size() == 1);
  Inputs refused(false, small, provenance);
  try {
    refused.read_json("params", path);
    FAIL("it was read");
  } catch (const Error& error) {
    CHECK(error.kind() == Error::Kind::budget);
    CHECK(error.message().find("p.json") != std::string::npos);
  }
}

TEST_CASE("an input that alone exceeds the memory is named") {
  const test::Folder folder;
  const std::string a = two_in((folder / "x.npz")) + ":a";
  const Budget tiny(8);
  Provenance provenance;
  Inputs inputs(false, tiny, provenance);
  inputs.open("x", a);
  CHECK(inputs.too_large().find("x.npz:a holds 12 B") != std::string::npos);
  CHECK_THROWS_AS(tiny.require(9, inputs.too_large()), Error);
  CHECK_NOTHROW(tiny.require(8));
}
