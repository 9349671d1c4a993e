// Block pictures for tests.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ejk/report.hpp"

namespace ejk {

inline BlockPicture picture_of(std::int64_t /*rows*/, std::int64_t columns,
                               std::vector<std::uint8_t> states) {
  return {"p", "blocks", std::make_shared<const BlockStates>(columns, std::move(states))};
}

}  // namespace ejk
