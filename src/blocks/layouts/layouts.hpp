// The table of layouts: how kernels of a library store a mask in several arrays.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "ejk/mask_info.hpp"
#include "mask/stored_masks.hpp"

namespace ejk::blocks {

using namespace mask;  // bits, rectangles and states of blocks

struct MaskLayout {
  struct ArrayName {
    const char* name;
    bool required = false;
  };
  std::string_view name;
  std::span<const ArrayName> arrays;
  std::span<const StoredSetting> settings;
  /// Throws what the constructor of StoredMaskInfo throws.
  std::shared_ptr<const StoredMasks> (*read)(const ArrayGroup& arrays, const StoredSettings& settings);
  StoredMaskInfo::Cost (*cost)(const ArrayGroup& arrays);
};

std::span<const MaskLayout> layouts();

/// The layout with the most required arrays in the group, the first of equals.
const MaskLayout& layout_of(const ArrayGroup& group);

/// Sets one setting from its text. False if the text is not of its form.
bool read_setting(const StoredSetting& setting, const std::string& text, StoredSettings& into);

}  // namespace ejk::blocks
