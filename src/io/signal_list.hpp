// A list that signal handlers may read: slots are pushed at the head and reused, never freed.
// tests: tests/io/test_file.cpp, tests/io/test_atomic_file.cpp
#pragma once

#include <atomic>
#include <mutex>
#include <utility>

namespace ejk::io {

template <class T>
class SignalList {
 public:
  struct Slot {
    T value;
    std::atomic<bool> is_live = false;
    Slot* next = nullptr;  // of all
    Slot* next_unused = nullptr;
  };

  Slot* add(T value) {
    const std::lock_guard lock(mutex_);
    Slot* slot = unused_;
    if (slot != nullptr) {
      unused_ = slot->next_unused;
    } else {
      slot = new Slot;
      slot->next = all_.load();
      all_ = slot;
    }
    slot->value = std::move(value);
    slot->is_live = true;
    return slot;
  }

  void remove(Slot* slot) {
    const std::lock_guard lock(mutex_);
    slot->is_live = false;
    slot->next_unused = std::exchange(unused_, slot);
  }

  /// Async-signal-safe if `f(value)` is.
  template <class F>
  void for_each(F&& f) const {
    for (const Slot* slot = all_.load(); slot != nullptr; slot = slot->next)
      if (slot->is_live) f(slot->value);
  }

 private:
  std::atomic<Slot*> all_ = nullptr;
  Slot* unused_ = nullptr;
  std::mutex mutex_;
};

}  // namespace ejk::io
