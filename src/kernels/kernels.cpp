// The table of instruction sets and the choice between them.
// tests: tests/kernels/test_bits.cpp
#include "kernels/kernels.hpp"

#include <cstdlib>
#include <cstring>

#include "kernels/isa.hpp"

namespace ejk::kernels {

extern const Kernels portable;
#if defined(__x86_64__)
extern const Kernels avx2;
extern const Kernels avx512;
#endif

namespace {

const Kernels* const kRows[] = {
#if defined(__x86_64__)
    &avx512,
    &avx2,
#endif
    &portable,
};
constexpr int kCount = static_cast<int>(sizeof kRows / sizeof kRows[0]);

const Kernels& choose() {
  const char* forced = std::getenv("EJK_ISA");
  for (const Kernels* row : kRows)
    if (supported(*row) && (forced == nullptr || *forced == '\0' || std::strcmp(forced, row->name) == 0))
      return *row;
  return portable;
}

}  // namespace

const Kernels* const* all(int* count) {
  *count = kCount;
  return kRows;
}

bool supported(const Kernels& row) {
  static const std::uint32_t features = features_of(read_cpu());
  return (row.needs & ~features) == 0;
}

const Kernels& active() {
  static const Kernels& chosen = choose();
  return chosen;
}

}  // namespace ejk::kernels
