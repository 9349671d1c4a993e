// ejk merge-states: partial results of attention joined.
// tests: tests/cli/merge-states/
#include "ejk/merge_states.hpp"

#include <optional>

#include "commands.hpp"
#include "job.hpp"
#include "options.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

struct MergeOptions {
  std::vector<std::string> parts;  // OUT and LSE in turn
  std::optional<std::int64_t> stacked;
  MergeSettings settings;
};

Outcome run(const MergeOptions& options, Job& job) {
  const std::size_t words = options.parts.size();
  if (words % 2 != 0)
    throw usage("{} arrays are given: each part is its OUT and its LSE", words)
        .hint("for example: ejk merge-states a.h5:/out a.h5:/lse b.h5:/out b.h5:/lse");
  if (words == 2 && !options.stacked)
    throw usage("one part alone is given").hint("--stacked 0 takes arrays (parts, ...) of several");
  if (words > 2 && options.stacked) throw usage("--stacked takes one OUT and LSE, not {}", words / 2);

  std::vector<BufferedInput> inputs;
  std::int64_t bytes = 0;
  for (std::size_t n = 0; n < words; ++n) {
    const std::string role = fmt::format("{} {}", n % 2 == 0 ? "out" : "lse", n / 2 + 1);
    inputs.push_back({role, job.open(role, options.parts[n])});
    bytes += inputs.back().bytes_to_buffer();
  }
  const auto size_of_result = [&](std::size_t n, std::optional<DType> dtype) {
    const ArraySource& source = *inputs[n].source;
    return byte_count(source.shape(), dtype.value_or(source.dtype()));
  };
  const std::int64_t resident =
      bytes + size_of_result(0, options.settings.dtype) + size_of_result(1, DType::float64);
  const std::int64_t peak = resident + piece_buffers(2, resident);
  Report report;
  report.add("lse_base", "base of lse", std::string(name_of(options.settings.lse_base)));
  if (job.plan(report, peak)) return Outcome::passed;

  std::vector<AttentionState> parts;
  job.phase(Phase::read, [&] {
    for (std::size_t n = 0; n < words; n += 2) parts.push_back({inputs[n].view(), inputs[n + 1].view()});
  });
  std::vector<BufferedInput*> named;
  for (BufferedInput& input : inputs) named.push_back(&input);
  MergedStates merged = naming(named, [&] {
    return job.phase(Phase::compute, [&] {
      return merge_states(options.stacked ? unstacked(parts.front(), *options.stacked) : parts,
                          options.settings);
    });
  });
  append(report, describe(merged));
  job.deliver(std::move(report), {{"out", make_source(std::move(merged.out)), {}},
                                  {"lse", make_source(std::move(merged.lse)), {}}});
  return Outcome::passed;
}

Run declare_merge_states(OptionSet& set) {
  const auto options = std::make_shared<MergeOptions>();
  add_references(set, "PARTS", options->parts,
                 "OUT LSE of each part in turn: results of attention over disjoint keys\n"
                 "Shaped alike. OUT is float16, bfloat16, float32 or float64, LSE (batch, heads, queries) or "
                 "(heads, tokens).")
      .required();
  add_word(set, "--stacked", options->stacked, at_least(0), "AXIS",
           "one OUT and LSE hold all parts, along this axis of both\n"
           "0 for split keys as (parts, batch, ...), 1 for flashinfer's merge_states, (tokens, parts, ...).");
  add_choice(
      set, "--layout", options->settings.layout,
      {{"bshd", AttentionLayout::bshd}, {"bhsd", AttentionLayout::bhsd}, {"thd", AttentionLayout::thd}},
      "LAYOUT", "axes of OUT, of a part; by default bshd, thd of three axes");
  add_choice(set, "--lse-layout", options->settings.lse_layout,
             named_choices<std::optional<LseLayout>>({LseLayout::hn, LseLayout::nh}), "LAYOUT",
             "axes of LSE: heads, then queries, or the reverse\n"
             "By default the one that fits; hn where both do. flashinfer's is nh.");
  add_choice(set, "--lse-base", options->settings.lse_base,
             named_choices<LseBase>({LseBase::e, LseBase::two}), "BASE", "base of the logarithm of lse")
      .recorded();
  add_choice(set, "--lse-empty", options->settings.lse_empty,
             named_choices<LseEmpty>({LseEmpty::minus_infinity, LseEmpty::infinity}), "VALUE",
             "lse of a part without keys, and of the result\ninf: -inf is one, too.")
      .recorded();
  add_dtype(set, "--dtype", options->settings.dtype, "type of out, by default that of the first OUT",
            float_dtypes())
      .recorded();
  set_footer(set,
             "Attention over some of the keys at a time, joined, is attention over all:\n"
             "  ejk attention q.npy \"k.npy[:,:16]\" \"v.npy[:,:16]\" -o a.h5\n"
             "  ejk attention q.npy \"k.npy[:,16:]\" \"v.npy[:,16:]\" -o b.h5\n"
             "  ejk merge-states a.h5:/out a.h5:/lse b.h5:/out b.h5:/lse -o merged.h5\n"
             "  ejk attention q.npy k.npy v.npy --against merged.h5\n"
             "A causal mask is --mask 'causal(offset=-16)' in the second, and of any split\n"
             "--mask 'positions(causal, k=ORDER)', ORDER the positions of its keys; parts of a\n"
             "paged cache have some columns of its --block-table. --sinks go to one part\n"
             "alone: counted in both, the last line finds the difference, and with --explain\n"
             "says that the sinks are counted twice.");
  return [options](Job& job) { return run(*options, job); };
}

}  // namespace

extern const Command merge_states_command{
    .name = "merge-states",
    .group = "Attention",
    .summary = "partial results of attention over disjoint keys, joined",
    .example = "ejk merge-states a.h5:/out a.h5:/lse b.h5:/out b.h5:/lse -o merged.h5",
    .outputs = {{"out", "the shape of a part's OUT", "sum w OUT / sum w, w = exp(LSE - the largest LSE)"},
                {"lse", "the shape of a part's LSE", "ln sum exp(LSE); float32, or float64"}},
    .use = R"(with h5py.File("merged.h5") as f: out, lse = f["out"][()], f["lse"][()])",
    .keys = R"(
lse_base | string | the base of lse
parts | integer | parts | done
out | shape | the shape of out | done
out_dtype | string | its element type | done
lse | shape | the shape of lse | done
lse_dtype | string | its element type | done
rows, rows_without_key | integer | queries of all heads; those without a key in any part | done
)",
    .declare = declare_merge_states,
};

}  // namespace ejk::app
