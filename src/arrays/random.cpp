// Elementary functions as series of at most 23 terms, since the C library's last bits vary. erfinv: M.
// Giles, "Approximating the erfinv function" (2010), as in JAX.
// tests: tests/arrays/test_generate.cpp
#include "arrays/random.hpp"

#include <cmath>

namespace ejk::arrays {

// ln(m · 2^k) = ln m + k · ln 2, ln m = 2 · artanh((m - 1) / (m + 1)) by its series, m within √½ … √2.
double log_of(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  if (m < 0x1.6a09e667f3bcdp-1) m *= 2, --exponent;
  const double s = (m - 1) / (m + 1), square = s * s;
  double sum = 0;
  for (int n = 23; n >= 1; n -= 2) sum = sum * square + 1.0 / n;
  return 2 * s * sum + exponent * 0x1.62e42fefa39efp-1;
}

// e^x = 2^k · e^r with |r| <= ln 2 / 2, by the series.
double exp_of(double x) {
  const double k = std::floor(x * 0x1.71547652b82fep+0 + 0.5);
  const double r = (x - k * 0x1.62e42fee00000p-1) - k * 0x1.a39ef35793c76p-33;
  double sum = 1;
  for (int n = 14; n >= 1; --n) sum = 1 + sum * r / n;
  return std::ldexp(sum, static_cast<int>(k));
}

double erfinv(double x) {
  constexpr double kCentral[] = {2.81022636e-08,  3.43273939e-07, -3.5233877e-06,
                                 -4.39150654e-06, 0.00021858087,  -0.00125372503,
                                 -0.00417768164,  0.246640727,    1.50140941};
  constexpr double kTail[] = {-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
                              -0.0076224613,   0.00943887047,  1.00167406,    2.83297682};
  double w = -log_of((1 - x) * (1 + x));
  const bool central = w < 5;
  w = central ? w - 2.5 : std::sqrt(w) - 3;
  double p = 0;
  for (int i = 0; i < 9; ++i) p = p * w + (central ? kCentral[i] : kTail[i]);
  return p * x;
}

}  // namespace ejk::arrays
