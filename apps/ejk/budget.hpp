// The memory limit of a run. Plans count their memory beforehand; actual use is not measured.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "ejk/error.hpp"
#include "ejk/program/machine.hpp"
#include "ejk/program/text.hpp"

namespace ejk::app {

class Budget {
 public:
  /// The `requested` bytes; 0: nine tenths of the available memory, divided by the processes that share it.
  explicit Budget(std::int64_t requested, std::int64_t sharers = 1)
      : bytes_(requested > 0 ? requested : memory_limit() / sharers / 10 * 9), is_default_(requested == 0) {}

  std::int64_t bytes() const { return bytes_; }

  /// Throws Error{budget} if the work needs more; `why` is a prefix of its message ("a.npy holds 3 GiB: ").
  void require(std::int64_t peak_bytes, const std::string& why = "") const {
    if (peak_bytes <= bytes_) return;
    throw Error(Error::Kind::budget, fmt::format("{}about {} of memory needed, {} allowed", why,
                                                 format_bytes(peak_bytes), format_bytes(bytes_)))
        .hint(is_default_ ? "--max-memory sets the limit, by default nine tenths of the available memory"
                          : "--max-memory sets the limit");
  }

 private:
  std::int64_t bytes_;
  bool is_default_;
};

}  // namespace ejk::app
