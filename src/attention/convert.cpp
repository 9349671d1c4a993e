// identity_dtype_convert: an identity whose gradient has another dtype.
// tests: tests/attention/test_convert.cpp
#include <fmt/format.h>

#include <algorithm>

#include "attention/numbers.hpp"
#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "core/require.hpp"
#include "ejk/attention.hpp"

namespace ejk {

namespace {

void check_float(DType dtype, const char* what) {
  if (!is_wide_float(dtype))
    throw core::invalid("{} must be float16, bfloat16, float32 or float64, not {}", what, name_of(dtype));
}

}  // namespace

ArrayView identity_dtype_convert(const ArrayView& x, DType dtype) {
  check_float(x.dtype, "what has a gradient");
  check_float(dtype, "the gradient's dtype");
  return x;
}

Array identity_dtype_convert_backward(const ArrayView& gradient, DType dtype) {
  check_float(gradient.dtype, "a gradient");
  check_float(dtype, "the gradient's dtype");
  const Array from = Array::copy_of(gradient);
  Array out(dtype, gradient.shape);
  constexpr std::int64_t kAtOnce = 4096;
  core::parallel_for(
      core::ceil_div(out.size(), kAtOnce), static_cast<double>(out.size()), [&](std::int64_t piece) {
        const std::int64_t begin = piece * kAtOnce, count = std::min(kAtOnce, out.size() - begin);
        const std::int64_t item = size_of(from.dtype());
        std::byte* const to = out.data() + begin * size_of(dtype);
        if (from.dtype() == DType::float64) {
          attn::store(from.elements<double>().data() + begin, count, dtype, to);
          return;
        }
        float values[kAtOnce];
        attn::load(from.dtype(), from.data() + begin * item, item, count, values);
        attn::store(values, count, dtype, to);
      });
  return out;
}

}  // namespace ejk
