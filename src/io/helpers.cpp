// A task queue and its threads. Cost: some ten microseconds a task or thread start.
// tests: tests/io/test_helpers.cpp
#include "io/helpers.hpp"

#include <csignal>
#include <utility>

namespace ejk::io {

namespace {

// Address space may be limited, and decoding takes little of a stack.
constexpr std::size_t kStackBytes = std::size_t{1} << 20;

}  // namespace

HelperThreads::HelperThreads(int wanted) {
  if (wanted <= 0) return;
  threads_.reserve(static_cast<std::size_t>(wanted));
  pthread_attr_t how;
  if (pthread_attr_init(&how) != 0) return;
  pthread_attr_setstacksize(&how, kStackBytes);
  sigset_t all, before;
  sigfillset(&all);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&all, fault);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  pthread_t thread{};
  while (count() < wanted && pthread_create(&thread, &how, run, this) == 0) threads_.push_back(thread);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&how);
}

HelperThreads::~HelperThreads() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  some_.notify_all();
  for (const pthread_t thread : threads_) pthread_join(thread, nullptr);
}

void HelperThreads::add(std::function<void()> task) {
  if (threads_.empty()) return task();
  {
    const std::scoped_lock lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  some_.notify_one();
}

void HelperThreads::do_next(std::unique_lock<std::mutex>& lock) {
  {
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    ++running_;
    lock.unlock();
    task();
  }
  lock.lock();
  if (--running_ == 0 && tasks_.empty()) done_.notify_all();
}

void HelperThreads::wait() {
  std::unique_lock lock(mutex_);
  while (!tasks_.empty()) do_next(lock);
  done_.wait(lock, [&] { return running_ == 0 && tasks_.empty(); });
}

void* HelperThreads::run(void* self) noexcept {
  HelperThreads& all = *static_cast<HelperThreads*>(self);
  std::unique_lock lock(all.mutex_);
  while (true) {
    all.some_.wait(lock, [&] { return all.ending_ || !all.tasks_.empty(); });
    if (all.ending_) return nullptr;
    all.do_next(lock);
  }
}

}  // namespace ejk::io
