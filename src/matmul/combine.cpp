// The sum of each token's rows of a grouped product, with the weights of its experts. Tokens are divided over
// threads. Cost: a pass over the rows; 16 bytes a choice.
// tests: tests/matmul/test_route.cpp
#include <algorithm>
#include <vector>

#include "core/checked.hpp"
#include "core/elements.hpp"
#include "core/offsets.hpp"
#include "core/parallel.hpp"
#include "core/require.hpp"
#include "ejk/route.hpp"

namespace ejk {

namespace {

std::int64_t choices_of_token(const CombineSettings& settings) {
  if (!settings.weights) {
    if (settings.top_k < 1) throw core::usage("a token has {} choices", settings.top_k);
    return settings.top_k;
  }
  const ArraySource& weights = *settings.weights;
  if (!is_float(weights.dtype()) || weights.shape().empty() || weights.shape().size() > 2)
    throw core::invalid("it is {} {}; weights are (tokens, k) of a float type", name_of(weights.dtype()),
                        to_string(weights.shape()))
        .at(weights.name());
  return weights.shape().size() == 2 ? weights.shape()[1] : 1;
}

std::vector<double> weights_of(const CombineSettings& settings, std::int64_t choices) {
  std::vector<double> numbers(static_cast<std::size_t>(choices), 1.0);
  if (!settings.weights) return numbers;
  const ArraySource& weights = *settings.weights;
  if (element_count(weights.shape()) != choices)
    throw core::invalid("it has the shape {}, and there are {} choices", to_string(weights.shape()), choices)
        .at(weights.name());
  const Array all = read_all(weights);
  core::load(all.dtype(), all.data(), size_of(all.dtype()), choices, numbers.data());
  return numbers;
}

}  // namespace

Array combine_experts(const ArrayView& y, const IntegerArray& inverse, const CombineSettings& settings) {
  if (!is_float(y.dtype) || y.rank() != 2)
    throw core::invalid("it is {} {}; a product is (rows, columns) of a float type", name_of(y.dtype),
                        to_string(y.shape))
        .about("y");
  const std::vector<std::int64_t> rows = core::read_integers(*inverse, "rows of choices");
  const std::int64_t choices = std::ssize(rows), k = choices_of_token(settings);
  if (k == 0 ? choices > 0 : choices % k != 0)
    throw core::invalid("it has {} choices, which are not {} of each token", choices, k).at(inverse->name());
  const std::vector<double> weights = weights_of(settings, choices);
  const std::int64_t grouped = settings.rows.value_or(INT64_MAX);
  for (std::size_t f = 0; f < rows.size(); ++f)
    if (rows[f] < 0 || (rows[f] >= y.shape[0] && rows[f] < grouped))
      throw core::invalid("element {} is {}; there are {} rows", f, rows[f], y.shape[0]).at(inverse->name());

  const DType dtype = settings.dtype.value_or(y.dtype);
  if (!is_float(dtype)) throw core::usage("sums are of a float type, not {}", name_of(dtype));
  const std::int64_t tokens = k == 0 ? settings.weights->shape()[0] : choices / k, columns = y.shape[1];
  Array out(dtype, {tokens, columns});
  constexpr std::int64_t kTokens = 16;
  core::parallel_for(
      core::ceil_div(tokens, kTokens), static_cast<double>(choices) * static_cast<double>(columns),
      [&](std::int64_t piece) {
        std::vector<double> row(static_cast<std::size_t>(columns)), sums(row.size());
        for (std::int64_t t = piece * kTokens; t < std::min(tokens, (piece + 1) * kTokens); ++t) {
          std::fill(sums.begin(), sums.end(), 0.0);
          for (std::int64_t f = t * k; f < (t + 1) * k; ++f) {
            const std::int64_t from = rows[static_cast<std::size_t>(f)];
            if (from >= grouped) continue;
            core::load(y.dtype, y.data + from * y.strides[0], y.strides[1], columns, row.data());
            const double weight = weights[static_cast<std::size_t>(f)];
            for (std::size_t i = 0; i < row.size(); ++i) sums[i] += weight * row[i];
          }
          core::store(dtype, sums.data(), columns, out.data() + t * columns * size_of(dtype));
        }
      });
  return out;
}

}  // namespace ejk
