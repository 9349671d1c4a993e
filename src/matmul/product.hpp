// One product of two blocks in memory by the micro-kernels: packing, blocking over the contraction, results.
// The contraction is cut into lengths of at most kc. For each, all columns of B are packed and A goes through
// them, Gemm::together tiles of rows at a time, so that a panel of B or a tile of A stays in the first-level
// cache. Products of few rows read B in place, those of few columns A. Sums accumulate in the result itself
// where it is of their type. B may come from a source, read in boxes that stay in a cache until they are
// packed or multiplied, in the same order as in memory.
#pragma once

#include <cstdint>

#include "core/workspace.hpp"
#include "ejk/array.hpp"
#include "ejk/dtype.hpp"
#include "kernels/kernels.hpp"

namespace ejk::matmul {

/// The arithmetic of a pair of factors on an instruction set.
struct Arithmetic {
  const kernels::Gemm* gemm;
  kernels::Convert* convert;
  DType sums;  // float32 or float64
  const kernels::Products* products;
};
Arithmetic arithmetic_of(DType lhs, DType rhs, const kernels::Kernels& row);

/// A thread's state between the first and the last tile of a Gemm.
class Tiles {
 public:
  explicit Tiles(const kernels::Gemm& gemm) : leave_(gemm.leave) {
    if (gemm.enter != nullptr) gemm.enter();
  }
  ~Tiles() {
    if (leave_ != nullptr) leave_();
  }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

 private:
  void (*leave_)();
};

/// B in a source (matrices, k, n) or (matrices, n, k) instead of memory: one of its matrices, from a column
/// on.
struct BoxedFactor {
  bool used = false;
  bool transposed = false;              // (n, k)
  const ArraySource* source = nullptr;  // null in plans
  std::int64_t matrix = 0, column = 0;
};

/// out (rows × columns) = a (rows × k) · b (k × columns) [+ added]. Row strides of out and added in bytes;
/// contiguous columns.
struct Product {
  kernels::StridedMatrix a;
  kernels::StridedMatrix b;
  BoxedFactor b_boxes = {};  // if used, b has no data, and the strides of the source in C order
  std::int64_t rows = 0;
  std::int64_t k = 0;
  std::int64_t columns = 0;
  DType dtype = DType::float32;  // of out and added
  void* out = nullptr;
  std::int64_t out_stride = 0;
  const void* added = nullptr;  // null: nothing; out's own place: that is what is there
  std::int64_t added_stride = 0;
  bool stream = false;        // out is larger than caches: it is written past them
  std::int64_t direct_k = 0;  // direct_k() of the whole product that this is a part of
  bool few_columns = false;   // has_few_columns(), too
  kernels::Ahead next;        // B that this thread probably reads next, in place
};

/// Contraction elements of B that are multiplied at once in place; 0: B is packed. It determines the order of
/// sums, so it depends on the whole product, never on a part.
std::int64_t direct_k(const Arithmetic& arithmetic, std::int64_t rows);

bool has_few_columns(std::int64_t columns);

/// kc: the contraction length of a block, at most gemm.kc; 0 takes that.
void multiply(const Arithmetic& arithmetic, const Product& product, std::int64_t kc,
              core::Workspace& workspace);

/// Bytes in an empty workspace; the product's pointers are not read.
std::int64_t workspace_bytes(const Arithmetic& arithmetic, const Product& product, std::int64_t kc);

}  // namespace ejk::matmul
