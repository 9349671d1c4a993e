// Manual pages, generated from the same declarations as help.
#pragma once

#include <string>

#include "commands.hpp"

namespace ejk::app {

/// ejk(1), ejk-COMMAND(1) and ejk-mpi(1), in the language of man.
std::string manual_page();
std::string manual_page(const Command& command);
std::string manual_page_of_mpi();

}  // namespace ejk::app
