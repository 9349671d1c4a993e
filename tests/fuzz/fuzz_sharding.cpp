// Sharding specs: the input is a spec, and on lines of their own a mesh and the lengths of an array.
#include <charconv>

#include "ejk/program/sharding.hpp"
#include "fuzz.hpp"

using namespace ejk;

namespace {

std::string_view take_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

Shape lengths_of(std::string_view text) {
  Shape shape;
  while (!text.empty() && shape.size() < 8) {
    std::int64_t length = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), length);
    if (read.ec == std::errc()) shape.push_back(length);
    const auto used = static_cast<std::size_t>(read.ptr - text.data());
    text.remove_prefix(std::min(used + 1, text.size()));
  }
  return shape;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view text = fuzz::text_of(data, size);
  const std::string_view first = take_line(text), second = take_line(text);
  const Shape shape = lengths_of(take_line(text));
  PartitionSpec spec;
  Mesh mesh;
  fuzz::survives([&] {
    spec = parse_partition_spec(first);
    fuzz::require(parse_partition_spec(to_string(spec)) == spec, "a spec's text is another spec");
  });
  fuzz::survives([&] { mesh = parse_mesh(second); });
  fuzz::survives([&] {
    const Sharding sharding = get_corrected_named_sharding(shape, spec, mesh);
    fuzz::require(sharding.local_shape.size() == shape.size(), "a part has another rank than the array");
    for (std::size_t d = 0; d < shape.size(); ++d)
      fuzz::require(sharding.local_shape[d] >= 0 && sharding.local_shape[d] <= shape[d],
                    "a part is larger than the array");
    for (const SpecCorrection& correction : sharding.corrections) (void)to_string(correction, sharding);
    (void)to_json(describe(sharding, DType::bfloat16), {"fuzz"});
    // What is corrected needs no correction.
    fuzz::require(get_corrected_named_sharding(shape, sharding.spec, mesh).spec == sharding.spec,
                  "a corrected spec is corrected again");
  });
  return 0;
}

std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  static const std::vector<std::string_view> words{"dp",   "mp",
                                                   "tp",   "None",
                                                   "null", "UNCONSTRAINED",
                                                   "P(",   "PartitionSpec(",
                                                   "(",    ")",
                                                   ",",    "'",
                                                   "\"",   " ",
                                                   "=",    "dp=2",
                                                   "mp=4", "\n",
                                                   "1",    "0",
                                                   "8"};
  return fuzz::mutate_text(data, size, most, seed, words);
}
