// ejk bin-pack: sequences into rows of equal capacity.
//
// tests: tests/cli/bin-pack/
#include <fmt/format.h>

#include <algorithm>

#include "commands.hpp"
#include "ejk/pack.hpp"
#include "integers.hpp"
#include "job.hpp"
#include "schema.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

struct BinPackOptions {
  std::string lens;
  std::int64_t capacity = 0;
  LongSequence how = LongSequence::error;
  SequencesFrom from = SequencesFrom::automatic;
};

Outcome run(const BinPackOptions& options, Job& job) {
  const auto input = job.open("lens", options.lens);
  Report report;
  const SequencesFrom from = resolve_from(*input, options.from, SequencesFrom::lens, job, report);
  Report plan = report;
  const std::int64_t most =  // sequences
      from == SequencesFrom::mask && !input->shape().empty() ? input->shape()[0]
                                                             : element_count(input->shape());
  plan.add("sequences", "sequences", most, Unit::count)
      .add("capacity", "capacity of a row", options.capacity, Unit::tokens);
  if (job.plan(plan, kPieceBytes + lengths_bytes(*input, from) + bin_pack_bytes(most)))
    return Outcome::passed;

  const std::int64_t max_pieces =
      std::max<std::int64_t>(1, (job.budget.bytes() - kPieceBytes) / bin_pack_bytes(1));
  const auto lens = make_source(
      job.phase(
             Phase::compute,
             [&] { return lengths_of(options.lens, *input, from, options.from, DType::int64, report, job); })
          .lens,
      input->name());
  const BinPacking p =
      job.phase(Phase::compute, [&] { return bin_pack(*lens, options.capacity, options.how, max_pieces); });
  report.add("sequences", "sequences", lens->shape()[0], Unit::count);
  if (p.long_sequences > 0) {
    report.add("long_sequences", options.how == LongSequence::split ? "split" : "truncated", p.long_sequences,
               Unit::count);
    report.add("pieces", "pieces", static_cast<std::int64_t>(p.length.size()), Unit::count);
  }
  report.add("tokens", "tokens", p.tokens, Unit::count);
  if (options.how == LongSequence::truncate)
    report.add("truncated_tokens", "tokens cut off", p.truncated_tokens, Unit::count);
  report.add("capacity", "capacity of a row", p.capacity, Unit::tokens)
      .add("rows", "rows", p.rows, Unit::count)
      .add("lower_bound", "no packing needs fewer than", p.lower_bound(), Unit::rows)
      .add("efficiency", "rows are filled by", p.rows > 0 ? ReportValue(p.efficiency()) : ReportValue(),
           Unit::share);
  if (p.truncated_tokens > 0)
    report.warnings.push_back(fmt::format("{} tokens are cut off", p.truncated_tokens));
  const auto of = [](const std::vector<std::int64_t>& values) {
    return make_source(view_of(values.data(), {static_cast<std::int64_t>(values.size())}));
  };
  job.deliver(std::move(report), {{"row", of(p.row), {}},
                                  {"offset", of(p.offset), {}},
                                  {"length", of(p.length), {}},
                                  {"sequence", of(p.sequence), {}},
                                  {"start", of(p.start), {}}});
  return Outcome::passed;
}

Run declare_bin_pack(OptionSet& set) {
  const auto options = std::make_shared<BinPackOptions>();
  add_reference(set, "LENS", options->lens, "lengths of sequences (sequences,), or another form, see --from")
      .required();
  add_word(set, "--capacity", options->capacity, at_least(1), "N", "tokens of a row").required().recorded();
  const Choices<LongSequence> how{
      {"error", LongSequence::error}, {"truncate", LongSequence::truncate}, {"split", LongSequence::split}};
  add_choice(
      set, "--long", options->how, how, "HOW",
      "sequences longer than a row\nerror names the first; truncate drops the tokens past the capacity; "
      "split cuts the sequence into pieces, each placed on its own.")
      .recorded("long", [options, how] {
        return std::find_if(how.begin(), how.end(), [&](const auto& h) { return h.second == options->how; })
            ->first;
      });
  add_sequences_from(set, options->from,
                     {SequencesFrom::lens, SequencesFrom::mask, SequencesFrom::cu_seqlens,
                      SequencesFrom::segment_ids, SequencesFrom::position_ids},
                     "By default one axis is lens, and two are a mask (batch, seq).");
  set_footer(set,
             "Best-fit decreasing: the longest first, each into the fullest row with space.\n"
             "Unless sequences are split, entry p of the arrays is of sequence p.");
  return [options](Job& job) { return run(*options, job); };
}

}  // namespace

extern const Command bin_pack_command{
    .name = "bin-pack",
    .group = "Sequences",
    .summary = "sequences into rows of equal capacity",
    .example = "ejk bin-pack lens.npy --capacity 2048 -o rows.h5",
    .outputs = {{"row", "(pieces,) int64", "the row of each piece"},
                {"offset", "(pieces,) int64", "its first token in the row"},
                {"length", "(pieces,) int64", "its tokens"},
                {"sequence", "(pieces,) int64", "its sequence"},
                {"start", "(pieces,) int64",
                 "its first token in the sequence; 0 unless sequences are split"}},
    .use = R"(with h5py.File("rows.h5") as f: p = {k: f[k][()] for k in f}
batch = np.zeros((p["row"].max() + 1, capacity), tokens[0].dtype)
for i, n in enumerate(p["length"]):
    row, at, begin = p["row"][i], p["offset"][i], p["start"][i]
    batch[row, at:at + n] = tokens[p["sequence"][i]][begin:begin + n])",
    .keys = joined({kSequencesFromKey, R"(
sequences | integer | sequences; with --dry-run, of ids, at most
long_sequences | integer | those longer than a row, which are truncated or split | where there are such
pieces | integer | pieces, with those that are whole sequences | where sequences are longer than a row
tokens | integer | tokens in all rows | done
truncated_tokens | integer | tokens cut off | with --long truncate
capacity | integer | tokens that a row holds
rows | integer | rows | done
lower_bound | integer | rows that any packing needs | done
efficiency | share or null | tokens / (rows x capacity) | done
)",
                    kPaddingKeys, kZeroIdKey}),
    .declare = declare_bin_pack,
};

}  // namespace ejk::app
