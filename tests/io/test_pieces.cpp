// Streaming: all bytes in order, and never more than a piece at once.
#include "io/pieces.hpp"

#include "io/support.hpp"

using namespace ejk;
using namespace ejk::test;

TEST_CASE("a large source is streamed without being held whole") {
  Array all = counting({3, 1500, 1000});
  const Array copy = Array::copy_of(all.view());
  const Unmapped source(std::move(all));
  std::string bytes;
  io::stream_elements(source, [&](const void* data, std::int64_t n) {
    bytes.append(static_cast<const char*>(data), static_cast<std::size_t>(n));
  });
  CHECK(source.largest <= io::kPieceBytes);
  REQUIRE(bytes.size() == static_cast<std::size_t>(copy.bytes()));
  CHECK(std::memcmp(bytes.data(), copy.data(), bytes.size()) == 0);
}
