// Outputs: targets of arrays, and those refused before any computation.
#include "outputs.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <ctime>
#include <string>
#include <vector>

#include "ejk/io.hpp"
#include "io/support.hpp"

using namespace ejk;
using namespace ejk::app;

namespace {

std::shared_ptr<const ArraySource> numbers(std::int32_t first) {
  return make_source(Array::from<std::int32_t>({3}, std::vector<std::int32_t>{first, first + 1, first + 2}));
}

Error::Kind kind_of(auto&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.kind();
  }
  return Error::Kind::internal;
}

const auto no_progress = [](std::int64_t, std::int64_t) {};

}  // namespace

TEST_CASE("several arrays need a place for several") {
  const test::Folder folder;
  for (const char* name : {"a.npy", "-"}) {
    SharedOptions shared;
    shared.has_field = true;
    shared.output = name == std::string("-") ? "-" : (folder / name);
    Outputs outputs("pack", shared);
    CHECK(kind_of([&] { outputs.declare({"packed", "indices"}); }) == Error::Kind::usage);
    shared.field = "packed";
    outputs.declare({"packed", "indices"});
  }
}

TEST_CASE("what was asked for is written, with the settings, and counted") {
  const test::Folder folder;
  SharedOptions shared;
  shared.output = (folder / "out.h5");
  Outputs outputs("pack", shared);
  outputs.declare({"packed", "indices"});
  const std::int64_t bytes = outputs.write({{"packed", numbers(1), {}}, {"indices", numbers(5), {}}},
                                           {{"ejk_command", "pack"}}, no_progress);
  CHECK(bytes == 24);
  CHECK(read_all(*open_array(shared.output + ":/indices")).elements<std::int32_t>()[2] == 7);
}

TEST_CASE(
    "settings of an earlier run are removed from a group that is written again, and no other attributes") {
  const test::Folder folder;
  SharedOptions shared;
  shared.output = (folder / "out.h5:/g");
  shared.overwrite = true;
  const auto write = [&](const Settings& settings) {
    Outputs outputs("pack", shared);
    outputs.declare({"packed", "indices"});
    outputs.write({{"packed", numbers(1), {}}, {"indices", numbers(5), {}}}, settings, no_progress);
    return ArrayFile(folder / "out.h5").attributes("/g");
  };
  write({{"ejk_command", "cp-order"}, {"order", "thd"}, {"note", "of the user"}});
  CHECK(write({{"ejk_command", "pack"}, {"fill", "0"}}) ==
        Settings{{"ejk_command", "pack"}, {"fill", "0"}, {"note", "of the user"}});
}

TEST_CASE("one that is not there is an error only where it was asked for by name") {
  const test::Folder folder;
  SharedOptions shared;
  shared.output = (folder / "out.npz");
  Outputs several("mask-info", shared);
  several.declare({"data_next", "mask_next"});
  CHECK(several.write({{"data_next", numbers(0), {}}, {"mask_next", nullptr, "no block is partial"}}, {},
                      no_progress) == 12);
  shared.field = "mask_next";
  Outputs one("mask-info", shared);
  one.declare({"data_next", "mask_next"});
  CHECK(kind_of([&] {
          one.write({{"data_next", numbers(0), {}}, {"mask_next", nullptr, "no block is partial"}}, {},
                    no_progress);
        }) == Error::Kind::input);
  // Not among those that this run makes: what was asked for is wrong, not what the input holds.
  Outputs never("segment-mask", shared);
  never.declare({"attention_mask"});
  CHECK(kind_of([&] {
          never.write({{"mask_next", nullptr, "--separate makes it"}}, {}, no_progress);
        }) == Error::Kind::usage);
}

TEST_CASE("an array is printed when it is alone and nobody says where it goes") {
  SharedOptions shared;
  Outputs outputs("lens", shared);
  outputs.declare({"lens"});
  CHECK(outputs.to_stdout());
  shared.json = true;
  CHECK_FALSE(outputs.to_stdout());
  shared.output = "-";
  outputs.declare({"lens"});
  CHECK(outputs.to_stdout());
  shared.dry_run = true;
  CHECK_FALSE(outputs.to_stdout());
}

TEST_CASE("a target that cannot be written is known at once") {
  const test::Folder folder;
  SharedOptions shared;
  shared.output = (folder / "missing/x.npy");
  Outputs outputs("lens", shared);
  CHECK(kind_of([&] { outputs.declare({"lens"}); }) == Error::Kind::output);
  shared.output = (folder / "x.npy[0]");
  CHECK(kind_of([&] { outputs.declare({"lens"}); }) == Error::Kind::usage);
}

TEST_CASE("the time for many arrays is linear in their number") {
  const test::Folder folder;
  constexpr std::int32_t kArrays = 60000;
  SharedOptions shared;
  shared.output = folder / "out.npz";
  Outputs outputs("convert", shared);
  std::vector<std::string> names;
  std::vector<Output> arrays;
  const auto source = numbers(0);
  for (std::int32_t i = 0; i < kArrays; ++i) {
    names.push_back("model.layers.experts.weight." + std::to_string(i));
    arrays.push_back({names.back(), source, {}});
  }
  const std::clock_t begin = std::clock();
  outputs.declare(names);
  CHECK(outputs.lost_types(arrays).empty());
  CHECK(std::clock() - begin < 2 * CLOCKS_PER_SEC);
}
