// ejk convert: arrays into another container, to another element type, or both.
//
// tests: tests/cli/convert/
#include <fmt/format.h>

#include <mutex>

#include "commands.hpp"
#include "ejk/array_math.hpp"
#include "ejk/text.hpp"
#include "job.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

using Source = std::shared_ptr<const ArraySource>;

struct ConvertOptions {
  std::vector<std::string> inputs;
  std::optional<DType> dtype;
  std::int64_t compression = 0;
};

// The one array of all that is open. What is not mapped takes a process or an open file, and there may be
// thousands.
struct Slot {
  std::mutex mutex;
  const void* owner = nullptr;
  Source source;
};

// An array that is opened when it is read, and closed when another is.
class ReopenedSource final : public ArraySource {
 public:
  ReopenedSource(const Job& job, ArrayReference reference, const ArraySource& seen,
                 std::shared_ptr<Slot> slot)
      : job_(job),
        reference_(std::move(reference)),
        dtype_(seen.dtype()),
        shape_(seen.shape()),
        name_(seen.name()),
        slot_(std::move(slot)) {}

  DType dtype() const override { return dtype_; }
  const Shape& shape() const override { return shape_; }
  const std::string& name() const override { return name_; }
  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    opened()->read(start, count, out);
  }

 private:
  Source opened() const {
    const std::scoped_lock lock(slot_->mutex);
    if (slot_->owner == this) return slot_->source;
    slot_->source.reset();
    slot_->source = job_.open_once(reference_);
    slot_->owner = this;
    if (slot_->source->dtype() != dtype_ || slot_->source->shape() != shape_)
      throw Error(Error::Kind::input, name_ + ": has changed meanwhile");
    return slot_->source;
  }

  const Job& job_;
  ArrayReference reference_;
  DType dtype_;
  Shape shape_;
  std::string name_;
  std::shared_ptr<Slot> slot_;
};

// Also for "a.h5[0]", where the file's only array is not named.
std::string name_in_file(const Job& job, const std::string& word, const ArrayReference& reference) {
  using Container = ArrayReference::Container;
  if (reference.member.empty() &&
      (reference.container == Container::npz || reference.container == Container::hdf5)) {
    const auto arrays = job.arrays_in(reference.path);
    if (arrays.size() == 1) return array_name(arrays[0]);
  }
  return Job::name_in(word, reference);
}

Answer run(const ConvertOptions& options, Job& job) {
  if (options.dtype) job.note_setting("dtype", std::string(name_of(*options.dtype)));
  if (options.compression > 0) {
    job.note_setting("compression", fmt::format("{}", options.compression));
    job.compress(static_cast<int>(options.compression));
  }
  Report report;
  Table table{"arrays",
              "",
              {{"array", "array"},
               {"shape", "shape"},
               {"from", "from"},
               {"dtype", "to"},
               {"size", "size", Unit::bytes}},
              {}};
  const auto slot = std::make_shared<Slot>();
  std::vector<Output> outputs;
  std::vector<std::string> names;
  std::int64_t read = 0, size = 0;
  job.phase(Job::Phase::read, [&] {
    for (const std::string& input : options.inputs) {
      job.note_input("input", input);
      const std::vector<ArrayReference> arrays = job.arrays_in(input);
      if (arrays.empty()) report.warnings.push_back(printable(input) + ": holds no arrays");
      const std::string left_out = job.links_left_out(input);
      if (!left_out.empty()) report.warnings.push_back(left_out);
      for (const ArrayReference& reference : arrays) {
        std::string unsupported;
        Source source = job.open_in(input, reference, unsupported);
        if (!source) {
          report.warnings.push_back("left out: " + unsupported);
          continue;
        }
        const bool is_stream = reference.container == ArrayReference::Container::stream;
        if (!is_stream && !source->mapped())
          source = std::make_shared<ReopenedSource>(job, reference, *source, slot);
        const DType from = source->dtype();
        read += byte_count(source->shape(), from);
        if (options.dtype) source = convert_array(source, *options.dtype);
        const std::int64_t bytes = byte_count(source->shape(), source->dtype());
        size += bytes;
        names.push_back(name_in_file(job, input, reference));
        table.rows.push_back({printable(names.back()), source->shape(), std::string(name_of(from)),
                              std::string(name_of(source->dtype())), bytes});
        outputs.push_back({names.back(), std::move(source), {}});
      }
    }
  });
  if (names.empty())
    throw Error(Error::Kind::input, "there is no array to convert")
        .hint(report.warnings.empty() ? "" : printable(report.warnings.back()));
  if (names.size() > 1 && !job.has_output())
    throw Error(Error::Kind::usage, fmt::format("-o is required for {} arrays", names.size()))
        .hint("out.h5, out.npz or out/ takes all");
  job.makes(names);
  report.add(std::move(table)).add("size", "size", size, Unit::bytes);
  if (job.plan(report, 4 * kPieceBytes)) return Answer::yes;
  job.note_read(read);
  job.deliver(std::move(report), outputs);
  return Answer::yes;
}

}  // namespace

Run convert(CLI::App& app) {
  const auto options = std::make_shared<ConvertOptions>();
  add_references(
      app, "IN", options->inputs,
      "arrays, files, HDF5 groups or folders of arrays, or - for stdin\n"
      "Of an .npz or HDF5 file all arrays, of a group (a.h5:/layer0) all below it, unless one is named. "
      "They "
      "keep their names, those of a group the part below it.")
      .required();
  add_word(
      app, "--dtype", options->dtype, [](const std::string& w) { return std::optional(read_dtype(w)); },
      "TYPE",
      "element type; by default each keeps its own\n"
      "Floats are rounded to the nearest, ties to even, infinite beyond the range; from float to integer the "
      "fraction is cut off; to bool anything but 0 is True. A value out of an integer's range, or NaN as "
      "integer "
      "or bool, is an error that names its index.");
  add_word(
      app, "--compression", options->compression,
      [](const std::string& w) {
        const std::int64_t level = read_integer(w, 0);
        if (level > 9) throw Error(Error::Kind::usage, fmt::format("{} is more than 9", level));
        return level;
      },
      "LEVEL",
      "compress .npz and HDF5, 1 (fast) to 9 (small)\nDeflate; HDF5 in chunks of up to 1 MiB, shuffled.");
  set_footer(
      app, "Several arrays go to out.h5, out.h5:/group, out.npz or out/, which gets one\nNAME.npy for each.");
  return [options](Job& job) { return run(*options, job); };
}

}  // namespace ejk::app
