// Block pictures of masks.
#pragma once

#include "ejk/mask_info.hpp"
#include "ejk/report.hpp"

namespace ejk::blocks {

/// The states that a pass over the mask found, with densities and what empties blocks for a page. Key and title
/// are the caller's. It may outlive both.
BlockPicture picture_of(const Mask& mask, BlockShape block, const MaskSummary& summary);

}  // namespace ejk::blocks
