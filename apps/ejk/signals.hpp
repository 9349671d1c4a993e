// Signal handlers, which remove temporary files.
#pragma once

#include <string>

namespace ejk::app {

/// Installs the handlers. SIGINT, SIGTERM, SIGHUP and SIGPIPE remove temporary files, then end the program as
/// usual. SIGBUS in a mapped input that was truncated is an input error, whose message begins with `program`
/// and names the file. SIGXFSZ (the limit of a file's size) is ignored, so that the write fails.
void handle_signals(const std::string& program);

}  // namespace ejk::app
