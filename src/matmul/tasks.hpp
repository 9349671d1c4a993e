// The cut of grouped products into tasks that threads take one by one.
//
// A task is a block of one group's result: at most `rows` by `columns`. How it is cut depends on the problem
// alone; the largest tasks come first, so that threads end together whether one group is large or a thousand
// are small.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "ejk/grouped_matmul.hpp"
#include "matmul/product.hpp"

namespace ejk::matmul {

/// Products that make one result, in tasks.
class Tasks {
 public:
  /// tiling: what the caller asked for; absent: what suits caches of a usual size.
  Tasks(const Arithmetic& arithmetic, const std::optional<Tiling>& tiling);

  /// Adds a product, cut along its rows and columns.
  void add(const Product& product);

  /// Computes all of them, on several threads where the work is worth it.
  void run(const std::function<void(std::int64_t done, std::int64_t all)>& progress);

  /// Bytes that one thread takes for the largest task.
  std::int64_t workspace_bytes() const;

 private:
  void split_last(double work);

  const Arithmetic arithmetic_;
  Tiling block_;
  std::vector<Product> products_;
};

}  // namespace ejk::matmul
