// HDF5 files: files of h5py are read exactly, hostile ones refused, and h5py reads what is written.
#include "io/hdf5/client.hpp"

#include <fmt/format.h>
#include <hdf5.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <zlib.h>

#include <csignal>
#include <ctime>
#include <numeric>
#include <sstream>

#include "ejk/array_math.hpp"
#include "io/file.hpp"
#include "io/run.hpp"
#include "io/support.hpp"
#include "support/threads.hpp"

using namespace ejk;
using namespace ejk::test;
using Names = std::vector<std::string>;

namespace {

const std::string kFiles = EJK_TEST_DIR "/io/files/";  // made by make.py beside them

std::string zoo(const std::string& path) { return kFiles + "zoo.h5:" + path; }

template <class T>
bool holds(const ArraySource& source, const Shape& shape, const std::vector<T>& values) {
  const Array a = read_all(source);
  const auto elements = a.elements<T>();
  return a.dtype() == dtype_of<T>() && a.shape() == shape &&
         std::equal(values.begin(), values.end(), elements.begin(), elements.end());
}

void write_all_types(const std::string& target, std::vector<NamedArray>& arrays,
                     const WriteOptions& options = {}) {
  arrays.clear();
  for (const DType dtype : kAllTypes) {
    arrays.push_back({std::string(name_of(dtype)), make_source(example(dtype, {3, 5}))});
    arrays.push_back({std::string(name_of(dtype)) + "_scalar", make_source(example(dtype, {}))});
  }
  arrays.push_back({"empty", make_source(counting({0, 4}))});
  write_arrays(parse_reference(target), arrays, options);
}

// `name` in the file at `path` becomes a link to an object in another file.
void link_to_file(const std::string& path, const char* name, const std::string& to, const char* object) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  CHECK(H5Lcreate_external(to.c_str(), object, file, name, H5P_DEFAULT, H5P_DEFAULT) >= 0);
  H5Fclose(file);
}

}  // namespace

TEST_CASE("h5py's types and storages are read, and plain contiguous data is mapped") {
  const auto flat = open_array(zoo("/x"));
  CHECK(holds<float>(*flat, {2, 3}, {0, 1, 2, 3, 4, 5}));
  CHECK(flat->mapped().has_value());
  CHECK(flat->name() == zoo("/x"));
  const std::string user = kFiles + "userblock.h5";
  CHECK(read_all(*open_array(user + "[29]")).elements<float>()[0] == 29.f);
  CHECK(open_array(user)->mapped().has_value());

  CHECK(read_all(*open_array(zoo("/g/bool"))).dtype() == DType::boolean);
  CHECK(holds<std::int32_t>(*open_array(zoo("g//big")), {5}, {0, 1, 2, 3, 4}));
  CHECK(static_cast<float>(read_all(*open_array(zoo("/g/half/"))).elements<float16>()[3]) == 3.f);
  CHECK(static_cast<float>(read_all(*open_array(zoo("/bfloat16"))).elements<bfloat16>()[2]) == -3.f);
  CHECK(open_array(zoo("/float8"))->dtype() == DType::float8_e4m3fn);
  CHECK(holds<double>(*open_array(zoo("/scalar")), {}, {3.5}));
  CHECK(holds<std::int64_t>(*open_array(zoo("/empty")), {0, 3}, {}));
  CHECK(holds<std::int32_t>(*open_array(zoo("/compact")), {3}, {0, 1, 2}));
  CHECK(holds<float>(*open_array(zoo("/soft")), {2, 3}, {0, 1, 2, 3, 4, 5}));
  const std::vector<float> sevens(16, 7.f);
  CHECK(holds<float>(*open_array(zoo("/never")), {4, 4}, sevens));
  CHECK(holds<float>(*open_array(zoo("/never_chunked")), {4, 4}, sevens));
  std::vector<std::int16_t> numbers(1000);
  std::iota(numbers.begin(), numbers.end(), std::int16_t{0});
  for (const char* path : {"/gzip", "/chunked"}) {
    const auto source = open_array(zoo(path));
    CHECK(holds<std::int16_t>(*source, {10, 100}, numbers));
    CHECK(!source->random_access());
    CHECK(holds<std::int16_t>(*open_array(zoo(std::string(path) + "[2:9:3,-2:]")), {3, 2},
                              {298, 299, 598, 599, 898, 899}));
  }
}

TEST_CASE("a type that is not supported is told from what cannot be read") {
  const auto code = [](const std::string& reference) {
    try {
      open_array(reference);
    } catch (const Error& error) {
      return error.code();
    }
    FAIL("no error was thrown");
    return Error::Code::other;
  };
  for (const char* path : {"/null", "/string", "/complex", "/enum", "/array", "/int12"})
    CHECK(code(zoo(path)) == Error::Code::unsupported);
  for (const char* path : {"/dangling", "/elsewhere", "/virtual", "/g", "/nothing", ""})
    CHECK(code(zoo(path)) != Error::Code::unsupported);
}

TEST_CASE("what is no array, or lies outside of the file, is refused by name") {
  const std::pair<const char*, const char*> rows[] = {
      {"/null", "/null: the dataset is empty"},
      {"/string", "/string: the elements are strings"},
      {"/complex", "compounds"},
      {"/vlen", "sequences of varying length"},
      {"/reference", "references"},
      {"/opaque", "opaque bytes"},
      {"/enum", "an enumeration"},
      {"/array", "small arrays"},
      {"/type", "is a type, not a dataset"},
      {"/int12", "2-byte integers of 12 bits"},
      {"/dangling", "is a link that leads nowhere: to /nothing"},
      {"/external", "is a link to another file"},
      {"/soft_external", "leads to another file"},
      {"/elsewhere", "keeps its data in other files"},
      {"/virtual", "is a virtual dataset"},
      {"/g", "/g: is a group, not a dataset\nhint: it holds /g/big, /g/bool, /g/half"},
      {"/g/boll", "zoo.h5: holds no dataset /g/boll\nhint: did you mean "},
      {"/nothing/like/it", "it holds /array, /bfloat16, "},
      {"", "datasets, and none is named"},
  };
  for (const auto& row : rows) {
    const auto& path = row.first;
    CAPTURE(path);
    CHECK(contains(error_of(Error::Kind::input, [&] { open_array(zoo(path)); }), row.second));
  }
}

TEST_CASE("errors with a way out have a code, through the other process too") {
  const auto code_of = [](auto&& f) {
    try {
      f();
    } catch (const Error& error) {
      CHECK(error.subject().empty());
      return error.code();
    }
    FAIL_CHECK("no error was thrown");
    return Error::Code::other;
  };
  for (const char* path : {"/external", "/soft_external", "/elsewhere", "/virtual"})
    CHECK(code_of([&] { open_array(zoo(path)); }) == Error::Code::external);
  CHECK(code_of([&] { open_array(zoo("/string")); }) == Error::Code::unsupported);
  CHECK(code_of([&] { open_array(zoo("/dangling")); }) == Error::Code::other);
  CHECK(contains(run("$EJK cdiv '" + zoo("/external") + "' --by 2").text,
                 "hint: --allow-external follows it, and reads what it names\n"));
  Folder folder;
  const ArrayReference target = parse_reference(folder / "a.h5");
  const NamedArray x{"x", make_source(counting({3}))};
  write_array(target, x);
  CHECK(code_of([&] { write_array(target, x); }) == Error::Code::exists);
}

TEST_CASE("other files are read when it is allowed") {
  const OpenOptions allowed{.allow_external = true};
  const auto linked = open_array(zoo("/external"), allowed);
  CHECK(holds<float>(*linked, {2, 3}, std::vector<float>(6, 9.f)));
  CHECK(!linked->mapped().has_value());
  CHECK(open_array(zoo("/virtual"), allowed)->shape() == Shape{2, 3});
  // Its source is itself: the library recurses until its stack is gone.
  CHECK(contains(error_of(Error::Kind::input, [&] { read_all(*open_array(zoo("/virtual_self"), allowed)); }),
                 "zoo.h5"));
}

TEST_CASE("the names in a file come in order, and a lone dataset needs none") {
  const Names names = array_names(kFiles + "zoo.h5");
  CHECK(std::is_sorted(names.begin(), names.end()));
  CHECK(std::find(names.begin(), names.end(), "/g/bool") != names.end());
  CHECK(array_names(kFiles + "other.h5") == Names{"/y"});
  for (const char* group : {"/g", "g", "g/"})
    CHECK(array_names(zoo(group)) == Names{"/g/big", "/g/bool", "/g/half"});
  CHECK(array_names(zoo("/")) == names);
  CHECK(array_names(zoo("g/bool")) == Names{"/g/bool"});
  CHECK(array_names(zoo("nothing")) == Names{"/nothing"});
  CHECK(open_array(kFiles + "other.h5")->name() == kFiles + "other.h5:/y");
}

TEST_CASE("names are in the order of creation in groups that track it, of others in bytes' order") {
  Folder folder;
  const std::string path = folder / "order.h5";
  for (const unsigned order : {0U, static_cast<unsigned>(H5P_CRT_ORDER_TRACKED),
                               static_cast<unsigned>(H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED)}) {
    const hid_t created = H5Pcreate(H5P_FILE_CREATE), space = H5Screate(H5S_SCALAR);
    H5Pset_link_creation_order(created, order);
    const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, created, H5P_DEFAULT);
    for (const char* name : {"b", "l.10", "l.2", "a"})
      H5Dclose(H5Dcreate2(file, name, H5T_NATIVE_INT, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Sclose(space), H5Pclose(created), H5Fclose(file);
    CHECK(array_names(path) ==
          (order == 0 ? Names{"/a", "/b", "/l.10", "/l.2"} : Names{"/b", "/l.10", "/l.2", "/a"}));
  }
}

TEST_CASE("links are named with what they lead to, and none is followed") {
  const auto of = [](const std::string& path, const OpenOptions& options = {}) {
    Names words;
    for (const ArrayLink& link : array_links(path, options))
      words.push_back(fmt::format("{} {} {}", link.name, link.kind, link.target));
    return words;
  };
  const Names all{"/dangling dangling /nothing", "/external external other.h5:/y", "/soft soft /x",
                  "/soft_external soft /external"};
  CHECK(of(kFiles + "zoo.h5") == all);
  CHECK(of(zoo("/")) == all);
  CHECK(of(zoo("/g")).empty());
  CHECK(of(zoo("/x")).empty());
  CHECK(of(zoo("/no/such")).empty());
  CHECK(of("x.npz").empty());

  Folder folder;
  const std::string path = folder / "a.h5";
  write_arrays(parse_reference(path + ":/g"), {{"x", make_source(counting({3}))}});
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  H5Lcreate_hard(file, "/g/x", file, "/g/again", H5P_DEFAULT, H5P_DEFAULT);
  H5Lcreate_hard(file, "/", file, "/g/up", H5P_DEFAULT, H5P_DEFAULT);
  H5Lcreate_soft("../x", file, "/g/y", H5P_DEFAULT, H5P_DEFAULT);
  H5Lcreate_soft("x", file, "/g/z", H5P_DEFAULT, H5P_DEFAULT);
  H5Fclose(file);
  CHECK(array_names(path) == Names{"/g/again"});
  CHECK(of(path) == Names{"/g/up hard /", "/g/x hard /g/again", "/g/y dangling ../x", "/g/z soft x"});
}

TEST_CASE("with allow_external links to other files are followed, also where files lead to each other") {
  Folder folder;
  const std::string a = folder / "a.h5", b = folder / "b.h5";
  write_arrays(parse_reference(a), {{"x", make_source(counting({3}))}});
  write_arrays(parse_reference(b), {{"g/y", make_source(counting({2}))}, {"z", make_source(counting({4}))}});
  link_to_file(a, "/to_group", "b.h5", "/g");
  link_to_file(a, "/to_z", "b.h5", "/z");
  link_to_file(a, "/nowhere", "none.h5", "/z");
  link_to_file(b, "/g/back", "a.h5", "/");
  const OpenOptions allowed{.allow_external = true};
  CHECK(array_names(a) == Names{"/x"});
  CHECK(array_names(a, allowed) == Names{"/to_group/y", "/to_z", "/x"});
  Names left;
  for (const ArrayLink& one : array_links(a, allowed)) left.push_back(one.name + " " + one.kind);
  CHECK(left == Names{"/nowhere external", "/to_group/back hard"});
  CHECK(same(read_all(*open_array(a + ":/to_group/y", allowed)), counting({2})));
  CHECK(array_names(a + ":/to_group", allowed) ==
        Names{"/to_group/back/to_z", "/to_group/back/x", "/to_group/y"});
}

TEST_CASE(
    "with allow_external each array has one name, its own where the file has it, however files are linked") {
  Folder folder;
  // Each file leads to the next one twice: to follow both would double the names with each file.
  constexpr int kChained = 20;
  const auto file = [](int i) { return fmt::format("c{}.h5", i); };
  for (int i = 0; i < kChained; ++i)
    write_arrays(parse_reference(folder / file(i) + ":/z"), {{"x", make_source(counting({3}))}});
  for (int i = 0; i + 1 < kChained; ++i)
    for (const char* name : {"/a", "/b"}) link_to_file(folder / file(i), name, file(i + 1), "/");
  link_to_file(folder / file(1), "/c", file(0), "/z/x");
  const OpenOptions allowed{.allow_external = true};
  const Names names = array_names(folder / file(0), allowed);
  CHECK(names.size() == 17);  // the library follows 16 links on one path
  CHECK(std::find(names.begin(), names.end(), "/z/x") != names.end());
  CHECK(std::find(names.begin(), names.end(), "/a/a/z/x") != names.end());
  for (const std::string& name : names)
    CHECK(open_array(folder / file(0) + ":" + name, allowed)->shape() == Shape{3});
  const auto links = array_links(folder / file(0), allowed);
  const auto of = [&](const char* name) {
    return std::find_if(links.begin(), links.end(), [&](const ArrayLink& l) { return l.name == name; });
  };
  REQUIRE(of("/a/c") != links.end());
  CHECK(of("/a/c")->target == "/z/x");
  CHECK(of("/b") != links.end());
}

TEST_CASE("links of one name that lead elsewhere are a difference of two files") {
  Folder folder;
  const auto file_with = [&](const char* name, const char* latest) {
    std::string path = folder / name;
    write_arrays(parse_reference(path),
                 {{"step1", make_source(counting({3}))}, {"step2", make_source(counting({3}))}});
    const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    H5Lcreate_soft(latest, file, "/latest", H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(file);
    return path;
  };
  const std::string first = file_with("a.h5", "/step1"), same_place = file_with("b.h5", "step1"),
                    second = file_with("c.h5", "/step2");
  CHECK(run("$EJK compare " + first + " " + same_place).status == 0);
  const auto other = run("$EJK compare " + first + " " + second);
  CHECK(other.status == 1);
  CHECK(contains(other.text, "a link to /step1 against one to /step2"));
}

TEST_CASE("a file that is no HDF5 file says so") {
  Folder folder;
  const auto message = [&](std::string_view bytes) {
    put(folder / "a.h5", bytes);
    return error_of(Error::Kind::input, [&] { open_array(folder / "a.h5"); });
  };
  CHECK(contains(message(""), "a.h5: the file is empty"));
  CHECK(contains(message("hello"), "a.h5: not an HDF5 file"));
  CHECK(contains(message("\x89HDF\r\n\x1a\n"), "a.h5: cannot be opened"));
  const std::string good = get(kFiles + "small.h5");
  CHECK(contains(message(good.substr(0, good.size() / 2)), "a.h5: cannot be opened: truncated file"));
  CHECK(contains(error_of(Error::Kind::input, [&] { open_array(folder / "none.h5"); }), "No such file"));
  fs::create_directory(folder / "d.h5");
  CHECK(contains(error_of(Error::Kind::input, [&] { open_array(folder / "d.h5"); }), "d.h5/: is a folder"));
}

namespace {

// What one chunk of a file is made from.
struct Stored {
  Shape at;
  std::string bytes;
  std::uint32_t left_out = 0;  // filters, a bit each
};

enum class Edges { filtered, unfiltered };

// A file with a dataset /x: its filters, then chunks as they are stored.
template <class SetFilters>
void make_chunks(const std::string& path, hid_t type, const Shape& shape, const Shape& chunk,
                 SetFilters&& set_filters, const std::vector<Stored>& chunks, Edges edges = Edges::filtered) {
  const std::vector<hsize_t> lengths(shape.begin(), shape.end()), sides(chunk.begin(), chunk.end());
  const int rank = static_cast<int>(shape.size());
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS), plist = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_chunk(plist, rank, sides.data());
  if (edges == Edges::unfiltered) {
    H5Pset_chunk_opts(plist, H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS);
    H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110);  // older ones cannot say so
  }
  fs::remove(path);  // a reader that waits for the next question may have it open
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
  const hid_t space = H5Screate_simple(rank, lengths.data(), nullptr);
  set_filters(plist);
  const hid_t set = H5Dcreate2(file, "x", type, space, H5P_DEFAULT, plist, H5P_DEFAULT);
  for (const Stored& stored : chunks) {
    const std::vector<hsize_t> at(stored.at.begin(), stored.at.end());
    REQUIRE(H5Dwrite_chunk(set, H5P_DEFAULT, stored.left_out, at.data(), stored.bytes.size(),
                           stored.bytes.data()) >= 0);
  }
  H5Dclose(set), H5Sclose(space), H5Pclose(plist), H5Pclose(access), H5Fclose(file);
}

// A file with one gzip chunk of `length` bytes whose stored bytes are given.
void make_chunk(const std::string& path, std::int64_t length, const std::string& stored) {
  make_chunks(path, H5T_NATIVE_UINT8, {length}, {length}, [](hid_t plist) { H5Pset_deflate(plist, 9); },
              {{{0}, stored}});
}

std::string zlib(const std::string& bytes) {
  uLongf n = compressBound(bytes.size());
  std::string stream(n, '\0');
  compress(reinterpret_cast<Bytef*>(stream.data()), &n, reinterpret_cast<const Bytef*>(bytes.data()),
           bytes.size());
  stream.resize(n);
  return stream;
}

// A zlib stream of that many times 258 zeros: one block of fixed codes, each match 13 bits.
std::string zeros_deflated(std::size_t matches) {
  std::string bytes("\x78\x9c", 2);
  unsigned bits = 0, n = 0;
  const auto push = [&](unsigned value, unsigned count) {  // the first bit to be written is the lowest
    bits |= value << n;
    for (n += count; n >= 8; n -= 8, bits >>= 8) bytes += static_cast<char>(bits & 0xFF);
  };
  push(0b011, 3);                                             // the last block, fixed codes
  push(0b00001100, 8);                                        // the literal 0
  for (; matches > 0; --matches) push(0b00000'10100011, 13);  // 258 bytes, from one byte back
  push(0, 16);
  return bytes;
}

}  // namespace

TEST_CASE("a chunk that claims, or inflates to, more than it can hold is refused") {
  Folder folder;
  const std::string path = folder / "a.h5";
  const auto message = [&] { return error_of(Error::Kind::input, [&] { read_all(*open_array(path)); }); };
  make_chunk(path, 1 << 29, zeros_deflated(3));
  CHECK(contains(message(), "a.h5:/x: the dataset claims 536870912 bytes, which its 1"));
  make_chunk(path, std::int64_t{3} << 30, zeros_deflated(3));
  CHECK(contains(message(), "its chunks are 3.0 GiB each, more than the 1.0 GiB that are read"));
  make_chunk(path, 1024, zeros_deflated(4000000));  // a GiB, behind a kilobyte's claim
  CHECK(contains(message(), "a.h5:/x: the chunk at (0,) takes 6500005 stored bytes for its 1024"));
  make_chunk(path, 1024, zeros_deflated(40000));
  CHECK(contains(message(), "a.h5:/x: the chunk at (0,) inflates to more than its 1024 bytes"));
  make_chunk(path, 1024, zeros_deflated(1));
  CHECK(contains(message(), "a.h5:/x: the chunk at (0,) is damaged"));  // it has no checksum
}

TEST_CASE("a chunk that yields other bytes than it should is refused, by file, dataset and chunk") {
  Folder folder;
  const std::string path = folder / "a.h5";
  const auto gzip = [](hid_t plist) { H5Pset_deflate(plist, 4); };
  const auto shuffled = [&](hid_t plist) { H5Pset_shuffle(plist), gzip(plist); };
  const auto summed = [](hid_t plist) { H5Pset_fletcher32(plist); };
  const auto plain = [](hid_t) {};
  // 6 x 10 elements in chunks of 4 x 4; the one at (4, 8) reaches over both edges.
  const auto message = [&](auto filters, const std::vector<Stored>& chunks) {
    make_chunks(path, H5T_NATIVE_INT32, {6, 10}, {4, 4}, filters, chunks);
    std::string text = error_of(Error::Kind::input, [&] { read_all(*open_array(path)); });
    CHECK(contains(text, path + ":/x: "));
    CHECK(text.find('\n') == std::string::npos);
    return text;
  };
  const std::string whole(64, 'x');
  const auto deflated = [](std::size_t bytes) { return zlib(std::string(bytes, 'x')); };
  CHECK(contains(message(gzip, {{{0, 4}, deflated(20)}}),
                 "the chunk at (0, 4) inflates to 20 bytes, not to its 64"));
  CHECK(contains(message(gzip, {{{0, 4}, deflated(0)}}), "the chunk at (0, 4) inflates to 0 bytes"));
  CHECK(contains(message(gzip, {{{0, 4}, deflated(64)}, {{4, 8}, deflated(65)}}),
                 "the chunk at (4, 8) inflates to more than its 64 bytes"));
  CHECK(contains(message(gzip, {{{4, 8}, deflated(63)}}), "the chunk at (4, 8) inflates to 63 bytes"));
  CHECK(contains(message(shuffled, {{{4, 0}, deflated(60)}}), "the chunk at (4, 0) inflates to 60 bytes"));
  CHECK(contains(message(gzip, {{{0, 0}, "hello"}}), "the chunk at (0, 0) is damaged: no whole zlib stream"));
  CHECK(contains(message(gzip, {{{0, 0}, whole.substr(1), 1}}),
                 "the chunk at (0, 0) has 63 bytes, not its 64"));
  CHECK(contains(message(summed, {{{0, 0}, whole + "sum?"}}), "its checksum (fletcher32) is wrong"));
  CHECK(contains(message(summed, {{{0, 0}, "sum"}}), "has only 3 bytes, less than its checksum"));
  CHECK(contains(message(plain, {{{0, 0}, whole}, {{4, 4}, whole.substr(20)}}),
                 "the chunk at (4, 4) has 44 bytes, not its 64"));
}

namespace {

// A file with a dataset /x of that type, which the library writes: some of its chunks never, one without its
// filters, and the last ones reach over the edges. Returns what the library reads of it.
template <class SetFilters>
Array make_filtered(const std::string& path, hid_t type, const Array& elements, SetFilters&& set_filters) {
  const std::vector<hsize_t> lengths(elements.shape().begin(), elements.shape().end()), sides{16, 24},
      corner{0, 0}, written{lengths[0] - 40, lengths[1]};
  const hid_t plist = H5Pcreate(H5P_DATASET_CREATE), space = H5Screate_simple(2, lengths.data(), nullptr),
              part = H5Screate_simple(2, written.data(), nullptr);
  H5Pset_chunk(plist, 2, sides.data());
  H5Pset_fill_value(plist, type, elements.data() + elements.bytes() / 2);
  set_filters(plist);
  fs::remove(path);
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const hid_t set = H5Dcreate2(file, "x", type, space, H5P_DEFAULT, plist, H5P_DEFAULT);
  H5Sselect_hyperslab(space, H5S_SELECT_SET, corner.data(), nullptr, written.data(), nullptr);
  REQUIRE(H5Dwrite(set, type, part, space, H5P_DEFAULT, elements.data()) >= 0);
  const std::string raw(static_cast<std::size_t>(16 * 24 * size_of(elements.dtype())), '\1');
  const hsize_t second[] = {0, 24};
  REQUIRE(H5Dwrite_chunk(set, H5P_DEFAULT, ~0u, second, raw.size(), raw.data()) >= 0);
  H5Dclose(set), H5Sclose(part), H5Sclose(space), H5Pclose(plist), H5Fclose(file);
  // Opened anew: what the library remembers of a chunk that was written so is wrong.
  const hid_t again = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT),
              same = H5Dopen2(again, "x", H5P_DEFAULT);
  Array read(elements.dtype(), elements.shape());
  REQUIRE(H5Dread(same, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, read.data()) >= 0);
  H5Dclose(same), H5Fclose(again);
  return read;
}

}  // namespace

TEST_CASE(
    "chunks become the elements that the library reads, whoever decodes them and whatever their filters") {
  Folder folder;
  const std::string types = folder / "types.h5", path = folder / "a.h5";
  std::vector<NamedArray> arrays;
  write_all_types(types, arrays);
  using SetFilters = void (*)(hid_t);
  const SetFilters filters[] = {
      [](hid_t p) { H5Pset_deflate(p, 1); },
      [](hid_t p) { H5Pset_shuffle(p), H5Pset_deflate(p, 6); },
      [](hid_t p) { H5Pset_shuffle(p), H5Pset_deflate(p, 6), H5Pset_fletcher32(p); },
      [](hid_t p) { H5Pset_fletcher32(p), H5Pset_deflate(p, 6); },
      [](hid_t p) { H5Pset_shuffle(p); },
      [](hid_t p) { H5Pset_fletcher32(p); }};
  for (const DType dtype : kAllTypes) {
    const hid_t file = H5Fopen(types.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
    const hid_t set = H5Dopen2(file, std::string(name_of(dtype)).c_str(), H5P_DEFAULT),
                type = H5Dget_type(set);
    for (const SetFilters set_filters : filters) {
      const Array expected = make_filtered(path, type, example(dtype, {150, 170}), set_filters);
      const std::int64_t size = size_of(dtype);
      for (const int threads : {1, 2, 5}) {
        const Threads use(threads);
        const auto source = open_array(path);
        CHECK_MESSAGE(same(read_all(*source), expected), name_of(dtype));
        // A box that begins and ends within chunks, and then one that was read before.
        for (int again = 0; again < 2; ++again) {
          Array box(dtype, {71, 60});
          source->read(Shape{50, 30}, box.shape(), box.data());
          for (std::int64_t i = 0; i < 71; ++i)
            CHECK(std::equal(box.data() + 60 * size * i, box.data() + 60 * size * (i + 1),
                             expected.data() + ((50 + i) * 170 + 30) * size));
        }
      }
    }
    H5Tclose(type), H5Dclose(set), H5Fclose(file);
  }
}

TEST_CASE("many chunks, and large ones, are decoded by several threads as by one") {
  Folder folder;
  const std::string path = folder / "a.h5";
  const auto gzip = [](hid_t plist) { H5Pset_deflate(plist, 1); };
  struct Case {
    std::int64_t length, chunk;
  };
  // More than are decoded at once; several tasks; chunks of which few are decoded at once, or one.
  for (const Case& c : {Case{70000, 16}, Case{5'000'001, 50'000}, Case{90 << 20, 30 << 20}}) {
    std::vector<Stored> chunks;
    std::string all;
    for (std::int64_t at = 0; at < c.length; at += c.chunk) {
      const std::string bytes(static_cast<std::size_t>(c.chunk), static_cast<char>('a' + at / c.chunk % 26));
      chunks.push_back({{at}, zlib(bytes)});
      all += bytes;
    }
    make_chunks(path, H5T_NATIVE_UINT8, {c.length}, {c.chunk}, gzip, chunks);
    for (const int threads : {1, 3}) {
      const Threads use(threads);
      const Array read = read_all(*open_array(path));
      CHECK(std::memcmp(read.data(), all.data(), static_cast<std::size_t>(c.length)) == 0);
    }
  }
}

TEST_CASE(
    "a row of chunks that is larger than the usual cache is decoded once, where there is memory for it") {
  Folder folder;
  const std::string path = folder / "a.h5";
  // Chunks of 1 MiB side by side: whole columns.
  constexpr std::int64_t kChunks = 144, kRows = 1024, kColumns = 1024;
  std::vector<Stored> chunks;
  for (std::int64_t i = 0; i < kChunks; ++i)
    chunks.push_back({{0, i * kColumns}, zlib(std::string(kRows * kColumns, static_cast<char>(i)))});
  make_chunks(
      path, H5T_NATIVE_UINT8, {kRows, kChunks * kColumns}, {kRows, kColumns},
      [](hid_t plist) { H5Pset_deflate(plist, 1); }, chunks);
  for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{1} << 30}) {
    const auto memory = std::make_shared<ReadMemory>(bytes);
    {
      const auto source = open_array(path, {.read_memory = memory});
      CHECK(memory->wanted() == kChunks << 20);
      Array two(DType::uint8, {2, kChunks * kColumns});
      for (const std::int64_t row : {0, 500, 1022}) {
        source->read(Shape{row, 0}, two.shape(), two.data());
        for (std::int64_t i = 0; i < 2 * kChunks; ++i)
          CHECK(two.elements<std::uint8_t>()[static_cast<std::size_t>(i * kColumns)] == i % kChunks);
      }
      CHECK(memory->take(bytes - (bytes > 0 ? kChunks << 20 : 0)));  // all that is left
      CHECK(!memory->take(1));
      memory->add(bytes - (bytes > 0 ? kChunks << 20 : 0));
    }
    CHECK(memory->take(bytes));  // it was given back
  }
  if (!can_inject_faults()) return;
  const auto reads = [&](const char* slice_and_options) {
    const std::string log = folder / "log";
    const Printed ran = run(fmt::format("strace -f -o {} -e trace=pread64 -P {} $EJK info {}{} -q", log, path,
                                        path, slice_and_options));
    CHECK(ran.status == 0);
    const std::string calls = get(log);
    return std::count(calls.begin(), calls.end(), '\n');
  };
  CHECK(reads("") < 4 * kChunks);
  CHECK(reads("[:200] --max-memory 8M") > 4 * kChunks);
  // Beside 128 MiB that no plan counts, and what statistics take.
  const std::string plan = run("$EJK info " + path + " --dry-run --max-memory 1G --json").text;
  const std::int64_t peak = std::stoll(plan.substr(plan.find("\"peak_bytes\":") + 13));
  CHECK(peak > 16 << 20);
  CHECK(peak < 24 << 20);
}

TEST_CASE("of a file's large rows those that were read before give way") {
  Folder folder;
  const std::string path = folder / "a.h5";
  constexpr std::int64_t kRow = 72 << 20;
  const auto gzip = [](hid_t plist) { H5Pset_deflate(plist, 1); };
  const std::string file = folder / "both.h5";
  make_chunks(
      path, H5T_NATIVE_UINT8, {2, kRow / 2}, {2, kRow / 4}, gzip,
      {{{0, 0}, zlib(std::string(kRow / 2, 'a'))}, {{0, kRow / 4}, zlib(std::string(kRow / 2, 'b'))}});
  const hid_t h5 = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  REQUIRE(H5Ocopy(h5, "x", h5, "y", H5P_DEFAULT, H5P_DEFAULT) >= 0);
  H5Fclose(h5);
  const auto memory = std::make_shared<ReadMemory>(kRow + 5);
  {
    const ArrayFile both(path, {.read_memory = memory});
    const auto x = both.array("/x"), y = both.array("/y");
    for (const auto& source : {x, y, x, y}) {
      char first = 0;
      source->read(Shape{1, kRow / 4}, Shape{1, 1}, &first);
      CHECK(first == 'b');
      CHECK(!memory->take(6));
      CHECK(memory->take(5));
      memory->add(5);
    }
  }
  CHECK(memory->take(kRow + 5));
}

TEST_CASE("of several damaged chunks the first one is named, whoever decodes them") {
  Folder folder;
  const std::string path = folder / "a.h5";
  const auto gzip = [](hid_t plist) { H5Pset_deflate(plist, 1); };
  constexpr std::int64_t kChunk = 300'000;
  const auto message = [&](const std::vector<std::int64_t>& damaged, std::int64_t overlong) {
    std::vector<Stored> chunks;
    for (std::int64_t i = 0; i < 40; ++i) {
      std::string bytes = zlib(std::string(kChunk, static_cast<char>(i)));
      if (std::count(damaged.begin(), damaged.end(), i) > 0) bytes.back() ^= 1;
      if (i == overlong) bytes.resize(2 * kChunk + (1 << 16) + 1);
      chunks.push_back({{i * kChunk}, std::move(bytes)});
    }
    make_chunks(path, H5T_NATIVE_UINT8, {40 * kChunk}, {kChunk}, gzip, chunks);
    std::string text;
    for (const int threads : {1, 2, 5}) {
      const Threads use(threads);
      const std::string found = error_of(Error::Kind::input, [&] { read_all(*open_array(path)); });
      CHECK((text.empty() || found == text));
      text = found;
    }
    return text;
  };
  CHECK(contains(message({3, 4, 20, 39}, -1), "the chunk at (900000,) is damaged: no whole zlib stream"));
  CHECK(contains(message({39}, -1), "the chunk at (11700000,) is damaged: no whole zlib stream"));
  // One that is refused before it is decoded does not overtake those before it.
  CHECK(contains(message({5}, 6), "the chunk at (1500000,) is damaged: no whole zlib stream"));
  CHECK(contains(message({7}, 6), "the chunk at (1800000,) takes 665537 stored bytes for its 300000"));
}

namespace {

// A little-endian number in a file's bytes.
class Number {
 public:
  Number(std::string& file, std::size_t at, std::size_t bytes) : file_(file), at_(at), bytes_(bytes) {}
  operator std::uint64_t() const {
    std::uint64_t value = 0;
    for (std::size_t i = bytes_; i-- > 0;) value = value << 8 | static_cast<unsigned char>(file_[at_ + i]);
    return value;
  }
  void operator=(std::uint64_t value) {
    for (std::size_t i = 0; i < bytes_; ++i) file_[at_ + i] = static_cast<char>(value >> (8 * i));
  }

 private:
  std::string& file_;
  std::size_t at_, bytes_;
};

// The first leaf of the index of chunks in a file's bytes (a version 1 B-tree), taken apart and put back. A
// key is the chunk's stored bytes, its filter mask, its offset in each axis and in an element; behind each
// stands the chunk's address. Source: the HDF5 file format, "Disk Format: Level 1A1 - Version 1 B-trees".
class Leaf {
 public:
  Leaf(std::string& file, std::size_t rank) : file_(file), stride_(8 + 8 * (rank + 1) + 8) {
    at_ = file.find(std::string("TREE\1\0", 6));
    REQUIRE(at_ != std::string::npos);
  }
  Number used() { return {file_, at_ + 6, 2}; }
  Number bytes(std::size_t i) { return {file_, entry(i), 4}; }
  Number offset(std::size_t i, std::size_t axis) { return {file_, entry(i) + 8 + 8 * axis, 8}; }
  Number address(std::size_t i) { return {file_, entry(i + 1) - 8, 8}; }

 private:
  std::size_t entry(std::size_t i) const { return at_ + 24 + i * stride_; }

  std::string& file_;
  std::size_t stride_, at_ = 0;
};

}  // namespace

TEST_CASE("an index of chunks that cannot be the dataset's is refused, whatever the filters") {
  Folder folder;
  const std::string path = folder / "a.h5", whole(64, 'x');
  // 6 x 10 elements in chunks of 4 x 4: 2 x 3 of them, the first five written.
  const auto gzip = [](hid_t plist) { H5Pset_deflate(plist, 4); };
  const auto plain = [](hid_t) {};
  const auto check = [&](auto filters, std::string_view bytes) {
    std::vector<Stored> chunks;
    for (std::int64_t i = 0; i < 5; ++i) chunks.push_back({{i / 3 * 4, i % 3 * 4}, std::string(bytes)});
    make_chunks(path, H5T_NATIVE_INT32, {6, 10}, {4, 4}, filters, chunks);
    std::string good = get(path);
    CHECK(contains(open_array(path)->access().storage, ", 5 of 6 written"));
    CHECK(read_all(*open_array(path)).shape() == Shape{6, 10});
    const auto message = [&](auto damage) {
      std::string bad = good;
      damage(Leaf(bad, 2));
      fs::remove(path);
      put(path, bad);
      std::string text = error_of(Error::Kind::input, [&] { read_all(*open_array(path)); });
      CHECK(contains(text, path + ":/x: "));
      CHECK(text.find('\n') == std::string::npos);
      return text;
    };
    CHECK(contains(message([](Leaf leaf) { leaf.offset(4, 0) = 8; }),
                   "the index of its chunks is damaged: it has one at (8, 4), where none can be"));
    CHECK(contains(message([](Leaf leaf) { leaf.offset(4, 1) = std::uint64_t{1} << 40; }),
                   "it has one at (4, 1099511627776), where none can be"));
    CHECK(contains(message([](Leaf leaf) { leaf.offset(4, 0) = 0; }), "is not found"));
    CHECK(contains(message([](Leaf leaf) { leaf.offset(4, 1) = 0; }), "it has the chunk at (4, 0) twice"));
    CHECK(contains(message([](Leaf leaf) { leaf.offset(1, 1) = 8, leaf.offset(2, 1) = 4; }), "is not found"));
    CHECK(contains(message([](Leaf leaf) { leaf.address(1) = leaf.address(0) + 4; }),
                   "the chunks at (0, 0) and (0, 4) share bytes"));
    CHECK(contains(message([](Leaf leaf) { leaf.address(1) = 1 << 20; }),
                   "the chunk at (0, 4) lies outside of the file"));
    CHECK(contains(message([](Leaf leaf) { leaf.address(1) = UINT64_MAX; }), "the chunk at (0, 4) "));
    return good;
  };
  check(gzip, zlib(whole));
  std::string bad = check(plain, whole);
  // As many bytes in all as there should be.
  Leaf leaf(bad, 2);
  leaf.bytes(1) = 68, leaf.bytes(3) = 60;
  fs::remove(path);
  put(path, bad);
  CHECK(contains(error_of(Error::Kind::input, [&] { open_array(path); }),
                 "a.h5:/x: the chunk at (0, 4) has 68 bytes, not its 64"));
}

TEST_CASE("whichever axes may grow, the chunks are read where they lie") {
  Folder folder;
  const std::string path = folder / "grows.h5";
  for (const H5F_libver_t version : {H5F_LIBVER_EARLIEST, H5F_LIBVER_V110})
    for (int grows = 0; grows < 8; ++grows) {  // a bit for each axis
      const hid_t access = H5Pcreate(H5P_FILE_ACCESS), plist = H5Pcreate(H5P_DATASET_CREATE);
      H5Pset_libver_bounds(access, version, H5F_LIBVER_V110);
      const hsize_t lengths[3] = {4, 6, 5}, chunk[3] = {2, 3, 2};
      hsize_t most[3];
      for (int d = 0; d < 3; ++d) most[d] = (grows >> d & 1) != 0 ? H5S_UNLIMITED : lengths[d];
      H5Pset_chunk(plist, 3, chunk);
      fs::remove(path);
      const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
      const hid_t space = H5Screate_simple(3, lengths, most);
      const hid_t set = H5Dcreate2(file, "x", H5T_NATIVE_INT, space, H5P_DEFAULT, plist, H5P_DEFAULT);
      std::vector<std::int32_t> numbers(4 * 6 * 5);
      std::iota(numbers.begin(), numbers.end(), 1);
      H5Dwrite(set, H5T_NATIVE_INT, H5S_ALL, H5S_ALL, H5P_DEFAULT, numbers.data());
      H5Dclose(set), H5Sclose(space), H5Pclose(plist), H5Pclose(access), H5Fclose(file);
      const Array read = read_all(*open_array(path + ":/x"));
      CHECK(std::equal(numbers.begin(), numbers.end(), read.elements<std::int32_t>().begin()));
    }
}

TEST_CASE("in a long index of chunks one that is not where it belongs is missed when it is read") {
  Folder folder;
  const std::string path = folder / "a.h5";
  const auto gzip = [](hid_t plist) { H5Pset_deflate(plist, 4); };
  const auto plain = [](hid_t) {};
  const auto check = [&](auto filters, const std::string& bytes) {
    for (const std::int64_t n : {700, 699}) {  // of 700
      std::vector<Stored> chunks;
      for (std::int64_t i = 0; i < n; ++i) chunks.push_back({{4 * i}, bytes});
      make_chunks(path, H5T_NATIVE_UINT8, {2800}, {4}, filters, chunks);
      CHECK(open_array(path)->access().storage.ends_with(", 699 of 700 written") == (n < 700));
      const Array all = read_all(*open_array(path));
      CHECK(all.elements<std::uint8_t>()[2795] == 'x');
      CHECK(all.elements<std::uint8_t>()[2796] == (n < 700 ? 0 : 'x'));
      std::string bad = get(path);
      Leaf(bad, 1).offset(5, 0) = 4000;
      fs::remove(path);
      put(path, bad);
      CHECK(contains(error_of(Error::Kind::input, [&] { read_all(*open_array(path)); }),
                     "a.h5:/x: the index of its chunks is damaged: "));
    }
  };
  check(gzip, zlib("xxxx"));
  check(plain, "xxxx");
}

TEST_CASE("chunks that an index lost are told") {
  Folder folder;
  const std::string path = folder / "a.h5";
  make_chunks(path, H5T_NATIVE_UINT8, {8}, {4}, [](hid_t) {}, {{{0}, "xxxx"}, {{4}, "xxxx"}});
  CHECK(open_array(path)->access().storage == "chunks of 4");
  std::string bad = get(path);
  Leaf(bad, 1).used() = 1;
  fs::remove(path);
  put(path, bad);
  CHECK(open_array(path)->access().storage == "chunks of 4, 1 of 2 written");
}

TEST_CASE("a shape above its own limits is refused") {
  Folder folder;
  const std::string path = folder / "a.h5";
  make_chunks(path, H5T_NATIVE_UINT8, {0x0203, 0x0405}, {4, 4}, [](hid_t) {}, {});
  std::string bad = get(path);
  const auto lengths = bad.find(std::string("\x03\x02\0\0\0\0\0\0\x05\x04", 10));
  REQUIRE(lengths != std::string::npos);
  bad[lengths + 5] = 1;  // the limits follow
  fs::remove(path);
  put(path, bad);
  const std::string message = error_of(Error::Kind::input, [&] { open_array(path); });
#if H5_VERSION_GE(1, 14, 0)  // checks this itself, in its own words
  for (const char* part : {"a.h5:/x: ", "1099511628291", "515"}) CHECK(contains(message, part));
#else
  CHECK(contains(message, "a.h5:/x: axis 0 claims a length of 1099511628291, above its limit of 515"));
#endif
}

TEST_CASE("a file for a later library gets a hint") {
  Folder folder;
  const std::string path = folder / "a.h5";
  const std::string good = get(kFiles + "other.h5");
  const auto layout = good.find(std::string("\x08\0\x18\0", 4));  // the message's type and size
  REQUIRE(layout != std::string::npos);
  std::string later = good;
  later[layout + 8] = 9;
  put(path, later);
  CHECK(contains(
      error_of(Error::Kind::input, [&] { open_array(path); }),
      ":/y: cannot be opened: bad version number for layout message\nhint: if a later HDF5 library"));
}

TEST_CASE(
    "chunks are read with all filters, with some left out, unfiltered over edges, and not written at all") {
  Folder folder;
  const std::string path = folder / "a.h5";
  const auto filters = [](hid_t plist) {
    const std::int16_t fill = 7;
    H5Pset_fill_value(plist, H5T_NATIVE_INT16, &fill);
    H5Pset_shuffle(plist), H5Pset_deflate(plist, 4);
  };
  // Elements of one byte value each are the same shuffled or not: 0x0101, 0x0202, ...
  const auto bytes = [](int value) { return std::string(24, static_cast<char>(value)); };
  const std::vector<Stored> stored = {
      {{0, 0}, zlib(bytes(1))}, {{0, 4}, bytes(2), 3}, {{3, 0}, zlib(bytes(3)), 1}};
  make_chunks(path, H5T_NATIVE_INT16, {5, 6}, {3, 4}, filters, stored);
  const auto expected = [](Shape from, Shape count) {
    const int values[2][2] = {{0x0101, 0x0202}, {0x0303, 7}};
    std::vector<std::int16_t> elements;
    for (auto i = from[0]; i < from[0] + count[0]; ++i)
      for (auto j = from[1]; j < from[1] + count[1]; ++j)
        elements.push_back(static_cast<std::int16_t>(values[i / 3][j / 4]));
    return elements;
  };
  CHECK(holds<std::int16_t>(*open_array(path), {5, 6}, expected({0, 0}, {5, 6})));
  CHECK(holds<std::int16_t>(*open_array(path + ":/x[2:4,3:5]"), {2, 2}, expected({2, 3}, {2, 2})));
  CHECK(holds<std::int16_t>(*open_array(path + ":/x[4:,4:]"), {1, 2}, expected({4, 4}, {1, 2})));

  std::vector<Stored> edges = stored;
  edges[1] = {{0, 4}, bytes(2)};
  edges[2] = {{3, 0}, bytes(3)};
  make_chunks(path, H5T_NATIVE_INT16, {5, 6}, {3, 4}, filters, edges, Edges::unfiltered);
  CHECK(holds<std::int16_t>(*open_array(path), {5, 6}, expected({0, 0}, {5, 6})));
}

TEST_CASE("filters that only the HDF5 library undoes are for files that are trusted") {
  Folder folder;
  const std::string path = folder / "a.h5";
  make_chunks(path, H5T_NATIVE_INT32, {8}, {4}, [](hid_t plist) { H5Pset_scaleoffset(plist, H5Z_SO_INT, 0); },
              {});
  const std::string message = error_of(Error::Kind::input, [&] { open_array(path); });
  CHECK(contains(message, "a.h5:/x: is compressed by filter 6 (scaleoffset)"));
  CHECK(contains(run("$EJK cdiv '" + path + "' --by 2").text, "\nhint: `h5repack -f GZIP=4 "));
  CHECK(holds<std::int32_t>(*open_array(path, {.allow_external = true}), {8}, std::vector<std::int32_t>(8)));
}

TEST_CASE("a filter that is a plug-in is for files that are trusted, and for who has it") {
  Folder folder;
  const std::string path = folder / "a.h5";
  constexpr H5Z_filter_t kBlosc = 32001;
  make_chunks(path, H5T_NATIVE_INT32, {8}, {4},
              [](hid_t plist) { H5Pset_filter(plist, kBlosc, H5Z_FLAG_OPTIONAL, 0, nullptr); },
              {{{0}, "xxxx"}});
  const auto refused = [&](const OpenOptions& options) {
    try {
      open_array(path, options);
    } catch (const Error& error) {
      return error;
    }
    FAIL("no error was thrown");
    return Error(Error::Kind::internal, "");
  };
  const Error error = refused({});
  CHECK(error.code() == Error::Code::plugin_filter);
  CHECK(contains(error.message(), "is compressed by filter 32001"));
  CHECK(contains(run("$EJK cdiv '" + path + "' --by 2").text,
                 "hint: --allow-external loads the HDF5 library's plug-ins\n"));
  CHECK(contains(refused({.allow_external = true}).message(), "no plug-in"));
}

TEST_CASE("what h5py compresses with lzf is read as it is without, alone and beside shuffle and checksums") {
  const std::string file = kFiles + "lzf.h5:";
  for (const int threads : {1, 3}) {
    const Threads use(threads);
    const Array plain = read_all(*open_array(file + "/plain"));
    for (const char* name : {"/lzf", "/shuffle", "/sum", "/all"})
      CHECK_MESSAGE(same(read_all(*open_array(file + name)), plain), name);
    CHECK(same(read_all(*open_array(file + "/zeros")), Array(DType::uint8, {5000})));
  }
  CHECK(open_array(file + "/all")->access().storage == "chunks of 16 x 16, shuffle, lzf, fletcher32");
}

TEST_CASE("a damaged or cut lzf chunk is refused, and no byte is read past its end") {
  Folder folder;
  const std::string path = folder / "a.h5";
  const auto message = [&](const std::string& stored) {
    make_chunks(path, H5T_NATIVE_UINT8, {8}, {4},
                [](hid_t plist) { H5Pset_filter(plist, 32000, H5Z_FLAG_OPTIONAL, 0, nullptr); },
                {{{4}, stored}});
    return error_of(Error::Kind::input, [&] { read_all(*open_array(path)); });
  };
  using namespace std::string_literals;
  CHECK(contains(message("\3abc"), "a.h5:/x: the chunk at (4,) is damaged: its lzf stream is cut off"));
  CHECK(contains(message("\4abcde"), "the chunk at (4,) inflates to more than its 4 bytes"));
  CHECK(contains(message("\2abc"), "the chunk at (4,) inflates to 3 bytes, not to its 4"));
  CHECK(contains(message("\0a\x20\1"s), "refers to bytes before its first one"));
}

TEST_CASE("bit fields are unsigned integers, as in h5py") {
  const std::string file = kFiles + "raw.h5:";
  CHECK(holds<std::uint8_t>(*open_array(file + "/B8LE"), {5}, {0, 1, 1, 0, 0xFF}));
  for (const char* name : {"/B16LE", "/B16BE"})
    CHECK(holds<std::uint16_t>(*open_array(file + name), {5}, {0, 0x0101, 0x0101, 0, 0xFFFF}));
  CHECK(holds<std::uint32_t>(*open_array(file + "/B32LE"), {5}, {0, 0x01010101, 0x01010101, 0, 0xFFFFFFFF}));
  constexpr std::uint64_t kOnes = 0x0101010101010101;
  CHECK(holds<std::uint64_t>(*open_array(file + "/B64BE"), {5}, {0, kOnes, kOnes, 0, UINT64_MAX}));
  Folder folder;
  const hid_t three = H5Tcopy(H5T_STD_B8LE);
  H5Tset_precision(three, 3);
  make_chunks(folder / "a.h5", three, {4}, {4}, [](hid_t) {}, {});
  H5Tclose(three);
  CHECK(contains(error_of(Error::Kind::input, [&] { open_array(folder / "a.h5"); }),
                 "the elements are 1-byte bit fields of 3 bits, which is not supported"));
}

TEST_CASE("8-bit floats are distinguished by their fields, and powers of two are bytes") {
  Folder folder;
  WriteOptions options;
  options.overwrite = true;
  for (const DType dtype : kDTypes) {
    if (!is_8_bit_float(dtype)) continue;
    CAPTURE(name_of(dtype));
    Array x(dtype, {256});
    for (int i = 0; i < 256; ++i) x.data()[i] = static_cast<std::byte>(i);
    write_array(parse_output(folder / "x.h5:/x"), {"x", make_source(x.view(), "x")}, options);
    const Array back = read_all(*open_array(folder / "x.h5:/x"));
    CHECK(back.dtype() == (dtype == DType::float8_e8m0fnu ? DType::uint8 : dtype));
    CHECK(std::equal(x.data(), x.data() + 256, back.data()));
  }
}

TEST_CASE("two opaque bytes are a bfloat16 as h5py writes it; what has another name is refused") {
  const std::string file = kFiles + "raw.h5:";
  for (const char* name : {"/ml_dtypes", "/numpy", "/named"}) {
    CAPTURE(name);
    const Array read = read_all(*open_array(file + name));
    REQUIRE(read.dtype() == DType::bfloat16);
    const auto elements = read.elements<bfloat16>();
    CHECK(static_cast<float>(elements[0]) == 1.f);
    CHECK(static_cast<float>(elements[2]) == -3.f);
    CHECK(open_array(file + name)->access().storage == "opaque");
  }
  CHECK(contains(error_of(Error::Kind::input, [&] { open_array(file + "/color"); }),
                 "the elements are 2 opaque bytes (tag 'rgb565'), which is not supported"));
  CHECK(contains(error_of(Error::Kind::input, [&] { open_array(file + "/triple"); }), "3 opaque bytes"));
}

TEST_CASE("all types come back from HDF5 as they were written, and large ones are aligned and mapped") {
  Folder folder;
  const std::string path = folder / "a.h5";
  std::vector<NamedArray> arrays;
  write_all_types(path, arrays);
  for (const NamedArray& array : arrays)
    CHECK_MESSAGE(same(read_all(*open_array(path + ":/" + array.name)), read_all(*array.source)), array.name);
  CHECK(array_names(path).size() == arrays.size());
  CHECK(folder.names() == Names{"a.h5"});

  const auto large = std::make_shared<Unmapped>(counting({3000, 1100}));
  write_arrays(parse_reference(path + ":/deep/er"),
               {{"odd", make_source(example(DType::int8, {3001}))}, {"large", large}});
  const auto source = open_array(path + ":deep/er/large");
  REQUIRE(source->mapped().has_value());
  CHECK(same(read_all(*source), counting({3000, 1100})));
  CHECK(large->largest <= 8 << 20);
  CHECK(array_names(path).size() == arrays.size() + 2);
}

TEST_CASE("the same work gives the same bytes") {
  Folder folder;
  std::vector<NamedArray> arrays;
  const WriteOptions options{.overwrite = false,
                             .attributes = {{"ejk_version", "1"}, {"empty", ""}, {"é", "ü"}}};
  for (const char* name : {"a.h5", "b.h5"}) write_all_types((folder / name) + ":/g", arrays, options);
  CHECK(get(folder / "a.h5") == get(folder / "b.h5"));
}

namespace {

std::string attribute(const std::string& path, const char* object, const char* name) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const hid_t a = H5Aopen_by_name(file, object, name, H5P_DEFAULT, H5P_DEFAULT), type = H5Aget_type(a);
  char* text = nullptr;
  H5Aread(a, type, static_cast<void*>(&text));
  std::string value = text == nullptr ? "?" : text;
  H5free_memory(text);
  H5Tclose(type), H5Aclose(a), H5Fclose(file);
  return value;
}

}  // namespace

TEST_CASE("attributes go to what is written into: file, group or dataset") {
  Folder folder;
  const std::string path = folder / "a.h5";
  const NamedArray x{"x", make_source(counting({3}))};
  const auto with = [](const char* value) {
    return WriteOptions{.overwrite = true, .attributes = {{"key", value}}};
  };
  write_arrays(parse_reference(path), {x}, with("file"));
  write_arrays(parse_reference(path + ":/g"), {x}, with("group"));
  write_array(parse_reference(path + ":/g/y"), x, with("dataset"));
  CHECK(attribute(path, "/", "key") == "file");
  CHECK(attribute(path, "/g", "key") == "group");
  CHECK(attribute(path, "/g/y", "key") == "dataset");
  write_arrays(parse_reference(path), {x}, with("again"));
  CHECK(attribute(path, "/", "key") == "again");
}

TEST_CASE("attributes of an earlier write go, and no others") {
  Folder folder;
  const std::string path = folder / "a.h5";
  const NamedArray x{"x", make_source(counting({3}))};
  using Attributes = std::map<std::string, std::string>;
  const auto write = [&](const Attributes& attributes, const std::vector<std::string>& outdated) {
    write_arrays(parse_reference(path + ":/g"), {x},
                 {.overwrite = true, .attributes = attributes, .outdated = outdated});
    return ArrayFile(path).attributes("/g");
  };
  write({{"made_by", "one"}, {"block", "8x8"}, {"note", "of the user"}}, {});
  CHECK(write({{"made_by", "two"}, {"size", "3"}}, {"made_by", "block", "size"}) ==
        Attributes{{"made_by", "two"}, {"size", "3"}, {"note", "of the user"}});
  // Without the first name nothing says that they are of the same program.
  CHECK(write({{"size", "4"}}, {"other", "made_by", "size"}) ==
        Attributes{{"made_by", "two"}, {"size", "4"}, {"note", "of the user"}});
}

namespace {

using Texts = std::map<std::string, std::string>;

// An attribute of the file's first group.
void put_attribute(hid_t file, const char* name, hid_t type, const std::vector<hsize_t>& shape,
                   const void* value) {
  const hid_t space = shape.empty() ? H5Screate(H5S_SCALAR)
                                    : H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr);
  const hid_t a = H5Acreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
  H5Awrite(a, type, value);
  H5Aclose(a), H5Sclose(space);
}

}  // namespace

TEST_CASE("attributes are read back where they are one text, whole number or truth value") {
  Folder folder;
  const std::string path = folder / "a.h5";
  const NamedArray x{"x", make_source(counting({3}))};
  const Texts texts{{"block", "4x4"}, {"empty", ""}, {"é", "ü"}};
  write_arrays(parse_reference(path + ":/g"), {x}, {.attributes = texts});
  CHECK(ArrayFile(path).attributes("/g") == texts);
  CHECK(ArrayFile(path + ":/g").attributes() == texts);
  CHECK(ArrayFile(path).attributes().empty());
  CHECK(ArrayFile(path).attributes("g/x").empty());
  CHECK(contains(error_of(Error::Kind::input, [&] { ArrayFile(path).attributes("gone"); }),
                 "holds no group or dataset /gone"));

  // As other programs write them, and what is passed over: lists, floats, more than 64 KiB.
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  const std::int16_t small = -3;
  const std::uint64_t large = UINT64_MAX;
  const double number = 1.5;
  const std::int32_t list[] = {1, 2};
  const std::int8_t yes = 1;
  put_attribute(file, "small", H5T_NATIVE_INT16, {}, &small);
  put_attribute(file, "large", H5T_NATIVE_UINT64, {1}, &large);
  put_attribute(file, "number", H5T_NATIVE_DOUBLE, {}, &number);
  put_attribute(file, "list", H5T_NATIVE_INT32, {2}, list);
  const hid_t fixed = H5Tcopy(H5T_C_S1);
  H5Tset_size(fixed, 4);
  put_attribute(file, "fixed", fixed, {}, "ab\0c");
  H5Tset_size(fixed, H5T_VARIABLE);
  const std::string long_text(65536, 'x'), too_long(65537, 'x');
  const char* texts_of[] = {long_text.c_str(), too_long.c_str()};
  put_attribute(file, "long", fixed, {}, &texts_of[0]);
  put_attribute(file, "too long", fixed, {}, &texts_of[1]);
  const hid_t truth = H5Tenum_create(H5T_NATIVE_INT8);
  const std::int8_t no = 0;
  H5Tenum_insert(truth, "FALSE", &no), H5Tenum_insert(truth, "TRUE", &yes);
  put_attribute(file, "yes", truth, {}, &yes);
  H5Tclose(truth), H5Tclose(fixed), H5Fclose(file);
  CHECK(ArrayFile(path).attributes() == Texts{{"small", "-3"},
                                              {"large", "18446744073709551615"},
                                              {"fixed", "ab"},
                                              {"long", long_text},
                                              {"yes", "true"}});
}

TEST_CASE("attributes of a damaged file are texts of bounded size or an error") {
  Folder folder;
  const std::string path = folder / "a.h5";
  write_arrays(parse_reference(path), {{"x", make_source(counting({3}))}},
               {.attributes = {{"block", "128x128"}, {"shape", "8x4096x4096"}}});
  const std::string good = get(path);
  int errors = 0, read = 0;
  for (std::size_t i = 0; i < good.size(); i += 17) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0xFF);
    put(path, bad);
    try {
      for (const auto& [name, text] : ArrayFile(path).attributes()) CHECK(text.size() <= 65536);
      ++read;
    } catch (const Error& e) {
      CHECK(e.kind() == Error::Kind::input);
      ++errors;
    }
  }
  CHECK(read > 0);
  CHECK(errors > 0);
}

TEST_CASE("a group gives those of its own arrays that are wanted, and its attributes") {
  Folder folder;
  const NamedArray x{"x", make_source(counting({3}))}, y{"y", make_source(counting({2}))};
  for (const std::string file : {"a.h5", "a.npz", "a/"}) {
    CAPTURE(file);
    write_arrays(parse_output(folder / file), {x, y}, {.attributes = {{"key", "value"}}});
    const ArrayGroup group = ArrayFile(parse_input(folder / file)).group({"y", "z"});
    CHECK(group.name == folder / file);
    CHECK(group.arrays.size() == 1);
    CHECK(same(read_all(*group.find("y")), counting({2})));
    CHECK(group.find("z") == nullptr);
    CHECK(group.attributes == (file == "a.h5" ? Texts{{"key", "value"}} : Texts()));
  }
  const std::string path = folder / "a.h5";
  write_arrays(parse_reference(path + ":/g"), {y}, {.attributes = {{"key", "of g"}}});
  for (const char* g : {":/g", ":g", ":/g/"}) {
    const ArrayGroup group = ArrayFile(path + g).group({"x", "y"});
    CHECK(group.arrays.size() == 1);
    CHECK(group.attributes == Texts{{"key", "of g"}});
  }
  CHECK(contains(error_of(Error::Kind::input, [&] { ArrayFile(path + ":/gone").group({"x"}); }), "gone"));
  // By whatever name it is in there.
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  H5Lcreate_soft("/g/y", file, "/g/soft", H5P_DEFAULT, H5P_DEFAULT);
  H5Lcreate_hard(file, "/x", file, "/g/hard", H5P_DEFAULT, H5P_DEFAULT);
  H5Fclose(file);
  const ArrayGroup linked = ArrayFile(path).group({"soft", "hard"}, "/g");
  CHECK(same(read_all(*linked.find("soft")), counting({2})));
  CHECK(same(read_all(*linked.find("hard")), counting({3})));
  write_arrays(parse_reference(path + ":/h"), {{"z", make_source(counting({2}))}});
  try {
    ArrayFile(path).group({"v", "z"});
    FAIL("no error");
  } catch (const Error& e) {
    CHECK(e.message() == path + ": holds none of v, z");
    CHECK(e.hint() == "did you mean " + path + ":/h?");
  }
  write_array(parse_output(folder / "b.npy"), x);
  CHECK(contains(error_of(Error::Kind::input, [&] { ArrayFile(folder / "b.npy").group({"x"}); }),
                 "is one array, and several are wanted"));
}

TEST_CASE("a file that is there keeps its objects, and one in the way is replaced only when asked") {
  Folder folder;
  const std::string path = folder / "a.h5";
  const NamedArray x{"x", make_source(counting({3}))}, other{"x", make_source(counting({2, 2}))};
  const auto refused = [&](const std::string& target, const WriteOptions& options = {}) {
    const std::string before = get(path);
    std::string checked =
        error_of(Error::Kind::output, [&] { check_target(parse_reference(target), {"x"}, false, options); });
    CHECK(error_of(Error::Kind::output, [&] { write_array(parse_reference(target), other, options); }) ==
          checked);
    CHECK(get(path) == before);
    CHECK(folder.names() == Names{"a.h5"});
    return checked;
  };
  write_array(parse_reference(path), x);
  write_array(parse_reference(path + ":/g/y"), x);
  CHECK(refused(path) == path + ":/x: already exists");
  CHECK(contains(refused(path + ":/g"), ":/g: a group of that name already exists"));
  CHECK(contains(refused(path + ":/g", {.overwrite = true, .attributes = {}}),
                 ":/g: a group of that name already exists"));
  CHECK(contains(refused(path + ":/x/z"), ":/x: already exists, and is not a group"));
  check_target(parse_reference(path), {"x"}, false, {.overwrite = true, .attributes = {}});
  check_target(parse_reference(path + ":/g"), {"x", "z"}, true);
  write_array(parse_reference(path), other, {.overwrite = true, .attributes = {}});
  CHECK(array_names(path) == Names{"/g/y", "/x"});
  CHECK(open_array(path + ":/x")->shape() == Shape{2, 2});

  put(path, "something else");
  CHECK(contains(error_of(Error::Kind::output, [&] { check_target(parse_reference(path), {"x"}, false); }),
                 "not an HDF5 file"));
  CHECK(contains(error_of(Error::Kind::output, [&] { write_array(parse_reference(path), x); }),
                 "already exists, and is not an HDF5 file"));
  CHECK(get(path) == "something else");
  put(path, "");
  write_array(parse_reference(path), x);
  CHECK(array_names(path) == Names{"/x"});
}

TEST_CASE("writing into a damaged file is an output error, and the file stays as it is") {
  Folder folder;
  const std::string path = folder / "a.h5", good = get(kFiles + "small.h5");
  for (std::size_t i = 0; i < good.size(); i += 97) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0xFF);
    fs::remove(path);
    put(path, bad);
    try {
      write_array(parse_reference(path + ":/new/x"), {"x", make_source(counting({3}))});
    } catch (const Error& e) {
      CHECK_MESSAGE(e.kind() == Error::Kind::output, e.what());
      CHECK(get(path) == bad);
    }
    CHECK(folder.names() == Names{"a.h5"});
  }
}

TEST_CASE("when the disk is full the old HDF5 file stays, and nothing else does") {
  Folder folder;
  const std::string path = folder / "a.h5";
  write_array(parse_reference(path), {"x", make_source(counting({3}))});
  const std::string before = get(path);
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small{1 << 20, old.rlim_max};
  std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  const auto big = make_source(counting({1000, 1000}));
  const std::string message = error_of(Error::Kind::output, [&] {
    write_array(parse_reference(path + ":/y"), {"y", big});
  });
  const std::string npy = error_of(Error::Kind::output, [&] {
    write_array(parse_reference(folder / "y.npy"), {"y", big});
  });
  const std::string npz = error_of(Error::Kind::output, [&] {
    write_array(parse_reference(folder / "y.npz"), {"y", big});
  });
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, SIG_DFL);
  CHECK(contains(message, "a.h5:/y: cannot be written: File too large"));
  CHECK(contains(npy, "y.npy: File too large"));
  CHECK(contains(npz, "y.npz: File too large"));
  CHECK(get(path) == before);
  CHECK(folder.names() == Names{"a.h5"});
}

TEST_CASE("HDF5 is not written to a pipe or a device") {
  Folder folder;
  fs::create_symlink("/dev/full", folder / "full.h5");
  CHECK(
      contains(error_of(Error::Kind::output,
                        [&] {
                          write_array(parse_reference(folder / "full.h5"), {"x", make_source(counting({3}))});
                        }),
               "full.h5: HDF5 can be written to a regular file only"));
  Shape deep(40, 1);
  CHECK(contains(error_of(Error::Kind::output,
                          [&] {
                            write_array(parse_reference(folder / "a.h5"), {"x", make_source(counting(deep))});
                          }),
                 "a.h5:/x: the array has 40 axes, HDF5 allows 32"));
}

TEST_CASE("a write that fails, whenever it does, is an error, and the file is as it was") {
  if (!can_inject_faults()) return;
  Folder folder;
  write_array(parse_reference(folder / "old.h5"), {"x", make_source(counting({300}))});
  const std::string before = get(folder / "old.h5");
  write_array(parse_reference(folder / "x.npy"), {"x", make_source(counting({100}))});
  const std::string into = " -o " + (folder / "a.h5") + ":/g/y --compression 4 --quiet";
  for (const bool is_new : {true, false}) {
    int failed = 0;
    for (int when = 1;; ++when) {
      CAPTURE(when);
      fs::remove(folder / "a.h5");
      if (!is_new) fs::copy_file(folder / "old.h5", folder / "a.h5");
      const Printed ran =
          run(fmt::format("strace -f -o /dev/null -e inject=pwrite64:error=EIO:when={} $EJK convert {}{}",
                          when, folder / "x.npy", into));
      if (ran.status == 0) break;
      ++failed;
      CHECK(ran.status == 4);
      CHECK(contains(ran.text, "cannot be written: Input/output error"));
      CHECK(get(folder / "a.h5") == (is_new ? "" : before));
    }
    CHECK(failed >= 3);
    CHECK(same(read_all(*open_array(folder / "a.h5:/g/y")), counting({100})));
    CHECK(folder.names() == Names{"a.h5", "old.h5", "x.npy"});
  }
}

TEST_CASE("a full disk loses no array") {
  Folder folder;
  const std::string disk = folder / "disk";
  fs::create_directory(disk);
  if (run("mount -t tmpfs -o size=256k none " + disk).status != 0) {
    MESSAGE("skipped: no file system can be mounted here");
    return;
  }
  const std::shared_ptr<void> unmounted(nullptr, [&](void*) { run("umount --lazy " + disk); });
  write_array(parse_reference(folder / "x.npy"), {"x", make_source(counting({1500}))});
  write_array(parse_reference(folder / "y.npy"), {"y", make_source(counting({100}))});
  write_array(parse_reference(disk + "/out.h5"), {"old", make_source(counting({1000}))});
  const std::string before = get(disk + "/out.h5");
  int full = 0, written = 0;
  for (int pages = 0; pages < 16; ++pages) {
    CAPTURE(pages);
    fs::remove(disk + "/filler");
    put(disk + "/out.h5", before);
    const std::string room = fmt::format("{}", 256 * 1024 - 4096 * pages - static_cast<int>(before.size()));
    run(fmt::format("head -c {} /dev/zero > {}/filler", room, disk));
    const Printed ran = run("$EJK convert " + (folder / "x.npy") + " " + (folder / "y.npy") + " -o " + disk +
                            "/out.h5 --overwrite --quiet");
    if (ran.status == 0) {
      ++written;
      CHECK(same(read_all(*open_array(disk + "/out.h5:/x")), counting({1500})));
      CHECK(same(read_all(*open_array(disk + "/out.h5:/y")), counting({100})));
    } else {
      ++full;
      CHECK(ran.status == 4);
      CHECK(contains(ran.text, "No space left on device"));
      CHECK(get(disk + "/out.h5") == before);
    }
  }
  CHECK(full > 3);
  CHECK(written > 1);
}

TEST_CASE("runs that add to one file wait for each other") {
  Folder folder;
  const std::string add = "seq 24 | xargs -P4 -I{} $EJK convert " + (folder / "x.npy") + " --quiet -o ";
  write_array(parse_reference(folder / "x.npy"), {"x", make_source(counting({100}))});
  CHECK(run(add + (folder / "new.h5") + ":/a{}").status == 0);
  CHECK(array_names(folder / "new.h5").size() == 24);
  fs::create_symlink("new.h5", folder / "link.h5");
  CHECK(run(add + (folder / "link.h5") + ":/b{}").status == 0);
  CHECK(array_names(folder / "new.h5").size() == 48);
  // The same name from all: one of them is the first.
  const Printed ran = run("for i in 1 2 3 4; do $EJK convert " + (folder / "x.npy") + " -o " +
                          (folder / "one.h5") + ":/x --quiet & done; wait");
  std::size_t refused = 0;
  for (std::size_t at = 0; (at = ran.text.find("already", at)) != std::string::npos; ++at) ++refused;
  CHECK(refused == 3);
  CHECK(folder.names() == Names{"link.h5", "new.h5", "one.h5", "x.npy"});
}

TEST_CASE("a program that has the file locked while it reads is not waited for") {
  Folder folder;
  const std::string path = folder / "a.h5";
  write_array(parse_reference(path), {"x", make_source(counting({3}))});
  const io::File reader = io::open_for_reading(path, "a");
  REQUIRE(flock(reader.fd(), LOCK_SH) == 0);  // as the HDF5 library does
  write_array(parse_reference(path), {"y", make_source(counting({3}))});
  CHECK(array_names(path) == Names{"/x", "/y"});
}

TEST_CASE("a file about which the system says nothing is not taken for an empty one") {
  if (!can_inject_faults()) return;
  Folder folder;
  const std::string path = folder / "a.h5";
  write_array(parse_reference(path), {"x", make_source(counting({300}))});
  write_array(parse_reference(folder / "y.npy"), {"y", make_source(counting({3}))});
  const std::string before = get(path);
  for (const char* call : {"newfstatat", "fstat"}) {
    for (int when = 1; when <= 40; ++when) {
      CAPTURE(call);
      CAPTURE(when);
      const Printed ran =
          run(fmt::format("strace -f -o {0}/log -e trace={1} -e inject={1}:error=EIO:when={2} $EJK "
                          "convert {0}/y.npy -o {3} --quiet",
                          folder.path(), call, when, path));
      if (ran.status == 0)
        CHECK(array_names(path) == Names{"/x", "/y"});
      else
        CHECK(get(path) == before);
      const bool done = !(get(folder / "log").find("INJECTED") != std::string::npos);
      put(path, before);
      if (done) break;
    }
  }
}

TEST_CASE("a file is opened once, and its arrays outlive it") {
  std::vector<std::shared_ptr<const ArraySource>> taken;
  Names names;
  {
    const ArrayFile file(kFiles + "zoo.h5");
    names = file.names();
    CHECK(names == array_names(kFiles + "zoo.h5"));
    CHECK(file.links().size() == array_links(kFiles + "zoo.h5").size());
    for (const char* name : {"/gzip", "/chunked", "/x", "/never", "/compact"})
      taken.push_back(file.array(name));
    // What is wrong with one does nothing to the others.
    CHECK(contains(error_of(Error::Kind::input, [&] { file.array("/string"); }), "strings"));
    CHECK(contains(error_of(Error::Kind::input, [&] { file.array(""); }), "none is named"));
  }
  CHECK(same(read_all(*taken[0]), read_all(*taken[1])));
  CHECK(holds<float>(*taken[2], {2, 3}, {0, 1, 2, 3, 4, 5}));
  CHECK(holds<float>(*taken[3], {4, 4}, std::vector<float>(16, 7.f)));
  CHECK(holds<std::int32_t>(*taken[4], {3}, {0, 1, 2}));
  CHECK(ArrayFile(zoo("/g")).names() == Names{"/g/big", "/g/bool", "/g/half"});
  CHECK(contains(error_of(Error::Kind::usage, [] { ArrayFile(zoo("/x[0]")); }), "without a slice"));
}

TEST_CASE("of a file any number of arrays may be held, and read in any order") {
  Folder folder;
  std::vector<NamedArray> many;
  for (int i = 0; i < 200; ++i) many.push_back({fmt::format("a{:03}", i), make_source(counting({5 + i}))});
  WriteOptions compressed;
  compressed.compression = 1;
  for (const char* name : {"many.h5", "many.npz"}) {
    CAPTURE(name);
    write_arrays(parse_reference(folder / name), many, compressed);
    std::vector<std::shared_ptr<const ArraySource>> taken;
    {
      const ArrayFile file(folder / name);
      for (const std::string& array : file.names()) taken.push_back(file.array(array));
    }
    REQUIRE(taken.size() == many.size());
    for (std::size_t i = 0; i < taken.size(); ++i) {
      const std::size_t which = i * 77 % taken.size();
      CHECK(same(read_all(*taken[which]), counting({5 + static_cast<std::int64_t>(which)})));
      if (i % 3 == 0) taken[which] = taken[(which + 77) % taken.size()];
    }
  }
}

TEST_CASE("a command reads a file of many datasets in one process of its own") {
  if (!can_inject_faults()) return;
  Folder folder;
  std::vector<NamedArray> many;
  for (int i = 0; i < 50; ++i) many.push_back({fmt::format("g/a{}", i), make_source(counting({9}))});
  WriteOptions compressed;
  compressed.compression = 1;
  for (const char* name : {"a.h5", "b.h5"}) write_arrays(parse_reference(folder / name), many, compressed);
  const std::pair<const char*, int> rows[] = {
      {"info a.h5", 1},
      {"info --histogram a.h5:/g b.h5", 2},
      {"compare a.h5 b.h5", 2},
      {"compare a.h5:/g/a1 a.h5:/g/a2", 1},
      {"convert a.h5 -o out.npz", 1},
      {"convert a.h5 --dtype float32 -o out/", 1},
      {"hash a.h5:/g/a1 a.h5:/g/a2", 1},
  };
  for (const auto& row : rows) {
    const char* words = row.first;
    CAPTURE(words);
    run(fmt::format("cd {} && strace -f -o log -e trace=clone,clone3,fork,vfork $EJK {} --threads 1",
                    folder.path(), words));
    std::istringstream log(get(folder / "log"));
    int started = 0;
    for (std::string line; std::getline(log, line);) {
      const auto has = [&](const char* word) { return line.find(word) != std::string::npos; };
      started += (has("clone") || has("fork(")) && !has("CLONE_THREAD") && !has("resumed");
    }
    CHECK(started == row.second);
  }
}

TEST_CASE("a file that was replaced is another file") {
  Folder folder;
  const std::string path = folder / "a.h5";
  write_array(parse_reference(path), {"x", make_source(counting({3}))}, {false, {}, {}, 1});
  const auto old = open_array(path);
  fs::remove(path);
  write_array(parse_reference(path), {"y", make_source(counting({4}))});
  CHECK(array_names(path) == Names{"/y"});
  CHECK(same(read_all(*old), counting({3})));
}

TEST_CASE("storage that was never allocated is known without reading it, and written as such") {
  Folder folder;
  const std::string path = folder / "a.h5";
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const hsize_t length[] = {hsize_t{1} << 38};
  const hsize_t chunk[] = {hsize_t{1} << 28};
  const hid_t space = H5Screate_simple(1, length, nullptr);
  const hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
  const float value = 2.5f;
  H5Pset_fill_value(plist, H5T_NATIVE_FLOAT, &value);
  H5Dclose(H5Dcreate2(file, "flat", H5T_IEEE_F32BE, space, H5P_DEFAULT, plist, H5P_DEFAULT));
  H5Pset_chunk(plist, 1, chunk);
  const hid_t some = H5Dcreate2(file, "some", H5T_NATIVE_FLOAT, space, H5P_DEFAULT, plist, H5P_DEFAULT);
  H5Dclose(H5Dcreate2(file, "chunks", H5T_NATIVE_FLOAT, space, H5P_DEFAULT, plist, H5P_DEFAULT));
  H5Dclose(some);
  H5Pclose(plist);
  H5Sclose(space);
  H5Fclose(file);
  for (const char* name : {":/flat", ":/chunks"}) {
    const auto source = open_array(path + name);
    REQUIRE(!source->access().uniform.empty());
    const Statistics statistics = statistics_of(*source);
    CHECK(statistics.elements == std::int64_t{1} << 38);
    CHECK(std::get<double>(statistics.minimum) == 2.5);
    CHECK(std::get<double>(statistics.maximum) == 2.5);
    CHECK(*statistics.mean == 2.5);
    CHECK(holds<float>(*open_array(path + name + "[5:8]"), {3}, {2.5f, 2.5f, 2.5f}));
    fs::remove(folder / "b.h5");
    write_array(parse_reference(folder / "b.h5"), {"x", source});
    CHECK(fs::file_size(folder / "b.h5") < 1 << 16);
    CHECK(holds<float>(*open_array((folder / "b.h5") + "[:2]"), {2}, {2.5f, 2.5f}));
    fs::remove(folder / "b.h5");
    CHECK(run(fmt::format("timeout 20 $EJK convert {}{} -o {}/b.h5 -q", path, name, folder.path())).status ==
          0);
    CHECK(fs::file_size(folder / "b.h5") < 1 << 16);
    CHECK(*statistics_of(*convert_array(source, DType::float16)).mean == 2.5);
  }
}

TEST_CASE("deep groups and many members take time in proportion") {
  Folder folder;
  const std::string path = folder / "deep.h5";
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  hid_t group = H5Gopen2(file, "/", H5P_DEFAULT);
  std::string deepest;
  for (int i = 0; i < 1500; ++i) {
    const hid_t next = H5Gcreate2(group, "g", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Gclose(std::exchange(group, next));
    deepest += "/g";
  }
  const hsize_t three[] = {3};
  const hid_t space = H5Screate_simple(1, three, nullptr);
  H5Dclose(H5Dcreate2(group, "x", H5T_NATIVE_INT, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  H5Sclose(space);
  H5Gclose(group);
  H5Fclose(file);
  std::vector<NamedArray> many;
  for (int i = 0; i < 3000; ++i) many.push_back({fmt::format("a{}", i), make_source(counting({3}))});
  write_arrays(parse_reference(folder / "many.npz"), many);
  const std::clock_t begin = std::clock();
  CHECK(array_names(path) == Names{deepest + "/x"});
  CHECK(open_array(path)->shape() == Shape{3});
  // And of the process that writes: it was over twenty seconds.
  rusage before{}, after{};
  getrusage(RUSAGE_CHILDREN, &before);
  write_array(parse_reference(folder / "new.h5:" + deepest + "/x"), {"x", make_source(counting({3}))});
  getrusage(RUSAGE_CHILDREN, &after);
  CHECK(after.ru_utime.tv_sec - before.ru_utime.tv_sec < 10);
  CHECK(array_names(folder / "new.h5") == Names{deepest + "/x"});
  const ArrayFile npz(folder / "many.npz");
  for (const std::string& name : npz.names()) npz.array(name);
  // Processor time of this process, whatever else the machine does. It was over half a minute.
  CHECK(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC < 10);
}

TEST_CASE("a read that fails is told as that: the dataset is neither missing nor damaged") {
  if (!can_inject_faults()) return;
  for (int n = 1; n <= 12; ++n) {
    CAPTURE(n);
    const Printed ran = run(fmt::format(
        "timeout 60 strace -f -o /dev/null -e inject=pread64:error=EIO:when={} $EJK cdiv {} --by 2 -q", n,
        zoo("/gzip")));
    CHECK((ran.status == 0 || ran.status == 3 || ran.status == 127));  // 127: the loader's own reads
    if (ran.status == 3) CHECK(contains(ran.text, "Input/output error"));
  }
}

TEST_CASE("what the system cannot give for the process is an error of resources") {
  if (!can_inject_faults()) return;
  const std::pair<const char*, const char*> rows[] = {
      {"sendto:error=ENOBUFS", "zoo.h5: no message to the process of the HDF5 library: No buffer space"},
      {"recvfrom:error=ENOMEM", "zoo.h5: no answer from the process of the HDF5 library: Cannot allocate"},
      {"socketpair:error=ENFILE", "no process for the HDF5 library: Too many open files in system"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.first);
    const Printed ran = run(fmt::format("timeout 60 strace -o /dev/null -e inject={}:when=1 $EJK info {}",
                                        row.first, zoo("/gzip")));
    CHECK(ran.status == 5);
    CHECK(contains(ran.text, row.second));
  }
}
