// Kernels for Advanced SIMD. Without a movemask each lane keeps a bit of its own, and pairwise sums gather
// them.
#include <arm_neon.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/kernels.hpp"

namespace ejk::kernels {

namespace {

uint8x16_t load(const void* p) {
  uint8x16_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// Byte i keeps bit i % 8.
constexpr std::uint64_t kOwnBit = 0x8040201008040201ull;

// 64 bytes, each 0 or 255, to a word. After three sums of neighbours a byte holds the bits of eight.
std::uint64_t word_of(uint8x16_t a, uint8x16_t b, uint8x16_t c, uint8x16_t d) {
  const uint8x16_t own = vreinterpretq_u8_u64(vdupq_n_u64(kOwnBit));
  const uint8x16_t ab = vpaddq_u8(vandq_u8(a, own), vandq_u8(b, own));
  const uint8x16_t cd = vpaddq_u8(vandq_u8(c, own), vandq_u8(d, own));
  const uint8x16_t all = vpaddq_u8(ab, cd);
  return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(all, all)), 0);
}

// The truth of 16 elements, given as that of twice, four, eight times as many bytes, in a byte each.
uint8x16_t bytes_of_16(uint16x8_t a, uint16x8_t b) {
  return vuzp1q_u8(vreinterpretq_u8_u16(a), vreinterpretq_u8_u16(b));
}
uint16x8_t halves_of_32(uint32x4_t a, uint32x4_t b) {
  return vuzp1q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b));
}
uint32x4_t words_of_64(uint64x2_t a, uint64x2_t b) {
  return vuzp1q_u32(vreinterpretq_u32_u64(a), vreinterpretq_u32_u64(b));
}

// Which bytes, and so on, of the vector at p are not 0.
uint8x16_t some_8(const unsigned char* p) {
  const uint8x16_t v = load(p);
  return vtstq_u8(v, v);
}
uint16x8_t some_16(const unsigned char* p) {
  const uint16x8_t v = vreinterpretq_u16_u8(load(p));
  return vtstq_u16(v, v);
}
uint32x4_t some_32(const unsigned char* p) {
  const uint32x4_t v = vreinterpretq_u32_u8(load(p));
  return vtstq_u32(v, v);
}
uint64x2_t some_64(const unsigned char* p) {
  const uint64x2_t v = vreinterpretq_u64_u8(load(p));
  return vtstq_u64(v, v);
}

uint8x16_t truth_16(const unsigned char* p) { return bytes_of_16(some_16(p), some_16(p + 16)); }
uint8x16_t truth_32(const unsigned char* p) {
  return bytes_of_16(halves_of_32(some_32(p), some_32(p + 16)),
                     halves_of_32(some_32(p + 32), some_32(p + 48)));
}
uint8x16_t truth_64(const unsigned char* p) {
  const auto four = [p](int i) { return words_of_64(some_64(p + 32 * i), some_64(p + 32 * i + 16)); };
  return bytes_of_16(halves_of_32(four(0), four(1)), halves_of_32(four(2), four(3)));
}
uint8x16_t equal_16(const std::int32_t* p, int32x4_t value) {
  const auto four = [&](int i) { return vceqq_s32(vreinterpretq_s32_u8(load(p + 4 * i)), value); };
  return bytes_of_16(halves_of_32(four(0), four(1)), halves_of_32(four(2), four(3)));
}

std::uint64_t word_8(const unsigned char* p) {
  return word_of(some_8(p), some_8(p + 16), some_8(p + 32), some_8(p + 48));
}
std::uint64_t word_16(const unsigned char* p) {
  return word_of(truth_16(p), truth_16(p + 32), truth_16(p + 64), truth_16(p + 96));
}
std::uint64_t word_32(const unsigned char* p) {
  return word_of(truth_32(p), truth_32(p + 64), truth_32(p + 128), truth_32(p + 192));
}
std::uint64_t word_64(const unsigned char* p) {
  return word_of(truth_64(p), truth_64(p + 128), truth_64(p + 256), truth_64(p + 384));
}

std::uint64_t equal_word(const std::int32_t* p, std::int32_t value) {
  const int32x4_t wanted = vdupq_n_s32(value);
  return word_of(equal_16(p, wanted), equal_16(p + 16, wanted), equal_16(p + 32, wanted),
                 equal_16(p + 48, wanted));
}

void expand_word(std::uint64_t word, std::uint8_t* out) {
  // Byte b shows the source byte b / 8; the test picks bit b % 8 of it.
  const uint8x16_t all = vreinterpretq_u8_u64(vdupq_n_u64(word));
  const uint8x16_t own = vreinterpretq_u8_u64(vdupq_n_u64(kOwnBit));
  uint8x16_t source = vcombine_u8(vdup_n_u8(0), vdup_n_u8(1));
  for (int i = 0; i < 4; ++i) {
    const uint8x16_t ones = vandq_u8(vtstq_u8(vqtbl1q_u8(all, source), own), vdupq_n_u8(1));
    std::memcpy(out + 16 * i, &ones, sizeof ones);
    source = vaddq_u8(source, vdupq_n_u8(2));
  }
}

#include "kernels/bits.inl"

// Streaming stores need no instructions of their own here.
struct Vector32 {
  using T = std::uint32_t;
  static constexpr std::int64_t kLanes = 4;
  uint32x4_t v;

  static Vector32 of(const T* p) { return {vld1q_u32(p)}; }
  static Vector32 all(T x) { return {vdupq_n_u32(x)}; }
  Vector32 plus(const Vector32& other) const { return {vaddq_u32(v, other.v)}; }
  Vector32 below(std::int64_t lane, const Vector32& after) const {
    static constexpr std::int32_t kLane[] = {0, 1, 2, 3};
    return {vbslq_u32(vcltq_s32(vld1q_s32(kLane), vdupq_n_s32(static_cast<std::int32_t>(lane))), v, after.v)};
  }
  void store(T* p) const { vst1q_u32(p, v); }
  void stream(T* p) const { store(p); }
};

struct Vector64 {
  using T = std::uint64_t;
  static constexpr std::int64_t kLanes = 2;
  uint64x2_t v;

  static Vector64 of(const T* p) { return {vld1q_u64(p)}; }
  static Vector64 all(T x) { return {vdupq_n_u64(x)}; }
  Vector64 plus(const Vector64& other) const { return {vaddq_u64(v, other.v)}; }
  Vector64 below(std::int64_t lane, const Vector64& after) const {
    static constexpr std::int64_t kLane[] = {0, 1};
    return {vbslq_u64(vcltq_s64(vld1q_s64(kLane), vdupq_n_s64(lane)), v, after.v)};
  }
  void store(T* p) const { vst1q_u64(p, v); }
  void stream(T* p) const { store(p); }
};

void stream_fence() {}

#define EJK_WIDENS_FLOAT16
void widen_float16(const std::uint16_t* from, float* to) {
  for (int i = 0; i < 32; i += 4) vst1q_f32(to + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from + i))));
}

#include "kernels/close.inl"
#include "kernels/codes.inl"
#include "kernels/progression.inl"

}  // namespace

extern const Kernels neon;
constinit const Kernels neon{.name = "neon",
                             .needs = 0,
                             EJK_BITS_KERNELS,
                             EJK_PROGRESSION_KERNELS,
                             EJK_CLOSE_KERNELS,
                             EJK_CODES_KERNELS};

}  // namespace ejk::kernels
