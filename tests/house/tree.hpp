// The files of the repository.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace house {

inline const std::filesystem::path kRoot = EJK_ROOT;

/// All of a file.
std::string read_file(const std::filesystem::path& path);

std::vector<std::string> lines_of(const std::string& text);

/// Regular files below ROOT/folder, as sorted paths relative to the root ("src/core/pieces.hpp").
std::vector<std::string> files_below(std::string_view folder);

/// Has it one of these endings? ".cpp", ".hpp", ".inl"
bool is_code(std::string_view path);

/// Code without comments and without what stands in quotes ("" stays), and what stands in quotes.
struct Parts {
  std::string code;
  std::vector<std::string> strings;
};
Parts parts_of(std::string_view code);

/// What a program prints on stdout, both streams where `command` says so.
struct Printed {
  int status;
  std::string text;
};
Printed output_of(const std::string& command);

}  // namespace house
