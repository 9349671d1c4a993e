// .npz files: stored and deflated members, damaged archives, writing.
#include "io/npz.hpp"

#include <fmt/format.h>
#include <zip.h>

#include <ctime>

#include "io/npy.hpp"
#include "io/run.hpp"
#include "io/support.hpp"

using namespace ejk;
using namespace ejk::test;
using Names = std::vector<std::string>;

namespace {

std::string npy_of(const Array& a) {
  std::string bytes;
  io::write_npy(*make_source(a.view()), [&](const void* data, std::int64_t n) {
    bytes.append(static_cast<const char*>(data), static_cast<std::size_t>(n));
  });
  return bytes;
}

struct Entry {
  std::string name, bytes;
  zip_int32_t method = ZIP_CM_DEFLATE;
};

void make_zip(const std::string& path, const std::vector<Entry>& entries, bool encrypted = false) {
  zip_t* zip = zip_open(path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, nullptr);
  REQUIRE(zip != nullptr);
  for (const Entry& e : entries) {
    const auto index = static_cast<zip_uint64_t>(zip_file_add(
        zip, e.name.c_str(), zip_source_buffer(zip, e.bytes.data(), e.bytes.size(), 0), ZIP_FL_OVERWRITE));
    zip_set_file_compression(zip, index, e.method, 0);
    if (encrypted) zip_file_set_encryption(zip, index, ZIP_EM_AES_128, "secret");
  }
  REQUIRE(zip_close(zip) == 0);
}

// Changes every place where `from` stands (in the local header and in the central directory).
void replace_all(const std::string& path, std::string_view from, std::string_view to) {
  std::string bytes = get(path);
  for (std::size_t at = bytes.find(from); at != std::string::npos; at = bytes.find(from, at + 1))
    bytes.replace(at, from.size(), to);
  put(path, bytes);
}

std::string little_endian(std::uint32_t value) {
  std::string s;
  for (int i = 0; i < 4; ++i) s += static_cast<char>(value >> (8 * i) & 0xFF);
  return s;
}

}  // namespace

TEST_CASE("members of all types come back, stored or deflated, whole and in boxes") {
  Folder folder;
  const std::string path = folder / "a.npz";
  for (const zip_int32_t method : {ZIP_CM_STORE, ZIP_CM_DEFLATE}) {
    for (const DType dtype : kAllTypes) {
      const Array a = example(dtype, {7, 5, 3}), b = example(dtype, {});
      make_zip(path, {{"a.npy", npy_of(a), method}, {"b.npy", npy_of(b), method}, {"note.txt", "hello"}});
      CHECK(array_names(path) == Names{"a", "b"});
      const auto source = open_array(path + ":a");
      CHECK(!source->random_access());
      CHECK(source->name() == path + ":a");
      CHECK(same(read_all(*source), a));
      CHECK(same(read_all(*open_array(path + ":b.npy")), b));
      // Backwards, so that each box starts the member again.
      for (std::int64_t i = 7; i-- > 0;) {
        Array row(dtype, {5, 3});
        source->read(Shape{i, 0, 0}, Shape{1, 5, 3}, row.data());
        CHECK(same(row, Array::copy_of(a.view()[i])));
      }
      CHECK(same(read_all(*open_array(path + ":a[::3,1:4,-1]")), read_all(*[&] {
                   put(folder / "a.npy", npy_of(a));
                   return open_array((folder / "a.npy") + "[::3,1:4,-1]");
                 }())));
    }
  }
}

TEST_CASE("Fortran order and the other byte order are read from members too") {
  Folder folder;
  const auto member = [](std::string_view descr, std::string_view order, std::string_view data) {
    std::string text =
        fmt::format("{{'descr': '{}', 'fortran_order': {}, 'shape': (2, 3), }}\n", descr, order);
    return std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(text.size()) + '\0' + text +
           std::string(data);
  };
  make_zip(folder / "a.npz", {{"f.npy", member("<i2", "True", {"\0\0\3\0\1\0\4\0\2\0\5\0", 12})},
                              {"b.npy", member(">i2", "False", {"\0\0\0\1\0\2\0\3\0\4\0\5", 12})}});
  const std::int16_t values[] = {0, 1, 2, 3, 4, 5};
  const Array expected = Array::from<std::int16_t>({2, 3}, values);
  for (const char* name : {":f", ":b"}) {
    const auto source = open_array((folder / "a.npz") + name);
    CHECK(same(read_all(*source), expected));
    std::int16_t box[2] = {};
    source->read(Shape{0, 2}, Shape{2, 1}, box);
    CHECK(box[0] == 2);
    CHECK(box[1] == 5);
  }
}

TEST_CASE("a member is found by name, alone, or not at all with the nearest names") {
  Folder folder;
  const std::string path = folder / "a.npz";
  const std::string one = npy_of(counting({3}));
  make_zip(path, {{"query.npy", one}});
  CHECK(open_array(path)->name() == path + ":query");
  make_zip(path, {{"query.npy", one}, {"key.npy", one}, {"value.npy", one}});
  const std::string none = error_of(Error::Kind::input, [&] { open_array(path); });
  CHECK(contains(none, "a.npz: holds 3 arrays, and none is named"));
  CHECK(contains(none, "query, key, value"));
  CHECK(contains(error_of(Error::Kind::input, [&] { open_array(path + ":qurey"); }),
                 "did you mean " + path + ":query?"));
  CHECK(contains(error_of(Error::Kind::input, [&] { open_array(path + ":something"); }),
                 "it holds query, key, value"));
  make_zip(path, {{"note.txt", "x"}});
  CHECK(contains(error_of(Error::Kind::input, [&] { open_array(path); }), "holds no array"));
}

TEST_CASE("members without .npy in their name are arrays if they begin as one") {
  Folder folder;
  const std::string path = folder / "a.npz", one = npy_of(counting({3}));
  make_zip(path,
           {{"note.txt", "x"}, {"w", one}, {"empty", ""}, {"v.npy", one}, {"u.bin", one, ZIP_CM_STORE}});
  CHECK(array_names(path) == Names{"w", "v", "u.bin"});
  for (const char* name : {"w", "v", "u.bin", "v.npy"})
    CHECK(same(read_all(*open_array(path + ":" + name)), counting({3})));
  const std::string other = npy_of(counting({5}));
  make_zip(path, {{"w", one}, {"w.npy", other}, {".npy", one}, {".npy.npy", other}});
  CHECK(array_names(path) == Names{"w", "w.npy", ".npy", ".npy.npy"});
  for (const char* name : {"w", ".npy"}) CHECK(same(read_all(*open_array(path + ":" + name)), counting({3})));
  for (const char* name : {"w.npy", ".npy.npy"})
    CHECK(same(read_all(*open_array(path + ":" + name)), counting({5})));
}

TEST_CASE("an empty name stands for the only array, and else is .npy") {
  Folder folder;
  const std::string path = folder / "a.npz", one = npy_of(counting({3}));
  make_zip(path, {{".npy", one}});
  CHECK(array_names(path) == Names{""});
  make_zip(path, {{".npy", one}, {"y.npy", one}});
  CHECK(array_names(path) == Names{".npy", "y"});
  CHECK(same(read_all(*open_array(path + ":.npy")), counting({3})));
}

TEST_CASE("a damaged archive is refused with the reason") {
  Folder folder;
  const std::string path = folder / "a.npz";
  const Array a = example(DType::uint8, {4000});
  const std::string npy = npy_of(a);
  const auto message = [&] { return error_of(Error::Kind::input, [&] { read_all(*open_array(path)); }); };

  put(path, "");
  CHECK(contains(message(), "a.npz: the file is empty"));
  put(path, "hello");
  CHECK(contains(message(), "not an .npz"));
  for (const zip_int32_t method : {ZIP_CM_STORE, ZIP_CM_DEFLATE}) {
    make_zip(path, {{"a.npy", npy, method}});
    const std::string good = get(path);
    put(path, good.substr(0, good.size() / 2));
    CHECK(contains(message(), "a.npz: not an .npz"));
    // A flipped bit in the middle of the data is noticed by the checksum, if not before.
    std::string bad = good;
    bad[good.size() / 2] = static_cast<char>(bad[good.size() / 2] ^ 1);
    put(path, bad);
    CHECK(contains(message(), "a.npz:a: the member is damaged"));
    // Sizes that the data does not bear out, in either direction.
    put(path, good);
    replace_all(path, little_endian(static_cast<std::uint32_t>(npy.size())), little_endian(2000000000));
    CHECK(contains(message(), "a.npz"));
    put(path, good);
    replace_all(path, little_endian(static_cast<std::uint32_t>(npy.size())),
                little_endian(static_cast<std::uint32_t>(npy.size()) - 1));
    CHECK(contains(message(), "a.npz"));
  }
  make_zip(path, {{"a.npy", npy.substr(0, npy.size() - 60)}});
  CHECK(contains(message(), "a.npz:a: header promises 4000 bytes of data, the member holds 3940"));
  make_zip(path, {{"a.npy", npy + "!"}});
  CHECK(contains(message(), "the member holds 4001"));
  make_zip(path, {{"a.npy", "no array"}});
  CHECK(contains(message(), "a.npz:a: not a NumPy file"));
  make_zip(path, {{"a.npy", ""}});
  CHECK(contains(message(), "the file is empty"));
  make_zip(path, {{"a.npy", npy, ZIP_CM_BZIP2}});
  CHECK(contains(message(), "compressed by method 12"));
  make_zip(path, {{"a.npy", npy}}, true);
  CHECK(contains(message(), "encrypted"));
  make_zip(path, {{"a.npy", npy}, {"b.npy", npy}});
  replace_all(path, "b.npy", "a.npy");
  CHECK(contains(error_of(Error::Kind::input, [&] { open_array(path + ":a"); }), "a.npz"));
}

TEST_CASE("members that overlap are refused, with their names") {
  Folder folder;
  const std::string path = folder / "a.npz", npy = npy_of(counting({2}));
  make_zip(path, {{"a.npy", npy}, {"b.npy", npy}, {"c.npy", npy}});
  const std::string good = get(path);
  CHECK(array_names(path).size() == 3);
  // In the directory: where the header of b is becomes where that of a is.
  const std::size_t entry = good.find("PK\1\2", good.find("PK\1\2") + 1);
  constexpr std::size_t kHeaderAt = 42, kStoredBytes = 20, kBytes = 24;
  std::string bad = good;
  bad.replace(entry + kHeaderAt, 4, 4, '\0');
  put(path, bad);
  CHECK(contains(error_of(Error::Kind::input, [&] { array_names(path); }),
                 "a.npz: its members 'a.npy' and 'b.npy' overlap"));
  // A member that ends within the next.
  bad = good;
  for (const std::size_t field : {kStoredBytes, kBytes})
    bad.replace(entry + field, 4, little_endian(static_cast<std::uint32_t>(npy.size()) + 1));
  fs::remove(path);
  put(path, bad);
  CHECK(contains(error_of(Error::Kind::input, [&] { array_names(path); }), "'b.npy' and 'c.npy' overlap"));
}

TEST_CASE("many members of one name are refused in time linear in their number") {
  Folder folder;
  const std::string path = folder / "a.npz", npy = npy_of(counting({1}));
  constexpr std::int64_t kMembers = 20000;
  std::vector<Entry> entries;
  for (std::int64_t i = 0; i < kMembers; ++i) entries.push_back({fmt::format("{:06}.npy", i), npy});
  make_zip(path, entries);
  std::string bytes = get(path);
  for (std::size_t at = 0; (at = bytes.find(".npy", at)) != std::string::npos; ++at)
    if (at >= 6 && bytes[at - 6] == '0') bytes.replace(at - 6, 6, "000000");
  fs::remove(path);
  put(path, bytes);
  const ArrayFile file(path);
  const std::clock_t begin = std::clock();
  for (const std::string& name : file.names()) CHECK_THROWS_AS(file.array(name), Error);
  CHECK(std::clock() - begin < 2 * CLOCKS_PER_SEC);
}

TEST_CASE("an archive is written with all its arrays, the same bytes each time, without holding them") {
  Folder folder;
  const std::string path = folder / "a.npz";
  std::vector<NamedArray> arrays;
  for (const DType dtype : kAllTypes)
    arrays.push_back({std::string(name_of(dtype)), make_source(example(dtype, {3, 5}))});
  arrays.push_back({"empty", make_source(counting({0, 4}))});
  arrays.push_back({"scalar", make_source(counting({}))});
  const auto large = std::make_shared<Unmapped>(counting({3000, 1000}));
  arrays.push_back({"group/large", large});
  write_arrays(parse_reference(path), arrays);
  CHECK(large->largest <= 8 << 20);
  Names names;
  for (const NamedArray& array : arrays) {
    names.push_back(array.name);
    CHECK(same(read_all(*open_array(path + ":" + array.name)), read_all(*array.source)));
  }
  CHECK(array_names(path) == names);
  const std::string once = get(path);
  write_arrays(parse_reference(path), arrays);
  CHECK(get(path) == once);
  CHECK(folder.names() == Names{"a.npz"});

  write_array(parse_reference(path + ":x"), arrays[0]);
  CHECK(array_names(path) == Names{"x"});
  write_array(parse_reference(path), arrays[0]);
  CHECK(array_names(path) == Names{"bool"});
  CHECK(contains(error_of(Error::Kind::usage, [&] { write_arrays(parse_reference(path), {}); }), "no array"));
}

TEST_CASE("an archive that cannot be written, or whose input fails, leaves the old one") {
  Folder folder;
  const std::string path = folder / "a.npz";
  put(path, "old");
  const auto fail = [](std::span<const std::int64_t>, std::span<const std::int64_t>, void*) {
    throw Error(Error::Kind::input, "it: broke");
  };
  const auto failing = generated_source({DType::int8, {5}}, "it", fail);
  CHECK(error_of(Error::Kind::input, [&] {
          write_arrays(parse_reference(path), {{"a", failing}});
        }) == "it: broke");
  CHECK(get(path) == "old");
  CHECK(folder.names() == Names{"a.npz"});
  fs::create_symlink("/dev/full", folder / "full.npz");
  CHECK(contains(
      error_of(Error::Kind::output,
               [&] {
                 write_arrays(parse_reference(folder / "full.npz"), {{"a", make_source(counting({50}))}});
               }),
      "full.npz: No space left on device"));
}

TEST_CASE("a read that fails is reported as that, not as damage") {
  if (!can_inject_faults()) return;
  Folder folder;
  const std::string path = folder / "a.npz";
  write_array(parse_reference(path), {"x", make_source(counting({200000}))});
  int failed = 0;
  for (int n = 1; n <= 4; ++n) {
    CAPTURE(n);
    const Printed ran = run(fmt::format(
        "strace -o /dev/null -P {0} -e trace=pread64 -e inject=pread64:error=EIO:when={1} $EJK cdiv {0} "
        "--by 2 -o {2} -q",
        path, n, folder / "b.npy"));
    if (ran.status == 0) continue;
    ++failed;
    CHECK(ran.status == 3);
    CHECK(contains(ran.text, "Input/output error"));
  }
  CHECK(failed > 0);
}
