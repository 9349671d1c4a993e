// References: parsed as inputs and as targets, split at commas, and their slices applied to a small array.
#include "fuzz.hpp"
#include "io/slice.hpp"

using namespace ejk;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(fuzz::text_of(data, size));
  fuzz::survives([&] { (void)parse_input(text); });
  fuzz::survives([&] { (void)parse_output(text); });
  fuzz::survives([&] {
    for (const std::string& part : split_references(text))
      fuzz::survives([&] { (void)parse_reference(part); });
  });
  fuzz::survives([&] {
    const ArrayReference reference = parse_reference(text);
    fuzz::require(reference.text == text, "a reference forgets its text");
    if (reference.slice.empty()) return;
    Array numbers(DType::int16, {3, 4, 5, 6});
    std::int16_t next = 0;
    for (std::int16_t& x : numbers.elements<std::int16_t>()) x = next++;
    const auto slice = io::make_sliced_source(make_source(std::move(numbers)), reference.slice, text);
    fuzz::read_consistently(*slice);
    fuzz::require(slice->shape().size() <= 4, "a slice has more axes than its array");
  });
  return 0;
}

std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  static const std::vector<std::string_view> words{
      ".npy", ".npz", ".h5", ".hdf5", ".he5",    "-",  "/", ":", ",", "[",  "]",
      "...",  "::",   ":-1", "[0]",   "[:,1:2]", "\"", "(", ")", " ", "..", "~"};
  return fuzz::mutate_text(data, size, most, seed, words);
}
