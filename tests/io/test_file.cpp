// Descriptors, whole reads and writes, mapped memory.
#include "io/file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "io/support.hpp"

using namespace ejk;
using namespace ejk::test;

TEST_CASE("a descriptor is closed once, by its last owner") {
  int fd = -1;
  {
    io::File a(open("/dev/null", O_RDONLY));
    fd = a.fd();
    io::File b(std::move(a));
    CHECK(!a.is_open());  // NOLINT(bugprone-use-after-move): what is left of it is the point
    CHECK(b.fd() == fd);
    CHECK(fcntl(fd, F_GETFD) >= 0);
  }
  CHECK(fcntl(fd, F_GETFD) < 0);
}

TEST_CASE("the system's reason follows the name") {
  CHECK(io::system_error(Error::Kind::input, "a.npy", ENOENT).message() ==
        "a.npy: No such file or directory");
  CHECK(error_of(Error::Kind::output, [] { io::write_all(-1, "x", 1, "out"); }) ==
        "out: Bad file descriptor");
  char byte = 0;
  CHECK(error_of(Error::Kind::input, [&] { io::read_some(-1, &byte, 1, "in"); }) ==
        "in: Bad file descriptor");
}

TEST_CASE("a read from a place is whole or an error") {
  Folder folder;
  put(folder / "a", "0123456789");
  const io::File file = io::open_for_reading(folder / "a", "a");
  char bytes[4] = {};
  io::read_all_at(file.fd(), bytes, 4, 6, "a");
  CHECK(std::string_view(bytes, 4) == "6789");
  CHECK(error_of(Error::Kind::input, [&] { io::read_all_at(file.fd(), bytes, 4, 7, "a"); }) ==
        "a: has become shorter while it was read");
  CHECK(error_of(Error::Kind::input, [&] { io::read_all_at(-1, bytes, 4, 0, "a"); }) ==
        "a: Bad file descriptor");
}

TEST_CASE("a mapped file can be released, whole pages of it, and read again") {
  Folder folder;
  std::string bytes(3 * 4096 + 100, 'x');
  put(folder / "a", bytes);
  const io::File file = io::open_for_reading(folder / "a", "a");
  CHECK(io::is_regular(file.fd(), "a"));
  const io::Mapping m = io::Mapping::of_file(file.fd(), io::size_of_file(file.fd(), "a"), "a");
  for (const std::int64_t from : {0, 1, 4096, 5000})
    for (const std::int64_t n : {0, 1, 4096, 7288}) m.release(m.data() + from, n);
  CHECK(std::string_view(reinterpret_cast<const char*>(m.data()), bytes.size()) == bytes);
}

TEST_CASE("a mapped file is known by any address in it, while it is mapped") {
  Folder folder;
  put(folder / "a", std::string(5000, 'x'));
  const io::File file = io::open_for_reading(folder / "a", "a");
  const std::byte* begin = nullptr;
  for (int twice = 0; twice < 2; ++twice) {
    io::Mapping a = io::Mapping::of_file(file.fd(), 5000, "a.npy");
    const io::Mapping b = io::Mapping::of_file(file.fd(), 5000, "b.npy");
    const io::Mapping moved = std::move(a);
    begin = moved.data();
    CHECK(mapped_file_at(begin) == std::string("a.npy"));
    CHECK(mapped_file_at(begin + 4999) == std::string("a.npy"));
    CHECK(mapped_file_at(b.data() + 100) == std::string("b.npy"));
  }
  CHECK(mapped_file_at(begin) == nullptr);
  CHECK(mapped_file_at(&folder) == nullptr);
}

TEST_CASE("writing what has been cut off a mapped file is an error of that file") {
  Folder folder;
  put(folder / "a", std::string(100000, 'x'));
  const io::File file = io::open_for_reading(folder / "a", "a"),
                 out(open((folder / "b").c_str(), O_CREAT | O_WRONLY, 0600));
  const io::Mapping m = io::Mapping::of_file(file.fd(), 100000, "a.npy");
  fs::resize_file(folder / "a", 10);
  const std::string expected = "a.npy: has become shorter while it was read";
  CHECK(error_of(Error::Kind::input, [&] { io::write_all(out.fd(), m.data(), m.bytes(), "out"); }) ==
        expected);
  CHECK(error_of(Error::Kind::input, [&] { io::write_all_at(out.fd(), m.data(), m.bytes(), 0, "out"); }) ==
        expected);
}

TEST_CASE("memory of one's own grows with what is in it, and releasing it loses nothing") {
  io::Mapping m = io::Mapping::of_memory(4096, io::Mapping::Sharing::own);
  m.data()[4095] = std::byte{7};
  m.grow(64 << 20);
  CHECK(m.bytes() == 64 << 20);
  m.data()[(64 << 20) - 1] = std::byte{9};
  m.release(m.data(), m.bytes());
  CHECK(m.data()[4095] == std::byte{7});
  CHECK(m.data()[(64 << 20) - 1] == std::byte{9});
  CHECK_THROWS_AS(m.grow(INT64_MAX / 2), Error);
}

TEST_CASE("what a descriptor is open on is never guessed") {
  CHECK(error_of(Error::Kind::input, [] { io::size_of_file(-1, "a"); }) == "a: Bad file descriptor");
  CHECK(error_of(Error::Kind::input, [] { io::is_regular(-1, "a"); }) == "a: Bad file descriptor");
}

TEST_CASE("descriptors that do not block are waited for") {
  int ends[2];
  REQUIRE(pipe2(ends, O_NONBLOCK) == 0);
  const std::string bytes(1 << 20, 'x');  // more than a pipe holds
  std::thread writer([&] { io::write_all(ends[1], bytes.data(), 1 << 20, "out"); });
  std::string got(bytes.size(), '\0');
  CHECK(io::read_some(ends[0], got.data(), got.size(), "in") == got.size());
  CHECK(got == bytes);
  writer.join();
  std::FILE* out = fdopen(ends[1], "w");
  std::fputs("first ", out);
  std::thread reader([&] {
    std::string text(6 + bytes.size(), '\0');
    CHECK(io::read_some(ends[0], text.data(), text.size(), "in") == text.size());
    CHECK(text == "first " + bytes);
  });
  write_text(out, bytes);
  reader.join();
  std::fclose(out);
  close(ends[0]);
}
