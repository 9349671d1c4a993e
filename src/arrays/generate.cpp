// Synthetic inputs, computed on read by index on all threads. Cost: some 30 ns an element.
// tests: tests/arrays/test_generate.cpp
#include "ejk/program/generate.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "arrays/cast.hpp"
#include "arrays/random.hpp"
#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "core/require.hpp"

namespace ejk {

namespace {

using core::usage;

void check_seed(std::int64_t seed) {
  if (seed < 0 || seed > UINT32_MAX) throw usage("the seed is {}; it must be from 0 to 2^32 - 1", seed);
}

void check_not_negative(const char* what, std::int64_t value) {
  if (value < 0) throw usage("{} is {}; it must be at least 0", what, value);
}

// A number of T in [1, 2) from random bits as in JAX: exponent of 1, mantissa from the fewest bytes.
template <class T>
float one_to_two(std::uint32_t x) {
  constexpr int kBits = float_format_of<T>.mantissa_bits, kDrawn = kBits < 8 ? 8 : kBits < 16 ? 16 : 32;
  const std::uint32_t mantissa = (x & (~0u >> (32 - kDrawn))) >> (kDrawn - kBits);
  return 1 + static_cast<float>(mantissa) / (1 << kBits);
}

template <class T>
float rounded(double x) {
  arrays::Stored<T> narrow{};
  arrays::cast<T>(x, narrow);
  return arrays::widen<T>(narrow);
}

// std · √2 · erfinv(u), every operation rounded to T.
template <class T>
T normal(std::uint32_t bits, float std) {
  constexpr float low = 1.0f / (2 << float_format_of<T>.mantissa_bits) - 1;
  const float f = one_to_two<T>(bits) - 1;
  const float u = std::max(low, rounded<T>(rounded<T>(f * rounded<T>(1 - low)) + low));
  const float z = rounded<T>(rounded<T>(std::sqrt(2.0)) * rounded<T>(static_cast<float>(arrays::erfinv(u))));
  T result{};
  arrays::cast<T>(z * std, result);
  return result;
}

class NormalSource final : public ArraySource {
 public:
  NormalSource(arrays::Key key, DType dtype, Shape shape, double std, std::string name)
      : ArraySource({dtype, std::move(shape)}, std::move(name), ArrayAccess(ArrayAccess::Order::any)),
        key_(key),
        std_(std) {}

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    if (element_count(count) == 0) return;
    if (dtype() == DType::float32) fill(start, count, static_cast<float*>(out));
    if (dtype() == DType::float16) fill(start, count, static_cast<float16*>(out));
    if (dtype() == DType::bfloat16) fill(start, count, static_cast<bfloat16*>(out));
  }

 private:
  template <class T>
  void fill(std::span<const std::int64_t> start, std::span<const std::int64_t> count, T* out) const {
    const Shape strides = c_strides(shape(), DType::uint8);  // of one byte: in elements
    const std::int64_t n = count.back(), rows = element_count(count) / n;
    const std::int64_t together = std::max<std::int64_t>(4096 / n, 1);
    const float std = rounded<T>(std_);
    core::parallel_for(
        core::ceil_div(rows, together), 10 * static_cast<double>(rows * n), [&](std::int64_t job) {
          for (std::int64_t row = job * together; row < std::min(rows, (job + 1) * together); ++row) {
            std::int64_t first = start.back(), rest = row;
            for (std::size_t d = count.size() - 1; d-- > 0; rest /= count[d])
              first += (start[d] + rest % count[d]) * strides[d];
            for (std::int64_t i = 0; i < n; ++i) {
              const arrays::Key words = arrays::words_of(key_, first + i);
              out[row * n + i] = normal<T>(words[0] ^ words[1], std);
            }
          }
        });
  }

  arrays::Key key_;
  double std_;
};

// What draws are for; each has words of its own.
enum Stream : std::uint32_t { kLengths, kGroups };

// Partitions `total` by weight: whole parts, then the largest remainders.
std::vector<std::int64_t> shared_out(std::int64_t total, const std::vector<double>& weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::int64_t> parts;
  std::vector<std::pair<double, std::size_t>> remainders;
  std::int64_t given = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double exact = static_cast<double>(total) * (weights[i] / sum);
    parts.push_back(static_cast<std::int64_t>(exact));
    given += parts.back();
    if (weights[i] > 0) remainders.emplace_back(static_cast<double>(parts.back()) - exact, i);
  }
  std::sort(remainders.begin(), remainders.end());
  for (std::size_t i = 0; given < total; ++i, ++given) ++parts[remainders[i % remainders.size()].second];
  return parts;
}

}  // namespace

AttentionInputs generate_attention_inputs(const AttentionInputsOptions& options) {
  const Shape queries{options.batch, options.seq, options.heads, options.head_dim};
  Shape keys = queries;
  keys[1] = options.kv_seq.value_or(options.seq);
  keys[2] = options.kv_heads.value_or(options.heads);
  for (const Shape& shape : {queries, keys})
    for (const std::int64_t length : shape) check_not_negative("a size of the attention inputs", length);
  if (keys[2] != queries[2] && (keys[2] == 0 || queries[2] % keys[2] != 0))
    throw usage("{} query heads are no multiple of {} key/value heads", queries[2], keys[2]);
  constexpr double kFarthest = 8;  // deviations of a number that is drawn
  const double most = options.dtype == DType::float16 ? 65504 : 3e38,
               least = options.dtype == DType::float16 ? 0x1p-14 : 0x1p-126;
  if (!(options.std >= least && kFarthest * options.std <= most))
    throw usage("the deviation is {}; {} holds numbers of {:.3g} to {:.3g}", options.std,
                name_of(options.dtype), least, most / kFarthest);
  check_seed(options.seed);
  if (!is_wide_float(options.dtype) || options.dtype == DType::float64)
    throw usage("attention inputs are float32, float16 or bfloat16, not {}", name_of(options.dtype));
  const arrays::Key root{0, static_cast<std::uint32_t>(options.seed)};
  const auto make = [&](std::uint32_t which, const Shape& shape, const char* name) {
    return std::make_shared<NormalSource>(arrays::threefry(root, 0, which), options.dtype, shape, options.std,
                                          name);
  };
  return {make(0, queries, "query"), make(1, keys, "key"), make(2, keys, "value")};
}

Array generate_lengths(const LengthsOptions& options) {
  check_seed(options.seed);
  check_not_negative("the number of lengths", options.count);
  check_not_negative("the shortest length", options.shortest);
  if (options.longest < options.shortest || options.longest > INT32_MAX)
    throw usage("the longest length is {}; it must be between the shortest, {}, and {}", options.longest,
                options.shortest, INT32_MAX);
  if (!(options.mean > 0) || std::isinf(options.mean))
    throw usage("the mean length is {}; it must be positive", options.mean);
  Array lengths(DType::int32, {options.count});
  arrays::Draws draws(options.seed, kLengths);
  const auto low = static_cast<double>(options.shortest), high = static_cast<double>(options.longest);
  for (std::int32_t& length : lengths.elements<std::int32_t>()) {
    double x = high;
    if (options.distribution == LengthDistribution::lognormal)  // exp(z - ½) has mean 1
      x = std::floor(options.mean * arrays::exp_of(draws.normal() - 0.5) + 0.5);
    if (options.distribution == LengthDistribution::zipf)  // ln of (n + 1) / (low + 1) spreads evenly
      x = std::floor((low + 1) * arrays::exp_of(draws.uniform() * arrays::log_of((high + 2) / (low + 1)))) -
          1;
    if (options.distribution == LengthDistribution::uniform)
      x = low + static_cast<double>(draws.below(options.longest - options.shortest + 1));
    length = static_cast<std::int32_t>(std::clamp(x, low, high));
  }
  return lengths;
}

std::shared_ptr<const ArraySource> generate_padding_mask(const LengthsOptions& lengths, std::int64_t seq,
                                                         PaddingSide side) {
  check_not_negative("the sequence length", seq);
  const auto tokens = std::make_shared<const Array>(generate_lengths(lengths));
  const auto fill = [=](std::span<const std::int64_t> start, std::span<const std::int64_t> count, void* out) {
    auto* to = static_cast<std::byte*>(out);
    const bool right = side == PaddingSide::right;
    for (std::int64_t row = 0; row < count[0]; ++row, to += count[1]) {
      const std::int64_t length = std::min<std::int64_t>(
          tokens->elements<std::int32_t>()[static_cast<std::size_t>(start[0] + row)], seq);
      const std::int64_t edge =
          std::clamp<std::int64_t>((right ? length : seq - length) - start[1], 0, count[1]);
      std::fill(to, to + edge, static_cast<std::byte>(right));
      std::fill(to + edge, to + count[1], static_cast<std::byte>(!right));
    }
  };
  return generated_source({DType::boolean, {tokens->size(), seq}}, "mask", fill);
}

Array generate_group_sizes(const GroupsOptions& options) {
  check_seed(options.seed);
  check_not_negative("the number of groups", options.groups);
  check_not_negative("the number of tokens", options.tokens);
  check_not_negative("the number of empty groups", options.empty);
  const std::int64_t used = options.groups - options.empty;
  if (used < 0 || (used == 0 && options.tokens > 0))
    throw usage("{} of {} groups are to be empty; one is needed for the {} tokens", options.empty,
                options.groups, options.tokens);
  if (options.tokens > INT32_MAX) throw usage("{} tokens are more than int32 counts", options.tokens);
  if (!(options.hot_share >= 0 && options.hot_share <= 1))
    throw usage("the share of the hot group is {}; it must be from 0 to 1", options.hot_share);
  Array sizes(DType::int32, {options.groups});
  if (used == 0) return sizes;

  // Groups in a random order: the first `used` get tokens, the first of them is the hot one.
  arrays::Draws draws(options.seed, kGroups);
  std::vector<std::size_t> order(static_cast<std::size_t>(options.groups));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[static_cast<std::size_t>(draws.below(static_cast<std::int64_t>(i)))]);
  const auto out = sizes.elements<std::int32_t>();
  if (options.distribution == GroupDistribution::uniform) {
    for (std::int64_t t = 0; t < options.tokens; ++t)
      ++out[order[static_cast<std::size_t>(draws.below(used))]];
    return sizes;
  }
  std::vector<double> weights(static_cast<std::size_t>(used), 1.0);
  for (std::size_t r = 0; r < weights.size(); ++r) {
    if (options.distribution == GroupDistribution::zipf) weights[r] = 1 / static_cast<double>(r + 1);
    if (options.distribution == GroupDistribution::hot && used > 1)
      weights[r] = r == 0 ? options.hot_share : (1 - options.hot_share) / static_cast<double>(used - 1);
  }
  const auto parts = shared_out(options.tokens, weights);
  for (std::size_t r = 0; r < parts.size(); ++r) out[order[r]] = static_cast<std::int32_t>(parts[r]);
  return sizes;
}

// The numbers some times over.
std::int64_t generate_bytes(std::int64_t count) {
  return count < INT64_MAX / 128 ? count * 64 : INT64_MAX / 2;
}

}  // namespace ejk
