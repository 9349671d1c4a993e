// Quantised checkpoints: which tensors are values, scales and global scales of each other, and whether they
// go together.
//
// The parts of a quantised tensor are found by their names ("down_proj.weight_packed" beside
// "down_proj.weight_scale") and types, as ModelOpt, compressed-tensors, DeepSeek and gpt-oss write them.
// check_checkpoint reads headers and scales, a few per cent of the bytes; with `codes` the values as well.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/check.hpp"
#include "ejk/program/json.hpp"
#include "ejk/quantize.hpp"

namespace ejk {

/// By name. 4- and 6-bit values are uint8, packed along the last axis.
using Tensors = std::map<std::string, std::shared_ptr<const ArraySource>>;

enum class CheckpointScheme : std::uint8_t {
  fp8,         // 8-bit floats, a float scale of the tensor or of each row or column
  fp8_blocks,  // 8-bit floats, a float or E8M0 scale of each block, 128x128 if the config gives no size
  mxfp8,       // 8-bit floats, an E8M0 scale of each 32
  nvfp4,       // two e2m1 a byte, an e4m3 scale of each 16, and a float scale of the tensor
  mxfp4,       // two e2m1 a byte, an E8M0 scale of each 32
  mxfp6,       // four 6-bit floats in 3 bytes, an E8M0 scale of each 32
  gptoss,      // MXFP4 as (..., rows, blocks, 16) with scales (..., rows, blocks)
  // Schemes whose names are known, and whose values are neither checked nor decoded.
  int8,          // integers of 8 bits with scales
  packed_int,    // compressed-tensors: integers of few bits in int32, with scales and the shape
  gptq,          // packed along the rows in int32, with zeros, scales and the order of groups
  awq,           // packed along the columns in int32
  bitsandbytes,  // nf4, fp4 and int8 with statistics of blocks or rows
  other,         // of none of these
};
/// "fp8", "fp8-blocks", "nvfp4", ..., "pack-quantized", "gptq".
std::string_view name_of(CheckpointScheme scheme);

/// Whether check_checkpoint checks values, shapes and scales of tensors of this scheme.
inline bool is_checked(CheckpointScheme scheme) { return scheme < CheckpointScheme::int8; }

/// A quantised tensor. Parts are names of tensors, empty where there is none.
struct QuantizedTensor {
  std::string name;  // without the suffix of its values: "model.layers.0.mlp.down_proj"
  CheckpointScheme scheme = CheckpointScheme::other;
  std::string values, scales, global_scale, input_scale;
  std::vector<std::string> others;  // of schemes that are not checked: zeros, order, shape
  bool global_divides = false;   // compressed-tensors stores the factor of quantisation, others its inverse
  std::string unquantized_name;  // of its numbers in a checkpoint before quantisation: "....down_proj.weight"
  std::optional<ElementFormat> element;  // of its values; none of `other`. Of MXFP6 names tell nothing: e2m3
};

/// In the order of the names of their values.
std::vector<QuantizedTensor> quantized_tensors(const Tensors& tensors);

/// How many numbers its values are, where the scheme or the parts beside them determine the packing. Reads a
/// weight_shape.
std::optional<std::int64_t> parameter_count(const QuantizedTensor& tensor, const Tensors& tensors);

/// Whether names of scales end like this: "k_scale", "weight_scale_inv".
bool is_scale_name(std::string_view name);

/// Rows and columns of a scale, by a config's weight_block_size.
std::optional<ScaleBlock> weight_block(const JsonValue& config);

/// Its numbers as float32 (decoded_array), decoded as they are read; `taken` becomes what was decoded. `block`: of
/// fp8_blocks, 128x128 without one. gpt-oss: with the last two axes exchanged, as Transformers stores the
/// unquantised tensor. Throws Error{input} for schemes that are not checked, missing scales, and types and shapes
/// that check_checkpoint() refuses.
std::shared_ptr<const ArraySource> decoded_tensor(const QuantizedTensor& tensor, const Tensors& tensors,
                                                  std::optional<ScaleBlock> block = std::nullopt,
                                                  DecodedAs* taken = nullptr);

struct Checkpoint {
  struct File {
    std::string name;
    std::vector<std::string> tensors;
  };
  Tensors tensors;          // of all files
  std::vector<File> files;  // compared with the index
  /// model.safetensors.index.json, and config.json or hf_quant_config.json.
  std::optional<JsonValue> index = {}, config = {};
};

struct CheckpointClaims {
  bool codes = false;              // read the values, for the rules of codes
  std::vector<std::string> rules;  // names of the rules to be applied; empty: all
};

/// Findings of the same rule in tensors whose names differ in numbers only are one finding, with their count
/// and the first three; with more than Findings::kFew of a rule kept they are single. Memory:
/// check_checkpoint_bytes. Throws Error{usage} for an unknown rule, Error{input} for values that cannot be
/// read.
Findings check_checkpoint(const Checkpoint& checkpoint, const CheckpointClaims& claims = {},
                          const CheckOptions& options = {});
std::int64_t check_checkpoint_bytes(const Checkpoint& checkpoint);

}  // namespace ejk
