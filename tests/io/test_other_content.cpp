// Files under a name of arrays that are something else.
#include "io/other_content.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include "io/run.hpp"
#include "io/support.hpp"

using namespace ejk;
using namespace ejk::test;

namespace {

constexpr const char* kNamesOfArrays[] = {"x.npy", "x.npz", "x.h5", "x.safetensors", "x.pt"};

std::string message_of(const std::string& path, std::string_view text) {
  fs::remove(path);
  put(path, text);
  return error_of(Error::Kind::input, [&] { (void)ArrayFile(path).array("x"); });
}

}  // namespace

TEST_CASE("a Git LFS pointer is named, with the size of its file, under the name of any container") {
  Folder folder;
  for (const char* name : kNamesOfArrays) {
    const std::string found = message_of(
        folder / name, "version https://git-lfs.github.com/spec/v1\noid sha256:4f4f\nsize 4976698672\n");
    CHECK(contains(found, fmt::format("{}: is a Git LFS pointer, to a file of 4,976,698,672 bytes", name)));
    CHECK(contains(found, "hint: `git lfs pull`"));
  }
}

TEST_CASE("a page, a server's answer and other text are named by how they begin") {
  Folder folder;
  for (const char* name : kNamesOfArrays) {
    const std::string path = folder / name;
    const std::string page = message_of(path, "\n<!doctype HTML>\n<html><title>404</title></html>\n");
    CHECK(contains(page, "(it is text that begins \"<!doctype HTML>\")"));
    CHECK(contains(page, "hint: a web page was saved"));
    CHECK(
        contains(message_of(path, "\xEF\xBB\xBF<html><body>Sign in</body></html>"), "a web page was saved"));
    CHECK(contains(message_of(path, R"({"error": "Entry not found"})"),
                   R"((it is a server's answer in JSON that begins "{"error": "Entry not found"}"))"));
    CHECK(contains(message_of(path, R"({"hidden_size": 64})"), "(it is JSON that begins"));
    CHECK(contains(message_of(path, "Entry not found"), R"((it is text that begins "Entry not found"))"));
  }
  CHECK_FALSE(io::other_content("text\0with a zero byte", "an .npz"));
  CHECK_FALSE(io::other_content("PK", "an .npz"));
  CHECK_FALSE(io::other_content("", "an .npz"));
}

TEST_CASE("shards, arrays of a folder and indices that are pointers are named as well") {
  Folder folder;
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4f\nsize 12\n";
  fs::create_directory(folder / "model");
  put(folder / "model/model.safetensors", pointer);
  CHECK(contains(error_of(Error::Kind::input, [&] { array_names(folder / "model"); }),
                 "model.safetensors: is a Git LFS pointer"));
  put(folder / "model/model.safetensors.index.json", pointer);
  CHECK(contains(error_of(Error::Kind::input, [&] { array_names(folder / "model"); }),
                 "model.safetensors.index.json: is a Git LFS pointer"));
  fs::create_directory(folder / "arrays");
  put(folder / "arrays/x.npy", pointer);
  CHECK(contains(error_of(Error::Kind::input, [&] { ArrayFile(folder / "arrays").array("x"); }),
                 "x.npy: is a Git LFS pointer"));
}

TEST_CASE("a pipe in a folder is refused, and not waited for") {
  Folder folder;
  for (const char* name : {"x.npy", "x.safetensors", "pytorch_model.bin", "x.safetensors.index.json"}) {
    CAPTURE(name);
    const std::string inside = folder / fmt::format("of-{}", name);
    fs::create_directory(inside);
    REQUIRE(mkfifo((inside + "/" + name).c_str(), 0600) == 0);
    const std::string found = error_of(Error::Kind::input, [&] {
      const ArrayFile file(inside);
      for (const std::string& array : file.names()) (void)file.array(array);
    });
    CHECK(contains(found, fmt::format("{}: ", name)));
    CHECK(contains(found, "must be a regular file"));
  }
  for (const char* name : {"x.npz", "x.h5", "x.safetensors", "x.pt"}) {  // nor are those that are named
    REQUIRE(mkfifo((folder / name).c_str(), 0600) == 0);
    CHECK(contains(error_of(Error::Kind::input, [&] { (void)ArrayFile(folder / name).array("x"); }),
                   "must be a regular file"));
  }
}
