// The table of layouts: how the kernels of a library store a mask in several arrays.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/checked.hpp"
#include "core/require.hpp"
#include "ejk/mask_info.hpp"
#include "ejk/mask_layouts.hpp"
#include "layouts/listed.hpp"
#include "mask/stored_masks.hpp"

namespace ejk::blocks {

using namespace mask;  // bits, rectangles and states of blocks

struct MaskScans;
struct ArraysMade;

struct StoredMaskLayout {
  std::string_view name;
  std::span<const char* const> arrays;  // in the order in which they are written, settings included
  bool (*is_of)(const ArrayGroup& arrays);
  StoredMaskInfo::Cost (*cost)(const ArrayGroup& arrays) = cost_of_indices;
  /// One of these reads it. They throw what the constructor of StoredMaskInfo throws.
  std::shared_ptr<const StoredMasks> (*read)(const ArrayGroup& arrays,
                                             const StoredSettings& settings) = nullptr;
  std::shared_ptr<const ListedBlocks> (*list)(const ArrayGroup& arrays,
                                              const StoredSettings& settings) = nullptr;
  std::shared_ptr<const PairRule> (*rule)(const ArrayGroup& arrays, const StoredSettings& settings) = nullptr;
  /// Of layouts that MaskArraysPlan writes.
  std::optional<MaskLayout> written_as = std::nullopt;
  void (*write)(const MaskScans& scans, ArraysMade& to) = nullptr;
  std::span<const LayoutSetting> takes = {};
  /// Beginnings of names of arrays that the writer leaves out for another reason than that no block is partial.
  std::span<const std::pair<std::string_view, AbsentArray>> absent = {};
  bool is_divided = false;  // ranks share the scan, and the arrays are planned before the masks are read

  std::shared_ptr<const StoredMasks> open(const ArrayGroup& group, const StoredSettings& settings) const;
};

std::span<const StoredMaskLayout> layouts();

/// The layout of a group; JAX's where there are arrays of none. Throws Error{input} for arrays of two.
const StoredMaskLayout& layout_of(const ArrayGroup& group);

/// The row that writes a layout.
const StoredMaskLayout& layout_for(MaskLayout layout);

/// Sets one setting from its text. False if the text is not of its form.
bool read_setting(const StoredSetting& setting, const std::string& text, StoredSettings& into);

/// The settings in the attributes and arrays of a group, and those given. Throws Error{input} for an invalid
/// one, and for attributes that contradict arrays, Error{usage} where those given contradict.
StoredSettings settings_of(const ArrayGroup& group, const StoredSettings& given);

/// A bool without axes; nothing where there is no such array. Throws Error{input} for another.
std::optional<bool> flag_in(const ArrayGroup& group, const char* name);

/// A size without axes, at least 1; nothing where there is no such array. Throws Error{input} for another.
std::optional<std::int64_t> size_in(const ArrayGroup& group, const char* name);

/// The names of arrays that contain settings.
inline constexpr const char* kSettingArrays[] = {
    "block", "BLOCK_SIZE", "block_size", "shape", "seq_lengths", "dkv", "q_seq_shards", "kv_seq_shards"};

/// The block by settings, or that of the elements of `stored` blocks. Throws Error{input} where they differ.
std::optional<BlockShape> agreed_block(const ArrayGroup& group, const std::optional<BlockShape>& set,
                                       const std::optional<BlockShape>& stored);
/// Throws Error{usage} (Code::unknown_block) without a block, Error{input} for one that is not.
BlockShape required_block(const ArrayGroup& group, const std::optional<BlockShape>& block);

/// Heads, queries and keys as settings have them; at least as many heads as stored masks.
MaskShape shape_in(const Shape& lengths, std::int64_t rows = 1);
/// For arrays that do not say their lengths, where nothing else does.
Error unknown_lengths(const std::string& name);

/// The block of distinct partial blocks (P, q, kv) of bytes. Throws Error{input} for another array; `type`
/// names what it is.
BlockShape block_in(const ArraySource& patterns, const char* type);

/// Throws Error{input} where an array has an axis of several batch entries.
void require_one_entry(const IndexArray& array);

/// An error about an array of the group.
inline Error wrong(std::string_view array, std::string why) {
  return core::invalid(std::move(why)).about(array);
}
template <class First, class... Rest>
Error wrong(std::string_view array, fmt::format_string<First, Rest...> why, First&& first, Rest&&... rest) {
  return wrong(array, fmt::format(why, std::forward<First>(first), std::forward<Rest>(rest)...));
}

}  // namespace ejk::blocks
