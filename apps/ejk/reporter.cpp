// Output of a command's report: printed as text or JSON, and written as a page and pictures. Warnings go to
// stderr or are part of JSON.
#include "reporter.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "ejk/program/text.hpp"
#include "ejk/threads.hpp"
#include "inputs.hpp"
#include "terminal.hpp"

namespace ejk::app {

namespace {

Report described(const RunStatistics& s) {
  const MemoryUsage memory = get_memory_usage();
  const std::int64_t bytes = s.bytes_read + s.bytes_written;
  const double busy = s.seconds[0] + s.seconds[1] + s.seconds[2];
  Report report;
  report.add("read", "reading", s.seconds[0], Unit::seconds)
      .add("compute", "computing", s.seconds[1], Unit::seconds)
      .add("write", "writing", s.seconds[2], Unit::seconds)
      .add("elapsed", "in all", s.since_start.seconds(), Unit::seconds)
      .add("input", "input", s.bytes_read, Unit::bytes)
      .add("output", "output", s.bytes_written, Unit::bytes)
      .add("throughput", "throughput",
           busy > 0 && bytes > 0 ? ReportValue(static_cast<double>(bytes) / busy) : ReportValue(),
           Unit::bytes_per_second)
      .add("peak_memory", "peak memory", peak_memory(), Unit::bytes)
      .add("memory_allocated", "memory held at the end", memory.allocated_bytes, Unit::bytes)
      .add("memory_reserved", "memory reserved", memory.reserved_bytes, Unit::bytes)
      .add("memory_limit", "memory limit", memory.limit_bytes, Unit::bytes)
      .add("threads", "threads", static_cast<std::int64_t>(threads()));
  return report;
}

// The phases of all ranks, gathered on rank 0.
void add_ranks(Report& report, const RunStatistics& own, Communicator& comm) {
  struct RankCosts {
    double seconds[3];
    std::int64_t sent_bytes;
  };
  RankCosts costs{{own.seconds[0], own.seconds[1], own.seconds[2]}, comm.sent_bytes()};
  const std::vector<Bytes> all = comm.gather(RankMessage().put(costs).bytes());
  if (all.empty()) return;
  Table phases{"phases",
               "over the ranks",
               {{"phase", "phase"},
                {"min", "least", Unit::seconds},
                {"mean", "mean", Unit::seconds},
                {"max", "most", Unit::seconds}},
               {}};
  std::int64_t sent = 0;
  double balance = 1;
  constexpr const char* kNames[] = {"reading", "computing", "writing"};
  for (std::size_t phase = 0; phase < 3; ++phase) {
    double least = own.seconds[phase], most = least, sum = 0;
    for (const Bytes& bytes : all) {
      const RankCosts other = RankMessage(bytes).take<RankCosts>();
      least = std::min(least, other.seconds[phase]);
      most = std::max(most, other.seconds[phase]);
      sum += other.seconds[phase];
      if (phase == 0) sent += other.sent_bytes;
    }
    const double mean = sum / static_cast<double>(all.size());
    phases.rows.push_back({kNames[phase], least, mean, most});
    if (phase == 1 && most > 0) balance = mean / most;
  }
  report.add("ranks", "ranks", comm.size(), Unit::count)
      .add(std::move(phases))
      .add("balance", "balance of computing, mean to most", balance, Unit::share)
      .add("sent", "sent between ranks", sent, Unit::bytes);
}

}  // namespace

std::function<void(std::int64_t, std::int64_t)> Reporter::progress(bool array_on_stdout) {
  if (bar_) bar_->clear();
  // A bar would interfere with an array printed on the same terminal.
  const bool unasked = shared_.quiet || (array_on_stdout && is_terminal(stdout));
  bar_ = std::make_shared<ProgressBar>(unasked && shared_.progress == When::automatic ? When::never
                                                                                      : shared_.progress);
  return [bar = bar_](std::int64_t done, std::int64_t all) { (*bar)(done, all); };
}

ReportEnvelope Reporter::envelope() const {
  return {command_.word(), provenance_.inputs(), printable(provenance_.command_line(), 4000), shared_.stats};
}

void Reporter::check_files() const {
  const std::pair<const char*, const std::string*> files[] = {
      {"--output", &shared_.output}, {"--html", &shared_.html}, {"--picture", &shared_.picture}};
  const auto is_same = [](const std::string& a, const std::string& b) {
    std::error_code failed;  // then there are no two links to one file
    return a == b || std::filesystem::equivalent(a, b, failed);
  };
  for (const auto& file : files)
    for (const auto& other : files)
      if (!file.second->empty() && file.first != other.first && is_same(*file.second, *other.second))
        throw usage("{}: {} and {} name the same file", printable(*file.second), file.first, other.first);
  for (const std::string* path : {&shared_.html, &shared_.picture})
    if (!path->empty()) check_file(*path);
}

std::vector<FileContent> Reporter::draw(Report& report) const {
  std::vector<FileContent> files;
  if (shared_.picture.empty()) return files;
  const std::string& path = shared_.picture;
  const std::size_t dot = path.rfind('.');
  const std::vector<const BlockPicture*> pictures = pictures_of(report);
  if (pictures.empty())
    throw Error(Error::Kind::input,
                fmt::format("{}: {}", printable(path),
                            report.pictures_left_out > 0 ? "there are too many blocks to draw"
                                                         : "there are no blocks to draw"));
  const std::string by = envelope().command_line;
  Table table{"pictures", "pictures", {{"file", "file"}, {"title", "shows"}}, {}};
  for (std::size_t n = 0; n < pictures.size(); ++n) {
    const std::string name =
        pictures.size() == 1 ? path : fmt::format("{}-{}{}", path.substr(0, dot), n, path.substr(dot));
    check_file(name);
    table.rows.push_back({name, pictures[n]->title});
    try {
      files.push_back({name, path.ends_with(".png") ? to_png(*pictures[n], by) : to_svg(*pictures[n], by)});
    } catch (Error& error) {
      error.at(name);
      throw;
    }
  }
  if (pictures.size() > 1) report.add(std::move(table));
  return files;
}

std::vector<FileContent> Reporter::page(const Report& report) const {
  if (shared_.html.empty()) return {};
  return {{shared_.html, to_html(report, envelope())}};
}

void Reporter::add_statistics(Report& report, const RunStatistics& statistics, Communicator& comm) const {
  if (!shared_.stats) return;
  const auto section = std::make_shared<Report>(described(statistics));
  if (!comm.is_single()) add_ranks(*section, statistics, comm);
  report.add(Section{"stats", "statistics", section});
}

TextStyle Reporter::style(std::FILE* stream) const {
  TextStyle style = text_style(stream, shared_.color);
  style.details = shared_.verbose;
  style.left_out = "--verbose adds where, by how much, and what was compared.";
  return style;
}

void Reporter::print_text(const Report& report) const {
  if (bar_) bar_->clear();
  if (!shared_.quiet) print_error(to_text(report, style(stderr)));
}

std::string Reporter::log(const Report& report) const {
  std::string file = shared_.replay ? shared_.replay->path : "";
  for (const char* const role : {"against", "actual", ""})
    for (const auto& [of, word] : provenance_.inputs())
      if (file.empty() && (of == role || (*role == '\0' && of != "mask_expression")) &&
          !is_without_file(word))
        file = parse_reference(word).path;
  return to_log(report, *shared_.format, std::string(command_.name), file);
}

void Reporter::warn(const Report& report) {
  if (shared_.json || shared_.format == LogFormat::github) return;
  if (bar_) bar_->clear();
  for (; warned_ < report.warnings.size(); ++warned_)
    print_error(fmt::format("{} {}: warning: {}\n", shared_.program, command_.name,
                            printable(report.warnings[warned_], kLongestMessage)));
}

void Reporter::print(const Report& report, bool on_stderr) {
  if (bar_) bar_->clear();
  std::FILE* stream = on_stderr ? stderr : stdout;
  if (on_stderr) {  // only after stdout was written
    end_if_unread(stdout);
    close_stdout();
  }
  warn(report);
  if (shared_.quiet) return;
  const std::string text = shared_.json     ? to_json(report, envelope())
                           : shared_.format ? log(report)
                                            : to_text(report, style(stream));
  if (on_stderr)
    print_error(text);
  else
    write_text(stdout, text, "cannot write the report to stdout");
}

}  // namespace ejk::app
