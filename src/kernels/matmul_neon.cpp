// Products on Advanced SIMD: 8 × 12 sums (float32) or 8 × 6 (float64) in 24 of the 32 registers.
#include <arm_neon.h>

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/matmul.hpp"

namespace ejk::kernels {

namespace {

#include "kernels/plain.inl"

float32x4_t widen_4(uint16x4_t v, bool bfloat16) {
  return bfloat16 ? vreinterpretq_f32_u32(vshll_n_u16(v, 16)) : vcvt_f32_f16(vreinterpret_f16_u16(v));
}

template <class V>
V at(const char* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

struct F32 : Plain<float, 16, 256> {
  static Vec load_part(const float* p, int n) {
    float32x4_t v = vld1q_lane_f32(p, vdupq_n_f32(0), 0);
    if (n > 1) v = vld1q_lane_f32(p + 1, v, 1);
    if (n > 2) v = vld1q_lane_f32(p + 2, v, 2);
    return n > 3 ? vld1q_lane_f32(p + 3, v, 3) : v;
  }
  static void store_part(float* p, Vec v, int n) {
    vst1q_lane_f32(p, v, 0);
    if (n > 1) vst1q_lane_f32(p + 1, v, 1);
    if (n > 2) vst1q_lane_f32(p + 2, v, 2);
    if (n > 3) vst1q_lane_f32(p + 3, v, 3);
  }
  static Vec mac(Vec sum, Pack a, Pack b) { return vfmaq_f32(sum, a, b); }
  template <DType D>
  static Vec widen(const char* p) {
    if constexpr (D == DType::float32)
      return at<float32x4_t>(p);
    else
      return widen_4(at<uint16x4_t>(p), D == DType::bfloat16);
  }
  template <DType D>
  static void spread_pair(const char* p, Pack* to) {
    const float32x4_t both =
        widen_4(vreinterpret_u16_u32(vdup_n_u32(at<std::uint32_t>(p))), D == DType::bfloat16);
    to[0] = vtrn1q_f32(both, both);
    to[1] = vtrn2q_f32(both, both);
  }
};

struct F64 : Plain<double, 16, 256> {
  static Vec load_part(const double* p, int n) { return n > 1 ? load(p) : Vec{*p}; }
  static void store_part(double* p, Vec v, int n) {
    vst1q_lane_f64(p, v, 0);
    if (n > 1) vst1q_lane_f64(p + 1, v, 1);
  }
  static Vec mac(Vec sum, Pack a, Pack b) { return vfmaq_f64(sum, a, b); }
  template <DType D>
  static Vec widen(const char* p) {
    if constexpr (D == DType::float64)
      return at<float64x2_t>(p);
    else if constexpr (D == DType::float32)
      return vcvt_f64_f32(at<float32x2_t>(p));
    else
      return vcvt_f64_f32(vget_low_f32(widen_4(vcreate_u16(at<std::uint32_t>(p)), D == DType::bfloat16)));
  }
};

// For tiles an element of A is loaded into one lane and broadcast by the multiply-add.
struct TileF32 : F32 {
  static Pack spread_a(const char* p) { return Vec{*reinterpret_cast<const float*>(p)}; }
  static Vec mac(Vec sum, Pack a, Pack b) { return vfmaq_laneq_f32(sum, b, a, 0); }
};
struct TileF64 : F64 {
  static Pack spread_a(const char* p) { return Vec{*reinterpret_cast<const double*>(p)}; }
  static Vec mac(Vec sum, Pack a, Pack b) { return vfmaq_laneq_f64(sum, b, a, 0); }
};

void narrow_16(const float* in, std::int64_t n, std::uint16_t* out) {
  const auto half = [](const float* p) { return vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(p))); };
  for (; n >= 4; n -= 4, in += 4, out += 4) vst1_u16(out, half(in));
  if (n > 0) {
    float part[4] = {};
    std::uint16_t halves[4];
    std::memcpy(part, in, static_cast<std::size_t>(n) * 4);
    vst1_u16(halves, half(part));
    std::memcpy(out, halves, static_cast<std::size_t>(n) * 2);
  }
}

void round_16(const float* in, std::int64_t n, std::uint16_t* out) { plain_round_16(in, n, out); }

void stream_line(void* to, const void* from) { std::memcpy(to, from, 64); }

#include "kernels/convert.inl"
#include "kernels/matmul.inl"
#include "kernels/softmax.inl"

#include "kernels/convolve.inl"
#include "kernels/dots.inl"

constinit const Gemm f32 = gemm<TileF32, 8, 3, 32>("f32");
constinit const Gemm f64 = gemm<TileF64, 8, 3, 32>("f64");

}  // namespace

extern const Products products_neon;
constinit const Products products_neon{.f32 = &f32,
                                       .f64 = &f64,
                                       .bf16 = nullptr,
                                       EJK_CONVERT_KERNELS,
                                       EJK_SOFTMAX_KERNELS,
                                       EJK_CONVOLVE_KERNELS,
                                       EJK_DOTS_KERNELS};

}  // namespace ejk::kernels
