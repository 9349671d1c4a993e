// The loops of one product around the micro-kernels. The next block of B is packed slice by slice between the
// tiles of the current one, and lines to be packed soon are prefetched. Cost: rows · columns · k
// multiply-adds; packing A and B once; reading B once if it comes in boxes.
// tests: tests/matmul/test_product.cpp
#include "matmul/product.hpp"

#include <algorithm>
#include <cstring>

#include "core/checked.hpp"
#include "ejk/error.hpp"

namespace ejk::matmul {

namespace {

constexpr std::int64_t kLine = 64;

// Rows of A that are packed at once where rows are contiguous: whole cache lines of each contraction element.
constexpr std::int64_t kTurnedRows = 256;

// From this many panels on, lines of A are prefetched between tiles; with fewer, requests come in bursts.
// (Xeon with AMX, bfloat16, 512 columns: 5.4 ms without, 6.1 with.)
constexpr std::int64_t kPanelsToAsk = 16;

// The most tiles of rows that go through a panel of B one after another.
// With a B of so few bytes, rows are finished one tile after another, which writes memory in order. (AVX2 on
// Zen 3, 16,384 x 512 of float32, k 4: 3.1 ms, with 8 tiles a panel 4.3.)
constexpr std::int64_t kMostTogether = 16, kSmallB = 64 << 10;

// Columns for dot products, and rows of A that they take at once: a tile takes as long for 1 column as for
// 16.
constexpr std::int64_t kFewColumns = 4, kDotRows = 128;

// Elements of a box of B: 256 KiB of float32, in a second-level cache, and the most in a row of it. Short rows
// take longer to find than to decode.
constexpr std::int64_t kBoxElements = std::int64_t{1} << 16, kBoxRow = 1024;

// Zeros after a row for dot products, and their longest contraction: a longer one is summed in parts.
constexpr std::int64_t kWhole = 16, kDotK = 1024;

using core::round_up;
using core::Workspace;

// Bytes from panel to panel of B for k contraction elements: two extra lines avoid cache-set conflicts.
std::int64_t panel_bytes(const kernels::Gemm& gemm, std::int64_t k) {
  return round_up(k, gemm.k_step) / gemm.kr * gemm.nr * gemm.unit + 2 * kLine;
}

kernels::StridedMatrix part(const kernels::StridedMatrix& block, std::int64_t row, std::int64_t column) {
  kernels::StridedMatrix moved = block;
  moved.data =
      static_cast<const std::byte*>(block.data) + row * block.row_stride + column * block.column_stride;
  return moved;
}

// The bytes that are read for a box. Rows are along the last axis of more than one element before the last.
kernels::Ahead ahead_of(const ArraySource& source, const ArrayBox& box) {
  const std::optional<ArrayView> bytes = source.bytes_of(box.start, box.count);
  if (!bytes || bytes->shape.empty()) return {};
  const std::size_t last = bytes->shape.size() - 1;
  kernels::Ahead ahead{bytes->data, 1, bytes->shape[last] * bytes->strides[last], 0};
  for (std::size_t d = last; d-- > 0 && ahead.rows == 1;)
    ahead.rows = bytes->shape[d], ahead.row_stride = bytes->strides[d];
  return ahead;
}

// Prefetches the cache lines of a block some at a time, between tiles. Does nothing without a contiguous
// axis.
class Prefetcher {
 public:
  Prefetcher() = default;
  Prefetcher(const kernels::StridedMatrix& block, std::int64_t rows, std::int64_t columns) {
    const std::int64_t size = size_of(block.dtype);
    const bool by_row = block.column_stride == size;
    if (!by_row && block.row_stride != size) return;
    from_ = static_cast<const std::byte*>(block.data);
    stride_ = by_row ? block.row_stride : block.column_stride;
    runs_ = by_row ? rows : columns;
    run_bytes_ = (by_row ? columns : rows) * size;
  }

  std::int64_t lines() const { return runs_ * core::ceil_div(run_bytes_, kLine); }

  void prefetch(std::int64_t lines) {
    while (lines > 0 && run_ < runs_) {
      const std::byte* line = from_ + run_ * stride_ + at_;
      const std::int64_t count = std::min(lines, core::ceil_div(run_bytes_ - at_, kLine));
      for (std::int64_t i = 0; i < count; ++i, line += kLine) __builtin_prefetch(line, 0, 2);
      lines -= count;
      at_ += count * kLine;
      if (at_ < run_bytes_) continue;
      at_ = 0;
      ++run_;
    }
  }

 private:
  const std::byte* from_ = nullptr;
  std::int64_t stride_ = 0, runs_ = 0, run_bytes_ = 0, run_ = 0, at_ = 0;
};

// sums += an array of a float dtype.
template <class Sum>
void add(const void* in, DType dtype, std::int64_t n, Sum* sums) {
  dispatch_wide(dtype, [&]<class T>(std::type_identity<T>) {
    if constexpr (is_small_float<T>) {
      const auto* from = static_cast<const T*>(in);
      for (std::int64_t i = 0; i < n; ++i) sums[i] += static_cast<Sum>(static_cast<float>(from[i]));
    } else if constexpr (std::is_floating_point_v<T>) {
      const auto* from = static_cast<const T*>(in);
      for (std::int64_t i = 0; i < n; ++i) sums[i] = static_cast<Sum>(sums[i] + static_cast<Sum>(from[i]));
    }
  });
}

template <class Sum>
class Multiplication {
 public:
  Multiplication(const Arithmetic& arithmetic, const Product& product, std::int64_t kc)
      : gemm_(product.few_columns ? elements_gemm(arithmetic) : *arithmetic.gemm),
        dots_(dots_of(*arithmetic.products)),
        convert_(*arithmetic.convert),
        p_(product),
        kc_(product.few_columns
                ? std::min(kc < arithmetic.gemm->kc ? kc : kDotK, product.k)
                : std::min({kc, product.k <= std::min(kc, gemm_.kc) ? gemm_.kc : gemm_.pass_k, product.k})) {
    constexpr auto kSize = static_cast<std::int64_t>(sizeof(Sum));
    way_ = p_.few_columns ? Way::dots : p_.direct_k > 0 && has_rows_of_b() ? Way::direct : Way::packed;
    in_place_ = p_.dtype == arithmetic.sums;
    rounds_ = p_.dtype == DType::bfloat16 && gemm_.tile_bf16 != nullptr && way_ == Way::packed &&
              p_.added == nullptr && 0 < p_.k && p_.k <= kc_;
    stride_ = in_place_ || rounds_ ? p_.out_stride / size_of(p_.dtype)
              : way_ == Way::dots  ? p_.columns
                                   : round_up(p_.columns, kLine / kSize);
    turned_ = p_.a.column_stride != size_of(p_.a.dtype);
    if (p_.b_boxes.used) choose_box();
    box_size_ = round_up(box_k_ * box_columns_ * size_of(p_.b.dtype), kLine);
    if (way_ == Way::dots) {
      // dots() takes rows or their elements side by side.
      turned_ = turned_ && p_.a.row_stride != size_of(p_.a.dtype);
      some_rows_ = std::min(kDotRows, p_.rows);
      dot_stride_ = round_up((kc_ + kWhole) * kSize, kLine) + kLine;
      a_size_ = turned_ ? dot_stride_ * some_rows_ : 0;
      panel_ = round_up(some_rows_, kernels::kDotsKeys) * kSize;
      b_size_ = p_.columns * (dot_stride_ + round_up(panel_, kLine));
      bytes_ = kFewColumns * gemm_.a_stride + a_size_ + b_size_ + box_size_ +
               (in_place_ ? 0 : p_.rows * stride_ * kSize);
      return;
    }
    tiles_ = core::ceil_div(p_.rows, gemm_.mr);
    panels_ = way_ == Way::direct ? 0 : core::ceil_div(p_.columns, gemm_.nr);
    panel_ = panel_bytes(gemm_, kc_);
    // Contiguous contraction elements are packed in squares. Boxes are not read in slices: a short row of one
    // takes nearly as long as a long one.
    slice_step_ = std::max<std::int64_t>(gemm_.k_step, p_.b_boxes.used   ? kc_
                                                       : has_rows_of_b() ? 1
                                                                         : 16 * gemm_.kr);
    together_ = (in_place_ || rounds_) && panel_ * panels_ <= kSmallB
                    ? 1
                    : std::min({gemm_.together, tiles_, kMostTogether});
    packed_tiles_ = way_ == Way::direct ? tiles_
                    : turned_ ? std::min(round_up(core::ceil_div(kTurnedRows, gemm_.mr), together_), tiles_)
                              : together_;
    // A tile may read mr rows wherever it begins.
    a_size_ = round_up(gemm_.a_stride * (std::min(p_.rows, gemm_.mr * packed_tiles_) + gemm_.mr), kLine);
    b_size_ = panel_ * panels_ * (kc_ < p_.k ? 2 : 1);
    bytes_ = a_size_ + b_size_ + box_size_ + (in_place_ || rounds_ ? 0 : p_.rows * stride_ * kSize);
  }

  std::int64_t bytes() const { return bytes_; }  // of the workspace

  void run(Workspace& workspace) {
    part_ = workspace.at_least(bytes_);
    a_ = part_ + (way_ == Way::dots ? kFewColumns * gemm_.a_stride : 0);
    b_ = packed_b_[0] = a_ + a_size_;
    packed_b_[1] = b_ + panel_ * panels_;
    box_ = b_ + b_size_;
    sums_ = static_cast<Sum*>(in_place_ ? p_.out : static_cast<void*>(box_ + box_size_));
    // What sums begin with: nothing, or in place what they are added to.
    adds_ = in_place_ && p_.added != nullptr;
    if (adds_ && p_.added != p_.out)
      for (std::int64_t r = 0; r < p_.rows; ++r)
        std::memcpy(out(r), added(r), static_cast<std::size_t>(p_.columns * size_of(p_.dtype)));
    if (p_.k == 0 && !adds_)
      for (std::int64_t r = 0; r < p_.rows; ++r) std::fill_n(sums_ + r * stride_, p_.columns, Sum{0});
    for (std::int64_t k0 = 0; k0 < p_.k; k0 += kc_, adds_ = true) {
      const std::int64_t k = std::min(kc_, p_.k - k0);
      if (way_ == Way::dots)
        multiply_rows(k0, k);
      else if (way_ == Way::direct)
        multiply_unpacked(k0, k);
      else
        multiply_packed(k0, k);
    }
    if (way_ != Way::packed || p_.k == 0) finish(0, p_.rows);
  }

 private:
  // Rows are divided evenly: a last tile of one row would cost as much as a full one.
  std::int64_t first_row(std::int64_t tile) const { return tile * p_.rows / tiles_; }
  std::byte* out(std::int64_t row) const { return static_cast<std::byte*>(p_.out) + row * p_.out_stride; }
  const std::byte* added(std::int64_t row) const {
    return static_cast<const std::byte*>(p_.added) + row * p_.added_stride;
  }

  // Dot products of the columns, packed as rows, with some rows of A at a time.
  void multiply_rows(std::int64_t k0, std::int64_t k) {
    auto* const columns = reinterpret_cast<Sum*>(b_);
    auto* const dots = reinterpret_cast<Sum*>(b_ + p_.columns * dot_stride_);
    const std::int64_t columns_stride = dot_stride_ / static_cast<std::int64_t>(sizeof(Sum)),
                       dots_stride = panel_ / static_cast<std::int64_t>(sizeof(Sum));
    kernels::StridedMatrix turned = block_of_b(k0, k, 0, p_.columns);
    std::swap(turned.row_stride, turned.column_stride);
    pack_rows(turned, p_.columns, k, b_);
    for (std::int64_t c = 0; c < p_.columns; ++c)
      std::fill_n(columns + c * columns_stride + k, kWhole, Sum{0});
    for (std::int64_t row = 0, rows = 0; row < p_.rows; row += rows) {
      rows = std::min(some_rows_, p_.rows - row);
      kernels::StridedMatrix a = part(p_.a, row, k0);
      if (turned_) {
        pack_rows(a, rows, k, a_);
        a = {a_, arithmetic_sums(), dot_stride_, static_cast<std::int64_t>(sizeof(Sum))};
      }
      dots_(columns, columns_stride, p_.columns, a, rows, k, dots, dots_stride, {});
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < p_.columns; ++c) {
          Sum& sum = sums_[(row + r) * stride_ + c];
          sum = adds_ ? sum + dots[c * dots_stride + r] : dots[c * dots_stride + r];
        }
    }
  }

  // In parts, as they are longer than rows of A's form.
  void pack_rows(const kernels::StridedMatrix& in, std::int64_t rows, std::int64_t k, std::byte* to) const {
    constexpr auto kSize = static_cast<std::int64_t>(sizeof(Sum));
    for (std::int64_t r = 0; r < rows; r += kFewColumns)
      for (std::int64_t k0 = 0; k0 < k; k0 += gemm_.kc) {
        const std::int64_t some = std::min(kFewColumns, rows - r), length = std::min(gemm_.kc, k - k0);
        gemm_.pack_a(part(in, r, k0), some, length, part_);
        for (std::int64_t i = 0; i < some; ++i)
          std::memcpy(to + (r + i) * dot_stride_ + k0 * kSize, part_ + i * gemm_.a_stride,
                      static_cast<std::size_t>(length * kSize));
      }
  }

  // B unpacked: some rows of it at a time go through all of A. Boxes of it are taken from top to bottom.
  void multiply_unpacked(std::int64_t k0, std::int64_t k) {
    gemm_.pack_a(part(p_.a, 0, k0), p_.rows, k, a_);
    const std::int64_t at_once = p_.b_boxes.used ? box_columns_ : p_.columns;
    for (std::int64_t column = 0; column < p_.columns; column += at_once) {
      const std::int64_t columns = std::min(at_once, p_.columns - column);
      for (std::int64_t p0 = 0; p0 < k; p0 += p_.direct_k) {
        const std::int64_t length = std::min(p_.direct_k, k - p0), after = k0 + p0 + length;
        // B's rows after these, or those of the next product.
        kernels::Ahead next = p_.next;
        if (!p_.b_boxes.used && after < p_.k)
          next = {part(p_.b, after, 0).data, p_.k - after, p_.columns * p_.b.column_stride, p_.b.row_stride};
        if (p_.b_boxes.used && after < k0 + k)
          next = ahead_of(*p_.b_boxes.source,
                          box_of_b(after, std::min(length, k0 + k - after), column, columns));
        next.rows = std::min(length, next.rows);
        gemm_.direct(a_ + p0 / gemm_.kr * gemm_.unit, block_of_b(k0 + p0, length, column, columns), length,
                     p_.rows, columns, adds_ || p0 > 0, sums_ + column, stride_, next);
      }
    }
  }

  // B packed: A goes through it some tiles of rows at a time, while a slice of the next B is packed. Finished
  // rows are converted while in cache.
  void multiply_packed(std::int64_t k0, std::int64_t k) {
    using kernels::Store;
    const std::int64_t next_k = std::min(kc_, p_.k - k0 - k);
    const Store how = adds_                                                ? Store::accumulate
                      : (in_place_ || rounds_) && p_.stream && next_k == 0 ? Store::stream
                                                                           : Store::overwrite;
    if (k0 == 0) pack_b(0, 0, k, k, b_);
    std::byte* next = b_ == packed_b_[0] ? packed_b_[1] : packed_b_[0];
    const std::int64_t slice =
        round_up(std::max<std::int64_t>(core::ceil_div(next_k, tiles_), 1), slice_step_);
    Prefetcher next_a;
    std::int64_t a_lines = 0,
                 packed_row = 0;  // lines of A to ask for with each tile, the first row that is packed
    for (std::int64_t t0 = 0, t1 = 0, t2 = 0; t0 < tiles_; t0 = t1) {
      t1 = std::min(t0 + together_, tiles_), t2 = std::min(t1 + together_, tiles_);
      if (t0 % packed_tiles_ == 0) {
        const std::int64_t end = std::min(t0 + packed_tiles_, tiles_),
                           after = std::min(end + packed_tiles_, tiles_), end_row = first_row(end);
        packed_row = first_row(t0);
        gemm_.pack_a(part(p_.a, packed_row, k0), end_row - packed_row, k, a_);
        next_a = end < tiles_
                     ? Prefetcher(part(p_.a, end_row, k0), first_row(after) - end_row, k)
                     : Prefetcher(part(p_.a, 0, k0 + k), first_row(std::min(packed_tiles_, tiles_)), next_k);
        a_lines = panels_ < kPanelsToAsk ? 0 : core::ceil_div(next_a.lines(), panels_ * (end - t0));
      }
      pack_b(k0 + k, t0 * slice, (t1 - t0) * slice, next_k, next);
      Prefetcher next_b;
      if (!p_.b_boxes.used)
        next_b = {part(p_.b, k0 + k + t1 * slice, 0),
                  std::clamp<std::int64_t>(next_k - t1 * slice, 0, (t2 - t1) * slice), p_.columns};
      const std::int64_t b_lines = core::ceil_div(next_b.lines(), panels_ * (t1 - t0));
      std::int64_t rows[kMostTogether + 1] = {};
      for (std::int64_t t = t0; t <= t1; ++t) rows[t - t0] = first_row(t);
      for (std::int64_t j = 0; j < panels_; ++j) {
        const std::int64_t columns = std::min(gemm_.nr, p_.columns - j * gemm_.nr);
        for (std::int64_t t = 0; t < t1 - t0; ++t) {
          next_a.prefetch(a_lines);
          next_b.prefetch(b_lines);
          const std::int64_t at = rows[t] * stride_ + j * gemm_.nr;
          (rounds_ ? gemm_.tile_bf16 : gemm_.tile)(
              a_ + gemm_.a_stride * (rows[t] - packed_row), b_ + j * panel_, k, rows[t + 1] - rows[t],
              columns, how, rounds_ ? static_cast<void*>(static_cast<bfloat16*>(p_.out) + at) : sums_ + at,
              stride_);
        }
      }
      if (next_k == 0) finish(first_row(t0), first_row(t1) - first_row(t0));
    }
    b_ = next;
  }

  // Contraction elements [first, first + count) of the k that begin at k0, as far as there are any.
  void pack_b(std::int64_t k0, std::int64_t first, std::int64_t count, std::int64_t k, std::byte* out) const {
    const std::int64_t end = std::min(first + count, k);
    const std::int64_t k_at_once = p_.b_boxes.used ? box_k_ : end - first,
                       columns_at_once = p_.b_boxes.used ? box_columns_ : p_.columns;
    for (; first < end; first += k_at_once)
      for (std::int64_t column = 0; column < p_.columns; column += columns_at_once) {
        const std::int64_t length = std::min(k_at_once, end - first),
                           columns = std::min(columns_at_once, p_.columns - column);
        gemm_.pack_b(block_of_b(k0 + first, length, column, columns), length, columns,
                     out + first / gemm_.kr * gemm_.nr * gemm_.unit + column / gemm_.nr * panel_, panel_);
      }
  }

  bool has_rows_of_b() const { return p_.b.column_stride == size_of(p_.b.dtype); }

  // Contraction elements and columns of a box: all that dots() or direct() take at once, or whole panels for
  // packing.
  void choose_box() {
    if (way_ == Way::dots) {
      box_k_ = kc_, box_columns_ = p_.columns;
      return;
    }
    const auto whole = [](std::int64_t n, std::int64_t step) {
      return std::max(n / step, std::int64_t{1}) * step;
    };
    const std::int64_t columns = round_up(p_.columns, gemm_.nr);
    if (way_ == Way::direct)
      box_k_ = std::min(p_.direct_k, kc_);
    else
      box_k_ = has_rows_of_b() ? whole(kBoxElements / std::min(columns, kBoxRow), gemm_.k_step)
                               : round_up(kc_, gemm_.k_step);
    box_columns_ = std::min(columns, whole(std::min(kBoxElements / box_k_, kBoxRow), gemm_.nr));
  }

  // A block of B, in place or read.
  kernels::StridedMatrix block_of_b(std::int64_t k0, std::int64_t k, std::int64_t column,
                                    std::int64_t columns) const {
    const BoxedFactor& boxes = p_.b_boxes;
    if (!boxes.used) return part(p_.b, k0, column);
    const ArrayBox box = box_of_b(k0, k, column, columns);
    const std::int64_t size = size_of(p_.b.dtype);
    boxes.source->read(box.start, box.count, box_);
    if (boxes.transposed) return {box_, p_.b.dtype, size, k * size};
    return {box_, p_.b.dtype, columns * size, size};
  }

  ArrayBox box_of_b(std::int64_t k0, std::int64_t k, std::int64_t column, std::int64_t columns) const {
    const BoxedFactor& boxes = p_.b_boxes;
    ArrayBox box{{boxes.matrix, k0, boxes.column + column}, {1, k, columns}};
    if (boxes.transposed) std::swap(box.start[1], box.start[2]), std::swap(box.count[1], box.count[2]);
    return box;
  }

  // Sums to the result, where they are not there already.
  void finish(std::int64_t row, std::int64_t rows) {
    if (in_place_ || rounds_) return;
    if (p_.added == nullptr && stride_ == p_.columns && p_.out_stride == p_.columns * size_of(p_.dtype))
      return convert_(sums_ + row * stride_, rows * p_.columns, p_.dtype, p_.stream, out(row));
    for (std::int64_t r = row; r < row + rows; ++r) {
      if (p_.added != nullptr) add(added(r), p_.dtype, p_.columns, sums_ + r * stride_);
      convert_(sums_ + r * stride_, p_.columns, p_.dtype, p_.stream, out(r));
    }
  }

  // The arithmetic whose units are elements: dots() takes rows in that form.
  static const kernels::Gemm& elements_gemm(const Arithmetic& arithmetic) {
    return sizeof(Sum) == 8 ? *arithmetic.products->f64 : *arithmetic.products->f32;
  }
  static kernels::Dots<Sum>& dots_of(const kernels::Products& products) {
    if constexpr (sizeof(Sum) == 8)
      return *products.dots_f64;
    else
      return *products.dots_f32;
  }
  static constexpr DType arithmetic_sums() { return sizeof(Sum) == 8 ? DType::float64 : DType::float32; }

  const kernels::Gemm& gemm_;
  kernels::Dots<Sum>& dots_;
  kernels::Convert& convert_;
  const Product& p_;
  std::int64_t kc_;
  bool in_place_, turned_;
  bool rounds_ = false;  // tiles write the result
  bool adds_ = false;
  // B is read in place, or A by dot products, or both are packed.
  enum class Way { packed, direct, dots } way_;
  std::int64_t some_rows_ = 0, dot_stride_ = 0;  // of A, for dot products at once; from row to row, packed
  std::int64_t tiles_, together_, packed_tiles_, panels_, panel_,
      stride_;  // packed_tiles_: tiles whose rows of A are packed at once
  std::int64_t slice_step_;
  std::int64_t a_size_, b_size_, bytes_;
  std::int64_t box_k_ = 0, box_columns_ = 0, box_size_ = 0;
  std::byte* part_ = nullptr;                                  // of pack_rows()
  std::byte *a_ = nullptr, *b_ = nullptr, *packed_b_[2] = {};  // b_ is that of the two which is in use
  std::byte* box_ = nullptr;
  Sum* sums_ = nullptr;
};

}  // namespace

Arithmetic arithmetic_of(DType lhs, DType rhs, const kernels::Kernels& row) {
  const kernels::Products& products = row.products;
  if (lhs == DType::float64 || rhs == DType::float64)
    return {products.f64, products.convert_f64, DType::float64, &products};
  if (lhs == DType::bfloat16 && rhs == DType::bfloat16 && products.bf16 != nullptr)
    return {products.bf16, products.convert_f32, DType::float32, &products};
  return {products.f32, products.convert_f32, DType::float32, &products};
}

std::int64_t direct_k(const Arithmetic& arithmetic, std::int64_t rows) {
  const kernels::Gemm& gemm = *arithmetic.gemm;
  if (rows > gemm.small_m) return 0;
  return rows > gemm.direct_rows ? 2 * gemm.direct_k : gemm.direct_k;
}

bool has_few_columns(std::int64_t columns) { return columns <= kFewColumns; }

namespace {

template <class Sum>
void run(const Arithmetic& arithmetic, const Product& product, std::int64_t kc, Workspace& workspace) {
  const kernels::Gemm& gemm = *arithmetic.gemm;
  Multiplication<Sum> multiplication(arithmetic, product, kc);
  const Tiles tiles(gemm);
  multiplication.run(workspace);
}

// The contraction length of a block for the requested `kc`.
std::int64_t block_length(const kernels::Gemm& gemm, std::int64_t kc) {
  return kc == 0 || kc >= gemm.kc ? gemm.kc : round_up(kc, gemm.k_step);
}

}  // namespace

std::int64_t workspace_bytes(const Arithmetic& arithmetic, const Product& product, std::int64_t kc) {
  if (product.rows == 0 || product.columns == 0) return 0;
  kc = block_length(*arithmetic.gemm, kc);
  const std::int64_t bytes = arithmetic.sums == DType::float64
                                 ? Multiplication<double>(arithmetic, product, kc).bytes()
                                 : Multiplication<float>(arithmetic, product, kc).bytes();
  return Workspace::rounded(bytes);
}

void multiply(const Arithmetic& arithmetic, const Product& product, std::int64_t kc, Workspace& workspace) {
  if (product.rows == 0 || product.columns == 0) return;
  kc = block_length(*arithmetic.gemm, kc);
  if (arithmetic.sums == DType::float64)
    run<double>(arithmetic, product, kc, workspace);
  else
    run<float>(arithmetic, product, kc, workspace);
}

}  // namespace ejk::matmul
