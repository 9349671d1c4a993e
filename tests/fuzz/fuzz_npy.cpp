// .npy files: opened and read in place, and again as a stream. Both must give the same array, and what is
// written of it must read back.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "fuzz.hpp"
#include "io/npy.hpp"

using namespace ejk;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::MemoryFile file(data, size);
  ArrayReference reference = file.reference(ArrayReference::Container::npy);
  std::shared_ptr<const ArraySource> mapped, streamed;
  fuzz::survives([&] { mapped = open_array(reference); });
  if (mapped) fuzz::survives([&] { fuzz::read_consistently(*mapped); });
  fuzz::survives([&] {
    const io::File stream = io::open_for_reading(reference.path, "stream");
    streamed = io::read_npy_stream(stream.fd(), "stream", 0);
  });
  fuzz::require((mapped == nullptr) == (streamed == nullptr),
                "a file and a stream of the same bytes are not both an array");
  constexpr std::int64_t kMost = 1 << 20;
  if (!mapped || byte_count(mapped->shape(), mapped->dtype()) > kMost) return 0;
  const Array elements = read_all(*mapped), others = read_all(*streamed);
  fuzz::require(elements.shape() == others.shape() && elements.dtype() == others.dtype() &&
                    (elements.bytes() == 0 || std::memcmp(elements.data(), others.data(),
                                                          static_cast<std::size_t>(elements.bytes())) == 0),
                "a file and a stream of the same bytes are different arrays");
  std::string written;
  io::write_npy(*mapped, [&](const void* bytes, std::int64_t n) {
    written.append(static_cast<const char*>(bytes), static_cast<std::size_t>(n));
  });
  const fuzz::MemoryFile copy(reinterpret_cast<const std::uint8_t*>(written.data()), written.size());
  reference.path = copy.path();
  const auto again = open_array(reference);
  const Array back = read_all(*again);
  fuzz::require(back.shape() == elements.shape() && back.dtype() == elements.dtype() &&
                    (back.bytes() == 0 ||
                     std::memcmp(back.data(), elements.data(), static_cast<std::size_t>(back.bytes())) == 0),
                "what is written is another array");
  return 0;
}

std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  return fuzz::mutate(data, size, most, seed, [](fuzz::Bytes& bytes, fuzz::Random& random) {
    fuzz::change_npy(bytes, 0, random);
    if (random.one_in(4)) bytes.resize(random.below(bytes.size() + 64));
  });
}
