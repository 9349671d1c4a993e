// Products of bfloat16 matrices on AMX: a block of 32 × 32 sums in four tiles, two tiles of A and two of B at
// a time. The parameter T has the instructions on tiles of 16 rows of 64 bytes: zero<N>(), load<N>(p,
// stride), dot<Sum, A, B>(), store<N>(p, stride); tests substitute an emulation.

template <class T>
void amx_tile(const void* a, const void* b, std::int64_t k, std::int64_t rows, std::int64_t columns,
              Store how, void* out, std::int64_t out_stride) {
  constexpr std::int64_t kARow = 1088, kRow = 128, kSteps = 32, kHalf = 16;
  const auto* from_a = static_cast<const char*>(a);
  const auto* from_b = static_cast<const char*>(b);
  auto* to = static_cast<float*>(out);
  // Ragged tiles use a buffer of the full size; a row has the same bits in any tile.
  alignas(64) float part[32 * 32];
  const bool whole = rows == 32 && columns == 32, lower = rows > kHalf;
  float* sums = whole ? to : part;
  const std::int64_t stride = 4 * (whole ? out_stride : 32), second = kHalf * stride / 4;
  if (how == Store::accumulate) {
    // The tile to the right is mostly next, and begins with what is there.
    for (std::int64_t r = 0; r < rows; ++r) {
      __builtin_prefetch(to + r * out_stride + 32);
      __builtin_prefetch(to + r * out_stride + 48);
    }
    if (!whole)
      for (std::int64_t r = 0; r < rows; ++r)
        std::memcpy(part + r * 32, to + r * out_stride, static_cast<std::size_t>(columns) * 4);
    T::template load<0>(sums, stride), T::template load<1>(sums + kHalf, stride);
    if (lower) T::template load<2>(sums + second, stride), T::template load<3>(sums + second + kHalf, stride);
  } else {
    T::template zero<0>(), T::template zero<1>(), T::template zero<2>(), T::template zero<3>();
  }
  for (std::int64_t p = 0; p < k; p += kSteps, from_a += 2 * kSteps, from_b += kSteps / 2 * kRow) {
    T::template load<6>(from_b, kRow), T::template load<7>(from_b + kRow / 2, kRow);
    T::template load<4>(from_a, kARow);
    T::template dot<0, 4, 6>(), T::template dot<1, 4, 7>();
    if (!lower) continue;
    T::template load<5>(from_a + kHalf * kARow, kARow);
    T::template dot<2, 5, 6>(), T::template dot<3, 5, 7>();
  }
  T::template store<0>(sums, stride), T::template store<1>(sums + kHalf, stride);
  if (lower) T::template store<2>(sums + second, stride), T::template store<3>(sums + second + kHalf, stride);
  if (whole) return;
  for (std::int64_t r = 0; r < rows; ++r)
    std::memcpy(to + r * out_stride, part + r * 32, static_cast<std::size_t>(columns) * 4);
}
