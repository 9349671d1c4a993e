// JSON: what parses has a stable text, which parses again to the same text; parameters are taken out of it.
#include "ejk/program/hash.hpp"
#include "ejk/program/params.hpp"
#include "fuzz.hpp"

using namespace ejk;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::survives([&] {
    const JsonValue value = parse_json(fuzz::text_of(data, size));
    fuzz::survives([&] {
      const std::string stable = stable_json(value);
      fuzz::require(stable_json(parse_json(stable)) == stable,
                    "stable JSON changes when it is read and written");
      fuzz::require(short_hash(value).size() == 16, "a short hash has 16 digits");
      (void)stable_json(value, Convention::ejkernel);
      (void)stable_json(abstractify(value));
    });
    fuzz::survives([&] {
      const FwdParams params = fwd_params_from(value);
      (void)ejkernel_params_hash(params);
      (void)BwdParams::from_fwd_params(params);
    });
    fuzz::survives([&] { (void)ejkernel_params_hash(bwd_params_from(value)); });
  });
  return 0;
}

std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  static const std::vector<std::string_view> words{"{",
                                                   "}",
                                                   "[",
                                                   "]",
                                                   ",",
                                                   ":",
                                                   "null",
                                                   "true",
                                                   "false",
                                                   "NaN",
                                                   "Infinity",
                                                   "-Infinity",
                                                   "1e999",
                                                   "-0",
                                                   "0.1",
                                                   "1e-400",
                                                   "\"",
                                                   "\\u0000",
                                                   "\\ud83d",
                                                   "\\ude00",
                                                   "\\n",
                                                   "\xC3\xA9",
                                                   "\xED\xA0\xBD",
                                                   R"("_type":"array")",
                                                   R"({"_type":"array","dtype":"float32","shape":[2,3]})",
                                                   "\"blocksize_m\":",
                                                   "\"num_warps\":",
                                                   "[[[[",
                                                   "]]]]"};
  return fuzz::mutate_text(data, size, most, seed, words);
}
