// Products of many small factors without the cost of subnormal numbers.
// tests: tests/core/test_flush_subnormals.cpp
#pragma once

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace ejk::core {

/// While one exists, results of its thread that would be subnormal are 0, on x86, whose operations with subnormal
/// numbers take a hundred times as long. For results that count beside larger ones. Operands may be subnormal: float16
/// is widened by way of them.
class FlushSubnormals {
 public:
#if defined(__SSE2__)
  FlushSubnormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | _MM_FLUSH_ZERO_ON); }
  ~FlushSubnormals() { _mm_setcsr(saved_); }
#else
  FlushSubnormals() = default;
#endif
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

#if defined(__SSE2__)
 private:
  unsigned saved_;
#endif
};

}  // namespace ejk::core
