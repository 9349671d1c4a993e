// Attention as a share of the roofline measured just before: operations count for the pairs alone that the
// mask allows, but all pairs of a mask of random elements, of which no block can be left out. Forward results
// go into memory that is there already.
#include <benchmark/benchmark.h>

#include <string>

#include "bench/attention_work.hpp"
#include "bench/measure.hpp"

using namespace ejk;

namespace {

double operations(const AttentionWork& work, const std::string& mask, bool backward) {
  const double one = work.forward_flop + (backward ? work.backward_flop : 0);
  return mask == "dense" && work.allowed_pairs > 0
             ? one * static_cast<double>(work.dense_pairs) / static_cast<double>(work.allowed_pairs)
             : one;
}

void run(benchmark::State& state, const work::AttentionCase& c, bool backward) {
  const work::AttentionInputs in(c);
  const AttentionWork work = attention_work(in.q.view(), in.k.view(), in.v.view(), in.options);
  const AttentionShape shape = attention_shape(in.q.view(), in.k.view(), in.v.view(), in.options);
  Array out(c.dtype, shape.out), lse(shape.arithmetic, shape.lse);
  measure::against_roofline(state, c.dtype, operations(work, c.mask, backward), 0, [&] {
    if (backward)
      attention_grad(in.q.view(), in.k.view(), in.v.view(), in.dout.view(), in.options);
    else
      attention_into(in.q.view(), in.k.view(), in.v.view(), in.options, c.dtype, out.data(), lse.data());
  });
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
  return true;
}();

}  // namespace
