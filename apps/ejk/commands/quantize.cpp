// ejk quantize: low-precision values with scales of blocks, as a library that writes them would.
//
// tests: tests/cli/quantize/
#include "ejk/quantize.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "commands.hpp"
#include "computed_reference.hpp"
#include "ejk/array_math.hpp"
#include "ejk/program/text.hpp"
#include "job.hpp"
#include "quantize_model.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

using Source = std::shared_ptr<const ArraySource>;

struct QuantizeOptions {
  std::string array;
  std::optional<QuantizationScheme> scheme;
  QuantizeSettings how;
  std::optional<TensorNames> names;
  std::vector<std::string> ignored;
};

// E8M0 codes as uint8 where the container does not name their type.
Source stored(const Array& scales, const std::string& target) {
  Source source = make_source(scales.view(), "scales");
  if (scales.dtype() != DType::float8_e8m0fnu) return source;
  const bool is_named = !target.empty() && parse_output(target).names_type(scales.dtype());
  return is_named ? source : view_array(source, DType::uint8);
}

// A weight: a matrix of floats named so, or the only array that the argument names. Embeddings are looked up, not
// multiplied, and libraries do not quantise them.
bool is_weight(const NamedInput& input, const ArraySource& source) {
  if (!is_wide_float(source.dtype())) return false;
  const bool is_named = input.name == "weight" || input.name.ends_with(".weight");
  return input.is_word ||
         (source.shape().size() == 2 && is_named && input.name.find("embed") == std::string::npos);
}

// The layer of a weight.
std::string layer_of(const std::string& name) {
  constexpr std::string_view kWeight = ".weight";
  return name.ends_with(kWeight) ? name.substr(0, name.size() - kWeight.size()) : name;
}

void describe_totals(Report& report, const CheckpointParts::Totals& totals) {
  report.add("elements", "elements", totals.elements, Unit::count)
      .add("saturated", "saturated", totals.saturated, Unit::count)
      .add("nans", "NaN", totals.nans, Unit::count)
      .add("snr_db", "signal to noise, dB",
           totals.signal > 0 ? ReportValue(totals.noise > 0 ? 10 * std::log10(totals.signal / totals.noise)
                                                            : std::numeric_limits<double>::infinity())
                             : ReportValue());
}

// The tensors of X by the names of a library.
struct NamedTensors {
  std::vector<Output> outputs;
  std::vector<std::string> inputs;               // the tensor of X of each output
  std::vector<std::string> ignored;              // layers of weights that are copied
  std::vector<std::string> unmatched;            // patterns of --ignore
  std::int64_t quantized = 0, copied = 0;        // tensors of X
  std::int64_t size = 0, read = 0, largest = 0;  // bytes: of all outputs, of X, of the parts of a tensor

  void add(const std::string& input, const std::string& name, Source source) {
    size += byte_count(source->shape(), source->dtype());
    outputs.push_back({name, std::move(source), {}});
    inputs.push_back(input);
  }
};

NamedTensors tensors_of(const QuantizeOptions& options, const QuantizeSettings& how, CheckpointParts& parts,
                        Job& job) {
  NamedTensors all;
  all.unmatched = options.ignored;
  const auto is_ignored = [&](const std::string& name) {
    bool is_one = false;
    for (const std::string& pattern : options.ignored)
      if (matches_wildcards(name, pattern) || matches_wildcards(name, pattern + ".weight")) {
        is_one = true;
        std::erase(all.unmatched, pattern);
      }
    return is_one;
  };
  job.provenance.input("x", options.array);
  for (NamedInput& input : job.inputs.arrays_in(options.array)) {
    Source source = job.inputs.open(input);
    all.read += input.bytes;
    const bool ignored = is_ignored(input.name), weight = is_weight(input, *source);
    if (ignored && weight) all.ignored.push_back(layer_of(input.name));
    if (ignored || !weight) {
      ++all.copied;
      all.add(input.name, input.name, std::move(source));
      continue;
    }
    ++all.quantized;
    const QuantizedTypes types = quantized_types(*source, how);
    all.largest = std::max(all.largest, types.values.bytes() + 3 * types.scales.bytes());
    for (const CheckpointParts::Part& part : parts.add(input.name, std::move(source)))
      all.add(input.name, part.name, part.source);
  }
  if (all.quantized == 0)
    throw Error(Error::Kind::input, printable(options.array) + ": there is no weight to quantise")
        .hint("weights are matrices of floats whose names end in \"weight\"");
  return all;
}

// -o of one file of all tensors.
void declare_file(const NamedTensors& tensors, const std::string& target, Job& job) {
  std::vector<std::string> names;
  for (const Output& output : tensors.outputs) {
    if (const DType dtype = output.source->dtype(); !parse_output(target).names_type(dtype))
      throw usage("-o {}: it has no type for {}, which {} is", printable(target), name_of(dtype),
                  printable(output.name))
          .hint("out.safetensors has all types, and a folder (out/) is a model of such files");
    names.push_back(output.name);
  }
  job.outputs.declare(std::move(names));
}

// All weights of X by the names of a library; other tensors are copied.
Outcome run_named(const QuantizeOptions& options, const QuantizeSettings& how, const SharedOptions& shared,
                  Job& job) {
  CheckpointParts parts(how, *options.names);
  if (!job.outputs.has_target()) throw usage("-o is required with --names").hint(kTargetsOfAll);
  std::optional<ModelFolder> folder;
  if (is_folder_target(shared.output)) {
    if (!shared.field.empty()) throw usage("--field excludes a model's folder, which is written whole");
    folder.emplace(options.array, shared.output, job);
  }
  NamedTensors tensors = job.phase(Phase::read, [&] { return tensors_of(options, how, parts, job); });
  Report report;
  for (const std::string& pattern : tensors.unmatched)
    report.warnings.push_back(fmt::format("--ignore {}: no tensor matches", printable(pattern, 60)));
  std::int64_t others = 0;
  if (folder) {
    for (std::size_t n = 0; n < tensors.outputs.size(); ++n)
      folder->add(tensors.inputs[n], {tensors.outputs[n].name, tensors.outputs[n].source});
    others = job.phase(Phase::read, [&] {
      return folder->add_others(how, *options.names, tensors.ignored, report.warnings);
    });
  } else {
    declare_file(tensors, shared.output, job);
  }
  report.add("scheme", "scheme", std::string(name_of(how.scheme)))
      .add("names", "names of", std::string(name_of(*options.names)))
      .add("quantized", "quantised tensors", tensors.quantized, Unit::count)
      .add("copied", "copied tensors", tensors.copied, Unit::count)
      .add("size", "size", tensors.size, Unit::bytes);
  if (job.plan(report, tensors.largest + others + 4 * kPieceBytes)) return Outcome::passed;
  job.inputs.count_read(tensors.read);
  if (folder) {
    if (job.comm.is_first())
      job.phase(Phase::write, [&] { folder->write(shared.sync ? Sync::now : Sync::later); });
    describe_totals(report, parts.totals());
    job.deliver(std::move(report), {});
  } else {
    job.deliver(std::move(report), tensors.outputs,
                [&](Report& complete) { describe_totals(complete, parts.totals()); });
  }
  return Outcome::passed;
}

Outcome run(const QuantizeOptions& options, const SharedOptions& shared, Job& job) {
  QuantizeSettings how = options.how;
  how.scheme = *options.scheme;
  if (options.names) return run_named(options, how, shared, job);
  job.outputs.declare({"values", "scales", "global_scale"});
  Source x = job.open("x", options.array);
  const QuantizedTypes types = quantized_types(*x, how);
  Report planned;
  planned.add("scheme", "scheme", std::string(name_of(how.scheme)))
      .add("values", "values", types.values.shape)
      .add("values_dtype", "their dtype", std::string(name_of(types.values.dtype)))
      .add("scales", "scales", types.scales.shape)
      .add("scales_dtype", "their dtype", std::string(name_of(types.scales.dtype)))
      .add("size", "size",
           types.values.bytes() + types.scales.bytes() + (how.scheme == QuantizationScheme::nvfp4 ? 4 : 0),
           Unit::bytes);
  const std::int64_t resident = types.values.bytes() + 3 * types.scales.bytes();
  if (job.plan(planned, resident + piece_buffers(2, type_of(*x).bytes()))) return Outcome::passed;
  const Quantized made = job.phase(Phase::compute, [&] { return quantize_array(*x, how, job.progress()); });
  std::vector<Output> outputs{{"values", make_source(made.values.view(), "values"), {}},
                              {"scales", stored(made.scales, shared.output), {}}};
  const Array global = Array::from<float>({}, std::vector<float>{made.global_scale.value_or(1)});
  if (made.global_scale)
    outputs.push_back({"global_scale", make_source(global.view(), "global_scale"), {}});
  else
    outputs.push_back({"global_scale", nullptr, "only nvfp4 has one"});
  job.deliver(describe(made), outputs);
  return Outcome::passed;
}

Run declare_quantize(OptionSet& set) {
  const auto options = std::make_shared<QuantizeOptions>();
  set.name_outputs_later();
  add_reference(
      set, "X", options->array,
      "numbers of any type, converted to float32\nBlocks follow one another along the last axis; the last "
      "one may be partial. With --names also a file or model of several tensors.")
      .required();
  using enum QuantizationScheme;
  add_choice(
      set, "--scheme", options->scheme, named_choices<std::optional<QuantizationScheme>>({fp8, mx, nvfp4}),
      "NAME",
      "\nfp8: 8-bit floats, one float32 scale or those of --block. mx: blocks of 32 with E8M0 scales. nvfp4: "
      "e2m1 in blocks of 16 with e4m3 scales, and one global scale.")
      .required()
      .recorded();
  add_choice(
      set, "--element", options->how.element, named_choices<std::optional<ElementFormat>>(kElementFormats),
      "E",
      "format of elements, e4m3 by default; e2m1 of nvfp4\nCodes of 6 and 4 bits are packed in uint8: four in "
      "three bytes, two in one, the first in the lowest bits.")
      .recorded();
  add_word(
      set, "--block", options->how.block,
      [](const std::string& word) -> std::optional<ScaleBlock> {
        const Shape lengths = read_lengths(word, 2, 2, "RxC");
        return ScaleBlock{lengths[0], lengths[1]};
      },
      "RxC", "rows and columns that share a scale, of fp8; by default all")
      .recorded();
  add_choice(
      set, "--scale-rule", options->how.rule,
      named_choices<std::optional<ScaleRule>>(
          {ScaleRule::floor, ScaleRule::ceil, ScaleRule::rceil, ScaleRule::even}),
      "RULE",
      "scales that are powers of two, rceil by default\nOf a block's largest magnitude amax. floor: "
      "floor(log2 amax) - emax, OCP MX, which saturates elements. ceil: the same rounded up. rceil: "
      "ceil(log2(amax / largest element)), cuBLAS. even: floor of amax rounded to an element's mantissa, "
      "torchao.")
      .recorded();
  add_choice(
      set, "--rounding", options->how.rounding,
      named_choices<ElementRounding>({ElementRounding::even, ElementRounding::away, ElementRounding::down}),
      "TIES", "numbers halfway between two elements\nTo the even code, away from 0, towards 0.")
      .recorded();
  add_choice(set, "--scale-layout", options->how.layout, named_choices<ScaleLayout>(kScaleLayouts), "LAYOUT",
             "how scales are stored\n128x4: padded tiles of cuBLAS. deepgemm: int32 of four E8M0 codes.")
      .recorded();
  add_word(
      set, "--global", options->how.global,
      [](const std::string& word) { return std::optional<float>(static_cast<float>(read_finite(word))); },
      "G", "the global scale of nvfp4, which multiplies; by default amax / (448 * 6)")
      .recorded("", [options]() -> ReportValue {
        return options->how.global ? ReportValue(static_cast<double>(*options->how.global)) : ReportValue();
      });
  add_flag(set, "--scale-pow2", options->how.power_of_two,
           "scales of fp8 are powers of two, as DeepSeek's ue8m0")
      .recorded();
  add_choice(
      set, "--names", options->names,
      named_choices<std::optional<TensorNames>>(
          {TensorNames::modelopt, TensorNames::compressed_tensors, TensorNames::deepseek}),
      "LIBRARY",
      "arrays are named as a library's checkpoints have them\nQuantises each weight of X, a matrix of "
      "floats whose name ends in \"weight\" (embeddings excepted), and copies other tensors, one tensor in memory at a "
      "time. To -o OUT/, a new folder, a model's files one by one, with their index, the config, to which "
      "quantization_config is added, and the files beside it. "
      "modelopt: weight_scale and weight_scale_2, of nvfp4, fp8 and mx of e4m3. compressed-tensors: "
      "weight_packed and weight_global_scale, which divides, of nvfp4 and mx; fp8. deepseek: "
      "weight_scale_inv, of fp8 in blocks. Of nvfp4, gate_proj and up_proj (w1 and w3) have one global scale, and "
      "q_proj, k_proj and v_proj. 'ejk check checkpoint' and 'ejk compare --decode' read them.")
      .recorded();
  take_words(
      set, "--ignore", [options](const std::string& word) { options->ignored.push_back(word); }, "GLOB",
      "tensors that are copied, by name, with * for any text\nMay be given several times: "
      "--ignore lm_head --ignore '*.mlp.gate'.")
      .needs("--names");
  set_footer(set, "'ejk convert \"mx(out.npz:values, out.npz:scales)\"' decodes them\n('ejk help arrays').");
  return [options, &set](Job& job) { return run(*options, set.shared(), job); };
}

}  // namespace

extern const Command quantize_command{
    .name = "quantize",
    .group = "Arrays",
    .summary = "low-precision values with scales of blocks: fp8, mx, nvfp4",
    .example = "ejk quantize weights.npy --scheme nvfp4 -o out.npz",
    .outputs = {{"values", "the shape of X, packed along the last axis",
                 "codes: 8-bit floats, or packed uint8"},
                {"scales", "(..., ceil(n / block))", "E8M0 codes (mx), float8_e4m3fn (nvfp4), float32 (fp8)"},
                {"global_scale", "() float32", "multiplies all; nvfp4 alone"}},
    .use = R"(codes = np.load("out.npz")["values"]  # the even element in the low half)",
    .keys = R"(
scheme | string | the scheme
names | string | the library whose names arrays have | with --names
quantized, copied | integer | tensors that are quantised, and others | with --names
element | string | the format of elements | without --names, done
block | string | rows and columns that share a scale | without --names, done
scale_rule, rounding, scale_layout | string | the rules in force and whose they are | without --names, done
values, scales | shape | the shapes of both arrays | without --names
values_dtype, scales_dtype | string | their element types | without --names
size_bytes | integer | bytes of all arrays
global_scale | number | multiplies all numbers | of nvfp4 without --names, done
elements | integer | elements, of all quantised tensors | done
blocks | integer | scales | without --names, done
saturated | integer | elements above the largest one, infinities too | done
flushed | integer | elements that became 0 and were not | without --names, done
nans | integer | elements that are NaN | done
lost | integer | finite elements that become NaN, as their scale is NaN (mx) | without --names, done
zero_blocks | integer | blocks whose elements are all 0 (fp8: or not finite) | without --names, done
codes_used, codes | integer | different codes that occur, of how many | without --names, done
snr_db | number or null | 10 log10 of the sum of squares over that of errors; null of zeros, without an error and with an infinite one | done
largest_error | number or null | the largest error of a finite element; null if it is infinite | without --names, done
largest_error_index | shape or null | where it is | without --names, done
)",
    .declare = declare_quantize,
};

}  // namespace ejk::app
