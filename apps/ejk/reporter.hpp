// What a run says: the report as text, JSON, a page or pictures, warnings, statistics, the progress bar.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ejk/communicator.hpp"
#include "ejk/io.hpp"
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

  /// Throws Error{usage, output} where --html and --picture name files that cannot be written.
  void check_files() const;
  /// A picture is wanted, of a report that has none otherwise.
  bool wants_picture() const { return !shared_.picture.empty() || !shared_.html.empty(); }
  /// The pictures that --picture asks for. Of several the report gets a table: the file of each, and what it shows.
  std::vector<FileContent> draw(Report& report) const;
  /// The page that --html asks for.
  std::vector<FileContent> page(const Report& report) const;

  /// With --stats. All ranks call it; rank 0's report gets what all of them have.
  void add_statistics(Report& report, const RunStatistics& statistics,
                      Communicator& comm = single_process()) const;

  /// Prints a report as text on stderr, unless --quiet.
  void say_text(const Report& report) const;
  /// Prints the report's warnings that were not printed yet, unless they go into JSON.
  void warn(const Report& report);
  /// Prints warnings and the report, on stderr where stdout is an array's or a text's.
  void print(const Report& report, bool on_stderr);

 private:
  ReportEnvelope envelope() const;

  const Command& command_;
  const SharedOptions& shared_;
  const Provenance& provenance_;
  std::shared_ptr<ProgressBar> bar_;
  std::size_t warned_ = 0;  // warnings that were printed
};

}  // namespace ejk::app
