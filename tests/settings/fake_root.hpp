// A file system made for a test, as the functions that look at the machine take one.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

struct FakeRoot {
  std::string path;
  FakeRoot() {
    std::string name = std::filesystem::temp_directory_path() / "ejk_machine_XXXXXX";
    path = mkdtemp(name.data());
  }
  ~FakeRoot() { std::filesystem::remove_all(path); }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;
  void file(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(path + name).parent_path());
    std::ofstream(path + name) << text;
  }
};
