// Signals: none leaves a temporary file behind.
#pragma once

#include <string>

namespace ejk::app {

/// From now on SIGINT, SIGTERM, SIGHUP and SIGPIPE remove temporary files before they end the program as they
/// would have, SIGBUS is an input error where a mapped input got shorter, with a message that begins with
/// `program` and names the file, and ends the program anywhere else, and SIGXFSZ (a file at its limit) is
/// ignored, so that the write fails.
void handle_signals(const std::string& program);

}  // namespace ejk::app
