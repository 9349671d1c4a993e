// The filters are undone from the last to the first, each from one buffer to another. Cost: one pass over the
// bytes for each; inflating is by far the slowest.
// tests: tests/io/test_filters.cpp
#include "io/hdf5/filters.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "ejk/error.hpp"

namespace ejk::io {

namespace {

constexpr std::int64_t kChecksumBytes = 4;

Error damaged(std::string why) { return Error(Error::Kind::input, std::move(why)); }

std::int64_t length(const Bytes& bytes) { return static_cast<std::int64_t>(bytes.size()); }

void inflate(const Bytes& from, std::int64_t size, Bytes& to) {
  to.resize(static_cast<std::size_t>(size));
  uLongf yielded = to.size();
  uLong taken = from.size();
  // Without an element there is still a place to write to.
  Bytef nowhere = 0;
  auto* const out = to.empty() ? &nowhere : reinterpret_cast<Bytef*>(to.data());
  const int status = uncompress2(out, &yielded, reinterpret_cast<const Bytef*>(from.data()), &taken);
  if (status == Z_MEM_ERROR) throw std::bad_alloc();
  // A stream that is cut off after its last element ends with its bytes.
  if (status == Z_BUF_ERROR && taken < from.size())
    throw damaged(fmt::format("inflates to more than its {} bytes", size));
  if (status != Z_OK) throw damaged("is damaged: no whole zlib stream");
  if (static_cast<std::int64_t>(yielded) != size)
    throw damaged(fmt::format("inflates to {} bytes, not to its {}", yielded, size));
}

// The first bytes of all elements come first, then the second ones; what is left over of an element stays
// at the end.
template <std::size_t kBytes>
void interleave(const std::byte* __restrict from, std::size_t elements, std::size_t,
                std::byte* __restrict to) {
  for (std::size_t i = 0; i < elements; ++i)
    for (std::size_t b = 0; b < kBytes; ++b) to[i * kBytes + b] = from[b * elements + i];
}

template <>
void interleave<0>(const std::byte* __restrict from, std::size_t elements, std::size_t bytes,
                   std::byte* __restrict to) {
  for (std::size_t b = 0; b < bytes; ++b)
    for (std::size_t i = 0; i < elements; ++i) to[i * bytes + b] = from[b * elements + i];
}

void unshuffle(const Bytes& from, std::int64_t element_bytes, Bytes& to) {
  to.resize(from.size());
  const auto bytes = static_cast<std::size_t>(element_bytes);
  const std::size_t elements = from.size() / bytes, whole = elements * bytes;
  const auto run = bytes == 2   ? interleave<2>
                   : bytes == 4 ? interleave<4>
                   : bytes == 8 ? interleave<8>
                                : interleave<0>;
  run(from.data(), elements, bytes, to.data());
  std::copy(from.begin() + static_cast<std::ptrdiff_t>(whole), from.end(),
            to.begin() + static_cast<std::ptrdiff_t>(whole));
}

// Fletcher's sums of 16-bit words, the first byte the higher one, in ones' complement: a sum is 0 only when
// all words are.
std::uint32_t fletcher32(const std::byte* data, std::size_t bytes) {
  std::uint64_t first = 0, second = 0;
  const auto add = [&](unsigned high, unsigned low) { first += high << 8 | low, second += first; };
  // So many words leave both sums far below 2^64.
  constexpr std::size_t kRun = 1 << 16;
  const auto fold = [](std::uint64_t sum) { return sum == 0 ? 0 : (sum - 1) % 0xFFFF + 1; };
  for (std::size_t i = 0; i < bytes;) {
    for (const std::size_t end = std::min(bytes, i + 2 * kRun); i < end; i += 2)
      add(std::to_integer<unsigned>(data[i]), i + 1 < bytes ? std::to_integer<unsigned>(data[i + 1]) : 0);
    first = fold(first), second = fold(second);
  }
  return static_cast<std::uint32_t>(second << 16 | first);
}

void check_and_drop_checksum(Bytes& bytes) {
  if (length(bytes) < kChecksumBytes)
    throw damaged(fmt::format("has only {} bytes, less than its checksum", bytes.size()));
  const std::size_t n = bytes.size() - kChecksumBytes;
  const std::uint32_t sum = fletcher32(bytes.data(), n);
  std::uint32_t stored = 0;  // little-endian
  for (std::size_t i = kChecksumBytes; i-- > 0;)
    stored = stored << 8 | std::to_integer<unsigned>(bytes[n + i]);
  // The library's versions before 1.6.3 changed the bytes of each half.
  const std::uint32_t old = (stored & 0x00FF00FF) << 8 | (stored & 0xFF00FF00) >> 8;
  if (sum != stored && sum != old) throw damaged("is damaged: its checksum (fletcher32) is wrong");
  bytes.resize(n);
}

}  // namespace

void undo_filters(std::span<const Filter> filters, std::uint32_t left_out, std::int64_t size, Bytes& bytes,
                  Bytes& spare) {
  const auto used = [&](std::size_t i) { return (left_out >> i & 1) == 0; };
  for (std::size_t i = filters.size(); i-- > 0;) {
    if (!used(i)) continue;
    switch (filters[i].kind) {
      case Filter::Kind::deflate: {
        std::int64_t inflated = size;  // what the filters before it made of the chunk
        for (std::size_t before = 0; before < i; ++before)
          if (used(before) && filters[before].kind == Filter::Kind::fletcher32) inflated += kChecksumBytes;
        inflate(bytes, inflated, spare);
        bytes.swap(spare);
        break;
      }
      case Filter::Kind::shuffle:
        if (filters[i].element_bytes < 2) break;
        unshuffle(bytes, filters[i].element_bytes, spare);
        bytes.swap(spare);
        break;
      case Filter::Kind::fletcher32:
        check_and_drop_checksum(bytes);
        break;
    }
  }
  if (length(bytes) != size) throw damaged(fmt::format("has {} bytes, not its {}", bytes.size(), size));
}

}  // namespace ejk::io
