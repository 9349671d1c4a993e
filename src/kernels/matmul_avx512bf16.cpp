// Products of bfloat16 on AVX-512 BF16: 14 × 32 float32 sums, two contraction elements an instruction.
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/matmul.hpp"

namespace ejk::kernels {

namespace {

#include "kernels/avx512_16.inl"
#include "kernels/bf16.inl"
#include "kernels/matmul.inl"

}  // namespace

extern const Gemm gemm_bf16_avx512bf16;
constinit const Gemm gemm_bf16_avx512bf16 = gemm<Bf16, 14, 2, 32>("bf16");

}  // namespace ejk::kernels
