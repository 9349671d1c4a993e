// Parts of quantised tensors have the names and numbers of a library: read back by plain loops.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>

#include "ejk/quantize.hpp"
#include "support/arrays.hpp"
#include "support/failure.hpp"
#include "support/random_mask.hpp"

using namespace ejk;

namespace {

std::shared_ptr<const ArraySource> weights(std::uint64_t seed) {
  plain::Random random{seed};
  std::vector<double> values;
  for (int i = 0; i < 48 * 64; ++i)
    values.push_back((static_cast<double>(random() % 2001) / 1000 - 1) * static_cast<double>(seed));
  return make_source(plain::array_of(DType::float32, {48, 64}, values), "w");
}

std::map<std::string, Array> read_parts(const std::vector<CheckpointParts::Part>& parts) {
  std::map<std::string, Array> all;
  for (const CheckpointParts::Part& part : parts) all.emplace(part.name, read_all(*part.source));
  return all;
}

}  // namespace

TEST_CASE("parts have the names and types of each library, and the bytes of quantize_array()") {
  using S = QuantizationScheme;
  struct Form {
    TensorNames names;
    QuantizeSettings settings;
    std::map<std::string, DType> parts;
  };
  using enum TensorNames;
  const DType u8 = DType::uint8, f8 = DType::float8_e4m3fn, f32 = DType::float32;
  for (const Form& form : {
           Form{modelopt,
                {.scheme = S::nvfp4},
                {{"a.weight", u8}, {"a.weight_scale", f8}, {"a.weight_scale_2", f32}}},
           Form{modelopt, {.scheme = S::fp8}, {{"a.weight", f8}, {"a.weight_scale", f32}}},
           Form{modelopt, {.scheme = S::mx}, {{"a.weight", f8}, {"a.weight_scale", u8}}},
           Form{compressed_tensors,
                {.scheme = S::nvfp4},
                {{"a.weight_packed", u8}, {"a.weight_scale", f8}, {"a.weight_global_scale", f32}}},
           Form{compressed_tensors,
                {.scheme = S::mx, .element = ElementFormat::e2m1},
                {{"a.weight_packed", u8}, {"a.weight_scale", u8}}},
           Form{compressed_tensors, {.scheme = S::mx}, {{"a.weight", f8}, {"a.weight_scale", u8}}},
           Form{compressed_tensors, {.scheme = S::fp8}, {{"a.weight", f8}, {"a.weight_scale", f32}}},
           Form{deepseek,
                {.scheme = S::fp8, .block = ScaleBlock{32, 32}},
                {{"a.weight", f8}, {"a.weight_scale_inv", f32}}},
       }) {
    CAPTURE(name_of(form.names));
    CAPTURE(name_of(form.settings.scheme));
    CheckpointParts parts(form.settings, form.names);
    const auto x = weights(1), y = weights(2);
    const auto of_x = parts.add("a.weight", x), of_y = parts.add("b", y);
    CHECK(of_y.front().name.starts_with("b.weight"));
    const auto other = read_parts(of_y);
    const auto arrays = read_parts(of_x);
    REQUIRE(arrays.size() == form.parts.size());
    const Quantized made = quantize_array(*x, form.settings);
    for (const auto& entry : arrays) {
      const std::string& name = entry.first;
      const Array& array = entry.second;
      CAPTURE(name);
      REQUIRE(form.parts.contains(name));
      CHECK(array.dtype() == form.parts.at(name));
      if (name.ends_with("_2"))
        CHECK(array.elements<float>()[0] == *made.global_scale);
      else if (name.ends_with("global_scale"))
        CHECK(array.elements<float>()[0] == 1 / *made.global_scale);
      else {
        const Array& same = name.find("_scale") == std::string::npos ? made.values : made.scales;
        CHECK(array.shape() == same.shape());
        CHECK(
            std::equal(array.data(), array.data() + array.bytes(), same.data(), same.data() + same.bytes()));
      }
    }
    CHECK(parts.totals().elements == 2 * 48 * 64);  // each tensor once, however often it was encoded
  }
}

TEST_CASE("a library without names for a scheme is refused, with those that have some") {
  const auto why = [](const QuantizeSettings& s, TensorNames names) {
    return plain::failure_and_hint([&] { CheckpointParts(s, names); });
  };
  CHECK(why({.scheme = QuantizationScheme::mx, .element = ElementFormat::e2m1}, TensorNames::modelopt) ==
        "modelopt has no names for mx of e2m1 | compressed-tensors has");
  CHECK(why({.scheme = QuantizationScheme::fp8, .block = ScaleBlock{128, 128}}, TensorNames::modelopt) ==
        "modelopt has no names for fp8 of e4m3 in blocks of 128x128 | deepseek has");
  CHECK(why({.scheme = QuantizationScheme::nvfp4, .layout = ScaleLayout::tiles_128x4},
            TensorNames::modelopt) == "checkpoints have linear scales, not layout 128x4");
}

TEST_CASE("projections that a kernel multiplies at once have one global scale, the largest of theirs") {
  CheckpointParts parts({.scheme = QuantizationScheme::nvfp4}, TensorNames::modelopt);
  std::map<std::string, float> own;
  std::vector<CheckpointParts::Part> all;
  std::uint64_t seed = 1;
  for (const char* name : {"l.0.gate_proj", "l.0.up_proj", "l.0.down_proj", "l.1.gate_proj", "l.0.q_proj"}) {
    const auto x = weights(seed++);
    own[name] = *quantize_array(*x, {.scheme = QuantizationScheme::nvfp4}).global_scale;
    for (CheckpointParts::Part& part : parts.add(std::string(name) + ".weight", x))
      all.push_back(std::move(part));
  }
  const auto arrays = read_parts(all);
  const auto global = [&](const std::string& name) {
    return arrays.at(name + ".weight_scale_2").elements<float>()[0];
  };
  const float largest = std::max(own.at("l.0.gate_proj"), own.at("l.0.up_proj"));
  CHECK(global("l.0.gate_proj") == largest);
  CHECK(global("l.0.up_proj") == largest);
  for (const char* alone : {"l.0.down_proj", "l.1.gate_proj", "l.0.q_proj"})
    CHECK(global(alone) == own.at(alone));
}
