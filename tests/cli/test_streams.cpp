// Standard streams that do not block: text, reports and arrays wait for their reader.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "io/support.hpp"
#include "support/shell.hpp"

namespace {

constexpr int kPipeHolds = 4096;

struct Slowly {
  int status = -1;
  std::string text;
};

// What a command line of ejk writes to one of its streams, a pipe that does not block and whose reader takes
// its time.
Slowly read_slowly(const std::string& words, int stream) {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  REQUIRE(fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
  REQUIRE(fcntl(ends[1], F_SETPIPE_SZ, kPipeHolds) == kPipeHolds);
  const std::string command =
      fmt::format("exec '{}' {} {}>/dev/null", EJK_PROGRAM, words, stream == STDOUT_FILENO ? 2 : 1);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], stream);
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  close(ends[1]);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  Slowly got;
  char piece[1 << 14];
  for (ssize_t n = 0; (n = read(ends[0], piece, sizeof piece)) > 0;)
    got.text.append(piece, static_cast<std::size_t>(n));
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  got.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return got;
}

}  // namespace

TEST_CASE("a stream that does not block is waited for") {
  const ejk::test::Folder folder;
  ejk::test::put(folder / "x.json", "{}");
  std::string files, heads = " --shape 200x90x90";
  for (int i = 0; i < 200; ++i) files += " " + (folder / "x.json"), heads += " --mask causal";
  const std::pair<std::string, int> rows[] = {
      {"help mask-info", STDOUT_FILENO},
      {"hash" + files, STDOUT_FILENO},
      {"hash --json" + files, STDOUT_FILENO},
      {"mask --mask 'chunked(3)' --shape 90x90", STDOUT_FILENO},
      {"mask --mask 'chunked(3)' --shape 90x90 -o -", STDOUT_FILENO},
      {"mask-info --json --field data_next -o - --block 9x9" + heads, STDERR_FILENO},
  };
  for (const auto& row : rows) {
    const std::string& words = row.first;
    const int stream = row.second;
    CAPTURE(words);
    const ejk::test::Printed whole = ejk::test::shell(fmt::format(
        "'{}' {} {}", EJK_PROGRAM, words, stream == STDOUT_FILENO ? "2>/dev/null" : "2>&1 >/dev/null"));
    CHECK(whole.text.size() > kPipeHolds);
    const Slowly got = read_slowly(words, stream);
    CHECK(got.status == whole.status);
    CHECK((got.text == whole.text));
  }
}
