// Byte-swapping of elements.
#pragma once

#include <cstdint>
#include <cstring>

namespace ejk::io {

namespace detail {

template <class U, class F>
void swap_each(std::byte* data, std::int64_t count, F&& swapped) {
  for (std::int64_t i = 0; i < count; ++i) {
    U u;  // elements may be unaligned
    std::memcpy(&u, data + i * static_cast<std::int64_t>(sizeof u), sizeof u);
    u = swapped(u);
    std::memcpy(data + i * static_cast<std::int64_t>(sizeof u), &u, sizeof u);
  }
}

}  // namespace detail

/// Reverses the bytes of each of `count` elements of `size` bytes (1, 2, 4 or 8).
inline void swap_bytes(void* data, std::int64_t count, std::int64_t size) {
  auto* bytes = static_cast<std::byte*>(data);
  if (size == 2)
    detail::swap_each<std::uint16_t>(bytes, count, [](std::uint16_t u) { return __builtin_bswap16(u); });
  else if (size == 4)
    detail::swap_each<std::uint32_t>(bytes, count, [](std::uint32_t u) { return __builtin_bswap32(u); });
  else if (size == 8)
    detail::swap_each<std::uint64_t>(bytes, count, [](std::uint64_t u) { return __builtin_bswap64(u); });
}

}  // namespace ejk::io
