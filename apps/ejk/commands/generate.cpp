// ejk generate: synthetic inputs from a seed.
//
// tests: tests/cli/generate/
#include "ejk/generate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "commands.hpp"
#include "ejk/sequence.hpp"
#include "job.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

using Source = std::shared_ptr<const ArraySource>;

enum class What { attention_inputs, masks, group_sizes, lens };
constexpr const char* kWhat[] = {"attention-inputs", "masks", "group-sizes", "lens"};

constexpr std::int64_t kSeqOfMasks = 2048;  // where --seq does not say

// The options of every kind. Each is for some kinds, and refused for the others.
struct GenerateOptions {
  What what = What::attention_inputs;
  std::int64_t seed = 0;
  AttentionInputsOptions attention;
  LengthsOptions lengths;
  std::optional<std::int64_t> batch, count, seq, longest;
  GroupsOptions groups;
  std::string distribution;
  PaddingSide side = PaddingSide::right;
};

template <class Distribution>
using Choices = std::vector<std::pair<const char*, Distribution>>;

// The first is the default.
const Choices<LengthDistribution> kLengthDistributions{{"lognormal", LengthDistribution::lognormal},
                                                       {"zipf", LengthDistribution::zipf},
                                                       {"uniform", LengthDistribution::uniform},
                                                       {"constant", LengthDistribution::constant}};
const Choices<GroupDistribution> kGroupDistributions{{"zipf", GroupDistribution::zipf},
                                                     {"uniform", GroupDistribution::uniform},
                                                     {"hot", GroupDistribution::hot},
                                                     {"balanced", GroupDistribution::balanced}};

template <class Distribution>
void add_names(const Choices<Distribution>& choices, std::vector<std::string>& names) {
  for (const auto& choice : choices)
    if (std::find(names.begin(), names.end(), choice.first) == names.end()) names.emplace_back(choice.first);
}

// A distribution of anything; which of them there are for what is generated is known when all words are.
std::string read_distribution(const std::string& word) {
  std::vector<std::string> names;
  add_names(kLengthDistributions, names);
  add_names(kGroupDistributions, names);
  return names[read_choice(word, names)];
}

double read_mean(const std::string& word) {
  const double mean = read_real(word);
  if (!(mean > 0) || std::isinf(mean))
    throw Error(Error::Kind::usage, fmt::format("{} is not a number above 0", word));
  return mean;
}

double read_share(const std::string& word) {
  const double share = read_real(word);
  if (!(share >= 0 && share <= 1))
    throw Error(Error::Kind::usage, fmt::format("{} is not from 0 to 1", word));
  return share;
}

std::int64_t read_tokens(const std::string& word) {
  const std::int64_t tokens = read_integer(word, 0);
  if (tokens > INT32_MAX)
    throw Error(Error::Kind::usage, fmt::format("{} is not from 0 to {}", tokens, INT32_MAX));
  return tokens;
}

template <class Distribution>
Distribution chosen(const std::string& word, const Choices<Distribution>& choices) {
  if (word.empty()) return choices.front().second;
  std::vector<std::string> names;
  add_names(choices, names);
  try {
    return choices[read_choice(word, names)].second;
  } catch (Error& error) {
    error.at("--distribution");
    throw;
  }
}

std::vector<Output> attention_inputs(const GenerateOptions& options) {
  AttentionInputsOptions how = options.attention;
  how.seed = options.seed;
  how.batch = options.batch.value_or(how.batch);
  how.seq = options.seq.value_or(how.seq);
  const AttentionInputs made = generate_attention_inputs(how);
  return {{"query", made.query, {}}, {"key", made.key, {}}, {"value", made.value, {}}};
}

LengthsOptions lengths_of(const GenerateOptions& options, std::int64_t longest) {
  LengthsOptions how = options.lengths;
  how.seed = options.seed;
  how.longest = options.longest.value_or(longest);
  how.distribution = chosen(options.distribution, kLengthDistributions);
  return how;
}

GroupsOptions groups_of(const GenerateOptions& options) {
  GroupsOptions how = options.groups;
  how.seed = options.seed;
  how.distribution = chosen(options.distribution, kGroupDistributions);
  return how;
}

// Words that are good by themselves and cannot be broadcast together, by the names they have on the command
// line.
void check_words(const GenerateOptions& o) {
  const auto refuse = [](std::string why) { throw Error(Error::Kind::usage, std::move(why)); };
  if (o.what == What::group_sizes && o.groups.tokens > 0) {
    if (o.groups.groups == 0)
      refuse(
          fmt::format("--groups: 0 is less than 1, and there are {} tokens to be in one", o.groups.tokens));
    if (o.groups.empty >= o.groups.groups)
      refuse(fmt::format("--empty: {} is not from 0 to {}: one of the {} groups has the {} tokens",
                         o.groups.empty, o.groups.groups - 1, o.groups.groups, o.groups.tokens));
  }
  if (o.what != What::lens && o.what != What::masks) return;
  const std::int64_t shortest = o.lengths.shortest;
  const bool of_seq = o.what == What::masks && !o.longest;
  const std::int64_t longest = of_seq ? o.seq.value_or(kSeqOfMasks) : o.longest.value_or(o.lengths.longest);
  const char* name = of_seq ? "--seq" : "--longest";
  if (longest > INT32_MAX || (longest < shortest && (of_seq ? o.seq : o.longest)))
    refuse(fmt::format("{}: {} is not within {} (--shortest) and {}", name, longest, shortest, INT32_MAX));
  if (longest < shortest)
    refuse(fmt::format("--shortest: {} is not from 0 to {} ({})", shortest, longest, name));
}

void describe_lengths(const ArraySource& lengths, Report& report) {
  const Array cu = prepare_cu_seqlens_from_lens(lengths, DType::int64);
  const SequenceCounts counts = count_sequences(*make_source(cu.view(), "cu_seqlens"));
  report.add("sequences", "sequences", counts.sequences, Unit::count)
      .add("tokens", "tokens", counts.tokens, Unit::count)
      .add("longest", "longest", counts.longest, Unit::tokens);
}

// What takes memory: lengths and group sizes, some times over while they are made.
std::int64_t peak_of(const GenerateOptions& options) {
  const std::int64_t made = options.what == What::group_sizes ? options.groups.groups
                            : options.what == What::masks     ? options.batch.value_or(32)
                            : options.what == What::lens      ? options.count.value_or(64)
                                                              : 0;
  return 2 * kPieceBytes + (made < INT64_MAX / 64 ? made * 64 : INT64_MAX / 2);
}

Answer run(const GenerateOptions& options, Job& job) {
  const char* what = kWhat[static_cast<std::size_t>(options.what)];
  job.note_input("what", what);
  job.note_setting("what", what);
  job.note_setting("seed", fmt::format("{}", options.seed));
  if (!options.distribution.empty()) job.note_setting("distribution", options.distribution);
  job.makes(options.what == What::attention_inputs ? std::vector<std::string>{"query", "key", "value"}
            : options.what == What::masks          ? std::vector<std::string>{"mask"}
            : options.what == What::group_sizes    ? std::vector<std::string>{"group_sizes"}
                                                   : std::vector<std::string>{"lens"});
  Report report;
  report.add("what", "generated", std::string(what)).add("seed", "seed", options.seed);
  const std::int64_t peak = peak_of(options);
  if (peak > job.max_memory() && job.plan(report, peak)) return Answer::yes;

  // Small ones are made even for a dry run; large ones only when they are read.
  std::vector<Output> outputs = job.phase(Job::Phase::compute, [&]() -> std::vector<Output> {
    if (options.what == What::attention_inputs) return attention_inputs(options);
    if (options.what == What::group_sizes) {
      Source sizes = make_source(generate_group_sizes(groups_of(options)), "group_sizes");
      report.add("tokens", "tokens", options.groups.tokens, Unit::count);
      return {{"group_sizes", std::move(sizes), {}}};
    }
    const std::int64_t seq = options.seq.value_or(kSeqOfMasks);
    LengthsOptions how = lengths_of(options, options.what == What::masks ? seq : LengthsOptions{}.longest);
    how.count = options.what == What::masks ? options.batch.value_or(32) : options.count.value_or(how.count);
    Source lengths = make_source(generate_lengths(how), "lens");
    describe_lengths(*lengths, report);
    if (options.what == What::lens) return {{"lens", std::move(lengths), {}}};
    return {{"mask", generate_padding_mask(how, seq, options.side), {}}};
  });
  const ArraySource& first = *outputs.front().source;
  report.add("shape", "shape", first.shape()).add("dtype", "dtype", std::string(name_of(first.dtype())));
  report.add("size", "size",
             byte_count(first.shape(), first.dtype()) * static_cast<std::int64_t>(outputs.size()),
             Unit::bytes);
  for (const char* name : {"query", "key", "value", "mask", "group_sizes", "lens"}) {
    const auto made =
        std::find_if(outputs.begin(), outputs.end(), [&](const Output& o) { return o.name == name; });
    if (made == outputs.end())
      outputs.push_back({name, nullptr, fmt::format("'generate {}' does not make it", what)});
  }
  if (job.plan(report, peak)) return Answer::yes;
  job.deliver(std::move(report), outputs);
  return Answer::yes;
}

}  // namespace

Run generate(CLI::App& app) {
  const auto options = std::make_shared<GenerateOptions>();
  GenerateOptions& o = *options;
  // Which kinds an option is for, by its name.
  const auto only_for = std::make_shared<std::vector<std::pair<Option, std::vector<What>>>>();
  const auto at_least = [](std::int64_t least) {
    return [least](const std::string& w) { return read_integer(w, least); };
  };
  const auto maybe = [](std::int64_t least) {
    return [least](const std::string& w) { return std::optional(read_integer(w, least)); };
  };
  add_word(
      app, "WHAT", o.what,
      [](const std::string& word) {
        return static_cast<What>(read_choice(word, {kWhat[0], kWhat[1], kWhat[2], kWhat[3]}));
      },
      "WHAT",
      "attention-inputs, masks, group-sizes or lens\n"
      "attention-inputs: query, key and value (batch, seq, heads, head_dim), normal numbers times 0.02 as "
      "JAX draws "
      "them. masks: padding masks (batch, seq). group-sizes: tokens of each expert. lens: lengths of "
      "sequences.")
      .required();
  add_word(
      app, "--seed", o.seed,
      [](const std::string& w) {
        const std::int64_t seed = read_integer(w, 0);
        if (seed > UINT32_MAX) throw Error(Error::Kind::usage, fmt::format("{} is more than 2^32 - 1", seed));
        return seed;
      },
      "N", "0 by default; the same seed gives the same bytes on any machine");
  const auto with = [&](Option option, std::vector<What> kinds) {
    only_for->emplace_back(option, std::move(kinds));
  };
  using enum What;
  with(add_word(app, "--batch", o.batch, maybe(0), "N", "attention-inputs, masks: rows, by default 2 and 32"),
       {attention_inputs, masks});
  with(add_word(app, "--seq", o.seq, maybe(0), "N",
                "attention-inputs, masks: tokens of a row, by default 128 and 2048"),
       {attention_inputs, masks});
  with(add_word(app, "--heads", o.attention.heads, at_least(0), "N", "attention-inputs: heads, 8 by default"),
       {attention_inputs});
  with(add_word(app, "--head-dim", o.attention.head_dim, at_least(0), "N",
                "attention-inputs: size of a head, 64 by default"),
       {attention_inputs});
  with(add_word(
           app, "--dtype", o.attention.dtype,
           [](const std::string& w) {
             return read_dtype_among(w, {DType::float32, DType::float16, DType::bfloat16});
           },
           "TYPE", "attention-inputs: float32 (default), float16 or bfloat16"),
       {attention_inputs});
  with(add_word(
           app, "--distribution", o.distribution, read_distribution, "NAME",
           "lens, masks: lognormal, zipf, uniform, constant; group-sizes: zipf, uniform, hot, balanced\n"
           "The first is the default. Lengths: lognormal as documents are, zipf with P(n) as 1 / n, constant "
           "the "
           "longest. Groups: zipf gives the group of rank r tokens as 1 / r, uniform each token to any "
           "group, hot "
           "one group a share, balanced all as many."),
       {masks, lens, group_sizes});
  with(add_word(app, "--count", o.count, maybe(0), "N", "lens: how many, 64 by default"), {lens});
  with(add_word(app, "--mean", o.lengths.mean, read_mean, "X",
                "lens, masks: mean of lognormal lengths, 512 by default"),
       {lens, masks});
  with(add_word(app, "--shortest", o.lengths.shortest, at_least(0), "N",
                "lens, masks: least length, 1 by default"),
       {lens, masks});
  with(add_word(app, "--longest", o.longest, maybe(0), "N",
                "lens, masks: greatest length, by default 4096 and --seq"),
       {lens, masks});
  with(add_word(
           app, "--padding", o.side,
           [](const std::string& w) {
             return read_choice(w, {"right", "left"}) == 0 ? PaddingSide::right : PaddingSide::left;
           },
           "SIDE", "masks: right (default) or left"),
       {masks});
  with(add_word(app, "--groups", o.groups.groups, at_least(0), "N", "group-sizes: groups, 64 by default"),
       {group_sizes});
  with(
      add_word(app, "--tokens", o.groups.tokens, read_tokens, "N", "group-sizes: their sum, 8192 by default"),
      {group_sizes});
  with(add_word(app, "--empty", o.groups.empty, at_least(0), "N",
                "group-sizes: groups without a token, 0 by default"),
       {group_sizes});
  with(add_word(app, "--hot-share", o.groups.hot_share, read_share, "X",
                "group-sizes: what the hot group gets of all tokens, 0.5 by default"),
       {group_sizes});
  return [options, only_for](Job& job) {
    for (const auto& [option, kinds] : *only_for)
      if (option.was_given() && std::find(kinds.begin(), kinds.end(), options->what) == kinds.end())
        throw Error(Error::Kind::usage, fmt::format("{} is not for '{}'", option.name(),
                                                    kWhat[static_cast<std::size_t>(options->what)]));
    check_words(*options);
    return run(*options, job);
  };
}

}  // namespace ejk::app
