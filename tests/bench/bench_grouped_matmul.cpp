// Grouped products of typical and of awkward sizes of expert layers, as a fraction of the roofline measured
// just before. Results have the dtype of the factors and go into allocated memory.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/measure.hpp"
#include "bench/work.hpp"
#include "ejk/grouped_matmul.hpp"

using namespace ejk;

namespace {

struct Work {
  const char* name;
  std::int64_t m, k, n;
  std::vector<std::int64_t> sizes;  // their sum is m
  std::vector<DType> dtypes;
};

// m in parts as the weights are to one another; the largest takes what rounding leaves.
std::vector<std::int64_t> parts(std::int64_t m, const std::vector<double>& weights) {
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::int64_t> sizes;
  for (const double weight : weights)
    sizes.push_back(static_cast<std::int64_t>(std::floor(weight / all * static_cast<double>(m))));
  *std::max_element(sizes.begin(), sizes.end()) +=
      m - std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  return sizes;
}

std::vector<Work> works() {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<double> zipf(64), uneven(8), half(128), four(4);
  for (std::size_t rank = 0; rank < zipf.size(); ++rank) zipf[rank] = 1 / static_cast<double>(rank + 1);
  std::shuffle(zipf.begin(), zipf.end(), random);
  for (double& weight : uneven) weight = 0.5 + uniform(random);
  for (double& weight : four) weight = 0.5 + uniform(random);
  for (std::size_t i = 0; i < half.size(); i += 2) half[i] = 0.1 + uniform(random);
  std::shuffle(half.begin(), half.end(), random);
  const std::vector<DType> usual = {DType::float32, DType::bfloat16};
  return {
      {"moe8",
       4096,
       1024,
       1024,
       std::vector<std::int64_t>(8, 512),
       {DType::float32, DType::bfloat16, DType::float64}},
      {"zipf64", 8192, 2048, 1408, parts(8192, zipf), usual},
      {"few32", 1024, 2048, 1408, std::vector<std::int64_t>(32, 32), usual},
      {"big8", 2048, 4096, 4096, parts(2048, uneven), usual},
      {"empty128", 512, 512, 512, parts(512, half), usual},
      {"tiny3", 300, 64, 32, {100, 150, 50}, usual},
      {"mid4", 512, 512, 512, parts(512, four), {DType::float16}},
  };
}

double product(std::initializer_list<std::int64_t> sizes) {
  double all = 1;
  for (const std::int64_t size : sizes) all *= static_cast<double>(size);
  return all;
}

// Planning is a part of the work: a caller with new group sizes has to plan anew.
template <class Settings>
void run(const Array& lhs, const Array& rhs, const ArraySource& sizes, const Settings& settings, Array& out) {
  const GroupedMatmulPlan plan(type_of(lhs.view()), type_of(rhs.view()), sizes, settings);
  plan.run(lhs.view(), rhs.view(), std::nullopt, out.mutable_view());
}

void forward(benchmark::State& state, const Work& work, DType dtype) {
  const std::int64_t groups = static_cast<std::int64_t>(work.sizes.size());
  const auto needed =
      std::count_if(work.sizes.begin(), work.sizes.end(), [](std::int64_t size) { return size > 0; });
  const Array lhs = work::normal(dtype, {work.m, work.k}),
              rhs = work::normal(dtype, {groups, work.k, work.n});
  Array out = work::normal(dtype, {work.m, work.n});
  const auto sizes = make_source(Array::from<std::int64_t>({groups}, work.sizes), "group_sizes");
  GroupedMatmulSettings settings;
  settings.dtype = dtype;
  const double elements =
      product({work.m, work.k}) + product({needed, work.k, work.n}) + product({work.m, work.n});
  measure::against_roofline(state, dtype, 2 * product({work.m, work.k, work.n}),
                            elements * static_cast<double>(size_of(dtype)),
                            [&] { run(lhs, rhs, *sizes, settings, out); });
}

void transposed(benchmark::State& state, const Work& work, DType dtype) {
  const std::int64_t groups = static_cast<std::int64_t>(work.sizes.size());
  const Array lhs = work::normal(dtype, {work.k, work.m}), rhs = work::normal(dtype, {work.m, work.n});
  Array out = work::normal(dtype, {groups, work.k, work.n});
  const auto sizes = make_source(Array::from<std::int64_t>({groups}, work.sizes), "group_sizes");
  TransposedGroupedMatmulSettings settings;
  settings.dtype = dtype;
  const double elements =
      product({work.m, work.k}) + product({work.m, work.n}) + product({groups, work.k, work.n});
  measure::against_roofline(state, dtype, 2 * product({work.m, work.k, work.n}),
                            elements * static_cast<double>(size_of(dtype)),
                            [&] { run(lhs, rhs, *sizes, settings, out); });
}

// Few times each: every one of them costs two probes.
void register_as(const std::string& name, void (*function)(benchmark::State&, const Work&, DType)) {
  for (const Work& work : works())
    for (const DType dtype : work.dtypes)
      benchmark::RegisterBenchmark((name + "/" + work.name + "/" + std::string(name_of(dtype))).c_str(),
                                   function, work, dtype)
          ->Iterations(15)
          ->Unit(benchmark::kMillisecond)
          ->UseManualTime();
}

[[maybe_unused]] const bool registered = [] {
  register_as("grouped_matmul", forward);
  register_as("transposed_grouped_matmul", transposed);
  return true;
}();

}  // namespace
