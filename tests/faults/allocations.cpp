// Every allocation of the readers and writers fails once: a program of its own, since it replaces operator
// new.
//
// A work is done again and again; the first time its first allocation fails, then its second, until none is
// left to fail. Each time it must end in its result or in an exception that says so; all that it had
// allocated is given back, and what it writes is whole or not there. (Memory that C libraries take by malloc
// does not fail here; the calls of the system that give memory do in run_faults.)
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <new>

#include "ejk/grouped_matmul.hpp"
#include "ejk/io.hpp"
#include "ejk/mask.hpp"
#include "ejk/program/hash.hpp"
#include "ejk/program/params.hpp"
#include "ejk/program/sharding.hpp"
#include "ejk/threads.hpp"
#include "io/npy.hpp"
#include "io/support.hpp"

namespace {

std::atomic<long> until_failure = 0;  // 0: none fails
std::atomic<long> held = 0;           // blocks

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (until_failure.load() > 0 && --until_failure == 0) return nullptr;
  const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  void* block = std::aligned_alloc(alignment, rounded);
  if (block != nullptr) ++held;
  return block;
}

void give_back(void* block) {
  if (block != nullptr) --held;
  std::free(block);
}

}  // namespace

void* operator new(std::size_t bytes) {
  void* block = allocate(bytes, alignof(std::max_align_t));
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  void* block = allocate(bytes, static_cast<std::size_t>(alignment));
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes, alignof(std::max_align_t));
}
void* operator new[](std::size_t bytes) { return operator new(bytes); }
void* operator new[](std::size_t bytes, std::align_val_t alignment) { return operator new(bytes, alignment); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes, alignof(std::max_align_t));
}
void operator delete(void* block) noexcept { give_back(block); }
void operator delete(void* block, std::size_t) noexcept { give_back(block); }
void operator delete(void* block, std::align_val_t) noexcept { give_back(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept { give_back(block); }
void operator delete[](void* block) noexcept { give_back(block); }
void operator delete[](void* block, std::size_t) noexcept { give_back(block); }
void operator delete[](void* block, std::align_val_t) noexcept { give_back(block); }
void operator delete[](void* block, std::size_t, std::align_val_t) noexcept { give_back(block); }

using namespace ejk;
using namespace ejk::test;

namespace {

// Does the work with each allocation failing in turn, `look` after each; gives how many there were. The first
// time none fails: what is kept for good (lists of names, tables) is there afterwards.
template <class F>
long fail_each_allocation(
    F&& work, const std::function<void(bool done)>& look = [](bool) {}) {
  constexpr long kMost = 100000;
  work();
  look(true);
  for (long n = 1; n < kMost; ++n) {
    const long before = held;
    bool done = false;
    until_failure = n;
    try {
      work();
      done = true;
    } catch (const std::bad_alloc&) {
    } catch (const Error&) {
    } catch (...) {
      until_failure = 0;
      FAIL("another exception, at allocation " << n);
    }
    const bool none_failed = until_failure > 0;
    until_failure = 0;
    if (held != before)
      FAIL_CHECK("allocation " << n << " fails, and " << held - before << " blocks are lost");
    look(done);
    if (none_failed && done) return n - 1;  // (in a forked process there may have been one)
  }
  FAIL("it comes to no end");
  return 0;
}

Array filled(const Shape& shape) {
  Array array(DType::float32, shape);
  for (std::int64_t i = 0; i < element_count(shape); ++i)
    reinterpret_cast<float*>(array.data())[i] = float(i);
  return array;
}

void take_all(const ArraySource& source) {
  Array to(source.dtype(), source.shape());
  source.read(Shape(source.shape().size(), 0), source.shape(), to.data());
}

std::vector<NamedArray> two_arrays() {
  return {{"x", make_source(filled({3, 5}))},
          {"a long name that takes memory of its own", make_source(filled({7}))}};
}

// One thread: what OpenMP's library allocates it may keep.
struct OneThread {
  OneThread() { set_threads(1); }
} const one_thread;

}  // namespace

TEST_CASE("texts are taken apart or there is no memory") {
  const auto parse = [](auto&& f) { CHECK(fail_each_allocation(f) > 0); };
  parse([] { parse_reference(R"("a,b.npz":"a member with a long name"[3:200,...,-1])"); });
  parse([] { split_references(R"(a.npy[1,2],"b,c.h5:/x/y/z",some/other/folder/d.npy)"); });
  parse([] { parse_output("some/folder/with/a/name.h5:/group/of/arrays"); });
  parse([] {
    MaskExpression::parse(R"x(causal & (documents(cu_seqlens="a,b.npy") | ~local(left=3, right=none)))x");
  });
  parse([] {
    parse_json(
        R"({"name": [1, 2.5, "text of some length, not short", {"a": null}], "b": 12345678901234567890})");
  });
  parse([] { fwd_params_from(parse_json(R"({"num_warps": 4, "q_blocksize": 128})")); });
  parse([] { parse_partition_spec("P('data_parallel_axis', ('x_axis', 'y_axis'), None)"); });
  parse([] { parse_mesh("data_parallel_axis=4,x=2,y=2"); });
  parse([] { TilingTable::parse("# m k n\n128 * 256 32 64 64\n* * * 128 128 128\n"); });
}

TEST_CASE("what is wrong in a text is told or there is no memory") {
  const auto refuse = [](auto&& f) {
    CHECK(fail_each_allocation([&] {
            try {
              f();
              FAIL("it was taken");
            } catch (const Error&) {
            }
          }) > 0);
  };
  refuse([] { MaskExpression::parse("causel & documents(cu.npy)"); });
  refuse([] { parse_json(R"({"a": [1, 2,, 3]})"); });
  refuse([] { parse_partition_spec("P('data', ('x', 'y'"); });
  refuse([] { TilingTable::parse("128 * 256 32 64\n"); });
  refuse([] { parse_reference("a.npy[1:2:3:4]"); });
}

TEST_CASE("an .npy file is read or there is no memory") {
  const Folder folder;
  write_array(parse_output(folder / "x.npy"), {"x", make_source(filled({40, 3}))});
  put(folder / "big_endian.npy", [] {
    std::string bytes = io::npy_header(DType::float32, Shape{4});
    bytes[bytes.find('<')] = '>';
    return bytes + std::string(16, '\1');
  }());
  for (const char* name : {"x.npy", "big_endian.npy", "x.npy[3:20:2,1]"})
    CHECK(fail_each_allocation([&] { take_all(*open_array(folder / name)); }) > 0);
  CHECK(fail_each_allocation([&] {
          const io::File file = io::open_for_reading(folder / "x.npy", "x");
          take_all(*io::read_npy_stream(file.fd(), "a stream", 0));
        }) > 0);
}

TEST_CASE("an .npz file is read or there is no memory") {
  const Folder folder;
  write_arrays(parse_output(folder / "stored.npz"), two_arrays());
  write_arrays(parse_output(folder / "deflated.npz"), two_arrays(),
               {.overwrite = false, .attributes = {}, .compression = 6});
  for (const char* name : {"stored.npz", "deflated.npz"})
    CHECK(fail_each_allocation([&] {
            const ArrayFile file(folder / name);
            for (const std::string& member : file.names()) take_all(*file.array(member));
          }) > 0);
}

TEST_CASE("a safetensors file, a model and a file of torch.save are read or there is no memory") {
  const Folder folder;
  write_arrays(parse_output(folder / "x.safetensors"), two_arrays());
  put(folder / "x.safetensors.index.json", R"({"weight_map":{"x":"x.safetensors"}})");
  const std::string golden = EJK_TEST_DIR "/golden/";
  for (const std::string& path : {folder / "x.safetensors", folder / "x.safetensors.index.json",
                                  folder.path(), golden + "names.safetensors", golden + "types.pt"})
    CHECK(fail_each_allocation([&] {
            const ArrayFile file(path);
            (void)file.stored_arrays();
            (void)file.attributes();
            for (const std::string& name : file.names()) take_all(*file.array(name));
          }) > 0);
}

TEST_CASE("an HDF5 file is read or there is no memory, in this process and in the other") {
  const Folder folder;
  write_arrays(parse_output(folder / "x.h5:/g"), two_arrays(),
               {.overwrite = false, .attributes = {{"key", "value"}}});
  write_arrays(parse_output(folder / "x.h5:/h"), two_arrays(),
               {.overwrite = false, .attributes = {}, .compression = 6});
  CHECK(fail_each_allocation([&] {
          const ArrayFile file(folder / "x.h5");
          for (const std::string& path : file.names()) take_all(*file.array(path));
          file.attributes("/g");
        }) > 0);
}

TEST_CASE("an expression opens its arrays or there is no memory") {
  const Folder folder;
  Array ids(DType::int32, {6});
  for (int i = 0; i < 6; ++i) reinterpret_cast<std::int32_t*>(ids.data())[i] = 1 + i / 3;
  write_array(parse_output(folder / "ids.npy"), {"ids", make_source(std::move(ids))});
  const MaskExpression expression = MaskExpression::parse("causal & segments(q=ids.npy) | chunked(size=2)");
  CHECK(fail_each_allocation([&] {
          const OpenArray open([&](const std::string& reference) { return open_array(folder / reference); });
          expression.resolve({1, 6, 6}, 0, Polarity::keep, open);
        }) > 0);
}

// All that lies in a folder, one file behind the other.
std::string contents_of(const Folder& folder) {
  std::string all;
  for (const std::string& name : folder.names()) {
    const fs::path path = folder / name;
    if (!fs::is_directory(path)) {
      all += name + ": " + get(path) + "\n";
      continue;
    }
    for (const char* array : {"x", "a long name that takes memory of its own"})
      all += name + "/" + array + ": " + get(path / (std::string(array) + ".npy")) + "\n";
  }
  return all;
}

TEST_CASE("what is written is whole or as it was before, and nothing else is there") {
  struct Target {
    const char* name;
    int compression;
  };
  for (const Target& target : {Target{"x.npz", 0}, Target{"x.npz", 6}, Target{"x.safetensors", 0},
                               Target{"out/", 0}, Target{"x.h5", 0}, Target{"x.h5:/group", 6}})
    for (const bool is_new : {true, false}) {
      CAPTURE(std::string(target.name));
      CAPTURE(is_new);
      const Folder folder;
      const std::vector<NamedArray> arrays = two_arrays();
      const ArrayReference to = parse_output(folder / target.name);
      const auto prepare = [&] {
        for (const std::string& name : folder.names()) fs::remove_all(folder / name);
        if (!is_new) write_arrays(to, {{"x", make_source(filled({2}))}});
      };
      prepare();
      const std::string before = contents_of(folder);
      std::string after;
      const auto look = [&](bool done) {
        const std::string now = contents_of(folder);
        if (after.empty()) after = now;
        CAPTURE(now);
        CHECK((now == after || (!done && now == before)));
        prepare();
      };
      const long failed = fail_each_allocation(
          [&] {
            write_arrays(
                to, arrays,
                {.overwrite = true, .attributes = {{"key", "value"}}, .compression = target.compression});
          },
          look);
      CHECK(failed > 0);
      CHECK(after != before);
    }
}
