// A table of tilings, kept in a text file and looked up by the shape of a product: those that were measured to be
// the fastest on a machine.
//
// A line is "m k n tm tk tn", six whole numbers between blanks; of the first three * stands for any. The
// first line that fits is taken. From # on a line is a comment; empty lines are left out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ejk/grouped_matmul.hpp"

namespace ejk {

class TilingTable {
 public:
  struct Row {
    std::optional<std::int64_t> m, k, n;  // absent: any
    Tiling tiling;
    std::int64_t line = 0;  // in the text, from 1 on
  };

  /// Throws Error{input}: "line 3: …". `name` is what messages call the table.
  static TilingTable parse(std::string_view text, std::string name = "the tiling table");

  const std::string& name() const { return name_; }

  /// The first row that fits; nothing when none does. The pointer lives as long as the table.
  const Row* find(std::int64_t m, std::int64_t k, std::int64_t n) const;

  const std::vector<Row>& rows() const { return rows_; }

 private:
  std::string name_;
  std::vector<Row> rows_;
};

}  // namespace ejk
