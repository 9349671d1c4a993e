// Construction of a run's parts, in the order in which their errors are reported: memory, options, threads,
// target.
#include "job.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "ejk/program/machine.hpp"

namespace ejk::app {

namespace {

// Bounded by the cores and the memory for workspaces. Ranks not bound to cores share the machine's.
void choose_threads(std::int64_t requested, std::int64_t sharers) {
  constexpr std::int64_t threads_per_core = 16, bytes_per_thread = std::int64_t{32} << 20;
  const std::int64_t all = usable_cores(), online = std::max<long>(sysconf(_SC_NPROCESSORS_ONLN), 1);
  const std::int64_t cores = all < online ? all : std::max<std::int64_t>(all / sharers, 1);
  const std::int64_t wanted =
      requested > 0 ? requested : threads_of_environment().value_or(static_cast<int>(cores));
  const std::int64_t most = std::min(threads_per_core * cores, memory_limit() / sharers / bytes_per_thread);
  set_threads(static_cast<int>(std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(most, 1))));
}

// Different instruction sets may round sums differently.
void require_one_instruction_set(Communicator& comm) {
  if (comm.is_single()) return;
  const std::string own = instruction_set();
  std::int64_t rank = 0;
  for (Bytes& bytes : comm.all_gather(RankMessage().put_text(own).bytes())) {
    const std::string other = RankMessage(std::move(bytes)).take_text();
    if (other != own)
      throw usage(
          "the machines differ: the instruction set is {} on rank {}, {} on "
          "rank {}",
          own, comm.rank(), other, rank)
          .hint("EJK_ISA chooses one that all have, as in mpirun -x EJK_ISA=avx2");
    ++rank;
  }
}

// A replayed report is the same on every machine.
void remove_times(Report& report) {
  const auto is_time = [](const Report::Item& item) {
    const auto* const field = std::get_if<Field>(&item);
    return field != nullptr && (field->unit == Unit::seconds || field->unit == Unit::bytes_per_second ||
                                field->unit == Unit::flop_per_second);
  };
  for (auto* items : {&report.items, &report.details}) {
    std::erase_if(*items, is_time);
    for (Report::Item& item : *items)
      if (auto* const section = std::get_if<Section>(&item); section != nullptr && section->content)
        remove_times(*section->content);
  }
}

}  // namespace

void append(Report& report, Report more) {
  for (Report::Item& item : more.items) report.add(std::move(item));
  std::move(more.details.begin(), more.details.end(), std::back_inserter(report.details));
  for (std::string& warning : more.warnings) report.warnings.push_back(std::move(warning));
  std::move(more.cases.begin(), more.cases.end(), std::back_inserter(report.cases));
  report.pictures_left_out += more.pictures_left_out;
}

Job::Job(const Command& of, const OptionSet& options, Communicator& with)
    : command(of),
      comm(with),
      budget(options.shared().max_memory, with.local_size()),
      inputs(options.shared().allow_external, budget, provenance, comm, options.shared().replay),
      outputs(of.word(), options.shared()),
      options_(options),
      reporter_(of, options.shared(), provenance) {
  provenance.record("ejk_version", version());
  provenance.record("ejk_command", of.word());
  options.record(provenance);
  instruction_set();  // throws for an invalid EJK_ISA
  require_one_instruction_set(comm);
  choose_threads(options.shared().threads, comm.local_size());
  if (!options.names_outputs_later()) outputs.declare(options.outputs(of));
  reporter_.check_files();
}

Job::InPhase::InPhase(Job& job, Phase phase)
    : job_(job), phase_(phase), is_outer_(!std::exchange(job.in_phase_, true)) {}

Job::InPhase::~InPhase() {
  if (!is_outer_) return;
  job_.in_phase_ = false;
  job_.statistics_.seconds[static_cast<std::size_t>(phase_)] += timer_.seconds();
  release_threads();
}

bool Job::plan(Report report, std::int64_t peak_bytes, const Division& division, CostUnit unit) {
  const std::int64_t buffered = inputs.allow_buffered(std::max<std::int64_t>(budget.bytes() - peak_bytes, 0));
  if (is_dry_run()) {
    inputs.add_decoded(report);
    if (division && !comm.is_single())
      report.add(Section{"team", "ranks", std::make_shared<Report>(describe_division(comm, division, unit))});
    report.add("peak", "peak memory, about", peak_bytes + buffered, Unit::bytes);
    report.add("max_memory", "allowed", budget.bytes(), Unit::bytes);
    report.add(Remark{"Dry run: nothing was computed or written."});
    if (comm.is_first()) reporter_.print(report, false);
  }
  budget.require(peak_bytes, inputs.too_large());
  return is_dry_run();
}

void Job::deliver(Report report, const std::vector<Output>& arrays,
                  const std::function<void(Report&)>& complete) {
  for (std::string& warning : outputs.lost_types(arrays)) report.warnings.push_back(std::move(warning));
  if (const auto& replay = options_.shared().replay) {
    report.warnings.insert(report.warnings.begin(), replay->warnings.begin(), replay->warnings.end());
    remove_times(report);
  }
  if (wants_picture() && report.pictures_left_out > 0)
    report.warnings.push_back(
        fmt::format("{} block picture{} left out: there are too many, or too large ones",
                    report.pictures_left_out, report.pictures_left_out == 1 ? " is" : "s are"));
  inputs.add_decoded(report);
  // Errors in drawing come before anything is written.
  std::vector<FileContent> files;
  if (comm.is_first()) files = reporter_.draw(report);
  // Writing to stdout may end the run, if its reader stops early.
  if (comm.is_first() && outputs.to_stdout()) reporter_.warn(report);
  statistics_.bytes_written =
      phase(Phase::write, [&] { return outputs.write(arrays, provenance.settings(), progress(), comm); });
  if (complete && statistics_.bytes_written > 0) complete(report);
  statistics_.bytes_read = inputs.bytes_read();
  reporter_.add_statistics(report, statistics_, comm);
  if (!comm.is_first()) return;
  for (FileContent& page : reporter_.page(report)) files.push_back(std::move(page));
  write_files(files, sync());
  reporter_.print(report, outputs.to_stdout());
}

void Job::deliver_line(const std::string& line, Report report, const std::vector<Output>& arrays) {
  deliver(std::move(report), arrays);
  if (options_.shared().quiet && !json()) write_text(stdout, line + "\n", "cannot write to stdout");
}

void Job::deliver_text(const std::string& text, Report report) {
  if (json()) return deliver(std::move(report), {});
  reporter_.warn(report);
  phase(Phase::write, [&] { write_text(stdout, text, "cannot write to stdout"); });
  statistics_.bytes_read = inputs.bytes_read();
  statistics_.bytes_written = static_cast<std::int64_t>(text.size());
  Report beside;
  reporter_.add_statistics(beside, statistics_);
  append(report, beside);
  write_files(reporter_.page(report), sync());
  beside.warnings = std::move(report.warnings);
  reporter_.print(beside, true);
}

}  // namespace ejk::app
