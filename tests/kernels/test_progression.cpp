// Progressions: on every instruction set of this machine those of a plain loop, at every length, alignment
// and boundary of two ranges, and no write outside.
#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "kernels/kernels.hpp"
#include "support/instruction_sets.hpp"

using namespace ejk::kernels;

namespace {

using Numbers = std::vector<std::int64_t>;

template <class F>
void on_every_set(F&& f) {
  for (const Kernels* row : test::instruction_sets()) {
    CAPTURE(row->name);
    f(*row);
    row->stream_fence();
  }
}

// Memory in which element 1 lies anywhere in a cache line, with a guard on either side of what is written.
template <class T>
class Guarded {
 public:
  static constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(T));
  T* prepare(std::int64_t n, std::int64_t lane) {
    memory_.assign(static_cast<std::size_t>(n + 3 * kLine), kGuard);
    auto* first = memory_.data();
    while (reinterpret_cast<std::uintptr_t>(first) % 64 != 0) ++first;
    at_ = first - memory_.data() + kLine + lane;
    n_ = n;
    return memory_.data() + at_;
  }
  bool untouched_around() const {
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(memory_.size()); ++i)
      if ((i < at_ || i >= at_ + n_) && memory_[static_cast<std::size_t>(i)] != kGuard) return false;
    return true;
  }

 private:
  static constexpr T kGuard = 77;
  std::vector<T> memory_;
  std::int64_t at_ = 0, n_ = 0;
};

// Compares elements [begin, end) with what the definition says.
template <class T, class F>
bool right(F* kernel, const Numbers& offsets, const Numbers* firsts, T step, std::int64_t begin,
           std::int64_t end, std::int64_t lane, bool stream) {
  static Guarded<T> memory;
  T* out = memory.prepare(end - begin, lane);
  std::size_t run = 0;
  while (run + 2 < offsets.size() && offsets[run + 1] <= begin) ++run;
  kernel(offsets.data() + run, firsts == nullptr ? nullptr : firsts->data() + run, step, begin, end, stream,
         out);
  for (std::int64_t i = begin; i < end; ++i) {
    while (offsets[run + 1] <= i) ++run;
    const T first = firsts == nullptr ? T{0} : static_cast<T>((*firsts)[run]);
    if (out[i - begin] != static_cast<T>(first + static_cast<T>(i - offsets[run]) * step)) return false;
  }
  return memory.untouched_around();
}

template <class T, class F>
void check_one_run(F* kernel, T step) {
  const Numbers firsts{-5};
  for (std::int64_t n = 0; n <= 300; ++n)
    for (std::int64_t lane = 0; lane < Guarded<T>::kLine; ++lane)
      for (const bool stream : {false, true})
        if (!right<T>(kernel, {0, n + 7}, &firsts, step, 7, n + 7, lane, stream))
          FAIL_CHECK("length " << n << " at lane " << lane << (stream ? ", streamed" : ""));
}

template <class T, class F>
void check_many_runs(F* kernel, T step) {
  std::mt19937 random(5);
  for (const int longest : {0, 1, 3, 20, 100})
    for (int round = 0; round < 60; ++round) {
      Numbers offsets{0}, firsts;
      for (int r = 0; r < 40; ++r) {
        const bool empty = random() % 4 == 0;
        offsets.push_back(offsets.back() + (empty ? 0 : static_cast<std::int64_t>(random()) % (longest + 1)));
        firsts.push_back(static_cast<std::int64_t>(random()) - 1000);
      }
      const std::int64_t all = offsets.back();
      const std::int64_t begin = static_cast<std::int64_t>(random()) % (all + 1);
      const std::int64_t end = begin + static_cast<std::int64_t>(random()) % (all - begin + 1);
      for (std::int64_t lane = 0; lane < Guarded<T>::kLine; ++lane)
        for (const bool stream : {false, true})
          for (const auto& [from, to] : {std::pair{begin, end}, std::pair{std::int64_t{0}, all}})
            for (const Numbers* given :
                 {static_cast<const Numbers*>(&firsts), static_cast<const Numbers*>(nullptr)})
              if (!right<T>(kernel, offsets, given, step, from, to, lane, stream))
                FAIL_CHECK("runs up to " << longest << ", elements " << from << " to " << to << " at lane "
                                         << lane);
    }
}

constexpr std::uint64_t kPair = std::uint64_t{1} << 32;

}  // namespace

TEST_CASE(
    "a progression equals a plain loop at every length and alignment on every instruction set at hand") {
  on_every_set([](const Kernels& row) {
    for (const std::uint32_t step : {0u, 1u}) check_one_run<std::uint32_t>(row.progressions_32, step);
    for (const std::uint64_t step : {std::uint64_t{0}, std::uint64_t{1}, kPair})
      check_one_run<std::uint64_t>(row.progressions_64, step);
  });
}

TEST_CASE("runs of progressions, empty ones among them, meet where a plain loop lets them meet") {
  on_every_set([](const Kernels& row) {
    for (const std::uint32_t step : {0u, 1u}) check_many_runs<std::uint32_t>(row.progressions_32, step);
    for (const std::uint64_t step : {std::uint64_t{0}, std::uint64_t{1}, kPair})
      check_many_runs<std::uint64_t>(row.progressions_64, step);
  });
}
