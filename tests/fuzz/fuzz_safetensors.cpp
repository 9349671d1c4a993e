// safetensors files: every tensor by its name; those of an accepted file cover its data. The mutator changes
// the header's text and mostly corrects its length.
#include <algorithm>
#include <string>

#include "fuzz.hpp"

using namespace ejk;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::MemoryFile file(data, size);
  const ArrayReference reference = file.reference(ArrayReference::Container::safetensors);
  fuzz::read_container(reference);
  fuzz::survives([&] {
    OpenOptions options;
    options.untyped = UntypedBytes::read;
    const ArrayFile opened(reference, options);
    const std::vector<StoredArray> stored = opened.stored_arrays().value_or(std::vector<StoredArray>());
    std::uint64_t bytes = 8 + fuzz::get_number(fuzz::Bytes(data, data + size), 0, 8);
    for (const StoredArray& array : stored) bytes += static_cast<std::uint64_t>(array.bytes);
    fuzz::require(bytes == size, "the tensors do not cover the file");
    for (const StoredArray& array : stored)
      fuzz::survives([&] { fuzz::read_consistently(*opened.array(array.name)); });
  });
  return 0;
}

namespace {

void change(fuzz::Bytes& bytes, fuzz::Random& random) {
  static const std::vector<std::string_view> words{"{",
                                                   "}",
                                                   "[",
                                                   "]",
                                                   ",",
                                                   ":",
                                                   "null",
                                                   "\"\"",
                                                   "\\u0000",
                                                   "\\ud800",
                                                   " ",
                                                   "-1",
                                                   "0",
                                                   "1.5",
                                                   "\"U8\"",
                                                   "\"F64\"",
                                                   "\"F4\"",
                                                   "\"F6_E2M3\"",
                                                   "\"C64\"",
                                                   "\"BOOL\"",
                                                   "\"F8_E4M3\"",
                                                   "\"dtype\":",
                                                   "\"shape\":",
                                                   "\"data_offsets\":",
                                                   R"("__metadata__":{"a":"b"},)",
                                                   R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)",
                                                   "[[[[",
                                                   "4611686018427387904"};
  constexpr std::size_t kLength = 8;
  const std::size_t length = fuzz::get_number(bytes, 0, kLength);
  if (bytes.size() < kLength || length > bytes.size() - kLength || random.one_in(12))
    return fuzz::change_number(bytes, 0, kLength, random);
  const auto begin = bytes.begin() + kLength, end = begin + static_cast<std::ptrdiff_t>(length);
  std::string text(begin, end);
  fuzz::change_text(text, words, random);
  const fuzz::Bytes data(end, bytes.end());
  bytes.resize(kLength);
  if (!random.one_in(8)) fuzz::put_number(bytes, 0, kLength, text.size());
  bytes.insert(bytes.end(), text.begin(), text.end());
  bytes.insert(bytes.end(), data.begin(), data.end());
  if (random.one_in(8)) bytes.resize(bytes.size() + random.below(9));
}

}  // namespace

std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  return fuzz::mutate(data, size, most, seed, change);
}
