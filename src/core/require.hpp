// Checks of arguments, and the errors that many functions share.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "ejk/array.hpp"
#include "ejk/error.hpp"

namespace ejk::core {

/// An argument with an invalid value.
inline Error invalid(std::string why) { return {Error::Kind::input, std::move(why)}; }
template <class First, class... Rest>
Error invalid(fmt::format_string<First, Rest...> why, First&& first, Rest&&... rest) {
  return invalid(fmt::format(why, std::forward<First>(first), std::forward<Rest>(rest)...));
}

/// Wrong use of a function.
inline Error usage(std::string why) { return {Error::Kind::usage, std::move(why)}; }
template <class First, class... Rest>
Error usage(fmt::format_string<First, Rest...> why, First&& first, Rest&&... rest) {
  return usage(fmt::format(why, std::forward<First>(first), std::forward<Rest>(rest)...));
}

/// The array. Throws Error{usage} for null.
inline const ArraySource& required(const std::shared_ptr<const ArraySource>& array) {
  if (!array) throw usage("an array is missing");
  return *array;
}

/// Throws unless work is divided among at least one rank.
inline void require_ranks(std::int64_t ranks) {
  if (ranks < 1) throw usage("work is not divided among {} ranks", ranks);
}

/// Throws unless `shape` is (heads, queries, keys) and has that head.
inline void require_head(const Shape& shape, std::int64_t head) {
  if (shape.size() != 3) throw usage("masks have the shape (heads, queries, keys), not {}", to_string(shape));
  if (head < 0 || head >= shape[0])
    throw usage("there is no head {} in the shape {}", head, to_string(shape));
}

}  // namespace ejk::core
