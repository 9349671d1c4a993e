// ejk check mask, ejk check mask-info: checks of masks, and of the arrays of block-sparse kernels.
// tests: tests/cli/check/mask.case, mask-info.case
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "check.hpp"
#include "commands.hpp"
#include "ejk/text.hpp"
#include "job.hpp"
#include "masks.hpp"

namespace ejk::app {

namespace {

struct MaskWords {
  CheckFlags flags;
  MaskOptions masks;
  std::vector<MaskExpression> within, covers, equals;
  BlockShape block{128, 128};
};

struct MaskInfoWords {
  CheckFlags flags;
  std::string file;
  MaskOptions masks;
  StoredSettings settings;
  bool dkv = false;
};

// Assumptions about masks are findings: they count with --strict.
void add_assumptions(const std::vector<std::string>& warnings, Findings& found) {
  for (std::size_t n = 0; n < warnings.size(); ++n)
    found.add("assumed", static_cast<std::int64_t>(n) + 1, [&] {
      return Finding{"mask", {}, {}, warnings[n]};
    });
}

Outcome run(const MaskWords& words, Job& job) {
  Masks masks = job.phase(Phase::read, [&] { return resolve_masks(words.masks, job); });
  MaskClaims claims;
  claims.block = words.block;
  claims.polarity = words.masks.polarity;
  if (!words.masks.array.empty()) claims.stored = job.open("mask", words.masks.array);
  job.phase(Phase::read, [&] {
    for (const auto& [option, expressions, into] : {std::tuple{"--within", &words.within, &claims.within},
                                                    std::tuple{"--covers", &words.covers, &claims.covers},
                                                    std::tuple{"--equals", &words.equals, &claims.equals}})
      *into = resolve_expressions(option, *expressions, words.masks.polarity, masks, job);
  });
  Report plan;
  plan.warnings = masks.warnings();
  const std::int64_t peak = ejk::check_mask_bytes(masks.q_length, masks.kv_length, words.block);
  if (job.plan(std::move(plan), peak)) return Outcome::passed;
  const CheckOptions options = words.flags.options(job);
  Findings found = job.phase(Phase::compute, [&] { return ejk::check_mask(masks.heads, claims, options); });
  if (claims.stored) masks.padding.clear();  // a rule of its own
  add_assumptions(masks.warnings(), found);
  return deliver(found, words.flags, job);
}

// The shape in the file, empty if it has none. Nothing if it is no MaskInfo, which is a finding.
std::optional<Shape> shape_in(const ArrayGroup& group, const StoredSettings& settings) {
  try {
    const MaskShape shape = StoredMaskInfo(group, settings).shape();
    return shape.q_length == 0 ? Shape() : Shape{shape.heads, shape.q_length, shape.kv_length};
  } catch (const Error& error) {
    if (error.kind() == Error::Kind::usage) throw;
    return std::nullopt;
  }
}

Outcome run(const MaskInfoWords& words, Job& job) {
  MaskInfoClaims claims;
  claims.settings = words.settings;
  if (words.dkv) claims.settings.direction = Direction::dkv;
  MaskOptions masks = words.masks;
  if (!masks.shape.empty()) {
    claims.settings.shape = masks.shape;
    if (masks.shape.size() == 2) claims.settings.shape->insert(claims.settings.shape->begin(), 1);
  }
  const ArrayGroup group = group_opener(job)(words.file, StoredMaskInfo::array_names());
  Report plan;
  const std::optional<Shape> shape = shape_in(group, claims.settings);
  if (shape && !shape->empty()) claims.settings.shape = shape;
  if (shape && (!masks.array.empty() || !masks.expressions.empty())) {
    if (masks.shape.empty() && masks.array.empty()) masks.shape = *shape;
    Masks given = job.phase(Phase::read, [&] { return resolve_masks(masks, job); });
    claims.masks = std::move(given.heads);
    plan.warnings = given.warnings();
  }
  if (job.wants_picture()) claims.pictures = kMostPictures;
  const std::vector<std::string> assumptions = plan.warnings;
  if (job.plan(std::move(plan), ejk::check_mask_info_bytes(group, claims))) return Outcome::passed;
  const CheckOptions options = words.flags.options(job);
  Findings found = job.phase(Phase::compute, [&] { return ejk::check_mask_info(group, claims, options); });
  add_assumptions(assumptions, found);
  return deliver(found, words.flags, job);
}

Run declare_check_mask(OptionSet& set) {
  const auto words = std::make_shared<MaskWords>();
  declare_masks(set, words->masks);
  add_mask_expressions(set, "--within", words->within,
                       "the mask has no pair that this one hides\nOne for all heads, or one each.");
  add_mask_expressions(set, "--covers", words->covers, "the mask has each pair of this one");
  add_mask_expressions(set, "--equals", words->equals, "the mask is this one");
  add_word(set, "--block", words->block, read_block, "QxK",
           "queries and keys of a block, 128x128 by default\nPairs that differ are counted by block.");
  declare_check(set, "mask", words->flags, kMaskHelp);
  return [words](Job& job) { return run(*words, job); };
}

Run declare_check_mask_info(OptionSet& set) {
  const auto words = std::make_shared<MaskInfoWords>();
  add_word(
      set, "FILE", words->file, [](const std::string& word) { return word; }, "FILE",
      "the arrays that ejk mask-info writes, in an HDF5 file or group, .npz or folder")
      .required();
  declare_masks(set, words->masks);
  add_word(set, "--block", words->settings.block, read_block, "QxK",
           "queries and keys of a block\nFor an .npz or a folder without partial blocks.");
  add_flag(set, "--dkv", words->dkv,
           "it is for the backward pass of keys and values\nHDF5 files contain it.");
  add_word(set, "--head-shards", words->settings.head_shards, at_least(1), "N",
           "devices that share the heads\nHDF5 files contain it; 1 otherwise.");
  add_word(set, "--q-seq-shards", words->settings.q_seq_shards, at_least(1), "N",
           "devices that share the queries\nHDF5 files contain it; 1 otherwise.");
  declare_picture(set);
  declare_check(
      set, "mask-info", words->flags,
      std::string("The arrays are walked as a kernel walks them, following data_next and mask_next.\n"
                  "With a mask, a finding names the wrong index and its expected value.\n\n") +
          kMaskHelp);
  return [words](Job& job) {
    try {
      return run(*words, job);
    } catch (Error& error) {
      if (error.code() == Error::Code::unknown_block) error.hint("--block QxK says it");
      throw;
    }
  };
}

}  // namespace

extern const Command check_mask_command{
    .name = "check mask",
    .summary = "a mask, by itself or against others",
    .example = "ejk check mask mask.npy --within causal",
    .declare = declare_check_mask,
};

extern const Command check_mask_info_command{
    .name = "check mask-info",
    .summary = "a block-sparse kernel's arrays, against the mask that they store",
    .example = "ejk check mask-info info.h5 --mask 'causal & documents(cu.npy)'",
    .declare = declare_check_mask_info,
};

}  // namespace ejk::app
