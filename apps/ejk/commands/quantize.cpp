// ejk quantize: low-precision values with scales of blocks, as a library that writes them would.
//
// tests: tests/cli/quantize/
#include "ejk/quantize.hpp"

#include <cmath>
#include <optional>

#include "commands.hpp"
#include "computed_reference.hpp"
#include "ejk/array_math.hpp"
#include "job.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

using Source = std::shared_ptr<const ArraySource>;

struct QuantizeOptions {
  std::string array;
  std::optional<QuantizationScheme> scheme;
  QuantizeSettings how;
};

// E8M0 codes as uint8 where the container does not name their type.
Source stored(const Array& scales, const std::string& target) {
  Source source = make_source(scales.view(), "scales");
  if (scales.dtype() != DType::float8_e8m0fnu) return source;
  const bool is_named = !target.empty() && parse_output(target).names_type(scales.dtype());
  return is_named ? source : view_array(source, DType::uint8);
}

Outcome run(const QuantizeOptions& options, const std::string& target, Job& job) {
  QuantizeSettings how = options.how;
  how.scheme = *options.scheme;
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
  const std::int64_t held = types.values.bytes() + 3 * types.scales.bytes();
  if (job.plan(planned, held + piece_buffers(2, type_of(*x).bytes()))) return Outcome::passed;
  const Quantized made = job.phase(Phase::compute, [&] { return quantize_array(*x, how, job.progress()); });
  std::vector<Output> outputs{{"values", make_source(made.values.view(), "values"), {}},
                              {"scales", stored(made.scales, target), {}}};
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
  add_reference(
      set, "X", options->array,
      "numbers of any type, converted to float32\nBlocks follow one another along the last axis; the last "
      "one may be partial.")
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
  set_footer(set, "'ejk convert \"mx(out.npz:values, out.npz:scales)\"' decodes them\n('ejk help arrays').");
  return [options, &set](Job& job) { return run(*options, set.shared().output, job); };
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
element | string | the format of elements | done
block | string | rows and columns that share a scale | done
scale_rule, rounding, scale_layout | string | the rules in force and whose they are | done
values, scales | shape | the shapes of both arrays
values_dtype, scales_dtype | string | their element types
size_bytes | integer | bytes of all arrays
global_scale | number | multiplies all numbers | of nvfp4, done
elements, blocks | integer | elements, and scales | done
saturated | integer | elements above the largest one, infinities too | done
flushed | integer | elements that became 0 and were not | done
nans | integer | elements that are NaN | done
lost | integer | finite elements that become NaN, as their scale is NaN (mx) | done
zero_blocks | integer | blocks whose elements are all 0 (fp8: or not finite) | done
codes_used, codes | integer | different codes that occur, of how many | done
snr_db | number or null | 10 log10 of the sum of squares over that of errors; null of zeros, without an error and with an infinite one | done
largest_error | number or null | the largest error of a finite element; null if it is infinite | done
largest_error_index | shape or null | where it is | done
)",
    .declare = declare_quantize,
};

}  // namespace ejk::app
