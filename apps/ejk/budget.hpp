// The memory that a run may take.
#pragma once

#include <cstdint>
#include <string>

namespace ejk::app {

class Budget {
 public:
  /// `asked` bytes; 0: nine tenths of what this process may use, divided by those that share it.
  explicit Budget(std::int64_t asked, std::int64_t sharers = 1);

  std::int64_t bytes() const { return bytes_; }

  /// Throws Error{budget} when the work would take more; `why` stands in front of that ("a.npy holds 3 GiB: ").
  void require(std::int64_t peak_bytes, const std::string& why = "") const;

 private:
  std::int64_t bytes_;
  bool is_default_;
};

}  // namespace ejk::app
