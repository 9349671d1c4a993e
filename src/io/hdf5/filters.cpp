// HDF5's filters of chunks, decoded from the last to the first, each from one buffer to another. Cost: one
// pass over the bytes per filter; inflating is by far the slowest.
// tests: tests/io/test_filters.cpp
#include "io/hdf5/filters.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ejk/error.hpp"

namespace ejk::io {

namespace {

constexpr std::int64_t kChecksumBytes = 4;

Error damaged(std::string why) { return Error(Error::Kind::input, std::move(why)); }

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

// A byte below 32 is one less than how many bytes follow as they are. The upper three bits of any other are
// two less than how many bytes come again that are there already (7: so many more as the next byte says), the
// lower five and the next byte how far back those begin, less one.
void inflate_lzf(const Bytes& from, std::int64_t size, Bytes& to) {
  to.resize(static_cast<std::size_t>(size));
  std::size_t at = 0, done = 0;
  const auto next = [&] {
    if (at == from.size()) throw damaged("is damaged: its lzf stream is cut off");
    return std::to_integer<std::size_t>(from[at++]);
  };
  while (at < from.size()) {
    const std::size_t control = next();
    std::size_t n = control < 32 ? control + 1 : (control >> 5) + 2;
    if (control >> 5 == 7) n += next();
    if (n > to.size() - done) throw damaged(fmt::format("inflates to more than its {} bytes", size));
    std::byte* const out = to.data() + done;
    if (control < 32) {
      if (n > from.size() - at) throw damaged("is damaged: its lzf stream is cut off");
      std::memcpy(out, from.data() + at, n);
      at += n;
    } else {
      const std::size_t back = ((control & 31) << 8 | next()) + 1;
      if (back > done) throw damaged("is damaged: its lzf stream refers to bytes before its first one");
      if (back >= n)
        std::memcpy(out, out - back, n);
      else
        for (std::size_t i = 0; i < n; ++i) out[i] = (out - back)[i];  // what was just copied comes again
    }
    done += n;
  }
  if (done != to.size()) throw damaged(fmt::format("inflates to {} bytes, not to its {}", done, size));
}

// The first bytes of all elements come first, then the second ones; what is left over of an element stays
// at the end.
template <std::size_t kBytes>
void interleave(const std::byte* __restrict from, std::size_t elements, std::size_t bytes,
                std::byte* __restrict to) {
  if (kBytes > 0) bytes = kBytes;  // which the compiler knows
  for (std::size_t i = 0; i < elements; ++i)
    for (std::size_t b = 0; b < bytes; ++b) to[i * bytes + b] = from[b * elements + i];
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
  if (std::ssize(bytes) < kChecksumBytes)
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

std::optional<Filter::Kind> filter_kind(int id) {
  using Kind = Filter::Kind;
  constexpr std::pair<int, Kind> kKinds[] = {
      {1, Kind::deflate}, {2, Kind::shuffle}, {3, Kind::fletcher32}, {32000, Kind::lzf}};
  for (const auto& [number, kind] : kKinds)
    if (number == id) return kind;
  return std::nullopt;
}

void undo_filters(std::span<const Filter> filters, std::uint32_t left_out, std::int64_t size, Bytes& bytes,
                  Bytes& spare) {
  const auto used = [&](std::size_t i) { return (left_out >> i & 1) == 0; };
  for (std::size_t i = filters.size(); i-- > 0;) {
    if (!used(i)) continue;
    switch (filters[i].kind) {
      case Filter::Kind::deflate:
      case Filter::Kind::lzf: {
        std::int64_t inflated = size;  // what the filters before it made of the chunk
        for (std::size_t before = 0; before < i; ++before)
          if (used(before) && filters[before].kind == Filter::Kind::fletcher32) inflated += kChecksumBytes;
        (filters[i].kind == Filter::Kind::lzf ? inflate_lzf : inflate)(bytes, inflated, spare);
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
  if (std::ssize(bytes) != size) throw damaged(fmt::format("has {} bytes, not its {}", bytes.size(), size));
}

}  // namespace ejk::io
