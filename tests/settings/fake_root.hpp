// A temporary root file system for functions that inspect the machine.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "io/support.hpp"

struct FakeRoot {
  ejk::test::Folder folder;
  std::string path = folder.path();
  void file(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(path + name).parent_path());
    std::ofstream(path + name) << text;
  }
};
