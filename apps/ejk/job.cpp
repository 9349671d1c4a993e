#include "job.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <utility>

#include "ejk/machine.hpp"
#include "ejk/text.hpp"
#include "ejk/threads.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

using Container = ArrayReference::Container;

// Never many more than cores, nor more than have room for what they work in; the results are the same for
// every number.
void choose_threads(std::int64_t asked) {
  constexpr std::int64_t threads_per_core = 16, bytes_per_thread = std::int64_t{32} << 20;
  const std::int64_t cores = usable_cores();
  const std::int64_t wanted = asked > 0 ? asked : threads_of_environment().value_or(static_cast<int>(cores));
  const std::int64_t most = std::min(threads_per_core * cores, memory_limit() / bytes_per_thread);
  set_threads(static_cast<int>(std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(most, 1))));
}

std::int64_t bytes_of(const ArraySource& source) { return byte_count(source.shape(), source.dtype()); }

// Calls `count` with the bytes of everything that is read from a source. What lies in memory is not read.
class CountedSource final : public ForwardingSource {
 public:
  CountedSource(std::shared_ptr<const ArraySource> source, std::function<void(std::int64_t)> count)
      : ForwardingSource(std::move(source)), count_(std::move(count)) {}

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    inner().read(start, count, out);
    count_(byte_count(count, dtype()));
  }

 private:
  std::function<void(std::int64_t)> count_;
};

// The same arrays, with progress while they are read.
std::vector<NamedArray> counted(const std::vector<NamedArray>& arrays,
                                const std::function<void(std::int64_t, std::int64_t)>& progress) {
  struct Count {
    std::mutex mutex;
    std::int64_t done = 0;
    std::int64_t all = 0;
  };
  const auto total = std::make_shared<Count>();
  std::vector<NamedArray> out;
  for (const NamedArray& array : arrays) {
    if (array.source->access().prefer == ArrayAccess::Prefer::copy) total->all += bytes_of(*array.source);
    out.push_back({array.name, std::make_shared<CountedSource>(array.source, [=](std::int64_t bytes) {
                     const std::scoped_lock lock(total->mutex);
                     progress(total->done += bytes, total->all);
                   })});
  }
  return out;
}

}  // namespace

Job::Job(const Command& command, const SharedOptions& options) : command_(command), options_(options) {
  envelope_.command = command.name;
  settings_["ejk_version"] = version();
  settings_["ejk_command"] = command.name;
  instruction_set();  // an EJK_ISA that cannot be is refused before any work
  choose_threads(options.threads);
  max_memory_ = options.max_memory > 0 ? options.max_memory : memory_limit() / 10 * 9;
}

void Job::makes(std::vector<std::string> names) { made_ = std::move(names); }

void Job::choose_target() {
  if (std::exchange(target_chosen_, true)) return;
  const std::vector<std::string>& all = command_.outputs;
  chosen_ = made_.empty() ? all : made_;
  several_ = chosen_.size() > 1 && options_.field.empty();
  if (!options_.field.empty()) {
    if (std::find(all.begin(), all.end(), options_.field) == all.end()) {
      Error error(Error::Kind::usage,
                  fmt::format("--field: there is no array '{}'", printable(options_.field)));
      const auto nearest = nearest_name(options_.field, all);
      error.hint(nearest ? fmt::format("did you mean '{}'?", *nearest)
                         : fmt::format("the arrays are {}", fmt::join(all, ", ")));
      throw error;
    }
    chosen_ = {options_.field};
  }
  if (options_.output.empty()) return;

  target_ = parse_output(options_.output);
  if (!target_->slice.empty())
    throw Error(Error::Kind::usage,
                fmt::format("{}: an output cannot have a slice", printable(options_.output)));
  if (several_ && (target_->container == Container::npy || target_->container == Container::stream))
    throw Error(Error::Kind::usage,
                fmt::format("{} holds one array, and {} makes {}",
                            target_->container == Container::stream ? "stdout" : printable(options_.output),
                            command_.name, chosen_.size()))
        .hint(all.size() == 1 ? "out.h5, out.npz or out/ takes all"
                              : fmt::format("--field NAME picks one of {}; out.h5, out.npz or out/ takes all",
                                            fmt::join(chosen_, ", ")));
  many_ = several_ || target_->container == Container::directory;
  check_target(*target_, chosen_, many_, {options_.overwrite, settings_, {}, compression_});
}

std::shared_ptr<const ArraySource> Job::open(const std::string& role, const std::string& reference) {
  choose_target();
  Opened& opened = opened_[reference];
  if (!opened.source) {
    opened = {role, open(parse_reference(reference))};
    note_input(role, reference);
    bytes_read_ += bytes_of(*opened.source);
  } else if (role != opened.role && parse_reference(reference).container == Container::stream) {
    throw Error(Error::Kind::usage, "-: standard input can be read only once");
  }
  return opened.source;
}

const ArrayFile& Job::file(const ArrayReference& reference) {
  // As many as compare needs. Each may take a process, and thousands may be named.
  constexpr std::size_t kMostOpen = 2;
  for (const ArrayFile& open : files_)
    if (open.reference().container == reference.container && open.reference().path == reference.path)
      return open;
  if (files_.size() == kMostOpen) files_.erase(files_.begin());
  ArrayReference whole = reference;
  whole.member.clear(), whole.slice.clear();
  return files_.emplace_back(std::move(whole), OpenOptions{options_.allow_external, max_memory_});
}

std::shared_ptr<const ArraySource> Job::open(const ArrayReference& reference) {
  return file(reference).array(reference);
}

std::shared_ptr<const ArraySource> Job::open(NamedInput& input) {
  if (input.stream) return input.stream;
  auto source = open(input.reference);
  if (input.reference.container == Container::stream) input.stream = source;
  return source;
}

std::shared_ptr<const ArraySource> Job::open_supported(NamedInput& input, std::string& why) {
  try {
    return open(input);
  } catch (const Error& error) {
    if (input.is_word || error.code() != Error::Code::unsupported) throw;
    why = error.message();
    return nullptr;
  }
}

std::vector<NamedInput> Job::arrays_in(const std::string& word) {
  const ArrayReference named = parse_input(word);
  NamedInput itself{array_name(named), named, true, nullptr};
  const bool is_hdf5 = named.container == Container::hdf5;
  const bool is_folder = named.container == Container::directory;
  const bool is_file = named.member.empty() && (is_hdf5 || is_folder || named.container == Container::npz);
  const bool may_be_group = is_hdf5 && named.slice.empty();
  if (!is_file && !may_be_group) return {itself};
  const std::vector<std::string> names = file(named).names(named.member);
  if (!named.slice.empty()) {  // of the only array there is, which has a name of its own
    if (names.size() == 1) itself.name = without_slashes(names[0]);
    return {itself};
  }
  const std::string_view group = without_slashes(named.member);
  if (names.size() == 1 && !group.empty() && without_slashes(names[0]) == group) return {itself};
  std::vector<NamedInput> all;
  for (const std::string& name : names) {
    NamedInput one{"", named, false, nullptr};
    one.reference.member = name;
    one.reference.text = named.path + (is_folder ? name + ".npy" : ":" + name);
    one.name = array_name(one.reference);
    if (!group.empty() && one.name.starts_with(std::string(group) + "/")) one.name.erase(0, group.size() + 1);
    all.push_back(std::move(one));
  }
  return all;
}

std::vector<ArrayLink> Job::links_in(const std::string& word) {
  const ArrayReference named = parse_input(word);
  if (named.container != Container::hdf5 || !named.slice.empty()) return {};
  return file(named).links(named.member);
}

std::string Job::links_left_out(const std::string& word) {
  constexpr std::size_t kMost = 4;
  const std::vector<ArrayLink> links = links_in(word);
  if (links.empty()) return "";
  std::vector<std::string> words;
  for (const ArrayLink& link : links) {
    if (words.size() == kMost) break;
    words.push_back(fmt::format("{} ({}{}{})", printable(link.name, 60), link.kind,
                                link.target.empty() ? "" : ", to ", printable(link.target, 60)));
  }
  return fmt::format("{}: {} left out: {}{}", printable(word),
                     links.size() == 1 ? "a link is" : fmt::format("{} links are", links.size()),
                     fmt::join(words, ", "), links.size() > kMost ? ", ..." : "");
}

JsonValue Job::read_json(const std::string& role, const std::string& path, const std::string& hint_for_npy) {
  note_input(role, path);
  const std::int64_t most = max_memory_ / kJsonBytesPerByte;
  const std::optional<std::string> text = read_file(path, most);
  if (!text)
    throw Error(
        Error::Kind::budget,
        fmt::format("{}: more than {}, and JSON takes up to {} times its length of memory: {} allowed",
                    printable(path), format_bytes(most), kJsonBytesPerByte, format_bytes(max_memory_)))
        .hint("--max-memory sets the limit");
  note_read(static_cast<std::int64_t>(text->size()));
  try {
    return parse_json(*text);
  } catch (Error& error) {
    error.at(printable(path));
    if (text->starts_with("\x93NUMPY")) error.hint(hint_for_npy);
    throw;
  }
}

void Job::note_input(const std::string& role, const std::string& value) {
  envelope_.inputs.emplace_back(role, value);
}

void Job::note_read(std::int64_t bytes) { bytes_read_ += bytes; }

void Job::note_setting(const std::string& name, const std::string& value) { settings_[name] = value; }

void Job::require_memory(std::int64_t peak_bytes) const {
  if (peak_bytes <= max_memory_) return;
  // An input that would not fit by itself is the reason.
  std::string why;
  for (const auto& [reference, opened] : opened_)
    if (opened.source && why.empty() && bytes_of(*opened.source) > max_memory_)
      why = fmt::format("{} holds {}: ", printable(opened.source->name()),
                        format_bytes(bytes_of(*opened.source)));
  throw Error(Error::Kind::budget, fmt::format("{}about {} of memory needed, {} allowed", why,
                                               format_bytes(peak_bytes), format_bytes(max_memory_)))
      .hint(options_.max_memory > 0
                ? "--max-memory sets the limit"
                : "--max-memory sets the limit, by default nine tenths of the available memory");
}

bool Job::plan(Report report, std::int64_t peak_bytes) {
  choose_target();
  if (options_.dry_run) {
    report.add("peak", "peak memory, about", peak_bytes, Unit::bytes);
    report.add("max_memory", "allowed", max_memory_, Unit::bytes);
    report.add(Remark{"Dry run: nothing was computed or written."});
    print(report);
  }
  require_memory(peak_bytes);
  return options_.dry_run;
}

std::function<void(std::int64_t, std::int64_t)> Job::progress() {
  if (bar_) bar_->clear();
  // A bar in the midst of an array that is printed on the same window would be in its way.
  const bool unasked = options_.quiet || (arrays_to_stdout() && is_terminal(stdout));
  bar_ = std::make_shared<ProgressBar>(unasked && options_.progress == When::automatic ? When::never
                                                                                       : options_.progress);
  return [bar = bar_](std::int64_t done, std::int64_t all) { (*bar)(done, all); };
}

// A single array is printed when nobody says where to write it; several are not, nor is one beside JSON.
bool Job::writes_arrays() const {
  return !options_.dry_run && !chosen_.empty() && (target_ || (!several_ && !options_.json));
}

bool Job::arrays_to_stdout() const {
  return writes_arrays() && (!target_ || target_->container == Container::stream);
}

std::int64_t Job::write_outputs(const std::vector<Output>& outputs) {
  std::vector<NamedArray> arrays;
  std::int64_t bytes = 0;
  const auto is_chosen = [&](const Output& output) {
    return std::find(chosen_.begin(), chosen_.end(), output.name) != chosen_.end();
  };
  for (const Output& output : outputs) {
    if (!is_chosen(output)) continue;
    if (output.source) {
      arrays.push_back({output.name, output.source});
      bytes += bytes_of(*output.source);
    } else if (!several_) {
      // By what was asked for, or by what the input holds.
      const bool never = !made_.empty() && std::find(made_.begin(), made_.end(), output.name) == made_.end();
      throw Error(never ? Error::Kind::usage : Error::Kind::input,
                  fmt::format("there is no {}: {}", output.name, output.absent_because));
    }
  }
  if (arrays.empty() || !writes_arrays()) return 0;

  arrays = counted(arrays, progress());
  WriteOptions write{options_.overwrite, settings_, {}, compression_};
  for (const Output& output : outputs)
    if (several_ && !output.source && is_chosen(output)) write.absent.push_back(output.name);
  if (target_ && many_)
    write_arrays(*target_, arrays, write);
  else if (target_)
    write_array(*target_, arrays.front(), write);
  else
    print_array(stdout, *arrays.front().source);
  return bytes;
}

void Job::add_stats(Report& report, std::int64_t bytes_written) const {
  const MemoryUsage memory = get_memory_usage();
  const std::int64_t bytes = bytes_read_ + bytes_written;
  const double busy = seconds_[0] + seconds_[1] + seconds_[2];

  auto stats = std::make_shared<Report>();
  stats->add("read", "reading", seconds_[0], Unit::seconds)
      .add("compute", "computing", seconds_[1], Unit::seconds)
      .add("write", "writing", seconds_[2], Unit::seconds)
      .add("elapsed", "in all", timer_.seconds(), Unit::seconds)
      .add("input", "input", bytes_read_, Unit::bytes)
      .add("output", "output", bytes_written, Unit::bytes)
      .add("throughput", "throughput",
           busy > 0 && bytes > 0 ? ReportValue(static_cast<double>(bytes) / busy) : ReportValue(),
           Unit::bytes_per_second)
      .add("peak_memory", "peak memory", peak_memory(), Unit::bytes)
      .add("memory_allocated", "memory held at the end", memory.allocated_bytes, Unit::bytes)
      .add("memory_reserved", "memory reserved", memory.reserved_bytes, Unit::bytes)
      .add("memory_limit", "memory limit", memory.limit_bytes, Unit::bytes)
      .add("threads", "threads", static_cast<std::int64_t>(threads()));
  report.add(Section{"stats", "statistics", stats});
}

void Job::print(const Report& report) {
  std::FILE* stream = text_on_stdout_ || arrays_to_stdout() ? stderr : stdout;
  if (stream == stderr) end_if_unread(stdout);
  if (!options_.json)
    for (const std::string& warning : report.warnings)
      say(fmt::format("ejk {}: warning: {}\n", command_.name, printable(warning)));
  if (options_.quiet) return;
  const std::string text =
      options_.json ? to_json(report, envelope_) : to_text(report, text_style(stream, options_.color));
  if (stream == stderr)
    say(text);
  else
    write_text(stdout, text, "cannot write the report to stdout");
}

void Job::deliver(Report report, const std::vector<Output>& outputs) {
  const std::int64_t bytes = phase(Phase::write, [&] { return write_outputs(outputs); });
  if (bar_) bar_->clear();
  if (options_.stats) add_stats(report, bytes);
  print(report);
}

void Job::deliver_text(const std::string& text, Report report) {
  if (options_.json) return deliver(std::move(report), {});
  text_on_stdout_ = true;
  phase(Phase::write, [&] { write_text(stdout, text, "cannot write to stdout"); });
  Report beside;
  beside.warnings = std::move(report.warnings);
  if (options_.stats) add_stats(beside, static_cast<std::int64_t>(text.size()));
  print(beside);
}

}  // namespace ejk::app
