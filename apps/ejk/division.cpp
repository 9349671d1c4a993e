// Model of the time of a command on several ranks. A rank's time is that of its operations, its bytes of
// inputs and results, and its messages, in turn, at the rates of a single rank; the slowest rank determines
// the total. Start-up and synchronization are not modelled.
//
// tests: tests/app/test_division.cpp
#include "division.hpp"

#include <cmath>
#include <cstring>
#include <span>

#include "ejk/grouped_matmul.hpp"
#include "ejk/program/machine.hpp"
#include "ejk/threads.hpp"

namespace ejk::app {

namespace {

constexpr double kLeastSeconds = 0.1;    // of a measurement
constexpr double kLeastModelled = 0.01;  // about the time of start-up and synchronization

template <class F>
double runs_per_second(F&& f) {
  f();  // allocates pages and starts threads
  const Timer timer;
  double runs = 0;
  do f(), ++runs;
  while (timer.seconds() < kLeastSeconds);
  return runs / timer.seconds();
}

double operations_per_second() {
  constexpr std::int64_t kLength = 512;
  const Array lhs(DType::float32, {kLength, kLength}), rhs(DType::float32, {1, kLength, kLength});
  const std::vector<std::int64_t> sizes{kLength};
  return 2.0 * kLength * kLength * kLength * runs_per_second([&] {
           static_cast<void>(grouped_matmul(lhs.view(), rhs.view(), std::span(sizes)));
         });
}

double bytes_per_second() {
  constexpr std::int64_t kBytes = std::int64_t{64} << 20;
  const Array from(DType::uint8, {kBytes});
  Array to(DType::uint8, {kBytes});
  return kBytes * runs_per_second([&] { std::memcpy(to.data(), from.data(), kBytes); });
}

struct Rates {
  double cost, bytes;
};

double seconds_of(const RankWork& share, const Rates& rates) {
  const std::int64_t moved = share.read_bytes + share.sent_bytes + share.written_bytes;
  return share.cost / rates.cost + static_cast<double>(moved) / rates.bytes;
}

double seconds_of(const std::vector<RankWork>& shares, const Rates& rates) {
  double most = 0;
  for (const RankWork& share : shares) most = std::max(most, seconds_of(share, rates));
  return most;
}

}  // namespace

Report describe_division(Communicator& comm, const Division& division, CostUnit unit) {
  Report report;
  const std::vector<RankWork> shares = division(comm.size());
  double all = 0;
  for (const RankWork& share : shares) all += share.cost;
  Table ranks{"division",
              "work of each rank",
              {{"rank", "rank"},
               {"share", "of the work", Unit::share},
               {"read", "reads", Unit::bytes},
               {"sent", "sends", Unit::bytes},
               {"written", "writes", Unit::bytes},
               {"peak", "peak memory, about", Unit::bytes}},
              {},
              64};
  for (std::size_t r = 0; r < shares.size(); ++r)
    ranks.rows.push_back({static_cast<std::int64_t>(r), all > 0 ? shares[r].cost / all : 0,
                          shares[r].read_bytes, shares[r].sent_bytes, shares[r].written_bytes,
                          shares[r].peak_bytes});
  report.add("ranks", "ranks", comm.size(), Unit::count).add(std::move(ranks));
  if (!comm.is_first()) return report;  // the other ranks are idle: the rates are those of one

  const double bytes = bytes_per_second();
  const Rates rates{unit == CostUnit::bytes ? bytes : operations_per_second(), bytes};
  release_threads();
  const double single_s = seconds_of(division(1), rates);
  Table model{
      "model",
      "a model of more ranks",
      {{"ranks", "ranks"}, {"time", "time", Unit::seconds}, {"efficiency", "efficiency", Unit::share}},
      {}};
  for (std::int64_t size = 1; size <= 1024; size *= 2) {
    const double time = seconds_of(division(size), rates);
    if (time < kLeastModelled) break;
    // More digits than the model is good for would look like a difference from 100 %.
    const double efficiency = time > 0 ? single_s / time / static_cast<double>(size) : 1;
    model.rows.push_back({size, time, std::round(1000 * efficiency) / 1000});
  }
  report.add(std::move(model))
      .add(Remark{
          "The times are a model: the work of the busiest rank at the rates of one rank, measured now. Start-up and "
          "synchronization add some 10 ms; shorter times are omitted."});
  return report;
}

}  // namespace ejk::app
