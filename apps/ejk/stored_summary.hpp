// Arrays by the headers of their files, summarised: by type, and by pattern of their names, so that a model
// of many layers is a few lines.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

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
    Shape shape;
    bool has_one_shape = true;
  };

  Sum all_;
  std::map<std::pair<std::string, std::string>, Pattern> patterns_;  // by pattern and type
  std::map<std::string, Sum> types_;
  Table tensors_{"tensors",
                 "",
                 {{"name", "array"}, {"dtype", "dtype"}, {"shape", "shape"}, {"size", "size", Unit::bytes}},
                 {},
                 0};
};

}  // namespace ejk::app
