// Quantised tensors, found by names: a table of the suffixes that writers of checkpoints give to values,
// scales and global scales. Types and shapes then tell the scheme, and how the tensor is decoded.
// tests: tests/check/test_checkpoint.cpp
#include <fmt/format.h>

#include <array>

#include "core/checked.hpp"
#include "core/elements.hpp"
#include "core/require.hpp"
#include "ejk/program/checkpoint.hpp"
#include "ejk/program/text.hpp"
#include "quantize/fp8_scales.hpp"

namespace ejk {

namespace {

// Suffixes of the parts of one tensor. A tensor has the first of `scales` that there is.
struct NameRow {
  std::string_view values;
  std::array<std::string_view, 3> scales;
  std::string_view global, input;
};
constexpr NameRow kNames[] = {
    {"weight_packed", {"weight_scale"}, "weight_global_scale", "input_global_scale"},
    {"weight", {"weight_scale", "weight_scale_inv", "scale"}, "weight_scale_2", "input_scale"},
    {"_blocks", {"_scales"}, {}, {}},
    {"", {"_scale", "_scale_inv", ".scale"}, "_scale_2", "_input_scale"},
};

// Schemes that are not checked: the suffix of the values, and of those parts that other schemes lack; `needed` and
// one of the scales are beside the values.
struct UncheckedRow {
  CheckpointScheme scheme;
  std::string_view values, needed;
  std::array<std::string_view, 2> scales;
  std::array<std::string_view, 6> others = {};
};
constexpr UncheckedRow kUnchecked[] = {
    {CheckpointScheme::gptq, "qweight", "qzeros", {"scales"}, {"qzeros", "g_idx"}},
    {CheckpointScheme::packed_int,
     "weight_packed",
     "weight_shape",
     {"weight_scale"},
     {"weight_shape", "weight_zero_point", "weight_g_idx"}},
    {CheckpointScheme::bitsandbytes,
     "weight",
     "weight.absmax",
     {"weight.nested_absmax", "weight.absmax"},
     {"weight.absmax", "weight.quant_map", "weight.nested_quant_map", "weight.quant_state.bitsandbytes__nf4",
      "weight.quant_state.bitsandbytes__fp4"}},
    {CheckpointScheme::bitsandbytes, "weight", "SCB", {"SCB"}, {"weight_format"}},
};

class Finder {
 public:
  explicit Finder(const Tensors& tensors) : tensors_(tensors) {}

  std::optional<QuantizedTensor> of(const std::string& name, const ArraySource& values) const {
    if (auto found = unchecked(name, values)) return found;
    for (const NameRow& row : kNames) {
      if (!name.ends_with(row.values)) continue;
      const std::string stem = name.substr(0, name.size() - row.values.size());
      if (!holds_values(row, values.dtype()) || (row.values.empty() && is_scale_name(name))) continue;
      QuantizedTensor found;
      found.name = stem.ends_with('.') ? stem.substr(0, stem.size() - 1) : stem;
      found.values = name;
      for (const std::string_view suffix : row.scales)
        if (found.scales.empty() && !suffix.empty()) found.scales = existing(stem, suffix);
      found.global_scale = existing(stem, row.global);
      found.input_scale = existing(stem, row.input);
      found.global_divides = quantize::global_use(found.global_scale) == GlobalScale::divides;
      found.scheme = scheme_of(row, values, found.scales);
      found.element = element_of(found.scheme, values.dtype());
      found.unquantized_name = stem + (row.values.starts_with("weight") ? "weight" : "");
      return found;
    }
    return std::nullopt;
  }

 private:
  std::optional<QuantizedTensor> unchecked(const std::string& name, const ArraySource& values) const {
    if (!is_integer(values.dtype())) return std::nullopt;
    for (const UncheckedRow& row : kUnchecked) {
      if (!name.ends_with(row.values)) continue;
      const std::string stem = name.substr(0, name.size() - row.values.size());
      if (existing(stem, row.needed).empty()) continue;
      QuantizedTensor found;
      found.scheme = row.scheme;
      found.name = stem.ends_with('.') ? stem.substr(0, stem.size() - 1) : stem;
      found.values = name;
      for (const std::string_view suffix : row.scales)
        if (found.scales.empty()) found.scales = existing(stem, suffix);
      for (const std::string_view suffix : row.others)
        if (std::string part = existing(stem, suffix); !part.empty() && part != found.scales)
          found.others.push_back(std::move(part));
      found.unquantized_name = stem + "weight";
      if (found.scheme == CheckpointScheme::gptq && is_packed_along_columns(found, values))
        found.scheme = CheckpointScheme::awq;
      return found;
    }
    return std::nullopt;
  }

  // Scales are (groups, columns): AWQ packs several columns in an element, GPTQ several rows.
  bool is_packed_along_columns(const QuantizedTensor& q, const ArraySource& values) const {
    if (q.scales.empty() || values.shape().size() != 2) return false;
    const Shape& scales = tensors_.at(q.scales)->shape();
    return scales.size() == 2 && scales[1] > values.shape()[1];
  }

  static bool holds_values(const NameRow& row, DType dtype) {
    if (row.values == "weight_packed") return true;
    if (row.values == "_blocks") return dtype == DType::uint8;
    if (row.values.empty()) return is_signed_8_bit_float(dtype);
    return is_signed_8_bit_float(dtype) || dtype == DType::int8 || dtype == DType::uint8;
  }

  std::string existing(const std::string& stem, std::string_view suffix) const {
    std::string name = suffix.empty() ? "" : stem + std::string(suffix);
    return tensors_.contains(name) ? name : "";
  }

  CheckpointScheme scheme_of(const NameRow& row, const ArraySource& values, const std::string& name) const {
    using enum CheckpointScheme;
    const ArraySource* scales = name.empty() ? nullptr : tensors_.at(name).get();
    const bool is_e8m0 =
        scales != nullptr && (scales->dtype() == DType::uint8 || scales->dtype() == DType::float8_e8m0fnu);
    const bool of_32 = is_e8m0 && !scales->shape().empty() && !values.shape().empty() &&
                       scales->shape().back() > 0 &&
                       scales->shape().back() == core::ceil_div(values.shape().back(), 32);
    if (row.values == "_blocks") return gptoss;
    if (is_signed_8_bit_float(values.dtype())) {
      if (is_e8m0) return of_32 ? mxfp8 : fp8_blocks;
      const bool is_blocks =
          quantize::is_usual_block_name(name) || (scales != nullptr && is_grid(*scales, values));
      return is_blocks ? fp8_blocks : fp8;
    }
    if (values.dtype() == DType::int8) return int8;
    if (values.dtype() == DType::int32 && scales != nullptr) return packed_int;
    if (values.dtype() != DType::uint8 || scales == nullptr) return other;
    if (!is_e8m0) return nvfp4;
    const std::int64_t bytes = values.shape().empty() ? 0 : values.shape().back();
    const std::int64_t blocks = scales->shape().empty() ? 0 : scales->shape().back();
    const std::int64_t of_6_bits = core::ceil_div(bytes, 24), of_4_bits = core::ceil_div(bytes, 16);
    return bytes % 3 == 0 && blocks == of_6_bits && blocks != of_4_bits ? mxfp6 : mxfp4;
  }

  static std::optional<ElementFormat> element_of(CheckpointScheme scheme, DType dtype) {
    using enum CheckpointScheme;
    if (!is_checked(scheme)) return std::nullopt;
    if (scheme == mxfp6) return ElementFormat::e2m3;
    if (!is_signed_8_bit_float(dtype)) return ElementFormat::e2m1;
    return float_format(dtype).mantissa_bits == 2 ? ElementFormat::e5m2 : ElementFormat::e4m3;
  }

  // A scale for each of several rows and columns.
  static bool is_grid(const ArraySource& scales, const ArraySource& values) {
    const Shape &s = scales.shape(), &v = values.shape();
    return s.size() == v.size() && s.size() >= 2 && s[s.size() - 1] > 1 && s[s.size() - 2] > 1;
  }

  const Tensors& tensors_;
};

// --- decoding

std::shared_ptr<const ArraySource> reshaped(const ArraySource& source, Shape shape) {
  return make_source(read_all(source).reshaped(std::move(shape)), source.name());
}

// The product of a tensor of a few lengths.
std::optional<std::int64_t> product_of(const ArraySource& lengths) {
  constexpr std::int64_t kMostAxes = 8;
  if (!is_integer(lengths.dtype()) || element_count(lengths.shape()) > kMostAxes) return std::nullopt;
  const Array read = read_all(lengths);
  std::vector<double> numbers(static_cast<std::size_t>(read.size()));
  core::load(read.dtype(), read.data(), size_of(read.dtype()), read.size(), numbers.data());
  std::optional<std::int64_t> product = 1;
  for (const double length : numbers) {
    if (!(length >= 0 && length < 0x1p53)) return std::nullopt;
    if (product) product = core::checked_mul(*product, static_cast<std::int64_t>(length));
  }
  return product;
}

std::shared_ptr<const ArraySource> transposed(std::shared_ptr<const ArraySource> source) {
  ArrayType type = type_of(*source);
  const std::size_t last = type.shape.size() - 1;
  std::swap(type.shape[last - 1], type.shape[last]);
  std::string name = source->name();
  return generated_source(std::move(type), std::move(name),
                          [source = std::move(source), last](std::span<const std::int64_t> start,
                                                             std::span<const std::int64_t> count, void* out) {
                            Shape from(start.begin(), start.end()), some(count.begin(), count.end());
                            std::swap(from[last - 1], from[last]), std::swap(some[last - 1], some[last]);
                            Array sample(source->dtype(), some);
                            source->read(from, some, sample.data());
                            ArrayView view = sample.view();
                            std::swap(view.shape[last - 1], view.shape[last]);
                            std::swap(view.strides[last - 1], view.strides[last]);
                            copy_elements(view, out);
                          });
}

}  // namespace

std::string_view name_of(CheckpointScheme scheme) {
  constexpr std::string_view kSchemes[] = {"fp8",   "fp8-blocks",   "mxfp8", "nvfp4",          "mxfp4",
                                           "mxfp6", "gptoss",       "int8",  "pack-quantized", "gptq",
                                           "awq",   "bitsandbytes", "other"};
  return kSchemes[static_cast<std::size_t>(scheme)];
}

bool is_scale_name(std::string_view name) {
  for (const std::string_view suffix : {"scale", "scales", "scale_inv", "scale_2"})
    if (name.ends_with(suffix)) return true;
  return false;
}

std::vector<QuantizedTensor> quantized_tensors(const Tensors& tensors) {
  std::vector<QuantizedTensor> all;
  const Finder finder(tensors);
  for (const auto& [name, values] : tensors)
    if (auto found = finder.of(name, *values)) all.push_back(std::move(*found));
  return all;
}

std::optional<std::int64_t> parameter_count(const QuantizedTensor& tensor, const Tensors& tensors) {
  using enum CheckpointScheme;
  const ArraySource& values = *tensors.at(tensor.values);
  const std::int64_t elements = element_count(values.shape());
  const auto shape_of = [&](std::string_view suffix) -> const Shape* {
    for (const std::string& part : tensor.others)
      if (part.ends_with(suffix)) return &tensors.at(part)->shape();
    return nullptr;
  };
  const Shape* const scales = tensor.scales.empty() ? nullptr : &tensors.at(tensor.scales)->shape();
  const bool are_matrices = scales != nullptr && scales->size() == 2 && values.shape().size() == 2;
  switch (tensor.scheme) {
    case fp8:
    case fp8_blocks:
    case mxfp8:
    case int8:
      return elements;
    case nvfp4:
    case mxfp4:
    case gptoss:
      return 2 * elements;
    case mxfp6:
      return elements / 3 * 4;
    case packed_int:
      for (const std::string& part : tensor.others)
        if (part.ends_with("weight_shape")) return product_of(*tensors.at(part));
      return std::nullopt;
    case gptq:
      // qzeros are (groups, columns * bits / 32), values (rows * bits / 32, columns).
      if (const Shape* zeros = shape_of("qzeros");
          are_matrices && zeros != nullptr && zeros->size() == 2 && (*zeros)[1] > 0)
        if ((*scales)[1] == values.shape()[1])
          return core::checked_mul(elements, values.shape()[1] / (*zeros)[1]);
      return std::nullopt;
    case awq:
      return are_matrices ? core::checked_mul(values.shape()[0], (*scales)[1]) : std::nullopt;
    case bitsandbytes:
      if (values.dtype() == DType::int8) return elements;
      if (shape_of("__nf4") != nullptr || shape_of("__fp4") != nullptr) return 2 * elements;
      return std::nullopt;
    case other:
      break;
  }
  return std::nullopt;
}

std::shared_ptr<const ArraySource> decoded_tensor(const QuantizedTensor& tensor, const Tensors& tensors,
                                                  std::optional<ScaleBlock> block, DecodedAs* taken) {
  using enum CheckpointScheme;
  const std::string name = printable(tensors.at(tensor.values)->name());
  if (!tensor.element) throw core::invalid("{}: it is quantised in a way that is not known", name);
  if (tensor.scales.empty())
    throw core::invalid("{}: no scales are beside it", name)
        .hint("ejk check checkpoint names the tensors that lack a part");
  QuantizedArrays arrays{QuantizationScheme::mx, tensors.at(tensor.values), tensors.at(tensor.scales)};
  const Shape& values = arrays.values->shape();
  DecodeSettings settings;
  if (arrays.values->dtype() == DType::uint8) settings.element = tensor.element;
  switch (tensor.scheme) {
    case fp8:
      arrays.scheme = QuantizationScheme::fp8;
      if (!quantize::block_of_scales(values, arrays.scales->shape(), {.guess = false}))
        throw quantize::refused_scales(*arrays.scales, values);
      break;
    case fp8_blocks:
      arrays.scheme = QuantizationScheme::fp8;
      settings.block = block.value_or(quantize::kUsualBlock);
      break;
    case nvfp4: {
      arrays.scheme = QuantizationScheme::nvfp4;
      if (tensor.global_scale.empty())
        throw core::invalid("{}: no global scale is beside it", name)
            .hint("ejk check checkpoint names the tensors that lack a part");
      arrays.global_scale = tensors.at(tensor.global_scale);
      if (const std::int64_t n = element_count(arrays.global_scale->shape()); n > 1)
        arrays.global_scale = reshaped(*arrays.global_scale, {n});
      settings.global = tensor.global_divides ? GlobalScale::divides : GlobalScale::multiplies;
      break;
    }
    case gptoss:
      arrays.scheme = QuantizationScheme::gptoss;
      return transposed(decoded_array(arrays, settings, tensor.name, taken));
    case mxfp4:
    case mxfp6:
    case mxfp8:
    default:
      break;
  }
  return decoded_array(arrays, settings, tensor.name, taken);
}

}  // namespace ejk
