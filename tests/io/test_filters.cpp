// Decoded filters against their definitions, computed byte by byte.
#include "io/hdf5/filters.hpp"

#include <zlib.h>

#include "io/support.hpp"

using namespace ejk;
using namespace ejk::test;
using io::Bytes;
using io::Filter;

namespace {

Bytes noise(std::size_t n) {
  Bytes bytes(n);
  std::uint32_t state = 7;
  for (std::byte& b : bytes) state = state * 1664525u + 1013904223u, b = static_cast<std::byte>(state >> 24);
  return bytes;
}

Bytes deflated(const Bytes& bytes) {
  uLongf n = compressBound(bytes.size());
  Bytes stream(n);
  compress(reinterpret_cast<Bytef*>(stream.data()), &n, reinterpret_cast<const Bytef*>(bytes.data()),
           bytes.size());
  stream.resize(n);
  return stream;
}

Bytes of(std::string_view text) {
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  return Bytes(bytes, bytes + text.size());
}

// Runs of bytes as they are, and where the last `back` bytes come again the few bytes that say so.
Bytes lzf(const Bytes& bytes, std::size_t back) {
  Bytes stream;
  for (std::size_t at = 0; at < bytes.size();) {
    std::size_t n = 0;
    while (at >= back && n < 264 && at + n < bytes.size() && bytes[at + n] == bytes[at + n - back]) ++n;
    if (n >= 3) {
      const std::size_t length = n - 2, distance = back - 1;
      stream.push_back(static_cast<std::byte>(std::min<std::size_t>(length, 7) << 5 | distance >> 8));
      if (length >= 7) stream.push_back(static_cast<std::byte>(length - 7));
      stream.push_back(static_cast<std::byte>(distance & 0xFF));
    } else {
      n = std::min<std::size_t>({32, bytes.size() - at, at < back ? back - at : 1});
      stream.push_back(static_cast<std::byte>(n - 1));
      const auto from = bytes.begin() + static_cast<std::ptrdiff_t>(at);
      stream.insert(stream.end(), from, from + static_cast<std::ptrdiff_t>(n));
    }
    at += n;
  }
  return stream;
}

Bytes shuffled(const Bytes& bytes, std::size_t size) {
  Bytes out;
  const std::size_t elements = bytes.size() / size;
  for (std::size_t b = 0; b < size; ++b)
    for (std::size_t i = 0; i < elements; ++i) out.push_back(bytes[i * size + b]);
  out.insert(out.end(), bytes.begin() + static_cast<std::ptrdiff_t>(elements * size), bytes.end());
  return out;
}

enum class Halves { as_now, as_before_1_6_3 };

// Ones' complement: a carry out of 16 bits comes back in at the bottom.
Bytes summed(Bytes bytes, Halves halves = Halves::as_now) {
  std::uint32_t first = 0, second = 0;
  const auto add = [](std::uint32_t a, std::uint32_t b) { return a + b > 0xFFFF ? a + b - 0xFFFF : a + b; };
  for (std::size_t i = 0; i < bytes.size(); i += 2) {
    const auto high = std::to_integer<std::uint32_t>(bytes[i]);
    const auto low = i + 1 < bytes.size() ? std::to_integer<std::uint32_t>(bytes[i + 1]) : 0;
    first = add(first, high << 8 | low);
    second = add(second, first);
  }
  const std::uint32_t sum = second << 16 | first;
  const int order[2][4] = {{0, 8, 16, 24}, {8, 0, 24, 16}};
  for (const int shift : order[halves == Halves::as_now ? 0 : 1])
    bytes.push_back(static_cast<std::byte>(sum >> shift));
  return bytes;
}

Bytes undo(const std::vector<Filter>& filters, Bytes stored, std::size_t size, std::uint32_t left_out = 0) {
  Bytes spare;
  io::undo_filters(filters, left_out, static_cast<std::int64_t>(size), stored, spare);
  return stored;
}

constexpr Filter kDeflate{Filter::Kind::deflate}, kSum{Filter::Kind::fletcher32}, kLzf{Filter::Kind::lzf};
constexpr Filter shuffle(std::int64_t bytes) { return {Filter::Kind::shuffle, bytes}; }

}  // namespace

TEST_CASE("each filter, and every order of them, comes undone") {
  constexpr std::size_t kSizes[] = {1, 2, 7, 8, 64, 1001};
  for (const std::size_t n : kSizes) {
    const Bytes x = noise(n);
    CHECK(undo({}, x, n) == x);
    CHECK(undo({kDeflate}, deflated(x), n) == x);
    CHECK(undo({kSum}, summed(x), n) == x);
    for (const std::int64_t size : {1, 2, 3, 4, 8, 16, 2000}) {
      const Bytes s = shuffled(x, static_cast<std::size_t>(size));
      CHECK(undo({shuffle(size)}, s, n) == x);
      CHECK(undo({shuffle(size), kDeflate}, deflated(s), n) == x);
      CHECK(undo({shuffle(size), kDeflate, kSum}, summed(deflated(s)), n) == x);
      CHECK(undo({kSum, shuffle(size), kDeflate},
                 deflated(shuffled(summed(x), static_cast<std::size_t>(size))), n) == x);
      CHECK(undo({shuffle(size), kDeflate}, s, n, 2) == x);
      CHECK(undo({shuffle(size), kDeflate}, deflated(x), n, 1) == x);
      CHECK(undo({kSum, shuffle(size), kDeflate}, deflated(s), n, 1) == x);
    }
  }
}

TEST_CASE("lzf comes undone: bytes as they are, and those that come again from any distance and length") {
  for (const std::size_t n : {1u, 2u, 31u, 32u, 33u, 500u, 20000u})
    for (const std::size_t back : {1u, 2u, 3u, 8u, 255u, 256u, 257u, 8192u}) {
      Bytes x = noise(std::min(n, back));
      while (x.size() < n) x.push_back(x.size() % 4001 == 0 ? std::byte{7} : x[x.size() - back]);
      CHECK(undo({kLzf}, lzf(x, back), n) == x);
      CHECK(undo({shuffle(4), kLzf, kSum}, summed(lzf(shuffled(x, 4), back)), n) == x);
      CHECK(undo({kSum, kLzf}, lzf(summed(x), back), n) == x);
      CHECK(undo({kLzf}, x, n, 1) == x);
    }
  // As liblzf writes "aaaaaaaaab": one byte, eight more from one back, one byte.
  CHECK(undo({kLzf}, of(std::string_view("\0a\xc0\0\0b", 6)), 10) == of("aaaaaaaaab"));
}

TEST_CASE("checksums are right for words whose sums are 0 in ones' complement, and old files' are known") {
  CHECK(undo({kSum}, summed(Bytes(64)), 64) == Bytes(64));
  const Bytes ones(2 * 0x10001, std::byte{0xFF});  // more words than one run of the sum
  CHECK(undo({kSum}, summed(ones), ones.size()) == ones);
  const Bytes x = noise(300001);
  CHECK(undo({kSum}, summed(x), x.size()) == x);
  CHECK(undo({kSum}, summed(x, Halves::as_before_1_6_3), x.size()) == x);
  Bytes wrong = summed(x);
  wrong[12345] ^= std::byte{1};
  CHECK(error_of(Error::Kind::input, [&] { undo({kSum}, wrong, x.size()); }) ==
        "is damaged: its checksum (fletcher32) is wrong");
}

TEST_CASE("other than the right number of bytes is an error") {
  const Bytes x = noise(100), z = deflated(x);
  const auto message = [&](const std::vector<Filter>& filters, const Bytes& stored, std::size_t size,
                           std::uint32_t left_out = 0) {
    return error_of(Error::Kind::input, [&] { undo(filters, stored, size, left_out); });
  };
  CHECK(message({kDeflate}, z, 101) == "inflates to 100 bytes, not to its 101");
  CHECK(message({kDeflate}, z, 99) == "inflates to more than its 99 bytes");
  CHECK(message({kDeflate}, Bytes(z.begin(), z.end() - 1), 100) == "is damaged: no whole zlib stream");
  CHECK(message({kDeflate}, {}, 100) == "is damaged: no whole zlib stream");
  CHECK(message({kSum, kDeflate}, z, 100) == "inflates to 100 bytes, not to its 104");
  CHECK(message({shuffle(4)}, x, 104) == "has 100 bytes, not its 104");
  CHECK(message({kDeflate}, x, 104, 1) == "has 100 bytes, not its 104");
  CHECK(message({kSum}, Bytes(3), 0) == "has only 3 bytes, less than its checksum");
}
