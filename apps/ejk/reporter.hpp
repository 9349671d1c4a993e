// Output of a run: the report as text, JSON, a page or pictures; warnings, statistics, the progress bar.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include "ejk/communicator.hpp"
#include "ejk/io.hpp"
#include "ejk/program/machine.hpp"
#include "ejk/report.hpp"
#include "options.hpp"
#include "progress.hpp"
#include "provenance.hpp"

namespace ejk::app {

enum class Phase { read, compute, write };

struct RunStatistics {
  double seconds[3] = {};  // by Phase
  std::int64_t bytes_read = 0;
  std::int64_t bytes_written = 0;
  Timer since_start;
};

class Reporter {
 public:
  /// All three outlive this.
  Reporter(const Command& command, const SharedOptions& shared, const Provenance& provenance)
      : command_(command), shared_(shared), provenance_(provenance) {}

  bool json() const { return shared_.json; }

  /// A progress bar; replaces the previous one.
  std::function<void(std::int64_t done, std::int64_t all)> progress(bool array_on_stdout);

  /// Throws Error{usage, output} if --html or --picture cannot be written.
  void check_files() const;
  /// Whether the command should compute block pictures.
  bool wants_picture() const { return !shared_.picture.empty() || !shared_.html.empty(); }
  /// The files of --picture. If there are several, adds a table of them to the report.
  std::vector<FileContent> draw(Report& report) const;
  std::vector<FileContent> page(const Report& report) const;

  /// Adds the section of --stats. Collective; the report of rank 0 covers all ranks.
  void add_statistics(Report& report, const RunStatistics& statistics,
                      Communicator& comm = single_process()) const;

  void print_text(const Report& report) const;
  /// Prints the warnings that were not printed yet, unless the report is JSON.
  void warn(const Report& report);
  /// Prints warnings and the report; on stderr if stdout has an array or a text.
  void print(const Report& report, bool on_stderr);

 private:
  std::string log(const Report& report) const;
  TextStyle style(std::FILE* stream) const;
  ReportEnvelope envelope() const;

  const Command& command_;
  const SharedOptions& shared_;
  const Provenance& provenance_;
  std::shared_ptr<ProgressBar> bar_;
  std::size_t warned_ = 0;  // number of printed warnings
};

}  // namespace ejk::app
