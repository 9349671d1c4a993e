// Axes by their numbers; negative ones count from the end.
#pragma once

#include <fmt/format.h>

#include <string>

#include "ejk/array.hpp"

namespace ejk::core {

/// The hint for an axis that an array of this rank does not have.
inline std::string axes_of(std::int64_t rank) {
  return fmt::format("axis is one of {} to {}", -rank, rank - 1);
}

/// The axis of `shape` that `axis` means. Throws an error naming `name` when there is none: Error{usage}, or
/// Error{input} for a scalar, which has none at all.
inline std::size_t axis_of(const std::string& name, std::span<const std::int64_t> shape, std::int64_t axis) {
  const auto rank = static_cast<std::int64_t>(shape.size());
  if (axis < -rank || axis >= rank)
    throw Error(rank > 0 ? Error::Kind::usage : Error::Kind::input,
                fmt::format("{} of shape {} has no axis {}", name, to_string(shape), axis),
                rank > 0 ? Error::Code::no_such_axis : Error::Code::other)
        .hint(rank > 0 ? axes_of(rank) : "a scalar has no axis");
  return static_cast<std::size_t>(axis < 0 ? axis + rank : axis);
}

/// The index of the element that is `flat`-th in C order.
inline Shape index_of(std::span<const std::int64_t> shape, std::int64_t flat) {
  Shape index(shape.size());
  for (std::size_t d = shape.size(); d-- > 0; flat /= shape[d]) index[d] = flat % shape[d];
  return index;
}

}  // namespace ejk::core
