// Rows of attention scores between two products: scores are finished, turned into weights, and scaled. Rows
// begin at cache lines; elements past n up to a multiple of `lanes` are written, too (a masked score, a
// weight of 0). Sums depend on the instruction set alone.
// exp is 2^n (1 + r + r² q(r)) with q of degree 4 (float) or 9 (double): within 1.5 ulp; 0 below e^-87
// (e^-708), infinity from e^88.37 (e^709.4) on. tanh follows from the same polynomial, within 4 ulp, and its
// slope within 12 as long as |s| ≤ 5 cap.
#pragma once

#include <cstdint>

namespace ejk::kernels {

/// How a product becomes a score: cap · tanh(scale · s / cap), without a cap (0) scale · s; the bias is added
/// after the cap, or before.
template <class Real>
struct Scoring {
  Real scale, cap;
  bool bias_is_capped = false;
};

template <class Real>
struct Softmax {
  std::int64_t lanes;  // divides 64

  /// s[j] becomes its score; −∞ where bit first_bit + j of `bits` is 0. bias and bits may be null; first_bit
  /// is a multiple of `lanes`. slope: null or the derivative of the cap. Returns the largest score, NaN if
  /// there are only −∞ and NaN.
  Real (*scores)(const Scoring<Real>& how, Real* s, std::int64_t n, const Real* bias,
                 const std::uint64_t* bits, std::int64_t first_bit, Real* slope);

  /// weight[j] = exp(s[j] − most), 0 for −∞; returns their sum. weight may be s, as scores() left it.
  Real (*weights)(const Real* s, std::int64_t n, Real most, Real* weight);

  /// weight[j] = exp(s[j] − lse[j]), gradient[j] = weight[j] · (dp[j] − delta[j]) · slope[j] · scale, both 0
  /// where s[j] or −lse[j] is −∞. slope may be null; weight may be s, gradient dp.
  void (*gradients)(const Real* s, const Real* dp, std::int64_t n, const Real* lse, const Real* delta,
                    const Real* slope, Real scale, Real* weight, Real* gradient);

  /// weight[j] as the exact sum of three bfloat16 (but for subnormal ones). Null for double.
  void (*split)(const Real* weight, std::int64_t n, std::uint16_t* const part[3]);

  void (*scale)(Real* x, std::int64_t n, Real factor);
};

}  // namespace ejk::kernels
