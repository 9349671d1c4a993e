// Block pictures for tests.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "ejk/report.hpp"

namespace ejk {

inline BlockPicture picture_of(std::int64_t rows, std::int64_t columns, std::vector<std::uint8_t> states) {
  auto held = std::make_shared<const BlockStates>(columns, std::move(states));
  if (held->rows() != rows) throw std::logic_error("a picture of other rows");
  return {"p", "blocks", std::move(held)};
}

}  // namespace ejk
