// Tasks of grouped products, which threads take one by one: blocks of one group's result, with sums over the
// whole contraction in one order, so that the partition changes no bit and may depend on the threads. The
// largest run first and the last are cut finer.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "ejk/grouped_matmul.hpp"
#include "matmul/product.hpp"

namespace ejk::matmul {

class Tasks {
 public:
  /// tiling: requested; absent: suits caches of a usual size.
  Tasks(const Arithmetic& arithmetic, const std::optional<Tiling>& tiling)
      : arithmetic_(arithmetic), tiling_(tiling) {}

  /// `rows_in_all`, `columns_in_all`: of the product that this one is a part of, whose bits it has.
  void add(const Product& product, std::int64_t rows_in_all, std::int64_t columns_in_all);
  void add(const Product& product) { add(product, product.rows, product.columns); }

  void run(const std::function<void(std::int64_t done, std::int64_t all)>& progress) const;

  /// Bytes of run() on all threads; the products' pointers are not read.
  std::int64_t work_bytes() const;

 private:
  struct Parts {
    std::int64_t rows, columns;
  };

  double work() const;  // multiplications
  int threads() const;
  Parts parts_of(const Product& product, const Tiling& block) const;
  Tiling block_for(int threads) const;
  std::vector<Product> cut(const Tiling& block, int threads) const;

  const Arithmetic arithmetic_;
  const std::optional<Tiling> tiling_;
  std::vector<Product> products_;
};

}  // namespace ejk::matmul
