// Mutants of attention against loops over all pairs that have the fault; what is tried, and what a miss is put down to.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <map>

#include "ejk/audit.hpp"
#include "support/attention_loops.hpp"
#include "support/failure.hpp"

using namespace ejk;

namespace {

constexpr std::int64_t kHeads = 4, kKeyHeads = 2, kSize = 16;

struct Problem {
  Array q, k, v, dout;
  AttentionSettings settings;
  std::int64_t batch, queries, keys;

  Problem(DType dtype, std::int64_t entries, std::int64_t rows, std::int64_t columns, double std = 1)
      : batch(entries), queries(rows), keys(columns) {
    std::mt19937_64 engine(3);
    const auto made = [&](std::int64_t positions, std::int64_t heads, double factor) {
      const Shape shape{entries, positions, heads, kSize};
      std::vector<double> values = plain::doubles(plain::random(DType::float64, shape, engine).view());
      for (double& value : values) value *= factor;
      return plain::array_of(dtype, shape, values);
    };
    q = made(rows, kHeads, std), k = made(columns, kKeyHeads, std), v = made(columns, kKeyHeads, 1);
    dout = made(rows, kHeads, 1);
  }

  void mask(const Mask& all) { settings.masks.push_back(head_masks({all})); }

  std::map<std::string, Array> mutants;
  Audit audited(AuditOptions options = {}, bool gradients = false) {
    options.mutant = [this](const std::string& name, Array array) { mutants[name] = std::move(array); };
    AttentionArrays arrays{q.view(), k.view(), v.view(), {}};
    if (gradients) arrays.dout = dout.view();
    return audit(AttentionPlan(types_of(arrays), settings), arrays, options);
  }
};

// A kernel: which pairs attend, the score of a product, and the key head of a query head.
struct Kernel {
  std::function<bool(std::int64_t, std::int64_t)> attends = [](std::int64_t, std::int64_t) { return true; };
  std::function<double(double)> score = [](double product) { return product / std::sqrt(kSize); };
  std::function<std::int64_t(std::int64_t)> key_head = [](std::int64_t h) { return h / 2; };
  std::int64_t keys_of_zeros = 0;
  bool entry_0 = false;

  Array result(const Problem& p) const {
    using plain::heads_of;
    plain::Heads q = heads_of(p.q, AttentionLayout::bshd), k = heads_of(p.k, AttentionLayout::bshd),
                 v = heads_of(p.v, AttentionLayout::bshd),
                 out = plain::zeros({p.batch, kHeads, p.queries, kSize});
    for (std::int64_t b = 0; b < p.batch; ++b)
      for (std::int64_t h = 0; h < kHeads; ++h)
        for (std::int64_t i = 0; i < p.queries; ++i) {
          const std::int64_t of = entry_0 ? 0 : b, kv = key_head(h);
          double sum = static_cast<double>(keys_of_zeros);
          for (std::int64_t j = 0; j < p.keys; ++j) {
            if (!attends(i, j)) continue;
            double product = 0;
            for (std::int64_t d = 0; d < kSize; ++d) product += q.at(b, h, i, d) * k.at(of, kv, j, d);
            const double weight = std::exp(score(product));
            sum += weight;
            for (std::int64_t d = 0; d < kSize; ++d) out.at(b, h, i, d) += weight * v.at(of, kv, j, d);
          }
          for (std::int64_t d = 0; d < kSize && sum > 0; ++d) out.at(b, h, i, d) /= sum;
        }
    return plain::array_of(p.q.dtype(), {p.batch, p.queries, kHeads, kSize}, out, AttentionLayout::bshd);
  }
};

// A tie may round to the other neighbour, in all rows of a mean of values.
void check_same(const Problem& p, const std::string& name, const Kernel& kernel) {
  CAPTURE(name);
  REQUIRE(p.mutants.contains(name));
  const auto mutant = plain::doubles(p.mutants.at(name).view()),
             loop = plain::doubles(kernel.result(p).view());
  std::int64_t differing = 0;
  for (std::size_t n = 0; n < loop.size(); ++n) {
    differing += mutant[n] != loop[n];
    CHECK(mutant[n] == doctest::Approx(loop[n]).epsilon(0.01));
  }
  CHECK(differing * 50 <= std::ssize(loop));
}

const AuditedFault& fault_of(const Audit& audit, std::string_view name) {
  for (const AuditedFault& one : audit.faults)
    if (one.fault->name == name) return one;
  FAIL("not tried: ", name);
  return audit.faults[0];
}

bool is_tried(const Audit& audit, std::string_view name) {
  for (const AuditedFault& one : audit.faults)
    if (one.fault->name == name) return true;
  return false;
}

AuditOptions named(std::string_view name, DType dtype) {
  AuditOptions options;
  options.rule = named_rule(name, dtype);
  return options;
}

}  // namespace

TEST_CASE("mutants of attention without a mask are those of loops with the fault") {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    Problem p(dtype, 2, 70, 75);
    p.audited();
    const double scale = 1 / std::sqrt(kSize);
    check_same(p, "expected", {});
    check_same(p, "scale-missing", {.score = [](double s) { return s; }});
    check_same(p, "scale-twice", {.score = [=](double s) { return scale * scale * s; }});
    check_same(p, "scale-log2e.0.6931", {.score = [=](double s) { return std::log(2) * scale * s; }});
    check_same(p, "mean-of-values", {.score = [](double) { return 0.0; }});
    check_same(p, "head-mapping", {.key_head = [](std::int64_t h) { return h % 2; }});
    check_same(p, "kv-head-0", {.key_head = [](std::int64_t) { return 0; }});
    check_same(p, "kv-batch-0", {.entry_0 = true});
    check_same(p, "padding-keys.64", {.keys_of_zeros = 128 - 75});
    check_same(p, "tail-keys-dropped.64", {.attends = [](std::int64_t, std::int64_t j) { return j < 64; }});
  }
}

TEST_CASE("mutants of masks are those of loops over other pairs") {
  Problem p(DType::float32, 1, 150, 150);
  p.mask(local_mask(150, 150, 20, 0) & causal_mask(150, 150) &
         documents_mask(IntegerArray(plain::Sizes{0, 60, 61, 150})));
  p.audited();
  const auto document = [](std::int64_t n) { return (n >= 60) + (n >= 61); };
  const auto window = [](std::int64_t i, std::int64_t j) { return i - 20 <= j && j <= i; };
  const auto check_pairs = [&](const char* name, auto&& attends) {
    check_same(p, name, {.attends = attends});
  };
  using I = std::int64_t;
  check_pairs("expected", [&](I i, I j) { return window(i, j) && document(i) == document(j); });
  check_pairs("mask-ignored", [](I, I) { return true; });
  check_pairs("term-ignored.0", [&](I i, I j) { return j <= i && document(i) == document(j); });
  check_pairs("term-ignored.1", window);  // a causal edge beside the window is none
  check_pairs("window-longer", [&](I i, I j) { return i - 21 <= j && j <= i && document(i) == document(j); });
  check_pairs("causal-late",
              [&](I i, I j) { return i - 20 <= j && j <= i + 1 && document(i) == document(j); });
  check_pairs("causal-loop-short.64x32", [&](I i, I j) {
    return window(i, j) && document(i) == document(j) && j < (i / 64 * 64 + 32) / 32 * 32;
  });
  check_pairs("causal-tile-unmasked.64x32", [&](I i, I j) {
    const I last = std::min<I>(i / 64 * 64 + 64, 150) - 1;
    return i - 20 <= j && (j <= i || j < last / 32 * 32) && document(i) == document(j);
  });
  check_pairs("documents-shifted.+1",
              [&](I i, I j) { return window(i, j) && (i >= 61) + (i >= 62) == (j >= 61) + (j >= 62); });
  check_pairs("documents-first-only", [&](I i, I j) { return window(i, j) && (i >= 60) == (j >= 60); });
  check_pairs("documents-single", [&](I i, I j) { return window(i, j) && (i >= 60) == (j >= 60); });
  CHECK_FALSE(p.mutants.contains("term-ignored.2"));
}

TEST_CASE("an audit tries the faults of what is stated, and none else") {
  Problem p(DType::bfloat16, 1, 40, 40);
  p.mask(causal_mask(40, 40));
  const Audit audit = p.audited(named("kernelbench", DType::bfloat16));
  for (const char* const name : {"causal-late", "mask-ignored", "kv-batch-0", "no-rescale"})
    CHECK(is_tried(audit, name));
  for (const char* const name : {"softcap-ignored", "sinks-twice", "window-longer", "padding-keys",
                                 "inputs-tf32", "tail-unwritten", "term-ignored", "empty-rows-nan"})
    CHECK_FALSE(is_tried(audit, name));
  std::int64_t of_attention = 0;
  for (const Fault& fault : fault_catalogue())
    of_attention += (" " + std::string(fault.kinds) + " ").find(" attention ") != std::string::npos;
  CHECK(std::ssize(audit.faults) + std::ssize(audit.not_tried) == of_attention);
}

TEST_CASE("a size that cannot show a fault is a miss, with a size that does") {
  const auto remedy = [](std::int64_t queries, const Mask& mask, std::string_view name) {
    Problem p(DType::float32, 1, queries, 32);
    p.mask(mask);
    const Audit audit = p.audited(named("torch.testing", DType::float32));
    const AuditedFault& fault = fault_of(audit, name);
    CHECK(fault.why == AuditedFault::Why::inert);
    CHECK(fault.largest == 0);
    return fault.remedy;
  };
  const Mask window = local_mask(32, 32, 63, 0);
  CHECK(remedy(32, window, "window-longer") ==
        "'local(left=63,right=0)' excludes nothing at 32 keys: 65 keys or more");
  CHECK(remedy(32, window, "kv-batch-0") == "the batch is 1: two entries");
  CHECK(remedy(32, window, "no-rescale") == "there is one tile of 64 keys: 65 keys or more");
  CHECK(remedy(32, causal_mask(32, 32), "causal-loop-short") ==
        "no tile of 64 keys is after the first query of a tile: more than 64 queries");
  CHECK(remedy(1, causal_mask(1, 32, 31), "causal-late") ==
        "no key is past the edge of 'causal(offset=31)': 2 queries or more");
  CHECK(remedy(32, documents_mask(IntegerArray(plain::Sizes{0, 32})), "documents-first-only") ==
        "there are fewer than three documents: three or more");
  Problem hidden(DType::float32, 1, 4, 150);
  hidden.mask(prefix_mask(4, 150, 90));
  CHECK(fault_of(hidden.audited(named("torch.testing", DType::float32)), "tail-keys-dropped").remedy ==
        "no query attends to keys from 128 on: another mask");
}

TEST_CASE("scores that hardly differ let a wrong scale pass") {
  const auto scale = [](double std) {
    const Audit audit =
        Problem(DType::bfloat16, 1, 40, 40, std).audited(named("kernelbench", DType::bfloat16));
    return fault_of(audit, "scale-missing");
  };
  CHECK(scale(1).caught);
  const AuditedFault missed = scale(0.02);
  CHECK(missed.why == AuditedFault::Why::tolerance);
  CHECK(missed.remedy.find("std 1") != std::string::npos);
}

TEST_CASE("the bound is the one of compare_results") {
  Problem p(DType::bfloat16, 2, 30, 30);
  const Audit audit = p.audited();
  const AttentionArrays arrays{p.q.view(), p.k.view(), p.v.view(), {}};
  AttentionSettings settings = p.settings;
  const AttentionPlan plan(types_of(arrays), settings);
  for (const char* const name : {"scale-twice", "head-mapping", "kv-batch-0"}) {
    CAPTURE(name);
    const ArrayView out = p.mutants.at(name).view();
    const std::vector<ArrayView> own{out, {nullptr, DType::float32, {}, {}}};
    const Against against = compare_results(plan, arrays, own, {out, std::nullopt}, Explain::no);
    CHECK(fault_of(audit, name).largest == doctest::Approx(against.largest));
  }
}

TEST_CASE("gradients: the last query head alone, delta of entry 0, zeros") {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    Problem p(dtype, 2, 20, 20);
    p.mask(causal_mask(20, 20));
    const Audit audit = p.audited(named("torch.testing", dtype), true);
    CHECK(is_tried(audit, "k-prescaled") == (dtype == DType::bfloat16));
    CHECK(is_tried(audit, "inputs-tf32") == (dtype == DType::float32));
    // Weights of 16 bits are off by half of 2^-8 of the largest ones: more than 1e-5 where gradients cancel.
    CHECK((*audit.right > 1) == (dtype == DType::bfloat16));
    const double in_bounds = *p.audited({}, true).right;
    CHECK((in_bounds > 0 && in_bounds < 1));
    // dv of the last head: Σ P dout over odd heads.
    plain::Heads q = plain::heads_of(p.q, AttentionLayout::bshd),
                 k = plain::heads_of(p.k, AttentionLayout::bshd),
                 g = plain::heads_of(p.dout, AttentionLayout::bshd),
                 dv = plain::zeros({2, kKeyHeads, 20, kSize});
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t h = 1; h < kHeads; h += 2)
        for (std::int64_t i = 0; i < 20; ++i) {
          std::vector<double> weights;
          double sum = 0;
          for (std::int64_t j = 0; j <= i; ++j) {
            double product = 0;
            for (std::int64_t d = 0; d < kSize; ++d) product += q.at(b, h, i, d) * k.at(b, h / 2, j, d);
            weights.push_back(std::exp(product / std::sqrt(kSize)));
            sum += weights.back();
          }
          for (std::int64_t j = 0; j <= i; ++j)
            for (std::int64_t d = 0; d < kSize; ++d)
              dv.at(b, h / 2, j, d) += weights[static_cast<std::size_t>(j)] / sum * g.at(b, h, i, d);
        }
    const auto loop = plain::doubles(plain::array_of(dtype, p.v.shape(), dv, AttentionLayout::bshd).view()),
               mutant = plain::doubles(p.mutants.at("dkv-one-head.dv").view());
    for (std::size_t n = 0; n < loop.size(); ++n) CHECK(mutant[n] == doctest::Approx(loop[n]).epsilon(0.01));
    CHECK(plain::same_bytes(p.mutants.at("dkv-one-head.dq"), p.mutants.at("expected.dq")));
    CHECK(plain::same_bytes(p.mutants.at("delta-batch-0.dv"), p.mutants.at("expected.dv")));
    CHECK_FALSE(plain::same_bytes(p.mutants.at("delta-batch-0.dq"), p.mutants.at("expected.dq")));
    for (const double value : plain::doubles(p.mutants.at("zeros.dk").view())) CHECK(value == 0);
  }
}
