// Packed factors of attention's matrix products, in the forms of the micro-kernels (kernels/matmul.hpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "attention/numbers.hpp"
#include "attention/problem.hpp"
#include "core/checked.hpp"
#include "core/workspace.hpp"
#include "kernels/kernels.hpp"
#include "matmul/product.hpp"

namespace ejk::attn {

inline Positions block_of(std::int64_t block, std::int64_t size, std::int64_t length) {
  return {block * size, std::min((block + 1) * size, length)};
}

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
  void take() {
    std::byte* const memory = core::Workspace::of_this_thread().at_least(bytes_);
    for (std::size_t n = 0; n < count_; ++n) {
      const void* const at = memory + buffers_[n].at;
      std::memcpy(buffers_[n].to, &at, sizeof at);
    }
  }

 private:
  static constexpr std::int64_t kLine = 64;
  static constexpr std::size_t kMost = 24;
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

/// Rows of a left factor of `first` whose products then are left factors of `second`.
inline std::int64_t group_rows(const kernels::Gemm& first, const kernels::Gemm& second) {
  return first.mr < second.mr ? first.mr : first.mr / second.mr * second.mr;
}

/// The score of a pair that the mask allows is −∞, by its bias or by what q and k hold: it counts as masked.
template <class Real>
bool without_weight(const CheckedArguments& setup, const Problem& p, std::int64_t query, std::int64_t key,
                    const kernels::StridedMatrix& key_row) {
  thread_local std::vector<Real> q, k;
  q.resize(static_cast<std::size_t>(setup.shape.head_size));
  k.resize(q.size());
  load_row(p.q, query, 0, setup.shape.head_size, q.data());
  load_row(key_row, 0, 0, setup.shape.head_size, k.data());
  Real score = 0;
  for (std::size_t d = 0; d < q.size(); ++d) score += q[d] * k[d];
  score *= static_cast<Real>(setup.scale);
  if (setup.softcap > 0 && setup.softcap_order == SoftcapOrder::after_bias) return false;
  if (setup.softcap > 0) score = std::max(score, static_cast<Real>(-setup.softcap));
  return score + p.bias.at<Real>(query, key) == -std::numeric_limits<Real>::infinity();
}
template <class Real>
bool without_weight(const CheckedArguments& setup, const Problem& p, std::int64_t query, std::int64_t key) {
  return without_weight<Real>(setup, p, query, key, p.k.at({key, key + 1}));
}

template <class Real>
kernels::Scoring<Real> scoring_of(const CheckedArguments& setup) {
  return {static_cast<Real>(setup.scale), static_cast<Real>(setup.softcap),
          setup.softcap_order == SoftcapOrder::after_bias};
}

/// Rows with NaN and infinities separated, as a weight of 0 must not be multiplied by them.
template <class Real>
class NonFiniteRows {
 public:
  kernels::StridedMatrix of(const kernels::StridedMatrix& from, std::int64_t rows, std::int64_t columns) {
    rows_.clear();
    columns_ = columns;
    if (all_finite(from, rows, columns)) return from;
    const std::int64_t size = size_of(from.dtype);
    values_.resize(static_cast<std::size_t>(rows * columns));
    clean_.resize(values_.size() * static_cast<std::size_t>(size));
    row_.resize(static_cast<std::size_t>(columns));
    for (std::int64_t r = 0; r < rows; ++r) {
      Real* const row = values_.data() + r * columns;
      load_row(from, r, 0, columns, row);
      std::transform(row, row + columns, row_.begin(), [](Real x) { return std::isfinite(x) ? x : Real{0}; });
      store(row_.data(), columns, from.dtype, clean_.data() + r * columns * size);
      if (!std::all_of(row, row + columns, [](Real x) { return std::isfinite(x); })) rows_.push_back(r);
    }
    return {clean_.data(), from.dtype, columns * size, size};
  }

  const std::vector<std::int64_t>& rows() const { return rows_; }

  /// out += weight · the separated elements of a row.
  void add(std::int64_t row, Real weight, Real* out, std::int64_t out_stride = 1) const {
    const Real* const from = values_.data() + row * columns_;
    for (std::int64_t d = 0; d < columns_; ++d)
      if (!std::isfinite(from[d])) out[d * out_stride] += weight * from[d];
  }

 private:
  // In the order of memory.
  static bool all_finite(const kernels::StridedMatrix& matrix, std::int64_t rows, std::int64_t columns) {
    if (matrix.column_stride > matrix.row_stride) return all_finite(transposed(matrix), columns, rows);
    for (std::int64_t r = 0; r < rows; ++r)
      if (!is_finite(matrix, r, columns)) return false;
    return true;
  }
  static bool is_finite(const kernels::StridedMatrix& matrix, std::int64_t row, std::int64_t columns) {
    const auto* from = static_cast<const std::byte*>(matrix.data) + row * matrix.row_stride;
    switch (matrix.dtype) {
      case DType::float64:
        return all_below<std::uint64_t>(from, matrix, columns, 0x7FF0000000000000u);
      case DType::float32:
        return all_below<std::uint32_t>(from, matrix, columns, 0x7F800000u);
      case DType::bfloat16:
        return all_below<std::uint16_t>(from, matrix, columns, 0x7F80u);
      default:
        return all_below<std::uint16_t>(from, matrix, columns, 0x7C00u);
    }
  }
  // No element has all bits of the exponent set.
  template <class Word>
  static bool all_below(const std::byte* from, const kernels::StridedMatrix& matrix, std::int64_t columns,
                        Word exponent) {
    Word found = 0;
    const auto test = [&](std::int64_t stride) {
      for (std::int64_t d = 0; d < columns; ++d) {
        Word word = 0;
        std::memcpy(&word, from + d * stride, sizeof word);
        found |= static_cast<Word>((word & exponent) == exponent ? 1 : 0);
      }
    };
    if (matrix.column_stride == static_cast<std::int64_t>(sizeof(Word)))
      test(sizeof(Word));
    else
      test(matrix.column_stride);
    return found == 0;
  }

  std::int64_t columns_ = 0;
  std::vector<Real> values_, row_;
  std::vector<std::byte> clean_;
  std::vector<std::int64_t> rows_;
};

}  // namespace ejk::attn
