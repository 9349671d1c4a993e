// ejk generate: synthetic inputs from a seed. Each kind is an action with options of its own.
//
// tests: tests/cli/generate/
#include "ejk/program/generate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "commands.hpp"
#include "commands/attention_conventions.hpp"
#include "commands/audit.hpp"
#include "ejk/audit.hpp"
#include "ejk/sequence.hpp"
#include "job.hpp"
#include "masks.hpp"
#include "schema.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

using Source = std::shared_ptr<const ArraySource>;

// Scores with a smaller deviation hardly test scale and keys.
constexpr double kFewestScores = 0.05;

// --- options of several kinds

std::int64_t read_seed(const std::string& word) {
  const std::int64_t seed = read_integer(word, 0);
  if (seed > UINT32_MAX) throw usage("{} is more than 2^32 - 1", seed);
  return seed;
}

double read_mean(const std::string& word) {
  const double mean = read_real(word);
  if (!(mean > 0) || std::isinf(mean)) throw usage("{} is not a number above 0", word);
  return mean;
}

std::int64_t read_tokens(const std::string& word) {
  const std::int64_t tokens = read_integer(word, 0);
  if (tokens > INT32_MAX) throw usage("{} is not from 0 to {}", tokens, INT32_MAX);
  return tokens;
}

void add_seed(OptionSet& set, std::int64_t& into) {
  add_word(set, "--seed", into, read_seed, "N",
           "0 by default; the same seed gives the same bytes on any machine")
      .recorded()
      .shown("seed");
}

// Recorded only if it is given.
template <class Distribution>
void add_distribution(OptionSet& set, Distribution& into, Choices<Distribution> choices,
                      const std::string& help) {
  Option& option = add_choice(set, "--distribution", into, std::move(choices), "NAME", help);
  option.recorded("", [&option] { return report_value(option.given); });
}

using Make = std::function<std::vector<Output>(Report& report)>;

// The first array, the last where it has another shape, and `bytes` of all.
void add_arrays(Report& report, const ArrayType& first, const ArrayType& last, std::int64_t bytes) {
  report.add("shape", "shape", first.shape);
  if (last.shape != first.shape) report.add("kv_shape", "of key and value", last.shape);
  report.add("dtype", "dtype", std::string(name_of(first.dtype))).add("size", "size", bytes, Unit::bytes);
}

// Small arrays are computed even for a dry run, large ones when they are written.
Outcome run(const char* what, std::int64_t bytes, const Make& make, Job& job, const char* remark = nullptr) {
  job.provenance.input("what", what);
  job.provenance.record("what", what);
  job.require_memory(bytes);
  Report report;
  report.add("what", "generated", std::string(what));
  job.show_options(report);
  const std::vector<Output> outputs = job.phase(Phase::compute, [&] { return make(report); });
  std::int64_t all = 0;
  for (const Output& output : outputs) all += type_of(*output.source).bytes();
  add_arrays(report, type_of(*outputs.front().source), type_of(*outputs.back().source), all);
  if (remark) report.add(Remark{remark});
  if (job.plan(report, piece_buffers(2, all) + bytes)) return Outcome::passed;
  job.deliver(std::move(report), outputs);
  return Outcome::passed;
}

// --- lengths, of sequences and of the rows of masks

void add_lengths(OptionSet& set, LengthsOptions& into, std::optional<std::int64_t>& longest,
                 const char* longest_by_default) {
  using enum LengthDistribution;
  add_seed(set, into.seed);
  add_distribution<LengthDistribution>(
      set, into.distribution,
      {{"lognormal", lognormal}, {"zipf", zipf}, {"uniform", uniform}, {"constant", constant}},
      "\nlognormal as documents are, zipf with P(n) as 1 / n, constant the longest.");
  add_word(set, "--mean", into.mean, read_mean, "X",
           "mean of lognormal lengths, 512 by default\nLengths are then cut to --longest, so that their "
           "mean is smaller.");
  add_word(set, "--shortest", into.shortest, at_least(0), "N", "least length, 1 by default");
  add_word(set, "--longest", longest, at_least(0), "N",
           fmt::format("greatest length, {} by default", longest_by_default));
}

// `option` gives the longest length; `is_given`, or its default.
void check_longest(const LengthsOptions& how, const char* option, bool is_given) {
  if (how.longest > INT32_MAX || (how.longest < how.shortest && is_given))
    throw usage("{}: {} is not within {} (--shortest) and {}", option, how.longest, how.shortest, INT32_MAX);
  if (how.longest < how.shortest)
    throw usage("--shortest: {} is not from 0 to {} ({})", how.shortest, how.longest, option);
}

Source make_lengths(const LengthsOptions& how, Report& report) {
  Source lengths = make_source(generate_lengths(how), "lens");
  const Array cu = prepare_cu_seqlens_from_lens(*lengths, DType::int64);
  const SequenceCounts counts = count_sequences(*make_source(cu.view(), "cu_seqlens"));
  report.add("sequences", "sequences", counts.sequences, Unit::count)
      .add("tokens", "tokens", counts.tokens, Unit::count)
      .add("longest", "longest", counts.longest, Unit::tokens);
  return lengths;
}

struct GeneratedLensOptions {
  LengthsOptions how;
  std::optional<std::int64_t> longest;
};

struct MasksOptions : GeneratedLensOptions {
  std::optional<std::int64_t> given_seq;
  PaddingSide side = PaddingSide::right;
};

// --- attention inputs

struct AttentionInputFlags {
  AttentionInputsOptions sizes;
  std::optional<std::int64_t> batch, seq, heads;
  bool reveals = false;
  MaskOptions masks;
  AttentionSettings settings;  // scale and soft cap
  TestFlags test;

  AttentionInputsOptions given() const {
    AttentionInputsOptions all = sizes;
    all.batch = batch.value_or(all.batch);
    all.seq = seq.value_or(all.seq);
    all.heads = heads.value_or(all.heads);
    return all;
  }
};

bool has_idle_bound(const std::vector<HeadMasks>& masks, std::int64_t queries, std::int64_t keys) {
  for (const HeadMasks& part : masks)
    for (const MaskBound& bound : bounds_of(part.mask(0, 0, queries, keys)))
      if (bound.is_idle) return true;
  return false;
}

// Sizes that are not given: those of arrays in masks, or the least ones, no multiples of tiles, at which each bound
// masks a pair.
AttentionInputsOptions revealing_sizes(const AttentionInputFlags& flags,
                                       const std::vector<HeadMasks>& masks) {
  constexpr std::int64_t kFirst = 118, kTile = 64, kBeyond = 32, kMost = 1 << 16;
  AttentionInputsOptions sizes = flags.given();
  const std::int64_t earlier = aligns_bottom_right(flags.masks) ? 53 : 0;  // keys before the first query
  std::int64_t batch = 2, heads = 2 * sizes.kv_heads.value_or(2), queries = flags.seq.value_or(0),
               keys = sizes.kv_seq.value_or(0);
  for (const HeadMasks& part : masks) {
    if (part.batch > 1) batch = part.batch;
    if (part.heads > 1) heads = part.heads;
    if (queries == 0) queries = part.q_length;
    if (keys == 0) keys = part.kv_length;
  }
  sizes.batch = flags.batch.value_or(batch);
  sizes.heads = flags.heads.value_or(heads);
  if (!sizes.kv_heads)
    sizes.kv_heads = sizes.heads > 2 && sizes.heads % 2 == 0 ? sizes.heads / 2 : sizes.heads;
  if (queries == 0 && keys == 0) {
    for (queries = kFirst; queries < kMost && has_idle_bound(masks, queries, queries + earlier);)
      queries += kTile;
    queries = (queries < kMost ? queries : kFirst) + kBeyond;
  }
  sizes.seq = flags.seq || queries > 0 ? queries : std::max<std::int64_t>(keys - earlier, 1);
  sizes.kv_seq = sizes.kv_seq || keys > 0 ? keys : sizes.seq + earlier;
  return sizes;
}

Outcome run_revealing(const AttentionInputFlags& flags, Job& job) {
  job.provenance.input("what", "attention-inputs");
  job.provenance.record("what", "attention-inputs");
  AttentionMasks masks = job.phase(Phase::read, [&] { return open_attention_masks(flags.masks, job); });
  AttentionInputsOptions sizes = revealing_sizes(flags, masks.parts);
  sizes.std = 1;
  const AttentionInputs normal = generate_attention_inputs(sizes);
  AttentionSettings settings = flags.settings;
  settings.masks = masks.parts;
  AttentionTypes types;
  types.q = type_of(*normal.query), types.k = type_of(*normal.key), types.v = type_of(*normal.value);
  const AttentionPlan plan(types, settings);
  AuditOptions options;
  options.rule = flags.test.rule(sizes.dtype, "torch.testing");
  options.aligns_bottom_right = aligns_bottom_right(flags.masks);
  options.progress = job.progress();
  const std::int64_t bytes = types.q->bytes() + 2 * types.k->bytes();
  Report report;
  report.add("what", "generated", "attention-inputs").add("seed", "seed", sizes.seed);
  add_arrays(report, *types.q, *types.k, bytes);
  if (job.plan(report, bytes_to_audit(plan, options) + masks.resident_bytes + 2 * bytes))
    return Outcome::passed;
  Array value = job.phase(Phase::compute, [&] { return read_all(*normal.value); });
  RevealingInputs made = job.phase(Phase::compute, [&] {
    return revealing_inputs(plan, read_all(*normal.key).view(), value.view(), options);
  });
  append(report, describe(made.audit, AuditOf::inputs));
  job.deliver(std::move(report), {{"query", make_source(std::move(made.query)), {}},
                                  {"key", make_source(std::move(made.key)), {}},
                                  {"value", make_source(std::move(value)), {}}});
  return made.audit.passed() ? Outcome::passed : Outcome::failed;
}

void declare_revealing(OptionSet& set, AttentionInputFlags& flags) {
  add_flag(
      set, "--revealing", flags.reveals,
      "inputs on which a test detects every known fault\n"
      "Those of 'ejk help faults' that apply to the mask, the soft cap and the sizes. What the sizes cannot show is "
      "listed, with sizes that do, and the exit status is 1. Sizes that are not given suit the masks.")
      .excludes("--std");
  const std::size_t before = set.options().size();
  add_mask_expressions(set, "--mask", flags.masks.expressions, "the mask of the kernel; one, or one a head")
      .recorded_by_command();
  declare_scale(set, flags.settings);
  flags.test.is_forward = true;
  declare_tolerance(set, flags.test, " By default torch.testing.");
  set.all_need("--revealing", before);
}

Run declare_generate_attention(OptionSet& set) {
  const auto flags = std::make_shared<AttentionInputFlags>();
  AttentionInputsOptions& sizes = flags->sizes;
  add_seed(set, sizes.seed);
  add_word(set, "--batch", flags->batch, at_least(0), "N", "rows, 2 by default");
  add_word(set, "--seq", flags->seq, at_least(0), "N", "tokens of a row, 128 by default");
  add_word(set, "--heads", flags->heads, at_least(0), "N", "heads, 8 by default");
  add_word(set, "--kv-seq", sizes.kv_seq, at_least(0), "N", "keys of a row, as many as --seq by default");
  add_word(set, "--kv-heads", sizes.kv_heads, at_least(0), "N",
           "key/value heads, as many as --heads by default\n--heads is a multiple of them.");
  add_word(set, "--head-dim", sizes.head_dim, at_least(0), "N", "size of a head, 64 by default");
  add_word(set, "--std", sizes.std, read_mean, "S",
           "deviation of the numbers, 0.02 by default\nScores then have the deviation S * S. Those of 0.02 "
           "differ so little that a kernel's scale, and keys, are hardly tested; --std 1 tests them.")
      .recorded()
      .shown("deviation");
  add_dtype(set, "--dtype", sizes.dtype, "", {DType::float32, DType::float16, DType::bfloat16});
  declare_revealing(set, *flags);
  return [flags](Job& job) {
    if (flags->reveals) return run_revealing(*flags, job);
    const double std = flags->sizes.std;
    return run(
        "attention-inputs", 0,
        [&](Report& report) -> std::vector<Output> {
          const AttentionInputs made = generate_attention_inputs(flags->given());
          report.add("score_std", "of scores", std * std);
          return {{"query", made.query, {}}, {"key", made.key, {}}, {"value", made.value, {}}};
        },
        job,
        std* std < kFewestScores
            ? "Scores that differ so little test neither the scale nor the keys of a kernel; those of --std 1 do."
            : nullptr);
  };
}

Run declare_generate_masks(OptionSet& set) {
  const auto options = std::make_shared<MasksOptions>();
  options->how.count = 32;
  add_lengths(set, options->how, options->longest, "--seq");
  add_word(set, "--batch", options->how.count, at_least(0), "N", "rows, 32 by default");
  add_word(set, "--seq", options->given_seq, at_least(0), "N", "tokens of a row, 2048 by default");
  add_choice(set, "--padding", options->side, {{"right", PaddingSide::right}, {"left", PaddingSide::left}},
             "SIDE", "");
  return [options](Job& job) {
    LengthsOptions how = options->how;
    const std::int64_t seq = options->given_seq.value_or(2048);
    // No row has more tokens than --seq, so the reported lengths are those of the mask.
    const bool is_above = options->longest && *options->longest > seq;
    const bool is_own = options->longest && !is_above;
    how.longest = is_own ? *options->longest : seq;
    check_longest(how, is_own ? "--longest" : "--seq", is_own || options->given_seq.has_value());
    if (is_above)
      throw usage("--longest: {} is more than {} (--seq)", *options->longest, seq)
          .hint(fmt::format("--seq {} makes rows of that length; without --longest it is --seq",
                            *options->longest));
    return run(
        "masks", generate_bytes(how.count),
        [&](Report& report) -> std::vector<Output> {
          make_lengths(how, report);
          return {{"mask", generate_padding_mask(how, seq, options->side), {}}};
        },
        job);
  };
}

Run declare_generate_lens(OptionSet& set) {
  const auto options = std::make_shared<GeneratedLensOptions>();
  add_lengths(set, options->how, options->longest, "4096");
  add_word(set, "--count", options->how.count, at_least(0), "N", "how many, 64 by default");
  return [options](Job& job) {
    LengthsOptions how = options->how;
    how.longest = options->longest.value_or(how.longest);
    check_longest(how, "--longest", options->longest.has_value());
    return run(
        "lens", generate_bytes(how.count),
        [&](Report& report) -> std::vector<Output> {
          return {{"lens", make_lengths(how, report), {}}};
        },
        job);
  };
}

Run declare_generate_groups(OptionSet& set) {
  const auto options = std::make_shared<GroupsOptions>();
  using enum GroupDistribution;
  add_seed(set, options->seed);
  add_distribution<GroupDistribution>(
      set, options->distribution,
      {{"zipf", zipf}, {"uniform", uniform}, {"hot", hot}, {"balanced", balanced}},
      "\nzipf gives the group of rank r tokens as 1 / r, uniform each token to any group, hot one group a share, "
      "balanced all as many.");
  add_word(set, "--groups", options->groups, at_least(0), "N", "groups, 64 by default");
  add_word(set, "--tokens", options->tokens, read_tokens, "N", "their sum, 8192 by default");
  add_word(set, "--empty", options->empty, at_least(0), "N", "groups without a token, 0 by default");
  add_word(set, "--hot-share", options->hot_share, read_share, "X",
           "fraction of all tokens in the hot group, 0.5 by default");
  return [options](Job& job) {
    const GroupsOptions& o = *options;
    if (o.tokens > 0 && o.groups == 0)
      throw usage("--groups: 0 is less than 1, and there are {} tokens to be in one", o.tokens);
    if (o.tokens > 0 && o.empty >= o.groups)
      throw usage("--empty: {} is not from 0 to {}: one of the {} groups has the {} tokens", o.empty,
                  o.groups - 1, o.groups, o.tokens);
    return run(
        "group-sizes", generate_bytes(o.groups),
        [&](Report& report) -> std::vector<Output> {
          report.add("tokens", "tokens", o.tokens, Unit::count);
          return {{"group_sizes", make_source(generate_group_sizes(o), "group_sizes"), {}}};
        },
        job);
  };
}

}  // namespace

extern const Command generate_attention_inputs_command{
    .name = "generate attention-inputs",
    .summary = "query, key and value: normal numbers times --std, 0.02 by default, as JAX draws them",
    .example = "ejk generate attention-inputs --seq 512 -o qkv.h5",
    .outputs = {{"query", "(batch, seq, heads, head_dim) of --dtype",
                 "normal numbers times --std, 0.02 by default, as JAX draws them; or those of --revealing"},
                {"key", "the same", "likewise"},
                {"value", "the same", "likewise"}},
    .declare = declare_generate_attention,
};

extern const Command generate_masks_command{
    .name = "generate masks",
    .summary = "padding masks (batch, seq)",
    .example = "ejk generate masks --batch 3 --seq 12 --mean 5",
    .outputs = {{"mask", "(batch, seq) bool", "True for tokens, False for padding (generate masks)"}},
    .declare = declare_generate_masks,
};

extern const Command generate_group_sizes_command{
    .name = "generate group-sizes",
    .summary = "tokens of each expert",
    .example = "ejk generate group-sizes --groups 8 --tokens 1000",
    .outputs = {{"group_sizes", "(groups,) int32", "rows of each group (generate group-sizes)"}},
    .declare = declare_generate_groups,
};

extern const Command generate_lens_command{
    .name = "generate lens",
    .summary = "lengths of sequences",
    .example = "ejk generate lens --count 8",
    .outputs = {{"lens", "(count,) int32", "lengths of sequences (generate lens)"}},
    .declare = declare_generate_lens,
};

extern const Command generate_command{
    .name = "generate",
    .group = "Arrays",
    .summary = "make attention inputs, masks, group sizes, lengths",
    .example = "ejk generate attention-inputs --seq 512 -o qkv.h5",
    .use = R"(with h5py.File("qkv.h5") as f: q = f["query"][()]  # attention-inputs
mask = np.load("mask.npy")  # masks, and so on)",
    .keys = joined({R"(
what | string | attention-inputs, masks, group-sizes or lens
seed | integer | the seed
sequences | integer | sequences | masks and lens
tokens | integer | tokens in all | masks, group-sizes and lens
longest | integer | tokens of the longest sequence | masks and lens
std, score_std | number | deviation of the numbers, and of the scores at the usual scale | attention-inputs
shape | shape | of each array that is written
kv_shape | shape | of key and value | where it is another one
dtype | string | their element type
size_bytes | integer | bytes of all of them
)",
                    with_condition(kAuditKeys, "with --revealing")}),
    .actions = {&generate_attention_inputs_command, &generate_masks_command, &generate_group_sizes_command,
                &generate_lens_command},
};

}  // namespace ejk::app
