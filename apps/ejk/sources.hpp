// Arrays on their way from an input to an output.
#pragma once

#include <cstdint>
#include <memory>

#include "ejk/array.hpp"

namespace ejk::app {

/// What reading and writing piece by piece takes, for plans: a piece of the input and one of the output.
inline constexpr std::int64_t kPieceBytes = std::int64_t{16} << 20;

/// All of an input in memory, under its own name.
inline std::shared_ptr<const ArraySource> in_memory(const ArraySource& source) {
  return make_source(read_all(source), source.name());
}

}  // namespace ejk::app
