// Inputs of benchmarks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "ejk/array.hpp"

namespace work {

/// Normal numbers, a tenth in size.
inline ejk::Array normal(ejk::DType dtype, const ejk::Shape& shape) {
  ejk::Array a(dtype, shape);
  std::mt19937 random(1);
  std::normal_distribution<float> number(0, 0.1f);
  // The distribution is slow; a table of a prime length serves.
  std::vector<float> table(65537);
  for (float& x : table) x = number(random);
  ejk::dispatch(dtype, [&]<class T>(std::type_identity<T>) {
    if constexpr (!std::is_same_v<T, bool>) {
      T* to = a.elements<T>().data();
#pragma omp parallel for
      for (std::int64_t i = 0; i < a.size(); ++i) to[i] = T(table[static_cast<std::size_t>(i % 65537)]);
    }
  });
  return a;
}

inline ejk::Array offsets(std::int64_t tokens, const std::function<double(std::mt19937_64&)>& length) {
  std::mt19937_64 random(3);
  std::vector<std::int32_t> cu{0};
  while (cu.back() < tokens)
    cu.push_back(static_cast<std::int32_t>(
        std::min(static_cast<double>(tokens), static_cast<double>(cu.back()) + std::floor(length(random)))));
  return ejk::Array::from<std::int32_t>({static_cast<std::int64_t>(cu.size())}, cu);
}

/// cu_seqlens of log-normal documents, 380 tokens in the median and 16 at least.
inline ejk::Array document_offsets(std::int64_t tokens) {
  std::lognormal_distribution<double> length(std::log(512.0) - 0.3, 0.8);
  return offsets(tokens, [&](auto& random) { return std::max(16.0, length(random)); });
}

/// cu_seqlens of geometric lengths.
inline ejk::Array geometric_offsets(std::int64_t tokens, double mean) {
  std::geometric_distribution<std::int64_t> length(1 / mean);
  return offsets(tokens, [&](auto& random) { return static_cast<double>(1 + length(random)); });
}

/// All of a source into memory that is there, by all threads: by rows of its last axis but one.
inline void read_in_parallel(const ejk::ArraySource& source, std::byte* out) {
  const ejk::Shape& shape = source.shape();
  const std::int64_t row = shape.back() * ejk::size_of(source.dtype()), rows = shape[shape.size() - 2];
  constexpr std::int64_t kRows = 64;
#pragma omp parallel for schedule(dynamic, 1)
  for (std::int64_t r = 0; r < rows; r += kRows) {
    ejk::Shape start(shape.size(), 0), count(shape.size(), 1);
    start[shape.size() - 2] = r;
    count[shape.size() - 2] = std::min(kRows, rows - r);
    count.back() = shape.back();
    source.read(start, count, out + r * row);
  }
}

}  // namespace work
