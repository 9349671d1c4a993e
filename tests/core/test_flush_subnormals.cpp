// Subnormal results are 0 within a scope and numbers after it.
#include "core/flush_subnormals.hpp"

#include <doctest/doctest.h>

TEST_CASE("subnormal results are 0 while they are flushed, and come back; operands stay") {
  volatile float small = 0x1p-100F, subnormal = 0x1p-140F;
  const auto product = [&] { return small * 0x1p-40F; };
  CHECK(product() == 0x1p-140F);
  {
    const ejk::core::FlushSubnormals flush;
    const float flushed = product(), read = subnormal * 0x1p100F;
#if defined(__SSE2__)
    CHECK(flushed == 0);
#else
    CHECK(flushed == 0x1p-140F);
#endif
    CHECK(read == 0x1p-40F);
  }
  CHECK(product() == 0x1p-140F);
}
