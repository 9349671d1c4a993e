// ejk reorder-sequence: an axis in the order that balances causal work over a ring of ranks, or back.
//
// tests: tests/cli/reorder-sequence/
#include <fmt/format.h>

#include <optional>

#include "commands.hpp"
#include "ejk/sequence.hpp"
#include "job.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

struct ReorderOptions {
  std::string array;
  std::int64_t cp_size = 0;
  std::optional<std::int64_t> axis;
  bool to_contiguous = false;
};

Answer run(const ReorderOptions& options, Job& job) {
  const Reorder order = options.to_contiguous ? Reorder::to_contiguous : Reorder::to_ring;
  job.note_setting("cp_size", fmt::format("{}", options.cp_size));
  const std::int64_t sequence = options.axis.value_or(1);
  job.note_setting("axis", fmt::format("{}", sequence));
  job.note_setting("order", options.to_contiguous ? "contiguous" : "ring");
  auto x = job.phase(Job::Phase::read, [&] { return job.open("x", options.array); });
  const Shape& shape = x->shape();
  if (!options.axis && shape.size() == 1)
    throw Error(Error::Kind::input,
                fmt::format("{} has shape {}, and the sequence is axis 1", x->name(), to_string(shape)))
        .hint("--axis 0 says that it is that axis");
  auto reordered = reorder_sequence(x, options.cp_size, sequence, order);

  const std::int64_t bytes = byte_count(shape, x->dtype());
  const auto rank = static_cast<std::int64_t>(shape.size());
  const auto axis = static_cast<std::size_t>(sequence < 0 ? sequence + rank : sequence);
  Report report;
  report.add("order", "order", std::string(options.to_contiguous ? "contiguous" : "ring"))
      .add("shape", "shape", shape)
      .add("dtype", "dtype", std::string(name_of(x->dtype())))
      .add("axis", "axis", static_cast<std::int64_t>(axis))
      .add("size", "size", bytes, Unit::bytes);
  for (Report::Item& item : describe_reorder(shape[axis], options.cp_size).items) report.add(std::move(item));
  // What can only be read forward is held in memory: the pieces go back and forth.
  const bool hold = !x->random_access();
  if (job.plan(report, 2 * kPieceBytes + (hold ? bytes : 0))) return Answer::yes;
  if (hold) {
    x = job.phase(Job::Phase::read, [&] { return in_memory(*x); });
    reordered = reorder_sequence(x, options.cp_size, sequence, order);
  }
  job.deliver(std::move(report), {{"reorder_sequence", reordered, {}}});
  return Answer::yes;
}

std::int64_t read_ranks(const std::string& word) {
  const std::int64_t ranks = read_integer(word, 2);
  if (ranks % 2 != 0)
    throw Error(Error::Kind::usage,
                fmt::format("the number of ranks is {}; it must be even and at least 2", ranks));
  return ranks;
}

}  // namespace

Run reorder_sequence(CLI::App& app) {
  const auto options = std::make_shared<ReorderOptions>();
  add_reference(app, "X", options->array, "an array of any type and shape").required();
  add_word(app, "--cp-size", options->cp_size, read_ranks, "N",
           "ranks of the ring, an even number\n"
           "The axis is cut into 2 N pieces, of which rank r gets pieces r and 2 N - 1 - r.")
      .required();
  add_word(
      app, "--axis", options->axis, [](const std::string& w) { return read_integer(w, INT64_MIN); }, "A",
      "the axis of the sequence, 1 by default\nNegative ones count from the end.");
  add_flag(app, "--to-contiguous", options->to_contiguous, "back from the order of the ring");
  return [options](Job& job) { return run(*options, job); };
}

}  // namespace ejk::app
