// A model's folder: files and texts read back, nothing left of a write that fails.
#include <doctest/doctest.h>

#include "ejk/io.hpp"
#include "io/support.hpp"
#include "support/arrays.hpp"

using namespace ejk;

namespace {

std::shared_ptr<const ArraySource> failing(ArrayType type) {
  return generated_source(std::move(type), "x", [](auto, auto, void*) -> void {
    throw Error(Error::Kind::input, "x: cannot be read");
  });
}

}  // namespace

TEST_CASE("a model's folder is new and whole, or absent") {
  const test::Folder dir;
  const std::string folder = dir / "m/";
  const Array a = plain::array_of(DType::float32, {2, 3}, {1, 2, 3, 4, 5, 6});
  const Array b = plain::array_of(DType::uint8, {2}, {7, 8});
  const std::vector<ModelFile> files{{"model-1.safetensors", {{"a.weight", make_source(a.view())}}},
                                     {"model-2.safetensors", {{"b", make_source(b.view())}}}};
  write_model(folder, files, {{"config.json", "{}"}});
  CHECK(names_in_folder(folder) ==
        std::vector<std::string>{"config.json", "model-1.safetensors", "model-2.safetensors"});
  CHECK(plain::same_bytes(read_all(*open_array(folder + "model-1.safetensors:a.weight")), a));
  CHECK(plain::same_bytes(read_all(*open_array(folder + "model-2.safetensors:b")), b));
  CHECK(read_file(folder + "config.json", 9) == "{}");
  CHECK_THROWS_AS(write_model(folder, files, {}), Error);  // it is there

  const std::string other = dir / "other";
  CHECK_THROWS_AS(
      write_model(other, {files[0], {"model-2.safetensors", {{"c", failing({DType::float32, {4}})}}}}, {}),
      Error);
  CHECK(dir.names() == std::vector<std::string>{"m"});
}
