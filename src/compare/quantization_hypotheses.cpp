// Hypotheses about quantised arrays: codes or scales that were read in another way than they were written.
// What differs then is a factor of each block of the last axis, or an order of elements, so that the decoded
// numbers of both sides tell it; neither codes nor scales are needed.
// tests: tests/compare/test_explain.cpp
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <vector>

#include "compare/hypothesis.hpp"
#include "ejk/quantize.hpp"
#include "quantize/scale_grid.hpp"

namespace ejk::verify {

namespace {

constexpr double kNearlyAll = 0.95;
constexpr std::size_t kFewestOfFaults = 16;  // samples

// Of finite numbers, with at least one bit of significand.
int significand_bits(double x) {
  int exponent = 0;
  double fraction = std::frexp(std::abs(x), &exponent);
  int bits = 0;
  while (fraction != 0) {
    fraction = 2 * fraction - std::floor(2 * fraction);
    ++bits;
  }
  return bits;
}

// --- factors of blocks

// a = c e over a block by least squares; 0 without a finite nonzero element.
double factor_of_block(const double* a, const double* e, std::int64_t n) {
  double products = 0, squares = 0;
  for (std::int64_t i = 0; i < n; ++i)
    if (std::isfinite(a[i]) && std::isfinite(e[i])) products += a[i] * e[i], squares += e[i] * e[i];
  return squares > 0 ? products / squares : 0;
}

// f(first, elements) for the blocks of `block` elements of a line, the first and the last cut short.
template <class F>
void for_each_block(const ComparedLine& line, std::int64_t block, F&& f) {
  for (std::int64_t i = 0; i < line.n;) {
    const std::int64_t n = std::min(line.n - i, block - (line.at.back() + i) % block);
    f(i, n);
    i += n;
  }
}

// Each block of a line has a factor, `allowed` of the one that fits best.
using Allowed = double (*)(double);
HypothesisPtr block_factors(const Evidence& e, std::int64_t block, Allowed allowed, std::string text) {
  const auto evaluate = [block, allowed, agree = e.agree](const Scope& scope, const ComparedLine& line,
                                                          Scratch& scratch) {
    if (!scope.mark(line.at, line.n, line.in_scope)) return false;
    scratch.values.resize(static_cast<std::size_t>(line.n));
    double* predicted = scratch.values.data();
    const Agreement here = agree.at(line.at);
    for_each_block(line, block, [&](std::int64_t i, std::int64_t n) {
      const double c = allowed(factor_of_block(line.actual + i, line.expected + i, n));
      for (std::int64_t k = i; k < i + n; ++k) predicted[k] = c * line.expected[k];
      mark_predicted({line.at, n, line.actual + i, line.expected + i, line.in_scope + i, line.holds + i},
                     scaled_by(here, c), predicted + i);
    });
    return true;
  };
  HypothesisPtr hypothesis = hypothesis_of(e, evaluate, std::move(text));
  // Where in a matrix it holds is not named: in blocks whose scale happened to be another one.
  const std::size_t rank = e.naming.shape.size();
  for (std::size_t d = rank < 2 ? 0 : rank - 2; d < rank; ++d) hypothesis->named_axes.push_back(d);
  return hypothesis;
}

double any_factor(double c) { return c; }
// 2 or 1/2 of blocks that differ by about as much; 1 of the others.
double twice(double c) { return c > std::sqrt(2) && c < std::sqrt(8) ? 2 : 1; }
double half(double c) { return 1 / twice(1 / c); }

// The factors of blocks with differences; none if fewer than nine of ten fit with one.
std::vector<double> fitted_factors(const Evidence& e, std::int64_t block) {
  constexpr std::size_t kMostBlocks = 64;
  std::vector<double> factors;
  std::set<Shape> blocks;
  std::vector<std::byte> raw;
  std::vector<double> a(static_cast<std::size_t>(block)), x = a;
  const std::size_t step = std::max<std::size_t>(1, e.samples.size() / (4 * kMostBlocks));
  for (std::size_t s = 0; s < e.samples.size() && blocks.size() < kMostBlocks; s += step) {
    Shape at = e.samples[s].at;
    at.back() -= at.back() % block;
    if (!blocks.insert(at).second) continue;
    e.actual.line(at, block, raw, a.data());
    e.expected.line(at, block, raw, x.data());
    const double c = factor_of_block(a.data(), x.data(), block);
    const Agreement agree = scaled_by(e.agree.at(at), c);
    std::int64_t holds = 0;
    for (std::size_t i = 0; i < a.size(); ++i) holds += agree(a[i], c * x[i]);
    if (c > 0 && std::isfinite(c) && static_cast<double>(holds) >= kNearlyAll * static_cast<double>(block))
      factors.push_back(c);
  }
  if (factors.size() < 8 || 10 * factors.size() < 9 * blocks.size()) factors.clear();
  return factors;
}

// Whether nine of ten factors are about 2, or 1/2: which of the two.
std::optional<Allowed> step_of(const std::vector<double>& factors) {
  for (const Allowed step : {twice, half})
    if (!factors.empty() &&
        10 * std::count_if(factors.begin(), factors.end(), [&](double c) { return step(c) != 1; }) >=
            9 * std::ssize(factors))
      return step;
  return std::nullopt;
}

// Of the blocks of a matrix, by rows: log2 of the factor, NaN where there is none, as of zeros, and of the largest
// expected magnitude.
struct BlockRatios {
  std::vector<double> ratio, size;
};

BlockRatios ratios_of(const Evidence& e, Shape at, std::int64_t block) {
  const Shape& shape = e.naming.shape;
  BlockRatios blocks;
  std::vector<std::byte> raw;
  std::vector<double> a(static_cast<std::size_t>(shape.back())), x = a;
  at.back() = 0;
  for (std::int64_t row = 0; row < shape[shape.size() - 2]; ++row) {
    at[at.size() - 2] = row;
    e.actual.line(at, shape.back(), raw, a.data());
    e.expected.line(at, shape.back(), raw, x.data());
    for (std::int64_t i = 0; i < shape.back(); i += block) {
      const double factor = factor_of_block(a.data() + i, x.data() + i, block);
      double most = 0;
      for (std::int64_t k = i; k < i + block; ++k)
        most = std::max(most, std::abs(x[static_cast<std::size_t>(k)]));
      const bool has_ratio = factor > 0 && std::isfinite(factor) && most > 0;
      blocks.ratio.push_back(has_ratio ? std::log2(factor) : std::numeric_limits<double>::quiet_NaN());
      blocks.size.push_back(has_ratio ? std::log2(most) : 0);
    }
  }
  return blocks;
}

// Whether the factors are those of scales s at other positions p: log2 of s[p(b)] / s[b], which sums to 0 along
// each cycle of p. Cycles with a block that has no factor are left out.
bool is_reordering(const std::vector<double>& ratios, const std::vector<std::int64_t>& position) {
  double cycle_sum = 0, block_sum = 0;
  std::vector<bool> seen(position.size());
  for (std::size_t first = 0; first < position.size(); ++first) {
    double sum = 0, squares = 0;
    for (std::size_t b = first; !seen[b]; b = static_cast<std::size_t>(position[b])) {
      seen[b] = true;
      sum += ratios[b];
      squares += ratios[b] * ratios[b];
    }
    if (std::isnan(sum)) continue;
    cycle_sum += sum * sum, block_sum += squares;
  }
  return cycle_sum < 0.1 * block_sum;
}

// How far the factors are from those of scales in proportion to the blocks' largest magnitudes.
double distance(const BlockRatios& blocks, const std::vector<std::int64_t>& position) {
  double sum = 0;
  for (std::size_t b = 0; b < position.size(); ++b) {
    const double apart =
        blocks.ratio[b] - (blocks.size[static_cast<std::size_t>(position[b])] - blocks.size[b]);
    if (!std::isnan(apart)) sum += apart * apart;
  }
  return sum;
}

struct LayoutChange {
  ScaleLayout written, read;
};

std::optional<LayoutChange> layout_change(const BlockRatios& blocks, std::int64_t rows,
                                          std::int64_t columns) {
  for (const ScaleLayout layout : {ScaleLayout::tiles_128x4, ScaleLayout::tiles_8x4}) {
    if (columns % 4 != 0 || rows % (layout == ScaleLayout::tiles_128x4 ? 128 : 8) != 0) continue;
    const quantize::StoredGrid grid{layout, rows, columns};
    std::vector<std::int64_t> position, origin(blocks.ratio.size());
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c) {
        position.push_back(grid.offset(r, c));
        origin[static_cast<std::size_t>(position.back())] = r * columns + c;
      }
    if (!is_reordering(blocks.ratio, position)) continue;
    return distance(blocks, position) < distance(blocks, origin) ? LayoutChange{ScaleLayout::linear, layout}
                                                                 : LayoutChange{layout, ScaleLayout::linear};
  }
  return std::nullopt;
}

// Whether the factors of a row are the same: no scales of blocks then.
bool are_of_rows(const std::vector<double>& ratios, std::int64_t columns) {
  constexpr double kSame = 0.01;
  std::int64_t differing = 0, counted = 0;
  for (std::size_t b = 1; b < ratios.size(); ++b) {
    const double apart = std::abs(ratios[b] - ratios[b - 1]);
    if (static_cast<std::int64_t>(b) % columns != 0 && !std::isnan(apart))
      ++counted, differing += apart > kSame;
  }
  return 4 * differing < counted;
}

}  // namespace

HypothesisPtr find_fnuz(const Evidence& e) {
  const auto times = [&](double factor) {
    std::vector<double> expected;
    for (const Sample& s : e.samples)
      if (s.expected != 0 && s.actual == factor * s.expected) expected.push_back(s.expected);
    return expected;
  };
  double factor = 2;
  std::vector<double> expected = times(factor);
  if (expected.empty()) expected = times(factor = 0.5);
  if (expected.size() < 4 * kFewestOfFaults ||
      static_cast<double>(expected.size()) < kNearlyAll * static_cast<double>(e.samples.size()))
    return nullptr;
  // Numbers of the type: every significand of its bits, over many exponents.
  int most_bits = 0, least_exponent = 1 << 20, most_exponent = -least_exponent;
  std::set<double> significands;
  for (const double x : expected) {
    int exponent = 0;
    significands.insert(std::frexp(std::abs(x), &exponent));
    most_bits = std::max(most_bits, significand_bits(x));
    if (most_bits > 4) return nullptr;
    least_exponent = std::min(least_exponent, exponent), most_exponent = std::max(most_exponent, exponent);
  }
  if (most_bits < 3 || significands.size() < (std::size_t{1} << (most_bits - 1)) ||
      most_exponent - least_exponent < 6)
    return nullptr;
  const char* const type = most_bits == 4 ? "float8_e4m3" : "float8_e5m2";
  const std::string fn = most_bits == 4 ? "float8_e4m3fn" : "float8_e5m2";
  return times_factor(e, factor,
                      factor == 2
                          ? fmt::format("{}fnuz was read as {}: all is twice what it should be", type, fn)
                          : fmt::format("{} was read as {}fnuz: all is half of what it should be", fn, type));
}

HypothesisPtr find_e8m0_as_int8(const Evidence& e) {
  if (e.samples.size() < kFewestOfFaults) return nullptr;
  struct Reading {
    int large_exponent, small_exponent;  // exponents of the factors of blocks of scale codes of either kind
    const char* text;
  };
  for (const Reading& reading :
       {Reading{127, -129, "E8M0 scales were read as signed exponents: 2^c in place of 2^(c - 127)"},
        Reading{129, -127,
                "scales that are signed exponents were read as E8M0: 2^(c - 127) in place of 2^c"}}) {
    const auto predict = [reading](double a, double x) {
      const double predicted =
          std::ldexp(x, std::abs(a) > std::abs(x) ? reading.large_exponent : reading.small_exponent);
      return std::isinf(a) && std::abs(predicted) > 3e38 ? std::copysign(a, x) : predicted;
    };
    std::size_t right = 0, large = 0;
    for (const Sample& s : e.samples) {
      const double predicted = predict(s.actual, s.expected);
      const bool holds = scaled_by(e.agree.at(s.at), predicted / s.expected)(s.actual, predicted);
      right += holds;
      large += holds && std::abs(s.actual) > std::abs(s.expected);
    }
    if (static_cast<double>(right) < kNearlyAll * static_cast<double>(e.samples.size()) ||
        large < kFewestOfFaults / 2)
      continue;
    return hypothesis_of(
        e,
        [predict, agree = e.agree](const Scope& scope, const ComparedLine& line, Scratch&) {
          if (!scope.mark(line.at, line.n, line.in_scope)) return false;
          const Agreement here = agree.at(line.at);
          for (std::int64_t i = 0; i < line.n; ++i) {
            const double predicted = predict(line.actual[i], line.expected[i]);
            line.holds[i] = scaled_by(here, predicted / line.expected[i])(line.actual[i], predicted) ? 1 : 0;
          }
          return true;
        },
        reading.text);
  }
  return nullptr;
}

HypothesisPtr find_nibbles(const Evidence& e) {
  const std::size_t last = e.naming.shape.size() - 1;
  const std::int64_t length = e.naming.shape[last];
  if (length < 8 || length % 2 != 0) return nullptr;
  return moved_by(
      e, last, [](std::int64_t i) { return i ^ 1; },
      fmt::format("neighbours along {} are exchanged, as the elements in the two halves of a byte are",
                  e.naming.axes[last]));
}

HypothesisPtr find_interleaved(const Evidence& e, std::size_t axis) {
  const std::int64_t length = e.naming.shape[axis], half = length / 2;
  if (length < 16 || length % 2 != 0) return nullptr;
  const std::string& name = e.naming.axes[axis];
  auto found = moved_by(
      e, axis, [half](std::int64_t i) { return i % 2 * half + i / 2; },
      fmt::format("the halves of {} are interleaved, and one follows the other in EXPECTED: {} holds what "
                  "belongs to (i mod 2) * {} + i / 2",
                  name, any_index(name), half));
  if (found) return found;
  return moved_by(
      e, axis, [half](std::int64_t i) { return i % half * 2 + i / half; },
      fmt::format("one half of {} follows the other, and they are interleaved in EXPECTED: {} holds what "
                  "belongs to (i mod {}) * 2 + i / {}",
                  name, any_index(name), half, half));
}

HypothesisPtr find_scale_step(const Evidence& e) {
  const std::int64_t length = e.naming.shape.back();
  for (const std::int64_t block : {128, 32, 16}) {
    if (length % block != 0 || element_count(e.naming.shape) < 8 * block) continue;
    if (const auto step = step_of(fitted_factors(e, block)))
      return block_factors(e, block, *step,
                           fmt::format("blocks of {} along {} are {} what they should be: powers of two as "
                                       "scales by another rule, such as floor and ceil",
                                       block, e.naming.axes.back(), *step == twice ? "twice" : "half of"));
  }
  return nullptr;
}

HypothesisPtr find_block_scales(const Evidence& e) {
  constexpr std::int64_t kMostInMatrix = std::int64_t{1} << 26;  // elements
  const Shape& shape = e.naming.shape;
  if (shape.size() < 2 || e.samples.empty()) return nullptr;
  const std::int64_t rows = shape[shape.size() - 2], length = shape.back();
  for (const std::int64_t block : {128, 32, 16}) {
    if (length % block != 0 || length < 2 * block || rows * length > kMostInMatrix) continue;
    const std::vector<double> factors = fitted_factors(e, block);
    if (step_of(factors)) return nullptr;
    if (factors.empty()) continue;
    const BlockRatios ratios = ratios_of(e, e.samples[0].at, block);
    if (are_of_rows(ratios.ratio, length / block)) continue;
    const std::string blocks = fmt::format("blocks of {} along {}", block, e.naming.axes.back());
    const auto layout = layout_change(ratios, rows, length / block);
    const auto [least, most] = std::minmax_element(factors.begin(), factors.end());
    HypothesisPtr hypothesis = block_factors(
        e, block, any_factor,
        layout
            ? fmt::format("scales of {} in layout {} were read as {}", blocks, name_of(layout->written),
                          name_of(layout->read))
            : fmt::format("{} have each a factor of their own, {:.3g} to {:.3g}: the scales of other blocks",
                          blocks, *least, *most));
    hypothesis->kind = layout ? "scale-layout" : "scales";
    return hypothesis;
  }
  return nullptr;
}

}  // namespace ejk::verify
