// Worker process: any failure of the child is an Error in the parent.
#include "io/worker.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <new>

#include "io/file.hpp"
#include "io/support.hpp"

using namespace ejk;
using namespace ejk::test;
using io::Message;
using io::Worker;

TEST_CASE("messages come out as they were put in, and damaged ones are refused") {
  Message m;
  m.put(-5).put(std::string_view("a\0b", 3)).put(Shape{1, 2, 3}).put("");
  Message out(m.bytes());
  CHECK(out.integer() == -5);
  CHECK(out.text() == std::string("a\0b", 3));
  CHECK(out.shape() == Shape{1, 2, 3});
  CHECK(out.text().empty());
  CHECK_THROWS_AS(out.integer(), Error);
  for (std::size_t n = 0; n < m.bytes().size(); ++n) {
    Message cut(m.bytes().substr(0, n));
    CHECK_THROWS_AS((cut.integer(), cut.text(), cut.shape(), cut.text()), Error);
  }
  CHECK_THROWS_AS(Message(Message().put(INT64_MAX).bytes()).shape(), Error);
  CHECK_THROWS_AS(Message(Message().put(-1).bytes()).text(), Error);
}

TEST_CASE(
    "requests are answered, data passes through the shared memory, and errors keep their kind and hint") {
  Worker worker(
      [](Message& request, std::span<std::byte> buffer) {
        const std::int64_t n = request.integer();
        if (n == 0) throw std::move(Error(Error::Kind::output, "no").hint("do"));
        if (n == 1) throw Error(Error::Kind::input, "no", Error::Code::unsupported);
        buffer[static_cast<std::size_t>(n)] = std::byte{42};
        return Message().put(n + 1);
      },
      {.library = "the library"});
  CHECK(worker.call(Message().put(5)).integer() == 6);
  CHECK(worker.buffer()[5] == std::byte{42});
  CHECK(error_of(Error::Kind::output, [&] { worker.call(Message().put(0)); }) == "no\nhint: do");
  try {
    worker.call(Message().put(1));
    FAIL("no error was thrown");
  } catch (const Error& error) {
    CHECK(error.code() == Error::Code::unsupported);
  }
  CHECK(worker.call(Message().put(7)).integer() == 8);
}

namespace {

volatile bool always = true;

// Never ends: the stack does.
// NOLINTNEXTLINE(misc-no-recursion)
int deeper(int n) {
  volatile char room[4096];
  room[0] = static_cast<char>(n);
  return always ? deeper(n + 1) + room[0] : 0;
}

}  // namespace

TEST_CASE("a child that crashes, exits or runs out of stack is an input error, again and again") {
  const std::function<Message(Message&, std::span<std::byte>)> serve = [](Message& request,
                                                                          std::span<std::byte>) -> Message {
    switch (request.integer()) {
      case 0:
        std::raise(SIGSEGV);
        break;
      case 1:
        std::abort();
      case 2:
        _exit(0);
      case 3:
        return Message().put(deeper(0));
      case 4:
        std::raise(SIGPROF);
        break;
      default:
        break;
    }
    return {};
  };
  for (const std::int64_t way : {0, 1, 2, 3, 4}) {
    Worker worker(serve, {.library = "the library"});
    const char* why = way == 4 ? "the library came to no end on it in 60 s"
                               : "the library crashed on it: the file is damaged";
    CHECK(contains(error_of(Error::Kind::input, [&] { worker.call(Message().put(way)); }), why));
    CHECK(contains(error_of(Error::Kind::input, [&] { worker.call(Message().put(9)); }), why));
  }
}

TEST_CASE("a child that is killed is no fault of the file") {
  Worker worker(
      [](Message&, std::span<std::byte>) -> Message {
        std::raise(SIGKILL);
        return {};
      },
      {.library = "the library"});
  for (int call = 0; call < 2; ++call)
    CHECK(contains(error_of(Error::Kind::budget, [&] { worker.call({}); }),
                   "the process of the library was killed"));
}

TEST_CASE("a process that is forked from the one that has the child leaves it alone") {
  Worker worker([](Message& request, std::span<std::byte>) { return Message().put(request.integer() + 1); },
                {.library = "the library"});
  CHECK(worker.call(Message().put(1)).integer() == 2);
  const pid_t copy = fork();
  if (copy == 0) {
    bool refused = false;
    try {
      worker.call(Message().put(1));
    } catch (const Error& error) {
      refused = error.kind() == Error::Kind::budget;
    }
    worker.~Worker();
    _exit(refused ? 0 : 1);
  }
  int status = 1;
  waitpid(copy, &status, 0);
  CHECK(status == 0);
  CHECK(worker.call(Message().put(2)).integer() == 3);
}

TEST_CASE("the child's memory is limited") {
// A sanitizer's allocator ends the process instead; qemu-user keeps limits of memory to itself.
#if !defined(__SANITIZE_ADDRESS__) && !defined(EJK_EMULATED)
  Worker worker(
      [](Message& request, std::span<std::byte>) {
        io::allow_memory(std::int64_t{64} << 20);
        const std::vector<char> memory(static_cast<std::size_t>(request.integer()));
        return Message().put(static_cast<std::int64_t>(memory.size()));
      },
      {.library = "the library"});
  CHECK(worker.call(Message().put(1 << 20)).integer() == 1 << 20);
  CHECK(contains(error_of(Error::Kind::input, [&] { worker.call(Message().put(256 << 20)); }),
                 "takes more memory"));
#endif
}

TEST_CASE("the child holds no descriptor of the parent's") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  Worker worker([](Message&, std::span<std::byte>) { return Message(); }, {.library = "the library"});
  worker.call({});
  close(ends[1]);
  char byte = 0;
  CHECK(read(ends[0], &byte, 1) == 0);  // would wait for ever if the child had the other end
  close(ends[0]);
}

TEST_CASE("a child that does not start is not waited for without end, and one that cannot start says why") {
  const Worker::Serve nothing = [](Message&, std::span<std::byte>) { return Message(); };
  Worker stuck(nothing, {.library = "the library", .start = [] { pause(); }, .start_seconds = 1});
  CHECK(error_of(Error::Kind::budget, [&] { stuck.call({}); }) ==
        "the library did not start within 1 s in a process of its own");
  Worker failing(nothing, {.library = "the library", .start = [] { throw Error(Error::Kind::input, "no"); }});
  CHECK(error_of(Error::Kind::input, [&] { failing.call({}); }) == "no");
}

TEST_CASE("the child has the file that it was given") {
  Folder folder;
  put(folder / "a", "0123456789");
  const io::File file = io::open_for_reading(folder / "a", "a");
  Worker worker(
      [](Message&, std::span<std::byte>) {
        char bytes[3] = {};
        io::read_all_at(Worker::kFile, bytes, 3, 4, "a");
        return Message().put(std::string_view(bytes, 3));
      },
      {.library = "the library", .file = file.fd()});
  CHECK(worker.call({}).text() == "456");
}

#ifndef __SANITIZE_ADDRESS__  // whose checks need descriptors
TEST_CASE("where the system has no process, that is what is said") {
  rlimit old{};
  getrlimit(RLIMIT_NOFILE, &old);
  const rlimit none{3, old.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  const std::string why = error_of(Error::Kind::budget, [&] {
    Worker([](Message&, std::span<std::byte>) { return Message(); }, {.library = "the library"});
  });
  setrlimit(RLIMIT_NOFILE, &old);
  CHECK(why == "no process for the library: Too many open files");
}
#endif

TEST_CASE("a child ends with its parent, also in the middle of a request") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t parent = fork();
  if (parent == 0) {
    Worker worker(
        [](Message&, std::span<std::byte>) {
          while (always) {
          }
          return Message();
        },
        {.library = "the library", .file = ends[1]});  // open as long as the child lives
    close(ends[1]);
    alarm(1);
    worker.call({});
    _exit(0);
  }
  close(ends[1]);
  pollfd ended{ends[0], POLLIN, 0};
  CHECK(poll(&ended, 1, 20000) == 1);
  close(ends[0]);
  CHECK(waitpid(parent, nullptr, 0) == parent);
}
