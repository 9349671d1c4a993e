// Encoding and decoding of block-scaled arrays in memory: bytes read and written, as a fraction of the read
// bandwidth, into memory that is allocated already: page faults of new memory take as long as decoding.
// Products of decoded weights beside those of float32.
#include <benchmark/benchmark.h>

#include <random>

#include "bench/measure.hpp"
#include "ejk/array_math.hpp"
#include "ejk/attention.hpp"
#include "ejk/grouped_matmul.hpp"
#include "ejk/quantize.hpp"

using namespace ejk;

namespace {

constexpr std::int64_t kRows = 1 << 14, kColumns = 1 << 12;  // 256 MiB of float32

const Array& numbers(DType dtype) {
  static const Array floats = [] {
    Array x(DType::float32, {kRows, kColumns});
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float& element : x.elements<float>()) element = normal(random);
    return x;
  }();
  static const Array halves = read_all(*convert_array(make_source(floats.view()), DType::bfloat16));
  return dtype == DType::float32 ? floats : halves;
}

struct Scheme {
  const char* name;
  QuantizeSettings settings;
};

const Scheme kSchemes[] = {
    {"fp8", {.scheme = QuantizationScheme::fp8}},
    {"fp8_1x128", {.scheme = QuantizationScheme::fp8, .block = ScaleBlock{1, 128}}},
    {"mx_e4m3", {.scheme = QuantizationScheme::mx}},
    {"mx_e2m1", {.scheme = QuantizationScheme::mx, .element = ElementFormat::e2m1}},
    {"nvfp4", {.scheme = QuantizationScheme::nvfp4}},
};

void encode(benchmark::State& state) {
  const Scheme& scheme = kSchemes[state.range(0)];
  const Array& x = numbers(state.range(1) == 0 ? DType::float32 : DType::bfloat16);
  const auto source = make_source(x.view());
  Quantized made = quantize_array(*source, scheme.settings);
  // A scale of all elements takes a pass before.
  const bool has_pass = made.global_scale || made.scales.size() == 1;
  state.SetLabel(std::string(scheme.name) + " of " + std::string(name_of(x.dtype())));
  measure::run(state, x.bytes() * (has_pass ? 2 : 1) + made.values.bytes() + made.scales.bytes(),
               [&] { made = quantize_array(*source, scheme.settings, {}, std::move(made)); });
}

std::shared_ptr<const ArraySource> decoded_of(const Quantized& made) {
  QuantizedArrays arrays{made.settings.scheme, make_source(made.values.view()),
                         make_source(made.scales.view())};
  if (made.global_scale)
    arrays.global_scale = make_source(Array::from<float>({}, std::span(&*made.global_scale, 1)));
  DecodeSettings settings;
  settings.element = made.settings.element;
  return decoded_array(arrays, settings);
}

void decode(benchmark::State& state) {
  const Scheme& scheme = kSchemes[state.range(0)];
  const Quantized made = quantize_array(*make_source(numbers(DType::float32).view()), scheme.settings);
  const auto decoded = decoded_of(made);
  state.SetLabel(scheme.name);
  Array to = read_all(*decoded);
  const Shape begin(to.shape().size(), 0);
  measure::run(state, made.values.bytes() + made.scales.bytes() + to.bytes(),
               [&] { decoded->read(begin, to.shape(), to.data()); });
}

// Times decoded(), and plain() with the same operands as float32 in memory, in turns.
template <class Plain, class Decoded>
void beside_float32(benchmark::State& state, const Plain& plain, const Decoded& decoded) {
  std::vector<double> times, shares;
  const auto timed = [](const auto& run) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  for (auto _ : state) {
    const double without = timed(plain);
    times.push_back(timed(decoded));
    state.SetIterationTime(times.back());
    shares.push_back(without / times.back());
  }
  state.SetLabel(kSchemes[state.range(0)].name);
  state.counters["ms"] = measure::median(times) * 1e3;
  state.counters["of float32"] = measure::median(shares);
}

// Of 8 experts of 2,048 x 4,096; the contraction is the first axis of their weights, or the last.
void decoded_product(benchmark::State& state) {
  constexpr std::int64_t kExperts = 8, kK = 2048, kN = 4096;
  const std::int64_t rows = state.range(1);
  GroupedMatmulSettings settings;
  settings.transpose_rhs = state.range(2) != 0;
  const Shape shape = settings.transpose_rhs ? Shape{kExperts, kN, kK} : Shape{kExperts, kK, kN};
  const ArrayView weights{numbers(DType::float32).data(), DType::float32, shape};
  const ArrayView tokens{numbers(DType::float32).data(), DType::float32, {kExperts * rows, kK}};
  const Quantized made = quantize_array(*make_source(weights), kSchemes[state.range(0)].settings);
  const auto decoded = decoded_of(made);
  const std::vector<std::int64_t> sizes(kExperts, rows);
  const GroupedMatmulPlan plan({tokens.dtype, tokens.shape}, {weights.dtype, shape}, IntegerArray(sizes),
                               settings);
  Array out(DType::float32, plan.out().shape);
  const ArrayBox all{{0, 0}, plan.out().shape};
  beside_float32(
      state, [&] { plan.run(tokens, weights, std::nullopt, out.mutable_view()); },
      [&] { plan.run(all, tokens, *decoded, std::nullopt, out.mutable_view()); });
}

// Keys and values of 2 sequences of 16,384 tokens, 8 heads of 128 with 4 query heads each.
void decoded_cache(benchmark::State& state) {
  const std::int64_t queries = state.range(1);
  const ArrayType q{DType::float32, {2, 32, queries, 128}}, cache{DType::float32, {2, 8, 16384, 128}};
  const std::byte* const data = numbers(DType::float32).data();
  const ArrayView keys{data, DType::float32, cache.shape};
  const Quantized made = quantize_array(*make_source(keys), kSchemes[state.range(0)].settings);
  const auto k = decoded_of(made), v = decoded_of(made);
  AttentionSettings settings;
  settings.layout = AttentionLayout::bhsd;
  const AttentionPlan plan({.q = q, .k = cache, .v = cache}, settings);
  std::vector<Array> arrays;
  for (const PlannedArray& planned : plan.results())
    arrays.emplace_back(planned.type.dtype, planned.type.shape);
  std::vector<MutableArrayView> results;
  for (Array& array : arrays) results.push_back(array.mutable_view());
  AttentionArrays of_queries;
  of_queries.q = ArrayView{data, DType::float32, q.shape};
  AttentionArrays all = of_queries;
  all.k = keys;
  all.v = ArrayView{data + element_count(cache.shape) * 4, DType::float32, cache.shape};
  beside_float32(
      state, [&] { plan.run(all, results); }, [&] { plan.run(of_queries, *k, *v, results); });
}

}  // namespace

BENCHMARK(encode)
    ->ArgNames({"scheme", "bf16"})
    ->ArgsProduct({{0, 1, 2, 3, 4}, {0, 1}})
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime();
BENCHMARK(decode)->ArgNames({"scheme"})->DenseRange(0, 4)->Unit(benchmark::kMillisecond)->UseManualTime();
BENCHMARK(decoded_product)
    ->ArgNames({"scheme", "rows", "transposed"})
    ->ArgsProduct({{0, 1, 2, 3, 4}, {1, 8, 64}, {0, 1}})
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime();
BENCHMARK(decoded_cache)
    ->ArgNames({"scheme", "queries"})
    ->ArgsProduct({{0, 2, 3, 4}, {1, 4}})
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime();
