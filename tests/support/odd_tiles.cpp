#include "support/odd_tiles.hpp"

#include <cstring>
#include <type_traits>
#include <utility>

namespace test {

namespace {

using namespace ejk;
using namespace ejk::kernels;

#include "kernels/plain.inl"

#include "kernels/matmul.inl"

constexpr Gemm f32 = gemm<Plain<float, 4, 101>, 5, 3, 16>("f32");
constexpr Gemm f64 = gemm<Plain<double, 8, 83>, 3, 3, 16>("f64");

}  // namespace

const Kernels& odd_tiles() {
  static const Kernels row = [] {
    Kernels made = all().back();
    made.name = "odd tiles";
    made.products.f32 = &f32;
    made.products.f64 = &f64;
    return made;
  }();
  return row;
}

}  // namespace test
