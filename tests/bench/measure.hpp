// Helpers of the benchmarks: timing against a peak rate, and packed documents.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "bench/limits.hpp"
#include "ejk/array.hpp"

namespace measure {

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Before each time: EJK_BENCH_PAUSE seconds, none by default, in which threads fall asleep and the processor idles, as
// between the calls of a user.
inline void pause() {
  static const char* const words = std::getenv("EJK_BENCH_PAUSE");
  if (words != nullptr) std::this_thread::sleep_for(std::chrono::duration<double>(std::atof(words)));
}

// Times f(), with a probe of the read limit right before each time, so that both see the same machine.
// `bytes`: what f() has to read or write; 0: nothing worth a ratio.
template <class F>
void run(
    benchmark::State& state, std::int64_t bytes, F&& f,
    const std::function<double()>& probe = [] { return bench::read_bandwidth(1); }) {
  std::vector<double> rates, limits, shares;
  for (auto _ : state) {
    const double limit = bytes > 0 ? probe() : 0;
    pause();
    const auto begin = std::chrono::steady_clock::now();
    f();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    state.SetIterationTime(seconds.count());
    if (bytes == 0) continue;
    const double rate = static_cast<double>(bytes) / seconds.count();
    rates.push_back(rate * 1e-9), limits.push_back(limit * 1e-9), shares.push_back(rate / limit);
  }
  if (bytes == 0) return;
  state.counters["GB/s"] = median(rates);
  state.counters["limit GB/s"] = median(limits);
  state.counters["of limit"] = median(shares);
}

// Times f() against the roofline of the same moment: no machine does `flops` operations on such factors
// faster than its best unit multiplies and adds, nor anything before `bytes` have been read. Both rates are
// probed right before each time; reading 1 GiB comes last, so that what f() reads is in no cache.
template <class F>
void against_roofline(benchmark::State& state, ejk::DType dtype, double flops, double bytes, F&& f) {
  std::vector<double> times, peaks, bandwidths, shares;
  for (auto _ : state) {
    peaks.push_back(bench::multiply_add_rate(dtype));
    bandwidths.push_back(bench::read_bandwidth(1));
    pause();
    const auto begin = std::chrono::steady_clock::now();
    f();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    state.SetIterationTime(seconds.count());
    times.push_back(seconds.count());
    shares.push_back(std::max(flops / peaks.back(), bytes / bandwidths.back()) / times.back());
  }
  state.SetLabel(bench::multiply_add_unit(dtype));
  const double time = median(times);
  state.counters["ms"] = time * 1e3;  // the median; the column before it is the mean
  state.counters["GFLOP/s"] = flops / time * 1e-9;
  state.counters["peak GFLOP/s"] = median(peaks) * 1e-9;
  state.counters["read GB/s"] = median(bandwidths) * 1e-9;
  state.counters["of limit"] = median(shares);
}

// Log-normal lengths with a mean near `mean`, the last one cut: documents packed into one sequence.
inline std::shared_ptr<const ejk::ArraySource> packed_documents(std::int64_t tokens, double mean) {
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> length(std::log(mean) - 0.5, 1.0);
  std::vector<std::int64_t> cu{0};
  while (cu.back() < tokens)
    cu.push_back(std::min(tokens, cu.back() + std::max<std::int64_t>(1, std::llround(length(random)))));
  return ejk::make_source(ejk::Array::from<std::int64_t>({static_cast<std::int64_t>(cu.size())}, cu),
                          "cu_seqlens");
}

}  // namespace measure
