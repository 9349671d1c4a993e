// One run of a command, and its order: open the inputs, plan (with --dry-run that is all), compute, deliver.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "budget.hpp"
#include "commands.hpp"
#include "division.hpp"
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
  /// After the words were read: sets the threads and the memory allowed, records the options, and checks the
  /// target of the outputs. `options` and `with` outlive this.
  Job(const Command& command, const OptionSet& options, Communicator& with = single_process());

  Job(const Job&) = delete;  // its parts know each other
  Job& operator=(const Job&) = delete;

  /// Who does this run together; all do the same up to here, and each command says what it divides.
  Communicator& comm;
  Provenance provenance;
  Budget budget;
  Inputs inputs;
  Outputs outputs;

  /// Runs f() and adds its time to a phase, if it is not within one. Its threads do not outlive it: they would
  /// spin.
  template <class F>
  auto phase(Phase phase, F&& f) {
    const InPhase in(*this, phase);
    return f();
  }

  /// An input, as Inputs::open. The time counts as reading.
  std::shared_ptr<const ArraySource> open(const std::string& role, const std::string& reference) {
    return phase(Phase::read, [&] { return inputs.open(role, reference); });
  }

  bool is_dry_run() const { return options_.shared().dry_run; }
  bool json() const { return reporter_.json(); }
  bool wants_picture() const { return reporter_.wants_picture(); }

  /// Throws Error{budget} when the work would take more than allowed; a dry run says first how much.
  void require_memory(std::int64_t peak_bytes) {
    if (peak_bytes > budget.bytes()) plan({}, peak_bytes);
  }

  /// Says what is about to be done, before it is, and requires `peak_bytes`. With --dry-run that is all, and
  /// the answer is true: stop.
  bool plan(Report report, std::int64_t peak_bytes) { return plan(std::move(report), peak_bytes, {}); }

  /// The same for a command that divides its work; `peak_bytes` is the most that a rank takes. All ranks
  /// call it.
  bool plan(Report report, std::int64_t peak_bytes, const Division& division,
            CostUnit unit = CostUnit::operations);

  /// Adds the options that are declared as shown in reports.
  void show_options(Report& report) const { options_.show(report); }

  /// A progress bar, drawn when the work takes long. Writing has one of its own. Of a communicator rank 0 shows how far it
  /// is, and the others, whose shares are as large, nothing.
  std::function<void(std::int64_t done, std::int64_t all)> progress() {
    if (!comm.is_first()) return [](std::int64_t, std::int64_t) {};
    return reporter_.progress(outputs.to_stdout());
  }

  /// Prints a report as text on stderr, at once.
  void say(const Report& report) { reporter_.say_text(report); }

  /// Writes the arrays where -o and --field say, then the report.
  void deliver(Report report, const std::vector<Output>& arrays);

  /// For results that are text (a hash, JSON, a number): prints it as it stands, with -q too; with --json the
  /// report instead. Statistics go to stderr then.
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

/// Takes over what another report holds, behind what is there.
void append(Report& report, Report more);

}  // namespace ejk::app
