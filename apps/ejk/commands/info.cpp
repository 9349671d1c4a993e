// ejk info: the arrays in files and their statistics, in one pass over each array. Of files whose headers
// list their arrays a summary of the headers: reading the elements of a model would take minutes. Arrays
// that cannot be read are listed and are an error after all others have been reported.
//
// tests: tests/cli/info/
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "commands.hpp"
#include "ejk/array_math.hpp"
#include "ejk/program/text.hpp"
#include "job.hpp"
#include "schema.hpp"
#include "stored_summary.hpp"
#include "unreadable.hpp"

namespace ejk::app {

namespace {

struct InfoOptions {
  std::vector<std::string> files;
  bool elements = false, histogram = false;
  bool reads_elements() const { return elements || histogram; }
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

// The arrays of a file with unsupported types, grouped by type.
class UnsupportedArrays {
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

  // For a file of such arrays alone.
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

// The columns that the header contains.
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

Table metadata_table() {
  return {"metadata", "metadata", {{"file", "file"}, {"key", "key"}, {"value", "value"}}, {}};
}

// The arrays of all files, from their headers. They are opened again one by one for the work, so that a file
// of ten thousand arrays does not keep them all open.
struct Found {
  std::vector<NamedInput> arrays;
  std::vector<std::string> warnings;
  Table headers = arrays_table(), links = links_table(), metadata = metadata_table();
  StoredSummary summary;
  std::int64_t peak = 0, bytes = 0;
};

// A file whose header lists its arrays; false for others.
bool summarise(const std::string& file, Found& found, Job& job) {
  const auto stored = job.inputs.stored_in(file);
  if (!stored) return false;
  if (stored->empty()) found.warnings.push_back(printable(file) + ": holds no arrays");
  const ArrayReference reference = parse_input(file);
  for (const StoredArray& array : *stored) found.summary.add(reference, array);
  for (const auto& [key, value] : job.inputs.attributes_in(file))
    found.metadata.rows.push_back({printable(file), printable(key), printable(value)});
  return true;
}

void find_in(const std::string& file, bool reads_elements, Found& found, Unreadable& unreadable, Job& job) {
  job.provenance.input("file", file);
  if (!unreadable.unless_failing(file, [&] {
        for (std::string& line : job.inputs.remarks_in(file)) found.warnings.push_back(std::move(line));
      }))
    return;
  bool is_summarised = false;
  if (!reads_elements &&
      !unreadable.unless_failing(file, [&] { is_summarised = summarise(file, found, job); }))
    return;
  if (is_summarised) return;
  std::vector<NamedInput> arrays;
  const bool listed = unreadable.unless_failing(file, [&] {
    arrays = job.inputs.arrays_in(file);
    for (const ArrayLink& link : job.inputs.links_in(file))
      found.links.rows.push_back({printable(parse_input(file).path + ":" + link.name), link.kind,
                                  link.target.empty() ? ReportValue() : ReportValue(printable(link.target))});
  });
  if (listed && arrays.empty()) found.warnings.push_back(printable(file) + ": holds no arrays");
  UnsupportedArrays skipped;
  std::size_t skipped_count = 0;
  for (NamedInput& input : arrays) {
    std::shared_ptr<const ArraySource> source;
    std::optional<Error> unsupported;
    const bool opened = unreadable.unless_failing(
        input.reference.text, [&] { source = job.inputs.open_supported(input, unsupported); });
    if (unsupported) skipped.add(input.name, std::move(*unsupported)), ++skipped_count;
    if (!opened || !source) continue;
    found.headers.rows.push_back(row_of(input.reference, *source));
    found.peak = std::max(found.peak, statistics_bytes(*source));
    found.bytes += byte_count(source->shape(), source->dtype());
    found.arrays.push_back(std::move(input));
  }
  if (skipped_count > 0 && skipped_count == arrays.size())
    unreadable.unless_failing(file, [&] { throw skipped.error(file, arrays.size()); });
  else
    for (std::string& line : skipped.warnings(file)) found.warnings.push_back(std::move(line));
}

// The statistics of the arrays that can be read, and their sums.
struct Read {
  Table rows = arrays_table(), histogram = histogram_table();
  std::int64_t nans = 0;
};

Read read_arrays(Found& found, bool with_histogram, Unreadable& unreadable, Job& job) {
  Read read;
  const auto progress = job.progress();
  const std::int64_t passes = with_histogram ? 2 : 1;
  std::int64_t done = 0;  // bytes of the arrays before
  for (NamedInput& one : found.arrays) {
    std::int64_t size = 0;
    unreadable.unless_failing(one.reference.text, [&] {
      const auto source = job.inputs.open(one);
      size = byte_count(source->shape(), source->dtype());
      std::int64_t before = done;
      const auto counted = [&](std::int64_t n, std::int64_t) {
        progress(before + n * size_of(source->dtype()), passes * found.bytes);
      };
      std::vector<ReportValue> row = row_of(one.reference, *source);
      const Statistics statistics = statistics_of(*source, counted);
      add_statistics(row, statistics);
      read.nans += statistics.nans;
      before += size;
      if (with_histogram)
        for (const Bin& bin : histogram_of(*source, statistics, 16, counted))
          read.histogram.rows.push_back(
              {printable(one.reference.text), bin.from, bin.to, bin.elements,
               static_cast<double>(bin.elements) / static_cast<double>(statistics.elements)});
      read.rows.rows.push_back(std::move(row));
    });
    done += passes * size;
  }
  return read;
}

void add_summary(const Found& found, Report& report) {
  if (!found.summary.empty()) found.summary.add_to(report);
  if (!found.metadata.rows.empty()) report.add(found.metadata);
}

Outcome run(const InfoOptions& options, Job& job) {
  Found found;
  Unreadable unreadable;
  job.phase(Phase::read, [&] {
    for (const std::string& file : options.files)
      find_in(file, options.reads_elements(), found, unreadable, job);
  });
  if (found.arrays.empty() && found.summary.empty() && !job.json()) unreadable.throw_if_any();
  Report plan;
  plan.warnings = found.warnings;
  plan.add(found.headers);
  if (!found.links.rows.empty()) plan.add(found.links);
  add_summary(found, plan);
  unreadable.add_to(plan);
  if (job.plan(std::move(plan), found.peak)) {
    unreadable.throw_if_any();
    return Outcome::passed;
  }

  job.inputs.count_read(found.bytes);
  Read read =
      job.phase(Phase::compute, [&] { return read_arrays(found, options.histogram, unreadable, job); });
  if (read.rows.rows.empty() && found.summary.empty() && !job.json()) unreadable.throw_if_any();
  Report report;
  report.warnings = std::move(found.warnings);
  const auto count = static_cast<std::int64_t>(read.rows.rows.size());
  const bool has_read = count > 0 || found.summary.empty();
  report.add(std::move(read.rows));
  add_summary(found, report);
  report.add("arrays_count", "arrays", count + found.summary.arrays(), Unit::count)
      .add("size", "size", found.bytes + found.summary.bytes(), Unit::bytes);
  if (has_read) report.add("nans", "NaN", read.nans, Unit::count);
  if (!found.links.rows.empty()) report.add(std::move(found.links));
  if (options.histogram) report.add(std::move(read.histogram));
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
      "Of an .npz or HDF5 file all arrays, unless one is named. Mean, least and largest leave NaN out. Of a "
      "safetensors or .pt file or a model of several the headers alone, by patterns of names, of each file where "
      "two have an array of one name: --elements "
      "reads all, and a tensor that is named is read.")
      .required();
  add_flag(set, "--elements", options->elements,
           "read the elements of safetensors and .pt files and models, too\nAs those of other files: their "
           "range, mean and NaN, a line for each array.");
  add_flag(set, "--histogram", options->histogram,
           "how the elements are distributed\nIn 16 equally wide bins from the least to the largest, none if "
           "that is infinite; one more pass.");
  return [options](Job& job) { return run(*options, job); };
}

}  // namespace

extern const Command info_command{
    .name = "info",
    .group = "Arrays",
    .summary = "every array in files: shape, type, range, mean, NaNs",
    .example = "ejk info masks.npz info.h5",
    .keys = joined({R"(
arrays | table | the arrays whose elements are read; with --dry-run from headers alone
  name | string | the array as a reference
  dtype | string | its element type
  shape | shape | its shape
  storage | string | how it is stored
  size_bytes | integer | bytes of its elements
  min, max, mean | number or null | least and largest element, and the mean, without NaN
  nans, infinities | integer or null | elements that are NaN, and infinite ones
patterns | table | arrays of files whose headers list them, by patterns of names and types | of such files
  pattern | string | the name, of several with # for numbers between dots, slashes and brackets; behind its file where two files have an array of one name
  dtype | string | their element type, or the file's name of one that is not supported
  shape | shape or null | their shape, if it is one
  arrays | integer | how many there are
  parameters | integer | their elements
  size_bytes | integer | bytes of their elements
dtypes | table | the same arrays by element type | of such files
  dtype | string | as in patterns
  arrays, parameters | integer | how many there are, and their elements
  size_bytes | integer | bytes of their elements
tensors | table | the same arrays one by one | of such files
  name | string | the array as a reference
  dtype | string | as in patterns
  shape | shape | its shape
  size_bytes | integer | bytes of its elements
parameters | integer | elements of all arrays of such files | of such files
metadata | table | the metadata of safetensors files | of files that have some
  file | string | the file
  key, value | string | a pair of its metadata
arrays_count | integer | arrays that were read or listed | done
size_bytes | integer | bytes of all arrays | done
nans | integer | elements of all arrays that are NaN | if elements were read
links | table | links, which are not followed | of HDF5 files with links
  name | string | the link as a reference
  kind | string | its kind
  target | string or null | its target
histogram | table | how elements are distributed | with --histogram
  array | string | the array as a reference
  from, to | number | the ends of the bin
  elements | integer | elements in it
  share | share | of all elements of the array
)",
                    kUnreadableKeys}),
    .declare = declare_info,
};

}  // namespace ejk::app
