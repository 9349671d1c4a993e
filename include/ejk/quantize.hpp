// Block-scaled low-precision arrays: elements of 4, 6 or 8 bits with one scale for each block. Lazy decoding,
// encoding, scale layouts.
//
// Element formats and E8M0 scales: OCP Microscaling Formats (MX) 1.0. NVFP4 and scale layouts: as torchao,
// cuBLAS, ModelOpt, DeepGEMM and gpt-oss use them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/report.hpp"

namespace ejk {

/// Formats of elements. e4m3 is float8_e4m3fn. Codes of 4 and 6 bits are packed in uint8: two in a byte, four
/// in three bytes (the first code in the lowest bits).
enum class ElementFormat : std::uint8_t { e4m3, e5m2, e2m3, e3m2, e2m1 };

/// "e4m3", "e2m1".
std::string_view name_of(ElementFormat format);

/// How arrays of scales are stored. The grid has R rows and C columns of blocks along the scaled axis;
/// leading axes are each stored by themselves.
enum class ScaleLayout : std::uint8_t {
  linear,         // the grid in C order
  tiles_128x4,    // tiles of 128 x 4, padded: of a tile row r % 32 first, then r / 32, then the column
  tiles_8x4,      // tiles of 8 x 4, padded, each in C order
  packed_columns  // int32 (R, ceil(C / 4)): four E8M0 codes of a row in a word, the first in the lowest bits
};

/// "linear", "128x4", "8x4", "deepgemm".
std::string_view name_of(ScaleLayout layout);

/// Rows and columns of a block that shares a scale, of the last two axes.
struct ScaleBlock {
  std::int64_t rows = 1, columns = 1;
};
/// "128x128".
std::string to_string(const ScaleBlock& block);

enum class QuantizationScheme : std::uint8_t {
  fp8,    // 8-bit elements, scales of any float type or E8M0: one, or of rows, columns or blocks
  mx,     // blocks of 32 along an axis, E8M0 scales
  nvfp4,  // blocks of 16 along an axis, e2m1 elements, e4m3 scales, a global scale
  gptoss  // mx of e2m1, the blocks (..., n, 16) an axis of their own
};

/// "fp8", "mx", "nvfp4", "gptoss".
std::string_view name_of(QuantizationScheme scheme);

/// Which half of a byte holds the element with the even index; split, of blocks of 32 as GGML stores them: byte j
/// of a block has element j in its low half and j + 16 in its high one.
enum class NibbleOrder : std::uint8_t { low, high, split };

/// "low", "high", "split".
std::string_view name_of(NibbleOrder order);

enum class GlobalScale : std::uint8_t { multiplies, divides };
/// "multiplies", "divides".
std::string_view name_of(GlobalScale use);

struct DecodeSettings {
  /// By default that of the values' type; e2m1 for mx of uint8.
  std::optional<ElementFormat> element = std::nullopt;
  /// Of fp8; by default what the scales' shape and name imply, see below.
  std::optional<ScaleBlock> block = std::nullopt;
  ScaleLayout layout = ScaleLayout::linear;
  NibbleOrder nibbles = NibbleOrder::low;
  /// The axis that is packed and scaled in blocks, of mx and nvfp4; by default the last. In layouts other
  /// than linear it is the axis of the grid's columns.
  std::optional<std::int64_t> axis = std::nullopt;
  /// By default it divides if its name ends with "weight_global_scale", as compressed-tensors' does, else it
  /// multiplies.
  std::optional<GlobalScale> global = std::nullopt;
};

// Blocks of fp8, where none is given. The first that applies:
//   one scale       of all values
//   fewer axes      than the values: (n,) is of the rows, the last axis but one, if there are n, else of the
//                   leading axis (experts); others, as (experts, rows), are of the leading axes; never of columns
//   a usual name    ending with "_scale_inv" or ".scale": blocks of 128x128 if there are as many, the last ones
//                   cut short
//   each axis       as many scales as values, or one; else, without a usual name, as many as divide the values
//                   into blocks of a power of two
// Other shapes are refused.

/// The arrays that are quantised values.
struct QuantizedArrays {
  QuantizationScheme scheme = QuantizationScheme::mx;
  std::shared_ptr<const ArraySource> values, scales;
  /// Of nvfp4: one number, or one for each index of the leading axis.
  std::shared_ptr<const ArraySource> global_scale = nullptr;
};

/// What an array was decoded as: settings, with the defaults that applied.
struct DecodedAs {
  QuantizationScheme scheme = QuantizationScheme::mx;
  std::string_view element;  // "e2m1"; of values that have it the name of their type, "float8_e4m3fn"
  std::string block;         // of a scale: "all elements", "row", "column", "matrix", else lengths, "128x128"
  std::optional<std::int64_t> axis = std::nullopt;  // that is packed and scaled in blocks; none of fp8
  ScaleLayout layout = ScaleLayout::linear;
  std::optional<NibbleOrder> nibbles = std::nullopt;  // of 4-bit elements
  std::optional<GlobalScale> global = std::nullopt;   // of nvfp4
  bool operator==(const DecodedAs&) const = default;
};
/// On one line: "mx e2m1, blocks of 1x32 along axis 1, layout linear, low nibble first".
std::string to_string(const DecodedAs& decoded);

/// The numbers as float32, each the exact product rounded once, decoded box by box as they are read. Scales
/// that are not in memory or mapped are read whole at the first read. NaN scales make NaN blocks. `taken`
/// becomes what was decoded. Errors: Error{usage} for settings that the scheme does not have, Error{input} that
/// name the array for dtypes and shapes.
std::shared_ptr<const ArraySource> decoded_array(const QuantizedArrays& arrays,
                                                 const DecodeSettings& settings = {},
                                                 std::string name = "array", DecodedAs* taken = nullptr);

/// Rows and columns of a grid of scales.
struct ScaleGridSize {
  std::int64_t rows = 0, columns = 0;
};

/// Scales (..., R, C) of one byte in another layout, uint8 or a float of 8 bits, which keep their type. To
/// packed_columns: int32, of E8M0 codes, or of float32 numbers that are powers of two; from it: uint8.
/// Padding is 0. `grid` is needed where `from` is not linear, whose shape includes padding. Errors:
/// Error{input} for shapes and types, Error{usage} without the grid.
Array convert_scale_layout(const ArraySource& scales, ScaleLayout from, ScaleLayout to,
                           std::optional<ScaleGridSize> grid = std::nullopt);

/// How amax, the largest magnitude of a block, determines its E8M0 scale. emax is the exponent of the largest
/// element.
enum class ScaleRule : std::uint8_t {
  floor,  // floor(log2(amax)) - emax: OCP MX 1.0; saturates elements
  ceil,   // ceil(log2(amax)) - emax
  rceil,  // ceil(log2(amax / largest element)): cuBLAS
  even    // floor of amax rounded to the element's mantissa, as torchao does
};

/// "floor", "ceil", "rceil", "even".
std::string_view name_of(ScaleRule rule);

/// Where a number halfway between two elements goes.
enum class ElementRounding : std::uint8_t { even, away, down };

/// "even", "away", "down": to the even code, away from zero, towards zero.
std::string_view name_of(ElementRounding rounding);

struct QuantizeSettings {
  QuantizationScheme scheme = QuantizationScheme::mx;  // fp8, mx or nvfp4
  /// e4m3 by default; of fp8 e4m3 or e5m2, of nvfp4 e2m1.
  std::optional<ElementFormat> element = std::nullopt;
  /// Of fp8; by default one scale of all elements.
  std::optional<ScaleBlock> block = std::nullopt;
  /// Of mx, and of fp8 with powers of two; by default rceil.
  std::optional<ScaleRule> rule = std::nullopt;
  ElementRounding rounding = ElementRounding::even;
  ScaleLayout layout = ScaleLayout::linear;
  /// Of nvfp4: the number that multiplies all; by default amax / (448 * 6), 1 where that is 0.
  std::optional<float> global = std::nullopt;
  /// Of fp8: scales are powers of two.
  bool power_of_two = false;
};

struct Quantized {
  QuantizeSettings settings;  // with the defaults that applied
  /// float8_e4m3fn, float8_e5m2, or packed uint8 codes.
  Array values;
  /// float8_e8m0fnu (mx), float8_e4m3fn (nvfp4), float32 (fp8), int32 in layout packed_columns.
  Array scales;
  /// Of nvfp4: one float32.
  std::optional<float> global_scale;

  std::int64_t elements = 0, blocks = 0;
  std::int64_t zero_blocks = 0;  // whose elements are all 0, of fp8 also not finite
  std::int64_t saturated = 0;    // elements above the largest one, infinities too
  std::int64_t flushed = 0;      // that became 0 and were not
  std::int64_t nans = 0;         // elements that are NaN
  std::int64_t lost = 0;         // finite elements that a scale of NaN makes NaN
  std::int64_t codes_used = 0;   // different ones
  double signal = 0, noise = 0;  // sums of squares of the other finite elements, and of their errors
  double largest_error = 0;
  Shape largest_error_index;  // empty if there is none
};

/// Elements x / scale, rounded and saturated, in blocks along the last axis; x is converted to float32. NaN
/// stays NaN in e4m3 and e5m2, else it becomes the largest element; in mx its whole block has the scale NaN.
/// Codes of nvfp4 are those nearest to x / (scale · global); torchao multiplies in another order, and some
/// numbers about halfway between two codes differ. amax of fp8 and nvfp4 is that of finite elements. Scales of
/// fp8 are amax / largest element, 1 where that is 0. The same bytes on any number of threads. Errors:
/// Error{usage} for settings that the scheme does not have, Error{input} for a last axis that whole bytes do
/// not hold. Of `reused`, an earlier result, values and linear scales of the same type and shape are written
/// to again, as new memory takes longer; x must not be one of them.
Quantized quantize_array(const ArraySource& x, const QuantizeSettings& settings = {},
                         const std::function<void(std::int64_t done, std::int64_t all)>& progress = {},
                         Quantized reused = {});

/// The types of the arrays, values and scales; the errors of quantize_array().
struct QuantizedTypes {
  ArrayType values, scales;
};
QuantizedTypes quantized_types(const ArraySource& x, const QuantizeSettings& settings = {});

/// The rules in force and whose they are, counts, and errors.
Report describe(const Quantized& quantized);

/// Whose names the arrays of a quantised tensor have in a checkpoint.
enum class TensorNames : std::uint8_t {
  modelopt,            // weight, weight_scale, weight_scale_2, which multiplies: nvfp4, fp8, mx of e4m3
  compressed_tensors,  // weight_packed, weight_scale, weight_global_scale, which divides: nvfp4, mx, fp8
  deepseek             // weight, weight_scale_inv, which multiplies: fp8 in blocks
};

/// "modelopt", "compressed-tensors", "deepseek".
std::string_view name_of(TensorNames names);

/// Tensors of a checkpoint, each encoded when its parts are read: at most one is in memory. Sources may outlive
/// this; they are read by one thread at a time.
class CheckpointParts {
 public:
  struct Part {
    std::string name;
    std::shared_ptr<const ArraySource> source;
  };
  /// Of the tensors that were encoded.
  struct Totals {
    std::int64_t elements = 0, saturated = 0, nans = 0;
    double signal = 0, noise = 0;
  };
  /// Throws Error{usage} for settings that the library has no names for.
  CheckpointParts(const QuantizeSettings& settings, TensorNames names);

  /// The parts of a tensor "....weight", or of any other name, which then comes before ".weight". Of nvfp4, gate and
  /// up projections have one global scale, and those of queries, keys and values: add all before a part is read.
  /// Throws as quantized_types().
  std::vector<Part> add(const std::string& name, std::shared_ptr<const ArraySource> x);
  const Totals& totals() const;

 private:
  struct State;
  TensorNames names_;
  std::shared_ptr<State> state_;
};

}  // namespace ejk
