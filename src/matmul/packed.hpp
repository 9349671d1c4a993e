// Packed factors of matrix products, in the forms of the micro-kernels (kernels/matmul.hpp), for computations that do
// more than one product with a block while it is in a cache, and the kernels for what is between two of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "core/checked.hpp"
#include "core/workspace.hpp"
#include "ejk/dtype.hpp"
#include "kernels/kernels.hpp"

namespace ejk::matmul {

inline kernels::StridedMatrix part_of(kernels::StridedMatrix matrix, std::int64_t row,
                                      std::int64_t column = 0) {
  matrix.data =
      static_cast<const std::byte*>(matrix.data) + row * matrix.row_stride + column * matrix.column_stride;
  return matrix;
}

inline kernels::StridedMatrix transposed(kernels::StridedMatrix matrix) {
  std::swap(matrix.row_stride, matrix.column_stride);
  return matrix;
}

/// A thread's scratch memory: buffers are added first and allocated together, at cache lines.
class ScratchLayout {
 public:
  template <class T>
  void add(T*& to, std::int64_t count) {
    buffers_[count_++] = {&to, bytes_};
    bytes_ += core::round_up(count * static_cast<std::int64_t>(sizeof(T)), kLine);
  }
  std::int64_t bytes() const { return bytes_; }
  void take() {
    std::byte* const memory = core::Workspace::of_this_thread().at_least(bytes_);
    for (std::size_t n = 0; n < count_; ++n) {
      const void* const at = memory + buffers_[n].at;
      std::memcpy(buffers_[n].to, &at, sizeof at);
    }
  }

 private:
  static constexpr std::int64_t kLine = 64;
  static constexpr std::size_t kMost = 64;
  struct Buffer {
    void* to;  // a pointer
    std::int64_t at;
  };
  Buffer buffers_[kMost];
  std::size_t count_ = 0;
  std::int64_t bytes_ = 0;
};

/// A left factor, rows × k: groups of rows, each of them cut along k. Its memory is the caller's.
class PackedA {
 public:
  PackedA(const kernels::Gemm& gemm, std::int64_t group, std::int64_t k)
      : gemm_(&gemm),
        group_(group),
        k_(k),
        chunk_bytes_(core::round_up(gemm.mr * gemm.a_stride, 64)),  // tiles may read all their rows
        group_bytes_(chunk_bytes_ * std::max<std::int64_t>(1, core::ceil_div(k, gemm.kc))) {}

  void bind(std::byte* memory) { memory_ = memory; }
  void reserve(ScratchLayout& memory, std::int64_t rows) { memory.add(memory_, bytes(rows)); }
  std::int64_t bytes(std::int64_t rows) const { return core::ceil_div(rows, group_) * group_bytes_; }

  void pack(const kernels::StridedMatrix& from, std::int64_t rows) {
    for (std::int64_t r = 0; r < rows; r += group_)
      for (std::int64_t k = 0, chunk = 0; k < k_; k += gemm_->kc, ++chunk)
        gemm_->pack_a(part_of(from, r, k), std::min(group_, rows - r), std::min(gemm_->kc, k_ - k),
                      memory_ + r / group_ * group_bytes_ + chunk * chunk_bytes_);
  }

  const std::byte* group(std::int64_t index) const { return memory_ + index * group_bytes_; }
  std::int64_t chunk_bytes() const { return chunk_bytes_; }

 private:
  const kernels::Gemm* gemm_;
  std::int64_t group_, k_, chunk_bytes_, group_bytes_;
  std::byte* memory_ = nullptr;
};

/// A right factor, k × columns: panels of columns, cut along k like the left one.
class PackedB {
 public:
  PackedB(const kernels::Gemm& gemm, std::int64_t k, std::int64_t columns)
      : gemm_(&gemm),
        k_(k),
        panel_bytes_(core::round_up(std::min(k, gemm.kc), gemm.k_step) / gemm.kr * gemm.unit * gemm.nr),
        chunk_bytes_(panel_bytes_ * core::ceil_div(columns, gemm.nr)) {}

  void reserve(ScratchLayout& memory) { memory.add(memory_, chunk_bytes_ * core::ceil_div(k_, gemm_->kc)); }

  /// k may be shorter than in the constructor, but for the first kc of them.
  void pack(const kernels::StridedMatrix& from, std::int64_t k, std::int64_t columns) {
    k_ = k;
    for (std::int64_t at = 0, chunk = 0; at < k; at += gemm_->kc, ++chunk)
      gemm_->pack_b(part_of(from, at), std::min(gemm_->kc, k - at), columns, memory_ + chunk * chunk_bytes_,
                    panel_bytes_);
  }

  /// Instead of packing, where kr is 1 and k at most kc: elements [first, last) of row `k`, others 0. `first`
  /// is a multiple of nr.
  template <class Real>
  void put_row(std::int64_t k, const Real* row, std::int64_t first, std::int64_t last, std::int64_t columns) {
    for (std::int64_t c = 0; c < columns; c += gemm_->nr) {
      Real* const to = place<Real>(k, c);
      const std::int64_t count = c < first ? 0 : std::clamp<std::int64_t>(last - c, 0, gemm_->nr);
      std::copy_n(row + c, count, to);
      std::fill(to + count, to + gemm_->nr, Real{0});
    }
  }
  template <class Real>
  Real element(std::int64_t k, std::int64_t column) const {
    return place<Real>(k, column / gemm_->nr * gemm_->nr)[column % gemm_->nr];
  }

  /// out = left · columns [first, last), first a multiple of nr; out is that of column 0.
  template <class Real>
  void times(const PackedA& left, std::int64_t group, std::int64_t rows, std::int64_t first,
             std::int64_t last, Real* out, std::int64_t out_stride) const {
    for (std::int64_t c = first; c < last; c += gemm_->nr)
      for (std::int64_t k = 0, chunk = 0; k == 0 || k < k_; k += gemm_->kc, ++chunk)
        gemm_->tile(left.group(group) + chunk * left.chunk_bytes(),
                    memory_ + chunk * chunk_bytes_ + c / gemm_->nr * panel_bytes_,
                    std::min(gemm_->kc, k_ - k), rows, std::min(gemm_->nr, last - c),
                    k == 0 ? kernels::Store::overwrite : kernels::Store::accumulate, out + c, out_stride);
  }

  /// out += left · columns [first, last) over contraction elements [begin, end) of the first kc; begin is a
  /// multiple of kr.
  template <class Real>
  void add_range(const void* left, std::int64_t begin, std::int64_t end, std::int64_t rows,
                 std::int64_t first, std::int64_t last, Real* out, std::int64_t out_stride) const {
    const std::int64_t unit = begin / gemm_->kr * gemm_->unit;
    for (std::int64_t c = first; c < last; c += gemm_->nr)
      gemm_->tile(static_cast<const std::byte*>(left) + unit,
                  memory_ + c / gemm_->nr * panel_bytes_ + unit * gemm_->nr, end - begin, rows,
                  std::min(gemm_->nr, last - c), kernels::Store::accumulate, out + c, out_stride);
  }

 private:
  template <class Real>
  Real* place(std::int64_t k, std::int64_t first_column) const {
    return reinterpret_cast<Real*>(memory_ + first_column / gemm_->nr * panel_bytes_) + k * gemm_->nr;
  }

  const kernels::Gemm* gemm_;
  std::int64_t k_, panel_bytes_, chunk_bytes_;
  std::byte* memory_ = nullptr;
};

/// The micro-kernel for products of Real, and for two matrices that may be bfloat16.
template <class Real>
const kernels::Gemm& gemm_of() {
  const kernels::Products& products = kernels::active().products;
  return sizeof(Real) == 8 ? *products.f64 : *products.f32;
}
template <class Real>
const kernels::Gemm& gemm_of(DType left, DType right) {
  if (sizeof(Real) != 4 || left != DType::bfloat16 || right != DType::bfloat16) return gemm_of<Real>();
  const kernels::Products& products = kernels::active_for_bf16().products;
  return products.bf16 != nullptr ? *products.bf16 : gemm_of<Real>();
}

template <class Real>
const kernels::Softmax<Real>& softmax_of() {
  if constexpr (sizeof(Real) == 8)
    return *kernels::active().products.softmax_f64;
  else
    return *kernels::active().products.softmax_f32;
}

/// `count` sums as contiguous elements of a float type, rounded once; `out` may be null where there are none.
inline void store(const float* from, std::int64_t count, DType dtype, void* out) {
  if (count > 0) kernels::active().products.convert_f32(from, count, dtype, false, out);
}
inline void store(const double* from, std::int64_t count, DType dtype, void* out) {
  if (count > 0) kernels::active().products.convert_f64(from, count, dtype, false, out);
}

}  // namespace ejk::matmul
