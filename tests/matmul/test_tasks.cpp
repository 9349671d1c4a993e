// Tasks cover their products once for any partition; progress counts all of them.
#include "matmul/tasks.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "kernels/kernels.hpp"
#include "support/threads.hpp"

using namespace ejk;

namespace {

// out (rows × columns) += ones · ones over k: an element that is computed twice, or never, shows.
struct Ones {
  std::int64_t rows, k, columns;
  std::vector<float> a, b, out;

  Ones(std::int64_t r, std::int64_t length, std::int64_t c)
      : rows(r),
        k(length),
        columns(c),
        a(static_cast<std::size_t>(r * length), 1),
        b(static_cast<std::size_t>(length * c), 1),
        out(static_cast<std::size_t>(r * c)) {}

  matmul::Product product() {
    matmul::Product p;
    p.a = {a.data(), DType::float32, k * 4, 4};
    p.b = {b.data(), DType::float32, columns * 4, 4};
    p.rows = rows, p.k = k, p.columns = columns;
    p.out = out.data();
    p.added = out.data();
    p.out_stride = p.added_stride = columns * 4;
    return p;
  }
  bool all_once() const {
    for (const float x : out)
      if (x != static_cast<float>(k)) return false;
    return true;
  }
};

}  // namespace

TEST_CASE("every element is computed once for every cut") {
  const auto arithmetic = matmul::arithmetic_of(DType::float32, DType::float32, kernels::active());
  for (const std::optional<Tiling>& tiling :
       {std::optional<Tiling>{}, std::optional<Tiling>{{1, 1, 1}}, std::optional<Tiling>{{7, 5, 40}},
        std::optional<Tiling>{{64, 1000, 33}}, std::optional<Tiling>{{100000, 100000, 100000}}}) {
    std::vector<Ones> work;
    for (const std::int64_t rows : {1, 3, 70, 130})
      for (const std::int64_t columns : {1, 31, 65, 300}) work.emplace_back(rows, 10 + rows, columns);
    matmul::Tasks tasks(arithmetic, tiling);
    for (Ones& ones : work) tasks.add(ones.product());
    std::int64_t last = 0, all = 0, calls = 0;
    tasks.run([&](std::int64_t done, std::int64_t count) {
      ++calls;
      last = done;
      all = count;
    });
    CHECK(last == all);
    CHECK(calls == all);
    for (const Ones& ones : work)
      CHECK_MESSAGE(ones.all_once(), ones.rows, " x ", ones.columns, ", ", tiling ? tiling->tm : 0);
  }
}

TEST_CASE("work that is worth several threads is computed once as well") {
  const Threads set(5);
  std::vector<Ones> work;
  for (const std::int64_t rows : {600, 900, 40, 5}) work.emplace_back(rows, 150, 310);
  matmul::Tasks tasks(matmul::arithmetic_of(DType::float32, DType::float32, kernels::active()), {});
  for (Ones& ones : work) tasks.add(ones.product());
  tasks.run({});
  for (const Ones& ones : work) CHECK_MESSAGE(ones.all_once(), ones.rows);
}

TEST_CASE("a product without rows or columns is no task, one without a contraction fills") {
  matmul::Tasks tasks(matmul::arithmetic_of(DType::float32, DType::float32, kernels::active()), {});
  Ones empty(0, 3, 4), narrow(4, 3, 0), filled(3, 0, 5);
  std::fill(filled.out.begin(), filled.out.end(), 9.0f);
  tasks.add(empty.product());
  tasks.add(narrow.product());
  auto p = filled.product();
  p.added = nullptr;
  tasks.add(p);
  tasks.run({});
  CHECK(filled.all_once());
}

TEST_CASE("the memory that tasks take is known before, and grows with the threads alone") {
  const auto arithmetic = matmul::arithmetic_of(DType::float32, DType::float32, kernels::active());
  const auto bytes = [&](int threads, std::int64_t rows, std::int64_t k, std::int64_t columns, DType dtype) {
    const Threads set(threads);
    matmul::Tasks tasks(arithmetic, {});
    for (int i = 0; i < 8; ++i) {
      matmul::Product p;  // pointers to nothing
      p.a = {nullptr, DType::float32, k * 4, 4};
      p.b = {nullptr, DType::float32, columns * 4, 4};
      p.rows = rows, p.k = k, p.columns = columns;
      p.dtype = dtype;
      p.out_stride = columns * size_of(dtype);
      tasks.add(p);
    }
    return tasks.work_bytes();
  };
  const std::int64_t kPage = std::int64_t{2} << 20;
  // A contraction of many blocks packs at least one of them, of 256 columns.
  const std::int64_t one = bytes(1, 2048, 4096, 4096, DType::float32);
  CHECK(one >= 4 * arithmetic.gemm->kc * 256);
  CHECK(one < 8 * kPage);
  CHECK(bytes(4, 2048, 4096, 4096, DType::float32) >= 4 * kPage);
  CHECK(bytes(4, 2048, 4096, 4096, DType::float32) < 4 * one + kPage);
  CHECK(bytes(1, 16384, 4096, 4096, DType::float32) < one + kPage);
  // Sums of a narrower result are kept beside it.
  CHECK(bytes(1, 2048, 4096, 4096, DType::float16) > one);
  CHECK(bytes(64, 4, 4, 4, DType::float32) < kPage);
}

TEST_CASE("the memory that tasks take holds the last columns of a product") {
  const auto arithmetic = matmul::arithmetic_of(DType::float32, DType::float32, kernels::active());
  for (const std::int64_t rows : {3, 50, 200}) {
    Ones ones(rows, 1500, 1025);
    matmul::Tasks tasks(arithmetic, Tiling{512, 512, 1024});
    tasks.add(ones.product());
    auto last = ones.product();
    last.columns = 1;
    last.direct_k = matmul::direct_k(arithmetic, rows);
    CHECK(tasks.work_bytes() >= matmul::workspace_bytes(arithmetic, last, 512));
  }
}

TEST_CASE("a workspace holds what was foretold for a product, and no more is asked for") {
  for (const DType dtype : {DType::float32, DType::bfloat16})
    for (const std::int64_t rows : {3, 50, 200})
      for (const std::int64_t k : {5, 1500}) {
        const auto arithmetic = matmul::arithmetic_of(DType::float32, DType::float32, kernels::active());
        Ones ones(rows, k, 700);
        auto p = ones.product();
        p.dtype = dtype;
        p.added = nullptr;
        p.direct_k = matmul::direct_k(arithmetic, rows);
        core::Workspace workspace;
        const std::int64_t foretold = matmul::workspace_bytes(arithmetic, p, 0);
        const std::byte* const memory = workspace.at_least(foretold);
        matmul::multiply(arithmetic, p, 0, workspace);
        CHECK(workspace.at_least(foretold) == memory);
        CHECK(foretold == core::Workspace::rounded(foretold));
      }
}
