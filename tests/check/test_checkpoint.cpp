// Checkpoints of each scheme, made here, are sound; each rule is broken by one fault planted in them.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "check/artefacts.hpp"
#include "ejk/program/checkpoint.hpp"
#include "ejk/quantize.hpp"
#include "support/arrays.hpp"
#include "support/failure.hpp"

using namespace ejk;

namespace {

using artefacts::text_of;
using plain::Random;

std::shared_ptr<const ArraySource> source(Array array) { return make_source(std::move(array), "m"); }

Array bytes(DType dtype, Shape shape, const std::function<int(std::int64_t)>& of) {
  Array array(dtype, std::move(shape));
  for (std::int64_t i = 0; i < array.size(); ++i) array.data()[i] = static_cast<std::byte>(of(i));
  return array;
}

Array floats(Shape shape, const std::function<double(std::int64_t)>& of, DType dtype = DType::float32) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < element_count(shape); ++i) values.push_back(of(i));
  return plain::array_of(dtype, std::move(shape), values);
}

// Two layers of attention and four experts, quantised layers of 160 x 288 values, whose blocks of 128 are cut
// at both edges. `quantize` adds one layer by its name.
struct Model {
  Checkpoint checkpoint;
  Random random{7};

  static constexpr std::int64_t kRows = 160, kColumns = 288;

  explicit Model(const std::function<void(Model&, const std::string&)>& quantize) {
    put("model.embed_tokens.weight", floats(
                                         {8, 32}, [](std::int64_t i) { return i; }, DType::bfloat16));
    for (const char* layer : {"0", "1"}) {
      const std::string stem = std::string("model.layers.") + layer;
      for (const char* part : {"q_proj", "k_proj", "v_proj"}) quantize(*this, stem + ".self_attn." + part);
      for (const char* expert : {"0", "1", "2", "3"})
        for (const char* part : {"gate_proj", "up_proj", "down_proj"})
          quantize(*this, stem + ".mlp.experts." + expert + "." + part);
      put(stem + ".mlp.gate.weight", floats({4, 32}, [](std::int64_t i) { return i; }));
    }
  }

  void put(const std::string& name, Array array) { checkpoint.tensors[name] = source(std::move(array)); }
  void put_codes(const std::string& name, DType dtype, Shape shape) {
    const int nan = dtype == DType::float8_e4m3fn ? 0x7F : 0x80;
    put(name, bytes(dtype, std::move(shape), [&](std::int64_t) {
          const int code = static_cast<int>(random() & 255u);
          return dtype != DType::uint8 && (code & 0x7F) == nan ? 0x30 : code;
        }));
  }
  // Between 0.5 and 1 of `most`, and not all equal.
  void put_scales(const std::string& name, Shape shape, double most) {
    put(name, floats(std::move(shape),
                     [&](std::int64_t i) { return most * (0.5 + static_cast<double>((i * 7) % 11) / 22); }));
  }
  void put_e8m0(const std::string& name, Shape shape, DType dtype) {
    put(name, bytes(dtype, std::move(shape), [](std::int64_t i) { return 115 + static_cast<int>(i % 5); }));
  }
};

void fp8_rows(Model& m, const std::string& stem) {
  m.put_codes(stem + ".weight", DType::float8_e4m3fn, {Model::kRows, Model::kColumns});
  m.put_scales(stem + ".weight_scale", {Model::kRows, 1}, 3e-4);
  m.put(stem + ".input_scale", floats({}, [](std::int64_t) { return 0.013; }));
}
void fp8_tensor(Model& m, const std::string& stem) {
  m.put_codes(stem + ".weight", DType::float8_e4m3fn, {Model::kRows, Model::kColumns});
  m.put(stem + ".weight_scale", floats({}, [](std::int64_t) { return 0.0031; }));
}
void fp8_blocks(Model& m, const std::string& stem) {
  m.put_codes(stem + ".weight", DType::float8_e4m3fn, {Model::kRows, Model::kColumns});
  m.put_scales(stem + ".weight_scale_inv", {2, 3}, 3e-4);
}
void ue8m0_blocks(Model& m, const std::string& stem) {
  m.put_codes(stem + ".weight", DType::float8_e4m3fn, {Model::kRows, Model::kColumns});
  m.put_e8m0(stem + ".scale", {2, 3}, DType::float8_e8m0fnu);
}
void modelopt_nvfp4(Model& m, const std::string& stem) {
  m.put_codes(stem + ".weight", DType::uint8, {Model::kRows, Model::kColumns / 2});
  m.put(stem + ".weight_scale", bytes(DType::float8_e4m3fn, {Model::kRows, Model::kColumns / 16},
                                      [](std::int64_t i) { return 0x6E + static_cast<int>(i % 17); }));
  m.put(stem + ".weight_scale_2", floats({}, [](std::int64_t) { return 0.7 / 2688; }));
  m.put(stem + ".input_scale", floats({}, [](std::int64_t) { return 0.002; }));
}
void compressed_nvfp4(Model& m, const std::string& stem) {
  m.put_codes(stem + ".weight_packed", DType::uint8, {Model::kRows, Model::kColumns / 2});
  m.put(stem + ".weight_scale", bytes(DType::float8_e4m3fn, {Model::kRows, Model::kColumns / 16},
                                      [](std::int64_t i) { return 0x6E + static_cast<int>(i % 17); }));
  m.put(stem + ".weight_global_scale", floats({1}, [](std::int64_t) { return 2688 / 0.7; }));
  m.put(stem + ".input_global_scale", floats({1}, [](std::int64_t) { return 500; }));
}
void mxfp4(Model& m, const std::string& stem) {
  m.put_codes(stem + ".weight_packed", DType::uint8, {Model::kRows, Model::kColumns / 2});
  m.put_e8m0(stem + ".weight_scale", {Model::kRows, Model::kColumns / 32}, DType::uint8);
}
void mxfp6(Model& m, const std::string& stem) {
  m.put_codes(stem + ".weight_packed", DType::uint8, {Model::kRows, Model::kColumns * 3 / 4});
  m.put_e8m0(stem + ".weight_scale", {Model::kRows, Model::kColumns / 32}, DType::uint8);
}
void mxfp8(Model& m, const std::string& stem) {
  m.put_codes(stem + ".weight", DType::float8_e4m3fn, {Model::kRows, Model::kColumns});
  m.put_e8m0(stem + ".weight_scale", {Model::kRows, Model::kColumns / 32}, DType::uint8);
}
void gptoss(Model& m, const std::string& stem) {
  m.put_codes(stem + "_blocks", DType::uint8, {4, Model::kRows, Model::kColumns / 32, 16});
  m.put_e8m0(stem + "_scales", {4, Model::kRows, Model::kColumns / 32}, DType::uint8);
}

// GPTQ of 4 bits: 8 rows of values in an element, 8 columns of zeros, groups of 32 rows.
void gptq(Model& m, const std::string& stem) {
  constexpr std::int64_t kGroups = Model::kRows / 32;
  const auto some = [](std::int64_t i) { return static_cast<double>(i % 7); };
  m.put(stem + ".qweight", floats({Model::kRows / 8, Model::kColumns}, some, DType::int32));
  m.put(stem + ".qzeros", floats({kGroups, Model::kColumns / 8}, some, DType::int32));
  m.put(stem + ".scales", floats(
                              {kGroups, Model::kColumns},
                              [](std::int64_t i) { return 0.01 + 1e-4 * double(i % 9); }, DType::float16));
  m.put(stem + ".g_idx", floats(
                             {Model::kRows},
                             [](std::int64_t i) {
                               const std::int64_t group = i / 32;
                               return static_cast<double>(group);
                             },
                             DType::int32));
}
void awq(Model& m, const std::string& stem) {
  gptq(m, stem);
  m.checkpoint.tensors.erase(stem + ".g_idx");
  m.put(stem + ".qweight", floats(
                               {Model::kRows, Model::kColumns / 8},
                               [](std::int64_t i) { return static_cast<double>(i % 7); }, DType::int32));
}
void packed_int4(Model& m, const std::string& stem) {
  m.put(stem + ".weight_packed",
        floats(
            {Model::kRows, Model::kColumns / 8}, [](std::int64_t i) { return static_cast<double>(i % 7); },
            DType::int32));
  m.put_scales(stem + ".weight_scale", {Model::kRows, Model::kColumns / 32}, 0.02);
  m.put(stem + ".weight_shape",
        floats(
            {2}, [](std::int64_t i) { return static_cast<double>(i == 0 ? Model::kRows : Model::kColumns); },
            DType::int64));
}
void int8_rows(Model& m, const std::string& stem) {
  m.put_codes(stem + ".weight", DType::int8, {Model::kRows, Model::kColumns});
  m.put_scales(stem + ".weight_scale", {Model::kRows, 1}, 0.02);
}
void bitsandbytes_nf4(Model& m, const std::string& stem) {
  m.put_codes(stem + ".weight", DType::uint8, {Model::kRows * Model::kColumns / 2, 1});
  m.put_scales(stem + ".weight.absmax", {Model::kRows * Model::kColumns / 64}, 0.1);
  m.put_scales(stem + ".weight.quant_map", {16}, 1);
  m.put_codes(stem + ".weight.quant_state.bitsandbytes__nf4", DType::uint8, {80});
}
void bitsandbytes_int8(Model& m, const std::string& stem) {
  m.put_codes(stem + ".weight", DType::int8, {Model::kRows, Model::kColumns});
  m.put_scales(stem + ".SCB", {Model::kRows}, 3);
}

using Quantize = void (*)(Model&, const std::string&);
using Change = std::function<void(Model&)>;

Findings checked(Quantize quantize, const Change& change = {},
                 const CheckpointClaims& claims = {.codes = true, .rules = {}},
                 const CheckOptions& options = {}) {
  Model model(quantize);
  if (change) change(model);
  return check_checkpoint(model.checkpoint, claims, options);
}

const std::string kGate = "model.layers.1.mlp.experts.2.gate_proj",
                  kQuery = "model.layers.0.self_attn.q_proj";

Change erase(const std::string& name) {
  return [=](Model& m) { REQUIRE(m.checkpoint.tensors.erase(name) == 1); };
}
// Element `at` of a tensor of one byte an element, or of float32.
Change set_byte(const std::string& name, std::int64_t at, int value) {
  return [=](Model& m) {
    Array array = read_all(*m.checkpoint.tensors.at(name));
    array.data()[at] = static_cast<std::byte>(value);
    m.put(name, std::move(array));
  };
}
Change set_float(const std::string& name, std::size_t at, float value) {
  return [=](Model& m) {
    Array array = read_all(*m.checkpoint.tensors.at(name));
    array.elements<float>()[at] = value;
    m.put(name, std::move(array));
  };
}
Change all_bytes(const std::string& name, const std::function<int(int)>& of) {
  return [=](Model& m) {
    Array array = read_all(*m.checkpoint.tensors.at(name));
    for (std::int64_t i = 0; i < array.size(); ++i)
      array.data()[i] = static_cast<std::byte>(of(std::to_integer<int>(array.data()[i])));
    m.put(name, std::move(array));
  };
}
Change all_scales(double value) {
  return [=](Model& m) {
    m.put(kGate + ".weight_scale", floats({Model::kRows, 1}, [=](std::int64_t) { return value; }));
  };
}
Change both(const Change& a, const Change& b) {
  return [=](Model& m) { a(m), b(m); };
}
Change config(const std::string& json) {
  return [=](Model& m) { m.checkpoint.config = parse_json(json); };
}
Change index(const std::string& json) {
  return [=](Model& m) {
    m.checkpoint.files = {{"a.safetensors", {}}};
    std::string map;
    std::int64_t size = 0;
    for (const auto& [name, tensor] : m.checkpoint.tensors) {
      m.checkpoint.files[0].tensors.push_back(name);
      if (!map.empty()) map += ", ";
      map += "\"" + name + R"(": "a.safetensors")";
      size += type_of(*tensor).bytes();
    }
    m.checkpoint.index = parse_json("{\"weight_map\": {" + map + json + R"(}, "metadata": {"total_size": )" +
                                    std::to_string(size) + "}}");
  };
}
Change cache(float keys, float values) {
  return [=](Model& m) {
    m.put("model.layers.0.self_attn.k_scale", floats({}, [=](std::int64_t) { return keys; }));
    m.put("model.layers.0.self_attn.v_scale", floats({}, [=](std::int64_t) { return values; }));
  };
}

struct Fault {
  Quantize quantize;
  Change broken, sound;
};

const char* const kUe8m0 =
    R"({"quantization_config": {"scale_fmt": "ue8m0", "weight_block_size": [128, 128]}})";
// The scales of all layers as powers of two, but for one element.
Change powers_of_two(float last) {
  return [=](Model& m) {
    config(kUe8m0)(m);
    for (auto& [name, tensor] : m.checkpoint.tensors)
      if (name.ends_with("_scale_inv"))
        tensor =
            source(floats({2, 3}, [](std::int64_t i) { return std::ldexp(1.0, -10 - static_cast<int>(i)); }));
    set_float(kGate + ".weight_scale_inv", 5, last)(m);
  };
}

const std::map<std::string, Fault> kFaults{
    {"scale-missing",
     {fp8_blocks, erase(kGate + ".weight_scale_inv"), erase("model.layers.0.mlp.gate.weight")}},
    // A scale beside values that are not quantised; the router's have none.
    {"scale-orphan",
     {fp8_rows,
      [](Model& m) {
        m.put("lm_head.weight_scale", floats({8, 1}, [](std::int64_t i) { return i + 1; }));
      },
      [](Model& m) { m.put("lm_head.scale", floats({8}, [](std::int64_t i) { return i + 1; })); }}},
    {"scale-shape",
     {fp8_blocks,
      [](Model& m) {
        m.put_scales(kGate + ".weight_scale_inv", {1, 2}, 1e-4);
      },
      [](Model& m) {
        m.put_scales(kGate + ".weight_scale_inv", {2, 3}, 1e-4);
      }}},
    {"scale-dtype",
     {modelopt_nvfp4,
      [](Model& m) {
        m.put_scales(kGate + ".weight_scale", {Model::kRows, Model::kColumns / 16}, 1);
      },
      {}}},
    {"scale-nonfinite",
     {fp8_rows, set_float(kGate + ".weight_scale", 9, std::numeric_limits<float>::infinity()), {}}},
    {"scale-nonpositive",
     {fp8_rows, set_float(kGate + ".weight_scale", 9, -1e-4F),
      both(set_float(kGate + ".weight_scale", 9, 0.0F),
           [](Model& m) {
             Array codes = read_all(*m.checkpoint.tensors.at(kGate + ".weight"));
             std::fill_n(codes.data() + 9 * Model::kColumns, Model::kColumns, std::byte{0x80});
             m.put(kGate + ".weight", std::move(codes));
           })}},
    {"scale-e8m0-nan",
     {mxfp4, set_byte(kGate + ".weight_scale", 3, 255), set_byte(kGate + ".weight_scale", 3, 126)}},
    // Values 16 to 31 of row 2 are bytes 8 to 15; the next block is not 0.
    {"scale-zero-block",
     {modelopt_nvfp4,
      both(set_byte(kGate + ".weight_scale", 2 * 18 + 1, 0),
           [](Model& m) {
             Array codes = read_all(*m.checkpoint.tensors.at(kGate + ".weight"));
             std::fill_n(codes.data() + 2 * 144 + 8, 8, std::byte{0x80});
             codes.data()[2 * 144 + 15] = std::byte{0x10};
             m.put(kGate + ".weight", std::move(codes));
           }),
      both(set_byte(kGate + ".weight_scale", 2 * 18 + 1, 0),
           [](Model& m) {
             Array codes = read_all(*m.checkpoint.tensors.at(kGate + ".weight"));
             std::fill_n(codes.data() + 2 * 144 + 8, 8, std::byte{0x80});
             m.put(kGate + ".weight", std::move(codes));
           })}},
    {"scale-uninitialised", {fp8_rows, set_float(kGate + ".weight_scale", 4, 1e-41F), all_scales(0.003)}},
    {"scale-constant", {fp8_rows, all_scales(0.003), all_scales(0.25)}},
    {"scale-not-pow2", {fp8_blocks, powers_of_two(3e-4F), powers_of_two(0x1p-20F)}},
    {"global-missing", {modelopt_nvfp4, erase(kGate + ".weight_scale_2"), {}}},
    {"global-reciprocal",
     {compressed_nvfp4, set_float(kGate + ".weight_global_scale", 0, 0.7F / 2688),
      // 4over6 maps the largest value to 256 * 6: a factor that is legal.
      [](Model& m) {
        for (auto& [name, tensor] : m.checkpoint.tensors)
          if (name.ends_with("weight_global_scale"))
            tensor = source(floats({1}, [](std::int64_t) { return 1536 / 0.7; }));
      }}},
    // amax / 448 of blocks of amax 0.07 to 0.13, inverted; of amax 200, which is large and sound.
    {"scale-reciprocal",
     {fp8_blocks,
      [](Model& m) {
        m.put(kGate + ".weight_scale_inv",
              floats({2, 3}, [](std::int64_t i) { return 448 / (0.07 + 0.012 * static_cast<double>(i)); }));
      },
      [](Model& m) {
        m.put(kGate + ".weight_scale_inv",
              floats({2, 3}, [](std::int64_t i) { return (200 - static_cast<double>(i)) / 448; }));
      }}},
    {"unchecked", {gptq, {}, [](Model& m) { m = Model(mxfp4); }}},
    {"gate-up-scale",
     {modelopt_nvfp4, set_float(kGate + ".weight_scale_2", 0, 0.8F / 2688),
      set_float("model.layers.1.mlp.experts.2.down_proj.weight_scale_2", 0, 0.8F / 2688)}},
    {"qkv-scale",
     {modelopt_nvfp4, set_float(kQuery + ".weight_scale_2", 0, 0.8F / 2688),
      set_float(kQuery + ".input_scale", 0, 0.8F)}},
    {"experts-incomplete",
     {modelopt_nvfp4, erase(kGate + ".input_scale"),
      config(R"({"num_experts": 4, "quantization_config": {}})")}},
    {"codes-saturated",
     {mxfp4, all_bytes(kGate + ".weight_packed", [](int code) { return code % 5 < 3 ? 0x77 : code & 0x33; }),
      all_bytes(kGate + ".weight_packed", [](int code) { return code % 5 < 1 ? 0x77 : code & 0x33; })}},
    {"codes-unused",
     {fp8_blocks, all_bytes(kGate + ".weight", [](int code) { return code & 0xBF; }),
      both(all_bytes(kGate + ".weight", [](int code) { return code & 0xBF; }),
           set_byte(kGate + ".weight", 7, 0xFE))}},
    {"codes-negative-zero",
     {mxfp4,
      all_bytes(kGate + ".weight_packed",
                [](int code) {
                  return ((code & 7) == 0 ? 8 : code & 15) | ((code & 0x70) == 0 ? 0x80 : code & 0xF0);
                }),
      {}}},
    {"nan-codes", {fp8_rows, set_byte(kGate + ".weight", 11, 0xFF), set_byte(kGate + ".weight", 11, 0xFE)}},
    {"kv-scale", {fp8_rows, cache(0.02F, 0.0F), cache(0.02F, 0.03F)}},
    {"config-disagrees",
     {fp8_rows, config(R"({"quantization_config": {"ignore": ["lm_head", "model.layers.*.self_attn"]}})"),
      config(R"({"quantization_config": {"ignore": ["lm_head", "model.layers.*.mlp.gate"]}})")}},
    {"index-disagrees", {fp8_rows, index(R"(, "lm_head.weight": "b.safetensors")"), index("")}},
};

}  // namespace

TEST_CASE("checkpoints of each scheme are recognised and sound") {
  const std::map<std::string, Quantize> schemes{{"fp8", fp8_rows},          {"fp8 ", fp8_tensor},
                                                {"fp8-blocks", fp8_blocks}, {"fp8-blocks ", ue8m0_blocks},
                                                {"nvfp4", modelopt_nvfp4},  {"nvfp4 ", compressed_nvfp4},
                                                {"mxfp4", mxfp4},           {"mxfp6", mxfp6},
                                                {"mxfp8", mxfp8},           {"gptoss", gptoss}};
  for (const auto& scheme : schemes) {
    const std::string& name = scheme.first;
    CAPTURE(name);
    const Model model(scheme.second);
    const auto found = quantized_tensors(model.checkpoint.tensors);
    CHECK(found.size() == 30);
    for (const QuantizedTensor& q : found) {
      CHECK(name_of(q.scheme) == name.substr(0, name.find(' ')));
      CHECK_FALSE(q.scales.empty());
    }
    const Findings findings = check_checkpoint(model.checkpoint, {.codes = true, .rules = {}});
    CHECK_MESSAGE(findings.errors() + findings.warnings() == 0, text_of(findings));
  }
}

TEST_CASE("schemes that are not checked are one finding each, with their parts and how many were not read") {
  struct Unchecked {
    Quantize quantize;
    CheckpointScheme scheme;
    std::string parts;
    const char* scales;
    std::int64_t layers_tensors;
  };
  using Scheme = CheckpointScheme;
  const std::vector<Unchecked> all{
      {gptq, Scheme::gptq, "gptq: qweight, scales, qzeros, g_idx", ".scales", 90},
      {awq, CheckpointScheme::awq, "awq: qweight, scales, qzeros", ".scales", 60},
      {packed_int4, Scheme::packed_int, "pack-quantized: weight_packed, weight_scale, weight_shape",
       ".weight_scale", 60},
      {int8_rows, Scheme::int8, "int8: weight, weight_scale", ".weight_scale", 30},
      {bitsandbytes_nf4, Scheme::bitsandbytes,
       "bitsandbytes: weight, weight.absmax, weight.quant_map, weight.quant_state.bitsandbytes__nf4",
       ".weight.absmax", 90},
      {bitsandbytes_int8, Scheme::bitsandbytes, "bitsandbytes: weight, SCB", ".SCB", 30},
  };
  for (const Unchecked& one : all) {
    CAPTURE(one.parts);
    const Model model(one.quantize);
    const auto quantized = quantized_tensors(model.checkpoint.tensors);
    CHECK(quantized.size() == 30);
    for (const QuantizedTensor& q : quantized) {
      CHECK(q.scheme == one.scheme);
      CHECK_FALSE(q.element);
      CHECK(parameter_count(q, model.checkpoint.tensors) == Model::kRows * Model::kColumns);
    }
    const Findings found = checked(one.quantize);
    CHECK_MESSAGE(found.errors() == 0, text_of(found));
    CHECK_MESSAGE(found.warnings() == 1, text_of(found));
    REQUIRE(found.kept().size() == 1);
    CHECK(found.kept()[0].finding.message ==
          one.parts + ": " + std::to_string(one.layers_tensors) +
              " tensors of 30 layers are not checked, and scales only for being finite");
    // A NaN among the scales.
    const Findings broken = checked(one.quantize, [&](Model& m) {
      Array scales = read_all(*m.checkpoint.tensors.at(kGate + one.scales));
      if (scales.dtype() == DType::float16)
        scales.data()[7] = std::byte{0x7E};  // the upper byte of element 3
      else
        scales.elements<float>()[3] = std::numeric_limits<float>::quiet_NaN();
      m.put(kGate + one.scales, std::move(scales));
    });
    CHECK_MESSAGE(broken.count("scale-nonfinite") == 1, text_of(broken));
  }
}

TEST_CASE(
    "a packing that no part determines has no number of parameters, and gptq is quantised for the config") {
  Model model(gptq);
  model.checkpoint.tensors.erase(kGate + ".scales");
  const auto quantized = quantized_tensors(model.checkpoint.tensors);
  const auto gate = std::find_if(quantized.begin(), quantized.end(),
                                 [](const QuantizedTensor& q) { return q.name == kGate; });
  REQUIRE(gate != quantized.end());
  CHECK_FALSE(parameter_count(*gate, model.checkpoint.tensors));
  CHECK(checked(gptq, config(R"({"quantization_config": {"quant_method": "gptq"}})"))
            .count("config-disagrees") == 0);
  CHECK(checked(gptq, config(R"({"quantization_config": {"quant_method": "awq"}})"))
            .count("config-disagrees") == 1);
  CHECK(
      checked(awq, config(R"({"quantization_config": {"quant_method": "awq"}})")).count("config-disagrees") ==
      0);
}

TEST_CASE("scales of any name are finite") {
  for (const char* name :
       {"lm_head.scale", "q_proj.weight_zero_scale", "vision.logit_scale", "h.pre_quant_scale"}) {
    CAPTURE(name);
    const auto with = [&](double value) {
      return checked(fp8_rows, [&](Model& m) {
        m.put(name, floats({4}, [&](std::int64_t i) { return i == 2 ? value : -1; }));
      });
    };
    CHECK(with(1).errors() == 0);
    CHECK(with(std::numeric_limits<double>::infinity()).count("scale-nonfinite") == 1);
  }
}

TEST_CASE(
    "scales that are inverted are named with what weights become, by any scheme without a global scale") {
  const Findings found = checked(fp8_blocks, [](Model& m) {
    for (auto& [name, tensor] : m.checkpoint.tensors)
      if (name.ends_with("_scale_inv")) tensor = source(floats({2, 3}, [](std::int64_t) { return 4480; }));
  });
  CHECK(found.count("scale-reciprocal") == 30);
  CHECK_MESSAGE(
      text_of(found).find("with scales up to 4480 values go up to 2.01e+06, which no weights do; with "
                          "their inverses to 0.1: they are the other way round") != std::string::npos,
      text_of(found));
  const auto with_code = [](int code) {
    return checked(mxfp4, set_byte(kGate + ".weight_scale", 3, code)).count("scale-reciprocal");
  };
  CHECK(with_code(127 + 14) == 0);  // 6 * 2^14 is 98,304
  CHECK(with_code(127 + 15) == 1);
}

TEST_CASE("each rule of checkpoints is broken by one fault, and not by what is legal") {
  const auto rules = rules_of("checkpoint");
  CHECK(kFaults.size() == rules.size());
  for (const Rule& rule : rules) {
    const std::string name(rule.name);
    CAPTURE(name);
    REQUIRE(kFaults.contains(name));
    const Fault& fault = kFaults.at(name);
    const Findings broken = checked(fault.quantize, fault.broken);
    CHECK_MESSAGE(broken.count(name) > 0, text_of(broken));
    CHECK((rule.severity == Severity::error ? broken.errors() : broken.warnings()) > 0);
    const Findings sound = checked(fault.quantize, fault.sound);
    CHECK_MESSAGE(sound.count(name) + sound.errors() == 0, text_of(sound));
    // A rule is applied only where it is wanted.
    CHECK(checked(fault.quantize, fault.broken, {.codes = true, .rules = {name}}).count(name) ==
          broken.count(name));
    const char* other = name == "kv-scale" ? "scale-shape" : "kv-scale";
    const Findings without = checked(fault.quantize, fault.broken, {.codes = true, .rules = {other}});
    CHECK(without.errors() + without.warnings() == without.count(other));
  }
  CHECK_THROWS_AS(checked(mxfp4, {}, {.codes = false, .rules = {"scale-shapes"}}), Error);
}

TEST_CASE("what quantize_array() makes of odd shapes and outliers is recognised and sound") {
  Random random{3};
  struct Wanted {
    QuantizationScheme scheme;
    std::optional<ElementFormat> element;
    const char *name, *values;
  };
  for (const Wanted& w : {Wanted{QuantizationScheme::mx, ElementFormat::e4m3, "mxfp8", "w.weight"},
                          {QuantizationScheme::mx, ElementFormat::e2m1, "mxfp4", "w.weight_packed"},
                          {QuantizationScheme::mx, ElementFormat::e2m3, "mxfp6", "w.weight_packed"},
                          {QuantizationScheme::nvfp4, {}, "nvfp4", "w.weight"}})
    for (const Shape& shape : {Shape{64}, Shape{3, 48}, Shape{2, 5, 100}, Shape{4, 288}})
      for (const double outlier : {0.0, 2e4}) {
        CAPTURE(w.name);
        CAPTURE(to_string(shape));
        Array x =
            floats(shape, [&](std::int64_t) { return static_cast<double>(random() % 2001) / 1000 - 1; });
        if (outlier > 0) x.elements<float>()[5] = static_cast<float>(outlier);
        Quantized made = quantize_array(*source(std::move(x)), {.scheme = w.scheme, .element = w.element});
        Checkpoint checkpoint;
        checkpoint.tensors[w.values] = source(std::move(made.values));
        checkpoint.tensors["w.weight_scale"] = source(std::move(made.scales));
        if (made.global_scale)
          checkpoint.tensors["w.weight_scale_2"] =
              source(floats({}, [&](std::int64_t) { return *made.global_scale; }));
        const auto found = quantized_tensors(checkpoint.tensors);
        REQUIRE(found.size() == 1);
        CHECK(name_of(found[0].scheme) == w.name);
        const Findings findings = check_checkpoint(checkpoint, {.codes = true, .rules = {}});
        CHECK_MESSAGE(findings.errors() == 0, text_of(findings));
      }
}

TEST_CASE("findings of one kind in many layers are one, with the count and the first names") {
  const Change every = [](Model& m) {
    for (auto& [name, tensor] : m.checkpoint.tensors)
      if (name.ends_with("up_proj.weight_scale"))
        tensor = source(floats({Model::kRows, 1}, [](std::int64_t) { return -1; }));
  };
  const Findings joined = checked(fp8_rows, every);
  CHECK(joined.count("scale-nonpositive") == 8);
  REQUIRE(joined.kept().size() == 1);
  const Finding& one = joined.kept()[0].finding;
  CHECK(one.array == "model.layers.#.mlp.experts.#.up_proj.weight_scale");
  CHECK(
      one.message ==
      "it is negative (160 of 160); 8 of these: model.layers.0.mlp.experts.0.up_proj.weight_scale, "
      "model.layers.0.mlp.experts.1.up_proj.weight_scale, model.layers.0.mlp.experts.2.up_proj.weight_scale, ...");
  const Findings single = checked(fp8_rows, every, {}, {.most_findings = 100});
  CHECK(single.kept().size() == 8);
  CHECK(single.kept()[3].finding.array == "model.layers.0.mlp.experts.3.up_proj.weight_scale");
  CHECK(single.kept()[3].finding.index == Shape{0, 0});
}

TEST_CASE("a pair of fused layers is reported with the share that differs and the largest ratio") {
  const Findings found =
      checked(modelopt_nvfp4,
              both(set_float(kGate + ".weight_scale_2", 0, 1.4F / 2688),
                   set_float("model.layers.0.mlp.experts.1.up_proj.weight_scale_2", 0, 0.875F / 2688)));
  CHECK(found.count("gate-up-scale") == 2);
  REQUIRE(found.kept().size() == 1);
  CHECK(found.kept()[0].finding.message.starts_with(
      "the global scales of gate_proj, up_proj differ in 2 of 8, by a factor of up to 2; 2 of these: "));
}

TEST_CASE("values that --codes does not read are read only where a scale is 0") {
  const Findings found = checked(fp8_rows, set_byte(kGate + ".weight", 11, 0xFF), {});
  CHECK(found.errors() + found.warnings() == 0);
  CHECK(checked(fp8_rows, set_float(kGate + ".weight_scale", 9, 0.0F), {}).count("scale-zero-block") == 1);
}

namespace {

// By the definition of a float format.
double number_of(const FloatFormat& f, unsigned code) {
  const unsigned exponent = code >> f.mantissa_bits & ((1u << f.exponent_bits) - 1),
                 fraction = code & ((1u << f.mantissa_bits) - 1);
  const double value = std::ldexp((exponent > 0 ? 1 : 0) + std::ldexp(fraction, -f.mantissa_bits),
                                  static_cast<int>(std::max(exponent, 1u)) - f.bias);
  return (code >> (f.bits() - 1) & 1u) != 0 ? -value : value;
}

// The layout of a form: the code of element (r, c) and its scale, read from the tensors' bytes.
struct Form {
  Quantize quantize;
  const char* unquantized;
  const char *values, *scales;
  FloatFormat format;
  std::int64_t rows_of_block, columns_of_block;  // 0: all
  double factor = 1;
};

unsigned code_of(const Array& values, int bits, std::int64_t r, std::int64_t c) {
  const std::int64_t row_bytes = Model::kColumns * bits / 8, bit = c * bits;
  const auto byte = [&](std::int64_t i) {
    return i < values.size() ? std::to_integer<unsigned>(values.data()[i]) : 0;
  };
  const std::int64_t first = r * row_bytes + bit / 8;
  return (byte(first) | byte(first + 1) << 8) >> (bit % 8) & ((1u << bits) - 1);
}

}  // namespace

TEST_CASE("quantised tensors of each form are decoded under their names before quantisation") {
  const std::vector<Form> forms{
      {fp8_tensor, ".weight", ".weight", ".weight_scale", kFloat8E4M3Fn, 0, 0},
      {fp8_rows, ".weight", ".weight", ".weight_scale", kFloat8E4M3Fn, 1, 0},
      {fp8_blocks, ".weight", ".weight", ".weight_scale_inv", kFloat8E4M3Fn, 128, 128},
      {ue8m0_blocks, ".weight", ".weight", ".scale", kFloat8E4M3Fn, 128, 128},
      {modelopt_nvfp4, ".weight", ".weight", ".weight_scale", kFloat4E2M1, 1, 16,
       static_cast<float>(0.7 / 2688)},
      {compressed_nvfp4, ".weight", ".weight_packed", ".weight_scale", kFloat4E2M1, 1, 16, 0.7 / 2688},
      {mxfp4, ".weight", ".weight_packed", ".weight_scale", kFloat4E2M1, 1, 32},
      {mxfp6, ".weight", ".weight_packed", ".weight_scale", kFloat6E2M3, 1, 32},
      {mxfp8, ".weight", ".weight", ".weight_scale", kFloat8E4M3Fn, 1, 32},
      {gptoss, "", "_blocks", "_scales", kFloat4E2M1, 1, 32},
  };
  for (const Form& form : forms) {
    CAPTURE(form.values);
    CAPTURE(form.scales);
    const Model model(form.quantize);
    const Tensors& tensors = model.checkpoint.tensors;
    const auto found = quantized_tensors(tensors);
    const auto tensor = std::find_if(found.begin(), found.end(), [&](const QuantizedTensor& q) {
      return q.values == kQuery + form.values;
    });
    REQUIRE(tensor != found.end());
    CHECK(tensor->unquantized_name == kQuery + form.unquantized);
    const Array decoded = read_all(*decoded_tensor(*tensor, tensors));
    const bool is_gptoss = form.quantize == gptoss;
    CHECK(decoded.shape() ==
          (is_gptoss ? Shape{4, Model::kColumns, Model::kRows} : Shape{Model::kRows, Model::kColumns}));
    const Array values = read_all(*tensors.at(tensor->values));
    const Array scales = read_all(*tensors.at(tensor->scales));
    const DType stored = scales.dtype() == DType::uint8 ? DType::float8_e8m0fnu : scales.dtype();
    const auto numbers = plain::doubles([&] {
      ArrayView view = scales.view();
      view.dtype = stored;
      return view;
    }());
    std::int64_t wrong = 0;
    for (std::int64_t r = 0; r < Model::kRows; ++r)
      for (std::int64_t c = 0; c < Model::kColumns; ++c) {
        const std::int64_t block_row = form.rows_of_block == 0 ? 0 : r / form.rows_of_block,
                           block_column = form.columns_of_block == 0 ? 0 : c / form.columns_of_block,
                           columns =
                               form.columns_of_block == 0
                                   ? 1
                                   : (Model::kColumns + form.columns_of_block - 1) / form.columns_of_block;
        const double expected = number_of(form.format, code_of(values, form.format.bits(), r, c)) *
                                numbers[static_cast<std::size_t>(block_row * columns + block_column)] *
                                form.factor;
        const std::int64_t at = is_gptoss ? c * Model::kRows + r : r * Model::kColumns + c;
        const double actual = decoded.elements<float>()[static_cast<std::size_t>(at)];
        wrong += !(std::abs(actual - expected) <= 1e-6 * std::abs(expected));
      }
    CHECK(wrong == 0);
  }
}

TEST_CASE("scales of rows and experts without a last axis are those of their rows") {
  Tensors tensors;
  tensors["w.weight"] = source(bytes(DType::float8_e4m3fn, {2, 3, 4}, [](std::int64_t) { return 0x38; }));
  for (const Shape& shape : {Shape{2}, Shape{3}, Shape{2, 3}}) {
    CAPTURE(to_string(shape));
    tensors["w.weight_scale"] =
        source(floats(shape, [](std::int64_t i) { return static_cast<double>(i) + 2; }));
    const Array decoded = read_all(*decoded_tensor(quantized_tensors(tensors).at(0), tensors));
    for (std::int64_t e = 0; e < 2; ++e)
      for (std::int64_t r = 0; r < 3; ++r) {
        const std::int64_t scale = shape == Shape{2} ? e : shape == Shape{3} ? r : 3 * e + r;
        CHECK(decoded.elements<float>()[static_cast<std::size_t>((e * 3 + r) * 4)] ==
              static_cast<float>(scale + 2));
      }
  }
}

TEST_CASE(
    "scales of FP8 that are not the config's or the usual blocks are refused by the check and not decoded") {
  const auto is_refused = [](const std::string& scales, const Shape& shape, const std::string& config = "") {
    Checkpoint checkpoint;
    checkpoint.tensors["w.weight"] = source(bytes(
        DType::float8_e4m3fn, {192, 128}, [](std::int64_t i) { return 0x30 + static_cast<int>(i % 7); }));
    checkpoint.tensors["w." + scales] =
        source(floats(shape, [](std::int64_t i) { return 1e-3 * (static_cast<double>(i) + 1); }));
    if (!config.empty()) checkpoint.config = parse_json(config);
    const auto block = checkpoint.config ? weight_block(*checkpoint.config) : std::nullopt;
    const std::string decodes = plain::failure_and_hint([&] {
      const QuantizedTensor tensor = quantized_tensors(checkpoint.tensors).at(0);
      (void)read_all(*decoded_tensor(tensor, checkpoint.tensors, block));
    });
    const bool refused = check_checkpoint(checkpoint).count("scale-shape") > 0;
    CHECK(refused == (decodes != "no error"));
    return refused;
  };
  const std::string of_64 =
      R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}})";
  CHECK(!is_refused("weight_scale_inv", {2, 1}));
  CHECK(is_refused("weight_scale_inv", {3, 2}));
  CHECK(!is_refused("weight_scale_inv", {3, 2}, of_64));
  CHECK(is_refused("weight_scale_inv", {2, 1}, of_64));
  CHECK(is_refused("weight_scale_inv", {96, 1}));
  CHECK(is_refused("weight_scale_inv", {192, 1}));
  CHECK(!is_refused("weight_scale", {192, 1}));
  CHECK(!is_refused("weight_scale", {192}));
  CHECK(!is_refused("weight_scale", {}));
  CHECK(is_refused("weight_scale", {96, 1}));  // half a scale a row
  CHECK(is_refused("weight_scale", {128}));
  CHECK(is_refused("weight_scale", {3, 2}));
}

TEST_CASE("tensors that lack a part are not decoded") {
  const auto why = [](Quantize quantize, const char* part) {
    Model model(quantize);
    model.checkpoint.tensors.erase(kQuery + part);
    const auto found = quantized_tensors(model.checkpoint.tensors);
    const auto tensor =
        std::find_if(found.begin(), found.end(), [](const QuantizedTensor& q) { return q.name == kQuery; });
    return plain::failure_and_hint([&] { decoded_tensor(*tensor, model.checkpoint.tensors); });
  };
  CHECK(why(modelopt_nvfp4, ".weight_scale_2") ==
        "m: no global scale is beside it | ejk check checkpoint names the tensors that lack a part");
  CHECK(why(fp8_rows, ".weight_scale") ==
        "m: no scales are beside it | ejk check checkpoint names the tensors that lack a part");
}

TEST_CASE("regular expressions of ignored layers are applied, and reported where they are not understood") {
  const auto findings_with = [](const std::string& ignored) {
    return checked(fp8_rows, config(R"({"quantization_config": {"ignore": [)" + ignored + "]}}"));
  };
  CHECK(findings_with(R"("re:.*self_attn\\.[qk]_proj$")").count("config-disagrees") == 4);
  CHECK(findings_with(R"("re:.*lm_head", "re:.*mlp\\.gate$")").count("config-disagrees") == 0);
  const Findings unread = findings_with(R"x("re:(?!lm_head).*", "re:.*(?=x)")x");
  CHECK(unread.count("config-disagrees") == 0);
  CHECK(
      unread.facts().warnings ==
      std::vector<std::string>{"2 entries of the config's list of ignored layers are not understood and not "
                               "applied: 're:(?!lm_head).*'"});
}

namespace {

Findings checked_with_pattern(std::string pattern, const Change& change) {
  for (std::size_t at = 0; (at = pattern.find('\\', at)) != std::string::npos; at += 2)
    pattern.insert(at, "\\");
  return checked(fp8_rows,
                 both(config(R"({"quantization_config": {"ignore": ["re:)" + pattern + R"("]}})"), change));
}

}  // namespace

TEST_CASE("regular expressions match the beginnings of names, as Python's re.match() does") {
  const std::pair<const char*, std::int64_t> patterns[] = {
      {"model", 30},
      {"odel", 0},
      {"", 30},
      {".*", 30},
      {".*up_proj", 8},
      {".*mlp$", 0},
      {".*(q|k|v)_proj$", 6},
      {R"(^model\.layers\.\d+\.mlp\.experts\.[0-2]\.(gate|up)_proj$)", 12},
      {R"((?:model|layers|\.|\d+)*\.mlp)", 24},
      {R"(\w+\.\w+\.1\.)", 15},
      {".*?v_pro[^a-i]", 2},
      {"(|model)[.]", 30},
  };
  for (const auto& [pattern, count] : patterns) {
    const std::string text = pattern;
    CAPTURE(text);
    const Findings found = checked_with_pattern(text, [](Model&) {});
    CHECK(found.count("config-disagrees") == count);
    CHECK(found.facts().warnings.empty());
  }
}

TEST_CASE("other syntax of regular expressions is reported") {
  for (const std::string text :
       {"(",     ")",     "a)",        "[a",    "[",     "*",          "a**",      "a*+",
        "a{2}",  R"(\)",  R"(\1)",     R"(\b)", R"(\Z)", "(?=a)",      "(?P<x>a)", "^*",
        "[z-a]", "(?i)a", R"([a-\d])", "[]a]",  "[^]a]", "[[:alpha:]]"}) {
    CAPTURE(text);
    CHECK(checked_with_pattern(text, [](Model&) {}).facts().warnings.size() == 1);
  }
  CHECK(checked_with_pattern(std::string(1001, 'a'), [](Model&) {}).facts().warnings.size() == 1);
}

TEST_CASE(
    "a regular expression that makes others try all ways takes no longer than its length times the name's") {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "(a*)*";
  const auto matching = [&](const std::string& name) {
    return checked_with_pattern(text + "b", [&](Model& m) { fp8_rows(m, name); }).count("config-disagrees");
  };
  CHECK(matching(std::string(10'000, 'a')) == 0);
  CHECK(matching(std::string(10'000, 'a') + "b") == 1);
}

TEST_CASE("codes of 6 bits are counted") {
  const std::string weight = kGate + ".weight_packed";
  const auto with = [&](int first, int second, int third) {
    return checked(mxfp6, [=](Model& m) {
      const std::array<int, 3> three{first, second, third};
      m.put(weight, bytes(DType::uint8, {Model::kRows, Model::kColumns * 3 / 4},
                          [&](std::int64_t i) { return three[static_cast<std::size_t>(i % 3)]; }));
    });
  };
  // 31, 1, 1, 1: a quarter of codes is the largest.
  CHECK(with(0x5F, 0x10, 0x04).count("codes-saturated") == 1);
  // 30, 1, 1, 1 has none; -31, 31, -0 and -0 half.
  CHECK(with(0x5E, 0x10, 0x04).count("codes-saturated") == 0);
  const Findings half = with(0xFF, 0x07, 0x82);
  CHECK(half.count("codes-saturated") == 1);
  CHECK(half.count("codes-negative-zero") == 1);
}

TEST_CASE("a cache scale with two faults is one finding") {
  const Findings found = checked(fp8_rows, [](Model& m) {
    m.put("model.layers.0.self_attn.k_scale", floats({}, [](std::int64_t) { return 0; }));
  });
  CHECK(found.count("kv-scale") == 1);
  CHECK(text_of(found).find("it is 0, and there is no v_scale beside it") != std::string::npos);
}

TEST_CASE("a pair of cache scales has any of the names that writers give it") {
  const auto faults = [](const std::string& keys, const std::string& values) {
    return checked(fp8_rows,
                   [&](Model& m) {
                     for (const std::string& name : {keys, values})
                       if (!name.empty())
                         m.put("model.layers.0.self_attn." + name,
                               floats({}, [](std::int64_t) { return 1; }));
                   })
        .count("kv-scale");
  };
  CHECK(faults("k_scale", "v_scale") == 0);
  CHECK(faults("k_proj.k_scale", "v_proj.v_scale") == 0);
  CHECK(faults("k_proj.output_scale", "v_proj.output_scale") == 0);
  CHECK(faults("attn.k_scale", "attn.v_scale") == 0);
  CHECK(faults("k_proj.k_scale", "") == 1);
  CHECK(faults("", "v_proj.v_scale") == 1);
  CHECK(faults("k_proj.k_scale", "v_proj.output_scale") == 2);
}

TEST_CASE("a config that names another scheme or another block disagrees") {
  const auto disagree = [](Quantize quantize, const std::string& members) {
    return checked(quantize, config(R"({"quantization_config": {)" + members + "}}"))
        .count("config-disagrees");
  };
  const std::string modelopt = R"("quant_method": "modelopt", "quant_algo": )",
                    group = R"(, "config_groups": {"group_0": {"weights": {"group_size": )";
  CHECK(disagree(modelopt_nvfp4, modelopt + R"("NVFP4")") == 0);
  CHECK(disagree(modelopt_nvfp4, modelopt + R"("MIXED_PRECISION")") == 0);
  CHECK(disagree(modelopt_nvfp4, modelopt + R"("FP8")") == 1);
  CHECK(disagree(modelopt_nvfp4, R"("quant_method": "mxfp4")") == 1);
  CHECK(disagree(modelopt_nvfp4, R"("quant_method": "gptq")") == 1);
  CHECK(disagree(modelopt_nvfp4, R"("group_size": 32)") == 1);
  CHECK(disagree(modelopt_nvfp4, modelopt + R"("NVFP4")" + group + "32}}}") == 1);
  CHECK(disagree(modelopt_nvfp4, modelopt + R"("NVFP4")" + group + "16}}}") == 0);
  const std::string compressed = R"("quant_method": "compressed-tensors", "format": )";
  CHECK(disagree(compressed_nvfp4, compressed + R"("nvfp4-pack-quantized")" + group + "16}}}") == 0);
  CHECK(disagree(mxfp4, compressed + R"("nvfp4-pack-quantized")") == 1);
  CHECK(disagree(fp8_rows, compressed + R"("float-quantized")") == 0);
  CHECK(disagree(fp8_blocks, R"("quant_method": "fp8", "weight_block_size": [128, 128])") == 0);
  CHECK(disagree(gptoss, R"("quant_method": "mxfp4")") == 0);
  CHECK(disagree(gptoss, R"("quant_method": "nvfp4")") == 1);
  // Experts alone of the scheme that is named.
  const Findings mixed = checked(
      modelopt_nvfp4, both(config(R"({"quantization_config": {"quant_algo": "NVFP4"}})"), [](Model& m) {
        for (auto it = m.checkpoint.tensors.begin(); it != m.checkpoint.tensors.end();)
          it = it->first.find("q_proj") != std::string::npos ? m.checkpoint.tensors.erase(it) : std::next(it);
        for (const char* layer : {"0", "1"})
          fp8_tensor(m, std::string("model.layers.") + layer + ".self_attn.q_proj");
      }));
  CHECK_MESSAGE(mixed.count("config-disagrees") == 0, text_of(mixed));
  const Findings found = checked(fp8_rows, config(R"({"quantization_config": {"quant_algo": "NVFP4"}})"));
  REQUIRE(found.kept().size() == 1);
  CHECK(found.kept()[0].finding.message ==
        "the config's quant_algo is NVFP4, and 30 of 30 quantised tensors are fp8");
}

TEST_CASE("a global scale is one number, or one an expert") {
  const auto wrong = [](const Shape& values, const Shape& globals) {
    Checkpoint checkpoint;
    Shape scales = values;
    scales.back() /= 8;
    checkpoint.tensors["w.weight"] =
        source(bytes(DType::uint8, values, [](std::int64_t i) { return int(i & 0x77); }));
    checkpoint.tensors["w.weight_scale"] = source(
        bytes(DType::float8_e4m3fn, scales, [](std::int64_t i) { return 0x60 + static_cast<int>(i % 5); }));
    checkpoint.tensors["w.weight_scale_2"] = source(floats(globals, [](std::int64_t) { return 1e-3; }));
    const std::string decodes = plain::failure_and_hint(
        [&] { decoded_tensor(quantized_tensors(checkpoint.tensors).at(0), checkpoint.tensors); });
    const std::int64_t count = check_checkpoint(checkpoint).count("scale-shape");
    CHECK((count == 0) == (decodes == "no error"));
    return count;
  };
  CHECK(wrong({4, 16}, {}) == 0);
  CHECK(wrong({4, 16}, {1}) == 0);
  CHECK(wrong({4, 16}, {2}) == 1);
  CHECK(wrong({4, 8, 16}, {4}) == 0);
  CHECK(wrong({4, 8, 16}, {4, 1, 1}) == 0);
  CHECK(wrong({4, 8, 16}, {8}) == 1);
  CHECK(wrong({16}, {2}) == 1);
}

TEST_CASE("experts that a router has weights for are there, without a config too") {
  const auto incomplete = [](const Change& change) {
    return checked(fp8_tensor, change).count("experts-incomplete");
  };
  const Change no_last = [](Model& m) {
    std::erase_if(m.checkpoint.tensors,
                  [](const auto& entry) { return entry.first.starts_with("model.layers.1.mlp.experts.3."); });
  };
  CHECK(incomplete(no_last) == 1);
  CHECK(incomplete(both(no_last, erase("model.layers.1.mlp.gate.weight"))) == 0);
  CHECK(incomplete(both(no_last, config(R"({"num_experts": 4, "quantization_config": {}})"))) == 1);
  CHECK(incomplete(both(no_last, [](Model& m) {
          m.put("model.layers.1.mlp.gate.weight", floats({32, 4}, [](std::int64_t i) { return i; }));
        })) == 1);
}

TEST_CASE("a tensor of several files is reported once, whichever of them the index has") {
  for (const char* last : {"a.safetensors", "z.safetensors"}) {
    const Findings found = checked(fp8_tensor, both(index(""), [&](Model& m) {
                                     m.checkpoint.files.push_back({last, {kGate + ".weight"}});
                                     std::swap(m.checkpoint.files[0], m.checkpoint.files[1]);
                                     m.checkpoint.files.push_back({"c.safetensors", {kGate + ".weight"}});
                                   }));
    CHECK(found.count("index-disagrees") == 1);
    REQUIRE(found.kept().size() == 1);
    CHECK(found.kept()[0].finding.message.starts_with("it is in "));
  }
}

namespace {

// A source in memory that counts the bytes that are released.
class Counted final : public ForwardingSource {
 public:
  Counted(std::shared_ptr<const ArraySource> inner, std::atomic<std::int64_t>& released)
      : ForwardingSource(std::move(inner)), released_(released) {}
  void release(const std::byte*, std::int64_t bytes) const override { released_ += bytes; }

 private:
  std::atomic<std::int64_t>& released_;
};

}  // namespace

TEST_CASE("what is read of values and scales is released") {
  Model model(fp8_blocks);
  std::atomic<std::int64_t> released = 0;
  std::int64_t bytes = 0;
  for (auto& [name, tensor] : model.checkpoint.tensors)
    if (name.ends_with("_proj.weight") || name.ends_with("_scale_inv")) {
      bytes += type_of(*tensor).bytes();
      tensor = std::make_shared<Counted>(tensor, released);
    }
  const Findings found = check_checkpoint(model.checkpoint, {.codes = true, .rules = {}});
  CHECK(found.errors() == 0);
  CHECK(released == bytes);
}

TEST_CASE("what CheckpointParts writes is recognised, sound and decoded, by the names of each library") {
  struct Form {
    TensorNames names;
    QuantizeSettings settings;
    const char* scheme;
    double least_db;
  };
  using S = QuantizationScheme;
  using enum TensorNames;
  for (const Form& form :
       {Form{modelopt, {.scheme = S::nvfp4}, "nvfp4", 19}, Form{modelopt, {.scheme = S::fp8}, "fp8", 29},
        Form{modelopt, {.scheme = S::mx}, "mxfp8", 29},
        Form{compressed_tensors, {.scheme = S::nvfp4}, "nvfp4", 19},
        Form{compressed_tensors, {.scheme = S::mx, .element = ElementFormat::e2m1}, "mxfp4", 16},
        Form{compressed_tensors, {.scheme = S::mx}, "mxfp8", 29},
        Form{compressed_tensors, {.scheme = S::fp8}, "fp8", 29},
        Form{deepseek, {.scheme = S::fp8, .block = ScaleBlock{128, 128}}, "fp8-blocks", 29}}) {
    CAPTURE(name_of(form.names));
    CAPTURE(form.scheme);
    Random random{11};
    CheckpointParts writer(form.settings, form.names);
    Checkpoint checkpoint;
    std::map<std::string, std::shared_ptr<const ArraySource>> unquantized;
    double magnitude = 0.01;
    for (const char* part : {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj"}) {
      const std::string name = std::string("model.layers.0.") + part + ".weight";
      magnitude *= 1.3;
      unquantized[name] = source(floats({160, 288}, [&](std::int64_t) {
        return magnitude * (static_cast<double>(random() % 2001) / 1000 - 1);
      }));
      for (const CheckpointParts::Part& one : writer.add(name, unquantized[name]))
        checkpoint.tensors[one.name] = one.source;
    }
    const auto found = quantized_tensors(checkpoint.tensors);
    CHECK(found.size() == 6);
    for (const QuantizedTensor& q : found) {
      CHECK(name_of(q.scheme) == form.scheme);
      REQUIRE(unquantized.contains(q.unquantized_name));
      const Array decoded = read_all(*decoded_tensor(q, checkpoint.tensors));
      const Array exact = read_all(*unquantized.at(q.unquantized_name));
      double signal = 0, noise = 0;
      for (std::size_t i = 0; i < exact.elements<float>().size(); ++i) {
        const double x = exact.elements<float>()[i],
                     error = x - static_cast<double>(decoded.elements<float>()[i]);
        signal += x * x, noise += error * error;
      }
      CHECK(10 * std::log10(signal / noise) > form.least_db);
    }
    const Findings findings = check_checkpoint(checkpoint, {.codes = true, .rules = {}});
    CHECK_MESSAGE(findings.errors() + findings.warnings() == 0, text_of(findings));
  }
}
