// MaskInfo at the sizes people have, with the share of the memory's read bandwidth measured just before.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cmath>
#include <random>

#include "bench/limits.hpp"
#include "ejk/mask_info.hpp"

using namespace ejk;

namespace {

constexpr std::int64_t kMega = std::int64_t{1} << 20;

// Log-normal lengths with a mean near `mean`, the last one cut: documents packed into one sequence.
std::shared_ptr<const ArraySource> packed_documents(std::int64_t tokens, double mean) {
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> length(std::log(mean) - 0.5, 1.0);
  std::vector<std::int64_t> cu{0};
  while (cu.back() < tokens)
    cu.push_back(std::min(tokens, cu.back() + std::max<std::int64_t>(1, std::llround(length(random)))));
  return make_source(Array::from<std::int64_t>({static_cast<std::int64_t>(cu.size())}, cu), "cu_seqlens");
}

Array dense(const Mask& mask) {
  Array all(DType::boolean, {mask.q_length(), mask.kv_length()});
  mask.read(0, mask.q_length(), 0, mask.kv_length(), reinterpret_cast<bool*>(all.data()));
  return all;
}

void run(benchmark::State& state, const std::vector<Mask>& heads, BlockShape block,
         std::int64_t dense_bytes) {
  const double limit = bench::read_bandwidth();
  const auto begin = std::chrono::steady_clock::now();
  for (auto _ : state) benchmark::DoNotOptimize(process_mask(heads, block).block_mask.data());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  if (dense_bytes > 0) {
    const double rate =
        static_cast<double>(dense_bytes) * static_cast<double>(state.iterations()) / seconds.count();
    state.counters["GB/s"] = rate * 1e-9;
    state.counters["read limit GB/s"] = limit * 1e-9;
    state.counters["of limit"] = rate / limit;
  }
}

void causal(benchmark::State& state) {
  const std::int64_t n = state.range(0), block = state.range(1);
  run(state, {causal_mask(n, n)}, {block, block}, 0);
}

void documents(benchmark::State& state) {
  const std::int64_t n = state.range(0), block = state.range(1);
  run(state, {documents_mask(*packed_documents(n, static_cast<double>(state.range(2))))}, {block, block}, 0);
}

void causal_documents(benchmark::State& state) {
  const std::int64_t n = state.range(0), block = state.range(1);
  run(state, {causal_mask(n, n) & documents_mask(*packed_documents(n, static_cast<double>(state.range(2))))},
      {block, block}, 0);
}

void dense_documents(benchmark::State& state) {
  const std::int64_t n = state.range(0);
  const auto source = make_source(dense(documents_mask(*packed_documents(n, 512))), "mask");
  run(state, {array_mask(source)}, {128, 128}, n * n);
}

void dense_random(benchmark::State& state) {
  const std::int64_t n = state.range(0);
  Array all(DType::boolean, {n, n});
  std::mt19937_64 random(1);
  for (auto& eight :
       std::span(reinterpret_cast<std::uint64_t*>(all.data()), static_cast<std::size_t>(n * n / 8)))
    eight = random() & 0x0101010101010101u;
  run(state, {array_mask(make_source(std::move(all), "mask"))}, {128, 128}, n * n);
}

}  // namespace

BENCHMARK(causal)
    ->ArgNames({"n", "block"})
    ->Args({32768, 128})
    ->Args({131072, 128})
    ->Args({kMega, 512})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK(documents)
    ->ArgNames({"n", "block", "mean"})
    ->Args({kMega, 512, 512})
    ->Args({kMega, 512, 8192})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK(causal_documents)
    ->ArgNames({"n", "block", "mean"})
    ->Args({kMega, 512, 512})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK(dense_documents)
    ->ArgNames({"n"})
    ->Arg(8192)
    ->Arg(32768)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK(dense_random)->ArgNames({"n"})->Arg(8192)->Arg(32768)->Unit(benchmark::kMillisecond)->UseRealTime();
