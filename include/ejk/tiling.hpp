// A table of measured tilings, looked up by the shape of a product.
//
// A line is "m k n tm tk tn"; * matches any of the first three, the first match counts. # begins a comment.
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

  /// The first match, valid as long as the table; or nullptr.
  const Row* find(std::int64_t m, std::int64_t k, std::int64_t n) const;

  const std::vector<Row>& rows() const { return rows_; }

 private:
  std::string name_;
  std::vector<Row> rows_;
};

}  // namespace ejk
