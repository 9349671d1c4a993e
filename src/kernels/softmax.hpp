// Rows of attention scores between two products: scores are finished, turned into weights, and scaled.
//
// Rows begin at cache lines and are worked on in whole vectors: what stands behind element n up to a multiple
// of `lanes` is written, too (a hidden score, a weight of 0). Sums over a row are taken lane by lane and then
// over the lanes, so they depend on the instruction set and on nothing else.
//
// exp is 2^n (1 + r + r² q(r)) with q of degree 4 (float) or 9 (double): within 1.5 ulp; 0 below e^-87
// (e^-708), infinity a little before the largest number (from e^88.37 or e^709.4 on). tanh follows from the
// same polynomial, within 4 ulp, and its slope within 12 as long as |s| ≤ 5 cap.
#pragma once

#include <cstdint>

namespace ejk::kernels {

/// How a product becomes a score: cap · tanh(scale · s / cap), without a cap (0) scale · s; then the bias.
template <class Real>
struct Scoring {
  Real scale, cap;
};

template <class Real>
struct Softmax {
  std::int64_t lanes;  // divides 64

  /// s[j] becomes its score; −∞ where bit first_bit + j of `bits` is 0. bias and bits may be null; first_bit
  /// is a multiple of `lanes`; so many elements of bias can be read as s has. slope null or the derivative of
  /// the cap at each score. Returns the largest score, NaN if there is nothing else but −∞ and NaN; other
  /// NaN are left to weights().
  Real (*scores)(const Scoring<Real>& how, Real* s, std::int64_t n, const Real* bias,
                 const std::uint64_t* bits, std::int64_t first_bit, Real* slope);

  /// weight[j] = exp(s[j] − most), 0 for −∞; returns their sum. weight may be s, which is as scores() left
  /// it: −∞ behind n.
  Real (*weights)(const Real* s, std::int64_t n, Real most, Real* weight);

  /// weight[j] = exp(s[j] − lse[j]) and gradient[j] = weight[j] · (dp[j] − delta[j]) · slope[j] · scale, both
  /// 0 where s[j] or −lse[j] is −∞, whatever the others are. slope may be null; weight may be s, gradient dp.
  void (*gradients)(const Real* s, const Real* dp, std::int64_t n, const Real* lse, const Real* delta,
                    const Real* slope, Real scale, Real* weight, Real* gradient);

  /// weight[j] as the sum of three bfloat16, part[0][j] to part[2][j], exactly: 24 bits are three times 8.
  /// (What is too small for bfloat16's normal numbers is lost.) Null for double.
  void (*split)(const Real* weight, std::int64_t n, std::uint16_t* const part[3]);

  /// x[j] *= factor.
  void (*scale)(Real* x, std::int64_t n, Real factor);
};

}  // namespace ejk::kernels
