// Models in several safetensors files.
#include "io/model.hpp"

#include <fmt/format.h>

#include "io/support.hpp"

using namespace ejk;
using namespace ejk::test;
using Names = std::vector<std::string>;

namespace {

constexpr auto kModel = ArrayReference::Container::model;

void put_tensors(const std::string& path, const Names& names) {
  std::vector<NamedArray> arrays;
  for (const std::string& name : names)
    arrays.push_back({name, make_source(counting({static_cast<std::int64_t>(name.size()), 2}))});
  write_arrays(parse_output(path), arrays);
}

}  // namespace

TEST_CASE("the tensors of a model are found by its index, in its order") {
  Folder folder;
  put_tensors(folder / "model-1.safetensors", {"layers.0.w", "layers.1.w"});
  put_tensors(folder / "model-2.safetensors", {"a/b:c", "unlisted"});
  put(folder / "model.safetensors.index.json",
      R"({"metadata":{"total_size":1},"weight_map":{"layers.1.w":"model-1.safetensors",)"
      R"("a/b:c":"model-2.safetensors","layers.0.w":"model-1.safetensors","lost":"model-2.safetensors",)"
      R"("gone":"model-3.safetensors"}})");
  const Names names = {"layers.1.w", "a/b:c", "layers.0.w", "lost", "gone"};
  const std::string index = folder / "model.safetensors.index.json";
  for (const std::string& path : {folder.path(), folder / "", index}) {
    CAPTURE(path);
    CHECK(parse_input(path).container == kModel);
    CHECK(array_names(path) == names);
    for (const std::string name : {"layers.1.w", "a/b:c", "layers.0.w"}) {
      const auto source = open_array(fmt::format("{}:{}", path, name));
      CHECK(same(read_all(*source), counting({static_cast<std::int64_t>(name.size()), 2})));
      CHECK(open_array(fmt::format("{}:{}[0]", path, name))->shape() == Shape{2});
      CHECK(open_array(reference_to(parse_input(path), name).text)->shape() == source->shape());
    }
    CHECK(contains(error_of(Error::Kind::input, [&] { open_array(path + ":lost"); }),
                   fmt::format("model-2.safetensors: holds no array 'lost', which {} says it holds", index)));
    CHECK(contains(error_of(Error::Kind::input, [&] { open_array(path + ":gone"); }),
                   "model-3.safetensors: No such file or directory"));
    CHECK(contains(error_of(Error::Kind::input, [&] { open_array(path + ":layers.2.w"); }), "did you mean"));
    CHECK(contains(error_of(Error::Kind::input, [&] { ArrayFile(path).stored_arrays(); }),
                   "model-2.safetensors"));
  }
}

TEST_CASE("a folder of safetensors files without an index is their union") {
  Folder folder;
  put_tensors(folder / "a.safetensors", {"x", "y"});
  put_tensors(folder / "b.safetensors", {"longer"});
  CHECK(array_names(folder.path()) == Names{"x", "y", "longer"});
  CHECK(open_array(folder / ":longer")->shape() == Shape{6, 2});
  const auto stored = ArrayFile(folder.path()).stored_arrays();
  REQUIRE(stored);
  REQUIRE(stored->size() == 3);
  CHECK((*stored)[2].shape == Shape{6, 2});
  put_tensors(folder / "c.safetensors", {"y"});
  CHECK(contains(error_of(Error::Kind::input, [&] { array_names(folder.path()); }),
                 fmt::format("two tensors are named 'y', in {} and {}", folder / "a.safetensors",
                             folder / "c.safetensors")));
  // A folder of .npy files stays one.
  write_array(parse_output(folder / "z.npy"), {"z", make_source(counting({1}))});
  CHECK(parse_input(folder.path()).container == ArrayReference::Container::directory);
  CHECK(array_names(folder.path()) == Names{"z"});
  CHECK(parse_output(folder.path()).container == ArrayReference::Container::directory);
}

TEST_CASE("files of torch.save are a model as well, where there are none of safetensors") {
  Folder folder;
  fs::copy(EJK_TEST_DIR "/golden/nested.pt", folder / "pytorch_model-00001-of-00002.bin");
  put(folder / "training_args.bin", "no archive");
  const auto names_without_index = array_names(folder.path());
  CHECK(parse_input(folder.path()).container == kModel);
  CHECK(names_without_index == array_names(EJK_TEST_DIR "/golden/nested.pt"));
  const std::string index = folder / "pytorch_model.bin.index.json";
  put(index, R"({"weight_map":{"model.weight":"pytorch_model-00001-of-00002.bin",)"
             R"("base":"pytorch_model-00001-of-00002.bin","lost":"pytorch_model-00001-of-00002.bin"}})");
  for (const std::string& path : {folder.path(), index}) {
    CAPTURE(path);
    CHECK(parse_input(path).container == kModel);
    CHECK(array_names(path) == Names{"model.weight", "base", "lost"});
    CHECK(same(read_all(*open_array(path + ":base")),
               read_all(*open_array(EJK_TEST_DIR "/golden/nested.pt:base"))));
    CHECK(contains(error_of(Error::Kind::input, [&] { open_array(path + ":lost"); }),
                   "00002.bin: holds no array 'lost', which " + index + " says it holds"));
  }
  put_tensors(folder / "model.safetensors", {"x"});
  CHECK(array_names(folder.path()) == Names{"x"});
  CHECK(index_in_folder(folder.path()).empty());
  CHECK(model_files_in_folder(folder.path()) == Names{folder / "model.safetensors"});
}

TEST_CASE("an index that is no index, or one of two, is an error") {
  Folder folder;
  const std::string index = folder / "m.safetensors.index.json";
  const auto message = [&](std::string_view text) {
    fs::remove(index);
    put(index, text);
    return error_of(Error::Kind::input, [&] { array_names(index); });
  };
  CHECK(contains(message("{}"), "m.safetensors.index.json: lacks 'weight_map'"));
  CHECK(contains(message("[]"), "m.safetensors.index.json: not JSON: line 1, column 1"));
  CHECK(contains(message(R"({"weight_map":{"a":1}})"), "not JSON"));
  CHECK(contains(message(R"({"weight_map":{},"weight_map":{}})"), "twice"));
  for (const char* file : {"../x", "/etc/passwd", "", "..", "a/b", "a\\u0000b"})
    CHECK(contains(message(fmt::format(R"({{"weight_map":{{"a":"{}"}}}})", file)),
                   "is not one of the index's folder"));
  CHECK(contains(message(R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})"),
                 "two tensors are named 'a', in"));
  put(folder / "n.safetensors.index.json", "{}");
  const std::string two = error_of(Error::Kind::input, [&] { array_names(folder.path()); });
  CHECK(contains(two, "has 2 indices of a model: m.safetensors.index.json, n.safetensors.index.json"));
  CHECK(contains(two, "name one of them"));
  CHECK(contains(error_of(Error::Kind::usage, [&] { parse_output(index); }), "can only be read"));
}
