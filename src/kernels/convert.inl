// Sums to results, rounded once. The including file defines narrow_16() and round_16(), float32 to float16
// and bfloat16, to nearest even, with quiet NaN, and stream_line(to, from), a cache line past the caches.

// A double to the float32 from which a 16-bit type rounds as from the double: inexact results get an odd last
// bit.
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

inline void convert_16(const float* from, std::int64_t n, DType dtype, std::uint16_t* out) {
  if (dtype == DType::float16) return narrow_16(from, n, out);
  round_16(from, n, out);
}

// Runs of 32 results, a cache line; each is made by f(first, count, out).
template <class F>
void by_lines(std::int64_t n, bool stream, std::uint16_t* out, F&& f) {
  constexpr std::int64_t kLineElements = 32;
  const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(out) % 64 / 2);
  std::int64_t count = past == 0 ? kLineElements : kLineElements - past;
  for (std::int64_t i = 0; i < n; i += count, count = kLineElements) {
    if (count > n - i) count = n - i;
    if (stream && count == kLineElements) {
      alignas(64) std::uint16_t line[kLineElements];
      f(i, count, line);
      stream_line(out + i, line);
    } else {
      f(i, count, out + i);
    }
  }
}

inline void convert_f32(const void* sums, std::int64_t n, DType dtype, bool stream, void* out) {
  const auto* from = static_cast<const float*>(sums);
  if (dtype == DType::float32) std::memcpy(out, sums, static_cast<std::size_t>(n) * 4);
  if (dtype == DType::float64) {
    auto* to = static_cast<double*>(out);
    for (std::int64_t i = 0; i < n; ++i) to[i] = from[i];
  }
  if (dtype != DType::float16 && dtype != DType::bfloat16) return;
  auto* const to = static_cast<std::uint16_t*>(out);
  if (!stream) return convert_16(from, n, dtype, to);
  by_lines(n, stream, to, [&](std::int64_t i, std::int64_t count, std::uint16_t* line) {
    convert_16(from + i, count, dtype, line);
  });
}

inline void convert_f64(const void* sums, std::int64_t n, DType dtype, bool stream, void* out) {
  const auto* from = static_cast<const double*>(sums);
  if (dtype == DType::float64) std::memcpy(out, sums, static_cast<std::size_t>(n) * 8);
  if (dtype == DType::float32) {
    auto* to = static_cast<float*>(out);
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(from[i]);
  }
  if (dtype == DType::float16 || dtype == DType::bfloat16)
    by_lines(n, stream, static_cast<std::uint16_t*>(out),
             [&](std::int64_t i, std::int64_t count, std::uint16_t* to) {
               float part[32];
               for (std::int64_t j = 0; j < count; ++j) part[j] = to_odd(from[i + j]);
               convert_16(part, count, dtype, to);
             });
}

#define EJK_CONVERT_KERNELS .convert_f32 = convert_f32, .convert_f64 = convert_f64
