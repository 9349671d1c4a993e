// ejk segment-ids, segment-mask: segment ids of masks, and masks of segment ids.
// tests: tests/cli/segment-ids/, tests/cli/segment-mask/
#include "ejk/segments.hpp"

#include <fmt/format.h>

#include "commands.hpp"
#include "ejk/program/text.hpp"
#include "integers.hpp"
#include "job.hpp"
#include "masks.hpp"
#include "schema.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

constexpr const char* kConventionHelp =
    "how ids count: document or ejkernel\n"
    "document (default): from 1, 0 and less is padding. ejkernel: from 0, -1 and less is padding; masks have "
    "an axis of one head.";

// --- segment-ids

struct IdsOptions {
  std::string mask;
  bool per_head = false;
  bool require_exact = false;
  Polarity polarity = Polarity::keep;
  Convention convention = Convention::document;
};

Outcome run_ids(const IdsOptions& options, Job& job) {
  const auto mask = job.open("mask", options.mask);

  const Shape& shape = mask->shape();
  Report report;
  report.add("shape", "mask", shape);
  job.show_options(report);
  if (shape.size() == 4)
    report.add("heads", "heads", std::string(options.per_head ? "ids for each" : "head 0 alone counts"));
  SegmentIdsOptions how;
  how.per_head = options.per_head;
  how.polarity = options.polarity;
  how.convention = options.convention;
  const std::int64_t peak =
      piece_buffers(2, segment_ids_bytes(type_of(*mask))) + segment_ids_bytes(type_of(*mask));
  if (job.plan(report, peak)) return Outcome::passed;

  how.max_pattern_bytes = std::max<std::int64_t>(job.budget.bytes() - peak, 1);
  const SegmentIds ids = job.phase(Phase::compute, [&] { return mask_to_segment_ids(mask, how); });
  const double share =
      ids.elements == 0 ? 0 : static_cast<double>(ids.differing_elements) / static_cast<double>(ids.elements);
  report.add("segments", "segments", ids.segments, Unit::count)
      .add("q_segment_ids", "query ids", ids.q_segment_ids.shape())
      .add("kv_segment_ids", "key ids", ids.kv_segment_ids.shape())
      .add("elements", "elements", ids.elements, Unit::count)
      .add("differing_elements", "where ids and mask differ", ids.differing_elements, Unit::count)
      .add("differing_share", "share of those", share, Unit::share)
      .add("exact", "ids reproduce the mask", ids.differing_elements == 0);
  if (ids.differing_elements > 0)
    report.warnings.push_back(fmt::format("segment ids cannot express this mask: {} of {} elements differ",
                                          format_count(ids.differing_elements), format_count(ids.elements)));
  job.deliver(std::move(report), {{"q_segment_ids", make_source(ids.q_segment_ids.view()), {}},
                                  {"kv_segment_ids", make_source(ids.kv_segment_ids.view()), {}}});
  return options.require_exact && ids.differing_elements > 0 ? Outcome::failed : Outcome::passed;
}

// --- segment-mask

struct MaskOfIdsOptions {
  std::string q_ids, kv_ids;
  SegmentMaskOptions how;
  bool has_convention = false;
};

Outcome run_mask(const MaskOfIdsOptions& options, Job& job) {
  const auto q = job.open(options.kv_ids.empty() ? "segment_ids" : "q_segment_ids", options.q_ids);
  const auto kv = options.kv_ids.empty() ? q : job.open("kv_segment_ids", options.kv_ids);
  const std::int64_t resident = segment_mask_bytes(type_of(*q), type_of(*kv));
  job.require_memory(resident);

  // Also for a dry run: reading the ids checks shapes and dtypes.
  std::vector<std::string> references{options.q_ids}, warnings;
  std::vector<std::shared_ptr<const ArraySource>> ids{q};
  if (!options.kv_ids.empty()) references.push_back(options.kv_ids), ids.push_back(kv);
  if (!options.has_convention)
    ids = job.phase(Phase::read, [&] { return segment_ids_of(references, ids, job, warnings); });
  const SegmentMask mask =
      job.phase(Phase::compute, [&] { return segment_ids_to_mask(*ids.front(), *ids.back(), options.how); });
  const Shape& shape = mask.attention_mask->shape();
  Report report;
  report.add("shape", "shape", shape)
      .add("dtype", "dtype", std::string(name_of(options.how.dtype)))
      .add("size", "size", byte_count(shape, options.how.dtype), Unit::bytes);
  job.show_options(report);
  report.warnings = warnings;
  warn_of_positions(*q, report);
  if (job.plan(report, piece_buffers(2, byte_count(shape, options.how.dtype)) + resident))
    return Outcome::passed;
  const auto of = [](const std::optional<Array>& a) { return a ? make_source(a->view()) : nullptr; };
  const std::string why = "--separate makes it";
  job.deliver(std::move(report), {{"attention_mask", mask.attention_mask, {}},
                                  {"q_mask", of(mask.q_mask), why},
                                  {"kv_mask", of(mask.kv_mask), why}});
  return Outcome::passed;
}

Run declare_segment_ids(OptionSet& set) {
  const auto options = std::make_shared<IdsOptions>();
  add_reference(set, "MASK", options->mask,
                "(Q, K), (batch, Q, K), or with --per-head (batch, heads, Q, K)\n"
                "Bool or integer. In each Q x K slice equal rows get equal query ids and equal columns equal "
                "key ids; a row or column without a True is padding, -1.")
      .required();
  add_flag(set, "--per-head", options->per_head, "ids for each head of a mask with four axes").recorded();
  add_flag(set, "--require-exact", options->require_exact,
           "exit with 1 if the ids do not reproduce the mask\n"
           "Ids cannot express a causal mask or a window.");
  add_mask_kind(set, options->polarity).recorded("mask_kind", [options] {
    return std::string(name_of(options->polarity));
  });
  add_convention(set, options->convention, kConventionHelp);
  return [options](Job& job) { return run_ids(*options, job); };
}

Run declare_segment_mask(OptionSet& set) {
  const auto options = std::make_shared<MaskOfIdsOptions>();
  set.set_outputs([options] {
    return options->how.separate ? std::vector<std::string>{"attention_mask", "q_mask", "kv_mask"}
                                 : std::vector<std::string>{"attention_mask"};
  });
  add_reference(set, "IDS", options->q_ids, "segment ids (batch, tokens), of queries and keys").required();
  add_reference(set, "KV_IDS", options->kv_ids, "ids of the keys, where they are others (batch, keys)");
  add_dtype(set, "--dtype", options->how.dtype, "element type, bool by default; others hold 0 and 1");
  add_flag(set, "--separate", options->how.separate,
           "also write q_mask and kv_mask: which tokens are not padding");
  const Option& convention = add_convention(
      set, options->how.convention, fmt::format("{} Without the option: {}", kConventionHelp, kZeroIdRule));
  return [options, &convention](Job& job) {
    options->has_convention = !convention.given.empty();
    return run_mask(*options, job);
  };
}

}  // namespace

extern const Command segment_ids_command{
    .name = "segment-ids",
    .group = "Segments",
    .summary = "segment ids from masks, and how far they reproduce them",
    .example = "ejk segment-ids mask.npy --require-exact -o ids.h5",
    .outputs = {{"q_segment_ids", "(Q,), (batch, Q) or (batch, heads, Q) int32",
                 "equal rows of the mask have equal ids; -1 is padding, a row without a True"},
                {"kv_segment_ids", "the same with K", "the ids of columns, numbered apart; -1 is padding"}},
    .use = R"(with h5py.File("ids.h5") as f:
    q, k = f["q_segment_ids"][()], f["kv_segment_ids"][()]
again = (q[:, None] == k[None, :]) & (q[:, None] > 0))",
    .keys = joined({R"(
shape | shape | of the mask
)",
                    kConventionKey, R"(
heads | string | ids for each, or head 0 alone counts | of a mask with four axes
segments | integer | segments | done
q_segment_ids, kv_segment_ids | shape | the shapes of the ids | done
elements, differing_elements | integer | elements of the mask; those that the ids do not reproduce | done
differing_share | share | differing_elements / elements | done
exact | boolean | whether the ids reproduce the mask | done
)"}),
    .declare = declare_segment_ids,
};

extern const Command segment_mask_command{
    .name = "segment-mask",
    .group = "Segments",
    .summary = "masks from segment ids",
    .example = "ejk segment-mask segment_ids.npy -o mask.npy",
    .outputs = {{"attention_mask", "(batch, Q, K) bool, or --dtype",
                 "True where ids are equal and not padding"},
                {"q_mask", "(batch, Q), with --separate", "True where a query is not padding"},
                {"kv_mask", "(batch, K), with --separate", "True where a key is not padding"}},
    .use = R"(mask = np.load("mask.npy")  # mask[b, q, k])",
    .keys = joined({kArrayKeys, kConventionKey}),
    .declare = declare_segment_mask,
};

}  // namespace ejk::app
