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
extern const Products products_portable;
#if defined(__x86_64__)
extern const Kernels avx2, avx512;
extern const Products products_avx2, products_avx512;
extern const Gemm gemm_bf16_avx512bf16, gemm_bf16_amx;
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

#if defined(__x86_64__)
Products with_bf16(const Gemm& bf16, int rate) {
  Products made = products_avx512;
  made.bf16 = &bf16;
  made.bf16_rate = rate;
  return made;
}
#endif

struct Rows {
#if defined(__x86_64__)
  static constexpr int kCount = 5;
#else
  static constexpr int kCount = 1;
#endif
  const Kernels rows[kCount] = {
#if defined(__x86_64__)
      row(avx512, "amx", kAmxBf16 | kAvx512bf16, with_bf16(gemm_bf16_amx, 16)),
      row(avx512, "avx512bf16", kAvx512bf16, with_bf16(gemm_bf16_avx512bf16, 2)),
      row(avx512, "avx512", 0, products_avx512),
      row(avx2, "avx2", kFma | kF16c, products_avx2),
#endif
      row(portable, "portable", 0, products_portable),
  };
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

std::span<const Kernels> all() { return table().rows; }

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
