// Progress of parallel work.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>

namespace ejk::core {

/// Adds up the work done; calls `report`, unless it is empty, from any thread but one at a time.
class Progress {
 public:
  using Report = std::function<void(std::int64_t done, std::int64_t all)>;
  Progress(const Report& report, std::int64_t all) : report_(report), all_(all) {}

  void add(std::int64_t more) {
    if (!report_) return;
    const std::scoped_lock lock(mutex_);
    report_(done_ += more, all_);
  }

 private:
  const Report& report_;
  std::int64_t all_, done_ = 0;
  std::mutex mutex_;
};

}  // namespace ejk::core
