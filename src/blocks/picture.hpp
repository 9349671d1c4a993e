// Block pictures of masks.
#pragma once

#include "ejk/mask_info.hpp"
#include "ejk/report.hpp"

namespace ejk::blocks {

/// The scanned states, with densities and causes of empty blocks for a page. The caller sets key and title.
/// It may outlive both arguments.
BlockPicture picture_of(const Mask& mask, BlockShape block, const MaskSummary& summary);

}  // namespace ejk::blocks
