// Product kernels: on every instruction set of this machine the sums of a plain loop, for every tile size,
// dtype and packed layout, and no write outside the result. AMX's tiles run on emulation, too.
#include "kernels/matmul.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "ejk/array.hpp"
#include "kernels/isa.hpp"
#include "kernels/kernels.hpp"

#include "support/amx_emulation.hpp"
#include "support/arrays.hpp"
#include "support/instruction_sets.hpp"

using namespace ejk;
using namespace ejk::kernels;

namespace {

struct Named {
  std::string isa;
  const Gemm* gemm;
};

std::vector<Named> runnable() {
  std::vector<Named> found;
  for (const Kernels* row : test::instruction_sets())
    for (const Gemm* g : {row->products.f32, row->products.f64, row->products.bf16})
      if (g != nullptr) found.push_back({row->name, g});
  return found;
}

double value(const Array& a, std::int64_t i) {
  double v = 0;
  dispatch(a.dtype(), [&]<class T>(std::type_identity<T>) {
    const T x = a.elements<T>()[static_cast<std::size_t>(i)];
    v = static_cast<double>(static_cast<Computed<T>>(x));
  });
  return v;
}

// Small whole numbers: sums are exact in every order.
Array numbers(DType dtype, std::int64_t n, std::mt19937& random) {
  Array a(dtype, {n});
  dispatch(dtype, [&]<class T>(std::type_identity<T>) {
    if constexpr (!std::is_same_v<T, bool>)
      for (T& x : a.elements<T>()) x = T(static_cast<float>(static_cast<int>(random() % 17) - 8));
  });
  return a;
}

enum class Layout { rows, columns, neither };

// A rows × columns block of numbers, laid out so, and its strides.
struct Matrix {
  Array elements;
  StridedMatrix block;
  double at(std::int64_t r, std::int64_t c) const {
    return value(elements, (r * block.row_stride + c * block.column_stride) / size_of(block.dtype));
  }
};

Matrix matrix(DType dtype, std::int64_t rows, std::int64_t columns, Layout layout, std::mt19937& random) {
  Matrix m{numbers(dtype, 3 * (rows + 1) * (columns + 1), random), {}};
  const std::int64_t size = size_of(dtype);
  m.block = {m.elements.data(), dtype, size, size};
  if (layout == Layout::rows) m.block.row_stride = (columns + 1) * size;
  if (layout == Layout::columns) m.block.column_stride = (rows + 1) * size;
  if (layout == Layout::neither) m.block.row_stride = 2 * columns * size, m.block.column_stride = 2 * size;
  return m;
}

template <class Sum>
void check(const Gemm& gemm, DType dtype, std::int64_t rows, std::int64_t k, std::int64_t columns,
           Layout layout, bool add, std::mt19937& random) {
  const Matrix a = matrix(dtype, rows, k, layout, random), b = matrix(dtype, k, columns, layout, random);
  const std::int64_t panels = (columns + gemm.nr - 1) / gemm.nr;
  const std::int64_t panel =
      (k + gemm.k_step - 1) / gemm.k_step * gemm.k_step / gemm.kr * gemm.nr * gemm.unit + 64;
  // Packed memory full of NaN: what is not written must not be read into a sum.
  std::vector<std::byte> memory(static_cast<std::size_t>(gemm.a_stride * gemm.mr + panel * panels + 192),
                                std::byte{0xFF});
  auto* packed_a = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
  auto* packed_b = packed_a + gemm.a_stride * gemm.mr;
  packed_b += (64 - reinterpret_cast<std::uintptr_t>(packed_b) % 64) % 64;
  gemm.pack_a(a.block, rows, k, packed_a);
  gemm.pack_b(b.block, k, columns, packed_b, panel);
  // Some results lie at cache lines, as those that are streamed do.
  const std::int64_t stride = rows % 3 == 0 ? (columns / 16 + 1) * 16 : columns + 3;
  Array memory_of_out(dtype_of<Sum>(), {(rows + 1) * stride + 16});
  Sum* out = memory_of_out.elements<Sum>().data();
  out += (64 - reinterpret_cast<std::uintptr_t>(out) % 64) % 64 / sizeof(Sum);
  std::fill_n(out, (rows + 1) * stride, Sum{7});
  if (gemm.enter != nullptr) gemm.enter();
  for (std::int64_t j = 0; j < panels; ++j)
    gemm.tile(packed_a, packed_b + j * panel, k, rows, std::min(gemm.nr, columns - j * gemm.nr),
              add             ? Store::accumulate
              : rows % 3 == 0 ? Store::stream
                              : Store::overwrite,
              out + j * gemm.nr, stride);
  if (gemm.leave != nullptr) gemm.leave();
  bool right = true;
  for (std::int64_t r = 0; r <= rows; ++r)
    for (std::int64_t c = 0; c < stride; ++c) {
      double expected = 7;
      if (r < rows && c < columns) {
        expected = add ? 7 : 0;
        for (std::int64_t p = 0; p < k; ++p) expected += a.at(r, p) * b.at(p, c);
      }
      right = right && static_cast<double>(out[r * stride + c]) == expected;
    }
  CHECK_MESSAGE(right, "rows ", rows, ", k ", k, ", columns ", columns, ", layout ", static_cast<int>(layout),
                ", add ", add, ", ", name_of(dtype));
}

// The same for B where it lies.
template <class Sum>
void check_direct(const Gemm& gemm, DType dtype, std::int64_t rows, std::int64_t k, std::int64_t columns,
                  bool add, std::mt19937& random) {
  const Matrix a = matrix(dtype, rows, k, Layout::rows, random),
               b = matrix(dtype, k, columns, Layout::rows, random);
  std::vector<std::byte> memory(static_cast<std::size_t>(gemm.a_stride * rows + 64), std::byte{0xFF});
  auto* packed = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
  gemm.pack_a(a.block, rows, k, packed);
  const std::int64_t stride = columns + 3;
  std::vector<Sum> out(static_cast<std::size_t>((rows + 1) * stride), Sum{7});
  gemm.direct(packed, b.block, k, rows, columns, add, out.data(), stride,
              {b.block.data, columns % 2 == 0 ? k : 0, columns * size_of(dtype), b.block.row_stride});
  bool right = true;
  for (std::int64_t r = 0; r <= rows; ++r)
    for (std::int64_t c = 0; c < stride; ++c) {
      double expected = r < rows && c < columns && !add ? 0 : 7;
      if (r < rows && c < columns)
        for (std::int64_t p = 0; p < k; ++p) expected += a.at(r, p) * b.at(p, c);
      right = right && static_cast<double>(out[static_cast<std::size_t>(r * stride + c)]) == expected;
    }
  CHECK_MESSAGE(right, "rows ", rows, ", k ", k, ", columns ", columns, ", add ", add, ", ", name_of(dtype));
}

std::vector<DType> inputs_of(const Gemm& gemm) {
  if (gemm.kr > 1) return {DType::bfloat16};
  std::vector<DType> found{DType::float16, DType::bfloat16, DType::float32};
  if (gemm.unit == 8) found.push_back(DType::float64);
  return found;
}

}  // namespace

TEST_CASE(
    "every tile size, layout and dtype gives the sums of a plain loop on every instruction set at hand") {
  for (const Named& n : runnable()) {
    CAPTURE(n.isa);
    CAPTURE(n.gemm->name);
    std::mt19937 random(3);
    const auto run = [&](DType dtype, std::int64_t rows, std::int64_t k, std::int64_t columns, Layout layout,
                         bool add) {
      if (n.gemm->unit == 8)
        check<double>(*n.gemm, dtype, rows, k, columns, layout, add, random);
      else
        check<float>(*n.gemm, dtype, rows, k, columns, layout, add, random);
    };
    const auto run_direct = [&](DType dtype, std::int64_t rows, std::int64_t k, std::int64_t panels) {
      for (const std::int64_t columns :
           {panels * n.gemm->nr, panels * n.gemm->nr - 1 - (rows + k) % (n.gemm->nr - 1)})
        if (n.gemm->unit == 8)
          check_direct<double>(*n.gemm, dtype, rows, k, columns, k % 2 == 0, random);
        else
          check_direct<float>(*n.gemm, dtype, rows, k, columns, k % 2 == 0, random);
    };
    const std::int64_t tile = n.gemm->direct_rows, piece = n.gemm->direct_k;
    for (const DType dtype : inputs_of(*n.gemm)) {
      for (std::int64_t rows = 1; rows <= tile; ++rows)
        for (std::int64_t panels = 1; panels <= 9; ++panels)
          for (const std::int64_t k : {std::int64_t{1}, 2 + panels, 1 + rows, piece})
            run_direct(dtype, rows, k, panels);
      for (const std::int64_t rows : {tile + 1, 2 * tile - 1, 2 * tile, 3 * tile + 2})
        for (const std::int64_t panels : {1, 2, 5})
          for (const std::int64_t k : {std::int64_t{1}, std::int64_t{6}, piece + 1, 2 * piece})
            run_direct(dtype, rows, k, panels);
      for (std::int64_t columns = 1; columns < 9 * n.gemm->nr; ++columns)
        if (n.gemm->unit == 8)
          check_direct<double>(*n.gemm, dtype, 1 + columns % 3, 5, columns, false, random);
        else
          check_direct<float>(*n.gemm, dtype, 1 + columns % 3, 5, columns, false, random);
    }
    for (const DType dtype : inputs_of(*n.gemm))
      for (const Layout layout : {Layout::rows, Layout::columns, Layout::neither}) {
        for (std::int64_t rows = 1; rows <= n.gemm->mr; ++rows)
          for (const std::int64_t columns : {std::int64_t{1}, n.gemm->nr - 1, n.gemm->nr, n.gemm->nr + 5})
            run(dtype, rows, 1 + static_cast<std::int64_t>(random() % 70), columns, layout, rows % 2 == 0);
        for (std::int64_t columns = 1; columns <= 2 * n.gemm->nr; ++columns)
          run(dtype, n.gemm->mr, 1 + columns % 9, columns, layout, columns % 2 == 0);
        for (const std::int64_t k : {n.gemm->kc - 1, n.gemm->kc})
          run(dtype, n.gemm->mr, k, n.gemm->nr, layout, false);
        for (std::int64_t k = 1; k <= 80; ++k) run(dtype, 3, k, 5, layout, k % 2 == 0);
      }
  }
}

namespace {

// AMX's tiles as arrays.
struct PlainTiles {
  static inline test::amx::Tile tile[8];

  template <int N>
  static void zero() {
    tile[N] = {};
  }
  template <int N>
  static void load(const void* p, std::int64_t stride) {
    for (std::size_t r = 0; r < 16; ++r)
      std::memcpy(tile[N][r].data(), static_cast<const char*>(p) + static_cast<std::int64_t>(r) * stride, 64);
  }
  template <int N>
  static void store(void* p, std::int64_t stride) {
    for (std::size_t r = 0; r < 16; ++r)
      std::memcpy(static_cast<char*>(p) + static_cast<std::int64_t>(r) * stride, tile[N][r].data(), 64);
  }
  template <int Sum, int A, int B>
  static void dot() {
    test::amx::dot_bf16(tile[Sum], tile[A], tile[B], 16, 16, 16);
  }
};

#include "kernels/amx.inl"

// Its packing, one element after the other.
void plain_pack_a(const StridedMatrix& in, std::int64_t rows, std::int64_t k, void* out) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t p = 0; p < (k + 31) / 32 * 32; ++p) {
      bfloat16 x;
      if (p < k)
        std::memcpy(&x, static_cast<const char*>(in.data) + r * in.row_stride + p * in.column_stride, 2);
      std::memcpy(static_cast<char*>(out) + r * 1088 + p * 2, &x, 2);
    }
}
void plain_pack_b(const StridedMatrix& in, std::int64_t k, std::int64_t columns, void* out,
                  std::int64_t panel_stride) {
  for (std::int64_t j = 0; j < (columns + 31) / 32 * 32; ++j)
    for (std::int64_t p = 0; p < (k + 31) / 32 * 32; ++p) {
      bfloat16 x;
      if (p < k && j < columns)
        std::memcpy(&x, static_cast<const char*>(in.data) + p * in.row_stride + j * in.column_stride, 2);
      std::memcpy(static_cast<char*>(out) + j / 32 * panel_stride + ((p / 2 * 32 + j % 32) * 2 + p % 2) * 2,
                  &x, 2);
    }
}

}  // namespace

TEST_CASE("what is asked for meanwhile does not matter to a product with B where it lies") {
  for (const Named& n : runnable()) {
    CAPTURE(n.isa);
    CAPTURE(n.gemm->name);
    std::mt19937_64 random(29);
    for (const DType dtype : inputs_of(*n.gemm))
      for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{2}, 2 * n.gemm->direct_rows})
        for (const std::int64_t columns :
             {n.gemm->nr, 3 * n.gemm->nr, 9 * n.gemm->nr, 1024 / n.gemm->nr * n.gemm->nr})
          for (const std::int64_t k : {std::int64_t{1}, std::int64_t{7}, n.gemm->direct_k}) {
            const Array a = plain::random(dtype, {rows, k}, random),
                        b = plain::random(dtype, {k, columns}, random);
            const auto size = static_cast<std::int64_t>(size_of(dtype));
            Array packed(DType::uint8, {n.gemm->a_stride * rows});
            n.gemm->pack_a({a.data(), dtype, k * size, size}, rows, k, packed.data());
            const StridedMatrix right{b.data(), dtype, columns * size, size};
            Array results[2];
            for (Array& out : results) {
              out = Array(n.gemm->unit == 8 ? DType::float64 : DType::float32, {rows, columns});
              std::memset(out.data(), 0, static_cast<std::size_t>(out.bytes()));
              for (int twice = 0; twice < 2; ++twice)
                n.gemm->direct(packed.data(), right, k, rows, columns, twice == 1, out.data(), columns,
                               {b.data(), &out == results ? 0 : k, columns * size, columns * size});
            }
            CHECK_MESSAGE(std::memcmp(results[0].data(), results[1].data(),
                                      static_cast<std::size_t>(results[0].bytes())) == 0,
                          "rows ", rows, ", columns ", columns, ", k ", k, ", ", name_of(dtype));
          }
  }
}

TEST_CASE("a tile rounded to bfloat16 has the bits of its sums converted, and touches nothing around it") {
  for (const Kernels* row : test::instruction_sets())
    for (const Gemm* g : {row->products.f32, row->products.bf16}) {
      if (g == nullptr || g->tile_bf16 == nullptr) continue;
      CAPTURE(row->name);
      CAPTURE(g->name);
      std::mt19937 random(37);
      const DType dtype = g->kr > 1 ? DType::bfloat16 : DType::float32;
      const std::int64_t size = size_of(dtype), stride = 64;
      std::vector<std::byte> memory(
          static_cast<std::size_t>(g->a_stride * g->mr + g->kc * g->nr * size + 64));
      auto* const packed_a = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
      auto* const packed_b = packed_a + g->a_stride * g->mr;
      // Any bits, so subnormal numbers, NaN and infinities as well, and every fourth between two of bfloat16.
      const auto any = [&](std::int64_t count) {
        Array a(dtype, {count});
        for (std::uint32_t& word :
             std::span(reinterpret_cast<std::uint32_t*>(a.data()), static_cast<std::size_t>(a.bytes() / 4)))
          word =
              static_cast<std::uint32_t>(random() % 4 == 0 ? (random() & 0xFFFF0000u) | 0x8000u : random());
        return a;
      };
      for (std::int64_t rows = 1; rows <= g->mr; ++rows)
        for (const std::int64_t columns : {std::int64_t{1}, g->nr / 2, g->nr / 2 + 1, g->nr - 1, g->nr})
          for (const std::int64_t k : {1, 2, 40}) {
            Array a = any(g->mr * k * 2), b = any(k * g->nr * 2);
            if (k == 1 && dtype == DType::float32)
              for (float& x : a.elements<float>()) x = 1;
            g->pack_a({a.data(), dtype, k * size, size}, rows, k, packed_a);
            g->pack_b({b.data(), dtype, g->nr * size, size}, k, columns, packed_b, 0);
            Array sums(DType::float32, {g->mr * stride}), wanted(DType::bfloat16, {g->mr * stride}),
                got(DType::bfloat16, {g->mr * stride});
            std::memset(wanted.data(), 7, static_cast<std::size_t>(wanted.bytes()));
            std::memset(got.data(), 7, static_cast<std::size_t>(got.bytes()));
            if (g->enter != nullptr) g->enter();
            g->tile(packed_a, packed_b, k, rows, columns, Store::overwrite, sums.data(), stride);
            g->tile_bf16(packed_a, packed_b, k, rows, columns,
                         rows % 2 == 0 ? Store::overwrite : Store::stream, got.data(), stride);
            if (g->leave != nullptr) g->leave();
            for (std::int64_t r = 0; r < rows; ++r)
              row->products.convert_f32(sums.elements<float>().data() + r * stride, columns, DType::bfloat16,
                                        false, wanted.elements<bfloat16>().data() + r * stride);
            CHECK_MESSAGE(std::memcmp(got.data(), wanted.data(), static_cast<std::size_t>(got.bytes())) == 0,
                          "rows ", rows, ", columns ", columns, ", k ", k);
          }
    }
}

TEST_CASE("the tile for AMX gives the sums of a plain loop where its instructions are plain loops") {
  const Gemm gemm{.name = "bf16",
                  .mr = 32,
                  .nr = 32,
                  .kr = 2,
                  .k_step = 32,
                  .kc = 512,
                  .pass_k = 512,
                  .a_stride = 1088,
                  .unit = 4,
                  .together = 1,
                  .direct_rows = 0,
                  .direct_k = 0,
                  .small_m = 0,
                  .enter = nullptr,
                  .leave = nullptr,
                  .pack_a = plain_pack_a,
                  .pack_b = plain_pack_b,
                  .tile = amx_tile<PlainTiles>,
                  .direct = nullptr};
  std::mt19937 random(4);
  for (std::int64_t rows = 1; rows <= 32; rows += rows < 15 || rows > 17 ? 3 : 1)
    for (const std::int64_t columns : {1, 16, 17, 31, 32, 40})
      for (const std::int64_t k : {1, 31, 32, 33, 64, 100})
        for (const bool add : {false, true})
          check<float>(gemm, DType::bfloat16, rows, k, columns, Layout::rows, add, random);
}

TEST_CASE("AMX's own instructions run on every machine that has the rest of its instruction set") {
  for (const Kernels* row : test::instruction_sets()) {
    if ((row->needs & kAmxBf16) == 0 || supported(*row)) continue;
    const std::int64_t before = test::amx::emulated();
    std::mt19937 random(8);
    check<float>(*row->products.bf16, DType::bfloat16, 20, 40, 33, Layout::rows, false, random);
    // Two panels: configured and released once; of each 4 sums made and stored, and in 2 steps 4 loads and 4
    // products.
    CHECK(test::amx::emulated() - before == 2 + 2 * (4 + 4 + 2 * 8));
  }
}

TEST_CASE("a row has the same bits in AMX's whole tiles and in its ragged ones") {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  constexpr std::int64_t kLength = 500, kWhole = 32, kRagged = 31;
  std::vector<bfloat16> a(kWhole * kLength), b(kLength * 32);
  for (auto* factor : {&a, &b})
    for (bfloat16& x : *factor) x = bfloat16(normal(random));
  alignas(64) static std::byte packed_a[32 * 1088], packed_b[512 * 64];
  plain_pack_a({a.data(), DType::bfloat16, kLength * 2, 2}, kWhole, kLength, packed_a);
  plain_pack_b({b.data(), DType::bfloat16, 64, 2}, kLength, 32, packed_b, sizeof packed_b);
  for (const Store how : {Store::overwrite, Store::accumulate}) {
    std::vector<float> whole(32 * 32, 0.37f), ragged = whole;
    amx_tile<PlainTiles>(packed_a, packed_b, kLength, kWhole, 32, how, whole.data(), 32);
    amx_tile<PlainTiles>(packed_a, packed_b, kLength, kRagged, 32, how, ragged.data(), 32);
    CHECK(std::equal(whole.begin(), whole.begin() + kRagged * 32, ragged.begin()));
    CHECK(ragged.back() == 0.37f);
  }
}

TEST_CASE("sums are rounded once, to nearest, ties to even") {
  std::mt19937_64 random(5);
  std::vector<double> doubles{0.0,
                              -0.0,
                              1e-30,
                              1e30,
                              -1e300,
                              65504,
                              65519.99,
                              65520,
                              65536,
                              INFINITY,
                              NAN,
                              3e-8,
                              1.0 + 0x1p-8,
                              1.0 + 0x1p-8 + 0x1p-40,
                              1.0 + 0x1p-8 - 0x1p-40,
                              1.0 + 0x1p-11,
                              1.0 + 0x1p-11 + 0x1p-45};
  for (int i = 0; i < 500; ++i)
    doubles.push_back(std::ldexp(static_cast<double>(static_cast<std::int64_t>(random())),
                                 static_cast<int>(random() % 60) - 100));
  std::vector<float> floats;
  for (const double d : doubles) floats.push_back(static_cast<float>(d));
  const auto n = static_cast<std::int64_t>(doubles.size());
  const auto same = [](double a, double b) {
    return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
  };
  // The nearest of the two neighbours that a 16-bit type has, found without its conversion.
  const auto nearest = [](double x, DType dtype) -> double {
    if (std::isnan(x) || std::isinf(x) || x == 0) return x;
    const int mantissa = dtype == DType::float16 ? 10 : 7, least = dtype == DType::float16 ? -14 : -126;
    const int e = std::max(std::ilogb(x), least);
    const double rounded = std::ldexp(std::nearbyint(std::ldexp(x, mantissa - e)), e - mantissa);
    const double most = dtype == DType::float16 ? 65504 : std::ldexp(255, 120);
    return std::abs(rounded) > most ? std::copysign(INFINITY, x) : rounded;
  };
  for (const Kernels* row : test::instruction_sets()) {
    CAPTURE(row->name);
    const Products& p = row->products;
    for (int j = 0; j < 8; ++j) {
      const DType dtype = std::vector{DType::float16, DType::bfloat16, DType::float32,
                                      DType::float64}[static_cast<std::size_t>(j / 2)];
      const bool stream = j % 2 == 1;
      Array from_floats(dtype, {n}), from_doubles(dtype, {n});
      p.convert_f32(floats.data(), n, dtype, stream, from_floats.data());
      p.convert_f64(doubles.data(), n, dtype, stream, from_doubles.data());
      row->stream_fence();
      for (std::int64_t e = 0; e < n; ++e) {
        const auto at = static_cast<std::size_t>(e);
        double wanted_f = floats[at], wanted_d = doubles[at];
        if (dtype == DType::float32) wanted_d = static_cast<float>(wanted_d);
        if (size_of(dtype) == 2) wanted_f = nearest(wanted_f, dtype), wanted_d = nearest(wanted_d, dtype);
        CHECK_MESSAGE(same(value(from_floats, e), wanted_f), name_of(dtype), " of ", floats[at]);
        CHECK_MESSAGE(same(value(from_doubles, e), wanted_d), name_of(dtype), " of ", doubles[at]);
      }
    }
  }
}

TEST_CASE("conversions write as many elements as there are, wherever they begin") {
  std::vector<double> doubles(80);
  for (std::size_t i = 0; i < doubles.size(); ++i) doubles[i] = 1.0 + static_cast<double>(i) / 128;
  const std::vector<float> floats(doubles.begin(), doubles.end());
  for (const Kernels* row : test::instruction_sets()) {
    CAPTURE(row->name);
    for (const DType dtype : {DType::float16, DType::bfloat16})
      for (std::int64_t n = 0; n <= 70; ++n)
        for (std::int64_t j = 0; j < 8; ++j) {
          const bool wide = j % 2 != 0, stream = j / 2 % 2 != 0;
          const std::int64_t begin = j / 4 + 1 + n % 5;
          Array out(DType::uint16, {96});
          const auto bits = out.elements<std::uint16_t>();
          std::fill(bits.begin(), bits.end(), std::uint16_t{0xABCD});
          std::uint16_t* to = bits.data() + begin;
          if (wide)
            row->products.convert_f64(doubles.data(), n, dtype, stream, to);
          else
            row->products.convert_f32(floats.data(), n, dtype, stream, to);
          row->stream_fence();
          bool right = true;
          for (std::int64_t i = 0; i < 96; ++i) {
            std::uint16_t expected = 0xABCD;
            if (i >= begin && i < begin + n) {
              const float value = floats[static_cast<std::size_t>(i - begin)];
              expected = dtype == DType::float16 ? float16(value).bits : bfloat16(value).bits;
            }
            right = right && bits[static_cast<std::size_t>(i)] == expected;
          }
          CHECK_MESSAGE(right, name_of(dtype), ", ", n, " elements from ", begin, ", wide ", wide);
        }
  }
}

TEST_CASE("every 16-bit float is packed as the number that it is") {
  const auto check_all = [](const Gemm& gemm, DType dtype, auto sum) {
    using Sum = decltype(sum);
    constexpr std::int64_t kTogether = 64;
    Array packed(DType::uint8, {gemm.a_stride});
    std::int64_t wrong = 0;
    for (std::int64_t first = 0; first < 65536; first += kTogether) {
      Array in(dtype, {kTogether});
      for (std::int64_t i = 0; i < kTogether; ++i) {
        const auto bits = static_cast<std::uint16_t>(first + i);
        std::memcpy(in.data() + 2 * i, &bits, 2);
      }
      gemm.pack_a({in.data(), dtype, 2 * kTogether, 2}, 1, kTogether, packed.data());
      for (std::int64_t i = 0; i < kTogether; ++i) {
        Sum got = 0;
        std::memcpy(&got, packed.data() + i * gemm.unit, sizeof got);
        const double expected = value(in, i);
        const bool right = std::isnan(expected) ? std::isnan(got)
                                                : static_cast<double>(got) == expected &&
                                                      std::signbit(got) == std::signbit(expected);
        wrong += right ? 0 : 1;
      }
    }
    CHECK_MESSAGE(wrong == 0, name_of(dtype));
  };
  for (const Named& n : runnable()) {
    if (n.gemm->kr > 1) continue;  // these take pairs as they are
    CAPTURE(n.isa);
    CAPTURE(n.gemm->name);
    for (const DType dtype : {DType::float16, DType::bfloat16}) {
      if (n.gemm->unit == 8)
        check_all(*n.gemm, dtype, 0.0);
      else
        check_all(*n.gemm, dtype, 0.0F);
    }
  }
}

TEST_CASE("packing reads nothing behind the last element") {
  // The last bytes before a page that nobody may read.
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* pages = mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(pages != MAP_FAILED);
  auto* end = static_cast<char*>(pages) + page;
  REQUIRE(mprotect(end, page, PROT_NONE) == 0);
  constexpr std::int64_t kMost = 21;
  std::int64_t packed_units = 0;
  for (const Named& n : runnable())
    for (const DType dtype : inputs_of(*n.gemm)) {
      const std::int64_t size = size_of(dtype), panel = (kMost + 16) * n.gemm->nr * n.gemm->unit;
      Array packed(DType::uint8, {std::max(2 * n.gemm->a_stride, (kMost / n.gemm->nr + 1) * panel) + 64});
      std::byte* to = packed.data();
      to += (64 - reinterpret_cast<std::uintptr_t>(to) % 64) % 64;
      for (std::int64_t rows = 1; rows <= 2; ++rows)
        for (std::int64_t columns = 1; columns <= kMost; ++columns) {
          const char* first = end - rows * columns * size;
          const StridedMatrix wide{first, dtype, columns * size, size},
              tall{first, dtype, size, columns * size};
          if (rows <= n.gemm->mr) n.gemm->pack_a(wide, rows, columns, to);
          n.gemm->pack_b(wide, rows, columns, to, panel);
          n.gemm->pack_b(tall, columns, rows, to, panel);
          ++packed_units;
        }
    }
  CHECK(packed_units > 0);
  munmap(pages, 2 * page);
}

TEST_CASE("rows of A are packed to the same bytes from either order of memory") {
  std::mt19937 random(5);
  for (const Named& n : runnable()) {
    CAPTURE(n.isa);
    CAPTURE(n.gemm->name);
    for (const DType dtype : inputs_of(*n.gemm))
      for (const std::int64_t rows : {1, 7, 16, 17, 65, 130})
        for (const std::int64_t k : {std::int64_t{1}, std::int64_t{3}, std::int64_t{47}, n.gemm->kc}) {
          CAPTURE(dtype);
          CAPTURE(rows);
          CAPTURE(k);
          const Matrix across = matrix(dtype, rows, k, Layout::rows, random);
          Array elements(dtype, {k, rows});
          copy_elements({static_cast<const std::byte*>(across.block.data),
                         dtype,
                         {k, rows},
                         {across.block.column_stride, across.block.row_stride}},
                        elements.data());
          const std::int64_t size = size_of(dtype), bytes = n.gemm->a_stride * rows;
          std::vector<std::byte> memory(static_cast<std::size_t>(2 * bytes + 128), std::byte{0});
          auto* one = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
          auto* other = one + bytes;
          n.gemm->pack_a(across.block, rows, k, one);
          n.gemm->pack_a({elements.data(), dtype, size, rows * size}, rows, k, other);
          const std::int64_t packed = (k + n.gemm->k_step - 1) / n.gemm->k_step * n.gemm->k_step / n.gemm->kr;
          bool same = true;
          for (std::int64_t r = 0; r < rows; ++r)
            same = same && std::memcmp(one + r * n.gemm->a_stride, other + r * n.gemm->a_stride,
                                       static_cast<std::size_t>(packed * n.gemm->unit)) == 0;
          CHECK(same);
        }
  }
}
