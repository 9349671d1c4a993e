// Report on an encoding: the settings that applied with their sources, counts, errors.
// tests: tests/cli/quantize/quantize.case
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "ejk/quantize.hpp"
#include "quantize/elements.hpp"

namespace ejk {

namespace {

// How scales follow from amax, and who has this rule.
std::string scale_rule_text(const QuantizeSettings& s) {
  if (s.rule) {
    constexpr std::string_view kWhose[] = {"OCP MX 1.0, microxcaling, torchao's default", "torchao",
                                           "cuBLAS, TransformerEngine, vLLM, ModelOpt, DeepGEMM",
                                           "torchao, Quark"};
    return fmt::format("{} ({})", name_of(*s.rule), kWhose[static_cast<std::size_t>(*s.rule)]);
  }
  return s.scheme == QuantizationScheme::nvfp4 ? "amax / 6 as e4m3, of numbers / global (ModelOpt, torchao)"
                                               : "amax / largest element (TransformerEngine, vLLM)";
}

std::string rounding_text(ElementRounding rounding) {
  constexpr std::string_view kWhose[] = {"CUDA, torch, torchao", "microxcaling's default",
                                         "ties of DeepGEMM"};
  return fmt::format("{} ({})", name_of(rounding), kWhose[static_cast<std::size_t>(rounding)]);
}

std::string block_text(const QuantizeSettings& s) {
  if (s.scheme == QuantizationScheme::fp8) return s.block ? to_string(*s.block) : "all elements";
  return fmt::format("1x{}", s.scheme == QuantizationScheme::mx ? quantize::kMxBlock : quantize::kNvfp4Block);
}

}  // namespace

Report describe(const Quantized& quantized) {
  const QuantizeSettings& s = quantized.settings;
  const quantize::ElementRow& row = quantize::row_of(*s.element);
  Report report;
  report.add("scheme", "scheme", std::string(name_of(s.scheme)))
      .add("element", "elements", std::string(row.name))
      .add("block", "of a scale", block_text(s))
      .add("scale_rule", "scales", scale_rule_text(s))
      .add("rounding", "ties", rounding_text(s.rounding))
      .add("scale_layout", "layout of scales", std::string(name_of(s.layout)))
      .add("values", "values", quantized.values.shape())
      .add("values_dtype", "their dtype", std::string(name_of(quantized.values.dtype())))
      .add("scales", "scales", quantized.scales.shape())
      .add("scales_dtype", "their dtype", std::string(name_of(quantized.scales.dtype())))
      .add("size", "size",
           quantized.values.bytes() + quantized.scales.bytes() + (quantized.global_scale ? 4 : 0),
           Unit::bytes);
  if (quantized.global_scale)
    report.add("global_scale", "global scale", static_cast<double>(*quantized.global_scale));
  report.add("elements", "elements", quantized.elements, Unit::count)
      .add("saturated", "saturated", quantized.saturated, Unit::count)
      .add("flushed", "flushed to 0", quantized.flushed, Unit::count)
      .add("nans", "NaN", quantized.nans, Unit::count)
      .add("lost", "lost to NaN scales", quantized.lost, Unit::count)
      .add("blocks", "blocks", quantized.blocks, Unit::count)
      .add("zero_blocks", "blocks of zeros", quantized.zero_blocks, Unit::count)
      .add("codes_used", "codes used", quantized.codes_used, Unit::count)
      .add("codes", "of", std::int64_t{1} << row.format->bits(), Unit::count)
      .add("snr_db", "signal to noise, dB",
           quantized.signal > 0
               ? ReportValue(quantized.noise > 0 ? 10 * std::log10(quantized.signal / quantized.noise)
                                                 : std::numeric_limits<double>::infinity())
               : ReportValue())
      .add("largest_error", "largest error", quantized.largest_error)
      .add(
          "largest_error_index", "at",
          quantized.largest_error_index.empty() ? ReportValue() : ReportValue(quantized.largest_error_index));
  return report;
}

}  // namespace ejk
