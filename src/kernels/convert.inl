// Sums to results, rounded once; included by instruction sets' files inside their own unnamed namespace. The
// file defines before: narrow_16(const float*, n, std::uint16_t*), float32 to float16.

// float32 to bfloat16, to nearest, ties to even; a NaN keeps its upper half and is quiet.
inline std::uint16_t to_bfloat16(std::uint32_t u) {
  const std::uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16, quiet = (u >> 16) | 0x40u;
  return static_cast<std::uint16_t>((u & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
}

// A double to the float32 from which a 16-bit type rounds as it would from the double: inexact results get an
// odd last bit, which no later rounding takes for a tie.
inline float to_odd(double x) {
  const auto nearest = static_cast<float>(x);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &nearest, 4);
  const double back = nearest;
  if (back == x || x != x || (bits & 0x7F800000u) == 0x7F800000u) return nearest;
  if ((bits & 1u) == 0) bits += (back < x) == (x > 0) ? 1u : ~0u;
  float odd = 0;
  std::memcpy(&odd, &bits, 4);
  return odd;
}

inline void convert_f32(const void* sums, std::int64_t n, DType dtype, void* out) {
  const auto* from = static_cast<const float*>(sums);
  if (dtype == DType::float32) std::memcpy(out, sums, static_cast<std::size_t>(n) * 4);
  if (dtype == DType::float16) narrow_16(from, n, static_cast<std::uint16_t*>(out));
  if (dtype == DType::bfloat16) {
    auto* to = static_cast<std::uint16_t*>(out);
    for (std::int64_t i = 0; i < n; ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, from + i, 4);
      to[i] = to_bfloat16(bits);
    }
  }
  if (dtype == DType::float64) {
    auto* to = static_cast<double*>(out);
    for (std::int64_t i = 0; i < n; ++i) to[i] = from[i];
  }
}

inline void convert_f64(const void* sums, std::int64_t n, DType dtype, void* out) {
  const auto* from = static_cast<const double*>(sums);
  if (dtype == DType::float64) std::memcpy(out, sums, static_cast<std::size_t>(n) * 8);
  if (dtype == DType::float32) {
    auto* to = static_cast<float*>(out);
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(from[i]);
  }
  if (dtype == DType::float16 || dtype == DType::bfloat16) {
    constexpr std::int64_t kAtOnce = 64;
    float part[kAtOnce];
    for (std::int64_t i = 0; i < n; i += kAtOnce) {
      const std::int64_t count = n - i < kAtOnce ? n - i : kAtOnce;
      for (std::int64_t j = 0; j < count; ++j) part[j] = to_odd(from[i + j]);
      convert_f32(part, count, dtype, static_cast<std::uint16_t*>(out) + i);
    }
  }
}
