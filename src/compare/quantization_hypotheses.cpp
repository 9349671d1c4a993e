// Hypotheses about quantised arrays: codes or scales that were read in another way than they were written.
// What differs then is a factor of each block of the last axis, or an order of elements, so that the decoded
// numbers of both sides tell it; neither codes nor scales are needed.
// tests: tests/compare/test_explain.cpp
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
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

// Evaluates a line whose blocks have each a factor, factor(c) of the one that fits best.
template <class Factor>
bool evaluate_blocks(std::int64_t block, const Agreement& agree, const Scope& scope, const ComparedLine& line,
                     Scratch& scratch, Factor&& factor) {
  if (!scope.mark(line.at, line.n, line.in_scope)) return false;
  scratch.values.resize(static_cast<std::size_t>(line.n));
  double* predicted = scratch.values.data();
  const Agreement here = agree.at(line.at);
  for_each_block(line, block, [&](std::int64_t i, std::int64_t n) {
    const double c = factor(factor_of_block(line.actual + i, line.expected + i, n));
    for (std::int64_t k = i; k < i + n; ++k) predicted[k] = c * line.expected[k];
    mark_predicted({line.at, n, line.actual + i, line.expected + i, line.in_scope + i, line.holds + i},
                   scaled_by(here, c), predicted + i);
  });
  return true;
}

// Blocks with differences, and how well one factor each fits them.
struct FittedBlocks {
  std::vector<double> factors;  // of blocks with nearly all elements in agreement
  std::size_t blocks = 0;

  bool are_nearly_all() const { return factors.size() >= 8 && factors.size() * 10 >= blocks * 9; }
};

template <class Factor>
FittedBlocks fitted_blocks(const Evidence& e, std::int64_t block, Factor&& factor) {
  constexpr std::size_t kMostBlocks = 64;
  FittedBlocks fitted;
  std::set<Shape> seen;
  std::vector<std::byte> raw;
  std::vector<double> a(static_cast<std::size_t>(block)), x = a;
  const std::int64_t length = e.naming.shape.back();
  const std::size_t step = std::max<std::size_t>(1, e.samples.size() / (4 * kMostBlocks));
  for (std::size_t s = 0; s < e.samples.size() && seen.size() < kMostBlocks; s += step) {
    Shape at = e.samples[s].at;
    at.back() -= at.back() % block;
    if (!seen.insert(at).second) continue;
    const std::int64_t n = std::min(block, length - at.back());
    e.actual.line(at, n, raw, a.data());
    e.expected.line(at, n, raw, x.data());
    const double c = factor(factor_of_block(a.data(), x.data(), n));
    const Agreement agree = scaled_by(e.agree.at(at), c);
    std::int64_t holds = 0;
    for (std::int64_t i = 0; i < n; ++i)
      holds += agree(a[static_cast<std::size_t>(i)], c * x[static_cast<std::size_t>(i)]);
    ++fitted.blocks;
    if (c > 0 && std::isfinite(c) && static_cast<double>(holds) >= kNearlyAll * static_cast<double>(n))
      fitted.factors.push_back(c);
  }
  return fitted;
}

// 2 or 1/2, whichever is nearer, of blocks that differ; 1 of the others.
double power_of_two(double c) {
  if (!(c > 0)) return 1;
  return std::exp2(std::clamp(std::round(std::log2(c)), -1.0, 1.0));
}

// The places in a matrix where it holds are not named: those of blocks whose scale happened to be another one.
HypothesisPtr of_matrix(HypothesisPtr hypothesis) {
  const std::size_t rank = hypothesis->scope.axes.size();
  for (std::size_t d = rank < 2 ? 0 : rank - 2; d < rank; ++d) hypothesis->named_axes.push_back(d);
  return hypothesis;
}

// --- scales in another layout

// Of a matrix of blocks: log2 of each block's factor and of its largest expected magnitude.
struct BlockRatios {
  std::int64_t rows = 0, columns = 0;
  std::vector<double> ratio, size;
};

// NaN for blocks that have none, as those of zeros.
BlockRatios ratios_of(const Evidence& e, Shape at, std::int64_t block) {
  const Shape& shape = e.naming.shape;
  BlockRatios found{shape[shape.size() - 2], shape.back() / block, {}, {}};
  std::vector<std::byte> raw;
  std::vector<double> a(static_cast<std::size_t>(shape.back())), x = a;
  at.back() = 0;
  for (std::int64_t row = 0; row < found.rows; ++row) {
    at[at.size() - 2] = row;
    e.actual.line(at, shape.back(), raw, a.data());
    e.expected.line(at, shape.back(), raw, x.data());
    for (std::int64_t c = 0; c < found.columns; ++c) {
      const double *of_a = a.data() + c * block, *of_x = x.data() + c * block;
      const double factor = factor_of_block(of_a, of_x, block);
      double most = 0;
      for (std::int64_t i = 0; i < block; ++i) most = std::max(most, std::abs(of_x[i]));
      const bool has_ratio = factor > 0 && std::isfinite(factor) && most > 0;
      found.ratio.push_back(has_ratio ? std::log2(factor) : std::numeric_limits<double>::quiet_NaN());
      found.size.push_back(has_ratio ? std::log2(most) : 0);
    }
  }
  return found;
}

// Whether the factors are those of scales s at other places p: log2 of s[p(b)] / s[b], which sums to 0 along
// each cycle of p. Cycles with a block that has no factor are left out.
bool is_reordering(const BlockRatios& blocks, const std::vector<std::int64_t>& place) {
  double of_cycles = 0, of_blocks = 0;
  std::vector<bool> seen(place.size());
  for (std::size_t first = 0; first < place.size(); ++first) {
    double sum = 0, squares = 0;
    for (std::size_t b = first; !seen[b]; b = static_cast<std::size_t>(place[b])) {
      seen[b] = true;
      sum += blocks.ratio[b];
      squares += blocks.ratio[b] * blocks.ratio[b];
    }
    if (std::isnan(sum)) continue;
    of_cycles += sum * sum, of_blocks += squares;
  }
  return of_cycles < 0.1 * of_blocks;
}

// How far the factors are from those of scales in proportion to the blocks' largest magnitudes.
double distance(const BlockRatios& blocks, const std::vector<std::int64_t>& place) {
  double sum = 0;
  for (std::size_t b = 0; b < place.size(); ++b) {
    const double apart = blocks.ratio[b] - (blocks.size[static_cast<std::size_t>(place[b])] - blocks.size[b]);
    if (!std::isnan(apart)) sum += apart * apart;
  }
  return sum;
}

// Whether a quarter of the factors are not those of the blocks at other places.
bool many_differ(const BlockRatios& blocks, const std::vector<std::int64_t>& place) {
  constexpr double kSame = 0.01;
  std::int64_t differing = 0, counted = 0;
  for (std::size_t b = 0; b < place.size(); ++b) {
    const double apart = std::abs(blocks.ratio[b] - blocks.ratio[static_cast<std::size_t>(place[b])]);
    if (!std::isnan(apart)) ++counted, differing += apart > kSame;
  }
  return 4 * differing >= counted;
}

constexpr std::int64_t kMostInMatrix = std::int64_t{1} << 26;  // elements

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
  return times_factor("fnuz", e, factor,
                      factor == 2
                          ? fmt::format("{}fnuz was read as {}: all is twice what it should be", type, fn)
                          : fmt::format("{} was read as {}fnuz: all is half of what it should be", fn, type));
}

HypothesisPtr find_e8m0_as_int8(const Evidence& e) {
  if (e.samples.size() < kFewestOfFaults) return nullptr;
  struct Reading {
    int of_large, of_small;  // exponents of the factors of blocks of scale codes of either kind
    const char* text;
  };
  for (const Reading& reading :
       {Reading{127, -129, "E8M0 scales were read as signed exponents: 2^c in place of 2^(c - 127)"},
        Reading{129, -127,
                "scales that are signed exponents were read as E8M0: 2^(c - 127) in place of 2^c"}}) {
    const auto predict = [reading](double a, double x) {
      const double predicted = std::ldexp(x, std::abs(a) > std::abs(x) ? reading.of_large : reading.of_small);
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
        "e8m0-int8", e,
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
      "nibbles", e, last, [](std::int64_t i) { return i ^ 1; },
      fmt::format("neighbours along {} are exchanged, as the elements in the two halves of a byte are",
                  e.naming.axes[last]));
}

HypothesisPtr find_interleaved(const Evidence& e, std::size_t axis) {
  const std::int64_t length = e.naming.shape[axis], half = length / 2;
  if (length < 16 || length % 2 != 0) return nullptr;
  const std::string& name = e.naming.axes[axis];
  auto found = moved_by(
      "interleaved-rows", e, axis, [half](std::int64_t i) { return i % 2 * half + i / 2; },
      fmt::format("the halves of {} are interleaved, and one follows the other in EXPECTED: {} holds what "
                  "belongs to (i mod 2) * {} + i / 2",
                  name, any_index(name), half));
  if (found) return found;
  return moved_by(
      "interleaved-rows", e, axis, [half](std::int64_t i) { return i % half * 2 + i / half; },
      fmt::format("one half of {} follows the other, and they are interleaved in EXPECTED: {} holds what "
                  "belongs to (i mod {}) * 2 + i / {}",
                  name, any_index(name), half, half));
}

HypothesisPtr find_scale_step(const Evidence& e) {
  const std::int64_t length = e.naming.shape.back();
  for (const std::int64_t block : {128, 32, 16}) {
    if (length % block != 0 || element_count(e.naming.shape) < 8 * block) continue;
    const FittedBlocks fitted = fitted_blocks(e, block, power_of_two);
    if (!fitted.are_nearly_all()) continue;
    const auto are = [&](double c) { return std::count(fitted.factors.begin(), fitted.factors.end(), c); };
    const double c = are(2) > are(0.5) ? 2 : 0.5;
    if (are(c) * 10 < std::ssize(fitted.factors) * 9) continue;
    return of_matrix(hypothesis_of(
        "scale-step", e,
        [block, agree = e.agree, c](const Scope& scope, const ComparedLine& line, Scratch& scratch) {
          return evaluate_blocks(block, agree, scope, line, scratch,
                                 [c](double x) { return power_of_two(x) == c ? c : 1; });
        },
        fmt::format("blocks of {} along {} are {} what they should be: powers of two as scales by another "
                    "rule, such as floor and ceil",
                    block, e.naming.axes.back(), c == 2 ? "twice" : "half of")));
  }
  return nullptr;
}

HypothesisPtr find_block_scales(const Evidence& e) {
  const Shape& shape = e.naming.shape;
  if (shape.size() < 2 || e.samples.empty() || find_scale_step(e)) return nullptr;
  const auto any = [](double c) { return c; };
  for (const std::int64_t block : {128, 32, 16}) {
    const std::int64_t rows = shape[shape.size() - 2], columns = shape.back() / block;
    if (shape.back() % block != 0 || columns < 2 || rows * shape.back() > kMostInMatrix) continue;
    const FittedBlocks fitted = fitted_blocks(e, block, any);
    if (!fitted.are_nearly_all()) continue;
    const BlockRatios blocks = ratios_of(e, e.samples[0].at, block);
    const auto shifted = [&](std::int64_t by_rows, std::int64_t by_columns) {
      std::vector<std::int64_t> place;
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < columns; ++c)
          place.push_back((r + by_rows + rows) % rows * columns + (c + by_columns + columns) % columns);
      return place;
    };
    // One factor for a row, or for a column of blocks, is another fault.
    if (!many_differ(blocks, shifted(0, 1)) || !many_differ(blocks, shifted(1, 0))) continue;
    // Scales are in proportion to the largest magnitudes of their blocks, more or less.
    struct Shift {
      std::int64_t rows, columns;
      const char* text;
    };
    const char* nearest = "";
    double least = std::numeric_limits<double>::infinity(), second = least;
    for (const Shift& shift :
         {Shift{-1, 0, "row before"}, {1, 0, "next row"}, {0, -1, "block before"}, {0, 1, "next block"}}) {
      const double apart = distance(blocks, shifted(shift.rows, shift.columns));
      second = std::min(second, std::max(least, apart));
      if (apart < least) least = apart, nearest = shift.text;
    }
    const std::string text = least < 0.6 * second
                                 ? fmt::format("each has the scale of the {}", nearest)
                                 : "each has a factor of its own: these scales are not theirs";
    const auto [low, high] = std::minmax_element(fitted.factors.begin(), fitted.factors.end());
    return of_matrix(hypothesis_of(
        "scales", e,
        [block, agree = e.agree, any](const Scope& scope, const ComparedLine& line, Scratch& scratch) {
          return evaluate_blocks(block, agree, scope, line, scratch, any);
        },
        fmt::format("blocks of {} along {}: {} (factors of {:.3g} to {:.3g})", block, e.naming.axes.back(),
                    text, *low, *high)));
  }
  return nullptr;
}

HypothesisPtr find_scale_layout(const Evidence& e) {
  const Shape& shape = e.naming.shape;
  if (shape.size() < 2 || e.samples.empty()) return nullptr;
  const auto any = [](double c) { return c; };
  for (const std::int64_t block : {32, 16}) {
    const std::int64_t rows = shape[shape.size() - 2], columns = shape.back() / block;
    if (shape.back() % block != 0 || columns % 4 != 0 || rows % 8 != 0 || rows * shape.back() > kMostInMatrix)
      continue;
    const FittedBlocks fitted = fitted_blocks(e, block, any);
    if (!fitted.are_nearly_all()) continue;
    const BlockRatios blocks = ratios_of(e, e.samples[0].at, block);
    for (const ScaleLayout layout : {ScaleLayout::tiles_128x4, ScaleLayout::tiles_8x4}) {
      if (layout == ScaleLayout::tiles_128x4 && rows % 128 != 0) continue;
      const quantize::StoredGrid grid{layout, rows, columns};
      std::vector<std::int64_t> place, origin(static_cast<std::size_t>(rows * columns));
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < columns; ++c) {
          place.push_back(grid.offset(r, c));
          origin[static_cast<std::size_t>(place.back())] = r * columns + c;
        }
      if (!is_reordering(blocks, place)) continue;
      const bool is_linear = distance(blocks, place) < distance(blocks, origin);
      return of_matrix(hypothesis_of(
          "scale-layout", e,
          [block, agree = e.agree, any](const Scope& scope, const ComparedLine& line, Scratch& scratch) {
            return evaluate_blocks(block, agree, scope, line, scratch, any);
          },
          fmt::format("scales of blocks of {} along {} in layout {} were read as {}", block,
                      e.naming.axes.back(), is_linear ? "linear" : name_of(layout),
                      is_linear ? name_of(layout) : "linear")));
    }
  }
  return nullptr;
}

}  // namespace ejk::verify
