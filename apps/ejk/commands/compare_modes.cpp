// ejk compare --runs and --routing, on rank 0.
// tests: tests/cli/compare/
#include "compare_modes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>

#include "ejk/program/compare_files.hpp"
#include "ejk/program/routing.hpp"
#include "ejk/program/text.hpp"
#include "job.hpp"

namespace ejk::app {

namespace {

using Sources = std::vector<std::shared_ptr<const ArraySource>>;

// An array of all runs; null for a run without it.
struct ArrayOfRuns {
  std::string name;  // empty: each run is one array
  Sources sources;
  std::string why = {};  // why it is not compared
};

// All arrays stay open: a file is opened once, and arrays of several files are read at the same time.
std::vector<ArrayOfRuns> arrays_of(const std::vector<std::string>& words, Job& job, Report& head) {
  std::vector<std::vector<NamedInput>> runs;
  for (const std::string& word : words) runs.push_back(job.inputs.arrays_in(word));
  const auto is_whole = [](const auto& run) { return run.size() != 1 || !run[0].is_word; };
  const auto one = std::find_if_not(runs.begin(), runs.end(), is_whole);
  const auto several =
      std::find_if(runs.begin(), runs.end(), [](const auto& run) { return run.size() != 1; });
  if (several == runs.end()) {
    ArrayOfRuns all;
    for (auto& run : runs) all.sources.push_back(job.inputs.open(run[0]));
    return {std::move(all)};
  }
  if (one != runs.end())
    throw Error(Error::Kind::input,
                fmt::format("{} holds {} arrays, and {} is one",
                            printable(words[static_cast<std::size_t>(several - runs.begin())]),
                            several->size(), printable(words[static_cast<std::size_t>(one - runs.begin())])))
        .hint(several->empty()
                  ? "there is nothing to compare"
                  : fmt::format("name one of them, as in {}", printable((*several)[0].reference.text)));
  const auto in_order = [](const std::string& x, const std::string& y) { return natural_less(x, y); };
  std::map<std::string, ArrayOfRuns, decltype(in_order)> arrays(in_order);
  for (std::size_t r = 0; r < runs.size(); ++r) {
    for (NamedInput& input : runs[r]) {
      ArrayOfRuns& array = arrays[input.name];
      array.sources.resize(words.size());
      std::optional<Error> why;
      array.sources[r] = job.inputs.open_supported(input, why);
      if (why && array.why.empty()) array.why = "not compared: " + why->message();
    }
    warn_of_links(head, words[r], job);
  }
  std::vector<ArrayOfRuns> all;
  for (auto& [name, array] : arrays) {
    array.name = name;
    all.push_back(std::move(array));
  }
  return all;
}

struct PlannedRuns {
  std::vector<ArrayOfRuns> arrays;
  std::vector<std::string> names;  // of the runs
  std::int64_t bytes = 0, peak = 0, elements = 0;
  Report plan = {};
};

PlannedRuns plan_runs(const RunsWords& words, Job& job, Report& head) {
  PlannedRuns planned{arrays_of(words.runs, job, head), {}};
  const bool names_parts = !words.options.axes.empty() || !words.options.tile.empty() ||
                           !words.options.tile_axes.empty() || !words.group_sizes.empty() ||
                           !words.cu_seqlens.empty();
  if (names_parts && (planned.arrays.size() != 1 || !planned.arrays[0].name.empty()))
    throw usage(
        "--axes, --group-sizes, --cu-seqlens, --block and --tiles describe one array, and these are several")
        .hint("name one in each, as in a.h5:/out");
  Table table{
      "planned", "", {{"run", "run"}, {"arrays", "arrays", Unit::count}, {"size", "bytes", Unit::bytes}}, {}};
  for (std::size_t r = 0; r < words.runs.size(); ++r) {
    std::int64_t arrays = 0, bytes = 0;
    for (const ArrayOfRuns& array : planned.arrays) {
      if (!array.sources[r]) continue;
      ++arrays;
      bytes += byte_count(array.sources[r]->shape(), array.sources[r]->dtype());
      planned.elements += element_count(array.sources[r]->shape());
    }
    planned.bytes += bytes;
    planned.names.push_back(printable(words.runs[r]));
    table.rows.push_back({planned.names.back(), arrays, bytes});
  }
  for (const ArrayOfRuns& array : planned.arrays)
    planned.peak = std::max(planned.peak, runs_bytes(array.sources, words.options));
  Report runs;
  runs.add("count", "runs", std::ssize(planned.names), Unit::count).add(std::move(table));
  planned.plan = head;
  planned.plan.add(Section{"runs", "runs", std::make_shared<Report>(std::move(runs))});
  return planned;
}

}  // namespace

void warn_of_links(Report& report, const std::string& word, Job& job) {
  std::vector<std::string>& warnings = report.warnings;
  for (std::string& line : job.inputs.left_out(word))
    if (std::find(warnings.begin(), warnings.end(), line) == warnings.end())
      warnings.push_back(std::move(line));
}

Outcome compare_runs_of(RunsWords& words, Job& job) {
  for (const std::string& word : words.runs) job.provenance.input("run", word);
  Report head;
  PlannedRuns planned = job.phase(Phase::read, [&] { return plan_runs(words, job, head); });
  const std::vector<ArrayOfRuns>& arrays = planned.arrays;
  const std::vector<std::string>& names = planned.names;
  if (job.plan(std::move(planned.plan), planned.peak)) return Outcome::passed;

  job.inputs.count_read(planned.bytes);
  if (!words.group_sizes.empty()) words.options.group_sizes = job.open("group_sizes", words.group_sizes);
  if (!words.cu_seqlens.empty()) words.options.cu_seqlens = job.open("cu_seqlens", words.cu_seqlens);
  const auto progress = job.progress();
  std::vector<RunsOfArray> found;
  bool close = true;
  job.phase(Phase::compute, [&] {
    std::int64_t before = 0;
    const std::int64_t all = planned.elements / std::max<std::int64_t>(1, std::ssize(names));
    for (const ArrayOfRuns& array : arrays) {
      RunsOfArray& one = found.emplace_back();
      one.array = printable(array.name);
      one.why = array.why;
      std::int64_t done = 0;
      if (one.why.empty())
        one.found = compare_runs(array.sources, words.options, [&](std::int64_t n, std::int64_t) {
          done = n;
          progress(std::min(before + n, all), all);
        });
      before += done;
      close = close && one.why.empty() && one.found.close;
    }
  });
  Report report = std::move(head);
  append(report, describe_runs(found, names));
  job.deliver(std::move(report), {});
  return close ? Outcome::passed : Outcome::failed;
}

Outcome compare_routings(const RoutingWords& words, Job& job) {
  const auto actual = job.open("actual", words.actual), expected = job.open("expected", words.expected);
  bool any_scores = false;
  for (const auto& side : {actual, expected}) {
    if (!is_float(side->dtype())) continue;
    any_scores = true;
    if (!words.top_k)
      throw usage("{}: scores ({}), of which --top-k says how many are chosen", printable(side->name()),
                  name_of(side->dtype()))
          .hint("for example --top-k 8; ids of a float type: ejk convert IN -o OUT --dtype int32");
    if (!side->shape().empty() && *words.top_k > side->shape().back())
      throw usage("--top-k {}: {} has scores of {} experts", *words.top_k, printable(side->name()),
                  side->shape().back());
  }
  if (words.top_k && !any_scores)
    throw usage("--top-k requires scores, and both are ids ({})", name_of(actual->dtype()))
        .hint("ids: ejk compare A B --routing");
  const std::int64_t peak = routing_bytes(*actual, *expected);
  Report plan;
  plan.add("actual_shape", "shape, actual", actual->shape())
      .add("expected_shape", "shape, expected", expected->shape());
  if (job.plan(std::move(plan), peak)) return Outcome::passed;
  RoutingComparison found;
  job.phase(Phase::compute, [&] {
    try {
      found = compare_routing(*actual, *expected, words.top_k, job.progress());
    } catch (Error& error) {
      const bool is_scores = error.subject() == "scores";
      if (error.kind() == Error::Kind::input && is_scores)
        error.hint("ejk info FILE counts the NaNs of an array; its shape is to be (tokens, experts)");
      else if (error.kind() == Error::Kind::input && error.subject() == "ids")
        error.hint("ejk check topk-ids FILE --experts N lists what is wrong with ids");
      throw;
    }
  });
  job.deliver(describe(found), {});
  return found.close ? Outcome::passed : Outcome::failed;
}

}  // namespace ejk::app
