// Arrays that hold what belongs to others: experts, layers and projections under another name, in checkpoints of
// numbers and of codes.
#include "compare/exchanged_arrays.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <deque>
#include <functional>
#include <map>
#include <random>

#include "ejk/quantize.hpp"
#include "support/arrays.hpp"

using namespace ejk;

namespace {

using Rows = std::vector<std::string>;
using Renamed = std::function<std::string(std::string)>;

// 2 layers of 6 experts with 3 projections, and of an attention with 3.
struct Model {
  std::deque<Array> arrays;
  std::map<std::string, std::size_t> at;

  Model(DType dtype, std::uint64_t seed) {
    std::mt19937_64 engine(seed);
    const auto add = [&](const std::string& name, const Shape& shape) {
      at[name] = arrays.size();
      arrays.push_back(plain::random(dtype, shape, engine));
    };
    for (int layer = 0; layer < 2; ++layer) {
      for (int expert = 0; expert < 6; ++expert)
        for (const char* part : {"gate", "up", "down"})
          add(fmt::format("layers.{}.experts.{}.{}.weight", layer, expert, part), {64, 128});
      for (const char* part : {"q", "k", "v"})
        add(fmt::format("layers.{}.attn.{}.weight", layer, part), {64, 64});
      add(fmt::format("layers.{}.norm.weight", layer), {64});
    }
  }

  ArraySet set(const Renamed& stored, const QuantizeSettings* quantised = nullptr) {
    ArraySet set{"a", true, {}};
    for (const auto& [name, index] : at) {
      Array& array = arrays[this->at.at(stored(name))];
      if (quantised == nullptr || array.shape().size() < 2) {
        set.arrays.push_back({name, name, [&array] { return make_source(array.view()); }});
        continue;
      }
      const auto q = std::make_shared<Quantized>(quantize_array(*make_source(array.view()), *quantised));
      set.arrays.push_back({name, name,
                            [q] {
                              DecodeSettings settings;
                              settings.element = q->settings.element;
                              return decoded_array({q->settings.scheme, make_source(q->values.view()),
                                                    make_source(q->scales.view())},
                                                   settings);
                            },
                            q->settings.element});
    }
    return set;
  }
};

std::string replaced(std::string name, const std::vector<std::pair<std::string, std::string>>& words) {
  for (const auto& [from, to] : words)
    if (const std::size_t at = name.find(from); at != std::string::npos)
      return name.replace(at, from.size(), to);
  return name;
}

Rows rows_of(const FilesComparison& files) {
  Rows rows;
  for (const auto& row : verify::table_of(files.moves, files.pairs).rows)
    rows.push_back(fmt::format("{} {} {}", std::get<std::int64_t>(row[1]), std::get<std::string>(row[0]),
                               std::get<std::string>(row[2])));
  return rows;
}

FilesComparison compared(const ArraySet& actual, const ArraySet& expected) {
  return FilesPlan(actual, expected, {.explain = true}).run({}, std::int64_t{1} << 30);
}

}  // namespace

TEST_CASE("exchanged experts, layers and projections are named with their counts") {
  struct Fault {
    Rows rows;
    std::vector<std::pair<std::string, std::string>>
        words;  // what is stored under a name is that of the other
  };
  const std::vector<Fault> faults{
      {{"6 exchanged layers.1.experts.3.* and layers.1.experts.5.* are exchanged"},
       {{"layers.1.experts.3", "layers.1.experts.5"}, {"layers.1.experts.5", "layers.1.experts.3"}}},
      {{"12 exchanged layers.#.experts.0.* and layers.#.experts.2.* are exchanged"},
       {{"experts.0", "experts.2"}, {"experts.2", "experts.0"}}},
      {{"6 permuted layers.#.experts.1.* holds what belongs to layers.#.experts.2.*",
        "6 permuted layers.#.experts.2.* holds what belongs to layers.#.experts.4.*",
        "6 permuted layers.#.experts.4.* holds what belongs to layers.#.experts.1.*"},
       {{"experts.1", "experts.2"}, {"experts.2", "experts.4"}, {"experts.4", "experts.1"}}},
      {{"3 repeated layers.0.experts.4.* holds what belongs to layers.0.experts.3.*"},
       {{"layers.0.experts.4", "layers.0.experts.3"}}},
      {{"24 exchanged layers.#.experts.#.gate.weight and layers.#.experts.#.up.weight are exchanged"},
       {{"gate", "up"}, {"up", "gate"}}},
      {{"4 exchanged layers.#.attn.k.weight and layers.#.attn.q.weight are exchanged"},
       {{".q.", ".k."}, {".k.", ".q."}}},
      {{"44 exchanged layers.0.* and layers.1.* are exchanged"},
       {{"layers.0", "layers.1"}, {"layers.1", "layers.0"}}}};
  const QuantizeSettings mxfp4{.scheme = QuantizationScheme::mx, .element = ElementFormat::e2m1},
      mxfp8{.scheme = QuantizationScheme::mx, .element = ElementFormat::e4m3};
  for (const std::uint64_t seed : {1U, 2U})
    for (const DType dtype : {DType::float32, DType::bfloat16})
      for (const QuantizeSettings* quantised :
           {static_cast<const QuantizeSettings*>(nullptr), &mxfp4, &mxfp8}) {
        Model model(dtype, seed);
        const ArraySet right = model.set([](std::string name) { return name; });
        for (const Fault& fault : faults) {
          const ArraySet wrong =
              model.set([&](std::string name) { return replaced(std::move(name), fault.words); }, quantised);
          const FilesComparison files = compared(wrong, right);
          CHECK(rows_of(files) == fault.rows);
          for (std::size_t p = 0; p < files.pairs.size(); ++p) {
            CHECK(files.found[p].axes.empty());  // no second explanation
            CHECK(files.found[p].comparison.close ==
                  (replaced(files.pairs[p].name, fault.words) == files.pairs[p].name));
          }
        }
      }
}

TEST_CASE("arrays of another model, arrays that are equal and those that differ in an element are no moves") {
  for (const std::uint64_t seed : {1U, 2U}) {
    Model model(DType::float32, seed), other(DType::float32, seed + 10);
    const auto same = [](std::string name) { return name; };
    CHECK(compared(model.set(same), other.set(same)).moves.empty());
    // Two arrays of EXPECTED that are equal: which of them it is cannot be said.
    Model twice(DType::float32, seed);
    const auto tied = [](std::string name) {
      return replaced(std::move(name), {{"experts.1.", "experts.2."}});
    };
    const auto third = [](std::string name) {
      return replaced(std::move(name), {{"experts.3.", "experts.2."}, {"experts.1.", "experts.2."}});
    };
    CHECK(compared(model.set(third), twice.set(tied)).moves.empty());
    // Nearly that of another.
    const auto moved = [](std::string name) {
      return replaced(std::move(name), {{"0.experts.1.up", "0.experts.2.up"}});
    };
    auto* const numbers =
        reinterpret_cast<float*>(twice.arrays[twice.at.at("layers.0.experts.2.up.weight")].data());
    numbers[77] += 1;
    const FilesComparison files = compared(model.set(moved), twice.set(same));
    CHECK(files.moves.empty());
    CHECK_FALSE(files.close);
  }
}
