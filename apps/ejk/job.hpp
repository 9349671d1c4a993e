// One run of a command: the inputs it opens, the memory it may take, its phases, and where its results go.
//
// A command's Run calls, in this order: makes() where options decide what it makes; open() for its inputs;
// plan(), and stops there when that says so; its work inside phase(); deliver().
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "commands.hpp"
#include "ejk/array.hpp"
#include "ejk/hash.hpp"
#include "ejk/io.hpp"
#include "ejk/machine.hpp"
#include "ejk/report.hpp"
#include "ejk/threads.hpp"
#include "options.hpp"
#include "progress.hpp"

namespace ejk::app {

/// An array that a command made, or the reason why there is none.
struct Output {
  std::string name;
  std::shared_ptr<const ArraySource> source;
  std::string absent_because;
};

/// One of the arrays that a word on the command line names: that array, or those of a file, folder or group.
struct NamedInput {
  std::string name;  // in its file; of a group's arrays the part below it
  ArrayReference reference;
  bool is_word = false;                       // the word names this array itself
  std::shared_ptr<const ArraySource> stream;  // once it is open, what cannot be opened again
};

class Job {
 public:
  /// Sets the threads and the memory allowed.
  Job(const Command& command, const SharedOptions& options);

  /// The arrays that this run makes, when they are not all of the command's.
  void makes(std::vector<std::string> names);

  /// An input by its reference; each is opened once, and noted in the report as `role`. The first one opened
  /// waits until what can be known of the output is checked.
  std::shared_ptr<const ArraySource> open(const std::string& role, const std::string& reference);

  /// An array that is looked at and let go again: neither kept nor noted. note_read() counts what was read.
  std::shared_ptr<const ArraySource> open(const ArrayReference& reference);
  std::shared_ptr<const ArraySource> open(NamedInput& input);

  /// The same, where a type that is not supported does not hide the file's other arrays: unless the word
  /// names this array, it is nothing then, and `why` says so. All else that is wrong is thrown.
  std::shared_ptr<const ArraySource> open_supported(NamedInput& input, std::string& why);

  void note_read(std::int64_t bytes);

  /// The arrays of a file, or of a group in an HDF5 file, unless the word names one of them.
  std::vector<NamedInput> arrays_in(const std::string& word);
  /// The links beside them, which lead to arrays but are none.
  std::vector<ArrayLink> links_in(const std::string& word);
  /// A warning that names those links; "" where there are none.
  std::string links_left_out(const std::string& word);

  /// A file of JSON, or - for stdin, which is noted as `role`. Text that would take more memory than allowed
  /// once it is taken apart is not read. `hint_for_npy` is for what turns out to be an .npy file.
  JsonValue read_json(
      const std::string& role, const std::string& path,
      const std::string& hint_for_npy = "this is an array (.npy), and JSON text is wanted here");

  /// Notes an input that is not an array, such as a mask expression.
  void note_input(const std::string& role, const std::string& value);

  /// An effective option: an attribute of the HDF5 files written. No time, host or path.
  void note_setting(const std::string& name, const std::string& value);

  /// Compresses what it writes, at a level of 1 to 9.
  void compress(int level) { compression_ = level; }

  bool has_output() const { return !options_.output.empty(); }

  /// The report is for a program, which wants it whole.
  bool json() const { return options_.json; }

  /// Bytes that the work may take.
  std::int64_t max_memory() const { return max_memory_; }

  /// Throws Error{budget} when the work would take more.
  void require_memory(std::int64_t peak_bytes) const;

  /// Nothing is to be computed: what a plan says may take some looking.
  bool is_dry_run() const { return options_.dry_run; }

  /// Says what is about to be done, before it is, and requires `peak_bytes`. With --dry-run that is all, and
  /// the answer is true: stop.
  bool plan(Report report, std::int64_t peak_bytes);

  enum class Phase { read, compute, write };

  /// Runs f() and adds its time to a phase. Its threads do not outlive it: they would spin.
  template <class F>
  auto phase(Phase phase, F&& f) {
    struct Release {
      ~Release() { release_threads(); }
    } release;
    const Stopwatch watch(seconds_[static_cast<std::size_t>(phase)]);
    return f();
  }

  /// A progress bar, drawn when the work takes long. Writing has one of its own.
  std::function<void(std::int64_t, std::int64_t)> progress();

  /// Writes the arrays where -o and --field say, then the report.
  void deliver(Report report, const std::vector<Output>& outputs);

  /// For results that are text (a hash, JSON, a number): prints it as it stands, with -q too; with --json the
  /// report instead. Statistics go to stderr then.
  void deliver_text(const std::string& text, Report report);

 private:
  struct Stopwatch {
    explicit Stopwatch(double& seconds) : into(seconds) {}
    ~Stopwatch() { into += timer.seconds(); }
    double& into;
    Timer timer;
  };

  // The file, or stream, that a reference leads into: opened once, as long as few are in use.
  const ArrayFile& file(const ArrayReference& reference);
  void choose_target();
  bool arrays_to_stdout() const;
  bool writes_arrays() const;
  std::int64_t write_outputs(const std::vector<Output>& outputs);
  void add_stats(Report& report, std::int64_t bytes_written) const;
  void print(const Report& report);

  const Command& command_;
  const SharedOptions& options_;
  bool target_chosen_ = false;
  std::optional<ArrayReference> target_;
  std::vector<std::string> made_;    // empty: all that the command can make
  std::vector<std::string> chosen_;  // names of the outputs asked for
  bool several_ = false;             // more than one
  bool many_ = false;                // the target is a place for several, whether there are or not
  std::int64_t max_memory_ = 0;
  struct Opened {
    std::string role;
    std::shared_ptr<const ArraySource> source;
  };
  std::map<std::string, Opened> opened_;
  std::vector<ArrayFile> files_;  // the last few
  std::int64_t bytes_read_ = 0;
  std::map<std::string, std::string> settings_;
  int compression_ = 0;
  JsonEnvelope envelope_;
  double seconds_[3] = {};
  Timer timer_;
  bool text_on_stdout_ = false;
  std::shared_ptr<ProgressBar> bar_;
};

}  // namespace ejk::app
