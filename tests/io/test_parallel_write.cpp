// Elements at their offset in a file, whatever surrounds them.
#include "io/parallel_write.hpp"

#include <fcntl.h>

#include "io/file.hpp"
#include "io/support.hpp"
#include "support/threads.hpp"

using namespace ejk;
using namespace ejk::test;

TEST_CASE(
    "elements go to their place by any number of threads, looked at or read, and nothing else changes") {
  Folder folder;
  const std::string path = folder / "a", around(5 << 20, '.');
  const Array elements = example(DType::int32, {3, 1000, 301});  // three pieces and a part
  const std::string bytes(reinterpret_cast<const char*>(elements.data()),
                          static_cast<std::size_t>(elements.bytes()));
  const std::shared_ptr<const ArraySource> looked = make_source(elements.view()),
                                           read = generated_source(
                                               {elements.dtype(), elements.shape()}, "made",
                                               [&](std::span<const std::int64_t> start,
                                                   std::span<const std::int64_t> count,
                                                   void*out) { looked->read(start, count, out); });
  for (const int threads : {1, 3})
    for (const auto& source : {looked, read})
      for (const std::int64_t at : {0, 64, (1 << 20) - 8, (1 << 20) - 3, 1 << 20, (1 << 20) + 4096})
        for (const std::string header : {"", "a header", "one of 24 bytes, and end"}) {
          const Threads use(threads);
          fs::remove(path);
          put(path, around);
          const io::File file(open(path.c_str(), O_RDWR | O_CLOEXEC));
          io::write_in_parallel(*source, header, file.fd(), at, "a");
          std::string expected = around;
          expected.replace(static_cast<std::size_t>(at), header.size() + bytes.size(), header + bytes);
          CHECK(get(path) == expected);
        }
}

TEST_CASE("elements that cannot be written are an error with the file's name") {
  const Array elements = example(DType::int32, {1000, 1301});
  const io::File full(open("/dev/full", O_RDWR | O_CLOEXEC));
  CHECK(error_of(Error::Kind::output, [&] {
          io::write_in_parallel(*make_source(elements.view()), "", full.fd(), 0, "a.h5");
        }) == "a.h5: No space left on device");
}

TEST_CASE("large arrays that may be read in any order are written by all threads") {
  CHECK(io::is_written_in_parallel(*make_source(example(DType::uint8, {5 << 20}))));
  CHECK_FALSE(io::is_written_in_parallel(*make_source(example(DType::uint8, {5}))));
  CHECK_FALSE(io::is_written_in_parallel(Unmapped(example(DType::uint8, {5 << 20}))));
}
