// Encoding and decoding of block-scaled arrays in memory: bytes read and written, as a fraction of the read
// bandwidth. Numbers are decoded into allocated memory; codes are made in new memory,
// whose page faults take as long as decoding would.
#include <benchmark/benchmark.h>

#include <random>

#include "bench/measure.hpp"
#include "ejk/array_math.hpp"
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
  const QuantizedTypes types = quantized_types(*source, scheme.settings);
  const auto bytes = [](const ArrayType& type) { return element_count(type.shape) * size_of(type.dtype); };
  state.SetLabel(std::string(scheme.name) + " of " + std::string(name_of(x.dtype())));
  measure::run(state, x.bytes() + bytes(types.values) + bytes(types.scales),
               [&] { benchmark::DoNotOptimize(quantize_array(*source, scheme.settings).noise); });
}

void decode(benchmark::State& state) {
  const Scheme& scheme = kSchemes[state.range(0)];
  const Quantized made = quantize_array(*make_source(numbers(DType::float32).view()), scheme.settings);
  QuantizedArrays arrays{scheme.settings.scheme, make_source(made.values.view()),
                         make_source(made.scales.view())};
  if (made.global_scale)
    arrays.global_scale = make_source(Array::from<float>({}, std::span(&*made.global_scale, 1)));
  DecodeSettings settings;
  settings.element = made.settings.element;
  const auto decoded = decoded_array(arrays, settings);
  state.SetLabel(scheme.name);
  Array to = read_all(*decoded);
  const Shape begin(to.shape().size(), 0);
  measure::run(state, made.values.bytes() + made.scales.bytes() + to.bytes(),
               [&] { decoded->read(begin, to.shape(), to.data()); });
}

}  // namespace

BENCHMARK(encode)
    ->ArgNames({"scheme", "bf16"})
    ->ArgsProduct({{0, 1, 2, 3, 4}, {0, 1}})
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime();
BENCHMARK(decode)->ArgNames({"scheme"})->DenseRange(0, 4)->Unit(benchmark::kMillisecond)->UseManualTime();
