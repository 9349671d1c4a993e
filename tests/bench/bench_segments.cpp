// Masks to segment ids, as a fraction of the read bandwidth, and ids to a mask in a file, as a fraction of
// writing a new file.
#include <benchmark/benchmark.h>

#include <filesystem>
#include <string>

#include "bench/measure.hpp"
#include "ejk/io.hpp"
#include "ejk/segments.hpp"
#include "ejk/sequence.hpp"

using namespace ejk;

namespace {

std::shared_ptr<const ArraySource> ids_of(std::int64_t n) {
  const auto ids = prepare_sequence_ids(*measure::packed_documents(n, 512));
  Array counted = read_all(*ids);
  for (std::int64_t& id : counted.elements<std::int64_t>()) ++id;
  return make_source(std::move(counted).reshaped({1, n}), "ids");
}

void mask_file_to_ids(benchmark::State& state) {
  const std::int64_t n = state.range(0);
  const std::string path = std::filesystem::temp_directory_path() / "ejk_bench_mask.npy";
  write_array(parse_reference(path), {"mask", segment_ids_to_mask(*ids_of(n)).attention_mask});
  measure::run(
      state, n * n, [&] { benchmark::DoNotOptimize(mask_to_segment_ids(open_array(path)).segments); },
      [&] { return bench::mapped_read_bandwidth(path); });
  std::filesystem::remove(path);
}

void ids_to_mask_file(benchmark::State& state) {
  const std::int64_t n = state.range(0);
  const auto folder = std::filesystem::temp_directory_path();
  const std::string path = folder / "ejk_bench_mask.npy", plain = folder / "ejk_bench_plain.npy";
  const auto ids = ids_of(n);
  measure::run(
      state, n * n,
      [&] {
        write_array(parse_reference(path), {"mask", segment_ids_to_mask(*ids).attention_mask});
      },
      [&] {
        std::filesystem::remove(path);  // or both files would be there at once
        return bench::new_file_bandwidth(plain, n * n);
      });
  std::filesystem::remove(path);
}

}  // namespace

BENCHMARK(mask_file_to_ids)
    ->ArgNames({"n"})
    ->Arg(8192)
    ->Arg(32768)
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime();
BENCHMARK(ids_to_mask_file)
    ->ArgNames({"n"})
    ->Arg(8192)
    ->Arg(32768)
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime();
