// The table of layouts, the layout of a group of arrays, and settings from attributes, arrays or arguments.
// tests: tests/layouts/test_splash.cpp, tests/layouts/test_mask_layouts.cpp, tests/mask/test_expression.cpp
#include "layouts/layouts.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "core/offsets.hpp"
#include "ejk/program/text.hpp"
#include "mask/node.hpp"

namespace ejk {

namespace blocks {

extern const StoredMaskLayout kSplash, kTokamax, kTokamaxFull, kFlex, kFa4, kBsr, kFlashinfer, kVariable,
    kCustomMask, kFlashmask, kMagi;

std::span<const StoredMaskLayout> layouts() {
  static const StoredMaskLayout table[] = {kSplash,     kTokamax,  kTokamaxFull, kFlex,      kFa4, kBsr,
                                           kFlashinfer, kVariable, kCustomMask,  kFlashmask, kMagi};
  return table;
}

const StoredMaskLayout& layout_of(const ArrayGroup& group) {
  const StoredMaskLayout* found = nullptr;
  for (const StoredMaskLayout& layout : layouts()) {
    if (!layout.is_of(group)) continue;
    if (found != nullptr)
      throw core::invalid("{}: it has arrays of two layouts, {} and {}", group.name, found->name, layout.name)
          .about("layout");
    found = &layout;
  }
  return found != nullptr ? *found : layouts().front();
}

const StoredMaskLayout& layout_for(MaskLayout layout) {
  const auto all = layouts();
  return *std::find_if(all.begin(), all.end(),
                       [&](const StoredMaskLayout& row) { return row.written_as == layout; });
}

std::shared_ptr<const StoredMasks> StoredMaskLayout::open(const ArrayGroup& group,
                                                          const StoredSettings& settings) const {
  return read   ? read(group, settings)
         : list ? read_listed(list(group, settings))
                : read_rule(rule(group, settings));
}

bool read_setting(const StoredSetting& setting, const std::string& text, StoredSettings& into) {
  using Form = StoredSetting::Form;
  if (setting.form == Form::walk) {
    into.direction = text == "dkv" ? Direction::dkv : Direction::forward;
    return text == "dkv" || text == "forward";
  }
  if (setting.form == Form::size) {
    const auto size = parse_integer(text);
    const std::string_view name = setting.attribute;
    (name == "head_shards"    ? into.head_shards
     : name == "q_seq_shards" ? into.q_seq_shards
                              : into.kv_seq_shards) = size;
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

namespace {

constexpr StoredSetting kSettings[] = {
    {"block", "block", StoredSetting::Form::block, "block"},
    {"shape", "shape", StoredSetting::Form::shape, "shape"},
    {"walk", "dkv", StoredSetting::Form::walk, "direction"},
    {"head_shards", "head_shards", StoredSetting::Form::size, "number of head shards"},
    {"q_seq_shards", "q_seq_shards", StoredSetting::Form::size, "number of query shards"},
    {"kv_seq_shards", "kv_seq_shards", StoredSetting::Form::size, "number of key shards"},
};

const char* form_of(StoredSetting::Form form) {
  using Form = StoredSetting::Form;
  return form == Form::block   ? "QxK"
         : form == Form::shape ? "HxQxK"
         : form == Form::walk  ? "true or false"
                               : "a number of devices";
}

StoredSettings settings_in_attributes(const ArrayGroup& group) {
  StoredSettings found;
  const auto& attributes = group.attributes;
  // The attributes of another command have other meanings.
  if (const auto command = attributes.find("ejk_command");
      command != attributes.end() && command->second != "mask-info")
    return found;
  for (const StoredSetting& setting : kSettings) {
    const auto at = attributes.find(setting.attribute);
    if (at == attributes.end()) continue;
    std::string text = at->second;
    if (setting.form == StoredSetting::Form::walk)  // the attribute is that of a flag
      text = text == "true" ? "dkv" : text == "false" ? "forward" : "";
    if (!read_setting(setting, text, found))
      throw wrong(setting.attribute, "{}: the attribute {} is '{}', not {}", group.name, setting.attribute,
                  printable(at->second, 40), form_of(setting.form));
  }
  return found;
}

// Two or three lengths in an array of one axis.
std::optional<Shape> lengths_in_array(const ArrayGroup& group, const char* name) {
  const auto array = group.find(name);
  if (!array) return std::nullopt;
  const std::vector<std::int64_t> values = core::read_integers(*array, "lengths");
  if (values.size() != 2 && values.size() != 3)
    throw wrong(name, "{} has {} elements; it is two lengths", array->name(), values.size());
  for (const std::int64_t length : values)
    if (length < 1 || length > kLongestMask)
      throw wrong(name, "{} has a length of {}", array->name(), length);
  return values;
}

// Two lengths say nothing of heads: then there are `heads`.
StoredSettings settings_in_arrays(const ArrayGroup& group, std::int64_t heads) {
  StoredSettings found;
  for (const char* name : {"block", "BLOCK_SIZE", "block_size"})
    if (const auto lengths = lengths_in_array(group, name))
      found.block = BlockShape{(*lengths)[0], (*lengths)[1]};
  for (const char* name : {"shape", "seq_lengths"})
    if (auto lengths = lengths_in_array(group, name)) {
      if (lengths->size() == 2) lengths->insert(lengths->begin(), heads);
      found.shape = std::move(lengths);
    }
  found.q_seq_shards = size_in(group, "q_seq_shards");
  found.kv_seq_shards = size_in(group, "kv_seq_shards");
  if (const auto dkv = flag_in(group, "dkv")) found.direction = *dkv ? Direction::dkv : Direction::forward;
  return found;
}

std::string text_of(std::int64_t value) { return fmt::format("{}", value); }
std::string text_of(const Shape& shape) { return to_string(shape); }
std::string text_of(const BlockShape& block) { return to_string(block); }
std::string text_of(Direction direction) { return direction == Direction::forward ? "forward" : "dkv"; }

// `more` where `known` has nothing. Throws contradiction(what, known, more) for two values.
template <class T, class Contradiction>
std::optional<T> agreed(const char* what, const std::optional<T>& known, const std::optional<T>& more,
                        const Contradiction& contradiction) {
  if (known && more && text_of(*known) != text_of(*more))
    throw contradiction(what, text_of(*known), text_of(*more));
  return known ? known : more;
}

template <class Contradiction>
StoredSettings merged(const StoredSettings& known, const StoredSettings& more,
                      const Contradiction& contradiction) {
  return {agreed("block", known.block, more.block, contradiction),
          agreed("shape", known.shape, more.shape, contradiction),
          agreed("direction", known.direction, more.direction, contradiction),
          agreed("number of head shards", known.head_shards, more.head_shards, contradiction),
          agreed("number of query shards", known.q_seq_shards, more.q_seq_shards, contradiction),
          agreed("number of key shards", known.kv_seq_shards, more.kv_seq_shards, contradiction)};
}

}  // namespace

std::optional<bool> flag_in(const ArrayGroup& group, const char* name) {
  const auto array = group.find(name);
  if (!array) return std::nullopt;
  if (!array->shape().empty() || array->dtype() != DType::boolean)
    throw wrong(name, "{} is {}; it is a bool without axes", array->name(), to_string(type_of(*array)));
  std::uint8_t value = 0;
  array->read({}, {}, &value);
  return value != 0;
}

std::optional<std::int64_t> size_in(const ArrayGroup& group, const char* name) {
  const IndexArray value = read_index(group, name, 0, false);
  if (!value) return std::nullopt;
  if (value[0] < 1 || value[0] > kLongestMask)
    throw wrong(name, "{} is {}; a size is at least 1", value.source->name(), value[0]);
  return value[0];
}

StoredSettings settings_of(const ArrayGroup& group, const StoredSettings& given) {
  if (given.shape && given.shape->size() != 3)
    throw core::usage("{}: the shape {} is not (heads, queries, keys)", group.name, to_string(*given.shape));
  const StoredSettings by_attributes = settings_in_attributes(group);
  const std::optional<Shape>& shape = by_attributes.shape ? by_attributes.shape : given.shape;
  const StoredSettings by_arrays = settings_in_arrays(group, shape ? shape->front() : 1);
  const StoredSettings stored =
      merged(by_arrays, by_attributes,
             [&](const char* what, const std::string& array, const std::string& attribute) {
               return wrong(what, "{}: by an attribute its {} is {}, by its arrays {}", group.name, what,
                            attribute, array);
             });
  return merged(stored, given, [&](const char* what, const std::string& of_file, const std::string& of_user) {
    return core::usage("{}: its {} is {}, and {} is given", group.name, what, of_file, of_user);
  });
}

std::optional<BlockShape> agreed_block(const ArrayGroup& group, const std::optional<BlockShape>& set,
                                       const std::optional<BlockShape>& stored) {
  return agreed("block", set, stored,
                [&](const char* what, const std::string& wanted, const std::string& is) {
                  return wrong(what, "{}: its blocks are of {}, not {}", group.name, is, wanted);
                });
}

MaskShape shape_in(const Shape& lengths, std::int64_t rows) {
  return {std::max(rows, lengths[0]), lengths[1], lengths[2]};
}

Error unknown_lengths(const std::string& name) {
  return {Error::Kind::usage, fmt::format("{}: nothing says how many queries and keys it is for", name),
          Error::Code::unknown_lengths};
}

BlockShape block_in(const ArraySource& patterns, const char* type) {
  const Shape& shape = patterns.shape();
  if (shape.size() != 3 || size_of(patterns.dtype()) != 1)
    throw wrong("partial_mask_blocks", "{} is {}; it is {} (patterns, q, kv)", patterns.name(),
                to_string(type_of(patterns)), type);
  return {shape[1], shape[2]};
}

void require_one_entry(const IndexArray& array) {
  if (array.shape()[0] != 1)
    throw wrong(array.name, "{} has {} batch entries; a stored mask has one, of any number of heads",
                array.source->name(), array.shape()[0]);
}

BlockShape required_block(const ArrayGroup& group, const std::optional<BlockShape>& block) {
  if (!block)
    throw Error(Error::Kind::usage, fmt::format("{}: nothing says how large its blocks are", group.name),
                Error::Code::unknown_block)
        .hint(fmt::format("from({}, block=QxK) says it", group.name));
  for (const std::int64_t length : {block->q, block->kv})
    if (length < 1 || length > kLongestMask)
      throw wrong("block", "{}: a block of {} is no block", group.name, to_string(*block));
  return *block;
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

std::span<const mask::StoredSetting> mask::stored_settings() { return blocks::kSettings; }

std::shared_ptr<const mask::StoredMasks> mask::open_stored_masks(
    const OpenArray::Group& open, const std::map<std::string, std::string>& arguments) {
  StoredSettings settings;
  for (const StoredSetting& setting : stored_settings())
    if (const auto at = arguments.find(setting.parameter); at != arguments.end())
      blocks::read_setting(setting, at->second, settings);
  const ArrayGroup group = open(arguments.at("info"), StoredMaskInfo::array_names());
  return blocks::layout_of(group).open(group, settings);
}

StoredMaskInfo::StoredMaskInfo(const ArrayGroup& arrays, const StoredSettings& settings)
    : masks_(blocks::layout_of(arrays).open(arrays, settings)) {}

const std::vector<std::string>& StoredMaskInfo::array_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    const auto add = [&](std::span<const char* const> arrays) {
      for (const char* name : arrays)
        if (std::find(all.begin(), all.end(), name) == all.end()) all.emplace_back(name);
    };
    for (const blocks::StoredMaskLayout& layout : blocks::layouts()) add(layout.arrays);
    add(blocks::kSettingArrays);
    return all;
  }();
  return names;
}

bool StoredMaskInfo::is_in(const ArrayGroup& arrays) {
  const auto all = blocks::layouts();
  return std::any_of(all.begin(), all.end(), [&](const auto& layout) { return layout.is_of(arrays); });
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
