// A team whose members are threads of the test: what a function does in processes can be seen in one.
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

#include "ejk/team.hpp"

namespace ejk::test {

/// Runs f(team) in `size` threads, each with a member of one team of that size. Where members throw, the first
/// that did not only hear of another's failure is thrown on.
void run_team(std::int64_t size, const std::function<void(Team& team)>& f);

/// What f(team) gives in each of them, by ranks.
template <class F>
auto results_of_team(std::int64_t size, F&& f) {
  std::vector<decltype(f(alone()))> results(static_cast<std::size_t>(size));
  run_team(size, [&](Team& team) { results[static_cast<std::size_t>(team.rank())] = f(team); });
  return results;
}

}  // namespace ejk::test
