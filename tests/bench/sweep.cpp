// Shapes beside their neighbours: what a property costs that should cost nothing.
//
//   ejk_sweep toggles [PATTERN]        pairs of cases that differ in one property; lines that contain PATTERN
//   ejk_sweep shapes [COUNT [SEED]]    drawn cases (300, 1), each beside its neighbour: the same with whole tiles, in C
//                                      order; the worst of them beside that, and beside the limit
//   ejk_sweep cases [COUNT [SEED]]     the same cases alone, a line of JSON each with its seconds, one whenever standard
//                                      input has a line: sweep_peers.py runs other libraries in between
//
// Processor time on one thread, the least of several turns in which both cases run one after the other. A
// neighbour has at least the work of its case, so a ratio above 1 is time without a cause in the work. The
// limit is the larger of operations / multiply-adds in registers and bytes / read bandwidth; what fits in
// caches passes the second.
#include <fmt/format.h>
#include <omp.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "bench/limits.hpp"
#include "bench/work.hpp"
#include "ejk/ejk.hpp"

using namespace ejk;

namespace {

using Run = std::function<void()>;

// How the last two axes lie in memory: rows of elements side by side, or columns.
enum class Order { rows, columns };

// A case: what it is, what it does, what it takes at least. `prepare` makes the arrays.
struct Case {
  std::string name;
  std::function<Run()> prepare;
  double flop = 0, bytes = 0;
  DType dtype = DType::float32;
  std::string json;
};

const char* word(Order order) { return order == Order::rows ? "rows" : "columns"; }

struct Toggle {
  std::string name;
  Case odd, even;
  double wanted;  // the ratio to reach
};

// --- time

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The mean of as many runs as fill a millisecond.
double seconds_of(const Run& run) {
  constexpr double kEnough = 1e-3;
  const double begin = processor_seconds();
  double all = 0;
  int runs = 0;
  do {
    run();
    ++runs;
    all = processor_seconds() - begin;
  } while (all < kEnough);
  return all / runs;
}

// The least times of cases that run by turns.
std::vector<double> least_seconds(const std::vector<Run>& runs, int turns) {
  std::vector<double> least(runs.size(), HUGE_VAL);
  for (const Run& run : runs) run();
  for (int turn = 0; turn < turns; ++turn)
    for (std::size_t i = 0; i < runs.size(); ++i) least[i] = std::min(least[i], seconds_of(runs[i]));
  return least;
}

// --- cases

// An array whose last two axes lie in `order`.
struct Laid {
  std::shared_ptr<Array> array;
  ArrayView view;

  Laid(DType dtype, Shape shape, Order order) {
    const std::size_t rank = shape.size();
    if (order == Order::columns) std::swap(shape[rank - 1], shape[rank - 2]);
    array = std::make_shared<Array>(work::normal(dtype, shape));
    view = array->view();
    if (order != Order::columns) return;
    std::swap(view.shape[rank - 1], view.shape[rank - 2]);
    std::swap(view.strides[rank - 1], view.strides[rank - 2]);
  }
};

// groups × rows rows; the transposed product has them as its contraction.
struct Matmul {
  bool transposed = false;
  DType dtype = DType::float32;
  std::int64_t groups = 1, rows = 1, k = 1, n = 1;
  Order lhs = Order::rows, rhs = Order::rows;
};

Case case_of(const Matmul& c) {
  const std::int64_t m = c.groups * c.rows;
  const auto elements = static_cast<double>(m * c.k + (c.transposed ? m : c.groups * c.k) * c.n +
                                            (c.transposed ? c.groups * c.k : m) * c.n);
  Case made{
      std::string(c.transposed ? "dW " : "product ") + std::string(name_of(c.dtype)) + ' ' +
          std::to_string(c.groups) + " x " + std::to_string(c.rows) + ", k " + std::to_string(c.k) + ", n " +
          std::to_string(c.n) + (c.lhs == Order::rows ? "" : ", lhs by columns") +
          (c.rhs == Order::rows ? "" : ", rhs by columns"),
      {},
      2.0 * static_cast<double>(m * c.k * c.n),
      elements * static_cast<double>(size_of(c.dtype)),
      c.dtype,
      fmt::format(
          R"("op": "{}", "dtype": "{}", "groups": {}, "rows": {}, "k": {}, "n": {}, "lhs": "{}", "rhs": "{}")",
          c.transposed ? "dw" : "product", name_of(c.dtype), c.groups, c.rows, c.k, c.n, word(c.lhs),
          word(c.rhs))};
  made.prepare = [c, m]() -> Run {
    const Laid lhs(c.dtype, c.transposed ? Shape{c.k, m} : Shape{m, c.k}, c.lhs);
    const Laid rhs(c.dtype, c.transposed ? Shape{m, c.n} : Shape{c.groups, c.k, c.n}, c.rhs);
    const auto out =
        std::make_shared<Array>(c.dtype, c.transposed ? Shape{c.groups, c.k, c.n} : Shape{m, c.n});
    const auto sizes = make_source(Array::from<std::int64_t>(
        {c.groups}, std::vector<std::int64_t>(static_cast<std::size_t>(c.groups), c.rows)));
    const auto plan = [&](auto settings) {
      settings.dtype = c.dtype;
      return std::make_shared<GroupedMatmulPlan>(type_of(lhs.view), type_of(rhs.view), *sizes, settings);
    };
    const auto chosen =
        c.transposed ? plan(TransposedGroupedMatmulSettings{}) : plan(GroupedMatmulSettings{});
    return [=] { chosen->run(lhs.view, rhs.view, std::nullopt, out->mutable_view()); };
  };
  return made;
}

struct Attention {
  bool gradients = false;
  DType dtype = DType::float32;
  std::int64_t entries = 1, heads = 8, kv_heads = 8, queries = 1, keys = 1, size = 64;
  Order k = Order::rows, v = Order::rows;
};

Case case_of(const Attention& c) {
  const double pairs = static_cast<double>(c.entries * c.heads) * static_cast<double>(c.queries * c.keys);
  const double elements =
      static_cast<double>(2 * c.entries * c.size * (c.heads * c.queries + c.kv_heads * c.keys));
  Case made{
      std::string(c.gradients ? "gradients " : "attention ") + std::string(name_of(c.dtype)) + ' ' +
          std::to_string(c.entries) + " x " + std::to_string(c.heads) + '/' + std::to_string(c.kv_heads) +
          ", queries " + std::to_string(c.queries) + ", keys " + std::to_string(c.keys) + ", size " +
          std::to_string(c.size) + (c.k == Order::rows ? "" : ", k by columns") +
          (c.v == Order::rows ? "" : ", v by columns"),
      {},
      (c.gradients ? 14.0 : 4.0) * pairs * static_cast<double>(c.size),
      (c.gradients ? 2.0 : 1.0) * elements * static_cast<double>(size_of(c.dtype)),
      c.dtype,
      fmt::format(R"("op": "{}", "dtype": "{}", "entries": {}, "heads": {}, "kv_heads": {}, "queries": {}, )"
                  R"("keys": {}, "size": {}, "k": "{}", "v": "{}")",
                  c.gradients ? "gradients" : "attention", name_of(c.dtype), c.entries, c.heads, c.kv_heads,
                  c.queries, c.keys, c.size, word(c.k), word(c.v))};
  made.prepare = [c]() -> Run {
    const Shape queries{c.entries, c.heads, c.queries, c.size}, keys{c.entries, c.kv_heads, c.keys, c.size};
    const Laid q(c.dtype, queries, Order::rows), k(c.dtype, keys, c.k), v(c.dtype, keys, c.v),
        dout(c.dtype, queries, Order::rows);
    AttentionArrays arrays{q.view, k.view, v.view};
    if (c.gradients) arrays.dout = dout.view;
    AttentionSettings settings;
    settings.layout = AttentionLayout::bhsd;
    const auto plan = std::make_shared<AttentionPlan>(types_of(arrays), settings);
    const auto results = std::make_shared<std::vector<Array>>();
    std::vector<MutableArrayView> views;
    for (const PlannedArray& result : plan->results())
      results->emplace_back(result.type.dtype, result.type.shape);
    for (Array& result : *results) views.push_back(result.mutable_view());
    return [=, inputs = std::vector{q.array, k.array, v.array, dout.array}] {
      plan->run(arrays, views);
      (void)results;
    };
  };
  return made;
}

// Encoding of numbers in blocks along rows, or decoding of their codes, which lie in `order`.
struct Coding {
  bool decodes = false;
  QuantizeSettings settings;
  DType dtype = DType::float32;
  std::int64_t rows = 1, columns = 1;
  Order order = Order::rows;
};

Case case_of(const Coding& c) {
  const QuantizeSettings& s = c.settings;
  Case made;
  made.name = std::string(c.decodes ? "decoding " : "encoding ") + std::string(name_of(s.scheme)) +
              (s.element ? ' ' + std::string(name_of(*s.element)) : "") +
              (s.block ? ' ' + to_string(*s.block) : "") + " of " + std::string(name_of(c.dtype)) + ", " +
              std::to_string(c.rows) + " x " + std::to_string(c.columns) +
              (c.order == Order::rows ? "" : " by columns");
  made.prepare = [c]() -> Run {
    const auto x = std::make_shared<Array>(work::normal(c.dtype, {c.rows, c.columns}));
    const auto codes = std::make_shared<Quantized>();
    const auto encode = [=] {
      *codes = quantize_array(*make_source(x->view()), c.settings, {}, std::move(*codes));
    };
    if (!c.decodes) return encode;
    encode();
    QuantizedArrays arrays{codes->settings.scheme, make_source(codes->values.view()),
                           make_source(codes->scales.view())};
    if (codes->global_scale)
      arrays.global_scale = make_source(Array::from<float>({}, std::vector<float>{*codes->global_scale}));
    DecodeSettings settings{.element = codes->settings.element, .block = c.settings.block};
    if (c.order == Order::columns) {
      settings.axis = 0;
      for (auto* array : {&arrays.values, &arrays.scales}) {
        ArrayView turned = (*array)->mapped().value();
        std::swap(turned.shape[0], turned.shape[1]), std::swap(turned.strides[0], turned.strides[1]);
        *array = make_source(read_all(*make_source(turned)));
      }
    }
    const auto decoded = decoded_array(arrays, settings);
    const auto out = std::make_shared<Array>(DType::float32, decoded->shape());
    return [=] {
      decoded->read(Shape{0, 0}, out->shape(), out->data());
      (void)codes;  // kept
    };
  };
  return made;
}

// --- toggles

constexpr DType kF16 = DType::float16, kBf16 = DType::bfloat16, kF32 = DType::float32, kF64 = DType::float64;

std::vector<Toggle> toggles() {
  std::vector<Toggle> all;
  const auto add = [&](const auto& odd, const auto& even, double wanted) {
    const Case one = case_of(odd), other = case_of(even);
    all.push_back({one.name, one, other, wanted});
  };
  // Tokens first, as in training: lhs of dW is the transpose of what lies in memory.
  for (const auto& [dtype, groups, rows, k, n] : {std::tuple{kBf16, 1, 4096, 1024, 16},
                                                  {kBf16, 4, 512, 1024, 8},
                                                  {kBf16, 2, 2048, 64, 16},
                                                  {kBf16, 4, 1024, 512, 512},
                                                  {kBf16, 4, 1024, 2048, 2048},
                                                  {kBf16, 1, 4096, 1024, 128},
                                                  {kF32, 1, 4096, 1024, 1},
                                                  {kF32, 1, 4096, 1024, 8},
                                                  {kF32, 4, 1024, 512, 512},
                                                  {kF16, 4, 1024, 512, 512},
                                                  {kF64, 4, 1024, 512, 512}}) {
    Matmul c{true, dtype, groups, rows, k, n};
    Matmul turned = c;
    turned.lhs = Order::columns;
    add(turned, c, 1.1);
  }
  for (const DType dtype : {kBf16, kF16, kF32}) {
    Matmul c{false, dtype, 4, 256, 4096, 16};
    Matmul turned = c;
    turned.lhs = Order::columns;
    add(turned, c, 1.1);
  }
  // Head sizes that are no whole tiles.
  for (const DType dtype : {kF16, kBf16, kF32})
    for (const auto& [size, next] : {std::pair{16, 32}, {40, 64}, {72, 96}, {80, 96}, {112, 128}, {99, 128}})
      add(Attention{.dtype = dtype, .keys = 4096, .size = size},
          Attention{.dtype = dtype, .keys = 4096, .size = next}, 1.1);
  // Keys or values as (B, H, D, K).
  for (const auto& [dtype, heads, size] : {std::tuple{kBf16, 32, 128}, {kF32, 8, 64}, {kF16, 8, 128}})
    for (const bool keys : {true, false}) {
      Attention c{.dtype = dtype, .heads = heads, .keys = 2048, .size = size};
      Attention turned = c;
      (keys ? turned.k : turned.v) = Order::columns;
      add(turned, c, 1.5);
    }
  for (const DType dtype : {kBf16, kF32}) {
    Attention c{.gradients = true, .dtype = dtype, .queries = 16, .keys = 2048, .size = 128};
    Attention turned = c;
    turned.k = Order::columns;
    add(turned, c, 1.5);
  }
  // Few rows; the last columns are no whole tile.
  for (const DType dtype : {kBf16, kF32, kF16})
    for (const auto& [n, whole] : {std::pair{31, 32}, {33, 64}, {127, 128}, {1, 32}, {7, 32}})
      add(Matmul{false, dtype, 4, 1, 1024, n}, Matmul{false, dtype, 4, 1, 1024, whole}, 1.1);
  // Rows on either side of where the factor of all rows is packed.
  for (const DType dtype : {kBf16, kF16, kF32})
    for (const auto& [rows, more] : {std::pair{8, 16}, {16, 32}, {32, 64}, {64, 128}})
      add(Matmul{false, dtype, 4, rows, 512, 1280}, Matmul{false, dtype, 4, more, 512, 1280}, 1);
  // A matrix times a vector, beside the vector times the matrix's transpose.
  for (const DType dtype : {kF32, kF64, kBf16})
    for (const int rows : {32, 256})
      add(Matmul{false, dtype, 4, rows, 1024, 1},
          Matmul{.dtype = dtype, .groups = 4, .rows = 1, .k = 1024, .n = rows}, 1.1);
  // One query more than few.
  for (const DType dtype : {kBf16, kF32})
    for (const int keys : {32, 64, 128, 512})
      add(Attention{.dtype = dtype, .entries = 4, .queries = 32, .keys = keys},
          Attention{.dtype = dtype, .entries = 4, .queries = 33, .keys = keys}, 1);
  // Few keys for many queries, beside more; and gradients of few queries.
  for (const DType dtype : {kBf16, kF32})
    for (const int keys : {1, 3})
      add(Attention{.dtype = dtype, .entries = 4, .queries = 512, .keys = keys},
          Attention{.dtype = dtype, .entries = 4, .queries = 512, .keys = 16}, 1);
  for (const DType dtype : {kBf16, kF32})
    for (const int queries : {1, 2, 4})
      add(Attention{.gradients = true, .dtype = dtype, .queries = queries, .keys = 2048},
          Attention{.gradients = true, .dtype = dtype, .queries = 16, .keys = 2048}, 0.5);
  // 16-bit numbers beside float32; long rows that are no whole blocks; blocks along the first axis.
  using Scheme = QuantizationScheme;
  constexpr auto kE4M3 = ElementFormat::e4m3;
  const QuantizeSettings schemes[] = {{.scheme = Scheme::fp8, .element = kE4M3},
                                      {.scheme = Scheme::fp8, .element = kE4M3, .block = ScaleBlock{1, 128}},
                                      {.scheme = Scheme::mx, .element = kE4M3},
                                      {.scheme = Scheme::mx, .element = ElementFormat::e2m3},
                                      {.scheme = Scheme::mx, .element = ElementFormat::e2m1},
                                      {.scheme = Scheme::nvfp4}};
  for (const QuantizeSettings& s : schemes) {
    for (const DType dtype : {kF16, kBf16})
      add(Coding{false, s, dtype, 256, 4096}, Coding{false, s, kF32, 256, 4096}, 1.3);
    for (const bool decodes : {false, true})
      add(Coding{decodes, s, kF32, 256, 4092}, Coding{decodes, s, kF32, 256, 4096}, 1.2);
    if (s.scheme != Scheme::fp8)
      add(Coding{true, s, kF32, 256, 4096, Order::columns}, Coding{true, s, kF32, 256, 4096}, 1.1);
  }
  // Rounding results beside writing them as they are.
  add(Matmul{false, kBf16, 2, 4096, 8, 1024}, Matmul{false, kF32, 2, 4096, 8, 1024}, 1);
  return all;
}

// --- main

int run_toggles(const std::string& pattern) {
  std::printf("%9s %9s %6s %6s\n", "ms", "beside", "ratio", "want");
  for (const Toggle& t : toggles()) {
    if (t.name.find(pattern) == std::string::npos) continue;
    const std::vector<double> s = least_seconds({t.odd.prepare(), t.even.prepare()}, 12);
    const double ratio = s[0] / s[1];
    std::printf("%9.4f %9.4f %6.2f %6.2f %s %s; %s\n", s[0] * 1e3, s[1] * 1e3, ratio, t.wanted,
                ratio > t.wanted ? "x" : " ", t.name.c_str(), t.even.name.c_str());
    std::fflush(stdout);
  }
  return 0;
}

// --- drawn shapes

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  // Log-spaced; every fifth is a power of two.
  std::int64_t length(std::int64_t least, std::int64_t most) {
    const double low = std::log2(static_cast<double>(least)), high = std::log2(static_cast<double>(most));
    double x = std::uniform_real_distribution<double>(low, high)(random_);
    if (below(5) == 0) x = std::round(x);
    return std::clamp(static_cast<std::int64_t>(std::llround(std::exp2(x))), least, most);
  }
  std::int64_t below(std::int64_t n) {
    return std::uniform_int_distribution<std::int64_t>(0, n - 1)(random_);
  }
  Order order() { return below(4) == 0 ? Order::columns : Order::rows; }

 private:
  std::mt19937_64 random_;
};

// Whole tiles on every instruction set; a vector stays one.
std::int64_t whole(std::int64_t length) { return length == 1 ? 1 : (length + 31) / 32 * 32; }

// A case and its neighbour, of work that takes milliseconds at most.
std::pair<Case, Case> drawn(Draw& draw) {
  constexpr double kMostFlop = 1e9, kMostBytes = 64e6;
  constexpr DType kTypes[] = {kF16, kBf16, kBf16, kF32, kF32, kF64};
  for (;;) {
    const DType dtype = kTypes[draw.below(6)];
    std::pair<Case, Case> made;
    if (draw.below(2) == 0) {
      Matmul c{
          draw.below(2) == 0,   dtype,        draw.length(1, 64), draw.length(1, 4096), draw.length(1, 8192),
          draw.length(1, 8192), draw.order(), draw.order()};
      made.first = case_of(c);
      c.k = whole(c.k), c.n = whole(c.n), c.lhs = c.rhs = Order::rows;
      made.second = case_of(c);
    } else {
      const std::int64_t group = std::int64_t{1} << draw.below(4), kv_heads = draw.length(1, 8);
      Attention c{draw.below(3) == 0,
                  dtype,
                  draw.length(1, 8),
                  group * kv_heads,
                  kv_heads,
                  draw.length(1, 512),
                  draw.length(1, 8192),
                  draw.length(8, 256),
                  draw.order(),
                  draw.order()};
      made.first = case_of(c);
      c.size = whole(c.size), c.k = c.v = Order::rows;
      made.second = case_of(c);
    }
    if (made.first.flop <= kMostFlop && made.second.bytes <= kMostBytes) return made;
  }
}

struct Timed {
  std::string name;
  double seconds, ratio, share;
};

void print(const char* title, const std::vector<Timed>& all) {
  constexpr std::size_t kLines = 25;
  std::printf("\n%s\n%9s %6s %6s\n", title, "ms", "ratio", "share");
  for (std::size_t i = 0; i < std::min(kLines, all.size()); ++i)
    std::printf("%9.4f %6.2f %5.0f%% %s\n", all[i].seconds * 1e3, all[i].ratio, all[i].share * 1e2,
                all[i].name.c_str());
}

int run_shapes(std::int64_t count, std::uint64_t seed) {
  constexpr double kShort = 50e-6;  // what takes less is beside calls and plans
  const double bandwidth = bench::read_bandwidth();
  double rates[4];
  constexpr DType kTypes[] = {kF16, kBf16, kF32, kF64};
  for (int i = 0; i < 4; ++i) rates[i] = bench::multiply_add_rate(kTypes[i]);
  Draw draw(seed);
  std::vector<Timed> all;
  int above = 0, far_above = 0;
  for (std::int64_t n = 0; n < count; ++n) {
    const auto [one, other] = drawn(draw);
    const std::vector<double> s = least_seconds({one.prepare(), other.prepare()}, 6);
    const double rate = rates[std::find(kTypes, kTypes + 4, one.dtype) - kTypes];
    all.push_back({one.name, s[0], s[0] / s[1], std::max(one.flop / rate, one.bytes / bandwidth) / s[0]});
    above += all.back().ratio > 1.15 ? 1 : 0;
    far_above += all.back().ratio > 1.5 ? 1 : 0;
  }
  std::printf("%lld shapes: %d above 1.15 of their neighbours' time, %d above 1.5\n",
              static_cast<long long>(count), above, far_above);
  std::sort(all.begin(), all.end(), [](const Timed& a, const Timed& b) { return a.ratio > b.ratio; });
  print("beside their neighbours", all);
  std::erase_if(all, [](const Timed& t) { return t.seconds < kShort; });
  std::sort(all.begin(), all.end(), [](const Timed& a, const Timed& b) { return a.share < b.share; });
  print("beside the limit, 50 us and more", all);
  return 0;
}

int run_cases(std::int64_t count, std::uint64_t seed) {
  Draw draw(seed);
  for (std::string line; count-- > 0 && std::getline(std::cin, line);) {
    const Case one = drawn(draw).first;
    fmt::print("{{{}, \"name\": \"{}\", \"seconds\": {}}}\n", one.json, one.name,
               least_seconds({one.prepare()}, 6)[0]);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  set_threads(1);
  omp_set_num_threads(1);
  const std::string action = argc > 1 ? argv[1] : "";
  if (action == "toggles") return run_toggles(argc > 2 ? argv[2] : "");
  if (action == "shapes" || action == "cases")
    return (action == "shapes" ? run_shapes : run_cases)(
        argc > 2 ? std::atoll(argv[2]) : 300, argc > 3 ? static_cast<std::uint64_t>(std::atoll(argv[3])) : 1);
  std::fprintf(stderr, "ejk_sweep toggles [PATTERN] | shapes [COUNT [SEED]] | cases [COUNT [SEED]]\n");
  return 2;
}
