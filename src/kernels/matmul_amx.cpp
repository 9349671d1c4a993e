// Products of bfloat16 by AMX.
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/matmul.hpp"

namespace ejk::kernels {

namespace {

// Written in assembler: GCC's own intrinsics take a tile's number only as a literal.
struct Tiles {
  template <int N>
  static void zero() {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(N));
  }
  template <int N>
  static void load(const void* p, std::int64_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(N) : "memory");
  }
  template <int N>
  static void store(void* p, std::int64_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(N) : "memory");
  }
  template <int Sum, int A, int B>
  static void dot() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sum), "i"(A), "i"(B));
  }
};

// All eight tiles: 16 rows of 64 bytes.
struct alignas(64) Config {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(Config) == 64);

void enter() {
  static constexpr Config kConfig;
  __asm__ volatile("ldtilecfg %0" : : "m"(kConfig));
}

void leave() { __asm__ volatile("tilerelease"); }

#include "kernels/amx.inl"
#include "kernels/avx512_16.inl"
#include "kernels/bf16.inl"
#include "kernels/matmul.inl"

void amx_tile_bf16(const void* a, const void* b, std::int64_t k, std::int64_t rows, std::int64_t columns,
                   Store how, void* out, std::int64_t out_stride) {
  alignas(64) float sums[32 * 32];
  amx_tile<Tiles>(a, b, k, rows, 32, Store::overwrite, sums, 32);
  auto* const to = static_cast<std::uint16_t*>(out);
  const bool past = store_of<Bf16>(how, out, 2 * out_stride) == Store::stream && columns == 32;
  for (std::int64_t r = 0; r < rows; ++r)
    Bf16::store_rounded(to + r * out_stride, Bf16::load(sums + r * 32), Bf16::load(sums + r * 32 + 16),
                        columns, past);
}

constexpr Gemm made() {
  Gemm g = gemm<Bf16, 14, 2, 32, 32>("bf16");
  g.mr = 32;
  g.pass_k = g.kc / 2;            // a tile of A, one of B and the sums stay in the nearest cache
  g.small_m = g.direct_rows / 2;  // tiles are many times as fast as the vectors of direct()
  g.enter = enter;
  g.leave = leave;
  g.tile = amx_tile<Tiles>;
  g.tile_bf16 = amx_tile_bf16;
  return g;
}

static_assert(kAStride<Bf16> == 1088);

}  // namespace

extern const Gemm gemm_bf16_amx;
constinit const Gemm gemm_bf16_amx = made();

}  // namespace ejk::kernels
