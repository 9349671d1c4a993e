// Attention as a fraction of the roofline measured just before. Operations are counted for unmasked pairs
// only, but for all pairs of a random mask, which has no empty block. Results go into allocated memory.
#include <benchmark/benchmark.h>

#include <string>

#include "bench/attention_work.hpp"
#include "bench/measure.hpp"

using namespace ejk;

namespace {

double operations(const AttentionWork& work, const std::string& mask) {
  const double one = work.forward_flop + work.backward_flop.value_or(0);
  return mask == "dense" && work.allowed_pairs > 0
             ? one * static_cast<double>(work.dense_pairs) / static_cast<double>(work.allowed_pairs)
             : one;
}

void run(benchmark::State& state, const work::AttentionCase& c, bool backward) {
  const work::AttentionInputs in(c);
  AttentionArrays arrays{in.q.view(), in.k.view(), in.v.view()};
  if (backward) arrays.dout = in.dout.view();
  const AttentionPlan counted(types_of(arrays), in.options);
  const work::AttentionResults results(counted);
  // A plan of its own each time: reading the masks is part of the work.
  measure::against_roofline(state, c.dtype, operations(counted.work(), c.mask), 0,
                            [&] { AttentionPlan(types_of(arrays), in.options).run(arrays, results.views); });
}

// One step of generation: `queries` queries over all keys, with nothing to do but to read them once.
void decode(benchmark::State& state, std::int64_t batch, std::int64_t heads, std::int64_t kv_heads,
            std::int64_t queries, std::int64_t keys, AttentionLayout layout, DType dtype) {
  constexpr std::int64_t kSize = 128;
  const auto shape = [&](std::int64_t of, std::int64_t length) {
    return layout == AttentionLayout::bhsd ? Shape{batch, of, length, kSize}
                                           : Shape{batch, length, of, kSize};
  };
  const Array q = work::normal(dtype, shape(heads, queries)), k = work::normal(dtype, shape(kv_heads, keys)),
              v = work::normal(dtype, k.shape());
  AttentionSettings settings;
  settings.layout = layout;
  const AttentionArrays arrays{q.view(), k.view(), v.view()};
  const AttentionPlan plan(types_of(arrays), settings);
  const work::AttentionResults results(plan);
  measure::run(state, byte_count(k.shape(), dtype) * 2,
               [&] { AttentionPlan(types_of(arrays), settings).run(arrays, results.views); });
}

void add_decode(const char* name, std::int64_t batch, std::int64_t heads, std::int64_t kv_heads,
                std::int64_t queries, std::int64_t keys, AttentionLayout layout = AttentionLayout::bhsd) {
  for (const DType dtype : {DType::float32, DType::bfloat16})
    benchmark::RegisterBenchmark((std::string("decode/") + name + "/" + std::string(name_of(dtype))).c_str(),
                                 decode, batch, heads, kv_heads, queries, keys, layout, dtype)
        ->Iterations(9)
        ->Unit(benchmark::kMillisecond)
        ->UseManualTime();
}

void add(std::int64_t length, std::int64_t size, const char* mask, bool backward) {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    const std::string name = std::string(backward ? "attention_grad" : "attention") + "/S" +
                             std::to_string(length) + "/D" + std::to_string(size) + "/" + mask + "/" +
                             std::string(name_of(dtype));
    work::AttentionCase c;
    c.length = length, c.size = size, c.mask = mask, c.dtype = dtype;
    benchmark::RegisterBenchmark(name.c_str(), run, c, backward)
        ->Iterations(length > 8192 && std::string(mask) == "causal" ? 3 : 7)
        ->Unit(benchmark::kMillisecond)
        ->UseManualTime();
  }
}

[[maybe_unused]] const bool registered = [] {
  add(4096, 64, "none", false);
  add(16384, 64, "causal", false);
  add(4096, 128, "causal", false);
  add(16384, 64, "window", false);
  add(16384, 64, "docs", false);
  add(4096, 64, "dense", false);
  add(4096, 64, "causal", true);
  add_decode("B8/H32of8/Q1/K8192", 8, 32, 8, 1, 8192);
  add_decode("B8/H32of8/Q4/K8192", 8, 32, 8, 4, 8192);
  add_decode("B8/H32of8/Q1/K8192/bshd", 8, 32, 8, 1, 8192, AttentionLayout::bshd);
  add_decode("B8/H32of8/Q4/K8192/bshd", 8, 32, 8, 4, 8192, AttentionLayout::bshd);
  add_decode("B4/H128of1/Q1/K8192", 4, 128, 1, 1, 8192);
  add_decode("B4/H64of8/Q8/K8192", 4, 64, 8, 8, 8192);
  add_decode("B1/H1/Q1/K1M", 1, 1, 1, 1, 1 << 20);
  add_decode("B1/H1/Q4/K1M", 1, 1, 1, 4, 1 << 20);
  return true;
}();

}  // namespace
