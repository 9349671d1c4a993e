// The topics of `ejk help TOPIC`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ejk::app {

/// "arrays", "masks", "layouts", "json", "mpi", "options".
const std::vector<std::string>& topics();

/// The text of a topic; the first line is its title.
std::string topic_help(std::string_view topic);

}  // namespace ejk::app
