// ejk convert: converts arrays to another container, another element type, or both.
//
// tests: tests/cli/convert/
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "commands.hpp"
#include "computed_reference.hpp"
#include "ejk/array_math.hpp"
#include "ejk/program/text.hpp"
#include "ejk/quantize.hpp"
#include "job.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

using Source = std::shared_ptr<const ArraySource>;

struct ConvertOptions {
  std::vector<std::string> inputs;
  std::optional<DType> dtype, view;
  std::optional<Overflow> overflow;
  struct Layouts {
    ScaleLayout from, to;
  };
  std::optional<Layouts> scale_layout;
  std::optional<ScaleGridSize> grid;
};

ConvertOptions::Layouts read_layouts(const std::string& word) {
  const std::size_t colon = word.find(':');
  if (colon == std::string::npos) throw usage("'{}' is not FROM:TO", printable(word, 40));
  std::vector<std::string> names;
  for (const ScaleLayout layout : kScaleLayouts) names.emplace_back(name_of(layout));
  const auto layout = [&](const std::string& name) { return kScaleLayouts[read_choice(name, names)]; };
  return {layout(word.substr(0, colon)), layout(word.substr(colon + 1))};
}

void check_overflow(const ConvertOptions& options) {
  if (!options.overflow) return;
  if (!options.dtype || !is_8_bit_float(*options.dtype))
    throw usage("--overflow is for conversions to 8-bit floats").hint("for example --dtype float8_e4m3fn");
  if (*options.overflow == Overflow::infinity && !float_format(*options.dtype).has_infinity())
    throw usage("--overflow inf: {} has no infinity", name_of(*options.dtype))
        .hint("--overflow saturate takes the largest number, --overflow nan NaN");
}

// The same bits as another type.
Source viewed(const Source& source, DType dtype) {
  if (size_of(source->dtype()) == size_of(dtype)) return view_array(source, dtype);
  std::vector<std::string_view> same_size;
  for (const DType other : kDTypes)
    if (size_of(other) == size_of(source->dtype())) same_size.push_back(name_of(other));
  const auto bytes = [](DType d) { return fmt::format("{} byte{}", size_of(d), size_of(d) == 1 ? "" : "s"); };
  throw usage("--view {}: it has {}, and {} is {}, of {}", name_of(dtype), bytes(dtype),
              printable(source->name()), name_of(source->dtype()), bytes(source->dtype()))
      .hint(fmt::format("--view takes {}; --dtype converts the numbers", fmt::join(same_size, ", ")));
}

Outcome run(const ConvertOptions& options, Job& job) {
  check_overflow(options);
  if (options.scale_layout && options.scale_layout->from != ScaleLayout::linear && !options.grid)
    throw usage("--shape RxC is required: layout {} has padding", name_of(options.scale_layout->from))
        .hint("the rows and columns of scales: values (N, K) in blocks of 32 have --shape Nx(K / 32)");
  // Codes in .npy files have no type; layouts do not depend on it.
  if (options.scale_layout || options.view) job.inputs.read_untyped_bytes();
  std::atomic<std::int64_t> overflowed = 0;
  Report report;
  Table table{"arrays",
              "",
              {{"array", "array"},
               {"shape", "shape"},
               {"from", "from"},
               {"dtype", "to"},
               {"size", "size", Unit::bytes}},
              {}};
  std::vector<Output> outputs;
  std::vector<std::string> names;
  std::int64_t read = 0, size = 0, largest = 0;
  job.phase(Phase::read, [&] {
    for (const std::string& input : options.inputs) {
      job.provenance.input("input", input);
      std::vector<NamedInput> arrays = job.inputs.arrays_in(input);
      if (arrays.empty()) report.warnings.push_back(printable(input) + ": holds no arrays");
      for (std::string& line : job.inputs.left_out(input)) report.warnings.push_back(std::move(line));
      for (NamedInput& array : arrays) {
        std::optional<Error> unsupported;
        Source source = job.inputs.open_supported(array, unsupported);
        if (!source) {
          if (unsupported->code() == Error::Code::unsupported)
            unsupported->hint("the arrays that are supported can be named, each as an IN");
          throw Error(*unsupported);
        }
        const DType from = source->dtype();
        read += array.bytes;
        if (options.view) source = viewed(source, *options.view);
        if (options.scale_layout) {
          job.require_memory(2 * byte_count(source->shape(), source->dtype()) +
                             piece_buffers(4, byte_count(source->shape(), source->dtype())));
          source = make_source(convert_scale_layout(*source, options.scale_layout->from,
                                                    options.scale_layout->to, options.grid),
                               source->name());
        }
        if (options.dtype) source = convert_array(source, *options.dtype, {options.overflow, &overflowed});
        const std::int64_t bytes = byte_count(source->shape(), source->dtype());
        size += bytes;
        largest = std::max({largest, bytes, array.bytes});
        names.push_back(array.name);
        table.rows.push_back({printable(names.back()), source->shape(), std::string(name_of(from)),
                              std::string(name_of(source->dtype())), bytes});
        outputs.push_back({names.back(), std::move(source), {}});
      }
    }
  });
  if (names.empty())
    throw Error(Error::Kind::input, "there is no array to convert")
        .hint(report.warnings.empty() ? "" : printable(report.warnings.back()));
  if (names.size() > 1 && !job.outputs.has_target())
    throw usage("-o is required for {} arrays", names.size()).hint(kTargetsOfAll);
  job.outputs.declare(names);
  report.add(std::move(table)).add("size", "size", size, Unit::bytes);
  if (job.plan(report, piece_buffers(4, largest))) return Outcome::passed;
  job.inputs.count_read(read);
  job.deliver(std::move(report), outputs, [&](Report& complete) {
    if (!options.dtype || !is_8_bit_float(*options.dtype)) return;
    complete.add("overflowed", "overflowed", overflowed.load(), Unit::count);
  });
  return Outcome::passed;
}

Run declare_convert(OptionSet& set) {
  const auto options = std::make_shared<ConvertOptions>();
  set.name_outputs_later();
  add_references(
      set, "IN", options->inputs,
      "arrays, files, HDF5 groups or folders of arrays, or - for stdin\nOf a file of several all arrays, "
      "of a group (a.h5:/layer0) all below it, unless one is named. They keep their names, those of a group "
      "the part below it.")
      .required();
  add_dtype(
      set, "--dtype", options->dtype,
      "element type; by default each keeps its own\nFloats are rounded to the nearest, ties to even, "
      "infinite out of range (8-bit floats: --overflow); from float to integer the fraction is dropped; to bool anything but 0 is "
      "True. A value out of an integer's range, or NaN as integer or bool, is an error that names its index.")
      .recorded();
  add_dtype(
      set, "--view", options->view,
      "the same bits as another type of the same size\nBefore --dtype. Also of single bytes without a type, as "
      "ml_dtypes writes 8-bit floats to .npy, where --view names it: --view float8_e4m3fn.")
      .recorded();
  add_choice(
      set, "--overflow", options->overflow,
      named_choices<std::optional<Overflow>>({Overflow::saturate, Overflow::nan, Overflow::infinity}), "WHAT",
      "what overflows an 8-bit float becomes\nNumbers beyond the largest, rounded, and infinities: the largest "
      "number of their sign, NaN or infinity (float8_e5m2 only). By default the largest of float8_e4m3fn and "
      "float8_e5m2, as CUDA converts, and NaN of the others; infinities of float8_e5m2 stay in float8_e5m2. "
      "The report counts what overflows. float8_e8m0fnu takes the nearest power of two, halves up, without the sign; of 0 the least, 2^-127, as torch does.")
      .recorded();
  take_word(
      set, "--scale-layout",
      [options](const std::string& word) { options->scale_layout = read_layouts(word); }, "FROM:TO",
      "scales of quantised blocks in another layout\nlinear, 128x4 (padded tiles of cuBLAS), 8x4, deepgemm (int32 of four "
      "E8M0 codes, also of float32 powers of two). Scales are (..., R, C), of one byte.")
      .recorded("scale_layout", [options]() -> ReportValue {
        if (!options->scale_layout) return {};
        return fmt::format("{}:{}", name_of(options->scale_layout->from), name_of(options->scale_layout->to));
      });
  take_word(
      set, "--shape",
      [options](const std::string& word) {
        const Shape lengths = read_lengths(word, 2, 2, "RxC");
        options->grid = ScaleGridSize{lengths[0], lengths[1]};
      },
      "RxC", "rows and columns of the scales, where FROM is not linear")
      .needs("--scale-layout");
  add_word(
      set, "--compression", set.shared().compression,
      [](const std::string& w) {
        const std::int64_t level = read_integer(w, 0);
        if (level > 9) throw usage("{} is more than 9", level);
        return static_cast<int>(level);
      },
      "LEVEL",
      "compress .npz and HDF5, 1 (fast) to 9 (small)\nDeflate; HDF5 in chunks of up to 1 MiB, shuffled.")
      .recorded("compression", [&set] {
        return set.shared().compression > 0 ? ReportValue(std::int64_t{set.shared().compression})
                                            : ReportValue();
      });
  set_footer(
      set,
      "Several arrays go to out.h5, out.h5:/group, out.npz, out.safetensors or\nout/, which gets one NAME.npy for each.");
  return [options](Job& job) { return run(*options, job); };
}

}  // namespace

extern const Command convert_command{
    .name = "convert",
    .group = "Arrays",
    .summary = "convert arrays to another container or element type",
    .example = "ejk convert weights.npz -o weights.h5 --dtype bfloat16",
    .outputs = {{"convert", "the shape of the input",
                 "the elements as --dtype; arrays of a file keep their names"}},
    .use = R"(with h5py.File("weights.h5") as f: names = list(f))",
    .keys = R"(
arrays | table | the arrays
  array | string | its name
  shape | shape | its shape
  from, dtype | string | the element types before and after
  size_bytes | integer | bytes of its new elements
size_bytes | integer | bytes of all arrays
overflowed | integer | elements that overflow | with --dtype of an 8-bit float, if written
)",
    .declare = declare_convert,
};

}  // namespace ejk::app
