// Golden cases through the program, from files to files: all of the sequence and segment families, a sample
// of every MaskInfo family.
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

// A family whose inputs are arrays: the words of a case's command line without those, and what the program
// calls the result that the golden file calls "out".
using WordsOf = std::string (*)(const nlohmann::json& params);

void check_array_family(const std::string& family, const std::vector<std::string>& inputs, WordsOf words_of,
                        const std::string& name_of_out = "") {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("ejk_golden_{}", getpid());
  std::filesystem::create_directory(folder);
  int n = 0;
  for (const golden::Case& c : golden::load(family)) {
    CAPTURE(family);
    CAPTURE(c.name);
    std::string words = words_of(c.params);
    for (const std::string& input : inputs)
      if (c.in.contains(input))
        words += fmt::format(" '{}:/{}/in/{}'", golden::path_of(family), c.name, input);
    CAPTURE(words);
    const auto out = folder / fmt::format("{}.h5", n++);
    const int status = test::status_of_program(fmt::format("{} -o '{}'", words, out.string()));
    if (c.is_error) {
      CHECK((status == 2 || status == 3));
      CHECK_FALSE(std::filesystem::exists(out));
      continue;
    }
    REQUIRE(status == 0);
    const auto got = golden::load_file(out.string());
    CHECK(got.size() == c.out.size());
    for (const auto& entry : c.out) {
      const std::string& name = entry.first;
      const Array& expected = entry.second;
      CAPTURE(name);
      const std::string ours = name == "out" ? name_of_out : name;
      REQUIRE(got.count(ours) == 1);
      const Array& array = got.at(ours);
      // The golden files hold bfloat16 as raw numbers.
      if (expected.dtype() != DType::bfloat16) CHECK(array.dtype() == expected.dtype());
      REQUIRE(array.shape() == expected.shape());
      CHECK(std::memcmp(array.data(), expected.data(), static_cast<std::size_t>(array.bytes())) == 0);
    }
  }
  CHECK(n > 5);
  std::filesystem::remove_all(folder);
}

}  // namespace

TEST_CASE("golden cases of sequences through the program") {
  const std::vector<std::string> cu{"cu_seqlens"}, mask{"mask"};
  using Params = nlohmann::json;
  check_array_family(
      "cdiv", {"a"}, [](const Params& p) { return fmt::format("cdiv --by={}", p.at("b").dump()); }, "cdiv");
  check_array_family("prepare_lens", cu, [](const Params&) { return std::string("lens"); });
  check_array_family("prepare_lens_from_mask", mask,
                     [](const Params&) { return std::string("lens --from mask"); });
  check_array_family("prepare_cu_seqlens_from_mask", mask, [](const Params& p) {
    return fmt::format("cu-seqlens --from mask --dtype {}", p.at("out_dtype").get<std::string>());
  });
  check_array_family("prepare_position_ids", cu, [](const Params&) { return std::string("position-ids"); });
  check_array_family("prepare_sequence_ids", cu, [](const Params&) { return std::string("sequence-ids"); });
  check_array_family("prepare_sequence_ids_ejkernel", cu,
                     [](const Params&) { return std::string("sequence-ids --convention ejkernel"); });
  check_array_family("prepare_token_indices", cu, [](const Params&) { return std::string("token-indices"); });
  check_array_family("prepare_token_indices_ejkernel", cu,
                     [](const Params&) { return std::string("token-indices --convention ejkernel"); });
  check_array_family("prepare_chunk_indices", cu, [](const Params& p) {
    return fmt::format("chunk-indices --chunk-size={}", p.at("chunk_size").dump());
  });
  check_array_family("prepare_chunk_indices_ejkernel", cu, [](const Params& p) {
    return fmt::format("chunk-indices --convention ejkernel --chunk-size={}", p.at("chunk_size").dump());
  });
  check_array_family("prepare_chunk_offsets", cu, [](const Params& p) {
    return fmt::format("chunk-offsets --chunk-size={}", p.at("chunk_size").dump());
  });
  check_array_family(
      "reorder_sequence", {"x"},
      [](const Params& p) {
        return fmt::format("reorder-sequence --cp-size={} --axis={}{}", p.at("cp_size").dump(),
                           p.at("seq_dim").dump(),
                           p.at("to_contiguous").get<bool>() ? " --to-contiguous" : "");
      },
      "reorder_sequence");
}

TEST_CASE("golden cases of segments through the program") {
  using Params = nlohmann::json;
  check_array_family("mask_to_segment_ids", {"mask"}, [](const Params& p) {
    return std::string("segment-ids") + (p.at("per_head").get<bool>() ? " --per-head" : "");
  });
  check_array_family("mask_to_segment_ids_ejkernel", {"mask"}, [](const Params& p) {
    return std::string("segment-ids --convention ejkernel") +
           (p.at("per_head").get<bool>() ? " --per-head" : "");
  });
  const std::vector<std::string> ids{"q_segment_ids", "kv_segment_ids"};
  check_array_family("segment_ids_to_mask", ids, [](const Params& p) {
    return fmt::format("segment-mask --dtype {}{}", p.at("dtype").get<std::string>(),
                       p.at("return_separate_masks").get<bool>() ? " --separate" : "");
  });
  check_array_family("segment_ids_to_mask_ejkernel", ids, [](const Params& p) {
    return fmt::format("segment-mask --convention ejkernel --dtype {}{}", p.at("dtype").get<std::string>(),
                       p.at("return_separate_masks").get<bool>() ? " --separate" : "");
  });
}

TEST_CASE("golden cases of groups through the program") {
  using Params = nlohmann::json;
  check_array_family("make_group_metadata", {"group_sizes"}, [](const Params& p) {
    return fmt::format("group-metadata --tm {} --m {} --start-group {} --num-nonzero-groups {}{}{}",
                       p.at("tm").dump(), p.at("m").dump(), p.at("start_group").dump(),
                       p.at("num_nonzero_groups").dump(),
                       p.at("visit_empty_groups").get<bool>() ? "" : " --no-visit-empty-groups",
                       p.at("strict").get<bool>() ? " --strict" : "");
  });
}

TEST_CASE("golden cases through the program and real files") {
  check_family("process_mask", "", 3);
  check_family("process_mask_dkv", "--dkv", 4);
  check_family("process_dynamic_mask", "--dynamic", 3);
  check_family("process_dynamic_mask_dkv", "--dynamic --dkv", 4);
}
