// Quantised tensors as checkpoints have them: a table of the names that a library gives to values, scales and the
// global scale. A tensor is encoded when its first part is read, and kept until one of another tensor is: the
// parts of many tensors take the memory of one. A file that orders parts by type encodes each tensor once a part.
// tests: tests/quantize/test_checkpoint_parts.cpp
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "core/require.hpp"
#include "ejk/quantize.hpp"
#include "quantize/encode.hpp"
#include "quantize/fp8_scales.hpp"

namespace ejk {

namespace {

using enum TensorNames;

struct PartNames {
  TensorNames names;
  QuantizationScheme scheme;
  ElementFormat element;
  bool has_blocks;  // of rows and columns
  std::string_view values, scales, global = {};
};
constexpr PartNames kParts[] = {
    {modelopt, QuantizationScheme::nvfp4, ElementFormat::e2m1, false, "weight", "weight_scale",
     "weight_scale_2"},
    {modelopt, QuantizationScheme::fp8, ElementFormat::e4m3, false, "weight", "weight_scale"},
    {modelopt, QuantizationScheme::mx, ElementFormat::e4m3, false, "weight", "weight_scale"},
    {compressed_tensors, QuantizationScheme::nvfp4, ElementFormat::e2m1, false, "weight_packed",
     "weight_scale", "weight_global_scale"},
    {compressed_tensors, QuantizationScheme::mx, ElementFormat::e2m1, false, "weight_packed", "weight_scale"},
    {compressed_tensors, QuantizationScheme::mx, ElementFormat::e4m3, false, "weight", "weight_scale"},
    {compressed_tensors, QuantizationScheme::fp8, ElementFormat::e4m3, false, "weight", "weight_scale"},
    {deepseek, QuantizationScheme::fp8, ElementFormat::e4m3, true, "weight", "weight_scale_inv"},
};

const PartNames& row_of(const QuantizeSettings& s, TensorNames names) {
  std::string others;
  for (const PartNames& row : kParts) {
    if (row.scheme != s.scheme || row.element != quantize::element_of(s) ||
        row.has_blocks != s.block.has_value())
      continue;
    if (row.names == names) return row;
    others += fmt::format("{}{}", others.empty() ? "" : " or ", name_of(row.names));
  }
  Error error =
      core::usage("{} has no names for {} of {}{}", name_of(names), name_of(s.scheme),
                  name_of(quantize::element_of(s)), s.block ? " in blocks of " + to_string(*s.block) : "");
  if (!others.empty()) error.hint(fmt::format("{} has", others));
  throw error;
}

// Projections that one kernel multiplies at once, with one global scale, have the same layer.
std::string fused_layer(const std::string& stem) {
  constexpr std::pair<std::string_view, std::string_view> kFused[] = {
      {"gate_proj.", "gate_up."}, {"up_proj.", "gate_up."}, {"w1.", "w13."},    {"w3.", "w13."},
      {"q_proj.", "qkv."},        {"k_proj.", "qkv."},      {"v_proj.", "qkv."}};
  for (const auto& [part, layer] : kFused)
    if (stem == part || stem.ends_with(fmt::format(".{}", part)))
      return stem.substr(0, stem.size() - part.size()) + std::string(layer);
  return stem;
}

}  // namespace

std::string_view name_of(TensorNames names) {
  constexpr std::string_view kNames[] = {"modelopt", "compressed-tensors", "deepseek"};
  return kNames[static_cast<std::size_t>(names)];
}

struct CheckpointParts::State {
  QuantizeSettings settings;
  std::vector<std::shared_ptr<const ArraySource>> tensors;
  std::vector<char> is_counted;
  std::vector<std::string> fused;  // of each tensor, the layer that a kernel multiplies at once
  struct Fused {
    std::vector<std::size_t> tensors;
    std::optional<float> global;
  };
  std::map<std::string, Fused> layers;
  std::mutex mutex;
  std::size_t last = SIZE_MAX;  // the tensor that `made` is
  Quantized made;
  Totals totals;

  // The global scale of nvfp4 of a layer of several tensors: the largest of theirs, which is of all elements.
  std::optional<float> global_of(std::size_t tensor) {
    if (settings.scheme != QuantizationScheme::nvfp4 || settings.global) return settings.global;
    Fused& layer = layers.at(fused[tensor]);
    if (layer.tensors.size() == 1 || layer.global) return layer.global;
    float largest = 0;
    for (const std::size_t one : layer.tensors) {
      made = quantize_array(*tensors[one], settings, {}, std::move(made));
      largest = std::max(largest, *made.global_scale);
    }
    return layer.global = largest;
  }

  const Quantized& encoded(std::size_t tensor) {
    if (last == tensor) return made;
    last = SIZE_MAX;
    QuantizeSettings tensor_settings = settings;
    tensor_settings.global = global_of(tensor);
    made = quantize_array(*tensors[tensor], tensor_settings, {}, std::move(made));
    last = tensor;
    if (std::exchange(is_counted[tensor], 1) == 0) {
      totals.elements += made.elements, totals.saturated += made.saturated, totals.nans += made.nans;
      totals.signal += made.signal, totals.noise += made.noise;
    }
    return made;
  }
};

CheckpointParts::CheckpointParts(const QuantizeSettings& settings, TensorNames names)
    : names_(names), state_(std::make_shared<State>()) {
  if (settings.layout != ScaleLayout::linear)
    throw core::usage("checkpoints have linear scales, not layout {}", name_of(settings.layout));
  (void)row_of(settings, names);
  state_->settings = settings;
}

const CheckpointParts::Totals& CheckpointParts::totals() const { return state_->totals; }

std::vector<CheckpointParts::Part> CheckpointParts::add(const std::string& name,
                                                        std::shared_ptr<const ArraySource> x) {
  const PartNames& row = row_of(state_->settings, names_);
  constexpr std::string_view kWeight = "weight";
  const std::string stem = name == kWeight || name.ends_with(".weight")
                               ? name.substr(0, name.size() - kWeight.size())
                               : name + ".";
  const QuantizedTypes types = quantized_types(*x, state_->settings);
  const std::size_t tensor = state_->tensors.size();
  state_->tensors.push_back(std::move(x));
  state_->is_counted.push_back(0);
  state_->fused.push_back(fused_layer(stem));
  state_->layers[state_->fused.back()].tensors.push_back(tensor);
  std::vector<Part> parts;
  const auto add_part = [&](std::string_view suffix, ArrayType type, auto part_of) {
    const std::string part = stem + std::string(suffix);
    const auto fill = [state = state_, tensor, part_of](std::span<const std::int64_t> start,
                                                        std::span<const std::int64_t> count, void* out) {
      const std::lock_guard lock(state->mutex);
      copy_elements(box_of(part_of(state->encoded(tensor)), start, count), out);
    };
    parts.push_back(
        {part, generated_source(std::move(type), part, fill, ArrayAccess(ArrayAccess::Order::sequential))});
  };
  add_part(row.values, types.values, [](const Quantized& made) { return made.values.view(); });
  // Libraries store E8M0 codes as uint8.
  const bool is_e8m0 = types.scales.dtype == DType::float8_e8m0fnu;
  const DType scales = is_e8m0 ? DType::uint8 : types.scales.dtype;
  add_part(row.scales, {scales, types.scales.shape}, [scales](const Quantized& made) {
    ArrayView view = made.scales.view();
    view.dtype = scales;
    return view;
  });
  if (row.global.empty()) return parts;
  const auto global = std::make_shared<float>();
  const bool divides = quantize::global_use(row.global) == GlobalScale::divides;
  add_part(row.global, {DType::float32, divides ? Shape{1} : Shape{}},
           [divides, global](const Quantized& made) {
             *global = divides ? 1 / *made.global_scale : *made.global_scale;
             return view_of(global.get(), divides ? Shape{1} : Shape{});
           });
  return parts;
}

}  // namespace ejk
