// Products on any machine: vectors of 16 bytes, which the compiler maps to what there is.
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/matmul.hpp"

namespace ejk::kernels {

namespace {

template <class T>
struct Plain {
  using Sum = T;
  using Vec __attribute__((vector_size(16))) = T;
  using Pack = Vec;
  static constexpr int kLanes = 16 / sizeof(T);
  static constexpr std::int64_t kUnit = sizeof(T), kKr = 1, kKc = 256;

  static Vec zero() { return Vec{}; }
  static Vec load(const T* p) { return load_part(p, kLanes); }
  static void store(T* p, Vec v) { store_part(p, v, kLanes); }
  static void stream(T* p, Vec v) { store(p, v); }
  static Vec load_part(const T* p, int n) {
    Vec v{};
    std::memcpy(&v, p, static_cast<std::size_t>(n) * sizeof(T));
    return v;
  }
  static void store_part(T* p, Vec v, int n) { std::memcpy(p, &v, static_cast<std::size_t>(n) * sizeof(T)); }
  static Pack load_b(const char* p) { return load(reinterpret_cast<const T*>(p)); }
  static Pack spread_a(const char* p) { return Vec{} + *reinterpret_cast<const T*>(p); }
  static Vec mac(Vec sum, Pack a, Pack b) { return sum + a * b; }
  template <DType D>
  static Vec widen(const char* p) {
    using From =
        std::conditional_t<D == DType::float16, float16,
                           std::conditional_t<D == DType::bfloat16, bfloat16,
                                              std::conditional_t<D == DType::float32, float, double>>>;
    Vec v{};
    for (int i = 0; i < kLanes; ++i) {
      From element;
      std::memcpy(&element, p + i * static_cast<int>(sizeof(From)), sizeof(From));
      if constexpr (sizeof(From) == 2)
        v[i] = static_cast<T>(static_cast<float>(element));
      else
        v[i] = static_cast<T>(element);
    }
    return v;
  }
};

using F32 = Plain<float>;
using F64 = Plain<double>;

void narrow_16(const float* in, std::int64_t n, std::uint16_t* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = float16(in[i]).bits;
}

void stream_line(void* to, const void* from) { std::memcpy(to, from, 64); }

#include "kernels/convert.inl"
#include "kernels/matmul.inl"
#include "kernels/softmax.inl"

constinit const Gemm f32 = gemm<F32, 4, 2, 16>("f32");
constinit const Gemm f64 = gemm<F64, 4, 2, 16>("f64");

}  // namespace

extern const Products products_portable;
constinit const Products products_portable{
    .f32 = &f32, .f64 = &f64, .bf16 = nullptr, EJK_CONVERT_KERNELS, EJK_SOFTMAX_KERNELS};

}  // namespace ejk::kernels
