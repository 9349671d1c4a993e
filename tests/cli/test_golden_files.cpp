// Golden cases of MaskInfo through the program, from files to files: a sample of every family. The library
// runs all of them.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "support/golden.hpp"
#include "support/shell.hpp"

using namespace ejk;

namespace {

std::string number_or_none(const nlohmann::json& value) { return value.is_null() ? "none" : value.dump(); }

// A mask of the golden files as the program's expression.
std::string expression_of(const nlohmann::json& spec, const std::string& arrays) {
  const std::string kind = spec.at("kind");
  if (kind == "full") return "full";
  if (kind == "causal") return fmt::format("causal(offset={})", spec.at("offset").dump());
  if (kind == "local")
    return fmt::format("local(left={},right={},offset={})", number_or_none(spec.at("left")),
                       number_or_none(spec.at("right")), spec.at("offset").dump());
  if (kind == "chunked") return fmt::format("chunked({})", spec.at("chunk_size").dump());
  if (kind == "array") return fmt::format("file(\"{}/{}\")", arrays, spec.at("name").get<std::string>());
  return fmt::format("({} {} {})", expression_of(spec.at("left"), arrays), kind == "and" ? "&" : "|",
                     expression_of(spec.at("right"), arrays));
}

void check_family(const std::string& family, const std::string& flags, std::size_t stride) {
  const auto cases = golden::load(family);
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("ejk_golden_{}", getpid());
  std::filesystem::create_directory(folder);
  for (std::size_t n = 0; n < cases.size(); n += stride) {
    const golden::Case& c = cases[n];
    CAPTURE(family);
    CAPTURE(c.name);
    const nlohmann::json& p = c.params;
    const std::string arrays = fmt::format("{}:/{}/in", golden::path_of(family), c.name);
    std::string words = fmt::format("mask-info {} --block {}x{} --head-shards {} --q-seq-shards {}", flags,
                                    p.at("block_shape")[0].dump(), p.at("block_shape")[1].dump(),
                                    p.at("head_shards").dump(), p.at("q_seq_shards").dump());
    if (!p.at("shrink_grid").get<bool>()) words += " --no-shrink-grid";
    if (!p.at("downcast_smem_data").get<bool>()) words += " --no-downcast";
    if (p.contains("masks")) {
      const auto& shape = p.at("shape");
      words += fmt::format(" --shape {}x{}x{}", shape[0].dump(), shape[1].dump(), shape[2].dump());
      for (const auto& mask : p.at("masks"))
        words += fmt::format(" --mask '{}'", expression_of(mask, arrays));
    } else {
      words += fmt::format(" '{}/mask'", arrays);
    }
    const auto out = folder / fmt::format("{}.h5", n);
    CAPTURE(words);
    const int status = test::status_of_program(fmt::format("{} -o '{}'", words, out.string()));
    if (c.is_error) {
      // An integer or 2-D mask is an error to the function; the program takes both.
      if (c.name == "error_int_mask" || c.name == "error_2d" || c.name == "error_array_not_bool" ||
          c.name == "error_array_3d")
        continue;
      CHECK((status == 2 || status == 3));
      CHECK_FALSE(std::filesystem::exists(out));
      continue;
    }
    REQUIRE(status == 0);
    const auto got = golden::load_file(out.string());
    for (const auto& entry : c.out) {
      const std::string& name = entry.first;
      const Array& expected = entry.second;
      if (name == "has_mask_function") continue;
      CAPTURE(name);
      REQUIRE(got.count(name) == 1);
      const Array& array = got.at(name);
      CHECK(array.dtype() == expected.dtype());
      REQUIRE(array.shape() == expected.shape());
      CHECK(std::memcmp(array.data(), expected.data(), static_cast<std::size_t>(array.bytes())) == 0);
    }
    CHECK(got.size() == c.out.size() - c.out.count("has_mask_function"));
  }
  std::filesystem::remove_all(folder);
}

}  // namespace

TEST_CASE("golden cases through the program and real files") {
  check_family("process_mask", "", 3);
  check_family("process_mask_dkv", "--dkv", 4);
  check_family("process_dynamic_mask", "--dynamic", 3);
  check_family("process_dynamic_mask_dkv", "--dynamic --dkv", 4);
}
