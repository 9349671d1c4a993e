// ejk info: what is in files. One pass over each array, piece by piece. What cannot be read does not hide the
// rest: it is told, and is an error in the end.
//
// tests: tests/cli/info/
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "commands.hpp"
#include "ejk/statistics.hpp"
#include "ejk/text.hpp"
#include "job.hpp"
#include "schema.hpp"
#include "unreadable.hpp"

namespace ejk::app {

namespace {

struct InfoOptions {
  std::vector<std::string> files;
  bool histogram = false;
};

ReportValue value_of(const Extreme& extreme) {
  return std::visit([](auto value) { return ReportValue(value); }, extreme);
}

Table arrays_table() {
  return {"arrays",
          "",
          {{"name", "array"},
           {"dtype", "dtype"},
           {"shape", "shape"},
           {"storage", "stored"},
           {"size", "size", Unit::bytes, true},
           {"min", "min"},
           {"max", "max"},
           {"mean", "mean"},
           {"nans", "NaN"},
           {"infinities", "inf", Unit::none, true}},
          {},
          INT64_MAX};
}

Table links_table() {
  return {
      "links", "links, which are not followed", {{"name", "link"}, {"kind", "kind"}, {"target", "to"}}, {}};
}

// The arrays of a file that are of types that ejk has not, those of one type together.
class LeftOut {
 public:
  void add(const std::string& name, Error error) {
    const auto group = std::find_if(groups_.begin(), groups_.end(),
                                    [&](const Group& g) { return g.first.why() == error.why(); });
    if (group == groups_.end())
      groups_.push_back({std::move(error), {printable(name, 60)}});
    else
      group->names.push_back(printable(name, 60));
  }

  std::vector<std::string> warnings(const std::string& file) const {
    constexpr std::ptrdiff_t kMost = 4;
    std::vector<std::string> lines;
    for (const Group& group : groups_) {
      const auto shown = group.names.begin() + std::min(kMost, std::ssize(group.names));
      lines.push_back(group.names.size() == 1
                          ? group.first.message()
                          : fmt::format("{}: {} arrays are left out: {}{}: {}", printable(file),
                                        group.names.size(), fmt::join(group.names.begin(), shown, ", "),
                                        shown == group.names.end() ? "" : ", ...", group.first.why()));
    }
    return lines;
  }

  // Of a file in which nothing else is.
  Error error(const std::string& file, std::size_t arrays) const {
    if (arrays == 1) return groups_[0].first;
    return Error(Error::Kind::input,
                 fmt::format("none of its {} arrays can be read: {}{}", arrays, groups_[0].first.why(),
                             groups_.size() == 1 ? "" : ", and others"))
        .at(printable(file));
  }

 private:
  struct Group {
    Error first;
    std::vector<std::string> names;
  };
  std::vector<Group> groups_;
};

// What its header says of an array.
std::vector<ReportValue> row_of(const ArrayReference& reference, const ArraySource& source) {
  return {printable(reference.text),
          std::string(name_of(source.dtype())),
          source.shape(),
          source.access().storage,
          byte_count(source.shape(), source.dtype()),
          {},
          {},
          {},
          {},
          {}};
}

void add_statistics(std::vector<ReportValue>& row, const Statistics& s) {
  row[5] = value_of(s.minimum);
  row[6] = value_of(s.maximum);
  if (s.mean) row[7] = *s.mean;
  row[8] = s.nans;
  row[9] = s.infinities;
}

Table histogram_table() {
  return {"histogram",
          "distribution",
          {{"array", "array"},
           {"from", "from"},
           {"to", "to"},
           {"elements", "elements"},
           {"share", "", Unit::bar}},
          {},
          INT64_MAX};
}

Outcome run(const InfoOptions& options, Job& job) {
  // All headers first: a mistake shows before hours are spent on the file in front of it. Arrays are opened
  // again one by one, so that a file of ten thousand does not hold them all.
  std::vector<NamedInput> found;
  Unreadable unreadable;
  Report report;
  Table planned = arrays_table(), links = links_table();
  std::int64_t peak = 0, bytes = 0;
  job.phase(Phase::read, [&] {
    for (const std::string& file : options.files) {
      job.provenance.input("file", file);
      std::vector<NamedInput> arrays;
      const bool listed = unreadable.unless_failing(file, [&] {
        arrays = job.inputs.arrays_in(file);
        const std::string path = parse_input(file).path;
        for (const ArrayLink& link : job.inputs.links_in(file))
          links.rows.push_back({printable(path + ":" + link.name), link.kind,
                                link.target.empty() ? ReportValue() : ReportValue(printable(link.target))});
      });
      if (listed && arrays.empty()) report.warnings.push_back(printable(file) + ": holds no arrays");
      LeftOut left_out;
      std::size_t left_out_count = 0;
      for (NamedInput& input : arrays) {
        std::shared_ptr<const ArraySource> source;
        std::optional<Error> unsupported;
        const bool opened = unreadable.unless_failing(
            input.reference.text, [&] { source = job.inputs.open_supported(input, unsupported); });
        if (unsupported) left_out.add(input.name, std::move(*unsupported)), ++left_out_count;
        if (!opened || !source) continue;
        planned.rows.push_back(row_of(input.reference, *source));
        peak = std::max(peak, statistics_bytes(*source));
        bytes += byte_count(source->shape(), source->dtype());
        found.push_back(std::move(input));
      }
      if (left_out_count > 0 && left_out_count == arrays.size())
        unreadable.unless_failing(file, [&] { throw left_out.error(file, arrays.size()); });
      else
        for (std::string& line : left_out.warnings(file)) report.warnings.push_back(std::move(line));
    }
  });
  if (found.empty() && !job.json()) unreadable.throw_if_any();
  Report plan;
  plan.warnings = report.warnings;
  plan.add(planned);
  if (!links.rows.empty()) plan.add(links);
  unreadable.add_to(plan);
  if (job.plan(std::move(plan), peak)) {
    unreadable.throw_if_any();
    return Outcome::passed;
  }

  job.inputs.count_read(bytes);
  Table done = arrays_table();
  const auto progress = job.progress();
  Table histogram = histogram_table();
  const std::int64_t passes = options.histogram ? 2 : 1;
  std::int64_t before = 0, nans = 0;
  job.phase(Phase::compute, [&] {
    for (NamedInput& one : found) {
      std::int64_t size = 0;
      unreadable.unless_failing(one.reference.text, [&] {
        const auto source = job.inputs.open(one);
        size = byte_count(source->shape(), source->dtype());
        std::int64_t done_before = before;
        const auto counted = [&](std::int64_t n, std::int64_t) {
          progress(done_before + n * size_of(source->dtype()), passes * bytes);
        };
        std::vector<ReportValue> row = row_of(one.reference, *source);
        const Statistics statistics = statistics_of(*source, counted);
        add_statistics(row, statistics);
        nans += statistics.nans;
        done_before += size;
        if (options.histogram)
          for (const Bin& bin : histogram_of(*source, statistics, 16, counted))
            histogram.rows.push_back(
                {printable(one.reference.text), bin.from, bin.to, bin.elements,
                 static_cast<double>(bin.elements) / static_cast<double>(statistics.elements)});
        done.rows.push_back(std::move(row));
      });
      before += passes * size;
    }
  });
  if (done.rows.empty() && !job.json()) unreadable.throw_if_any();
  const auto read = static_cast<std::int64_t>(done.rows.size());
  report.add(std::move(done));
  report.add("arrays_count", "arrays", read, Unit::count)
      .add("size", "size", bytes, Unit::bytes)
      .add("nans", "NaN", nans, Unit::count);
  if (!links.rows.empty()) report.add(std::move(links));
  if (options.histogram) report.add(std::move(histogram));
  unreadable.add_to(report);
  job.deliver(std::move(report), {});
  unreadable.throw_if_any();
  return Outcome::passed;
}

Run declare_info(OptionSet& set) {
  const auto options = std::make_shared<InfoOptions>();
  add_references(
      set, "FILE", options->files,
      "files, folders of .npy files, arrays, or - for stdin\n"
      "Of an .npz or HDF5 file all arrays, unless one is named. Mean, least and largest leave NaN out.")
      .required();
  add_flag(set, "--histogram", options->histogram,
           "how the elements are distributed\nIn 16 equally wide bins from the least to the largest, "
           "none if that is infinite; one more "
           "pass.");
  return [options](Job& job) { return run(*options, job); };
}

}  // namespace

extern const Command info_command{
    .name = "info",
    .group = "Arrays",
    .summary = "every array in files: shape, type, range, mean, NaNs",
    .example = "ejk info masks.npz info.h5",
    .keys = joined({R"(
arrays | table | the arrays of all files; with --dry-run from headers alone
  name | string | the array as a reference
  dtype | string | its element type
  shape | shape | its shape
  storage | string | how it is stored
  size_bytes | integer | bytes of its elements
  min | number or null | the least element that is not NaN
  max | number or null | the largest element that is not NaN
  mean | number or null | the mean of those that are not NaN
  nans | integer or null | elements that are NaN
  infinities | integer or null | elements that are infinite
arrays_count | integer | arrays that were read | done
size_bytes | integer | bytes of all arrays | done
nans | integer | elements of all arrays that are NaN | done
links | table | links, which are not followed | of HDF5 files with links
  name | string | the link as a reference
  kind | string | its kind
  target | string or null | its target
histogram | table | how elements are distributed | with --histogram
  array | string | the array as a reference
  from | number | where the bin begins
  to | number | where it ends
  elements | integer | elements in it
  share | share | of all elements of the array
)",
                    kUnreadableKeys}),
    .declare = declare_info,
};

}  // namespace ejk::app
