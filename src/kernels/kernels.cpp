// The table of instruction sets and the choice between them. This file is compiled once, for any processor,
// so unlike the kernels it may throw.
// tests: tests/kernels/test_bits.cpp
#include "kernels/kernels.hpp"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "ejk/error.hpp"
#include "ejk/program/text.hpp"
#include "kernels/isa.hpp"

namespace ejk::kernels {

// One file each; a file that is compiled for wider registers exports these and nothing else.
extern const Kernels portable;
extern const Products products_portable;
#if defined(__x86_64__)
extern const Kernels avx2, avx512;
extern const Products products_avx2, products_avx512;
extern const Gemm gemm_bf16_avx512bf16, gemm_bf16_amx;
#elif defined(__aarch64__)
extern const Kernels neon;
extern const Products products_neon;
#endif

namespace {

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
#elif defined(__aarch64__)
  static constexpr int kCount = 2;
#else
  static constexpr int kCount = 1;
#endif
  const Kernels rows[kCount] = {
#if defined(__x86_64__)
      row(avx512, "amx", kAmxBf16 | kAvx512bf16, with_bf16(gemm_bf16_amx, 16)),
      row(avx512, "avx512bf16", kAvx512bf16, with_bf16(gemm_bf16_avx512bf16, 2)),
      row(avx512, "avx512", 0, products_avx512),
      row(avx2, "avx2", 0, products_avx2),
#elif defined(__aarch64__)
      row(neon, "neon", 0, products_neon),
#endif
      row(portable, "portable", 0, products_portable),
  };
};

const Rows& table() {
  static const Rows made;
  return made;
}

const char* requested() {
  const char* name = std::getenv("EJK_ISA");
  return name != nullptr && *name != '\0' ? name : nullptr;
}

const Kernels* best_from(const Kernels* row) {
  while (!supported(*row)) ++row;  // the last one is
  return row;
}

std::atomic<const Kernels*>& chosen_row() {
  static std::atomic<const Kernels*> row{requested() != nullptr ? &row_named(requested())
                                                                : best_from(table().rows)};
  return row;
}

std::atomic<const Kernels*> forced_row{nullptr};

// Whether AMX, the active row, may be used; if not, it is no longer active.
bool tiles_are_ours() {
  if (request_tiles()) return true;
  const Kernels& row = *chosen_row();
  if (requested() != nullptr)
    throw Error(Error::Kind::usage, std::string("EJK_ISA: the system refuses this process ") + row.name);
  chosen_row() = best_from(&row + 1);
  return false;
}

}  // namespace

std::span<const Kernels> all() { return table().rows; }

bool supported(const Kernels& row) {
  static const std::uint32_t features = features_of(read_cpu());
  return (row.needs & ~features) == 0;
}

const Kernels& row_named(const char* name) {
  std::vector<std::string> names;
  for (const Kernels& row : table().rows) {
    if (!supported(row)) continue;
    if (std::strcmp(name, row.name) == 0) return row;
    names.emplace_back(row.name);
  }
  std::string hint = "there is ";
  for (const std::string& n : names) hint += n + (&n == &names.back() ? "" : ", ");
  if (const auto nearest = nearest_name(name, names)) hint = "did you mean '" + *nearest + "'? " + hint;
  throw Error(Error::Kind::usage,
              "EJK_ISA: '" + printable(name) + "' is not an instruction set of this build and machine")
      .hint(hint);
}

const Kernels& active() {
  const Kernels* forced = forced_row.load(std::memory_order_relaxed);
  return forced != nullptr ? *forced : *chosen_row().load(std::memory_order_relaxed);
}

const Kernels& active_for_bf16() {
  if (forced_row.load(std::memory_order_relaxed) == nullptr && (active().needs & kAmxBf16) != 0) {
    [[maybe_unused]] static const bool ours = tiles_are_ours();
  }
  return active();
}

void force(const Kernels* row) { forced_row.store(row, std::memory_order_relaxed); }

}  // namespace ejk::kernels
