// ejk bin-pack: sequences into rows of equal capacity.
//
// tests: tests/cli/bin-pack/
#include <fmt/format.h>

#include <algorithm>

#include "commands.hpp"
#include "ejk/pack.hpp"
#include "job.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

struct BinPackOptions {
  std::string lens;
  std::int64_t capacity = 0;
  LongSequence how = LongSequence::error;
};

const std::vector<std::string> kLong{"error", "truncate", "split"};

Answer run(const BinPackOptions& options, Job& job) {
  job.note_setting("capacity", fmt::format("{}", options.capacity));
  job.note_setting("long", kLong[static_cast<std::size_t>(options.how)]);
  const auto lens = job.phase(Job::Phase::read, [&] { return job.open("lens", options.lens); });
  Report plan;
  plan.add("sequences", "sequences", element_count(lens->shape()), Unit::count)
      .add("capacity", "capacity of a row", options.capacity, Unit::tokens);
  constexpr std::int64_t per_sequence = 12 * 8;  // lengths, pieces, their order, rows with room
  if (job.plan(plan, kPieceBytes + per_sequence * element_count(lens->shape()))) return Answer::yes;

  const std::int64_t max_pieces = std::max<std::int64_t>(1, (job.max_memory() - kPieceBytes) / per_sequence);
  const BinPacking p = job.phase(Job::Phase::compute,
                                 [&] { return bin_pack(*lens, options.capacity, options.how, max_pieces); });
  Report report;
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
      .add("efficiency", "rows are filled by", p.efficiency(), Unit::share);
  if (p.truncated_tokens > 0)
    report.warnings.push_back(fmt::format("{} tokens are cut off", p.truncated_tokens));
  const auto of = [](const std::vector<std::int64_t>& values) {
    const auto n = static_cast<std::int64_t>(values.size());
    return make_source(ArrayView{reinterpret_cast<const std::byte*>(values.data()), DType::int64, {n}, {8}});
  };
  job.deliver(std::move(report), {{"row", of(p.row), {}},
                                  {"offset", of(p.offset), {}},
                                  {"length", of(p.length), {}},
                                  {"sequence", of(p.sequence), {}},
                                  {"start", of(p.start), {}}});
  return Answer::yes;
}

}  // namespace

Run bin_pack(CLI::App& app) {
  const auto options = std::make_shared<BinPackOptions>();
  add_reference(app, "LENS", options->lens, "lengths of sequences (sequences,)").required();
  add_word(
      app, "--capacity", options->capacity, [](const std::string& w) { return read_integer(w, 1); }, "N",
      "tokens that a row holds")
      .required();
  add_word(
      app, "--long", options->how,
      [](const std::string& w) { return static_cast<LongSequence>(read_choice(w, kLong)); }, "HOW",
      "sequences longer than a row: error, truncate or split\n"
      "error (default) names the first; truncate cuts off what is beyond; split makes pieces, each placed "
      "on its own.");
  set_footer(app,
             "Best-fit decreasing: the longest first, each into the fullest row with room.\n"
             "Unless sequences are split, entry p of the arrays is of sequence p.");
  return [options](Job& job) { return run(*options, job); };
}

}  // namespace ejk::app
