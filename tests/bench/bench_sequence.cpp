// Ids of packed tokens: in allocated memory, as a fraction of the fill bandwidth, and from file to file, as a
// fraction of writing a new file.
#include <benchmark/benchmark.h>

#include <filesystem>
#include <string>

#include "bench/measure.hpp"
#include "ejk/io.hpp"
#include "ejk/sequence.hpp"

using namespace ejk;

namespace {

enum Kind { position, sequence, token };

// cu_seqlens in 32 bits, mean length 500.
Array offsets_of(std::int64_t tokens) {
  const Array wide = read_all(*measure::packed_documents(tokens, 500));
  Array cu(DType::int32, wide.shape());
  for (std::int64_t i = 0; i < wide.size(); ++i)
    cu.elements<std::int32_t>()[static_cast<std::size_t>(i)] =
        static_cast<std::int32_t>(wide.elements<std::int64_t>()[static_cast<std::size_t>(i)]);
  return cu;
}

std::shared_ptr<const ArraySource> ids_of(const ArraySource& cu, std::int64_t kind) {
  return kind == position   ? prepare_position_ids(cu)
         : kind == sequence ? prepare_sequence_ids(cu)
                            : prepare_token_indices(cu);
}

void ids_into_memory(benchmark::State& state) {
  const auto cu = make_source(offsets_of(state.range(1)), "cu_seqlens");
  Array out = read_all(*ids_of(*cu, state.range(0)));  // touched
  measure::run(
      state, out.bytes(),
      [&] {
        const auto ids = ids_of(*cu, state.range(0));
        ids->read(Shape(ids->shape().size(), 0), ids->shape(), out.data());
      },
      [] { return bench::fill_bandwidth(1); });
}

void ids_file_to_file(benchmark::State& state) {
  const auto folder = std::filesystem::temp_directory_path();
  const std::string in = folder / "ejk_bench_cu.npy", out = folder / "ejk_bench_ids.npy",
                    plain = folder / "ejk_bench_plain.npy";
  write_array(parse_reference(in), {"cu", make_source(offsets_of(state.range(1)), "cu")});
  const std::int64_t bytes = byte_count(ids_of(*open_array(in), state.range(0))->shape(), DType::int32);
  measure::run(
      state, bytes,
      [&] {
        write_array(parse_reference(out), {"ids", ids_of(*open_array(in), state.range(0))});
      },
      [&] {
        std::filesystem::remove(out);  // or both files would be there at once
        return bench::new_file_bandwidth(plain, bytes);
      });
  for (const std::string& path : {in, out}) std::filesystem::remove(path);
}

}  // namespace

BENCHMARK(ids_into_memory)
    ->ArgNames({"kind", "tokens"})
    ->ArgsProduct({{position, sequence, token}, {10'000'000, 100'000'000}})
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime();
BENCHMARK(ids_file_to_file)
    ->ArgNames({"kind", "tokens"})
    ->ArgsProduct({{position, token}, {100'000'000}})
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime();
