// Products on any machine: vectors of 16 bytes, which the compiler maps to what there is.
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/matmul.hpp"

namespace ejk::kernels {

namespace {

#include "kernels/plain.inl"

using F32 = Plain<float, 16, 256>;
using F64 = Plain<double, 16, 256>;

void narrow_16(const float* in, std::int64_t n, std::uint16_t* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = float16(in[i]).bits;
}

void round_16(const float* in, std::int64_t n, std::uint16_t* out) { plain_round_16(in, n, out); }

void stream_line(void* to, const void* from) { std::memcpy(to, from, 64); }

#include "kernels/convert.inl"
#include "kernels/matmul.inl"
#include "kernels/softmax.inl"

#include "kernels/convolve.inl"
#include "kernels/dots.inl"

constinit const Gemm f32 = gemm<F32, 4, 2, 16>("f32");
constinit const Gemm f64 = gemm<F64, 4, 2, 16>("f64");

}  // namespace

extern const Products products_portable;
constinit const Products products_portable{.f32 = &f32,
                                           .f64 = &f64,
                                           .bf16 = nullptr,
                                           EJK_CONVERT_KERNELS,
                                           EJK_SOFTMAX_KERNELS,
                                           EJK_CONVOLVE_KERNELS,
                                           EJK_DOTS_KERNELS};

}  // namespace ejk::kernels
