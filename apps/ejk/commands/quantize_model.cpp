// The folder of a quantised model. Tensors stay in files of the names that the input has, so that each is read and
// written once; the config gets the member quantization_config by which vLLM, SGLang and Transformers find the
// scheme.
// tests: tests/cli/quantize/model.case
#include "quantize_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "ejk/program/hash.hpp"
#include "ejk/program/text.hpp"

namespace ejk::app {

namespace fs = std::filesystem;

namespace {

constexpr char kConfig[] = "config.json", kModelOptConfig[] = "hf_quant_config.json",
               kOneFile[] = "model.safetensors";
// Of a file that is copied; vocabularies are smaller.
constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;

JsonValue text(std::string_view value) { return JsonValue(std::string(value)); }

JsonValue list_of(const std::vector<std::string>& words) {
  JsonValue::List list;
  for (const std::string& word : words) list.push_back(text(word));
  return JsonValue(std::move(list));
}

bool is_4_bit(const QuantizeSettings& how) {
  return how.scheme == QuantizationScheme::nvfp4 || how.element == ElementFormat::e2m1;
}

std::optional<std::int64_t> group_size(const QuantizeSettings& how) {
  if (how.scheme == QuantizationScheme::nvfp4) return 16;
  return how.scheme == QuantizationScheme::mx ? std::optional<std::int64_t>(32) : std::nullopt;
}

// compressed-tensors' and ModelOpt's description of weights, of all linear layers.
JsonValue config_groups(const QuantizeSettings& how) {
  JsonValue::Object weights{{"num_bits", JsonValue(std::int64_t{is_4_bit(how) ? 4 : 8})},
                            {"type", text("float")},
                            {"symmetric", JsonValue(true)},
                            {"dynamic", JsonValue(false)}};
  const auto size = group_size(how);
  const bool is_nvfp4 = how.scheme == QuantizationScheme::nvfp4;
  weights.emplace_back("strategy", text(is_nvfp4 ? "tensor_group" : size ? "group" : "tensor"));
  if (size) weights.emplace_back("group_size", JsonValue(*size));
  JsonValue::Object group{{"targets", list_of({"Linear"})}, {"weights", JsonValue(std::move(weights))}};
  return JsonValue(JsonValue::Object{{"group_0", JsonValue(std::move(group))}});
}

std::string modelopt_algorithm(const QuantizeSettings& how) {
  return how.scheme == QuantizationScheme::nvfp4 ? "NVFP4"
         : how.scheme == QuantizationScheme::mx  ? "MXFP8"
                                                 : "FP8";
}

JsonValue quantization_config(const QuantizeSettings& how, TensorNames names,
                              const std::vector<std::string>& ignored) {
  switch (names) {
    case TensorNames::compressed_tensors:
      return JsonValue(
          JsonValue::Object{{"quant_method", text("compressed-tensors")},
                            {"format", text(how.scheme == QuantizationScheme::nvfp4 ? "nvfp4-pack-quantized"
                                            : how.scheme == QuantizationScheme::fp8 ? "float-quantized"
                                            : is_4_bit(how)                         ? "mxfp4-pack-quantized"
                                                                                    : "mxfp8-quantized")},
                            {"quantization_status", text("compressed")},
                            {"config_groups", config_groups(how)},
                            {"ignore", list_of(ignored)}});
    case TensorNames::modelopt:
      return JsonValue(JsonValue::Object{{"quant_method", text("modelopt")},
                                         {"quant_algo", text(modelopt_algorithm(how))},
                                         {"config_groups", config_groups(how)},
                                         {"ignore", list_of(ignored)}});
    case TensorNames::deepseek:
      break;
  }
  JsonValue::Object config{{"quant_method", text("fp8")},
                           {"fmt", text("e4m3")},
                           {"activation_scheme", text("dynamic")},
                           {"modules_to_not_convert", list_of(ignored)}};
  if (how.block)
    config.emplace_back("weight_block_size", JsonValue(JsonValue::List{JsonValue(how.block->rows),
                                                                       JsonValue(how.block->columns)}));
  if (how.power_of_two) config.emplace_back("scale_fmt", text("ue8m0"));
  return JsonValue(std::move(config));
}

// "pytorch_model-00001-of-00002.bin" becomes "model-00001-of-00002.safetensors".
std::string safetensors_name(const fs::path& file) {
  std::string stem = file.stem();
  constexpr std::string_view kTorch = "pytorch_";
  if (file.extension() != ".safetensors" && stem.starts_with(kTorch)) stem.erase(0, kTorch.size());
  return stem + ".safetensors";
}

bool is_of_tensors(std::string_view name) {
  for (const std::string_view suffix : {".safetensors", ".bin", ".pt", ".pth", ".npy", ".index.json"})
    if (name.ends_with(suffix)) return true;
  return name == kConfig || name == kModelOptConfig;
}

}  // namespace

bool is_folder_target(const std::string& target) {
  std::error_code unknown;
  return target.ends_with('/') || fs::is_directory(target, unknown);
}

ModelFolder::ModelFolder(const std::string& x, std::string target, Job& job)
    : target_(std::move(target)), job_(job) {
  check_model_target(target_);
  if (is_without_file(x)) return;
  x_folder_ = model_folder(x);
  if (x_folder_.empty()) return;
  for (const std::string& path : model_files_in_folder(x_folder_)) {
    const ArrayFile file(path, {.max_memory = job.budget.bytes()});
    for (const std::string& name : file.names()) file_of_[name] = safetensors_name(path);
  }
}

void ModelFolder::add(const std::string& input, NamedArray array) {
  const auto known = file_of_.find(input);
  const std::string name = known == file_of_.end() ? kOneFile : known->second;
  auto file = std::find_if(files_.begin(), files_.end(), [&](const ModelFile& f) { return f.name == name; });
  if (file == files_.end()) file = files_.insert(file, {name, {}});
  file->arrays.push_back(std::move(array));
}

void ModelFolder::add_text(const std::string& name, std::string text) {
  others_.push_back({name, std::move(text)});
}

std::int64_t ModelFolder::add_others(const QuantizeSettings& how, TensorNames names,
                                     const std::vector<std::string>& ignored,
                                     std::vector<std::string>& warnings) {
  if (files_.size() > 1) {
    JsonValue::Object places;
    std::int64_t bytes = 0;
    for (const ModelFile& file : files_)
      for (const NamedArray& array : file.arrays) {
        places.emplace_back(array.name, text(file.name));
        bytes += type_of(*array.source).bytes();
      }
    add_text("model.safetensors.index.json",
             stable_json(JsonValue(JsonValue::Object{
                 {"metadata", JsonValue(JsonValue::Object{{"total_size", JsonValue(bytes)}})},
                 {"weight_map", JsonValue(std::move(places))}})));
  }
  JsonValue::Object config;
  std::error_code unknown;
  const std::string given = x_folder_.empty() ? "" : x_folder_ + "/" + kConfig;
  if (!given.empty() && fs::is_regular_file(given, unknown)) {
    JsonValue read = job_.inputs.read_json("config", given);
    auto* members = std::get_if<JsonValue::Object>(&read.value);
    if (members == nullptr) throw Error(Error::Kind::input, printable(given) + ": is no object of JSON");
    config = std::move(*members);
    std::erase_if(config, [](const auto& member) { return member.first == "quantization_config"; });
  }
  config.emplace_back("quantization_config", quantization_config(how, names, ignored));
  add_text(kConfig, stable_json(JsonValue(std::move(config))));
  if (names == TensorNames::modelopt) {
    JsonValue::Object quantization{{"quant_algo", text(modelopt_algorithm(how))},
                                   {"exclude_modules", list_of(ignored)}};
    if (const auto size = group_size(how)) quantization.emplace_back("group_size", JsonValue(*size));
    add_text(kModelOptConfig,
             stable_json(JsonValue(JsonValue::Object{{"quantization", JsonValue(std::move(quantization))}})));
  }
  if (!x_folder_.empty())
    for (const std::string& name : names_in_folder(x_folder_)) {
      if (is_of_tensors(name)) continue;
      const std::string path = x_folder_ + "/" + name;
      std::optional<std::string> content;
      if (fs::is_regular_file(path, unknown)) content = read_file(path, kMostBytes);
      if (content)
        add_text(name, std::move(*content));
      else
        warnings.push_back(fmt::format("{} is not copied: it is no file, or larger than {}", printable(path),
                                       format_bytes(kMostBytes)));
    }
  std::int64_t bytes = 0;
  for (const FileContent& other : others_) bytes += std::ssize(other.bytes);
  return bytes;
}

void ModelFolder::write(Sync sync) const { write_model(target_, files_, others_, sync); }

}  // namespace ejk::app
