// What plans count beforehand is compared with the limit here; nothing measures what a run really takes.
#include "budget.hpp"

#include <fmt/format.h>

#include "ejk/error.hpp"
#include "ejk/machine.hpp"
#include "ejk/text.hpp"

namespace ejk::app {

Budget::Budget(std::int64_t asked, std::int64_t sharers)
    : bytes_(asked > 0 ? asked : memory_limit() / sharers / 10 * 9), is_default_(asked == 0) {}

void Budget::require(std::int64_t peak_bytes, const std::string& why) const {
  if (peak_bytes <= bytes_) return;
  throw Error(Error::Kind::budget, fmt::format("{}about {} of memory needed, {} allowed", why,
                                               format_bytes(peak_bytes), format_bytes(bytes_)))
      .hint(is_default_ ? "--max-memory sets the limit, by default nine tenths of the available memory"
                        : "--max-memory sets the limit");
}

}  // namespace ejk::app
