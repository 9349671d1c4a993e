#include "tree.hpp"

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace house {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  std::ostringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> files_below(std::string_view folder) {
  std::vector<std::string> files;
  if (!fs::exists(kRoot / folder)) return files;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder))
    if (entry.is_regular_file()) files.push_back(entry.path().lexically_relative(kRoot).generic_string());
  std::sort(files.begin(), files.end());
  return files;
}

bool is_code(std::string_view path) {
  return path.ends_with(".cpp") || path.ends_with(".hpp") || path.ends_with(".inl");
}

Parts parts_of(std::string_view code) {
  Parts parts;
  for (std::size_t i = 0; i < code.size();) {
    if (code.substr(i, 2) == "//") {
      i = std::min(code.find('\n', i), code.size());
    } else if (code.substr(i, 2) == "/*") {
      const auto end = code.find("*/", i + 2);
      i = end == std::string_view::npos ? code.size() : end + 2;
    } else if (code.substr(i, 3) == "R\"(") {
      const auto end = std::min(code.find(")\"", i), code.size());
      parts.strings.emplace_back(code.substr(i + 3, end - i - 3));
      parts.code += "\"\"";
      i = end + 2;
    } else if (code[i] == '"') {
      const std::size_t begin = ++i;
      for (; i < code.size() && code[i] != '"' && code[i] != '\n'; ++i) i += code[i] == '\\' ? 1 : 0;
      parts.strings.emplace_back(code.substr(begin, i - begin));
      parts.code += "\"\"";
      ++i;
    } else {
      parts.code += code[i++];
    }
  }
  return parts;
}

Printed output_of(const std::string& command) {
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot run " + command);
  Printed printed{};
  std::array<char, 4096> buffer{};
  while (const std::size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe))
    printed.text.append(buffer.data(), n);
  const int status = pclose(pipe);
  printed.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return printed;
}

}  // namespace house
