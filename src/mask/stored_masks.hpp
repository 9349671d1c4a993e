// Masks stored block by block in several arrays, for from(...) and visited(...); implemented in `layouts`.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ejk/mask.hpp"

namespace ejk::mask {

/// The masks of all heads. Thread-safe.
class StoredMasks {
 public:
  virtual ~StoredMasks() = default;
  virtual MaskShape shape() const = 0;
  virtual Mask mask(const Shape& shape, std::int64_t head) const = 0;
  /// All pairs of the blocks that a kernel visits.
  virtual Mask visited(const Shape& shape, std::int64_t head) const = 0;
};

/// A setting that the arrays do not contain: a parameter of from(...) and visited(...), an attribute of a
/// file.
struct StoredSetting {
  enum class Form { block, shape, walk, size };  // QxK; HxQxK or QxK; forward or dkv; an integer from 1 on
  const char* parameter;
  const char* attribute;
  Form form;
  const char* noun;  // in messages
};
std::span<const StoredSetting> stored_settings();

/// Reads the arrays of reference `info` by `open`. `arguments`: those of from(...), checked by their forms.
std::shared_ptr<const StoredMasks> open_stored_masks(const OpenArray::Group& open,
                                                     const std::map<std::string, std::string>& arguments);

/// Lengths of masks: "8x4096x4096" as (8, 4096, 4096). Nothing if the text is something else.
std::optional<Shape> lengths_in(std::string_view text);

}  // namespace ejk::mask
