// MaskInfo at typical sizes, with the fraction of the read bandwidth (memory or mapped file) measured just
// before.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>

#include "bench/limits.hpp"
#include "bench/measure.hpp"
#include "ejk/io.hpp"
#include "ejk/mask_info.hpp"
#include "ejk/sparsity.hpp"

using namespace ejk;

namespace {

constexpr std::int64_t kMega = std::int64_t{1} << 20;

Array dense(const Mask& mask) {
  Array all(DType::boolean, {mask.q_length(), mask.kv_length()});
  mask.read(0, mask.q_length(), 0, mask.kv_length(), reinterpret_cast<bool*>(all.data()));
  return all;
}

void process(benchmark::State& state, const std::vector<Mask>& heads, BlockShape block,
             std::int64_t dense_bytes) {
  measure::run(state, dense_bytes,
               [&] { benchmark::DoNotOptimize(process_mask(heads, block).block_mask.data()); });
}

void causal(benchmark::State& state) {
  const std::int64_t n = state.range(0), block = state.range(1);
  process(state, {causal_mask(n, n)}, {block, block}, 0);
}

void documents(benchmark::State& state) {
  const std::int64_t n = state.range(0), block = state.range(1);
  process(state, {documents_mask(*measure::packed_documents(n, static_cast<double>(state.range(2))))},
          {block, block}, 0);
}

void causal_documents(benchmark::State& state) {
  const std::int64_t n = state.range(0), block = state.range(1);
  process(state,
          {causal_mask(n, n) &
           documents_mask(*measure::packed_documents(n, static_cast<double>(state.range(2))))},
          {block, block}, 0);
}

void dense_documents(benchmark::State& state) {
  const std::int64_t n = state.range(0);
  const auto source = make_source(dense(documents_mask(*measure::packed_documents(n, 512))), "mask");
  process(state, {array_mask(source)}, {128, 128}, n * n);
}

void dense_random(benchmark::State& state) {
  const std::int64_t n = state.range(0);
  Array all(DType::boolean, {n, n});
  std::mt19937_64 random(1);
  for (auto& eight :
       std::span(reinterpret_cast<std::uint64_t*>(all.data()), static_cast<std::size_t>(n * n / 8)))
    eight = random() & 0x0101010101010101u;
  process(state, {array_mask(make_source(std::move(all), "mask"))}, {128, 128}, n * n);
}

// Block sizes side by side.
void sparsity_documents(benchmark::State& state) {
  const std::int64_t n = state.range(0);
  const Mask mask = causal_mask(n, n) & documents_mask(*measure::packed_documents(n, 512));
  const std::vector<BlockShape> blocks{{64, 64},   {64, 128},  {128, 64},   {128, 128},
                                       {256, 256}, {512, 512}, {512, 1024}, {1024, 1024}};
  measure::run(state, 0, [&] { benchmark::DoNotOptimize(measure_sparsity({mask}, blocks).least); });
}

// Anonymous memory of this process now, in MiB: what is its own, mapped files not among it.
double own_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == "RssAnon:" && status >> word) return std::stod(word) / 1024;
  return 0;
}

// A mask in an .npy file that the page cache holds, opened anew each time.
void file_documents(benchmark::State& state) {
  const std::int64_t n = state.range(0);
  const auto path = std::filesystem::temp_directory_path() / "ejk_bench_mask.npy";
  {
    const Mask mask = causal_mask(n, n) & documents_mask(*measure::packed_documents(n, 512));
    write_array(parse_reference(path.string()), {"mask", make_source(dense(mask), "mask")});
  }
  const double before = own_memory();
  double grown = 0;
  measure::run(
      state, n * n,
      [&] {
        const MaskInfo info = process_mask({array_mask(open_array(path.string()))}, {128, 128});
        grown = std::max(grown, own_memory() - before);
      },
      [&] { return bench::mapped_read_bandwidth(path.string()); });
  state.counters["own MiB"] = grown;
  std::filesystem::remove(path);
}

}  // namespace

BENCHMARK(file_documents)->ArgNames({"n"})->Arg(32768)->Unit(benchmark::kMillisecond)->UseManualTime();
BENCHMARK(causal)
    ->ArgNames({"n", "block"})
    ->Args({32768, 128})
    ->Args({131072, 128})
    ->Args({kMega, 512})
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime();
BENCHMARK(documents)
    ->ArgNames({"n", "block", "mean"})
    ->Args({kMega, 512, 512})
    ->Args({kMega, 512, 8192})
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime();
BENCHMARK(causal_documents)
    ->ArgNames({"n", "block", "mean"})
    ->Args({kMega, 512, 512})
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime();
BENCHMARK(dense_documents)
    ->ArgNames({"n"})
    ->Arg(8192)
    ->Arg(32768)
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime();
BENCHMARK(dense_random)
    ->ArgNames({"n"})
    ->Arg(8192)
    ->Arg(32768)
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime();
BENCHMARK(sparsity_documents)->ArgNames({"n"})->Arg(131072)->Unit(benchmark::kMillisecond)->UseManualTime();
