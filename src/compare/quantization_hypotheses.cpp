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

#include "compare/float_type.hpp"
#include "compare/hypothesis.hpp"
#include "ejk/quantize.hpp"
#include "quantize/elements.hpp"
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
// Of e4m3 scales m 2^-9 read as (8 + m) 2^-10.
double with_a_leading_one(double c) {
  for (int m = 1; m < 8; ++m)
    if (const double factor = (8.0 + m) / (2 * m); std::abs(c / factor - 1) < 0.01) return factor;
  return 1;
}

// f(first element, actual, expected) for blocks with differences, 64 at most; returns how many.
template <class F>
std::size_t for_each_sampled_block(const Evidence& e, std::int64_t block, F&& f) {
  constexpr std::size_t kMostBlocks = 64;
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
    f(at, a, x);
  }
  return blocks.size();
}

// Whether c times the expected elements of a block are the actual ones, nearly all.
bool is_factor_of(const Evidence& e, const Shape& at, double c, const std::vector<double>& a,
                  const std::vector<double>& x) {
  const Agreement agree = scaled_by(e.agree.at(at), c);
  std::int64_t holds = 0;
  for (std::size_t i = 0; i < a.size(); ++i) holds += agree(a[i], c * x[i]);
  return c > 0 && std::isfinite(c) &&
         static_cast<double>(holds) >= kNearlyAll * static_cast<double>(a.size());
}

// The factors of blocks with differences; none of fewer blocks, or if fewer than nine of ten fit with one.
std::vector<double> fitted_factors(const Evidence& e, std::int64_t block, std::size_t fewest = 8) {
  std::vector<double> factors;
  const std::size_t blocks =
      for_each_sampled_block(e, block, [&](const Shape& at, const auto& a, const auto& x) {
        const double c = factor_of_block(a.data(), x.data(), block);
        if (is_factor_of(e, at, c, a, x)) factors.push_back(c);
      });
  if (factors.size() < fewest || 10 * factors.size() < 9 * blocks) factors.clear();
  return factors;
}

// Whether numbers are codes of one of the formats of elements, up to its largest ones, within a fraction of their
// spacing that three of ten other numbers are within.
bool are_codes(const std::vector<double>& numbers) {
  double most = 0;
  for (const double y : numbers) most = std::max(most, std::abs(y));
  return std::any_of(std::begin(quantize::kElements), std::end(quantize::kElements), [&](const auto& row) {
    const FloatFormat& format = *row.format;
    if (most > 1.05 * format.largest || most < format.largest / 8) return false;
    const FloatType type{format.mantissa_bits, format.least_exponent(), 0};
    std::size_t all = 0, codes = 0;
    for (const double y : numbers) {
      const double spacing = type.spacing_at(y);
      if (y != 0) ++all, codes += std::abs(std::remainder(y, spacing)) <= 0.15 * spacing;
    }
    return 10 * codes >= 9 * all;
  });
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
  constexpr std::int64_t kBlock = quantize::kMxBlock, kHalf = kBlock / 2;
  const std::size_t last = e.naming.shape.size() - 1;
  const std::int64_t length = e.naming.shape[last];
  const std::string& axis = e.naming.axes[last];
  if (length < 8 || length % 2 != 0) return nullptr;
  if (auto found = moved_by(
          e, last, [](std::int64_t i) { return i ^ 1; },
          fmt::format("neighbours along {} are exchanged, as the elements in the two halves of a byte are",
                      axis)))
    return found;
  if (length % kBlock != 0 || length == kBlock) return nullptr;  // one block: halves of the axis
  auto found = moved_by(
      e, last, [](std::int64_t i) { return i - i % kBlock + i % kBlock / 2 + i % 2 * kHalf; },
      fmt::format(
          "bytes with elements j and j + 16 of blocks of 32 along {} were read as pairs of neighbours "
          "(nibbles=split)",
          axis));
  if (!found)
    found = moved_by(
        e, last, [](std::int64_t i) { return i - i % kBlock + i % kHalf * 2 + i % kBlock / kHalf; },
        fmt::format("bytes with neighbours along {} were read as elements j and j + 16 of blocks of 32",
                    axis));
  if (found) found->named_axes = {last};
  return found;
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

HypothesisPtr find_misused_scales(const Evidence& e) {
  struct Use {
    double power;  // of the factor: the scale
    const char* text;
  };
  const std::int64_t length = e.naming.shape.back();
  for (const std::int64_t block : {128, 32, 16}) {
    if (length % block != 0 || fitted_factors(e, block).empty()) continue;
    for (const Use& use :
         {Use{-0.5, "each scale is used as its reciprocal: code / scale in place of code * scale"},
          Use{-1, "the scales are left out: the codes alone"}}) {
      std::size_t blocks = 0, large = 0;
      const std::size_t all = for_each_sampled_block(e, block, [&](const Shape&, auto a, const auto& x) {
        const double c = factor_of_block(a.data(), x.data(), block), scale = std::pow(c, use.power);
        if (use.power > -1)
          for (double& number : a) number *= scale;
        blocks += are_codes(a);
        large += c > 16;  // scales of other blocks are nearer to each other
      });
      if (10 * blocks >= 9 * all && 10 * large >= 9 * all)
        return block_factors(e, block, any_factor, use.text);
    }
  }
  return nullptr;
}

HypothesisPtr find_subnormal_scales(const Evidence& e) {
  constexpr std::int64_t kBlock = quantize::kNvfp4Block;
  if (e.naming.shape.back() % kBlock != 0) return nullptr;
  std::set<double> kinds;
  for (const double c : fitted_factors(e, kBlock, 4)) {
    if (with_a_leading_one(c) == 1) return nullptr;
    kinds.insert(with_a_leading_one(c));
  }
  if (kinds.size() < 3) return nullptr;
  return block_factors(
      e, kBlock, with_a_leading_one,
      fmt::format("blocks of {} along {} are (8 + m) / 2m times what they should be: subnormal e4m3 "
                  "scales, below 2^-6, were read as if they had a leading 1",
                  kBlock, e.naming.axes.back()));
}

HypothesisPtr find_cut_off(const Evidence& e) {
  constexpr std::int64_t kBlock = quantize::kMxBlock;
  const Shape& shape = e.naming.shape;
  if (shape.back() % kBlock != 0 || e.samples.size() < kFewestOfFaults / 2) return nullptr;
  const auto largest_of = [](const double* a) {
    double most = 0;
    for (std::int64_t i = 0; i < kBlock; ++i) most = std::max(most, std::abs(a[i]));
    return most;
  };
  const auto fraction_of = [](double x) {
    int exponent = 0;
    return std::frexp(std::abs(x), &exponent);
  };
  // The largest elements of all formats but e2m3 are 0.875 or 0.75 times a power of two.
  const double fraction = fraction_of(e.samples[0].actual);
  if (fraction != 0.875 && fraction != 0.75) return nullptr;
  std::vector<std::byte> raw;
  std::vector<double> a(static_cast<std::size_t>(shape.back())), x = a;
  std::size_t tried = 0, cut = 0;
  const std::size_t step = 1 + e.samples.size() / 64;
  for (std::size_t s = 0; s < e.samples.size(); s += step, ++tried) {
    const Sample& sample = e.samples[s];
    Shape at = sample.at;
    at.back() -= at.back() % kBlock;
    e.actual.line(at, kBlock, raw, a.data());
    cut += std::abs(sample.actual) < std::abs(sample.expected) && sample.actual * sample.expected > 0 &&
           std::abs(sample.actual) == largest_of(a.data()) && fraction_of(sample.actual) == fraction;
  }
  if (static_cast<double>(cut) < kNearlyAll * static_cast<double>(tried)) return nullptr;
  std::int64_t elements = 0, blocks = 0;
  double largest = 0;
  Shape at(shape.size());
  do {
    e.actual.line(at, shape.back(), raw, a.data());
    e.expected.line(at, shape.back(), raw, x.data());
    for (std::int64_t i = 0; i < shape.back(); i += kBlock) {
      const double most = largest_of(a.data() + i);
      largest = std::max(largest, most);
      const auto larger = std::count_if(x.begin() + i, x.begin() + i + kBlock,
                                        [&](double value) { return std::abs(value) > most; });
      if (fraction_of(most) == fraction) elements += larger, blocks += larger > 0;
    }
  } while (next_line(at, Shape(shape.size()), shape));
  if (largest == std::abs(e.samples[0].actual)) return nullptr;  // all are cut off there
  HypothesisPtr hypothesis = hypothesis_of(
      e,
      [agree = e.agree, largest_of](const Scope& scope, const ComparedLine& line, Scratch& scratch) {
        if (!scope.mark(line.at, line.n, line.in_scope)) return false;
        scratch.values.assign(line.expected, line.expected + line.n);
        for_each_block(line, kBlock, [&](std::int64_t i, std::int64_t n) {
          if (n < kBlock) return;
          const double most = largest_of(line.actual + i);
          for (std::int64_t k = i; k < i + n; ++k)
            scratch.values[static_cast<std::size_t>(k)] = std::clamp(line.expected[k], -most, most);
        });
        mark_predicted(line, agree.at(line.at), scratch.values.data());
        return true;
      },
      fmt::format(
          "{} elements of {} of {} blocks of {} along {} are cut off at the largest code times the scale: "
          "scales one step (a factor of 2) too small",
          elements, blocks, element_count(shape) / kBlock, kBlock, e.naming.axes.back()));
  for (std::size_t d = 0; d < shape.size(); ++d) hypothesis->scope.axes[d] = {{0, shape[d]}};
  return hypothesis;
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
