// Parsing of references.
#include <sys/stat.h>

#include "io/support.hpp"

using namespace ejk;
using namespace ejk::test;
using Kind = ArrayReference::Container;

TEST_CASE("a reference is told by the end of its path, and the rest is member and slice") {
  struct Row {
    const char* text;
    Kind container;
    const char* path;
    const char* member;
    std::size_t entries;
  };
  for (const Row& row : std::initializer_list<Row>{
           {"a.npy", Kind::npy, "a.npy", "", 0},
           {"a.npy[0,:,-8:]", Kind::npy, "a.npy", "", 3},
           {"dir.npz/a.npy", Kind::npy, "dir.npz/a.npy", "", 0},
           {"plain", Kind::npy, "plain", "", 0},
           {"plain[1]", Kind::npy, "plain", "", 1},
           {"run[3].npy", Kind::npy, "run[3].npy", "", 0},
           {"run[3].npy[4]", Kind::npy, "run[3].npy", "", 1},
           {"10:30.npy", Kind::npy, "10:30.npy", "", 0},
           {"a.npz", Kind::npz, "a.npz", "", 0},
           {"a.npz:x", Kind::npz, "a.npz", "x", 0},
           {"a.npz:x[...]", Kind::npz, "a.npz", "x", 1},
           {"a.h5", Kind::hdf5, "a.h5", "", 0},
           {"./a.hdf5:/g/x", Kind::hdf5, "./a.hdf5", "/g/x", 0},
           {"a.hdf:x", Kind::hdf5, "a.hdf", "x", 0},
           {"a.he5:/g/b.npz:c", Kind::hdf5, "a.he5", "/g/b.npz:c", 0},
           {"a.h5:/g[0]", Kind::hdf5, "a.h5", "/g", 1},
           {"a.h5:/x[1][...]", Kind::hdf5, "a.h5", "/x[1]", 1},
           {"a.npz:x[1][2][...]", Kind::npz, "a.npz", "x[1][2]", 1},
           {"a.h5[2:4]", Kind::hdf5, "a.h5", "", 1},
           {"out/", Kind::directory, "out/", "", 0},
           {"-", Kind::stream, "", "", 0},
           {"-[0]", Kind::stream, "", "", 1},
           {"-x.npy", Kind::npy, "-x.npy", "", 0},
       }) {
    CAPTURE(row.text);
    const ArrayReference r = parse_reference(row.text);
    CHECK(r.container == row.container);
    CHECK(r.path == row.path);
    CHECK(r.member == row.member);
    CHECK(r.slice.size() == row.entries);
    CHECK(r.text == row.text);
  }
}

TEST_CASE("slices hold integers, ranges and one ellipsis") {
  const auto slice = parse_reference("a.npy[ -1 , : , 2:-3:4, 5: ,...,::2,]").slice;
  REQUIRE(slice.size() == 6);
  CHECK(slice[0].kind == SliceItem::Kind::index);
  CHECK(slice[0].index == -1);
  CHECK(!slice[1].start.has_value());
  CHECK(!slice[1].stop.has_value());
  CHECK(slice[2].start == 2);
  CHECK(slice[2].stop == -3);
  CHECK(slice[2].step == 4);
  CHECK(slice[3].start == 5);
  CHECK(slice[4].kind == SliceItem::Kind::ellipsis);
  CHECK(slice[5].step == 2);
}

TEST_CASE("a malformed reference says what is wrong with it") {
  const std::pair<const char*, const char*> rows[] = {
      {"", "empty"},
      {"a.npy[]", "the slice is empty"},
      {"a.npy[0", "not closed"},
      {"a.npy[0]x", "more after the slice"},
      {"a.npy[0][1]", "more than one slice"},
      {"a.npy[0][...]", "more than one slice"},
      {"a.h5:/x[1][0]", "more than one slice"},
      {"a.npy[0,,1]", "empty entry"},
      {"a.npy[,]", "empty entry"},
      {"a.npy[::0]", "step must be 1 or more"},
      {"a.npy[::-1]", "step must be 1 or more"},
      {"a.npy[1:2:3:4]", "'3:4' in the slice is not an integer"},
      {"a.npy[x]", "'x' in the slice is not an integer"},
      {"a.npy[1.5]", "'1.5' in the slice is not an integer"},
      {"a.npy[99999999999999999999]", "in the slice is beyond 64 bits"},
      {"a.npy[...,...]", "more than once"},
      {"a.npy[None]", "'None'"},
      {"[0]", "no file before it"},
      {"a\n.npy[]", "a\\x0a.npy[]"},
  };
  for (const auto& row : rows) {
    const auto& text = row.first;
    CAPTURE(text);
    CHECK(contains(error_of(Error::Kind::usage, [&] { parse_reference(text); }), row.second));
  }
}

TEST_CASE("what names an array of a container is read as that array again") {
  for (const char* file : {"a.h5", "a.h5:/g[0,1]", "a.npz", "b/"})
    for (const char* name : {"/g/x", "x[1]", "x[1][2]", "x:y", "x]", "[...]"}) {
      CAPTURE(file);
      CAPTURE(name);
      const ArrayReference container = parse_reference(file);
      const ArrayReference made = reference_to(container, name);
      const ArrayReference read = parse_reference(made.text);
      CHECK(read.path ==
            (std::string_view(file) == "b/" ? std::string("b/") + name + ".npy" : container.path));
      if (std::string_view(file) != "b/") {
        CHECK(made.member == name);
        CHECK(read.member == name);
        CHECK(read.container == container.container);
      }
      CHECK((read.slice.empty() || read.slice.at(0).kind == SliceItem::Kind::ellipsis));
    }
}

TEST_CASE("references split at commas outside of brackets and parentheses") {
  using Words = std::vector<std::string>;
  CHECK(split_references("a.npy,b.npy") == Words{"a.npy", "b.npy"});
  CHECK(split_references("a.npy[0,:],b.h5:/x(1,2)") == Words{"a.npy[0,:]", "b.h5:/x(1,2)"});
  CHECK(split_references("a") == Words{"a"});
  CHECK(split_references("a,") == Words{"a", ""});
}

TEST_CASE("a reference in quotes is what stands between them") {
  using Words = std::vector<std::string>;
  CHECK(split_references("\"x,y.npy\"") == Words{"x,y.npy"});
  CHECK(split_references("\"x,y.npy[0]\",b.npy") == Words{"x,y.npy[0]", "b.npy"});
  CHECK(split_references("a.npy,\"(\"") == Words{"a.npy", "("});
  CHECK(split_references("a\"b,c\"") == Words{"a\"b", "c\""});
  CHECK(split_references("\"\",a") == Words{"", "a"});
  CHECK(split_references("\"x,y\" , \"z,w\" ") == Words{"x,y", "z,w"});
  CHECK(
      contains(error_of(Error::Kind::usage, [] { split_references("\"a\" \"b\""); }), "within a reference"));
  CHECK(contains(error_of(Error::Kind::usage, [] { split_references("a,\"b"); }), "not closed"));
  CHECK(contains(error_of(Error::Kind::usage, [] { split_references("\"a\"[0]"); }), "within a reference"));
}

TEST_CASE("a target's suffix says what it is, or is an error that lists those there are") {
  using Container = ArrayReference::Container;
  Folder folder;
  fs::create_directory(folder / "there");
  fs::create_directory(folder / "v1.2");
  fs::create_directory(folder / "d.npy");
  const std::pair<std::string, Container> good[] = {
      {"x.npy", Container::npy},        {"x", Container::npy},
      {".x", Container::npy},           {"x.", Container::npy},
      {"a.b/x", Container::npy},        {"x.npz", Container::npz},
      {"x.he5:/a.b", Container::hdf5},  {"-", Container::stream},
      {"new.d/", Container::directory}, {"there", Container::directory},
      {"there/", Container::directory}, {"v1.2", Container::directory},
      {"d.npy", Container::npy},        {"x.safetensors:a", Container::safetensors},
  };
  for (const auto& row : good) {
    const std::string& name = row.first;
    const Container container = row.second;
    CAPTURE(name);
    const ArrayReference target = parse_output(name == "-" ? name : folder / name);
    CHECK(target.container == container);
    CHECK((container != Container::directory || target.path.ends_with('/')));
  }
  for (const char* name : {"x.pt", "x.pth:a", "m.safetensors.index.json"})
    CHECK(contains(error_of(Error::Kind::usage, [&] { parse_output(folder / name); }), "can only be read"));
  for (const char* name : {"x.pte", "x.safetensor", "x.csv", "x.NPY", "x.npy.gz", "there/x.txt", ".x.y"}) {
    CAPTURE(name);
    const auto fails = [&](auto&& f) {
      return error_of(Error::Kind::usage, [&] { f(parse_reference(folder / name)); });
    };
    const NamedArray array{"a", make_source(counting({2}))};
    CHECK(contains(error_of(Error::Kind::usage, [&] { parse_output(folder / name); }),
                   ".npy, .npz, .h5, .hdf5, .hdf, .he5, .safetensors do"));
    fails([&](const ArrayReference& target) { write_array(target, array); });
    fails([&](const ArrayReference& target) { write_arrays(target, {array}); });
    fails([&](const ArrayReference& target) { check_target(target, {"a"}, true); });
  }
  CHECK(folder.names() == std::vector<std::string>{"d.npy", "there", "v1.2"});
}

TEST_CASE("an input that is a folder needs no slash") {
  using Container = ArrayReference::Container;
  Folder folder;
  fs::create_directory(folder / "d");
  fs::create_directory(folder / "d.npz");
  CHECK(parse_input(folder / "d").container == Container::directory);
  CHECK(parse_input(folder / "d").path == folder / "d/");
  CHECK(parse_input(folder / "d.npz").container == Container::directory);
  CHECK(parse_input(folder / "d.npz:x").container == Container::npz);
  CHECK(parse_input(folder / "d[0]").container == Container::npy);
  CHECK(parse_input(folder / "nothing").container == Container::npy);
  CHECK(parse_input(std::string(5000, 'x')).container == Container::npy);
}

TEST_CASE("what an input is, its first bytes say, whatever its suffix") {
  Folder folder;
  const NamedArray a{"a", make_source(counting({3}))};
  write_arrays(parse_reference(folder / "a.h5"), {a});
  write_arrays(parse_reference(folder / "a.npz"), {a});
  write_array(parse_reference(folder / "a.npy"), a);
  const std::string hdf5 = get(folder / "a.h5"), npz = get(folder / "a.npz"), npy = get(folder / "a.npy");
  for (const char* name : {"x.nc", "x.h5ad", "x.H5", "x", "x.npz", "x.npy", "x:y", "x.tar.gz"}) {
    CAPTURE(name);
    const std::string path = folder / name;
    const auto is = [&](const std::string& bytes, Kind kind) {
      put(path, bytes);
      CHECK(parse_input(path).container == kind);
      CHECK(same(read_all(*open_array(path)), counting({3})));
      CHECK(same(read_all(*open_array(path + "[1:]")), read_all(*open_array((folder / "a.npy") + "[1:]"))));
      CHECK(array_names(path) == std::vector<std::string>{kind == Kind::hdf5  ? "/a"
                                                          : kind == Kind::npz ? "a"
                                                                              : ""});
      if (kind == Kind::npy) return;
      const ArrayReference member = parse_input(path + ":a[...,0]");
      CHECK(member.container == kind);
      CHECK(member.path == path);
      CHECK(member.member == "a");
      CHECK(member.slice.size() == 2);
      CHECK(parse_input(path + ":x[1][...]").member == "x[1]");
      CHECK(same(read_all(*open_array(path + ":a")), counting({3})));
    };
    is(hdf5, Kind::hdf5);
    is(npz, Kind::npz);
    is(npy, Kind::npy);
    // The library looks for HDF5 behind a block of other data.
    for (const std::size_t block : {512u, 1024u, 2048u, 65536u}) {
      put(path, std::string(block, 'x') + hdf5);
      CHECK(parse_input(path).container == Kind::hdf5);
    }
    put(path, std::string(513, 'x') + hdf5);
    CHECK(parse_input(path).container == parse_reference(path).container);
    fs::remove(path);
  }
  // Nothing is written by content.
  put(folder / "o", hdf5);
  CHECK(parse_output(folder / "o").container == Kind::npy);
  CHECK(contains(error_of(Error::Kind::input, [&] { open_array(folder / "none.nc"); }),
                 "none.nc: No such file"));
  CHECK(contains(error_of(Error::Kind::input, [&] { open_array(folder / "a.npy:/x"); }), "No such file"));
}

TEST_CASE("a format that is not read is named, with what makes another of it") {
  Folder folder;
  const std::pair<std::string, const char*> rows[] = {
      {"CDF\1 and more", "x: is netCDF-3 (the classic format), which is not read\nhint: `nccopy -k nc4 "},
      {"CDF\2", "netCDF-3"},
      {"CDF\5", "netCDF-3"},
      {"\x0e\x03\x13\x01", "x: is HDF4"},
      {"MATLAB 5.0 MAT-file, Platform", "x: is MATLAB's format before 7.3"}};
  for (const auto& row : rows)
    for (const char* suffix : {"", ".nc", ".h5", ".npy"})
      for (const char* behind : {"", ":/x", "[0]"}) {
        if (*suffix == '.' && suffix[1] == 'n' && suffix[2] == 'p' && *behind == ':') continue;
        const std::string path = folder / "x";
        put(path + suffix, row.first);
        std::string text = error_of(Error::Kind::input, [&] { open_array(path + suffix + behind); });
        if (*suffix != '\0') text.erase(text.find(suffix), std::string_view(suffix).size());
        CHECK(contains(text, row.second));
        fs::remove(path + suffix);
      }
}

TEST_CASE("a pipe under a file's name is not looked at before it is read") {
  Folder folder;
  const std::string path = folder / "pipe.h5";
  REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  CHECK(parse_input(path).container == Kind::hdf5);  // nobody writes: to open it would wait
  CHECK(parse_input(path + ":/x").member == "/x");
  CHECK(parse_input("/dev/null").container == Kind::npy);
}
