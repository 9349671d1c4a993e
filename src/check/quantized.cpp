// Quantised tensors, found by names: a table of the suffixes that writers of checkpoints give to values,
// scales and global scales. Types and shapes then tell the scheme.
// tests: tests/check/test_checkpoint.cpp
#include <array>

#include "ejk/checkpoint.hpp"

namespace ejk {

namespace {

// Suffixes of the parts of one tensor. A tensor has the first of `scales` that there is.
struct NameRow {
  std::string_view values;
  std::array<std::string_view, 3> scales;
  std::string_view global, input;
  bool global_divides = false;
};
constexpr NameRow kNames[] = {
    {"weight_packed", {"weight_scale"}, "weight_global_scale", "input_global_scale", true},
    {"weight", {"weight_scale", "weight_scale_inv", "scale"}, "weight_scale_2", "input_scale"},
    {"_blocks", {"_scales"}, {}, {}},
    {"", {"_scale", "_scale_inv", ".scale"}, "_scale_2", "_input_scale"},
};

bool is_code(DType dtype) { return is_8_bit_float(dtype) && dtype != DType::float8_e8m0fnu; }

bool is_scale_name(std::string_view name) {
  for (const std::string_view suffix : {"scale", "scales", "scale_inv", "scale_2"})
    if (name.ends_with(suffix)) return true;
  return false;
}

class Finder {
 public:
  explicit Finder(const Tensors& tensors) : tensors_(tensors) {}

  std::optional<QuantizedTensor> of(const std::string& name, const ArraySource& values) const {
    for (const NameRow& row : kNames) {
      if (!name.ends_with(row.values)) continue;
      const std::string stem = name.substr(0, name.size() - row.values.size());
      if (!holds_values(row, stem, values.dtype()) || (row.values.empty() && is_scale_name(name))) continue;
      QuantizedTensor found;
      found.name = stem.ends_with('.') ? stem.substr(0, stem.size() - 1) : stem;
      found.values = name;
      for (const std::string_view suffix : row.scales)
        if (found.scales.empty() && !suffix.empty()) found.scales = existing(stem, suffix);
      found.global_scale = existing(stem, row.global);
      found.input_scale = existing(stem, row.input);
      found.global_divides = row.global_divides;
      found.scheme = scheme_of(row, values, found.scales);
      return found;
    }
    return std::nullopt;
  }

 private:
  bool holds_values(const NameRow& row, const std::string& stem, DType dtype) const {
    if (row.values == "weight_packed") return true;
    if (row.values == "_blocks") return dtype == DType::uint8;
    if (row.values.empty()) return is_code(dtype);
    // bitsandbytes has weights of bytes as well, with statistics of its own.
    return is_code(dtype) || dtype == DType::int8 ||
           (dtype == DType::uint8 && !tensors_.contains(stem + "weight.absmax"));
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
                       scales->shape().back() == (values.shape().back() + 31) / 32;
    if (row.values == "_blocks") return gptoss;
    if (is_code(values.dtype())) {
      if (is_e8m0) return of_32 ? mxfp8 : fp8_blocks;
      const bool is_block_name = name.ends_with("_inv") || name.ends_with(".scale");
      return is_block_name || (scales != nullptr && is_grid(*scales, values)) ? fp8_blocks : fp8;
    }
    if (values.dtype() != DType::uint8 || scales == nullptr) return other;
    if (!is_e8m0) return nvfp4;
    const std::int64_t bytes = values.shape().empty() ? 0 : values.shape().back();
    const std::int64_t blocks = scales->shape().empty() ? 0 : scales->shape().back();
    return blocks * 24 == bytes ? mxfp6 : mxfp4;
  }

  // A scale for each of several rows and columns.
  static bool is_grid(const ArraySource& scales, const ArraySource& values) {
    const Shape &s = scales.shape(), &v = values.shape();
    return s.size() == v.size() && s.size() >= 2 && s[s.size() - 1] > 1 && s[s.size() - 2] > 1;
  }

  const Tensors& tensors_;
};

}  // namespace

std::string_view name_of(CheckpointScheme scheme) {
  constexpr std::string_view kSchemes[] = {"fp8",   "fp8-blocks", "mxfp8",  "nvfp4",
                                           "mxfp4", "mxfp6",      "gptoss", "other"};
  return kSchemes[static_cast<std::size_t>(scheme)];
}

std::vector<QuantizedTensor> quantized_tensors(const Tensors& tensors) {
  std::vector<QuantizedTensor> all;
  const Finder finder(tensors);
  for (const auto& [name, values] : tensors)
    if (auto found = finder.of(name, *values)) all.push_back(std::move(*found));
  return all;
}

}  // namespace ejk
