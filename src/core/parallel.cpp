// Thread teams on OpenMP, with a choice of size and a fallback if threads cannot start (libgomp would exit).
// tests: tests/core/test_parallel.cpp
#include "core/parallel.hpp"

#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <thread>
#include <vector>

#include "ejk/program/text.hpp"

namespace ejk {

namespace {

int cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(CPU_COUNT(&set), 1);
  return std::max(static_cast<int>(std::thread::hardware_concurrency()), 1);
}

std::atomic<int>& most_threads() {
  static std::atomic<int> most{threads_of_environment().value_or(cores())};
  return most;
}

}  // namespace

std::optional<int> threads_of_environment() {
  const char* variable = std::getenv("OMP_NUM_THREADS");
  std::string_view first = variable != nullptr ? variable : "";
  first = trimmed(first.substr(0, first.find(',')));
  std::int64_t count = 0;
  const auto [end, error] = std::from_chars(first.data(), first.data() + first.size(), count);
  if (error != std::errc{} || end != first.data() + first.size() || count < 1) return std::nullopt;
  return static_cast<int>(std::min<std::int64_t>(count, std::numeric_limits<int>::max()));
}

int threads() { return most_threads().load(std::memory_order_relaxed); }

void set_threads(int count) { most_threads().store(std::max(count, 1), std::memory_order_relaxed); }

namespace core {

namespace {

// On a busy machine a team waits for its last thread; shorter work would mostly wait.
std::atomic<double> least_work{2e5};

thread_local bool in_communicator = false;

// A child process of fork has none of its parent's threads, and OpenMP does not know: it works alone.
std::atomic<bool> is_child{false};

// The threads of this process that the system still counts; 0 where it does not say.
std::int64_t counted_threads() {
  struct stat tasks {};
  return stat("/proc/self/task", &tasks) == 0 ? static_cast<std::int64_t>(tasks.st_nlink) - 2 : 0;
}

// What this thread knows of its teams. OpenMP keeps the threads of the last one for the next.
struct Teams {
  int last = 1;                                // threads of the last one, this one among them
  int tried = 1;                               // threads that could be started
  int most = std::numeric_limits<int>::max();  // more were refused
  bool starting = false;
};
thread_local Teams teams;

// OpenMP ends the process if a thread cannot start, so missing threads are first started by hand, all at
// once, and ended. Returns how many started, at most `wanted`.
int threads_that_start(int wanted) {
  const std::int64_t before = counted_threads();
  std::mutex mutex;
  std::condition_variable all_there;
  bool go = false;
  std::vector<std::thread> tried;
  try {
    tried.reserve(static_cast<std::size_t>(wanted));
    while (std::ssize(tried) < wanted)
      tried.emplace_back([&] {
        std::unique_lock lock(mutex);
        all_there.wait(lock, [&] { return go; });
      });
  } catch (...) {  // a limit of threads, or no memory for a stack
  }
  {
    const std::scoped_lock lock(mutex);
    go = true;
  }
  all_there.notify_all();
  for (std::thread& thread : tried) thread.join();
  // A joined thread may count against a limit for some microseconds.
  constexpr int kMostLooks = 100;
  for (int i = 0; i < kMostLooks && counted_threads() > before; ++i) sched_yield();
  return static_cast<int>(tried.size());
}

// The size of this thread's team. A size that once started is not tested again, which would cost as much.
int comm_size(int wanted) {
  wanted = std::min(wanted, teams.most);
  if (wanted > teams.tried) {
    teams.tried = teams.last + threads_that_start(wanted - teams.last);
    if (teams.tried < wanted) teams.most = wanted = teams.tried;
  }
  return teams.last = wanted;
}

}  // namespace

double set_least_work(double nanoseconds) { return least_work.exchange(nanoseconds); }

int threads_for(std::int64_t steps, double work) {
  const double least = least_work.load(std::memory_order_relaxed);
  const double worth = std::min(least > 0 ? work / least : 0x1p62, static_cast<double>(steps));
  return static_cast<int>(std::clamp(worth, 1.0, static_cast<double>(threads())));
}

void run_threads(int threads, const std::function<void()>& member) {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { is_child = true; });
  static_cast<void>(registered);
  if (threads <= 1 || in_communicator || omp_in_parallel() != 0 || is_child.load(std::memory_order_relaxed))
    return member();
  const int size = comm_size(threads);
  if (size <= 1) return member();
  teams.starting = true;
#pragma omp parallel num_threads(size)
  {
    teams.starting = false;
    in_communicator = true;
    member();
    in_communicator = false;
  }
}

}  // namespace core

void release_threads() {
  const bool has_threads = core::teams.last > 1 && !core::is_child.load(std::memory_order_relaxed);
  if (has_threads && omp_pause_resource_all(omp_pause_soft) != 0) return;
  core::teams.last = 1;
  core::teams.most = std::numeric_limits<int>::max();
}

bool is_starting_threads() { return core::teams.starting; }

}  // namespace ejk
