// GPUs as reported by the driver's tool in a child process; none if it is absent, fails or hangs.
// tests: tests/settings/test_gpu.cpp
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <thread>

#include "ejk/program/machine.hpp"
#include "ejk/program/text.hpp"
#include "settings/text_file.hpp"

namespace ejk {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kLongestAnswer = std::size_t{1} << 20;

struct Answer {
  GpuQuery::Outcome outcome = GpuQuery::Outcome::not_run;
  std::string text;
};

// Starts the program with its stdout in `write_end`; 0 when that fails.
pid_t start(const std::vector<std::string>& words, int write_end) {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, write_end, STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  // A group of its own, so that what it starts ends with it.
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t child = 0;
  if (posix_spawnp(&child, arguments[0], &files, &attributes, arguments.data(), environ) != 0) child = 0;
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return child;
}

// Everything up to its end; false when that did not come in time.
bool read_until(int fd, Clock::time_point deadline, std::string& text) {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0 || text.size() > kLongestAnswer) return false;
    pollfd wait{fd, POLLIN, 0};
    const int ready = poll(&wait, 1, static_cast<int>(std::min<std::int64_t>(left, 1000)));
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    if (ready < 0) return false;
    std::array<char, 4096> buffer{};
    const ssize_t got = read(fd, buffer.data(), buffer.size());
    if (got == 0) return true;
    if (got < 0 && errno != EINTR) return false;
    if (got > 0) text.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

Answer ask(const std::vector<std::string>& words, std::chrono::milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return {};
  const pid_t child = start(words, ends[1]);
  close(ends[1]);
  Answer answer;
  bool in_time = child > 0 && read_until(ends[0], deadline, answer.text);
  close(ends[0]);
  if (child <= 0) return {};

  int status = 0;
  pid_t ended = 0;
  while (in_time && (ended = waitpid(child, &status, WNOHANG)) == 0) {
    in_time = Clock::now() < deadline;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (!in_time) {
    kill(-child, SIGKILL);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return {};
  }
  // A caller that ignores SIGCHLD gets no status; then the answer speaks for itself.
  const bool good = ended < 0 ? !answer.text.empty() : WIFEXITED(status) && WEXITSTATUS(status) == 0;
  constexpr int not_found = 127;  // of a shell, or of the spawned process before it became the program
  if (ended > 0 && WIFEXITED(status) && WEXITSTATUS(status) == not_found) return {};
  answer.outcome = good ? GpuQuery::Outcome::done : GpuQuery::Outcome::failed;
  return answer;
}

}  // namespace

GpuQuery query_gpus(const std::string& program, std::chrono::milliseconds patience) {
  const Answer answer = ask(
      {program, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader,nounits"}, patience);
  GpuQuery query;
  query.outcome = answer.outcome;
  if (query.outcome != GpuQuery::Outcome::done) return query;
  for (const std::string& line :
       settings::split(answer.text, '\n')) {  // name, driver, MiB; a name may hold commas
    const auto last = line.rfind(',');
    const auto middle =
        last == std::string::npos || last == 0 ? std::string::npos : line.rfind(',', last - 1);
    if (middle == std::string::npos) continue;
    Gpu gpu;
    gpu.name = trimmed(std::string_view(line).substr(0, middle));
    gpu.driver_version = trimmed(std::string_view(line).substr(middle + 1, last - middle - 1));
    constexpr std::int64_t mib = std::int64_t{1} << 20;
    const auto memory = parse_integer(trimmed(std::string_view(line).substr(last + 1)));
    if (memory && *memory >= 0 && *memory < INT64_MAX / mib) gpu.memory_bytes = *memory * mib;
    query.gpus.push_back(std::move(gpu));
  }
  return query;
}

}  // namespace ejk
