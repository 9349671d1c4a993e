// Files under a name of arrays that are something else, by their first bytes: a Git LFS pointer, a page of
// HTML, a server's answer in JSON, other text, and formats of arrays that are not read. Consulted where a
// container fails to open, and for the formats before.
// tests: tests/io/test_other_content.cpp
#pragma once

#include <optional>
#include <string_view>

#include "ejk/error.hpp"

namespace ejk::io {

/// As many first bytes as are needed.
inline constexpr std::size_t kFirstBytes = 512;

/// Formats of arrays that are not read; nothing for other bytes. The Error has no name.
std::optional<Error> foreign_format(std::string_view begin);

/// The same, text as well, which is not `wanted`: "an .npz".
std::optional<Error> other_content(std::string_view begin, std::string_view wanted);

/// Throws that Error, prefixed with the name, where there is one for the file.
void refuse_other_content(int fd, std::string_view name, std::string_view wanted);

}  // namespace ejk::io
