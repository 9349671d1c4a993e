// The same bytes on any number of threads and for any strides, on every instruction set, with NaN and
// infinities among random inputs. (Instruction sets may differ from each other.) All parallel functions run
// here on the same inputs; their other tests are in their modules.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>

#include "ejk/array_math.hpp"
#include "ejk/attention.hpp"
#include "ejk/compare.hpp"
#include "ejk/conv1d.hpp"
#include "ejk/grouped_matmul.hpp"
#include "ejk/linear_attention.hpp"
#include "ejk/mask_info.hpp"
#include "ejk/pack.hpp"
#include "ejk/program/identify.hpp"
#include "ejk/program/routing.hpp"
#include "ejk/program/runs.hpp"
#include "ejk/report.hpp"
#include "ejk/route.hpp"
#include "ejk/segments.hpp"
#include "ejk/sequence.hpp"
#include "ejk/sparsity.hpp"
#include "kernels/kernels.hpp"
#include "support/arrays.hpp"
#include "support/instruction_sets.hpp"
#include "support/matmul.hpp"
#include "support/random_attention.hpp"
#include "support/random_mask_info.hpp"
#include "support/threads.hpp"

using namespace ejk;

namespace {

using plain::between;
using plain::Random;
using Arrays = std::vector<Array>;

struct Back {
  ~Back() { kernels::force(nullptr); }
};

struct Turn {
  int threads, layout;
};

// All numbers of threads for one layout of the inputs, two for each of the others; few under the address
// sanitizer, which is slow and looks at memory alone.
#ifdef __SANITIZE_ADDRESS__
constexpr std::array<Turn, 7> kTurns{{{1, 0}, {3, 0}, {16, 0}, {1, 1}, {7, 1}, {1, 2}, {1, 3}}};
#else
constexpr std::array<Turn, 11> kTurns{
    {{1, 0}, {2, 0}, {3, 0}, {7, 0}, {16, 0}, {1, 1}, {3, 1}, {1, 2}, {7, 2}, {1, 3}, {16, 3}}};
#endif

/// The same bytes, where any NaN is as good as any other: which of two it is that a sum passes on depends on
/// the order in which an instruction has them.
bool same_but_nan(const Array& a, const Array& b) {
  if (!is_float(a.dtype()) || a.dtype() != b.dtype() || a.shape() != b.shape())
    return plain::same_bytes(a, b);
  const std::vector<double> x = plain::doubles(a.view()), y = plain::doubles(b.view());
  return std::equal(x.begin(), x.end(), y.begin(), [](double p, double q) {
    return (std::isnan(p) && std::isnan(q)) || (p == q && std::signbit(p) == std::signbit(q));
  });
}

/// What f(layout) gives is the same bytes on each number of threads, and for every layout but for the bits of
/// NaN.
void check_same_bytes(int layouts, const std::function<Arrays(int layout)>& f) {
  std::map<int, Arrays> on_one;  // thread, by layouts
  for (const Turn turn : kTurns) {
    if (turn.layout >= layouts) return;
    CAPTURE(turn.threads);
    CAPTURE(turn.layout);
    const Threads set(turn.threads);
    const bool is_first = turn.threads == 1;
    Arrays arrays = f(turn.layout);
    const Arrays& expected = is_first && turn.layout == 0 ? arrays : on_one.at(is_first ? 0 : turn.layout);
    REQUIRE(arrays.size() == expected.size());
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      const bool same =
          is_first ? same_but_nan(expected[i], arrays[i]) : plain::same_bytes(expected[i], arrays[i]);
      CHECK_MESSAGE(same, "result ", i);
    }
    if (is_first) on_one.emplace(turn.layout, std::move(arrays));
  }
}

/// The same on every instruction set.
void check_on_all(int layouts, const std::function<Arrays(int layout)>& f) {
  const Back back;
  for (const kernels::Kernels* row : ::test::instruction_sets()) {
    const std::string isa = row->name;
    CAPTURE(isa);
    kernels::force(row);
    check_same_bytes(layouts, f);
  }
}

/// Here and there NaN, an infinity or the largest number, one in `rarely`; NaN with the sign that x86 gives
/// it too.
Array troubled(Array array, Random& random, std::int64_t rarely = 40) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(),
                   kInfinity = std::numeric_limits<double>::infinity();
  std::vector<double> values = plain::doubles(array.view());
  const double choices[] = {kNan, -kNan, kInfinity, -kInfinity, 0.0, -0.0, 65504.0, 1e-7};
  for (double& value : values)
    if (between(random, 1, rarely) == 1) value = choices[between(random, 0, 7)];
  return plain::array_of(array.dtype(), array.shape(), values);
}

Array random_troubled(DType dtype, Shape shape, Random& random, std::int64_t rarely = 40) {
  return troubled(plain::random(dtype, std::move(shape), random), random, rarely);
}

Array report_as_array(const Report& report) {
  const std::string text = to_json(report, {});
  Array bytes(DType::uint8, {std::ssize(text)});
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

template <class T>
Array value_as_array(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  Array bytes(DType::uint8, {static_cast<std::int64_t>(sizeof value)});
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

void trouble(plain::RandomAttention& r, Random& random) {
  const std::int64_t rarely = between(random, 30, 300);
  for (Array* array : {&r.q, &r.k, &r.v, &r.dout}) *array = troubled(std::move(*array), random, rarely);
}

Arrays of_attention(const plain::RandomAttention& r, int layout) {
  const plain::Laid q(r.q, layout % 4), k(r.k, (layout + 1) % 4), v(r.v, layout / 2 % 4),
      dout(r.dout, (layout + 2) % 4);
  Attention made = attention(q.view(), k.view(), v.view(), r.options);
  AttentionGradients g = attention_grad(q.view(), k.view(), v.view(), dout.view(), r.options);
  const AttentionSaved saved{made.out.view(), made.lse.view()};
  Arrays arrays;
  if (made.out.dtype() == r.q.dtype()) {
    AttentionGradients again = attention_grad(q.view(), k.view(), v.view(), dout.view(), r.options, saved);
    for (Array* array : {&again.dq, &again.dk, &again.dv}) arrays.push_back(std::move(*array));
  }
  for (Array* array : {&made.out, &made.lse, &g.dq, &g.dk, &g.dv}) arrays.push_back(std::move(*array));
  if (g.dbias) arrays.push_back(std::move(*g.dbias));
  if (g.dsinks) arrays.push_back(std::move(*g.dsinks));
  return arrays;
}

/// Arrays for results, in which every element that is not written shows.
Arrays poisoned(const std::vector<ArrayType>& types) {
  Arrays arrays;
  for (const ArrayType& type : types) {
    Array& array = arrays.emplace_back(type.dtype, type.shape);
    std::memset(array.data(), 0xFF, static_cast<std::size_t>(array.bytes()));
  }
  return arrays;
}

std::vector<MutableArrayView> views_of(Arrays& arrays) {
  std::vector<MutableArrayView> views;
  for (Array& array : arrays) views.push_back(array.mutable_view());
  return views;
}

/// Every element: the mask's blocks too.
Arrays of_mask_info(const MaskInfo& info) {
  Arrays arrays;
  for (const auto& [name, source] : stored_arrays(info).arrays) arrays.push_back(read_all(*source));
  return arrays;
}

}  // namespace

TEST_CASE("attention and its gradients: NaN and infinities give the same bytes on any number of threads") {
  Random random(101);
  for (int n = 0; n < 5; ++n) {
    CAPTURE(n);
    const auto r = plain::random_attention(random, plain::kFloats);
    trouble(*r, random);
    check_on_all(4, [&](int layout) { return of_attention(*r, layout); });
  }
}

TEST_CASE("short convolutions over several blocks: any number of threads gives the same bytes") {
  Random random(110);
  for (const Conv1dLayout layout : {Conv1dLayout::td, Conv1dLayout::dt})
    for (const DType dtype : plain::kFloats) {
      CAPTURE(name_of(layout));
      CAPTURE(name_of(dtype));
      const Array weight = random_troubled(dtype, {600, 4}, random, 600),
                  state = random_troubled(dtype, {3, 600, 3}, random);
      const Array x =
          random_troubled(dtype, layout == Conv1dLayout::td ? Shape{90, 600} : Shape{600, 90}, random);
      const std::vector<std::int64_t> cu_seqlens{0, 70, 70, 90};
      Conv1dSettings settings;
      settings.layout = layout;
      settings.activation = Conv1dActivation::silu;
      check_on_all(4, [&](int strides) {
        const plain::Laid of_x(x, strides), of_weight(weight, (strides + 1) % 4), of_state(state, strides);
        Conv1dOperands operands;
        operands.x = of_x.view();
        operands.weight = of_weight.view();
        operands.initial_state = of_state.view();
        operands.cu_seqlens = cu_seqlens;
        Conv1dResult result = conv1d(operands, settings);
        Arrays arrays;
        arrays.push_back(std::move(result.out));
        arrays.push_back(std::move(result.final_state));
        return arrays;
      });
    }
}

TEST_CASE("linear attention: NaN and infinities give the same bytes on any number of threads") {
  Random random(109);
  for (const DType dtype : {DType::bfloat16, DType::float32, DType::float64})
    for (const bool by_channel : {false, true}) {
      CAPTURE(name_of(dtype));
      CAPTURE(by_channel);
      const Array q = random_troubled(dtype, {150, 4, 16}, random, 4000),
                  k = random_troubled(dtype, {150, 2, 16}, random, 4000),
                  v = random_troubled(dtype, {150, 2, 24}, random, 4000),
                  decay = plain::filled(dtype, by_channel ? Shape{150, 2, 16} : Shape{150, 2}, -0.25);
      LinearAttentionSettings settings;
      settings.layout = LinearAttentionLayout::thd;
      settings.cu_seqlens = std::vector<std::int64_t>{0, 40, 40, 41, 150};
      settings.delta = settings.l2norm = settings.states = true;
      check_on_all(4, [&](int layout) {
        const plain::Laid q_laid(q, layout), k_laid(k, layout), v_laid(v, layout), of_decay(decay, layout);
        LinearAttentionArrays arrays{.q = q_laid.view(), .k = k_laid.view(), .v = v_laid.view()};
        arrays.decay = of_decay.view();
        LinearAttention made = linear_attention(arrays, settings);
        Arrays results;
        results.push_back(std::move(made.out));
        results.push_back(std::move(made.final_state));
        results.push_back(std::move(*made.states));
        return results;
      });
    }
}

TEST_CASE("attention in every layout over several tiles gives the same bytes on any number of threads") {
  Random random(102);
  for (const AttentionLayout layout : {AttentionLayout::bshd, AttentionLayout::bhsd, AttentionLayout::thd})
    for (const DType dtype : {DType::bfloat16, DType::float32}) {
      CAPTURE(name_of(layout));
      CAPTURE(name_of(dtype));
      plain::RandomAttention r;
      const auto make = [&](std::int64_t heads, std::int64_t size) {
        return random_troubled(dtype,
                               layout == AttentionLayout::bshd   ? Shape{2, 80, heads, size}
                               : layout == AttentionLayout::bhsd ? Shape{2, heads, 80, size}
                                                                 : Shape{80, heads, size},
                               random, 4000);
      };
      r.q = make(4, 16), r.k = make(2, 16), r.v = make(2, 24), r.dout = make(4, 24);
      r.options.layout = layout;
      r.options.block = BlockShape{16, 32};
      if (layout == AttentionLayout::thd) {
        r.options.cu_seqlens_q = plain::integers({0, 30, 31, 80}, {4}, "cu_q");
        r.options.cu_seqlens_kv = plain::integers({0, 10, 50, 80}, {4}, "cu_k");
      }
      HeadMasks band;
      band.mask = [](auto, auto, std::int64_t q, std::int64_t kv) { return local_mask(q, kv, 25, 3); };
      r.options.masks.push_back(band);
      check_on_all(4, [&](int how) { return of_attention(r, how); });
    }
}

TEST_CASE("attention with few queries: NaN and infinities give the same bytes on any number of threads") {
  Random random(103);
  for (const AttentionLayout layout : {AttentionLayout::bshd, AttentionLayout::bhsd, AttentionLayout::thd})
    for (const DType dtype : plain::kFloats) {
      CAPTURE(name_of(layout));
      CAPTURE(name_of(dtype));
      const std::int64_t queries = between(random, 1, 4), keys = between(random, 300, 900);
      const auto make = [&](std::int64_t length, std::int64_t heads) {
        return random_troubled(dtype,
                               layout == AttentionLayout::bshd   ? Shape{2, length, heads, 16}
                               : layout == AttentionLayout::bhsd ? Shape{2, heads, length, 16}
                                                                 : Shape{length, heads, 16},
                               random, 20'000);
      };
      const Array q = make(queries, 6), k = make(keys, 2), v = make(keys, 2);
      AttentionOptions options;
      options.layout = layout;
      if (layout == AttentionLayout::thd) {
        options.cu_seqlens_q = plain::integers({0, 1, queries}, {3}, "cu_q");
        options.cu_seqlens_kv = plain::integers({0, keys / 3, keys}, {3}, "cu_k");
      }
      check_on_all(4, [&](int how) {
        const plain::Laid q_laid(q, how % 4), k_laid(k, (how + 1) % 4), v_laid(v, (how + 3) % 4);
        Attention made = attention(q_laid.view(), k_laid.view(), v_laid.view(), options);
        Arrays arrays;
        arrays.push_back(std::move(made.out));
        arrays.push_back(std::move(made.lse));
        return arrays;
      });
    }
}

TEST_CASE("grouped products: NaN and infinities give the same bytes on any number of threads") {
  Random random(104);
  for (const DType dtype : plain::kFloats) {
    CAPTURE(name_of(dtype));
    // Of one type over two blocks of the contraction.
    const std::int64_t m = between(random, 100, 200),
                       k = between(random, 40, 200) + (dtype == DType::bfloat16 ? 400 : 0),
                       n = between(random, 60, 200);
    const auto sizes = plain::source({m / 3, 0, m / 2, 5});
    const Array lhs = random_troubled(dtype, {m, k}, random, 3000),
                rhs = random_troubled(dtype, {4, k, n}, random, 3000),
                turned = random_troubled(dtype, {4, n, k}, random, 3000),
                out = random_troubled(DType::float32, {m, n}, random),
                a = random_troubled(dtype, {k, m}, random, 3000),
                b = random_troubled(dtype, {m, n}, random, 3000),
                gradient = random_troubled(DType::float32, {4, k, n}, random);
    // The order of a sum, and so its rounding, may depend on rhs's strides: each layout stands for itself.
    for (const int layout : {0, 1 + static_cast<int>(dtype) % 3}) {
      CAPTURE(layout);
      check_on_all(1, [&](int) {
        const plain::Laid left(lhs, layout % 4), right(rhs, (layout + 1) % 4),
            right_turned(turned, (layout + 2) % 4);
        GroupedMatmulOptions how;
        Arrays arrays;
        arrays.push_back(grouped_matmul(left.view(), right.view(), sizes, how));
        how.existing_out = out.view();
        how.existing = Existing::add;
        how.tiling = Tiling{32, 48, 64};
        arrays.push_back(grouped_matmul(left.view(), right.view(), sizes, how));
        how.transpose_rhs = true;
        how.existing = Existing::keep;
        arrays.push_back(grouped_matmul(left.view(), right_turned.view(), sizes, how));
        const plain::Laid a_laid(a, (layout + 1) % 4), b_laid(b, layout % 4);
        TransposedGroupedMatmulOptions transposed;
        arrays.push_back(transposed_grouped_matmul(a_laid.view(), b_laid.view(), sizes, transposed));
        transposed.existing_out = gradient.view();
        arrays.push_back(transposed_grouped_matmul(a_laid.view(), b_laid.view(), sizes, transposed));
        return arrays;
      });
    }
  }
}

TEST_CASE("layers of experts: the same bytes on any number of threads") {
  Random random(107);
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float64}) {
    CAPTURE(name_of(dtype));
    const Array x = random_troubled(dtype, {70, 40}, random, 3000),
                both = random_troubled(dtype, {6, 40, 48}, random, 3000),
                down = random_troubled(dtype, {6, 24, 40}, random, 3000);
    std::vector<double> ids;
    for (int f = 0; f < 140; ++f) ids.push_back(static_cast<double>(between(random, -1, 5)));
    const Array topk_ids = plain::array_of(DType::int32, {70, 2}, ids),
                weights = plain::array_of(DType::float32, {70, 2}, std::vector<double>(140, 0.5));
    const GateAndUp halves = split_gate_and_up(both.view());
    check_on_all(1, [&](int) {
      Arrays arrays;
      arrays.push_back(moe({x.view(), halves.gate, halves.up, down.view(), topk_ids.view(), weights.view()},
                           Activation::silu, dtype));
      return arrays;
    });
  }
}

TEST_CASE("masks by blocks: the same bytes on any number of threads") {
  Random random(105);
  for (int n = 0; n < 15; ++n) {
    CAPTURE(n);
    const plain::Example example = plain::random_example(random);
    check_on_all(1, [&](int) { return of_mask_info(plain::info_of(example)); });
  }
  // Stripes of a mask that is scanned in several.
  const Mask wide = plain::wide_mask(random) | causal_mask(300, std::int64_t{1} << 21, 5000);
  check_on_all(1, [&](int) {
    Arrays arrays;
    const MaskInfo info = process_mask({wide}, {100, 1 << 14});
    arrays.push_back(Array::copy_of(info.block_mask.view()));
    arrays.push_back(report_as_array(describe(measure_sparsity({wide}, {{100, 1 << 14}, {50, 1 << 15}}))));
    return arrays;
  });
  const Mask several = plain::random_mask(random, 300, 200, 2).mask;
  check_on_all(1, [&](int) {
    const IdentifiedMask found = identify_mask(several);
    Report report;
    report.add("text", "text", found.text).add("pairs_differ", "pairs that differ", found.pairs_differ);
    Arrays arrays;
    arrays.push_back(report_as_array(report));
    return arrays;
  });
}

TEST_CASE("segments: masks of ids and ids of masks are the same bytes on any number of threads") {
  Random random(106);
  for (int n = 0; n < 12; ++n) {
    CAPTURE(n);
    const std::int64_t batch = between(random, 1, 4), q = between(random, 1, 200),
                       kv = between(random, 1, 200);
    const auto ids = [&](std::int64_t length) {
      std::vector<std::int64_t> all;
      for (std::int64_t b = 0; b < batch; ++b)
        for (const std::int64_t id : plain::random_ids(random, length)) all.push_back(id);
      return plain::integers(all, {batch, length}, "ids");
    };
    const auto q_ids = ids(q), kv_ids = ids(kv);
    SegmentMaskOptions how;
    how.separate = true;
    if (n % 2 == 1) how.dtype = DType::float32;
    const plain::Pair pair = plain::random_mask(random, q, kv, 2);
    const auto mask = make_source(plain::array_of(q, kv, pair.elements), "mask");
    check_on_all(1, [&](int) {
      SegmentMask made = segment_ids_to_mask(*q_ids, *kv_ids, how);
      SegmentIds back = mask_to_segment_ids(mask);
      Arrays arrays;
      arrays.push_back(read_all(*made.attention_mask));
      arrays.push_back(std::move(*made.q_mask));
      arrays.push_back(std::move(*made.kv_mask));
      arrays.push_back(std::move(back.q_segment_ids));
      arrays.push_back(std::move(back.kv_segment_ids));
      arrays.push_back(value_as_array(std::array{back.segments, back.differing_elements}));
      return arrays;
    });
  }
}

TEST_CASE("comparisons of NaN and infinities over several pieces say the same on any number of threads") {
  Random random(107);
  const Shape shape{3, 200'000};
  for (const DType dtype : {DType::bfloat16, DType::float32}) {
    CAPTURE(name_of(dtype));
    const Array expected = random_troubled(dtype, shape, random);
    std::vector<double> values = plain::doubles(expected.view());
    for (double& value : values)
      if (between(random, 0, 500) == 0) value *= 1.5;
    const Array actual = troubled(plain::array_of(dtype, shape, values), random, 5000);
    check_on_all(2, [&](int layout) {
      const plain::Laid a(actual, layout % 4), e(expected, (layout + 1) % 4);
      Arrays arrays;
      arrays.push_back(report_as_array(
          describe(compare_arrays(*make_source(a.view(), "actual"), *make_source(e.view(), "expected")))));
      return arrays;
    });
  }
}

TEST_CASE("runs and routings say the same on any number of threads") {
  Random random(109);
  const Shape shape{3, 500'000};  // several boxes
  for (const DType dtype : {DType::bfloat16, DType::float32}) {
    CAPTURE(name_of(dtype));
    const Array first = random_troubled(dtype, shape, random);
    const Array second = troubled(Array::copy_of(first.view()), random, 5000);
    const Array scores = plain::random(dtype, {20'000, 8}, random),
                other = plain::random(dtype, {20'000, 8}, random);
    check_on_all(2, [&](int layout) {
      const plain::Laid a(first, layout % 4), e(second, (layout + 1) % 4);
      const std::vector<std::shared_ptr<const ArraySource>> runs{make_source(a.view()), make_source(e.view()),
                                                                 make_source(a.view())};
      const RunsOfArray found{"", compare_runs(runs), ""};
      const std::vector<std::string> names{"0", "1", "2"};
      Arrays arrays;
      arrays.push_back(report_as_array(describe_runs({&found, 1}, names)));
      arrays.push_back(report_as_array(
          describe(compare_routing(*make_source(scores.view()), *make_source(other.view()), 2))));
      return arrays;
    });
  }
}

TEST_CASE(
    "functions of arrays give the same bytes on any number of threads, NaN and infinities among the elements") {
  Random random(108);
  for (const DType dtype : {DType::bfloat16, DType::float64})
    for (const Shape& shape : {Shape{150'000}, Shape{3, 30'000, 2}}) {
      CAPTURE(name_of(dtype));
      CAPTURE(to_string(shape));
      // Rarely in x: rows without NaN have more to say.
      const Array x = random_troubled(dtype, shape, random, 20'000),
                  y = random_troubled(dtype, shape, random);
      check_on_all(4, [&](int layout) {
        const plain::Laid laid(x, layout % 4), divisor(y, (layout + 2) % 4);
        const auto source = make_source(laid.view(), "x");
        Arrays arrays;
        arrays.push_back(read_all(*safe_divide(source, make_source(divisor.view(), "y"))));
        for (const DType other : plain::kFloats) arrays.push_back(read_all(*convert_array(source, other)));
        arrays.push_back(read_all(*chunk_array(source, 7, 0)));
        return arrays;
      });
    }
  const auto lens = plain::source({3, 0, 170, 9}, "lens");
  const Array batch = random_troubled(DType::float16, {4, 170, 5}, random);
  Array shown(DType::boolean, {4, 170});
  for (std::size_t i = 0; i < shown.elements<bool>().size(); ++i)
    shown.elements<bool>()[i] = between(random, 0, 2) > 0;
  check_on_all(4, [&](int layout) {
    const plain::Laid laid(batch, layout % 4);
    const Packed packed = pack(make_source(laid.view(), "x"), *make_source(shown.view(), "mask"));
    Arrays arrays;
    arrays.push_back(read_all(*packed.packed));
    arrays.push_back(prepare_lens_from_mask(*make_source(shown.view(), "mask")));
    arrays.push_back(read_all(*prepare_position_ids(make_source(prepare_cu_seqlens_from_lens(lens)))));
    return arrays;
  });
}

TEST_CASE("attention writes every element of its results, also of rows and keys that nothing attends to") {
  Random random(109);
  for (int n = 0; n < 60; ++n) {
    CAPTURE(n);
    const Threads set(kTurns[static_cast<std::size_t>(n) % 5].threads);
    const auto r = plain::random_attention(random, plain::kFloats);
    AttentionArrays arrays{r->q.view(), r->k.view(), r->v.view(), r->options.bias};
    const Attention made = attention(*arrays.q, *arrays.k, *arrays.v, r->options);
    const AttentionGradients g = attention_grad(*arrays.q, *arrays.k, *arrays.v, r->dout.view(), r->options);
    for (const bool backward : {false, true}) {
      if (backward) arrays.dout = r->dout.view();
      const AttentionPlan plan(types_of(arrays), r->options);
      std::vector<ArrayType> types;
      for (const PlannedArray& result : plan.results()) types.push_back(result.type);
      Arrays results = poisoned(types);
      plan.run(arrays, views_of(results));
      std::vector<const Array*> expected =
          backward ? std::vector{&g.dq, &g.dk, &g.dv} : std::vector{&made.out, &made.lse};
      if (backward && g.dbias) expected.push_back(&*g.dbias);
      if (backward && g.dsinks) expected.push_back(&*g.dsinks);
      REQUIRE(results.size() == expected.size());
      for (std::size_t i = 0; i < results.size(); ++i)
        CHECK_MESSAGE(plain::same_bytes(results[i], *expected[i]), (backward ? "gradient " : "result "), i);
    }
  }
}

TEST_CASE("grouped products write every element of their results, also of rows and groups that have none") {
  Random random(110);
  for (int n = 0; n < 40; ++n) {
    CAPTURE(n);
    const Threads set(kTurns[static_cast<std::size_t>(n) % 5].threads);
    const DType dtype = plain::kFloats[static_cast<std::size_t>(n) % plain::kFloats.size()];
    const std::int64_t m = between(random, 0, 90), k = between(random, 0, 40),
                       columns = between(random, 0, 50);
    const auto sizes = plain::source(plain::random_sizes(3, m, false, random));
    const Array lhs = plain::random(dtype, {m, k}, random),
                rhs = plain::random(dtype, {3, k, columns}, random),
                b = plain::random(dtype, {m, columns}, random), a = plain::random(dtype, {k, m}, random);
    const auto check = [&](const Array& x, const Array& y, const auto& options, const Array& expected) {
      const GroupedMatmulPlan plan(type_of(x.view()), type_of(y.view()), sizes, options);
      Arrays results = poisoned({plan.out()});
      plan.run(x.view(), y.view(), {}, results[0].mutable_view());
      CHECK(plain::same_bytes(results[0], expected));
    };
    check(lhs, rhs, GroupedMatmulSettings{}, grouped_matmul(lhs.view(), rhs.view(), sizes));
    check(a, b, TransposedGroupedMatmulSettings{}, transposed_grouped_matmul(a.view(), b.view(), sizes));
  }
}

TEST_CASE("log_sum_exp and statistics over several pieces: any number of threads gives the same bytes") {
  Random random(111);
  // A line with NaN, one with infinities and one of numbers.
  Array x = plain::random(DType::float32, {3, 1'100'000}, random);
  for (const std::int64_t at : {5, 400'000, 1'099'999}) {
    x.elements<float>()[static_cast<std::size_t>(at)] = std::numeric_limits<float>::quiet_NaN();
    x.elements<float>()[static_cast<std::size_t>(1'100'000 + at)] = -std::numeric_limits<float>::infinity();
  }
  const auto source = make_source(x.view(), "x");
  check_same_bytes(1, [&](int) {
    Arrays arrays;
    arrays.push_back(log_sum_exp(*source));
    for (const std::int64_t axis : {0, 1}) arrays.push_back(log_sum_exp(*source, axis));
    const Statistics statistics = statistics_of(*source);
    arrays.push_back(value_as_array(statistics.mean.value()));
    arrays.push_back(value_as_array(std::array{statistics.nans, statistics.infinities}));
    for (const Bin& bin : histogram_of(*source, statistics)) arrays.push_back(value_as_array(bin));
    return arrays;
  });
}
