// tests: tests/core/test_parallel.cpp
#include "core/parallel.hpp"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <vector>

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
  first = first.substr(0, first.find(','));
  while (first.starts_with(' ')) first.remove_prefix(1);
  while (first.ends_with(' ')) first.remove_suffix(1);
  std::int64_t count = 0;
  const auto [end, error] = std::from_chars(first.data(), first.data() + first.size(), count);
  if (error != std::errc{} || end != first.data() + first.size() || count < 1) return std::nullopt;
  return static_cast<int>(std::min<std::int64_t>(count, std::numeric_limits<int>::max()));
}

int threads() { return most_threads().load(std::memory_order_relaxed); }

void set_threads(int count) { most_threads().store(std::max(count, 1), std::memory_order_relaxed); }

namespace core {

namespace {

// Waking a thread takes up to half as long.
std::atomic<double> least_work{1e5};

thread_local bool in_team = false;

// A child process of fork has none of the helpers, and perhaps a locked mutex: it works alone.
std::atomic<bool> is_child{false};

class Team {
 public:
  static Team& the() {
    static Team& team = *new Team;  // never destroyed: its threads wait until the process ends
    return team;
  }

  void run(int helpers, const std::function<void()>& member) {
    Call call{member, helpers, 0};
    {
      const std::scoped_lock lock(mutex_);
      while (helpers_ < helpers && start_helper()) ++helpers_;
      if (helpers_ > 0) calls_.push_back(&call);
    }
    for (int i = 0; i < helpers; ++i) wake_.notify_one();
    member();
    std::unique_lock lock(mutex_);
    std::erase(calls_, &call);
    ended_.wait(lock, [&] { return call.inside == 0; });
  }

 private:
  struct Call {
    const std::function<void()>& member;
    int wanted;  // helpers that may still come
    int inside;  // those that work on it
  };

  Team() {
    pthread_atfork(nullptr, nullptr, [] { is_child = true; });
  }

  // Helpers leave signals to the threads that the program made. Those of faults (a mapped file that shrinks)
  // belong to the thread that has them.
  bool start_helper() {
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (const int fault : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) sigdelset(&blocked, fault);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    bool started = true;
    try {
      std::thread([this] { help(); }).detach();
    } catch (...) {  // a limit of threads, or no memory for a stack
      started = false;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started;
  }

  [[noreturn]] void help() {
    in_team = true;
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return !calls_.empty(); });
      Call& call = *calls_.front();
      ++call.inside;
      if (--call.wanted == 0) calls_.erase(calls_.begin());
      lock.unlock();
      call.member();
      lock.lock();
      if (--call.inside == 0) ended_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, ended_;
  std::vector<Call*> calls_;  // that want helpers, the oldest first
  int helpers_ = 0;
};

}  // namespace

double set_least_work(double nanoseconds) { return least_work.exchange(nanoseconds); }

int threads_for(std::int64_t steps, double work) {
  const double least = least_work.load(std::memory_order_relaxed);
  const double worth = std::min(least > 0 ? work / least : 0x1p62, static_cast<double>(steps));
  return static_cast<int>(std::clamp(worth, 1.0, static_cast<double>(threads())));
}

void run_team(int threads, const std::function<void()>& member) {
  if (threads <= 1 || in_team || is_child.load(std::memory_order_relaxed)) return member();
  in_team = true;
  const struct Leave {
    ~Leave() { in_team = false; }
  } leave;
  Team::the().run(threads - 1, member);
}

}  // namespace core

}  // namespace ejk
