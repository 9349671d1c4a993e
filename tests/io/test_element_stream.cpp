// Element streams: all bytes in order, at most one chunk in memory.
#include "io/element_stream.hpp"

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

TEST_CASE("header and elements are one stream, cut at whole pages, whatever the source is like") {
  const std::string header(72, 'h');
  for (const Shape& shape : {Shape{}, Shape{0}, Shape{7}, Shape{1006}, Shape{1007}, Shape{3, 1100, 999},
                             Shape{5, 250001}, Shape{2200000}}) {
    const Array all = counting(shape);
    const std::string expected = header + std::string(reinterpret_cast<const char*>(all.data()),
                                                      static_cast<std::size_t>(all.bytes()));
    const Unmapped in_order(Array::copy_of(all.view()));
    const auto mapped = make_source(all.view());
    const auto anywhere =
        generated_source(type_of(all.view()), "any order",
                         [&](std::span<const std::int64_t> start, std::span<const std::int64_t> count,
                             void* out) { mapped->read(start, count, out); });
    for (const ArraySource* source :
         {anywhere.get(), static_cast<const ArraySource*>(&in_order), mapped.get()}) {
      std::string bytes;
      std::vector<std::size_t> ends;
      io::stream_elements(
          *source,
          [&](const void* data, std::int64_t n) {
            bytes.append(static_cast<const char*>(data), static_cast<std::size_t>(n));
            if (bytes.size() > header.size()) ends.push_back(bytes.size());
          },
          header);
      CHECK(bytes == expected);
      for (std::size_t i = 0; i + 1 < ends.size(); ++i) CHECK(ends[i] % 4096 == 0);
    }
  }
}
