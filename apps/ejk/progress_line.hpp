// What a progress bar shows, as text.
#pragma once

#include <string>

namespace ejk::app {

/// The bar, the share in percent and the time left after `elapsed` seconds: as much of it as a line of so many
/// columns holds, the percentage first.
std::string progress_line(double share, double elapsed, int columns);

}  // namespace ejk::app
