// One run of a command: open the inputs, plan (where --dry-run stops), compute, deliver.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "budget.hpp"
#include "commands.hpp"
#include "division.hpp"
#include "ejk/array_math.hpp"
#include "ejk/communicator.hpp"
#include "ejk/io.hpp"
#include "ejk/report.hpp"
#include "ejk/threads.hpp"
#include "inputs.hpp"
#include "options.hpp"
#include "outputs.hpp"
#include "provenance.hpp"
#include "reporter.hpp"

namespace ejk::app {

class Job {
 public:
  /// Sets threads and memory limit, records the options, and checks the outputs. All references outlive this.
  Job(const Command& of, const OptionSet& options, Communicator& with = single_process());

  Job(const Job&) = delete;  // its parts refer to each other
  Job& operator=(const Job&) = delete;

  const Command& command;
  /// The ranks of this run; each command determines what it divides.
  Communicator& comm;
  Provenance provenance;
  Budget budget;
  Inputs inputs;
  Outputs outputs;

  /// Runs f(), adds its time to a phase, unless nested in one, and releases its threads, which would spin.
  template <class F>
  auto phase(Phase phase, F&& f) {
    const InPhase in(*this, phase);
    return f();
  }

  std::shared_ptr<const ArraySource> open(const std::string& role, const std::string& reference) {
    return phase(Phase::read, [&] { return inputs.open(role, reference); });
  }

  /// The same for an operand of products and attention: 8-bit floats as bfloat16, which has all their numbers.
  std::shared_ptr<const ArraySource> open_operand(const std::string& role, const std::string& reference) {
    auto source = open(role, reference);
    return is_8_bit_float(source->dtype()) ? convert_array(std::move(source), DType::bfloat16) : source;
  }

  /// The same for integers that are read before the plan. Throws Error{budget} if they alone exceed the limit.
  std::shared_ptr<const ArraySource> open_integers(const std::string& role, const std::string& reference) {
    auto source = open(role, reference);
    budget.require(2 * byte_count(source->shape(), DType::int64), printable(source->name()) + ": ");
    return source;
  }

  bool is_dry_run() const { return options_.shared().dry_run; }
  bool json() const { return reporter_.json(); }
  bool wants_picture() const { return reporter_.wants_picture(); }

  /// Throws Error{budget} above the limit; a dry run prints the amount first.
  void require_memory(std::int64_t peak_bytes) {
    if (peak_bytes > budget.bytes()) plan({}, peak_bytes);
  }

  /// Requires `peak_bytes` of memory. With --dry-run prints the plan and returns true.
  bool plan(Report report, std::int64_t peak_bytes) { return plan(std::move(report), peak_bytes, {}); }

  /// The same for a command that divides its work; `peak_bytes` is the largest of a rank. Collective.
  bool plan(Report report, std::int64_t peak_bytes, const Division& division,
            CostUnit unit = CostUnit::operations);

  void show_options(Report& report) const { options_.show(report); }

  /// A progress bar for computing, on rank 0.
  std::function<void(std::int64_t done, std::int64_t all)> progress() {
    if (!comm.is_first()) return [](std::int64_t, std::int64_t) {};
    return reporter_.progress(outputs.to_stdout());
  }

  void print(const Report& report) { reporter_.print_text(report); }

  /// Writes the arrays selected by -o and --field, then prints the report. `complete` adds what is known only
  /// of arrays that were written.
  void deliver(Report report, const std::vector<Output>& arrays,
               const std::function<void(Report&)>& complete = {});

  /// The same for a report whose first line, `line`, is printed with -q as well.
  void deliver_line(const std::string& line, Report report, const std::vector<Output>& arrays);

  /// For results that are text (a hash, JSON, a number): prints the text, also with -q, and statistics on
  /// stderr; with --json the report instead.
  void deliver_text(const std::string& text, Report report);

 private:
  class InPhase {
   public:
    InPhase(Job& job, Phase phase);
    ~InPhase();
    InPhase(const InPhase&) = delete;
    InPhase& operator=(const InPhase&) = delete;

   private:
    Job& job_;
    Phase phase_;
    bool is_outer_;
    Timer timer_;
  };

  Sync sync() const { return options_.shared().sync ? Sync::now : Sync::later; }

  const OptionSet& options_;
  Reporter reporter_;
  RunStatistics statistics_;
  bool in_phase_ = false;
};

void append(Report& report, Report more);

}  // namespace ejk::app
