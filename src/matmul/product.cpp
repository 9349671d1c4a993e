// tests: tests/matmul/test_product.cpp
#include "matmul/product.hpp"

#include <algorithm>
#include <cstring>

#include "core/checked.hpp"

namespace ejk::matmul {

namespace {

constexpr std::int64_t kLine = 64;

std::int64_t round_up(std::int64_t n, std::int64_t step) { return core::ceil_div(n, step) * step; }

// Bytes of a panel of B for k contraction elements, and from panel to panel: two lines more, so that the same
// row of all panels does not fall into one set of the cache.
std::int64_t panel_bytes(const kernels::Gemm& gemm, std::int64_t k) {
  return round_up(k, gemm.k_step) / gemm.kr * gemm.nr * gemm.unit + 2 * kLine;
}

kernels::Block part(const kernels::Block& block, std::int64_t row, std::int64_t column) {
  kernels::Block moved = block;
  moved.data =
      static_cast<const std::byte*>(block.data) + row * block.row_stride + column * block.column_stride;
  return moved;
}

// Asks for the cache lines of a block some at a time, between tiles: what is packed next has come from memory
// by then. Where neither rows nor columns lie together there is nothing to ask for.
class Ahead {
 public:
  Ahead() = default;
  Ahead(const kernels::Block& block, std::int64_t rows, std::int64_t columns) {
    const std::int64_t size = size_of(block.dtype);
    const bool by_row = block.column_stride == size;
    if (!by_row && block.row_stride != size) return;
    from_ = static_cast<const std::byte*>(block.data);
    stride_ = by_row ? block.row_stride : block.column_stride;
    runs_ = by_row ? rows : columns;
    run_bytes_ = (by_row ? columns : rows) * size;
  }

  std::int64_t lines() const { return runs_ * core::ceil_div(run_bytes_, kLine); }

  void ask(std::int64_t lines) {
    for (; lines > 0 && run_ < runs_; --lines) {
      __builtin_prefetch(from_ + run_ * stride_ + at_, 0, 2);
      at_ += kLine;
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
  dispatch(dtype, [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>) {
      const auto* from = static_cast<const T*>(in);
      for (std::int64_t i = 0; i < n; ++i) sums[i] += static_cast<Sum>(static_cast<float>(from[i]));
    } else if constexpr (std::is_floating_point_v<T>) {
      const auto* from = static_cast<const T*>(in);
      for (std::int64_t i = 0; i < n; ++i) sums[i] = static_cast<Sum>(sums[i] + static_cast<Sum>(from[i]));
    }
  });
}

template <class Sum>
void run(const Arithmetic& arithmetic, const Product& p, std::int64_t kc, Workspace& workspace) {
  const kernels::Gemm& gemm = *arithmetic.gemm;
  const std::int64_t size = size_of(p.dtype), longest = std::min(kc, p.k);
  // Sums lie in the result where that is of their type, and then so does what they are added to.
  const bool in_place = p.dtype == arithmetic.sums;
  auto* sums = static_cast<Sum*>(p.out);
  std::int64_t stride = p.out_stride / size;
  if (!in_place) {
    stride = round_up(p.columns, kLine / static_cast<std::int64_t>(sizeof(Sum)));
    sums = static_cast<Sum*>(workspace.sums(p.rows * stride * static_cast<std::int64_t>(sizeof(Sum))));
  }
  const auto row_of = [](auto* base, std::int64_t row, std::int64_t row_stride) {
    using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(base)>>, const std::byte,
                                    std::byte>;
    return reinterpret_cast<Byte*>(base) + row * row_stride;
  };
  bool adds = in_place && p.added != nullptr;
  if (adds && p.added != p.out)
    for (std::int64_t r = 0; r < p.rows; ++r)
      std::memcpy(row_of(p.out, r, p.out_stride), row_of(p.added, r, p.added_stride),
                  static_cast<std::size_t>(p.columns * size));
  // Finished sums to the result, while they are near.
  const auto finish = [&](std::int64_t row, std::int64_t rows) {
    for (std::int64_t r = row; r < row + rows; ++r) {
      if (p.added != nullptr) add(row_of(p.added, r, p.added_stride), p.dtype, p.columns, sums + r * stride);
      arithmetic.convert(sums + r * stride, p.columns, p.dtype, row_of(p.out, r, p.out_stride));
    }
  };
  if (p.k == 0 && !adds)
    for (std::int64_t r = 0; r < p.rows; ++r) std::fill_n(sums + r * stride, p.columns, Sum{0});

  // Few rows use each element of B once: its full panels are read where they lie.
  const bool direct = p.rows <= gemm.direct_rows && p.b.column_stride == size_of(p.b.dtype);
  const std::int64_t lying = direct ? p.columns / gemm.nr * gemm.nr : 0, packed = p.columns - lying;
  const std::int64_t panel = panel_bytes(gemm, longest), panels = core::ceil_div(packed, gemm.nr);
  void* a = workspace.a(gemm.a_stride * gemm.mr);
  auto* b = static_cast<std::byte*>(workspace.b(panel * panels));
  // Rows are shared out evenly: a last tile of one row would cost as much as a full one.
  const std::int64_t tiles = core::ceil_div(p.rows, gemm.mr);
  const auto first_row = [&](std::int64_t tile) { return tile * p.rows / tiles; };
  for (std::int64_t k0 = 0; k0 < p.k; k0 += kc, adds = true) {
    const std::int64_t k = std::min(kc, p.k - k0), next_k = std::min(kc, p.k - k0 - k);
    const bool last = next_k == 0;
    gemm.pack_b(part(p.b, k0, lying), k, packed, b, panel);
    Ahead next_b(part(p.b, k0 + k, lying), next_k, packed);
    const std::int64_t b_lines = packed == 0 ? 0 : core::ceil_div(next_b.lines(), tiles * panels);
    for (std::int64_t t = 0; t < tiles; ++t) {
      const std::int64_t row = first_row(t), rows = first_row(t + 1) - row;
      Sum* to = sums + row * stride;
      gemm.pack_a(part(p.a, row, k0), rows, k, a);
      for (std::int64_t p0 = 0; lying > 0 && p0 < k; p0 += gemm.direct_k)
        gemm.direct(static_cast<std::byte*>(a) + p0 / gemm.kr * gemm.unit, part(p.b, k0 + p0, 0),
                    std::min(gemm.direct_k, k - p0), rows, lying, adds || p0 > 0, to, stride);
      Ahead next_a = t + 1 < tiles ? Ahead(part(p.a, row + rows, k0), first_row(t + 2) - row - rows, k)
                                   : Ahead(part(p.a, 0, k0 + k), first_row(1), next_k);
      const std::int64_t a_lines = packed == 0 ? 0 : core::ceil_div(next_a.lines(), panels);
      for (std::int64_t j = 0; j < panels; ++j) {
        next_a.ask(a_lines);
        next_b.ask(b_lines);
        gemm.tile(a, b + j * panel, k, rows, std::min(gemm.nr, packed - j * gemm.nr), adds,
                  to + lying + j * gemm.nr, stride);
      }
      if (last && !in_place) finish(row, rows);
    }
  }
  if (p.k == 0 && !in_place) finish(0, p.rows);
}

}  // namespace

Arithmetic arithmetic_of(DType lhs, DType rhs, const kernels::Kernels& row) {
  const kernels::Products& products = row.products;
  if (lhs == DType::float64 || rhs == DType::float64)
    return {products.f64, products.convert_f64, DType::float64};
  if (lhs == DType::bfloat16 && rhs == DType::bfloat16 && products.bf16 != nullptr)
    return {products.bf16, products.convert_f32, DType::float32};
  return {products.f32, products.convert_f32, DType::float32};
}

Workspace& Workspace::of_this_thread() {
  thread_local Workspace workspace;
  return workspace;
}

void* Workspace::Buffer::at_least(std::int64_t bytes) {
  if (bytes_ < bytes) {
    memory_.reset();
    memory_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes + kLine));
    bytes_ = bytes;
  }
  const auto past = reinterpret_cast<std::uintptr_t>(memory_.get()) % kLine;
  return memory_.get() + (kLine - past) % kLine;
}

void multiply(const Arithmetic& arithmetic, const Product& product, std::int64_t kc, Workspace& workspace) {
  const kernels::Gemm& gemm = *arithmetic.gemm;
  if (product.rows == 0 || product.columns == 0) return;
  kc = kc == 0 ? gemm.kc : std::min(round_up(kc, gemm.k_step), gemm.kc);
  if (gemm.enter != nullptr) gemm.enter();
  if (arithmetic.sums == DType::float64)
    run<double>(arithmetic, product, kc, workspace);
  else
    run<float>(arithmetic, product, kc, workspace);
  if (gemm.leave != nullptr) gemm.leave();
}

std::int64_t workspace_bytes(const Arithmetic& arithmetic, std::int64_t rows, std::int64_t k,
                             std::int64_t columns, DType dtype) {
  const kernels::Gemm& gemm = *arithmetic.gemm;
  const std::int64_t panels = core::ceil_div(columns, gemm.nr);
  const std::int64_t sums =
      dtype == arithmetic.sums ? 0 : rows * round_up(columns, kLine) * size_of(arithmetic.sums);
  return gemm.a_stride * gemm.mr + panels * panel_bytes(gemm, std::min(k, gemm.kc)) + sums + 3 * kLine;
}

}  // namespace ejk::matmul
