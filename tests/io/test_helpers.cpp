// Helper threads of one owner, in this process and in a forked one.
#include "io/helpers.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "core/parallel.hpp"

using ejk::io::HelperThreads;

namespace {

// Tasks that end only when as many are under way at once; false where they would never be.
bool run_at_once(HelperThreads& helpers, int wanted) {
  std::mutex mutex;
  std::condition_variable all_there;
  int there = 0;
  std::atomic<int> met = 0;
  for (int i = 0; i < wanted; ++i)
    helpers.add([&] {
      std::unique_lock lock(mutex);
      ++there;
      all_there.notify_all();
      met += all_there.wait_for(lock, std::chrono::seconds(60), [&] { return there == wanted; });
    });
  helpers.wait();
  return met == wanted;
}

}  // namespace

TEST_CASE("helpers and who waits for them do every task once, any number of times") {
  for (const int threads : {0, 1, 3}) {
    HelperThreads helpers(threads);
    CHECK(helpers.count() == threads);
    for (const int tasks : {0, 1, 1000}) {
      std::atomic<int> done = 0;
      std::vector<int> times(static_cast<std::size_t>(tasks));
      for (int& time : times)
        helpers.add([&] {
          ++time;
          ++done;
        });
      helpers.wait();
      CHECK(done == tasks);
      CHECK(times == std::vector<int>(times.size(), 1));
    }
    if (threads > 0) CHECK(run_at_once(helpers, threads + 1));
  }
}

TEST_CASE("what helpers have not begun when they end is not waited for") {
  std::atomic<int> done = 0;
  {
    HelperThreads helpers(1);
    for (int i = 0; i < 10; ++i) helpers.add([&] { ++done; });
  }
  CHECK(done <= 10);
}

TEST_CASE("helpers start in a process forked from one whose threads have worked") {
  const double before = ejk::core::set_least_work(0);
  std::atomic<int> sum = 0;
  ejk::core::parallel_for(100, 1e9, [&](std::int64_t) { ++sum; });
  ejk::core::set_least_work(before);
  CHECK(sum == 100);
  const pid_t child = fork();
  if (child == 0) {
    HelperThreads helpers(2);
    _exit(helpers.count() == 2 && run_at_once(helpers, 3) ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
