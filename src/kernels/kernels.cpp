// The table of instruction sets and the choice between them.
// tests: tests/kernels/test_bits.cpp
#include "kernels/kernels.hpp"

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "kernels/isa.hpp"

namespace ejk::kernels {

// One file each; a file that is compiled for wider registers exports these and nothing else.
extern const Kernels portable;
extern const Gemm gemm_f32_portable, gemm_f64_portable;
extern Convert convert_f32_portable, convert_f64_portable;
#if defined(__x86_64__)
extern const Kernels avx2, avx512;
extern const Gemm gemm_f32_avx2, gemm_f64_avx2, gemm_f32_avx512, gemm_f64_avx512, gemm_bf16_avx512bf16,
    gemm_bf16_amx;
extern Convert convert_f32_avx2, convert_f64_avx2, convert_f32_avx512, convert_f64_avx512;
#endif

namespace {

// A row that has all of another, products, and what these need.
Kernels row(const Kernels& base, const char* name, std::uint32_t more, const Products& products) {
  Kernels made = base;
  made.name = name;
  made.needs |= more;
  made.products = products;
  return made;
}

struct Rows {
#if defined(__x86_64__)
  static constexpr int kCount = 5;
  const Products wide{&gemm_f32_avx512, &gemm_f64_avx512, nullptr, convert_f32_avx512, convert_f64_avx512};
  const Products pairs = [&] {
    Products p = wide;
    p.bf16 = &gemm_bf16_avx512bf16;
    return p;
  }();
  const Products tiles = [&] {
    Products p = wide;
    p.bf16 = &gemm_bf16_amx;
    return p;
  }();
#else
  static constexpr int kCount = 1;
#endif
  const Kernels rows[kCount] = {
#if defined(__x86_64__)
      row(avx512, "amx", kAmxBf16 | kAvx512bf16, tiles),
      row(avx512, "avx512bf16", kAvx512bf16, pairs),
      row(avx512, "avx512", 0, wide),
      row(avx2, "avx2", kFma | kF16c,
          {&gemm_f32_avx2, &gemm_f64_avx2, nullptr, convert_f32_avx2, convert_f64_avx2}),
#endif
      row(portable, "portable", 0,
          {&gemm_f32_portable, &gemm_f64_portable, nullptr, convert_f32_portable, convert_f64_portable}),
  };
  const Kernels* pointers[kCount];
  Rows() {
    for (int i = 0; i < kCount; ++i) pointers[i] = &rows[i];
  }
};

const Rows& table() {
  static const Rows made;
  return made;
}

const Kernels& choose() {
  const char* forced = std::getenv("EJK_ISA");
  for (const Kernels& row : table().rows)
    if (supported(row) && (forced == nullptr || *forced == '\0' || std::strcmp(forced, row.name) == 0))
      return row;
  return table().rows[Rows::kCount - 1];
}

std::atomic<const Kernels*> forced_row{nullptr};

}  // namespace

const Kernels* const* all(int* count) {
  *count = Rows::kCount;
  return table().pointers;
}

bool supported(const Kernels& row) {
  static const std::uint32_t features = features_of(read_cpu());
  return (row.needs & ~features) == 0;
}

const Kernels& active() {
  static const Kernels& chosen = choose();
  const Kernels* forced = forced_row.load(std::memory_order_relaxed);
  return forced != nullptr ? *forced : chosen;
}

void force(const Kernels* row) { forced_row.store(row, std::memory_order_relaxed); }

}  // namespace ejk::kernels
