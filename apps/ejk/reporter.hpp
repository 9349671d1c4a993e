// What a run says: the report as text or JSON, warnings, statistics, the progress bar.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ejk/machine.hpp"
#include "ejk/report.hpp"
#include "options.hpp"
#include "progress.hpp"
#include "provenance.hpp"

namespace ejk::app {

enum class Phase { read, compute, write };

/// Times of phases and bytes, for --stats.
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

  /// The report is for a program, which wants it whole.
  bool json() const { return shared_.json; }

  /// A progress bar, drawn when the work takes long; a new one takes the place of the last.
  std::function<void(std::int64_t done, std::int64_t all)> progress(bool array_on_stdout);

  /// Prints warnings and the report, on stderr where stdout is an array's or a text's; with --stats the
  /// statistics as well.
  void print(Report report, bool on_stderr, const RunStatistics& statistics);
  /// Without statistics: of what is not done yet.
  void print(const Report& report, bool on_stderr);

 private:
  const Command& command_;
  const SharedOptions& shared_;
  const Provenance& provenance_;
  std::shared_ptr<ProgressBar> bar_;
};

}  // namespace ejk::app
