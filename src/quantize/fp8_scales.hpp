// Scales of FP8: the block of values that shares one, from shapes and names. The one place that decides it, for
// references, decoded checkpoints and checks; the rule is that of ejk/quantize.hpp.
// tests: tests/quantize/test_fp8_scales.cpp
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "ejk/array.hpp"
#include "ejk/quantize.hpp"

namespace ejk::quantize {

/// The usual block of weights, which DeepSeek's config names.
inline constexpr ScaleBlock kUsualBlock{128, 128};

/// What decides the block, beside the shapes.
struct BlockRule {
  std::optional<ScaleBlock> block = std::nullopt;  // no other is tried
  bool is_usual = false;  // by the scales' name: kUsualBlock where it fits, and no other block is guessed
  bool guess = true;      // blocks of powers of two
};

/// Whether scales of this name are of blocks of 128x128: "q.weight_scale_inv", "q.scale", as a tensor or as a
/// reference to one (m.safetensors:q.weight_scale_inv).
bool is_usual_block_name(std::string_view name);

/// Whether a global scale of this name, or of a reference to it, divides: compressed-tensors stores the factor of
/// quantisation as "weight_global_scale", others its inverse.
GlobalScale global_use(std::string_view name);

/// Scales of rows and of leading axes, (rows,), (experts,) and (experts, rows), with an axis for each of the
/// values'. Others as they are.
Shape spread_scales(const Shape& scales, const Shape& values);
std::shared_ptr<const ArraySource> spread_scales(std::shared_ptr<const ArraySource> scales,
                                                 const Shape& values);

/// A block of the last two axes, along each axis; `rank` is at least 2.
Shape along_axes(const ScaleBlock& block, std::size_t rank);

/// The values of one scale along each axis; nothing where the scales are of none that the rule takes.
std::optional<Shape> block_of_scales(const Shape& values, const Shape& stored, const BlockRule& rule = {});

/// Why block_of_scales() takes none, with the block that fits as the hint.
Error refused_scales(const ArraySource& scales, const Shape& values);

}  // namespace ejk::quantize
