// Masks on the command line: options, and the masks they specify.
#include "masks.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "app/words.hpp"
#include "ejk/io.hpp"
#include "io/support.hpp"
#include "support/failure.hpp"

using namespace ejk;
using namespace ejk::app;

namespace {

// A command that takes masks and writes nothing.
struct MaskWords {
  Words words;
  MaskOptions options;
  Command command{"mask-info", "Masks", "", "", {}};

  explicit MaskWords(const std::vector<std::string>& line) {
    declare_masks(words.set, options);
    words.parse(line);
  }
};

std::string ones(const std::string& path, Shape shape) {
  Array mask(DType::boolean, std::move(shape));
  for (bool& value : mask.elements<bool>()) value = true;
  write_array(parse_output(path), {"mask", make_source(std::move(mask))});
  return path;
}

}  // namespace

TEST_CASE("an expression has the heads and lengths of --shape, and says that it serves them all") {
  MaskWords run({"--mask", "causal", "--shape", "4x8x8"});
  Job job(run.command, run.words.set);
  const Masks masks = resolve_masks(run.options, job);
  CHECK(masks.head_count() == 4);
  CHECK(masks.q_length == 8);
  CHECK(masks.has_head_axis);
  CHECK(masks.remarks == std::vector<std::string>{"--mask 'causal' serves all 4 heads."});
  CHECK(masks.warnings().empty());
  CHECK(job.provenance.settings().at("mask") == "causal");
  CHECK(job.provenance.settings().at("mask_kind") == "keep");
}

TEST_CASE("an array fixes the lengths, and its elements mean what --mask-kind says") {
  const test::Folder folder;
  MaskWords run({ones(folder / "m.npy", {2, 3, 5}), "--mask-kind", "drop"});
  Job job(run.command, run.words.set);
  const Masks masks = resolve_masks(run.options, job);
  CHECK(masks.head_count() == 2);
  CHECK(masks.kv_length == 5);
  bool element = true;
  masks.heads[1].read(0, 1, 0, 1, &element);
  CHECK_FALSE(element);
  CHECK(job.provenance.settings().at("mask_kind") == "drop");
}

TEST_CASE("files of results do not hold the paths of masks, whatever stands around them") {
  const test::Folder folder;
  const std::string path = ones(folder / "secret.npy", {4, 4});
  for (const char* form : {"causal & file({})", "file ( \"{}\" )", "~~file({})"}) {
    std::string expression = form;
    expression.replace(expression.find("{}"), 2, path);
    MaskWords run({"--mask", expression});
    Job job(run.command, run.words.set);
    resolve_masks(run.options, job);
    CAPTURE(expression);
    CHECK(job.provenance.settings().at("mask").find("secret") == std::string::npos);
  }
}

TEST_CASE("masks that disagree name both") {
  const test::Folder folder;
  const std::string array = ones(folder / "m.npy", {4, 4});
  MaskWords lengths({array, "--shape", "2x8x8"});
  Job job(lengths.command, lengths.words.set);
  const std::string message = plain::failure([&] { resolve_masks(lengths.options, job); });
  CHECK(message.find("m.npy") != std::string::npos);
  CHECK(message.find("--shape") != std::string::npos);
  MaskWords none({"--mask", "causal"});
  Job other(none.command, none.words.set);
  CHECK(plain::failure([&] { resolve_masks(none.options, other); }, Error::Kind::usage)
            .starts_with("--shape is required"));
}

TEST_CASE("queries and keys that differ in number are warned of once where nothing aligns them") {
  for (const auto& [expression, warnings] : {std::pair{"causal", std::size_t{1}},
                                             {"causal(align=bottom-right)", std::size_t{0}},
                                             {"chunked(4)", std::size_t{1}},
                                             {"chunked(4, align=bottom-right)", std::size_t{0}},
                                             {"full", std::size_t{0}}}) {
    MaskWords run({"--mask", expression, "--shape", "4x8"});
    Job job(run.command, run.words.set);
    CHECK(resolve_masks(run.options, job).alignment.size() == warnings);
  }
}

TEST_CASE("a bound that masks nothing is warned of, for the head whose expression has it") {
  const auto idle = [](const std::vector<std::string>& line) {
    MaskWords run(line);
    Job job(run.command, run.words.set);
    return resolve_masks(run.options, job).idle;
  };
  CHECK(idle({"--mask", "local(6, 0)", "--mask", "local(7, 0)", "--shape", "2x8x8"}) ==
        std::vector<std::string>{
            "--mask 'local(7, 0)': left=7 changes nothing at 8 queries x 8 keys: a check with "
            "this mask is inconclusive about this bound"});
  CHECK(idle({"--mask", "causal(offset=7)", "--shape", "2x8x8"}) ==
        std::vector<std::string>{
            "--mask 'causal(offset=7)' masks nothing at 8 queries x 8 keys: a check with this "
            "mask is inconclusive about masking"});
  for (const char* const usual :
       {"full", "causal", "causal(align=bottom-right)", "local(3, 0, align=bottom-right)", "~full"})
    for (const char* const shape : {"8x8", "1x8"}) CHECK(idle({"--mask", usual, "--shape", shape}).empty());
  const test::Folder folder;
  CHECK(idle({ones(folder / "m.npy", {8, 8})}).empty());  // elements are not read for this
}

TEST_CASE("a dry run plans, and more memory than allowed is refused before any work") {
  MaskWords run({"--mask", "causal", "--shape", "4x4"});
  run.words.shared.max_memory = 1000;
  run.words.shared.dry_run = true;
  run.words.shared.quiet = true;
  Job job(run.command, run.words.set);
  CHECK(job.plan({}, 1000));
  CHECK_THROWS_AS(job.plan({}, 1001), Error);
}
