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
  if (p.k == 0 && !adds)
    for (std::int64_t r = 0; r < p.rows; ++r) std::fill_n(sums + r * stride, p.columns, Sum{0});

  const std::int64_t panel = panel_bytes(gemm, longest), panels = core::ceil_div(p.columns, gemm.nr);
  void* a = workspace.a(gemm.a_stride * gemm.mr);
  auto* b = static_cast<std::byte*>(workspace.b(panel * panels));
  // Rows are shared out evenly: a last tile of one row would cost as much as a full one.
  const std::int64_t tiles = core::ceil_div(p.rows, gemm.mr);
  for (std::int64_t k0 = 0; k0 < p.k; k0 += kc, adds = true) {
    const std::int64_t k = std::min(kc, p.k - k0);
    gemm.pack_b(part(p.b, k0, 0), k, p.columns, b, panel);
    for (std::int64_t t = 0; t < tiles; ++t) {
      const std::int64_t row = t * p.rows / tiles, rows = (t + 1) * p.rows / tiles - row;
      gemm.pack_a(part(p.a, row, k0), rows, k, a);
      for (std::int64_t j = 0; j < panels; ++j)
        gemm.tile(a, b + j * panel, k, rows, std::min(gemm.nr, p.columns - j * gemm.nr), adds,
                  sums + row * stride + j * gemm.nr, stride);
    }
  }
  if (in_place) return;
  for (std::int64_t r = 0; r < p.rows; ++r) {
    if (p.added != nullptr) add(row_of(p.added, r, p.added_stride), p.dtype, p.columns, sums + r * stride);
    arithmetic.convert(sums + r * stride, p.columns, p.dtype, row_of(p.out, r, p.out_stride));
  }
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

void* Workspace::at(std::vector<std::byte>& memory, std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes + kLine);
  if (memory.size() < size) memory = std::vector<std::byte>(size);
  const auto past = reinterpret_cast<std::uintptr_t>(memory.data()) % kLine;
  return memory.data() + (kLine - past) % kLine;
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
