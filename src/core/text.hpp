// The text helpers of ejk/text.hpp under this room's name.
#pragma once

#include "ejk/text.hpp"

namespace ejk::core {

using ejk::format_bytes;
using ejk::format_count;
using ejk::is_whole_number;
using ejk::nearest_name;
using ejk::parse_integer;
using ejk::parse_size;
using ejk::printable;

}  // namespace ejk::core
