// write_together: arrays distributed over ranks or readable by all; the files are identical to those of one
// process.
#include "write_together.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "io/support.hpp"
#include "support/boxes.hpp"
#include "support/thread_communicator.hpp"

namespace fs = std::filesystem;

using namespace ejk;
using app::Output;

namespace {

// Who has which box, at random.
std::vector<std::vector<ArrayBox>> dealt_out(const Shape& shape, std::int64_t ranks, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::vector<ArrayBox>> of(static_cast<std::size_t>(ranks));
  for (const ArrayBox& box : test::random_boxes(shape, 10, random)) of[random() % of.size()].push_back(box);
  return of;
}

}  // namespace

TEST_CASE("what ranks hold in parts comes to the same files as what one process holds") {
  const test::Folder folder;
  const std::vector<Array> arrays = [] {
    std::vector<Array> all;
    for (const Shape& shape : {Shape{70, 30}, {5}, {}, {4, 3, 50, 8}, {0, 2}, {9000}})
      all.push_back(test::numbered(DType::int32, shape));
    return all;
  }();
  std::vector<NamedArray> whole;
  for (std::size_t n = 0; n < arrays.size(); ++n)
    whole.push_back({"array" + std::to_string(n), make_source(arrays[n].view())});
  for (const char* name : {"x.h5", "x/", "x.npz", "y.npz", "y.h5"}) {
    CAPTURE(name);
    WriteOptions options;
    if (name[0] == 'y') options.compression = 1;
    const auto target = [&](const std::string& which) { return parse_output(folder / (which + name)); };
    write_arrays(target("one-"), whole, options);
    for (const std::int64_t ranks : {1, 2, 5}) {
      test::run_ranks(ranks, [&](Communicator& comm) {
        std::vector<Output> outputs;
        for (std::size_t n = 0; n < arrays.size(); ++n) {
          outputs.push_back({whole[n].name, whole[n].source, {}, {}});
          if (n % 3 == 2) continue;  // that one all ranks can read
          std::vector<ArrayPart> parts;
          const auto dealt = dealt_out(arrays[n].shape(), ranks, static_cast<unsigned>(n));
          for (const ArrayBox& box : dealt[static_cast<std::size_t>(comm.rank())])
            parts.push_back({box, make_source(Array::copy_of(box_of(arrays[n].view(), box)))});
          outputs.back() = app::output_in_parts(whole[n].name, type_of(arrays[n].view()), std::move(parts));
        }
        const auto nobody = [](std::int64_t, std::int64_t) {};
        app::write_together(comm, outputs, nobody, options,
                            [&](const std::vector<NamedArray>& all, const WriteOptions& how) {
                              CHECK(comm.is_first());
                              write_arrays(target("all-"), all, how);
                            });
      });
      if (std::string(name) == "x/")
        for (const NamedArray& array : whole)
          CHECK(test::get(folder / ("one-x/" + array.name + ".npy")) ==
                test::get(folder / ("all-x/" + array.name + ".npy")));
      else
        CHECK(test::get(folder / (std::string("one-") + name)) ==
              test::get(folder / (std::string("all-") + name)));
      fs::remove_all(folder / (std::string("all-") + name));
    }
  }
}

TEST_CASE("what goes wrong with a rank's part is told by rank 0, and the target stays away") {
  const test::Folder folder;
  for (const char* name : {"x.npy", "x.npz"}) {
    const std::string path = folder / name;
    std::string told;
    CHECK_THROWS_AS(test::run_ranks(3,
                                    [&](Communicator& comm) {
                                      const Shape shape{3};
                                      const auto elements = generated_source(
                                          {DType::int32, {1}}, "part", [&](auto, auto, void* out) {
                                            if (comm.rank() == 2)
                                              throw Error(Error::Kind::input, "in.h5: damaged").hint("none");
                                            std::memset(out, 0, 4);
                                          });
                                      const std::vector<Output> outputs{app::output_in_parts(
                                          "x", {DType::int32, shape}, {{{{comm.rank()}, {1}}, elements}})};
                                      const auto nobody = [](std::int64_t, std::int64_t) {};
                                      try {
                                        app::write_together(
                                            comm, outputs, nobody, {},
                                            [&](const std::vector<NamedArray>& all, const WriteOptions& how) {
                                              write_array(parse_output(path), all[0], how);
                                            });
                                      } catch (const Error& error) {
                                        CHECK(comm.is_first());
                                        told = error.message();
                                        CHECK(error.kind() == Error::Kind::input);
                                        CHECK(error.hint() == "none");
                                        throw;
                                      }
                                    }),
                    Error);
    CHECK(told.find("in.h5: damaged") != std::string::npos);
    CHECK(folder.names().empty());
  }
}
