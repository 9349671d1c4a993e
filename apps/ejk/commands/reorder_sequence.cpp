// ejk reorder-sequence: an axis in the order that balances causal work over a ring of ranks, or back.
//
// tests: tests/cli/reorder-sequence/
#include <fmt/format.h>

#include <optional>

#include "commands.hpp"
#include "ejk/sequence.hpp"
#include "job.hpp"
#include "schema.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

struct ReorderOptions {
  std::string array;
  std::int64_t cp_size = 0;
  std::optional<std::int64_t> axis;
  Reorder order = Reorder::to_ring;
};

Outcome run(const ReorderOptions& options, Job& job) {
  const std::int64_t sequence = options.axis.value_or(1);
  auto x = job.open("x", options.array);
  const Shape& shape = x->shape();
  if (!options.axis && shape.size() == 1)
    throw Error(Error::Kind::input,
                fmt::format("{} has shape {}, and the sequence is axis 1", x->name(), to_string(shape)))
        .hint("--axis 0 confirms axis 0");
  auto reordered = reorder_sequence(x, options.cp_size, sequence, options.order);

  const std::int64_t bytes = byte_count(shape, x->dtype());
  const auto rank = static_cast<std::int64_t>(shape.size());
  const auto axis = static_cast<std::size_t>(sequence < 0 ? sequence + rank : sequence);
  Report report;
  job.show_options(report);
  report.add("shape", "shape", shape)
      .add("dtype", "dtype", std::string(name_of(x->dtype())))
      .add("axis", "axis", static_cast<std::int64_t>(axis))
      .add("size", "size", bytes, Unit::bytes);
  for (Report::Item& item : describe_reorder(shape[axis], options.cp_size).items) report.add(std::move(item));
  // An array with sequential access alone is read into memory: the order of chunks is not that of the file.
  const bool hold = !x->random_access();
  if (job.plan(report, piece_buffers(3, bytes) + (hold ? bytes : 0))) return Outcome::passed;
  if (hold) {
    x = job.phase(Phase::read, [&] { return in_memory(*x); });
    reordered = reorder_sequence(x, options.cp_size, sequence, options.order);
  }
  job.deliver(std::move(report), {{"reorder_sequence", reordered, {}}});
  return Outcome::passed;
}

std::int64_t read_ranks(const std::string& word) {
  const std::int64_t ranks = read_integer(word, 2);
  if (ranks % 2 != 0) throw usage("the number of ranks is {}; it must be even and at least 2", ranks);
  return ranks;
}

Run declare_reorder_sequence(OptionSet& set) {
  const auto options = std::make_shared<ReorderOptions>();
  add_reference(set, "X", options->array, "an array of any type and shape").required();
  add_word(set, "--cp-size", options->cp_size, read_ranks, "N",
           "ranks of the ring, an even number\n"
           "The axis is cut into 2 N pieces, of which rank r gets pieces r and 2 N - 1 - r.")
      .required()
      .recorded();
  add_word(set, "--axis", options->axis, at_least(INT64_MIN), "A",
           "the axis of the sequence, 1 by default\nNegative ones count from the end.")
      .recorded()
      .otherwise("1");
  add_flag(set, "--to-contiguous", options->order, Reorder::to_contiguous, "back from the order of the ring")
      .recorded("order", [options] { return options->order == Reorder::to_ring ? "ring" : "contiguous"; })
      .shown("order");
  return [options](Job& job) { return run(*options, job); };
}

}  // namespace

extern const Command reorder_sequence_command{
    .name = "reorder-sequence",
    .group = "Sequences",
    .summary = "balance causal work over a ring of ranks, and back",
    .example = "ejk reorder-sequence q.npy --cp-size 4 --axis 1 -o q_ring.npy",
    .outputs =
        {{"reorder_sequence", "the shape and type of X",
          "the axis in 2 N equal pieces; rank r of N gets pieces r and 2 N - 1 - r, next to each other"}},
    .use = R"(ring = np.load("q_ring.npy")  # (batch, tokens, ...), N ranks
mine = np.split(ring, N, axis=1)[rank])",
    .keys = joined({R"(
order | string | ring or contiguous
)",
                    kArrayKeys, R"(
axis | integer | the axis of the sequence, from 0
length | integer | tokens of the sequence
ranks_count | integer | ranks
imbalance_contiguous, imbalance_ring | number or null | causal work of the heaviest rank / the mean, in either order
ranks | table | causal work of each rank
  rank | integer | the rank
  contiguous_pairs, ring_pairs | integer | allowed pairs in either order
)"}),
    .declare = declare_reorder_sequence,
};

}  // namespace ejk::app
