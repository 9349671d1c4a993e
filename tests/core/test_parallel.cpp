#include "core/parallel.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/shell.hpp"
#include "support/threads.hpp"

namespace {

using namespace ejk;
using namespace std::chrono_literals;

constexpr double kMuch = 1e9;  // nanoseconds: worth any number of threads

}  // namespace

TEST_CASE("threads are as many as have work, and no more than are set") {
  const Threads set(8);
  CHECK(core::threads_for(1000, 0) == 8);  // tests share out any work
  CHECK(core::set_least_work(1e5) == 0);
  CHECK(core::threads_for(1000, 0) == 1);
  CHECK(core::threads_for(1000, 50'000) == 1);
  CHECK(core::threads_for(1000, 400'000) == 4);
  CHECK(core::threads_for(1000, kMuch) == 8);
  CHECK(core::threads_for(3, kMuch) == 3);
  CHECK(core::threads_for(0, kMuch) == 1);
  set_threads(0);
  CHECK(threads() == 1);
}

TEST_CASE("every step of a parallel loop is done once, whatever the number of threads") {
  for (const int count : {1, 2, 7, 40}) {
    CAPTURE(count);
    const Threads set(count);
    for (const std::int64_t n : {0, 1, 2, 1000}) {
      std::vector<std::atomic<int>> done(static_cast<std::size_t>(n));
      core::parallel_for(n, kMuch, [&](std::int64_t i) { ++done[static_cast<std::size_t>(i)]; });
      CHECK(std::all_of(done.begin(), done.end(), [](const auto& d) { return d == 1; }));

      std::int64_t sum = 0;
      core::parallel_reduce(
          n, threads(), [] { return std::int64_t{0}; }, [](std::int64_t& part, std::int64_t i) { part += i; },
          [&](std::int64_t part) { sum += part; });
      CHECK(sum == n * (n - 1) / 2);
    }
  }
}

TEST_CASE("a loop with much to do is shared out, one with little stays on the calling thread") {
  const Threads set(4);
  const auto threads_of = [](double work) {
    std::mutex mutex;
    std::set<std::thread::id> seen;
    core::parallel_for(40, work, [&](std::int64_t) {
      std::this_thread::sleep_for(2ms);
      const std::scoped_lock lock(mutex);
      seen.insert(std::this_thread::get_id());
    });
    return seen.size();
  };
  core::set_least_work(1e5);
  CHECK(threads_of(kMuch) > 1);
  CHECK(threads_of(kMuch) <= 4);
  CHECK(threads_of(1000) == 1);
}

TEST_CASE("a loop within a loop is done by its thread, and loops of several callers go on at once") {
  const Threads set(3);
  std::atomic<int> steps{0};
  const auto nested = [&] {
    core::parallel_for(5, kMuch, [&](std::int64_t) {
      const auto mine = std::this_thread::get_id();
      core::parallel_for(7, kMuch, [&](std::int64_t) { steps += std::this_thread::get_id() == mine; });
    });
  };
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c)
    callers.emplace_back([&] {
      for (int i = 0; i < 50; ++i) nested();
    });
  for (std::thread& caller : callers) caller.join();
  CHECK(steps == 4 * 50 * 5 * 7);
}

TEST_CASE("of several exceptions the one of the smallest index comes out, also one of making a part") {
  for (const int count : {1, 5}) {
    const Threads set(count);
    for (int repeat = 0; repeat < 50; ++repeat)
      CHECK_THROWS_WITH(core::parallel_for(100, kMuch,
                                           [](std::int64_t i) {
                                             if (i >= 3) throw std::runtime_error(std::to_string(i));
                                           }),
                        "3");
    CHECK_THROWS_WITH(core::parallel_reduce(
                          100, threads(), []() -> int { throw std::runtime_error("no part"); },
                          [](int, std::int64_t) {}, [](int) {}),
                      "no part");
  }
}

TEST_CASE("parts are joined when all steps are done") {
  const Threads set(6);
  for (int repeat = 0; repeat < 100; ++repeat) {
    std::atomic<int> done{0};
    bool late = false;
    core::parallel_reduce(
        64, threads(), [] { return 0; }, [&](int, std::int64_t) { ++done; },
        [&](int) { late = late || done != 64; });
    CHECK_FALSE(late);
  }
}

TEST_CASE("the child of a fork works alone") {
  const Threads set(4);
  const auto sum = [] {
    std::atomic<std::int64_t> all{0};
    core::parallel_for(100, kMuch, [&](std::int64_t i) { all += i; });
    return all.load();
  };
  CHECK(sum() == 4950);  // there are threads now
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // threads that are not there are not waited for
    const bool before = sum() == 4950;
    release_threads();
    _exit(before && sum() == 4950 ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  CHECK(status == 0);
}

// The limit of processes does not hold for root.
TEST_CASE("where no thread can be started, the calling thread does all the work") {
  const std::string other = getuid() == 0 ? "setpriv --reuid 65534 --regid 65534 --clear-groups " : "";
  const std::string program = "\"" EJK_PROGRAM "\"";
  if (test::shell(other + "prlimit --nproc=9999 " + program + " --version 2>&1").status != 0) {
    MESSAGE("skipped: another user cannot run the program here");
    return;
  }
  // Large enough for a communicator.
  const std::string work =
      " mask-info --mask 'causal & ~local(left=3,right=0)' --shape 16384x16384 --block 128x128 --json";
  const auto alone = test::shell(other + "env ASAN_OPTIONS=detect_leaks=0 prlimit --nproc=1:1 " + program +
                                 work + " --threads 4 2>&1");
  if (alone.text.starts_with("qemu: ")) {
    MESSAGE("skipped: the emulator itself starts threads");
    return;
  }
  CHECK(alone.status == 0);
  CHECK(alone.text == test::shell(program + work + " --threads 4 2>&1").text);
}
