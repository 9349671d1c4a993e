// write_arrays: targets, and all or nothing.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "io/run.hpp"
#include "io/support.hpp"

using namespace ejk;
using namespace ejk::test;
using Names = std::vector<std::string>;

namespace {

std::vector<NamedArray> two() {
  return {{"a", make_source(counting({3}))}, {"b", make_source(counting({2, 2}))}};
}

}  // namespace

TEST_CASE("a folder gets one file for each array, and is made when it is missing") {
  Folder folder;
  for (int again = 0; again < 2; ++again) {
    write_arrays(parse_reference((folder / "out") + "/"), two());
    CHECK(folder.names() == Names{"out"});
    CHECK(array_names((folder / "out") + "/") == Names{"a", "b"});
    CHECK(same(read_all(*open_array(folder / "out/b.npy")), counting({2, 2})));
  }
  write_array(parse_reference((folder / "out") + "/"), {"c", make_source(counting({}))});
  CHECK(array_names((folder / "out") + "/") == Names{"a", "b", "c"});
}

TEST_CASE("what an earlier write of the set left under an absent name goes, and nothing else") {
  Folder folder;
  WriteOptions again;
  again.overwrite = true;
  again.absent = {"b", "never"};
  for (const std::string& target : {(folder / "out") + "/", (folder / "f.h5") + ":/g", folder / "top.h5"}) {
    CAPTURE(target);
    const ArrayReference reference = parse_reference(target);
    write_arrays(reference, two());
    write_arrays(reference, {{"c", make_source(counting({}))}});
    write_arrays(reference, {two()[0]}, again);
    const Names left = array_names(reference.path);
    CHECK(left.size() == 2);
    CHECK(
        std::none_of(left.begin(), left.end(), [](const std::string& name) { return name.ends_with("b"); }));
  }
}

TEST_CASE("what is stored at once is the same in every container") {
  Folder folder;
  WriteOptions now;
  now.overwrite = true;
  now.sync = Sync::now;
  for (const std::string& target : {(folder / "out") + "/", folder / "f.npz", (folder / "f.h5") + ":/g"}) {
    CAPTURE(target);
    const ArrayReference reference = parse_reference(target);
    now.absent = {};
    for (int again = 0; again < 2; ++again) write_arrays(reference, two(), now);
    CHECK(array_names(reference.path).size() == 2);
    now.absent = {"b"};
    write_arrays(reference, {two()[0]}, now);
    CHECK(array_names(reference.path).size() == 1);
  }
  write_array(parse_reference(folder / "x.npy"), two()[1], now);
  CHECK(same(read_all(*open_array(folder / "x.npy")), counting({2, 2})));
  CHECK(folder.names() == Names{"f.h5", "f.npz", "out", "x.npy"});
}

TEST_CASE("of a folder all files stand or none that this run wrote") {
  Folder folder;
  std::vector<NamedArray> arrays = two();
  const std::string target = (folder / "out") + "/";
  const auto fails = [&] {
    return error_of(Error::Kind::output, [&] { write_arrays(parse_reference(target), arrays); });
  };
  arrays.push_back({"../c", make_source(counting({1}))});
  CHECK(contains(fails(), "the array name '../c' cannot be a file's name"));
  CHECK(folder.names().empty());
  // b.npy is a folder: a.npy was written by then, and must not stay.
  arrays.pop_back();
  fs::create_directories(folder / "out/b.npy");
  put(folder / "out/a.npy", "old");
  CHECK(contains(fails(), "b.npy: Is a directory"));
  CHECK(get(folder / "out/a.npy") == "old");
  CHECK(fs::exists(folder / "out/b.npy"));
  CHECK(std::distance(fs::directory_iterator(folder / "out"), {}) == 2);
  CHECK(contains(
      error_of(Error::Kind::output, [&] { write_arrays(parse_reference((folder / "no/out") + "/"), two()); }),
      "out: No such file or directory"));
  put(folder / "file", "");
  CHECK(contains(
      error_of(Error::Kind::output, [&] { write_arrays(parse_reference((folder / "file") + "/"), two()); }),
      "file/: Not a directory"));
}

TEST_CASE("a new folder is whole or absent, whatever call is the last or fails") {
  if (!can_inject_faults()) return;
  Folder folder;
  write_arrays(parse_reference(folder / "in.npz"), two());
  const auto temporary = [&] {
    const Names names = folder.names();
    return std::any_of(names.begin(), names.end(), [](const std::string& name) { return name[0] == '.'; });
  };
  const auto is_whole = [&] {
    return array_names((folder / "out") + "/") == Names{"a", "b"} &&
           same(read_all(*open_array(folder / "out/a.npy")), counting({3})) &&
           same(read_all(*open_array(folder / "out/b.npy")), counting({2, 2}));
  };
  for (const std::string fault : {"signal=KILL", "signal=TERM", "error=EIO"})
    for (const std::string call : {"mkdir", "write", "pwrite64", "fchmod", "rename", "rmdir"}) {
      for (int when = 1; when <= 60; ++when) {
        CAPTURE(fault);
        CAPTURE(call);
        CAPTURE(when);
        const Printed ran =
            run(fmt::format("strace -o {0}/log -e trace={1} -e inject={1}:{2}:when={3} $EJK convert "
                            "{0}/in.npz -o {0}/out/ --threads 1 --quiet",
                            folder.path(), call, fault, when));
        CHECK((!fs::exists(folder / "out") || is_whole()));
        if (ran.status == 0) CHECK(fs::exists(folder / "out"));
        if (fault != "signal=KILL") CHECK(!temporary());
        const bool injected = get(folder / "log").find("INJECTED") != std::string::npos || ran.status != 0;
        for (const std::string& name : folder.names())
          if (name != "in.npz") fs::remove_all(folder / name);
        if (!injected) break;
      }
    }
}

TEST_CASE("what does not fit the target is a usage error") {
  const auto message = [](const char* target, const std::vector<NamedArray>& arrays) {
    return error_of(Error::Kind::usage, [&] { write_arrays(parse_reference(target), arrays); });
  };
  CHECK(contains(message("x.npy", two()), "x.npy: an .npy file holds one array, not several"));
  CHECK(contains(message("-", two()), "a stream holds one array"));
  CHECK(contains(message("x.npz:m", two()), "a member of an .npz file holds one array"));
  CHECK(contains(message("x.npz[0]", two()), "an output cannot be a slice"));
  std::vector<NamedArray> twins = two();
  twins[1].name = "/a";
  CHECK(contains(message("x.npz", twins), "two arrays are named 'a'"));
  twins[1].name = "/";
  CHECK(contains(message("x.npz", twins), "no name"));
}

TEST_CASE("an input may be written over while it is read") {
  Folder folder;
  const Array a = example(DType::float64, {3000, 400});
  write_array(parse_reference(folder / "a.npy"), {"a", make_source(a.view())});
  write_array(parse_reference(folder / "a.npy"), {"a", open_array((folder / "a.npy") + "[1000:]")});
  CHECK(open_array(folder / "a.npy")->shape() == Shape{2000, 400});
  const Array rest = read_all(*open_array(folder / "a.npy"));
  CHECK(std::memcmp(rest.data(), a.data() + 1000 * 400 * 8, static_cast<std::size_t>(rest.bytes())) == 0);
}

TEST_CASE("standard output gets the bytes of an .npy file") {
  Folder folder;
  std::FILE* file = std::fopen((folder / "out").c_str(), "w");
  const int before = dup(STDOUT_FILENO);
  std::fflush(stdout);
  dup2(fileno(file), STDOUT_FILENO);
  write_array(parse_reference("-"), {"a", make_source(counting({2, 3}))});
  dup2(before, STDOUT_FILENO);
  close(before);
  std::fclose(file);
  fs::rename(folder / "out", folder / "a.npy");
  CHECK(same(read_all(*open_array(folder / "a.npy")), counting({2, 3})));
}

TEST_CASE("a full disk is named, and nothing stays behind") {
  Folder folder;
  fs::create_symlink("/dev/full", folder / "full.npy");
  CHECK(contains(
      error_of(Error::Kind::output,
               [&] {
                 write_array(parse_reference(folder / "full.npy"), {"a", make_source(counting({9}))});
               }),
      "full.npy: No space left on device"));
  CHECK(folder.names() == Names{"full.npy"});
}

TEST_CASE("a target is checked before any work, and checking touches nothing") {
  Folder folder;
  const auto check = [&](const std::string& target, const Names& names = {"a"}) {
    check_target(parse_reference(target), names, names.size() > 1);
  };
  check(folder / "a.npy");
  check(folder / "a.npz");
  check("-");
  check((folder / "out") + "/", {"a", "b"});
  CHECK(folder.names().empty());
  for (const char* target : {"none/a.npy", "none/a.npz", "none/a.h5", "none/out/"}) {
    CAPTURE(target);
    CHECK(contains(error_of(Error::Kind::output, [&] { check(folder / target); }), "none does not exist"));
  }
  fs::create_directory(folder / "d.npy");
  CHECK(contains(error_of(Error::Kind::output, [&] { check(folder / "d.npy"); }), "Is a directory"));
  CHECK(contains(error_of(Error::Kind::output,
                          [&] {
                            check(folder.path() + "/", {"d", "e"});
                          }),
                 "d.npy: Is a directory"));
  CHECK(contains(error_of(Error::Kind::usage,
                          [&] {
                            check(folder / "a.npy", {"a", "b"});
                          }),
                 "holds one array"));
  put(folder / "file", "");
  CHECK(contains(error_of(Error::Kind::output,
                          [&] {
                            check((folder / "file") + "/", {"a", "b"});
                          }),
                 "Not a directory"));
}

TEST_CASE("compressed arrays come back as they were, whatever lies across the chunks") {
  const test::Folder folder;
  for (const Shape& shape :
       {Shape{}, Shape{0, 3}, Shape{5}, Shape{3, 1'100'000}, Shape{1'500'000, 3}, Shape{2, 3, 4, 5}})
    for (const DType dtype : {DType::boolean, DType::bfloat16, DType::float64}) {
      const Array array = test::example(dtype, shape);
      for (const char* name : {"x.h5", "x.npz"}) {
        CAPTURE(name);
        const std::string path = folder / name;
        std::filesystem::remove(path);
        WriteOptions options;
        options.compression = 1;
        write_arrays(parse_reference(path), {{"x", make_source(array.view())}}, options);
        CHECK(test::same(read_all(*open_array(path + ":x")), array));
      }
    }
  Array zeros(DType::float32, {1'000'000});
  for (const char* name : {"z.h5", "z.npz"}) {
    WriteOptions options;
    options.compression = 9;
    write_array(parse_reference(folder / name), {"z", make_source(zeros.view())}, options);
    CHECK(std::filesystem::file_size(folder / name) < 100'000);
    options.overwrite = true;
    CHECK_THROWS_AS(write_array(parse_reference(folder / "z.npy"), {"z", make_source(zeros.view())}, options),
                    Error);
  }
}
