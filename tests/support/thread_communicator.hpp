// A communicator whose ranks are threads of the test.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ejk/communicator.hpp"

namespace ejk::test {

/// Runs f(comm) in `size` threads, each with a rank of one communicator of that size. Where ranks throw, the
/// first that did not only hear of another's failure is thrown on.
void run_ranks(std::int64_t size, const std::function<void(Communicator& comm)>& f);

/// What f(comm) gives in each of them, by ranks.
template <class F>
auto results_of_ranks(std::int64_t size, F&& f) {
  std::vector<decltype(f(single_process()))> results(static_cast<std::size_t>(size));
  run_ranks(size, [&](Communicator& comm) { results[static_cast<std::size_t>(comm.rank())] = f(comm); });
  return results;
}

}  // namespace ejk::test
