// Comparison and conversion of 1 GiB, as a fraction of the bandwidth of reading the same bytes (memory,
// mapped files) and of writing a new file.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "bench/measure.hpp"
#include "ejk/array_math.hpp"
#include "ejk/compare.hpp"
#include "ejk/io.hpp"

using namespace ejk;

namespace {

constexpr std::int64_t kBytes = std::int64_t{1} << 30;

enum Data { same, near };

// Two arrays of kBytes bytes each: the same, or every element off by one in the last place.
std::pair<Array, Array> two_arrays(DType dtype, std::int64_t data) {
  const std::int64_t n = kBytes / size_of(dtype);
  std::vector<double> pattern(1 << 16);
  for (std::size_t i = 0; i < pattern.size(); ++i)
    pattern[i] = 1 + static_cast<double>(i * 40503 % 65536) / 1000;
  const Array few = read_all(*convert_array(make_source(Array::from<double>({1 << 16}, pattern)), dtype));
  std::pair<Array, Array> both{Array(dtype, {n}), Array(dtype, {n})};
  for (Array* array : {&both.first, &both.second})
    for (std::int64_t at = 0; at < kBytes; at += few.bytes())
      std::memcpy(array->data() + at, few.data(), static_cast<std::size_t>(few.bytes()));
  if (data == near)
    for (std::int64_t at = 0; at < kBytes; at += size_of(dtype)) both.first.data()[at] ^= std::byte{1};
  return both;
}

void compare_memory(benchmark::State& state) {
  const auto [a, e] = two_arrays(static_cast<DType>(state.range(0)), state.range(1));
  const auto x = make_source(a.view()), y = make_source(e.view());
  measure::run(state, 2 * kBytes, [&] {
    if (!compare_arrays(*x, *y, {0.02, 0}).close) state.SkipWithError("not close");
  });
}

void compare_files(benchmark::State& state) {
  const auto folder = std::filesystem::temp_directory_path();
  const std::string a = folder / "ejk_bench_a.npy", e = folder / "ejk_bench_e.npy";
  {
    const auto both = two_arrays(static_cast<DType>(state.range(0)), near);
    write_array(parse_reference(a), {"a", make_source(both.first.view())});
    write_array(parse_reference(e), {"e", make_source(both.second.view())});
    ::sync();  // or the disk is at work on them meanwhile
  }
  measure::run(
      state, 2 * kBytes,
      [&] {
        if (!compare_arrays(*open_array(a), *open_array(e), {0.02, 0}).close)
          state.SkipWithError("not close");
      },
      [&] { return bench::mapped_read_bandwidth(a); });
  for (const std::string& path : {a, e}) std::filesystem::remove(path);
}

// `to` gets 1 GiB, of which the file's header is little.
void convert_files(benchmark::State& state) {
  const auto from = static_cast<DType>(state.range(0)), to = static_cast<DType>(state.range(1));
  const auto folder = std::filesystem::temp_directory_path();
  const std::string in = folder / "ejk_bench_in.npy", out = folder / "ejk_bench_out.npy",
                    plain = folder / "ejk_bench_plain.npy";
  const std::int64_t n = kBytes / size_of(to);
  write_array(parse_reference(in), {"x", make_source(Array(from, {n}))});
  ::sync();  // or the disk is at work on it meanwhile
  measure::run(
      state, kBytes,
      [&] {
        write_array(parse_reference(out), {"x", convert_array(open_array(in), to)});
      },
      [&] {
        std::filesystem::remove(out);  // a new file; what there was is freed outside of the time
        return bench::new_file_bandwidth(plain, kBytes);
      });
  for (const std::string& path : {in, out, plain}) std::filesystem::remove(path);
}

constexpr auto type(DType dtype) { return static_cast<std::int64_t>(dtype); }

}  // namespace

BENCHMARK(compare_memory)
    ->ArgNames({"dtype", "near"})
    ->ArgsProduct({{type(DType::float32), type(DType::bfloat16), type(DType::int32)}, {same}})
    ->ArgsProduct({{type(DType::float32), type(DType::float64), type(DType::bfloat16), type(DType::float16)},
                   {near}})
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime();
BENCHMARK(compare_files)
    ->ArgNames({"dtype"})
    ->Args({type(DType::float32)})
    ->Args({type(DType::float64)})
    ->Args({type(DType::bfloat16)})
    ->Args({type(DType::float16)})
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime();
BENCHMARK(convert_files)
    ->ArgNames({"from", "to"})
    ->Args({type(DType::float32), type(DType::float32)})
    ->Args({type(DType::float64), type(DType::float32)})
    ->Args({type(DType::bfloat16), type(DType::float32)})
    ->Args({type(DType::float32), type(DType::float16)})
    ->Args({type(DType::float32), type(DType::bfloat16)})
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime();
