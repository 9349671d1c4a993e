// .npy files: files of NumPy are read exactly, damaged ones refused with the reason.
#include "io/npy.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "ejk/array_math.hpp"
#include "io/support.hpp"
#include "support/threads.hpp"

using namespace ejk;
using namespace ejk::test;

namespace {

// A file with a header of that text, length-prefixed as in format version `major`.
std::string npy(std::string_view dictionary, std::string_view data, int major = 1) {
  std::string file = "\x93NUMPY";
  file += static_cast<char>(major);
  file += '\0';
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i)
    file += static_cast<char>(dictionary.size() >> (8 * i) & 0xFF);
  return file.append(dictionary).append(data);
}

std::string header(std::string_view descr, std::string_view order, std::string_view shape) {
  return fmt::format("{{'descr': '{}', 'fortran_order': {}, 'shape': {}, }}\n", descr, order, shape);
}

Array opened(const Folder& folder, std::string_view bytes) {
  fs::remove(folder / "a.npy");
  put(folder / "a.npy", bytes);
  return read_all(*open_array(folder / "a.npy"));
}

}  // namespace

TEST_CASE("files are written byte for byte as numpy.save writes them") {
  // numpy.save (2.x) of arange(6, dtype="<i2").reshape(2, 3), of True, and of three bfloat16 ones.
  const std::string start("\x93NUMPY\x01\x00\x76\x00", 10);
  const auto padded = [&](std::string dictionary) {
    dictionary.resize(117, ' ');
    return start + dictionary + '\n';
  };
  Folder folder;
  const auto written = [&](Array array) {
    write_array(parse_reference(folder / "a.npy"), {"a", make_source(std::move(array))});
    return get(folder / "a.npy");
  };
  const std::int16_t values[] = {0, 1, 2, 3, 4, 5};
  CHECK(written(Array::from<std::int16_t>({2, 3}, values)) ==
        padded("{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }") +
            std::string("\0\0\1\0\2\0\3\0\4\0\5\0", 12));
  const bool yes[] = {true};
  CHECK(written(Array::from<bool>({}, yes)) ==
        padded("{'descr': '|b1', 'fortran_order': False, 'shape': (), }") + '\1');
  const bfloat16 ones[] = {bfloat16(1.f), bfloat16(1.f), bfloat16(1.f)};
  CHECK(written(Array::from<bfloat16>({3}, ones)) ==
        padded("{'descr': '<V2', 'fortran_order': False, 'shape': (3,), }") + "\x80\x3f\x80\x3f\x80\x3f");
}

TEST_CASE("all types and shapes come back from a file as they were, mapped in place") {
  Folder folder;
  for (const DType dtype : kAllTypes)
    for (const Shape& shape : {Shape{}, Shape{5}, Shape{2, 3, 4}, Shape{0}, Shape{3, 0, 2}}) {
      const Array a = example(dtype, shape);
      write_array(parse_reference(folder / "a.npy"), {"a", make_source(a.view())});
      const auto source = open_array(folder / "a.npy");
      CHECK(same(read_all(*source), a));
      REQUIRE(source->mapped().has_value());
      CHECK(same(Array::copy_of(*source->mapped()), a));
      CHECK(source->name() == folder / "a.npy");
      source->release(source->mapped()->data, a.bytes());
    }
}

TEST_CASE("Fortran order, the other byte order and every header version read the same") {
  Folder folder;
  const Array c = counting({2, 3});
  const std::string big("\0\0\0\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0\5", 24);
  const std::string fortran("\0\0\0\0\3\0\0\0\1\0\0\0\4\0\0\0\2\0\0\0\5\0\0\0", 24);
  for (const int major : {1, 2, 3}) {
    CHECK(same(opened(folder, npy(header(">i4", "False", "(2, 3)"), big, major)), c));
    CHECK(same(opened(folder, npy(header("<i4", "True", "(2, 3)"), fortran, major)), c));
    const char* shape = major < 3 ? "(2L, 3L,)" : "(2, 3,)";  // Python 2 knew no third version
    CHECK(same(opened(folder, npy(header("=i4", "True", shape), fortran, major)), c));
  }
  put(folder / "b.npy", npy(header(">i4", "False", "(2, 3)"), big));
  const auto swapped = open_array(folder / "b.npy");
  CHECK(!swapped->mapped().has_value());
  CHECK(swapped->random_access());
  CHECK(same(read_all(*open_array(folder / "b.npy[1,::2]")),
             Array::from<std::int32_t>({2}, std::vector<std::int32_t>{3, 5})));
  CHECK(opened(folder, npy(header("|V2", "False", "(1,)"), "ab")).dtype() == DType::bfloat16);
  CHECK(opened(folder, npy(header("|b1", "False", "()"), "\1")).dtype() == DType::boolean);
  // The keys in any order, either quote, any blanks.
  CHECK(same(opened(folder, npy("{\"shape\":(2,3),'fortran_order' : False ,  'descr':'>i4'}", big)), c));
}

TEST_CASE("elements at an odd address are copied, never used in place") {
  Folder folder;
  const std::string dictionary = header("<i4", "False", "(2,)") + std::string(" ");
  put(folder / "a.npy", npy(dictionary, std::string("\1\0\0\0\2\0\0\0", 8)));
  const auto source = open_array(folder / "a.npy");
  if ((10 + dictionary.size()) % 4 != 0) CHECK(!source->mapped().has_value());
  CHECK(same(read_all(*source), Array::from<std::int32_t>({2}, std::vector<std::int32_t>{1, 2})));
}

TEST_CASE(
    "a large file is copied, cut and converted as its elements in memory are, on any number of threads") {
  Folder folder;
  // Rows that end anywhere within the pieces that threads write.
  const Array all = counting({5, 611, 997});
  const auto memory = make_source(all.view());
  write_array(parse_reference(folder / "a.npy"), {"a", memory});
  const auto file = open_array(folder / "a.npy");
  CHECK(file->access().prefer == ArrayAccess::Prefer::read);
  CHECK(memory->access().prefer == ArrayAccess::Prefer::view);
  CHECK(same(read_all(*file), all));
  for (const int threads : {1, 3}) {
    const Threads set(threads);
    write_array(parse_reference(folder / "b.npy"), {"b", file});
    write_array(parse_reference(folder / "c.npy"), {"c", convert_array(file, DType::float64)});
    write_array(parse_reference(folder / "d.npy"), {"d", open_array(folder / "a.npy[1:4]")});
    write_array(parse_reference(folder / "e.npy"), {"e", open_array(folder / "a.npy[:,::2,5:]")});
    CHECK(same(read_all(*open_array(folder / "b.npy")), all));
    CHECK(same(read_all(*open_array(folder / "c.npy")), read_all(*convert_array(memory, DType::float64))));
    ArrayView some = all.view();
    some.data += some.strides[0];
    some.shape[0] = 3;
    CHECK(same(read_all(*open_array(folder / "d.npy")), Array::copy_of(some)));
    some = all.view();
    some.data += 5 * some.strides[2];
    some.strides[1] *= 2;
    some.shape = {5, 306, 992};
    CHECK(same(read_all(*open_array(folder / "e.npy")), Array::copy_of(some)));
  }
}

TEST_CASE("a conversion of a large file that fails names its first element, on any number of threads") {
  Folder folder;
  Array all(DType::int32, {1200, 1003});
  all.elements<std::int32_t>()[700 * 1003 + 5] = -1;
  all.elements<std::int32_t>()[900 * 1003] = -2;
  write_array(parse_reference(folder / "a.npy"), {"a", make_source(all.view())});
  const auto narrow = convert_array(open_array(folder / "a.npy"), DType::uint32);
  CHECK(error_of(Error::Kind::input, [&] {
          write_array(parse_reference(folder / "b.npy"), {"b", narrow});
        }) == (folder / "a.npy") + ": element (700, 5) is -1, which uint32 cannot hold");
  CHECK(!std::filesystem::exists(folder / "b.npy"));
}

TEST_CASE("thousands of files can be open at once") {
  Folder folder;
  write_array(parse_reference(folder / "a.npy"), {"a", make_source(counting({30000}))});
  std::vector<std::shared_ptr<const ArraySource>> sources;
  for (int i = 0; i < 2000; ++i) sources.push_back(open_array(folder / "a.npy"));
  CHECK(sources.back()->access().prefer == ArrayAccess::Prefer::view);
  CHECK(same(read_all(*sources.back()), counting({30000})));
  CHECK(same(read_all(*sources.front()), counting({30000})));
}

TEST_CASE("a broken .npy file is refused by name, with the reason") {
  Folder folder;
  const std::string eight(8, '\0');
  const std::pair<std::string, std::string> rows[] = {
      {"", "the file is empty"},
      {"\x93NU", "the file ends within its header"},
      {"hello, world", "not a NumPy file"},
      {npy(header("<f4", "False", "(2,)"), eight, 4), "header version 4.0 is unknown"},
      {npy(header("<f4", "False", "(2,)"), eight).substr(0, 9), "ends within its header"},
      {npy(header("<f4", "False", "(2,)"), eight).substr(0, 40),
       "the header claims 58 bytes, the file holds 30 of them"},
      {npy(std::string(10001, ' '), ""), "claims 10001 bytes, more than the 10000 allowed"},
      {std::string("\x93NUMPY\x02\0\xff\xff\xff\xff", 12), "claims 4294967295 bytes"},
      {npy(header("<f4", "False", "(24,)"), std::string(40, '\0')),
       "header promises 96 bytes of data, the file holds 40"},
      {npy(header("<f4", "False", "(1,)"), eight), "header promises 4 bytes of data, the file holds 8"},
      {npy(header("<f4", "False", "(-1,)"), eight), "negative length"},
      {npy(header("<f4", "False", "(1.5,)"), eight), "malformed"},
      {npy(header("<f4", "False", "(2)"), eight), "malformed"},
      {npy(header("<f4", "False", "('2',)"), eight), "malformed"},
      {npy(header("<f4", "False", "(2,"), eight), "malformed"},
      {npy(header("<f4", "False", "(1, 02)"), eight), "malformed at byte 54: '02)"},
      {npy(header("<f4", "False", "(0_2,)"), eight), "malformed"},
      {npy(header("<f4", "False", "(2_,)"), eight), "malformed"},
      {npy(header("<f4", "False", "(_2,)"), eight), "malformed"},
      {npy(header("<f4", "False", "(1__0,)"), eight), "malformed"},
      {npy(header("<f4", "False", "(-,)"), eight), "malformed"},
      {npy(header("<f4", "False", "(2 2,)"), eight), "malformed"},
      {npy(header("<f4", "False", "(2L,)"), eight, 3), "malformed"},
      {npy(header("<q9", "False", "(2,)"), eight), "'<q9', which NumPy does not know"},
      {npy(header("<f4", "False", "(,)"), eight), "malformed"},
      {npy(header("<f4", "False", "(4611686018427387904, 4)"), ""), "more bytes than 64 bits"},
      {npy(header("<f8", "False", "(2305843009213693952,)"), ""), "more bytes than 64 bits"},
      {npy(header("<f8", "False", "(0, 4611686018427387904, 4)"), ""), "more bytes than 64 bits"},
      {npy(header("<f4", "False", "(99999999999999999999,)"), ""), "does not fit 64 bits"},
      {npy(header("<f4", "Maybe", "(2,)"), eight), "malformed"},
      {npy(header("|O", "False", "(2,)"), eight), "Python objects"},
      {npy(header("<U4", "False", "(2,)"), eight), "strings"},
      {npy(header("|S4", "False", "(2,)"), eight), "byte strings"},
      {npy(header("<c8", "False", "(1,)"), eight), "complex"},
      {npy(header("<M8[ns]", "False", "(1,)"), eight), "datetimes"},
      {npy(header("<m8[s]", "False", "(1,)"), eight), "time differences"},
      {npy(header("|V8", "False", "(1,)"), eight), "raw bytes"},
      {npy(header("<f16", "False", "(1,)"), eight), "'<f16'"},
      {npy(header("\x1b[31m", "False", "(1,)"), eight), "\\x1b[31m"},
      {npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}", eight), "structured"},
      {npy("{'descr': ('<f4', (2,)), 'fortran_order': False, 'shape': (1,)}", eight), "subarray"},
      {npy("{'descr': '<f4', 'fortran_order': False}", eight), "lacks 'shape'"},
      {npy("{'descr': '<f4', 'shape': (2,)}", eight), "lacks 'fortran_order'"},
      {npy("{}", eight), "lacks 'descr'"},
      {npy("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", eight),
       "'descr' twice"},
      {npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'x': 1}", eight), "unknown key 'x'"},
      {npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} 1", eight), "malformed"},
      {npy("__import__('os')", eight), "malformed"},
      {npy(std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}\0", 56), eight), "malformed"},
      {npy("{'descr': '<\\x664', 'fortran_order': False, 'shape': (2,)}", eight), "malformed"},
      {npy("", eight), "malformed"},
  };
  for (const auto& row : rows) {
    const auto& bytes = row.first;
    const auto& part = row.second;
    CAPTURE(part);
    const std::string message = error_of(Error::Kind::input, [&] { opened(folder, bytes); });
    CHECK(message.starts_with(folder / "a.npy: "));
    CHECK(contains(message, part));
  }
  std::string ranks = "(";
  for (int i = 0; i < 65; ++i) ranks += "1,";
  CHECK(contains(
      error_of(Error::Kind::input, [&] { opened(folder, npy(header("<f4", "False", ranks + ")"), "")); }),
      "65 axes"));
}

TEST_CASE("lengths are Python's whole numbers") {
  Folder folder;
  const std::pair<std::string, Shape> rows[] = {{"(2L, 4L)", {2, 4}},
                                                {"(0, 1_000)", {0, 1000}},
                                                {"(00, 8)", {0, 8}},
                                                {"(\f2\t, 4\n)", {2, 4}},
                                                {"(8,)", {8}}};
  for (const auto& row : rows) {
    const std::string& text = row.first;
    const Shape& shape = row.second;
    CAPTURE(text);
    const std::string bytes(static_cast<std::size_t>(element_count(shape)), '\0');
    CHECK(opened(folder, npy(header("|i1", "False", text), bytes)).shape() == shape);
  }
}

TEST_CASE("a type that is not supported is told from damage") {
  Folder folder;
  const auto code = [&](const std::string& descr) {
    try {
      opened(folder, npy("{'descr': " + descr + ", 'fortran_order': False, 'shape': (1,)}", "xxxxxxxx"));
    } catch (const Error& error) {
      return error.code();
    }
    FAIL("no error was thrown");
    return Error::Code::other;
  };
  for (const char* descr : {"'|O'", "'<U2'", "'<c8'", "'|V8'", "'<f16'", "[('a', '<f8')]", "('<f4', (2,))"})
    CHECK(code(descr) == Error::Code::unsupported);
  for (const char* descr : {"'<f8", "'<q8'", "''", "8", "'<f4'"}) CHECK(code(descr) == Error::Code::other);
}

TEST_CASE("8-bit floats are bytes without a type, which are read on request") {
  Folder folder;
  for (const char* descr : {"'|V1'", "'<V1'", "'<f1'"}) {
    CAPTURE(descr);
    put(folder / "x.npy",
        npy(std::string("{'descr': ") + descr + ", 'fortran_order': False, 'shape': (2,)}", R"(8@)"));
    try {
      open_array(folder / "x.npy");
      FAIL("no error was thrown");
    } catch (const Error& error) {
      CHECK(error.code() == Error::Code::untyped_bytes);
      CHECK(dtype_named(error.hint()).has_value());
    }
    const auto bytes = open_array(folder / "x.npy", {.untyped = UntypedBytes::read});
    CHECK(bytes->dtype() == DType::uint8);
  }
  const Array x = Array::from<float8_e5m2>({3}, std::vector<float8_e5m2>(3, float8_e5m2(1.5f)));
  write_array(parse_output(folder / "y.npy"), {"x", make_source(x.view(), "x")});
  const auto back = open_array(folder / "y.npy", {.untyped = UntypedBytes::read});
  const Array same = read_all(*view_array(back, DType::float8_e5m2));
  CHECK(std::equal(x.data(), x.data() + 3, same.data()));
}

TEST_CASE("what cannot be opened says why") {
  Folder folder;
  CHECK(contains(error_of(Error::Kind::input, [&] { open_array(folder / "none.npy"); }),
                 "none.npy: No such file"));
  fs::create_directory(folder / "d.npy");
  CHECK(contains(error_of(Error::Kind::input, [&] { open_array(folder / "d.npy"); }),
                 "d.npy/: is a folder, not an array"));
  CHECK(contains(error_of(Error::Kind::input, [&] { open_array(folder.path() + "/"); }),
                 "is a folder, not an array"));
  if (geteuid() != 0) {
    put(folder / "secret.npy", "");
    fs::permissions(folder / "secret.npy", fs::perms::none);
    CHECK(contains(error_of(Error::Kind::input, [&] { open_array(folder / "secret.npy"); }),
                   "Permission denied"));
  }
  CHECK(array_names("x.npy") == std::vector<std::string>{""});
}

TEST_CASE("a stream that is another container says which") {
  Folder folder;
  const std::pair<const char*, const char*> rows[] = {{"PK\x03\x04----", "it begins like an .npz"},
                                                      {"\x89HDF\r\n\x1a\n", "it begins like an HDF5 file"}};
  for (const auto& row : rows) {
    put(folder / "a", row.first);
    const io::File file = io::open_for_reading(folder / "a", "a");
    CHECK(
        contains(error_of(Error::Kind::input, [&] { io::read_npy_stream(file.fd(), "a", 0); }), row.second));
  }
}

namespace {

// Reads `bytes` as a stream that arrives in small parts.
std::shared_ptr<const ArraySource> streamed(const std::string& bytes, std::int64_t max_memory = 0) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  std::thread writer([&] {
    for (std::size_t i = 0; i < bytes.size();) {
      const auto n = ::write(ends[1], bytes.data() + i, std::min<std::size_t>(bytes.size() - i, 50000));
      if (n <= 0) break;
      i += static_cast<std::size_t>(n);
    }
    close(ends[1]);
  });
  const auto finish = [&] {
    std::string rest(65536, '\0');
    while (::read(ends[0], rest.data(), rest.size()) > 0) {
    }
    writer.join();
    close(ends[0]);
  };
  try {
    auto source = io::read_npy_stream(ends[0], "-", max_memory);
    finish();
    return source;
  } catch (...) {
    finish();
    throw;
  }
}

std::string file_of(const Array& a) {
  std::string bytes;
  io::write_npy(*make_source(a.view()), [&](const void* data, std::int64_t n) {
    bytes.append(static_cast<const char*>(data), static_cast<std::size_t>(n));
  });
  return bytes;
}

}  // namespace

TEST_CASE("a stream is read whole, checked at both ends, and bounded by the memory allowed") {
  const Array a = example(DType::float32, {1000, 1500});
  const std::string bytes = file_of(a);
  const auto source = streamed(bytes);
  CHECK(same(read_all(*source), a));
  source->release(source->mapped()->data, a.bytes());
  CHECK(same(read_all(*source), a));
  CHECK(same(read_all(*streamed(file_of(example(DType::int8, {})))), example(DType::int8, {})));
  CHECK(same(read_all(*streamed(file_of(example(DType::int8, {0, 3})))), example(DType::int8, {0, 3})));
  CHECK(error_of(Error::Kind::input, [&] { streamed(bytes.substr(0, bytes.size() - 1)); }) ==
        "-: header promises 6000000 bytes of data, the file holds 5999999");
  CHECK(contains(error_of(Error::Kind::input, [&] { streamed(bytes + "x"); }), "more follows"));
  CHECK(contains(error_of(Error::Kind::budget, [&] { streamed(bytes, 1 << 20); }), "5.7 MiB"));
  // A header that promises an exabyte costs what arrives.
  CHECK(contains(error_of(Error::Kind::input,
                          [&] { streamed(npy(header("<f8", "False", "(144115188075855872,)"), "abc")); }),
                 "the file holds 3"));
}

TEST_CASE("a pipe under a file's name is read like a stream") {
  Folder folder;
  const Array a = example(DType::int16, {100});
  REQUIRE(mkfifo((folder / "p.npy").c_str(), 0600) == 0);
  std::thread writer([&] { put(folder / "p.npy", file_of(a)); });
  const auto source = open_array(folder / "p.npy[10:]");
  writer.join();
  CHECK(source->shape() == Shape{90});
}

TEST_CASE("a file is read whole, or not when it is longer than it may be") {
  Folder folder;
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{5}, std::size_t{1} << 16, std::size_t{300000}}) {
    CAPTURE(bytes);
    const auto n = static_cast<std::int64_t>(bytes);
    const std::string text(bytes, 'x');
    fs::remove(folder / "t");
    put(folder / "t", text);
    CHECK((read_file(folder / "t", n) == text));
    if (n > 0) CHECK(!read_file(folder / "t", n - 1).has_value());
  }
  CHECK(error_of(Error::Kind::input, [&] { read_file(folder / "no", 1); }) ==
        (folder / "no") + ": No such file or directory");
  CHECK(contains(error_of(Error::Kind::input, [&] { read_file(folder.path(), 1); }), "Is a directory"));
}

TEST_CASE("standard input is one array, once") {
  Folder folder;
  const Array a = example(DType::int32, {4, 2});
  put(folder / "a.npy", file_of(a));
  const int before = dup(STDIN_FILENO);
  const int file = open((folder / "a.npy").c_str(), O_RDONLY);
  dup2(file, STDIN_FILENO);
  CHECK(same(read_all(*open_array("-")), a));
  CHECK(contains(error_of(Error::Kind::usage, [] { open_array("-[0]"); }), "only once"));
  CHECK(contains(error_of(Error::Kind::usage, [] { read_file("-", 100); }), "only once"));
  dup2(before, STDIN_FILENO);
  close(before);
  close(file);
}
