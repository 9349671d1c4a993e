// Mistakes of backward passes, planted in plain loops with P and dS rounded to the type of the inputs: each
// is refused in float32, bfloat16 and float16, named with its place, and its share is that of all wrong
// elements.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>

#include "ejk/against.hpp"
#include "ejk/attention.hpp"
#include "support/arrays.hpp"

using namespace ejk;

namespace planted_gradients {

namespace {

using Index = std::int64_t;
using Values = std::vector<double>;

constexpr Index kTokens = 96, kHeads = 4, kKeyHeads = 2, kSize = 16;
constexpr double kScale = 0.25, kLn2 = 0.69314718055994530942;

struct Gradients {
  Values dq, dk, dv;
};

// What a backward pass does; as it stands it is right.
struct Kernel {
  std::function<bool(Index i, Index j)> allowed = [](Index i, Index j) { return j <= i; };
  std::function<bool(Index i, Index j)> of_dq = [](Index, Index) { return true; },
                                        of_keys = [](Index, Index) { return true; };
  std::function<Index(Index h)> key_head = [](Index h) {
    return h / 2;
  };                                                                  // that dk and dv of a head are added to
  std::function<double(Index h)> counts = [](Index) { return 1.0; };  // how often
  double delta = 1, lse = 1, scale_of_dq = kScale, scale_of_dk = kScale;
  std::function<void(Gradients&)> after = [](Gradients&) {};
};

std::size_t at(Index i, Index h, Index d, Index heads) {
  return static_cast<std::size_t>((i * heads + h) * kSize + d);
}

struct Problem {
  DType type;
  Array q, k, v, dout;

  explicit Problem(DType dtype) : type(dtype) {
    std::mt19937_64 engine(31);
    q = plain::random(dtype, {1, kTokens, kHeads, kSize}, engine);
    k = plain::random(dtype, {1, kTokens, kKeyHeads, kSize}, engine);
    v = plain::random(dtype, {1, kTokens, kKeyHeads, kSize}, engine);
    dout = plain::random(dtype, {1, kTokens, kHeads, kSize}, engine);
  }

  Gradients made(const Kernel& kernel) const {
    const Values qs = plain::doubles(q.view()), ks = plain::doubles(k.view()), vs = plain::doubles(v.view()),
                 gs = plain::doubles(dout.view());
    Gradients made{Values(qs.size()), Values(ks.size()), Values(vs.size())};
    const auto dot = [](const Values& x, std::size_t i, const Values& y, std::size_t j) {
      double sum = 0;
      for (std::size_t d = 0; d < kSize; ++d) sum += x[i + d] * y[j + d];
      return sum;
    };
    for (Index h = 0; h < kHeads; ++h)
      for (Index i = 0; i < kTokens; ++i) {
        const std::size_t row = at(i, h, 0, kHeads);
        double sum = 0, delta = 0;
        for (Index j = 0; j <= i; ++j) sum += std::exp(kScale * dot(qs, row, ks, at(j, h / 2, 0, kKeyHeads)));
        for (Index j = 0; j <= i; ++j) {
          const std::size_t key = at(j, h / 2, 0, kKeyHeads);
          delta += std::exp(kScale * dot(qs, row, ks, key)) / sum * dot(gs, row, vs, key);
        }
        for (Index j = 0; j < kTokens; ++j) {
          if (!kernel.allowed(i, j)) continue;
          const std::size_t key = at(j, h / 2, 0, kKeyHeads), to = at(j, kernel.key_head(h), 0, kKeyHeads);
          const double p = std::exp(kScale * dot(qs, row, ks, key) - kernel.lse * std::log(sum));
          const double ds = plain::rounded(p * (dot(gs, row, vs, key) - kernel.delta * delta), type);
          for (std::size_t d = 0; d < kSize; ++d) {
            if (kernel.of_dq(i, j)) made.dq[row + d] += kernel.scale_of_dq * ds * ks[key + d];
            if (!kernel.of_keys(i, j)) continue;
            made.dk[to + d] += kernel.counts(h) * kernel.scale_of_dk * ds * qs[row + d];
            made.dv[to + d] += kernel.counts(h) * plain::rounded(p, type) * gs[row + d];
          }
        }
      }
    kernel.after(made);
    return made;
  }

  Against against(const Gradients& made) const {
    AttentionOptions options;
    options.masks.push_back(head_masks({causal_mask(kTokens, kTokens)}));
    const AttentionArrays arrays{q.view(), k.view(), v.view(), {}, dout.view()};
    const AttentionPlan plan(types_of(arrays), options);
    const AttentionGradients own = attention_grad(q.view(), k.view(), v.view(), dout.view(), options);
    const Array dq = plain::array_of(type, q.shape(), made.dq),
                dk = plain::array_of(type, k.shape(), made.dk),
                dv = plain::array_of(type, v.shape(), made.dv);
    return plan.compare(arrays, {own.dq.view(), own.dk.view(), own.dv.view()},
                        {dq.view(), dk.view(), dv.view()}, Explain::yes);
  }
};

struct Planted {
  std::string dq, dk, dv;  // what is wanted; empty: it is right
  std::function<void(Kernel&)> plant;
};

std::vector<Planted> planted() {
  const std::string alone = ", in the backward pass alone";
  const auto all = [](const std::string& text) { return std::array{text, text, text}; };
  std::vector<Planted> list;
  const auto add = [&](const std::array<std::string, 3>& wanted, std::function<void(Kernel&)> plant) {
    list.push_back({wanted[0], wanted[1], wanted[2], std::move(plant)});
  };
  add({"the gradient is not multiplied by the scale", "", ""}, [](Kernel& k) { k.scale_of_dq = 1; });
  add({"", "the gradient is multiplied by the scale twice", ""},
      [](Kernel& k) { k.scale_of_dk = kScale * kScale; });
  add({"delta = rowsum(dout out) is left out", "delta = rowsum(dout out) is left out", ""},
      [](Kernel& k) { k.delta = 0; });
  add({"delta is added, not subtracted", "delta is added, not subtracted", ""},
      [](Kernel& k) { k.delta = -1; });
  add({"delta is subtracted twice", "delta is subtracted twice", ""}, [](Kernel& k) { k.delta = 2; });
  add(all("lse is a logarithm to base e, and is taken for one to base 2"), [](Kernel& k) { k.lse = kLn2; });
  add(all("lse is a logarithm to base 2, and is taken for one to base e"),
      [](Kernel& k) { k.lse = 1 / kLn2; });
  add(all("the mask is ignored" + alone), [](Kernel& k) { k.allowed = [](Index, Index) { return true; }; });
  add(all("the causal edge is one key short" + alone),
      [](Kernel& k) { k.allowed = [](Index i, Index j) { return j < i; }; });
  add(all("the tile of 32 keys on the diagonal is left out" + alone),
      [](Kernel& k) { k.allowed = [](Index i, Index j) { return j / 32 < i / 32; }; });
  add({"tile 1 of 32 keys is not added", "", ""},
      [](Kernel& k) { k.of_dq = [](Index, Index j) { return j / 32 != 1; }; });
  add({"", "tile 2 of 32 queries is not added", "tile 2 of 32 queries is not added"},
      [](Kernel& k) { k.of_keys = [](Index i, Index) { return i / 32 != 2; }; });
  const std::string first = "only the first query head of each key head is counted, not their sum",
                    mean = "it is the mean over the query heads of a key head, not their sum",
                    other = "query head h is added to key head h mod G, not h / (H/G)";
  add({"", first, first}, [](Kernel& k) { k.counts = [](Index h) { return h % 2 == 0 ? 1.0 : 0.0; }; });
  add({"", mean, mean}, [](Kernel& k) { k.counts = [](Index) { return 0.5; }; });
  add({"", other, other}, [](Kernel& k) { k.key_head = [](Index h) { return h % 2; }; });
  add({"", "dk holds what belongs to dv", "dv holds what belongs to dk"},
      [](Kernel& k) { k.after = [](Gradients& g) { std::swap(g.dk, g.dv); }; });
  add({"head 1 and head 2 are exchanged", "", ""}, [](Kernel& k) {
    k.after = [](Gradients& g) {
      for (Index i = 0; i < kTokens; ++i)
        for (Index d = 0; d < kSize; ++d) std::swap(g.dq[at(i, 1, d, kHeads)], g.dq[at(i, 2, d, kHeads)]);
    };
  });
  add({"", "", "0 stands there, as if never written in key head 1, keys 32-63"}, [](Kernel& k) {
    k.after = [](Gradients& g) {
      for (Index i = 32; i < 64; ++i)
        for (Index d = 0; d < kSize; ++d) g.dv[at(i, 1, d, kKeyHeads)] = 0;
    };
  });
  add({"", "key i holds what belongs to i - 1 modulo 96", ""}, [](Kernel& k) {
    k.after = [](Gradients& g) { std::rotate(g.dk.begin(), g.dk.end() - kKeyHeads * kSize, g.dk.end()); };
  });
  return list;
}

}  // namespace

TEST_CASE("right gradients agree, and planted mistakes of theirs are refused and named in every type") {
  for (const DType type : {DType::float32, DType::bfloat16, DType::float16}) {
    CAPTURE(name_of(type));
    const Problem problem(type);
    CHECK(problem.against(problem.made(Kernel{})).agrees());
    for (const Planted& p : planted()) {
      CAPTURE(p.dq + " | " + p.dk + " | " + p.dv);
      Kernel kernel;
      p.plant(kernel);
      const Against found = problem.against(problem.made(kernel));
      for (const auto& wanted_of : {std::pair{"dq", p.dq}, {"dk", p.dk}, {"dv", p.dv}}) {
        const std::string array = wanted_of.first, wanted = wanted_of.second;
        CAPTURE(array);
        std::string text;
        double share = 0, left = 0;
        for (const auto& e : found.explanations)
          if (e.array == array && text.empty()) text = e.text, share = e.share_explained;
        for (const auto& u : found.unexplained)
          if (u.array == array) left += u.share;
        CHECK(text == wanted);
        if (wanted.empty()) continue;
        CHECK(share > 0.98);
        CHECK(share + left == doctest::Approx(1).epsilon(0.02));
      }
    }
  }
}

}  // namespace planted_gradients
