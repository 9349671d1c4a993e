// safetensors files: reading, what is refused, and the bytes that the package writes.
#include "io/safetensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <map>

#include "io/run.hpp"
#include "io/support.hpp"

using namespace ejk;
using namespace ejk::test;
using Names = std::vector<std::string>;

namespace {

const std::string kGoldenFiles = EJK_TEST_DIR "/golden/";  // made by make_safetensors.py there

constexpr std::pair<DType, std::string_view> kTensorCodes[] = {{DType::boolean, "BOOL"},
                                                               {DType::int8, "I8"},
                                                               {DType::int16, "I16"},
                                                               {DType::int32, "I32"},
                                                               {DType::int64, "I64"},
                                                               {DType::uint8, "U8"},
                                                               {DType::uint16, "U16"},
                                                               {DType::uint32, "U32"},
                                                               {DType::uint64, "U64"},
                                                               {DType::float8_e4m3fn, "F8_E4M3"},
                                                               {DType::float8_e5m2, "F8_E5M2"},
                                                               {DType::float8_e4m3fnuz, "F8_E4M3FNUZ"},
                                                               {DType::float8_e5m2fnuz, "F8_E5M2FNUZ"},
                                                               {DType::float8_e8m0fnu, "F8_E8M0"},
                                                               {DType::float16, "F16"},
                                                               {DType::bfloat16, "BF16"},
                                                               {DType::float32, "F32"},
                                                               {DType::float64, "F64"}};

// The elements of a tensor in the golden files.
Array golden_tensor(DType dtype, Shape shape) {
  Array a(dtype, std::move(shape));
  for (std::int64_t i = 0; i < a.bytes(); ++i)
    a.data()[i] = static_cast<std::byte>(dtype == DType::boolean ? i % 3 == 0 : (i * 37 + 11) % 251);
  return a;
}

std::map<std::string, Array> golden_types() {
  std::map<std::string, Array> arrays;
  for (const auto& [dtype, code] : kTensorCodes) arrays.emplace(name_of(dtype), golden_tensor(dtype, {3, 5}));
  arrays.emplace("scalar", golden_tensor(DType::float32, {}));
  arrays.emplace("empty", golden_tensor(DType::int64, {0, 4}));
  arrays.emplace("a.empty", golden_tensor(DType::uint8, {2, 0}));
  return arrays;
}

std::string little_endian_length(std::uint64_t value) {
  std::string s;
  for (int i = 0; i < 8; ++i) s += static_cast<char>(value >> (8 * i) & 0xFF);
  return s;
}

std::string safetensors(const std::string& header, std::string_view data = "") {
  return little_endian_length(header.size()) + header + std::string(data);
}

std::string entry(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return fmt::format(R"({{"dtype":"{}","shape":[{}],"data_offsets":[{}]}})", dtype, shape, offsets);
}

}  // namespace

TEST_CASE("tensors of all types are mapped, or copied where they are not aligned") {
  const std::string path = kGoldenFiles + "types.safetensors";
  const std::map<std::string, Array> arrays = golden_types();
  CHECK(array_names(path).size() == arrays.size());
  for (const auto& array : arrays) {
    const std::string& name = array.first;
    const Array& expected = array.second;
    CAPTURE(name);
    const auto source = open_array(fmt::format("{}:{}", path, name));
    CHECK(source->name() == fmt::format("{}:{}", path, name));
    CHECK(source->random_access());
    CHECK(source->access().storage == "C order");
    CHECK(same(read_all(*source), expected));
    if (expected.shape() != Shape{3, 5}) continue;
    CHECK(same(read_all(*open_array(fmt::format("{}:{}[::2,1:4]", path, name))), [&] {
      Array part(expected.dtype(), {2, 3});
      ArrayView view = expected.view();
      view.shape = {2, 3}, view.strides[0] *= 2, view.data += view.strides[1];
      copy_elements(view, part.data());
      return part;
    }()));
  }
  // One byte before each tensor moves all others off their alignment.
  Folder folder;
  std::string header = "{\"0\":" + entry("U8", "1", "0,1"), data = "x";
  for (const auto& [name, array] : arrays) {
    const std::size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(array.data()), static_cast<std::size_t>(array.bytes()));
    const StoredArray* stored = nullptr;
    const auto listing = ArrayFile(path).stored_arrays();
    for (const StoredArray& one : *listing)
      if (one.name == name) stored = &one;
    REQUIRE(stored != nullptr);
    CHECK(stored->dtype == name_of(array.dtype()));
    CHECK(stored->shape == array.shape());
    CHECK(stored->bytes == array.bytes());
    for (const auto& [dtype, code] : kTensorCodes)
      if (dtype == array.dtype())
        header += fmt::format(",\"{}\":{}", name,
                              entry(code, fmt::format("{}", fmt::join(array.shape(), ",")),
                                    fmt::format("{},{}", begin, data.size())));
  }
  put(folder / "odd.safetensors", safetensors(header + "}", data));
  for (const auto& array : arrays) {
    const std::string& name = array.first;
    CAPTURE(name);
    CHECK(same(read_all(*open_array((folder / "odd.safetensors:") + name)), array.second));
  }
}

TEST_CASE("metadata that are null are none") {
  Folder folder;
  const std::string path = folder / "x.safetensors";
  put(path, safetensors(R"({"__metadata__":null,"a":)" + entry("U8", "1", "0,1") + "}", "x"));
  CHECK(array_names(path) == Names{"a"});
  CHECK(ArrayFile(path).attributes().empty());
  CHECK(read_all(*open_array(path)).elements<std::uint8_t>()[0] == 'x');
}

TEST_CASE("names may hold dots, slashes, colons and brackets, and metadata are attributes") {
  const std::string path = kGoldenFiles + "names.safetensors";
  const Names names = {"a/b",          "c:d",  "del\x7f", "größe", "model.layers.0.w", "quote\"back\\slash",
                       "tab\tand\x01", "x[1]", "模型",    "😀"};
  CHECK(array_names(path) == names);
  const ArrayFile file(path);
  CHECK(file.attributes() == std::map<std::string, std::string>{{"format", "pt"}});
  CHECK(file.attributes("c:d").empty());
  for (const std::string& name : names) {
    CAPTURE(name);
    const ArrayReference reference = reference_to(parse_input(path), name);
    const auto source = open_array(reference.text);
    CHECK(same(read_all(*source), golden_tensor(DType::int16, source->shape())));
  }
  CHECK(open_array(path + ":c:d")->shape() == Shape{3});
  CHECK(contains(error_of(Error::Kind::input, [&] { open_array(path + ":c:e"); }), "did you mean"));
  CHECK(contains(error_of(Error::Kind::input, [&] { open_array(path); }),
                 "holds 10 arrays, and none is named"));
}

TEST_CASE("what a file is, its first bytes say") {
  Folder folder;
  fs::copy(kGoldenFiles + "types.safetensors", folder / "blob");
  CHECK(parse_input(folder / "blob").container == ArrayReference::Container::safetensors);
  CHECK(same(read_all(*open_array(folder / "blob:int8")), golden_tensor(DType::int8, {3, 5})));
  put(folder / "one.safetensors", safetensors("{\"x\":" + entry("I8", "1", "0,1") + "}", "\x05"));
  CHECK(read_all(*open_array(folder / "one.safetensors")).elements<std::int8_t>()[0] == 5);
  put(folder / "none.safetensors", safetensors("{}"));
  CHECK(array_names(folder / "none.safetensors").empty());
  CHECK(contains(error_of(Error::Kind::input, [&] { open_array(folder / "none.safetensors"); }),
                 "holds no array"));
}

TEST_CASE("types that ejk does not have are listed, and refused by name unless bytes will do") {
  const std::string path = kGoldenFiles + "packed.safetensors";
  const auto stored = ArrayFile(path).stored_arrays();
  REQUIRE(stored);
  REQUIRE(stored->size() == 3);
  CHECK((*stored)[0].dtype == "C64");
  CHECK((*stored)[1].dtype == "uint8");
  CHECK((*stored)[2].dtype == "F4");
  CHECK((*stored)[2].shape == Shape{2, 6});
  CHECK((*stored)[2].bytes == 6);
  CHECK(contains(
      error_of(Error::Kind::input, [&] { open_array(path + ":f4"); }),
      "packed.safetensors:f4: the elements have dtype F4 (packed, 4 bits each), which is not supported"));
  CHECK(contains(error_of(Error::Kind::input, [&] { open_array(path + ":c64"); }), "C64 (complex numbers)"));
  OpenOptions bytes;
  bytes.untyped = UntypedBytes::read;
  const auto packed = open_array(path + ":f4", bytes);
  CHECK(packed->dtype() == DType::uint8);
  CHECK(packed->shape() == Shape{2, 3});
  CHECK(read_all(*packed).elements<std::uint8_t>()[5] == 5);
  error_of(Error::Kind::input, [&] { open_array(path + ":c64", bytes); });

  Folder folder;
  put(folder / "six.safetensors",
      safetensors("{\"a\":" + entry("F6_E2M3", "2,8", "0,12") + ",\"b\":" + entry("F6_E3M2", "4", "12,15") +
                      ",\"c\":" + entry("F4", "2,3", "15,18") + "}",
                  "0123456789abcdefgh"));
  CHECK(open_array(folder / "six.safetensors:a", bytes)->shape() == Shape{2, 6});
  CHECK(open_array(folder / "six.safetensors:b", bytes)->shape() == Shape{3});
  CHECK(contains(error_of(Error::Kind::input, [&] { open_array(folder / "six.safetensors:c", bytes); }),
                 "rows of 3 elements of 4 bits are no whole bytes"));
}

TEST_CASE("a header that does not describe the file is refused with the reason") {
  Folder folder;
  const std::string path = folder / "x.safetensors";
  const std::string a = "{\"a\":" + entry("U8", "1", "0,1"), good = a + "}";
  const std::string deep = "{\"a\":" + std::string(100000, '[');
  struct Hostile {
    std::string bytes, why;
  };
  const Hostile cases[] = {
      {"", "x.safetensors: the file is empty"},
      {"1234567", "the file ends within its first 8 bytes"},
      {little_endian_length(std::uint64_t{1} << 63) + good,
       "the header claims 9223372036854775808 bytes, more"},
      {little_endian_length(100'000'001) + good,
       "the header claims 100000001 bytes, more than the 100000000"},
      {little_endian_length(1000) + good, "the header claims 1000 bytes, the file has"},
      {safetensors(""), "the header does not begin with '{'"},
      {safetensors("[]"), "the header does not begin with '{'"},
      {safetensors(" {}"), "the header does not begin with '{'"},
      {safetensors("{"), "not JSON: line 1, column 2"},
      {safetensors("{} x"), "more text after the end"},
      {safetensors(std::string("{}\0", 3)), "more text after the end"},
      {safetensors("{\"\xff\":1}"), "bytes that are not UTF-8"},
      {safetensors(R"({"a\ud800":)" + entry("U8", "1", "0,1") + "}", "x"),
       "a name in the header is not UTF-8"},
      {safetensors("{\"a\":1}"), "x.safetensors:a: its entry in the header is no object"},
      {safetensors(R"({"a":{"dtype":"U8","shape":[1]}})", "x"),
       "x.safetensors:a: its entry lacks 'data_offsets'"},
      {safetensors(R"({"a":{"dtype":"U8","dtype":"U8"}})"), "its entry has 'dtype' twice"},
      {safetensors(R"({"a":{"dtype":8}})"), "the dtype is not a string"},
      {safetensors("{\"a\":" + entry("U9", "1", "0,1") + "}", "x"),
       "the dtype is 'U9', which safetensors does not"},
      {safetensors(R"({"a":{"shape":null}})"), "'shape' is no list"},
      {safetensors("{\"a\":" + entry("U8", "1.0", "0,1") + "}", "x"),
       "the shape has an entry that is no whole"},
      {safetensors("{\"a\":" + entry("U8", "-1", "0,1") + "}", "x"),
       "the shape has an entry that is no whole"},
      {safetensors("{\"a\":" + entry("U8", "\"1\"", "0,1") + "}", "x"),
       "the shape has an entry that is no whole"},
      {safetensors("{\"a\":" + entry("U8", "18446744073709551616,0", "0,0") + "}"), "beyond 64 bits"},
      {safetensors("{\"a\":" + entry("U8", "1", "0,1e0") + "}", "x"),
       "offsets has an entry that is no whole"},
      {safetensors("{\"a\":" + entry("U8", "1", "0") + "}", "x"), "there are 1 data_offsets, not two"},
      {safetensors("{\"a\":" + entry("U8", "1", "0,1,2") + "}", "x"), "there are 3 data_offsets, not two"},
      {safetensors("{\"a\":" + entry("U8", "1", "1,0") + "}", "x"),
       "x.safetensors:a: the offsets are reversed, 1 to 0"},
      {safetensors("{\"a\":" + entry("U16", "3", "0,4") + "}", "xxxx"), "U16 of shape (3,) takes 6 bytes"},
      {safetensors("{\"a\":" + entry("F4", "3", "0,2") + "}", "xx"), "has no size in whole bytes"},
      {safetensors("{\"a\":" + entry("U8", "4294967296,4294967296,4294967296", "0,0") + "}"), "has no size"},
      {safetensors("{\"a\":" + entry("U8", "0,4611686018427387904,4", "0,0") + "}"), "has no size"},
      {safetensors(a + ",\"b\":" + entry("U8", "1", "2,3") + "}", "xyz"),
       "x.safetensors:b: its data begins at byte 2, the data before it ends at 1: a hole"},
      {safetensors(a + ",\"b\":" + entry("U8", "1", "0,1") + "}", "x"), ": they overlap"},
      {safetensors("{\"a\":" + entry("U8", "1", "1,2") + "}", "xy"),
       "begins at byte 1, the data before it ends at 0"},
      {safetensors(good, "xy"), "x.safetensors: the header describes 1 bytes of data, the file has 2"},
      {safetensors(good), "the header describes 1 bytes of data, the file has 0"},
      {safetensors("{\"a\":" + entry("U8", "0", "0,0") + ",\"a\":" + entry("U8", "1", "0,1") + "}", "x"),
       "x.safetensors:a: two tensors have this name"},
      {safetensors(a + R"(,"__metadata__":{"k":1}})", "x"),
       "x.safetensors: 'k' in __metadata__ is not a string"},
      {safetensors(a + ",\"__metadata__\":[]}", "x"), "__metadata__ is no object of strings"},
      {safetensors(a + ",\"__metadata__\":" + entry("U8", "1", "1,2") + "}", "xy"),
       "'shape' in __metadata__ is not"},
      {safetensors(a + R"(,"__metadata__":{},"__metadata__":{}})", "x"), "the header has __metadata__ twice"},
      {safetensors(a + R"(,"__metadata__":{"k":"","k":""}})", "x"), "__metadata__ has 'k' twice"},
      {safetensors(R"({"a":{"x":)" + std::string(100000, '[')), "more than 1000 lists and objects"},
      {safetensors(
           "{\"a\":" + entry("U8", fmt::format("{}", fmt::join(std::vector<int>(65, 1), ",")), "0,1") + "}",
           "x"),
       "more than 64 axes"},
  };
  for (const Hostile& one : cases) {
    CAPTURE(one.why);
    fs::remove(path);
    put(path, one.bytes);
    const ArrayReference reference{ArrayReference::Container::safetensors, path, "", {}, path};
    const std::string message = error_of(Error::Kind::input, [&] { ArrayFile{reference}; });
    CHECK(contains(message, one.why));
    CHECK(contains(message, path));
    CHECK(message.find('\n') == std::string::npos);
  }
  put(path, safetensors(R"({"a":{"dtype":"U8","more":[{}],"shape":[1],"data_offsets":[0,1]}}  )", "x"));
  CHECK(array_names(path) == Names{"a"});
}

TEST_CASE("a million tensors are listed in seconds") {
  Folder folder;
  const std::string path = folder / "many.safetensors";
  constexpr int kTensors = 1'000'000;
  std::string header = "{";
  for (int i = 0; i < kTensors; ++i)
    header += fmt::format("{}\"{}\":{}", i == 0 ? "" : ",", i * 7919LL % kTensors,
                          entry("U8", "1", fmt::format("{},{}", i, i + 1)));
  put(path, safetensors(header + "}", std::string(kTensors, 'x')));
  const auto start = std::chrono::steady_clock::now();
  const ArrayFile file(path);
  CHECK(file.names().size() == kTensors);
  CHECK(read_all(*file.array("123456")).elements<std::uint8_t>()[0] == 'x');
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
}

TEST_CASE("the bytes written are those of the package") {
  Folder folder;
  const std::string path = folder / "a.safetensors";
  std::vector<NamedArray> arrays;
  for (auto& [name, array] : golden_types())
    arrays.push_back({name, make_source(Array::copy_of(array.view()))});
  write_arrays(parse_output(path), arrays);
  CHECK(get(path) == get(kGoldenFiles + "types.safetensors"));
  std::reverse(arrays.begin(), arrays.end());
  write_arrays(parse_output(path), arrays);
  CHECK(get(path) == get(kGoldenFiles + "types.safetensors"));

  // The same names with metadata, which are not written.
  arrays.clear();
  for (const std::string& name : array_names(kGoldenFiles + "names.safetensors"))
    arrays.push_back({name, ArrayFile(kGoldenFiles + "names.safetensors").array(name)});
  WriteOptions with_attributes;
  with_attributes.attributes = {{"command", "test"}};
  write_arrays(parse_output(path), arrays, with_attributes);
  const std::string golden = get(kGoldenFiles + "names.safetensors"),
                    metadata = R"("__metadata__":{"format":"pt"},)";
  const auto header_of = [](const std::string& bytes) {
    std::string text = bytes.substr(8, bytes.find("}}") + 2 - 8);
    return text;
  };
  std::string expected = header_of(golden);
  expected.erase(expected.find(metadata), metadata.size());
  CHECK(header_of(get(path)) == expected);
  CHECK(get(path).size() % 2 == 0);
  CHECK(array_names(path) == array_names(kGoldenFiles + "names.safetensors"));

  write_array(parse_output(path + ":x/y"), arrays[0]);
  CHECK(array_names(path) == Names{"x/y"});
  write_array(parse_output(path), {"only", arrays[0].source});
  CHECK(array_names(path) == Names{"only"});
  CHECK(folder.names() == Names{"a.safetensors"});
}

TEST_CASE("large arrays are written in parallel, by others, and to a pipe, with the same bytes") {
  Folder folder;
  const std::vector<NamedArray> arrays = {{"small", make_source(counting({3}))},
                                          {"large", make_source(counting({3000, 1000}))},
                                          {"read", std::make_shared<Unmapped>(counting({2000, 1001}))},
                                          {"byte", make_source(example(DType::int8, {5}))}};
  write_arrays(parse_output(folder / "a.safetensors"), arrays);
  for (const NamedArray& array : arrays)
    CHECK(same(read_all(*open_array((folder / "a.safetensors:") + array.name)), read_all(*array.source)));
  WriteOptions options;
  options.fill = [&](std::size_t n, const ElementRegion& region) {
    const ArraySource& source = *arrays[n].source;
    write_elements(region, source.shape(), whole_box(source.shape()), source);
  };
  write_arrays(parse_output(folder / "b.safetensors"), arrays, options);
  CHECK(get(folder / "a.safetensors") == get(folder / "b.safetensors"));
  const Printed piped =
      run(fmt::format("cd {} && mkfifo p.safetensors && cat p.safetensors >c & cd {}; sleep 0.2; "
                      "$EJK convert a.safetensors -o p.safetensors -q && wait && cmp a.safetensors c",
                      folder.path(), folder.path()));
  CHECK(piped.status == 0);
  CHECK(piped.text == "");
}

TEST_CASE("what cannot be written leaves the old file") {
  Folder folder;
  const std::string path = folder / "a.safetensors";
  put(path, "old");
  const auto source = make_source(counting({2}));
  const auto message = [&](const std::vector<NamedArray>& arrays) {
    return error_of(Error::Kind::output, [&] { write_arrays(parse_output(path), arrays); });
  };
  CHECK(contains(message({{"__metadata__", source}}),
                 "a.safetensors: the array name '__metadata__' is that of"));
  CHECK(contains(message({{"a\xff", source}}), "is not UTF-8"));
  CHECK(contains(message({{"a\xed\xa0\x80", source}}), "is not UTF-8"));
  const auto fail = [](std::span<const std::int64_t>, std::span<const std::int64_t>, void*) {
    throw Error(Error::Kind::input, "it: broke");
  };
  CHECK(error_of(Error::Kind::input, [&] {
          write_arrays(parse_output(path), {{"a", generated_source({DType::int8, {5}}, "it", fail)}});
        }) == "it: broke");
  CHECK(error_of(Error::Kind::output, [&] {
          check_target(parse_output(path), {"__metadata__", "b"}, true);
        }) != "");
  WriteOptions compressed;
  compressed.compression = 3;
  CHECK(contains(error_of(Error::Kind::usage,
                          [&] {
                            write_arrays(parse_output(path), {{"a", source}}, compressed);
                          }),
                 "has no compression"));
  CHECK(get(path) == "old");
  CHECK(folder.names() == Names{"a.safetensors"});
}
