// Kernels for any machine, eight elements in a 64-bit word where that helps.
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/kernels.hpp"

namespace ejk::kernels {

namespace {

// Eight bytes to eight bits: the top bit of each nonzero byte, gathered in the highest byte by a
// multiplication.
std::uint64_t eight_bytes(std::uint64_t v) {
  constexpr std::uint64_t kLow7 = 0x7F7F7F7F7F7F7F7Full;
  const std::uint64_t set = (((v & kLow7) + kLow7) | v) >> 7 & 0x0101010101010101ull;
  return (set * 0x0102040810204080ull) >> 56;
}

std::uint64_t word_8(const unsigned char* p) {
  std::uint64_t word = 0;
  for (int i = 0; i < 8; ++i) {
    std::uint64_t v = 0;
    std::memcpy(&v, p + 8 * i, 8);
    word |= eight_bytes(v) << (8 * i);
  }
  return word;
}

template <class T>
std::uint64_t word_of(const unsigned char* p) {
  std::uint64_t word = 0;
  for (int i = 0; i < 64; ++i) {
    T v = 0;
    std::memcpy(&v, p + static_cast<int>(sizeof(T)) * i, sizeof(T));
    word |= static_cast<std::uint64_t>(v != 0) << i;
  }
  return word;
}
std::uint64_t word_16(const unsigned char* p) { return word_of<std::uint16_t>(p); }
std::uint64_t word_32(const unsigned char* p) { return word_of<std::uint32_t>(p); }
std::uint64_t word_64(const unsigned char* p) { return word_of<std::uint64_t>(p); }

std::uint64_t equal_word(const std::int32_t* p, std::int32_t value) {
  std::uint64_t word = 0;
  for (int i = 0; i < 64; ++i) word |= static_cast<std::uint64_t>(p[i] == value) << i;
  return word;
}

// Byte i of the product is the whole byte; the mask keeps bit i of it; adding carries it to the top bit.
void expand_word(std::uint64_t word, std::uint8_t* out) {
  for (int i = 0; i < 8; ++i) {
    const std::uint64_t spread = (word >> (8 * i) & 0xFFu) * 0x0101010101010101ull & 0x8040201008040201ull;
    const std::uint64_t bytes = (spread + 0x7F7F7F7F7F7F7F7Full) >> 7 & 0x0101010101010101ull;
    std::memcpy(out + 8 * i, &bytes, 8);
  }
}

#include "kernels/bits.inl"

// A vector of one cache line, left to the compiler.
template <class Element>
struct Line {
  using T = Element;
  static constexpr std::int64_t kLanes = 64 / static_cast<std::int64_t>(sizeof(T));
  T lane[kLanes];

  static Line of(const T* p) {
    Line v;
    std::memcpy(v.lane, p, sizeof v.lane);
    return v;
  }
  static Line all(T x) {
    Line v;
    for (T& l : v.lane) l = x;
    return v;
  }
  Line plus(const Line& other) const {
    Line v;
    for (std::int64_t i = 0; i < kLanes; ++i) v.lane[i] = lane[i] + other.lane[i];
    return v;
  }
  Line below(std::int64_t end, const Line& after) const {
    Line v;
    for (std::int64_t i = 0; i < kLanes; ++i) v.lane[i] = i < end ? lane[i] : after.lane[i];
    return v;
  }
  void store(T* p) const { std::memcpy(p, lane, sizeof lane); }
  void stream(T* p) const { store(p); }
};
using Vector32 = Line<std::uint32_t>;
using Vector64 = Line<std::uint64_t>;
void stream_fence() {}

#include "kernels/close.inl"
#include "kernels/codes.inl"
#include "kernels/progression.inl"

}  // namespace

extern const Kernels portable;
constinit const Kernels portable{.name = "portable",
                                 .needs = 0,
                                 EJK_BITS_KERNELS,
                                 EJK_PROGRESSION_KERNELS,
                                 EJK_CLOSE_KERNELS,
                                 EJK_CODES_KERNELS};

}  // namespace ejk::kernels
