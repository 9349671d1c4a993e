// Filters of HDF5 chunks, undone. The input: which filters there are and are left out, the bytes of an
// element, how many bytes the chunk holds, and what is stored of it. The mutator stores it anew, so that
// deflate and the checksum are right. (Any few bytes are the beginning of an lzf stream.)
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "fuzz.hpp"
#include "io/hdf5/filters.hpp"

using namespace ejk;

namespace {

// filters, left out, element bytes, chunk bytes (2)
constexpr std::size_t kHead = 5;

std::vector<io::Filter> filters_of(std::uint8_t which, std::uint8_t element_bytes) {
  using Kind = io::Filter::Kind;
  const Kind compression = (which & 16) != 0 ? Kind::lzf : Kind::deflate;
  const Kind kinds[] = {Kind::shuffle, compression, Kind::fletcher32};
  std::vector<io::Filter> filters;
  for (unsigned i = 0; i < 3; ++i)
    if ((which >> i & 1) != 0) filters.push_back({kinds[i], std::max<std::int64_t>(element_bytes, 1)});
  if ((which & 8) != 0) std::reverse(filters.begin(), filters.end());
  return filters;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < kHead) return 0;
  const std::vector<io::Filter> filters = filters_of(data[0], data[2]);
  const std::int64_t chunk = data[3] | data[4] << 8;
  const auto undone = [&](io::Bytes& bytes) {
    const auto* stored = reinterpret_cast<const std::byte*>(data + kHead);
    bytes.assign(stored, stored + (size - kHead));
    io::Bytes spare;
    return fuzz::survives([&] { io::undo_filters(filters, data[1], chunk, bytes, spare); });
  };
  io::Bytes first, second;
  const bool good = undone(first);
  fuzz::require(undone(second) == good, "the same bytes are damaged once and once not");
  if (good)
    fuzz::require(std::ssize(first) == chunk && first == second,
                  "filters give another number of bytes, or other bytes");
  return 0;
}

std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  return fuzz::mutate(data, size, most, seed, [](fuzz::Bytes& bytes, fuzz::Random& random) {
    bytes.resize(std::max(bytes.size(), kHead));
    const auto field = random.below(8);
    if (field < 3) bytes[field] = static_cast<std::uint8_t>(random.below(field == 2 ? 256 : 32));
    if (field == 3) fuzz::change_number(bytes, 3, 2, random);
    if (field < 4) return;
    fuzz::Bytes content(random.below(512));
    for (std::uint8_t& byte : content) byte = static_cast<std::uint8_t>(random.below(4));
    uLongf held = compressBound(static_cast<uLong>(content.size()));
    fuzz::Bytes stored(held);
    compress2(stored.data(), &held, content.data(), static_cast<uLong>(content.size()), 1);
    stored.resize(held);
    if (field == 4 && !stored.empty()) stored.resize(random.below(stored.size()));
    bytes.resize(kHead);
    bytes[0] = 2 | static_cast<std::uint8_t>(random.below(2));
    bytes[1] = 0;
    fuzz::put_number(bytes, 3, 2, content.size() + (field == 5 ? 1 : 0));
    bytes.insert(bytes.end(), stored.begin(), stored.end());
  });
}
