// The table of layouts, the layout of a group of arrays, and settings from attributes or arguments.
// tests: tests/blocks/test_splash.cpp, tests/mask/test_expression.cpp
#include "blocks/layouts/layouts.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "core/offsets.hpp"
#include "ejk/text.hpp"
#include "mask/node.hpp"

namespace ejk {

namespace blocks {

extern const MaskLayout kSplash;  // JAX's splash attention: MaskInfo

std::span<const MaskLayout> layouts() {
  static const MaskLayout table[] = {kSplash};
  return table;
}

const MaskLayout& layout_of(const ArrayGroup& group) {
  const auto found = [&](const MaskLayout& layout) {
    return std::count_if(layout.arrays.begin(), layout.arrays.end(), [&](const MaskLayout::ArrayName& array) {
      return array.required && group.arrays.contains(array.name);
    });
  };
  const std::span<const MaskLayout> all = layouts();
  return *std::max_element(all.begin(), all.end(),
                           [&](const MaskLayout& a, const MaskLayout& b) { return found(a) < found(b); });
}

bool read_setting(const StoredSetting& setting, const std::string& text, StoredSettings& into) {
  using Form = StoredSetting::Form;
  if (setting.form == Form::walk) {
    into.direction = text == "dkv" ? Direction::dkv : Direction::forward;
    return text == "dkv" || text == "forward";
  }
  if (setting.form == Form::size) {
    const auto size = parse_integer(text);
    (setting.attribute == std::string_view("head_shards") ? into.head_shards : into.q_seq_shards) = size;
    return size && *size >= 1;
  }
  auto lengths = lengths_in(text);
  if (!lengths || lengths->size() < 2 || lengths->size() > (setting.form == Form::block ? 2 : 3))
    return false;
  if (setting.form == Form::block) {
    into.block = BlockShape{(*lengths)[0], (*lengths)[1]};
    return true;
  }
  if (lengths->size() == 2) lengths->insert(lengths->begin(), 1);
  into.shape = std::move(lengths);
  return true;
}

}  // namespace blocks

std::optional<Shape> mask::lengths_in(std::string_view text) {
  Shape lengths;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('x', begin), text.size());
    const auto length = parse_integer(text.substr(begin, end - begin));
    if (!length || *length < 1 || *length > kLongestMask) return std::nullopt;
    lengths.push_back(*length);
    begin = end + 1;
  }
  return lengths;
}

std::span<const mask::StoredSetting> mask::stored_settings() { return blocks::kSplash.settings; }

std::shared_ptr<const mask::StoredMasks> mask::open_stored_masks(
    const OpenArray::Group& open, const std::map<std::string, std::string>& arguments) {
  StoredSettings settings;
  for (const StoredSetting& setting : stored_settings())
    if (const auto at = arguments.find(setting.parameter); at != arguments.end())
      blocks::read_setting(setting, at->second, settings);
  const ArrayGroup group = open(arguments.at("info"), StoredMaskInfo::array_names());
  return blocks::layout_of(group).read(group, settings);
}

StoredMaskInfo::StoredMaskInfo(const ArrayGroup& arrays, const StoredSettings& settings)
    : masks_(blocks::layout_of(arrays).read(arrays, settings)) {}

const std::vector<std::string>& StoredMaskInfo::array_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const blocks::MaskLayout& layout : blocks::layouts())
      for (const auto& array : layout.arrays) all.emplace_back(array.name);
    return all;
  }();
  return names;
}

StoredMaskInfo::Cost StoredMaskInfo::cost(const ArrayGroup& arrays) {
  return blocks::layout_of(arrays).cost(arrays);
}

MaskShape StoredMaskInfo::shape() const { return masks_->shape(); }

Mask StoredMaskInfo::mask(const Shape& shape, std::int64_t head) const { return masks_->mask(shape, head); }

Mask StoredMaskInfo::visited(const Shape& shape, std::int64_t head) const {
  return masks_->visited(shape, head);
}

}  // namespace ejk
