// Arrays by the headers of their files, summarised: by type, and by pattern of their names, so that a model
// of many layers is a few lines.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>

#include "ejk/io.hpp"
#include "ejk/report.hpp"

namespace ejk::app {

class StoredSummary {
 public:
  void add(const ArrayReference& file, const StoredArray& array);
  bool empty() const { return all_.arrays == 0; }
  std::int64_t arrays() const { return all_.arrays; }
  std::int64_t bytes() const { return all_.bytes; }
  /// Tables by pattern and by type, in JSON one of all arrays, and the number of parameters.
  void add_to(Report& report) const;

 private:
  struct Sum {
    std::int64_t arrays = 0, parameters = 0, bytes = 0;
    void add(const StoredArray& array);
  };
  struct Pattern {
    Sum sum;
    std::string name;  // of its first array, as the shape is
    ArrayReference file;
    Shape shape;
    bool has_one_shape = true;
    void join(const Pattern& other);
  };

  Sum all_;
  std::map<std::tuple<std::string, std::string, std::string>, Pattern>
      patterns_;                              // by pattern, type and file
  std::map<std::string, std::string> files_;  // the first file with an array of this name
  bool has_equal_names_ = false;              // of several files, whose patterns are separate then
  std::map<std::string, Sum> types_;
  Table tensors_{"tensors",
                 "",
                 {{"name", "array"}, {"dtype", "dtype"}, {"shape", "shape"}, {"size", "size", Unit::bytes}},
                 {},
                 0};
};

}  // namespace ejk::app
