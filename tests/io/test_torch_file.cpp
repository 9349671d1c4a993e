// Files of torch.save: paths, views of storages, and pickles that are refused.
#include "io/torch_file.hpp"

#include <fmt/format.h>
#include <zip.h>

#include "io/pickle.hpp"
#include "io/support.hpp"

using namespace ejk;
using namespace ejk::test;
using Names = std::vector<std::string>;
using namespace std::string_literals;

namespace {

const std::string kTorchFiles = EJK_TEST_DIR "/golden/";  // made by make_safetensors.py there

constexpr DType kTorchDTypes[] = {DType::boolean,         DType::int8,           DType::int16,
                                  DType::int32,           DType::int64,          DType::uint8,
                                  DType::uint16,          DType::uint32,         DType::uint64,
                                  DType::float8_e4m3fn,   DType::float8_e5m2,    DType::float8_e4m3fnuz,
                                  DType::float8_e5m2fnuz, DType::float8_e8m0fnu, DType::float16,
                                  DType::bfloat16,        DType::float32,        DType::float64};

Array torch_tensor(DType dtype, Shape shape) {
  Array a(dtype, std::move(shape));
  for (std::int64_t i = 0; i < a.bytes(); ++i)
    a.data()[i] = static_cast<std::byte>(dtype == DType::boolean ? i % 3 == 0 : (i * 37 + 11) % 251);
  return a;
}

void make_archive(const std::string& path, const std::vector<std::pair<std::string, std::string>>& members,
                  zip_int32_t method = ZIP_CM_STORE) {
  zip_t* zip = zip_open(path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, nullptr);
  REQUIRE(zip != nullptr);
  for (const auto& [name, bytes] : members) {
    const auto index = static_cast<zip_uint64_t>(zip_file_add(
        zip, name.c_str(), zip_source_buffer(zip, bytes.data(), bytes.size(), 0), ZIP_FL_OVERWRITE));
    zip_set_file_compression(zip, index, method, 0);
  }
  REQUIRE(zip_close(zip) == 0);
}

// Opcodes of a pickle.
std::string text(std::string_view value) {
  return "X"s + static_cast<char>(value.size()) + "\0\0\0"s + std::string(value);
}
std::string number(int value) { return "K"s + static_cast<char>(value); }
std::string tuple(const std::vector<std::string>& items) {
  std::string all = "(";
  for (const std::string& item : items) all += item;
  return all + "t";
}
std::string tuple_of(const std::vector<int>& numbers) {
  std::vector<std::string> items;
  for (const int n : numbers) items.push_back(number(n));
  return tuple(items);
}
std::string storage(std::string_view type = "FloatStorage", int elements = 6) {
  return tuple(
             {text("storage"), fmt::format("ctorch\n{}\n", type), text("0"), text("cpu"), number(elements)}) +
         "Q";
}
std::string tensor(const std::string& of, int offset, const std::string& shape, const std::string& strides) {
  return "ctorch._utils\n_rebuild_tensor_v2\n" +
         tuple({of, number(offset), shape, strides, "\x89", "ccollections\nOrderedDict\n)R"}) + "R";
}

std::string fault_of(const std::string& pickle) {
  return error_of(Error::Kind::input, [&] { io::tensors_in_pickle("\x80\x02" + pickle + "."); });
}

}  // namespace

TEST_CASE("tensors of all types are read, as PyTorch saved them") {
  const std::string path = kTorchFiles + "types.pt";
  CHECK(array_names(path).size() == std::size(kTorchDTypes) + 3);
  for (const DType dtype : kTorchDTypes) {
    CAPTURE(name_of(dtype));
    const auto source = open_array(fmt::format("{}:{}", path, name_of(dtype)));
    CHECK(source->random_access());
    CHECK(source->mapped());
    CHECK(same(read_all(*source), torch_tensor(dtype, {3, 5})));
  }
  CHECK(same(read_all(*open_array(path + ":scalar")), torch_tensor(DType::float32, {})));
  CHECK(open_array(path + ":empty")->shape() == Shape{0, 4});
  CHECK(open_array(path + ":a.empty")->shape() == Shape{2, 0});
  Folder folder;
  fs::copy(kTorchFiles + "one.pt", folder / "pytorch_model.bin");
  CHECK(parse_input(folder / "pytorch_model.bin").container == ArrayReference::Container::torch);
  CHECK(array_names(folder / "pytorch_model.bin") == Names{""});
  CHECK(same(read_all(*open_array(folder / "pytorch_model.bin")), torch_tensor(DType::float32, {2, 3})));
  CHECK(open_array((folder / "pytorch_model.bin") + "[0]")->shape() == Shape{3});
}

TEST_CASE("a path leads through dicts, lists and tuples; what is no tensor is left out") {
  const std::string path = kTorchFiles + "nested.pt";
  const Names names = {"base",
                       "column",
                       "transposed",
                       "part",
                       "expanded",
                       "flipped",
                       "model.weight",
                       "model.bias",
                       "parameter",
                       "optimizer.state[0].step",
                       "optimizer.state[1].exp",
                       "pair[0]",
                       "pair[1][0]",
                       "complex"};
  CHECK(array_names(path) == names);
  for (const std::string& name : names) {
    if (name == "complex") continue;
    CAPTURE(name);
    const ArrayReference reference = reference_to(parse_input(path), name);
    CHECK(reference.text == fmt::format("{}:{}", path, name));
    CHECK(open_array(reference)->shape() == open_array(reference.text)->shape());
    CHECK(ArrayFile(path).arrays(parse_input(reference.text)).at(0).name == name);
  }
  CHECK(same(read_all(*open_array(path + ":pair[1][0]")), torch_tensor(DType::uint8, {3})));
  CHECK(same(read_all(*open_array(path + ":pair[1][0][1:]")), [] {
    Array two(DType::uint8, {2});
    two.data()[0] = std::byte{48}, two.data()[1] = std::byte{85};
    return two;
  }()));
  CHECK(open_array(path + ":pair[0][...]")->shape() == Shape{2});
  CHECK(read_all(*open_array(path + ":model.bias")).elements<float>()[1] == -1.0f);
  CHECK(read_all(*open_array(path + ":optimizer.state[0].step")).elements<float>()[0] == 3.0f);
  CHECK(contains(error_of(Error::Kind::input, [&] { open_array(path + ":complex"); }),
                 "nested.pt:complex: the elements have dtype complex64, which is not supported"));
  CHECK(contains(error_of(Error::Kind::input, [&] { open_array(path + ":model.wieght"); }),
                 "did you mean " + path + ":model.weight?"));
  const auto names_in = [&](const std::string& group) {
    Names found;
    const ArrayReference reference = parse_input(path + ":" + group);
    for (const FoundArray& array : ArrayFile(path).arrays(reference)) {
      found.push_back(array.name);
      if (!array.is_word)
        CHECK(open_array(array.reference)->shape() == open_array(array.reference.text)->shape());
    }
    return found;
  };
  CHECK(names_in("model") == Names{"weight", "bias"});
  CHECK(names_in("model.weight") == Names{"model.weight"});
  CHECK(names_in("optimizer.state") == Names{"optimizer.state[0].step", "optimizer.state[1].exp"});
  CHECK(names_in("optimizer.state[1]") == Names{"exp"});
  CHECK(names_in("pair[1]") == Names{"pair[1][0]"});
  CHECK(names_in("mod") == Names{"mod"});  // an error where it is opened
  const auto stored = ArrayFile(path).stored_arrays();
  REQUIRE(stored);
  CHECK(stored->back().dtype == "complex64");
  CHECK(stored->back().bytes == 16);
}

TEST_CASE("strides and offsets of views are honoured") {
  const std::string path = kTorchFiles + "nested.pt";
  const Array base = read_all(*open_array(path + ":base"));
  CHECK(same(base, torch_tensor(DType::int32, {4, 6})));
  const auto view = [&](std::int64_t offset, Shape shape, Shape strides) {
    for (std::int64_t& stride : strides) stride *= 4;
    return Array::copy_of({base.data() + 4 * offset, DType::int32, std::move(shape), std::move(strides)});
  };
  CHECK(same(read_all(*open_array(path + ":column")), view(1, {4}, {6})));
  CHECK(same(read_all(*open_array(path + ":transposed")), view(0, {6, 4}, {1, 6})));
  CHECK(open_array(path + ":transposed")->access().storage == "Fortran order");
  CHECK(same(read_all(*open_array(path + ":part")), view(6, {2, 3}, {6, 2})));
  CHECK(open_array(path + ":part")->access().storage == "strided");
  CHECK(same(read_all(*open_array(path + ":expanded")), view(0, {3, 2}, {0, 0})));
  CHECK(same(read_all(*open_array(path + ":part[1,::2]")), view(12, {2}, {4})));
}

TEST_CASE("the order of bytes is that of the file") {
  Folder folder;
  const std::string path = folder / "x.pt";
  const std::string pickle =
      "\x80\x02" + tensor(storage("ShortStorage", 2), 0, tuple_of({2}), tuple_of({1})) + ".";
  make_archive(path, {{"x/data.pkl", pickle}, {"x/byteorder", "big"}, {"x/data/0", "\0\1\2\0"s}});
  CHECK(read_all(*open_array(path)).elements<std::int16_t>()[0] == 1);
  CHECK(read_all(*open_array(path)).elements<std::int16_t>()[1] == 512);
  make_archive(path, {{"x/data.pkl", pickle}, {"x/data/0", "\0\1\2\0"s}});  // before the record existed
  CHECK(read_all(*open_array(path)).elements<std::int16_t>()[0] == 256);
  make_archive(path, {{"x/data.pkl", pickle}, {"x/byteorder", "middle"}, {"x/data/0", "\0\1\2\0"s}});
  CHECK(
      contains(error_of(Error::Kind::input, [&] { open_array(path); }), "x.pt: the byte order is 'middle'"));
}

TEST_CASE("a tensor outside its storage is refused before anything is read") {
  Folder folder;
  const std::string path = folder / "x.pt";
  const auto message = [&](const std::string& pickle) {
    make_archive(path, {{"x/data.pkl", "\x80\x02" + pickle + "."}, {"x/data/0", std::string(24, 'x')}});
    return error_of(Error::Kind::input, [&] { read_all(*open_array(path)); });
  };
  const std::string outside = "are outside its storage of 24 bytes";
  CHECK(contains(message(tensor(storage(), 1, tuple_of({6}), tuple_of({1}))), outside));
  CHECK(contains(message(tensor(storage(), 0, tuple_of({2, 3}), tuple_of({4, 1}))), outside));
  CHECK(contains(message(tensor(storage("DoubleStorage"), 0, tuple_of({6}), tuple_of({1}))), outside));
  CHECK(contains(
      message(tensor(storage(), 0, tuple({"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"}), tuple_of({1}))),
      outside));
  CHECK(contains(
      message(tensor(storage(), 0, tuple({number(2)}), tuple({"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"}))),
      outside));
  CHECK(
      contains(message(tensor(storage(), 0, tuple_of({2}), tuple({"\x8a\x01\xff"}))), "no number from 0 on"));
  CHECK(contains(message(tensor(storage(), 0, tuple_of({2}), tuple_of({1, 1}))), "1 axes and 2 strides"));
  CHECK(contains(message(tensor("N", 0, tuple_of({2}), tuple_of({1}))), "a tensor has no storage"));
  make_archive(path, {{"x/data.pkl", "\x80\x02" + tensor(storage(), 0, tuple_of({6}), tuple_of({1})) + "."}});
  CHECK(
      contains(error_of(Error::Kind::input, [&] { open_array(path); }), "the archive lacks its storage '0'"));
  make_archive(path,
               {{"x/data.pkl", "\x80\x02" + tensor(storage(), 0, tuple_of({6}), tuple_of({1})) + "."},
                {"x/data/0", std::string(2400, 'x')}},
               ZIP_CM_DEFLATE);
  CHECK(contains(error_of(Error::Kind::input, [&] { open_array(path); }), "torch.save only stores"));
}

TEST_CASE("objects that are not tensors are stepped over, counted and named; nothing is run") {
  const auto class_of = [](const std::string& pickle) {
    const io::PickleContents contents = io::tensors_in_pickle("\x80\x02" + pickle + ".");
    CHECK(contents.named.empty());
    REQUIRE(contents.objects.size() == 1);
    CHECK(contents.objects[0].count == 1);
    return contents.objects[0].name;
  };
  Folder folder;
  CHECK(class_of("cos\nsystem\n" + text("touch " + folder / "run") + "\x85R") == "os.system");
  CHECK(folder.names().empty());
  CHECK(class_of("cbuiltins\neval\n") == "builtins.eval");
  CHECK(class_of("c__main__\nModel\n)\x81") == "__main__.Model");
  CHECK(class_of("c__main__\nModel\n)}\x92") == "__main__.Model");
  CHECK(class_of("cargparse\nNamespace\n)\x81}" + text("lr") + "NsbK\1"s + "0") == "argparse.Namespace");
  CHECK(class_of(text("posix") + text("system") + "\x93") == "posix.system");
  CHECK(class_of("ctorch\nload\n") == "torch.load");
  CHECK(class_of("c\x1b[31m\nx\n") == "\\x1b[31m.x");
  for (const std::string module : {"numpy.core.multiarray", "numpy._core.multiarray"}) {
    const std::string dtype = "cnumpy\ndtype\n" + text("f8") + "\x89\x88\x87R(K\3" + text("<") + "NNNtb";
    CHECK(class_of(fmt::format("c{}\nscalar\n{}c_codecs\nencode\n{}\x85R\x86R", module, dtype, text("x"))) ==
          "NumPy scalar");
    const std::string state = tuple({number(1), tuple_of({1}), dtype, "\x89", text("x")});
    CHECK(class_of(fmt::format("c{}\n_reconstruct\ncnumpy\nndarray\n{}\x85{}\x87R{}b", module, number(0),
                               text("b"), state)) == "NumPy array");
  }
  const std::string one = tensor(storage(), 0, tuple_of({6}), tuple_of({1}));
  const std::string object = "cm\nConfig\n)\x81}" + text("t") + one + "sb";
  const io::PickleContents contents =
      io::tensors_in_pickle("\x80\x02}(" + text("w") + one + text("a") + object + text("b") + object + "u.");
  REQUIRE(contents.named.size() == 1);
  CHECK(contents.named[0].path == "w");
  REQUIRE(contents.objects.size() == 1);
  CHECK(contents.objects[0].name == "m.Config");
  CHECK(contents.objects[0].count == 2);
  CHECK(contents.objects[0].first == "a");
  CHECK(contents.tensors_in_objects == 2);
  // An object in a circle: its attribute is itself.
  CHECK(class_of("cm\nX\n)\x81q\0}"s + text("self") + "h\0sb"s) == "m.X");
}

TEST_CASE("what a tensor's own content depends on is refused by name") {
  CHECK(contains(fault_of("ctorch._utils\n_rebuild_qtensor\n"), "torch._utils._rebuild_qtensor"));
  CHECK(contains(fault_of("ctorch._utils\n_rebuild_qtensor\n"), "x.dequantize()"));
  const std::string numpy = "cnumpy._core.multiarray\nscalar\n)R";
  CHECK(contains(fault_of(tensor(numpy, 0, tuple_of({6}), tuple_of({1}))), "a tensor has no storage"));
  CHECK(
      contains(fault_of(tensor(storage(), 0, tuple({numpy}), tuple_of({1}))), "an entry that is no number"));
  CHECK(contains(fault_of("ios\nsystem\n"), "the opcode 0x69 at byte 2, which no tensor needs"));
  CHECK(contains(fault_of("ctorch.storage\nUntypedStorage\n)R"), "a class is called"));
  CHECK(contains(fault_of("NNR"), "what is called is no function"));
}

TEST_CASE("a file's objects are a remark, and an error where all tensors are in them") {
  Folder folder;
  const std::string path = folder / "x.pt";
  const std::string one = tensor(storage(), 0, tuple_of({6}), tuple_of({1}));
  const std::string object = "cargparse\nNamespace\n)\x81}" + text("t") + one + "sb";
  const auto make = [&](const std::string& pickle) {
    make_archive(path, {{"x/data.pkl", "\x80\x02" + pickle + "."}, {"x/data/0", std::string(24, '\0')}});
  };
  make("}" + text("w") + one + "s");
  CHECK(ArrayFile(path).remarks().empty());
  make("}(" + text("w") + one + text("args") + object + "u");
  CHECK(array_names(path) == Names{"w"});
  REQUIRE(ArrayFile(path).remarks().size() == 1);
  CHECK(
      contains(ArrayFile(path).remarks()[0],
               "x.pt: objects are left out: argparse.Namespace (args), with 1 tensors in them; torch.save("));
  make(object);
  CHECK(contains(error_of(Error::Kind::input, [&] { array_names(path); }),
                 "x.pt: all 1 tensors are in objects of argparse.Namespace"));
}

TEST_CASE("an expanded tensor is read where it is small, and refused far beyond its file") {
  Folder folder;
  const std::string path = folder / "x.pt";
  const auto make = [&](const std::string& length) {
    make_archive(path,
                 {{"x/data.pkl", "\x80\x02" + tensor(storage(), 0, tuple({length}), tuple_of({0})) + "."},
                  {"x/data/0", std::string(24, '\0')}});
  };
  make("M\0\x40"s);  // 2^14
  CHECK(open_array(path)->shape() == Shape{1 << 14});
  CHECK(ArrayFile(path).remarks().empty());
  make("\x8a\x06\0\0\0\0\0\1"s);  // 2^40
  const std::string message = error_of(Error::Kind::input, [&] { open_array(path); });
  CHECK(contains(message, "x.pt: is an expanded tensor: 1,099,511,627,776 elements, 1 of them stored"));
  CHECK(contains(message, "x.contiguous()"));
  CHECK(ArrayFile(path).remarks().size() == 1);
}

TEST_CASE("a pickle's values take few times its bytes, and not more than is allowed") {
  const std::string many = [] {
    std::string pickle = "(";
    for (int i = 0; i < 100'000; ++i) pickle += "]";
    return pickle + "l";
  }();
  const auto read = [&](std::int64_t most) { io::tensors_in_pickle("\x80\x02" + many + ".", most); };
  read(0);
  read(24 * std::ssize(many));
  CHECK(contains(error_of(Error::Kind::budget, [&] { read(4 * std::ssize(many)); }),
                 "the pickle of 97.7 KiB takes more than"));
  const std::string one = tensor(storage(), 0, tuple_of({6}), tuple_of({1}));
  std::string tied = "(" + one + "q\0"s;
  for (int i = 0; i < 100'000; ++i) tied += "h\0"s;
  CHECK(contains(fault_of(tied + "l"), "too many paths lead to the same tensors"));
  CHECK(contains(fault_of("Nr\xff\xff\xff\x7f"), "it remembers a value as 2147483647"));
}

TEST_CASE("a damaged pickle is an error with its position, however it refers to itself") {
  CHECK(contains(fault_of("X\xff\xff\xff\x7f"), "the pickle is damaged at byte 2: it ends within a value"));
  CHECK(contains(fault_of("t"), "a mark is missing"));
  CHECK(contains(fault_of("(a"), "a value is missing"));
  CHECK(contains(fault_of("NNa"), "there is no list to append to"));
  CHECK(contains(fault_of("}NNNu"), "a mark is missing"));
  CHECK(contains(fault_of("}(Nu"), "a key has no value"));
  CHECK(contains(fault_of("h\x05"), "nothing was remembered as 5"));
  CHECK(contains(fault_of("(N"), "it does not end with one value"));
  CHECK(contains(fault_of("NN"), "it does not end with one value"));
  CHECK(contains(fault_of("\x80\x06N"), "protocol 6"));
  CHECK(contains(fault_of(tuple_of({1}) + "Q"), "a storage has no type and key"));
  CHECK(contains(error_of(Error::Kind::input, [] { io::tensors_in_pickle(""); }), "it ends within a value"));
  // A list in itself, a million lists in each other, and a list of 2^60 paths.
  CHECK(contains(fault_of("]q\0h\0a"s), "contain each other too often"));
  CHECK(contains(fault_of(std::string(1'000'000, ']') + std::string(999'999, 'a')),
                 "more than 100 lists and dicts"));
  std::string doubled = "]q\0"s;
  for (char i = 0; i < 60; ++i) doubled += "](h"s + i + "h" + i + "eq" + static_cast<char>(i + 1);
  doubled = "(" + doubled + "l";
  CHECK(contains(fault_of(doubled), "contain each other too often"));
  std::string keys = "(}" + ("X\x00\x10\x00\x00"s + std::string(4096, 'k')) + "Nsq\0"s;
  for (int i = 0; i < 20000; ++i) keys += "h\0"s;
  CHECK(contains(fault_of(keys + "l"), "the paths of tensors are too long"));
  const std::string one = tensor(storage(), 0, tuple_of({6}), tuple_of({1}));
  CHECK(contains(fault_of("}(" + text("a.b") + one + text("a") + "}" + text("b") + one + "su"),
                 "two tensors have the path 'a.b'"));
  CHECK(contains(fault_of("}N" + one + "s"), "neither a text nor an integer"));
}

TEST_CASE("what is no file of torch.save says what it is") {
  Folder folder;
  const std::string path = folder / "x.pt";
  const std::string old = error_of(Error::Kind::input, [] { open_array(kTorchFiles + "old.pt"); });
  CHECK(contains(old, "old.pt: is torch.save's format before PyTorch 1.6, which is not read"));
  CHECK(contains(old, "hint: torch.save("));
  put(path, "nothing");
  CHECK(contains(error_of(Error::Kind::input, [&] { open_array(path); }),
                 "x.pt: not a file of torch.save (no zip"));
  make_archive(path, {{"x/other", "x"}});
  CHECK(contains(error_of(Error::Kind::input, [&] { open_array(path); }), "the archive has no data.pkl"));
  const std::string script = folder / "x.jit";
  make_archive(script, {{"x/data/0", "0123"}, {"x/data.pkl", "\x80\x02N."}});
  CHECK(contains(error_of(Error::Kind::input, [&] { array_names(script); }),
                 "x.jit: is an archive of torch with code or objects"));
  make_archive(path, {{"x/data.pkl", "\x80\x02N."}}, ZIP_CM_DEFLATE);
  make_archive(path, {{"x/data.pkl", "\x80\x02N."}});
  CHECK(array_names(path).empty());
  CHECK(contains(error_of(Error::Kind::usage, [&] { parse_output(path); }),
                 "x.pt: a file of torch.save can only be read"));
}
