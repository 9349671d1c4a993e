// Faults of backward passes, planted in plain loops that round P and dS to the type of the inputs: each is
// out of tolerance in float32, bfloat16 and float16, and named with its place and its fraction of the wrong
// elements.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <functional>
#include <map>

#include "ejk/against.hpp"
#include "ejk/attention.hpp"
#include "support/planted_attention.hpp"

using namespace ejk;

namespace planted_gradients {

namespace {

using plain::Index;
using Kernel = plain::PlantedAttention;
using Pass = Kernel::Backward;
using Gradients = Kernel::Gradient;

constexpr Index kTokens = 96, kHeads = 4, kKeyHeads = 2, kSize = 16;
constexpr double kScale = 0.25, kLn2 = 0.69314718055994530942;

std::size_t at(Index i, Index h, Index d, Index heads) {
  return static_cast<std::size_t>((i * heads + h) * kSize + d);
}

Kernel right_kernel(DType type, Index batch = 1, std::uint64_t seed = 31) {
  Kernel kernel;
  kernel.batch = batch;
  kernel.queries = kernel.keys = kTokens;
  kernel.size = kernel.value_size = kSize;
  kernel.type = type;
  kernel.options.masks.push_back(head_masks({causal_mask(kTokens, kTokens)}));
  kernel.make(seed);
  kernel.allowed = [](Index, Index, Index i, Index j) { return j <= i; };
  return kernel;
}

struct Planted {
  std::array<std::string, 3> wanted;  // of dq, dk, dv; empty: it is right
  std::function<void(Kernel&, Pass&)> plant;
  std::function<void(Gradients&)> after = [](Gradients&) {};
};

std::vector<Planted> planted() {
  const std::string alone = ", in the backward pass alone";
  const auto all = [](const std::string& text) { return std::array{text, text, text}; };
  std::vector<Planted> list;
  const auto add = [&](const std::array<std::string, 3>& wanted, std::function<void(Pass&)> plant) {
    list.push_back({wanted, [plant = std::move(plant)](Kernel&, Pass& pass) { plant(pass); }});
  };
  const auto add_mask = [&](const std::string& wanted, const std::function<bool(Index i, Index j)>& allowed) {
    list.push_back({all(wanted + alone), [allowed](Kernel& k, Pass&) {
                      k.allowed = [allowed](Index, Index, Index i, Index j) { return allowed(i, j); };
                    }});
  };
  const auto add_after = [&](const std::array<std::string, 3>& wanted,
                             std::function<void(Gradients&)> after) {
    list.push_back({wanted, [](Kernel&, Pass&) {}, std::move(after)});
  };
  add({"the gradient is not multiplied by the scale", "", ""}, [](Pass& p) { p.dq_scale = 1 / kScale; });
  add({"", "the gradient is multiplied by the scale twice", ""}, [](Pass& p) { p.dk_scale = kScale; });
  add({"delta = rowsum(dout out) is left out", "delta = rowsum(dout out) is left out", ""},
      [](Pass& p) { p.delta = 0; });
  add({"delta is added, not subtracted", "delta is added, not subtracted", ""},
      [](Pass& p) { p.delta = -1; });
  add({"delta is subtracted twice", "delta is subtracted twice", ""}, [](Pass& p) { p.delta = 2; });
  add(all("lse is a logarithm to base e, and is taken for one to base 2"), [](Pass& p) { p.lse = kLn2; });
  add(all("lse is a logarithm to base 2, and is taken for one to base e"), [](Pass& p) { p.lse = 1 / kLn2; });
  add_mask("the mask is ignored", [](Index, Index) { return true; });
  add_mask("the causal edge is one key short", [](Index i, Index j) { return j < i; });
  add_mask("the tile of 32 keys on the diagonal is left out",
           [](Index i, Index j) { return j / 32 < i / 32; });
  add_mask("full tiles of 32x32 are left out", [](Index i, Index j) { return j <= i && j / 32 == i / 32; });
  add_mask("full tiles of 16x16 are left out", [](Index i, Index j) { return j <= i && j / 16 == i / 16; });
  const std::string first = "only the first query head of each key head is counted, not their sum",
                    mean = "it is the mean over the query heads of a key head, not their sum",
                    other = "query head h is added to key head h mod G, not h / (H/G)";
  add({"", first, first}, [](Pass& p) { p.counts = [](Index h) { return h % 2 == 0 ? 1.0 : 0.0; }; });
  add({"", mean, mean}, [](Pass& p) { p.counts = [](Index) { return 0.5; }; });
  add({"", other, other}, [](Pass& p) { p.key_head = [](Index h) { return h % 2; }; });
  add_after({"", "dk holds what belongs to dv", "dv holds what belongs to dk"},
            [](Gradients& g) { std::swap(g.dk, g.dv); });
  add_after({"head 1 and head 2 are exchanged", "", ""}, [](Gradients& g) {
    for (Index i = 0; i < kTokens; ++i)
      for (Index d = 0; d < kSize; ++d) std::swap(g.dq[at(i, 1, d, kHeads)], g.dq[at(i, 2, d, kHeads)]);
  });
  add_after({"", "", "elements are 0, as if never written in key head 1, keys 32-63"}, [](Gradients& g) {
    for (Index i = 32; i < 64; ++i)
      for (Index d = 0; d < kSize; ++d) g.dv[at(i, 1, d, kKeyHeads)] = 0;
  });
  add_after({"", "key i holds what belongs to i - 1 modulo 96", ""},
            [](Gradients& g) { std::rotate(g.dk.begin(), g.dk.end() - kKeyHeads * kSize, g.dk.end()); });
  return list;
}

}  // namespace

TEST_CASE("right gradients agree, and planted mistakes of theirs are refused and named in every type") {
  for (const DType type : {DType::float32, DType::bfloat16, DType::float16}) {
    CAPTURE(name_of(type));
    const Kernel right = right_kernel(type);
    const auto compared = [&](const Planted& p) {
      Kernel kernel = right;
      kernel.weight = [type](double x) { return plain::rounded(x, type); };
      Pass pass{.right = &right};
      p.plant(kernel, pass);
      Gradients made = kernel.backward(pass);
      p.after(made);
      return right.compare(made, type);
    };
    CHECK(compared({{}, [](Kernel&, Pass&) {}}).agrees());
    for (const Planted& p : planted()) {
      CAPTURE(p.wanted[0] + " | " + p.wanted[1] + " | " + p.wanted[2]);
      const Against found = compared(p);
      for (const std::size_t n : {0U, 1U, 2U}) {
        const std::string array = std::array{"dq", "dk", "dv"}[n], wanted = p.wanted[n];
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

TEST_CASE("delta of another batch entry is named") {
  for (const DType type : {DType::float32, DType::bfloat16, DType::float16})
    for (const std::uint64_t seed : {32U, 33U}) {
      CAPTURE(name_of(type));
      const Kernel right = right_kernel(type, 2, seed);
      Kernel kernel = right;
      kernel.weight = [type](double x) { return plain::rounded(x, type); };
      CHECK(right.compare(kernel.backward({}), type).agrees());
      const Against found = right.compare(kernel.backward({.has_delta_of_first = true}), type);
      REQUIRE(found.explanations.size() == 2);
      for (const auto& e : found.explanations) {
        CHECK(e.array != "dv");
        CHECK(e.text == "delta is that of batch entry 0");
        CHECK(e.share_explained > 0.98);
      }
    }
}

TEST_CASE("tiles that both passes leave out or compute whole are named in all gradients") {
  const auto in_window = [](Index i, Index j) { return j <= i && j >= i - 40; };
  const auto has = [&](Index i, Index j, Index tile, bool wanted) {  // a pair of the tile that does so
    for (Index n = 0; n < tile * tile; ++n)
      if (in_window(i / tile * tile + n / tile, j / tile * tile + n % tile) == wanted) return true;
    return false;
  };
  for (const DType type : {DType::float32, DType::bfloat16, DType::float16})
    for (const Index tile : {16, 32}) {
      CAPTURE(name_of(type));
      Kernel right = right_kernel(type);
      right.options.masks = {head_masks({local_mask(kTokens, kTokens, 40, 0)})};
      right.allowed = [&](Index, Index, Index i, Index j) { return in_window(i, j); };
      const auto texts = [&](const std::function<bool(Index i, Index j)>& allowed) {
        Kernel kernel = right;
        kernel.weight = [type](double x) { return plain::rounded(x, type); };
        kernel.allowed = [&](Index, Index, Index i, Index j) { return allowed(i, j); };
        std::map<std::string, std::string> all;
        for (const auto& e : right.compare(kernel.backward({}), type).explanations)
          all.try_emplace(e.array, e.text);
        return all;
      };
      CHECK(texts(in_window).empty());
      const auto in_all = [](const std::string& text) {
        return std::map<std::string, std::string>{{"dk", text}, {"dq", text}, {"dv", text}};
      };
      const std::string of = fmt::format(" of {0}x{0} are ", tile);
      CHECK(texts([&](Index i, Index j) { return has(i, j, tile, true); }) ==
            in_all("partial tiles" + of + "computed whole"));
      if (tile == 16)
        CHECK(texts([&](Index i, Index j) { return in_window(i, j) && has(i, j, tile, false); }) ==
              in_all("full tiles" + of + "left out"));
    }
}

}  // namespace planted_gradients
