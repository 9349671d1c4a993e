// Comparison of array sets: pairs by name, by maps and in the order of layers, links, unsupported types.
#include "ejk/program/compare_files.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "ejk/array_math.hpp"
#include "io/support.hpp"
#include "support/arrays.hpp"

using namespace ejk;

namespace {

ArraySet set_of(const std::string& name, const std::vector<std::pair<std::string, Array*>>& arrays) {
  ArraySet set{name, true, {}};
  for (const auto& [array, of] : arrays)
    set.arrays.push_back(
        {array, fmt::format("{}:{}", name, array), [of = of] { return make_source(of->view()); }});
  return set;
}

std::vector<std::string> names_of(const FilesPlan& plan) {
  std::vector<std::string> names;
  for (const ArrayPair& pair : plan.pairs())
    names.push_back(pair.name + (pair.why.empty() ? "" : " " + pair.why));
  return names;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("arrays of two sets are paired by name, by a map, in bytes' or in natural order") {
  Array x = plain::filled(DType::float32, {3}, 1), y = plain::filled(DType::float32, {3}, 2),
        z = plain::filled(DType::float32, {4}, 1);
  const ArraySet a = set_of("a", {{"l.2", &x}, {"l.10", &x}, {"w", &x}, {"z", &x}});
  const ArraySet e = set_of("e", {{"l.2", &y}, {"l.10", &x}, {"v", &x}, {"z", &z}});
  CHECK(names_of(FilesPlan(a, e)) == Names{"l.10", "l.2", "v only in e", "w only in a", "z"});
  CHECK(names_of(FilesPlan(a, e, {.maps = {NameMap("w*=v*")}, .in_layers = true})) ==
        Names{"l.2", "l.10", "w", "z"});
  const FilesPlan plan(a, e);
  CHECK(plan.bytes() == 4 * 3 * 4);
  std::int64_t last = 0;
  const FilesComparison files = plan.run({}, 0, [&](std::int64_t done, std::int64_t all) {
    CHECK(all == 6);
    CHECK(done > last);
    last = done;
  });
  CHECK_FALSE(files.close);
  CHECK(files.found[0].comparison.close);
  CHECK(files.found[1].comparison.largest_absolute->amount == 1);
  CHECK_FALSE(files.found[4].comparison.same_shape());
  CHECK(FilesPlan(a, a).run().close);
}

TEST_CASE("layers are in the order of a file that has one, or else in natural order of names") {
  Array x = plain::filled(DType::float32, {3}, 1), other = plain::filled(DType::int32, {3}, 1);
  const std::vector<std::pair<std::string, Array*>> forward{{"0.in", &x},  {"0.proj", &x},     {"0.out", &x},
                                                            {"10.in", &x}, {"10.ids", &other}, {"2.in", &x}};
  const auto sorted = [&](const std::vector<DType>& dtypes) {
    auto all = forward;
    std::sort(all.begin(), all.end(), [&](const auto& p, const auto& q) {
      const auto key = [&](const auto& array) {
        return std::pair(std::find(dtypes.begin(), dtypes.end(), array.second->dtype()), array.first);
      };
      return key(p) < key(q);
    });
    return all;
  };
  const auto plan = [](const ArraySet& a, const ArraySet& e) { return FilesPlan(a, e, {.in_layers = true}); };
  const Names as_stored{"0.in", "0.proj", "0.out", "10.in", "10.ids", "2.in"},
      natural{"0.in", "0.out", "0.proj", "2.in", "10.ids", "10.in"};
  const auto by_name = sorted({}), by_dtype = sorted({DType::int32, DType::float32});
  for (const auto& unordered : {by_name, by_dtype}) {
    const FilesPlan none = plan(set_of("a", unordered), set_of("e", unordered));
    CHECK(names_of(none) == natural);
    CHECK(none.run().order_of.empty());
    const FilesPlan of_expected = plan(set_of("a", unordered), set_of("e", forward));
    CHECK(names_of(of_expected) == as_stored);
    CHECK(of_expected.run().order_of == "e");
    const FilesPlan of_actual = plan(set_of("a", forward), set_of("e", unordered));
    CHECK(names_of(of_actual) == as_stored);
    CHECK(of_actual.run().order_of == "a");
  }
}

TEST_CASE("names that become one, maps without a match and one array beside several are errors") {
  Array x = plain::filled(DType::float32, {3}, 1);
  const ArraySet a = set_of("a", {{"p", &x}, {"q", &x}});
  ArraySet one = set_of("one", {{"p", &x}});
  one.is_whole = false;
  const auto error = [&](Error::Kind kind, const ArraySet& e, std::vector<NameMap> maps) {
    return test::error_of(kind, [&] { FilesPlan(a, e, {.maps = std::move(maps)}); });
  };
  CHECK(error(Error::Kind::usage, a, {NameMap("p*=q*")}) == "p and q both become q");
  CHECK(error(Error::Kind::usage, a, {NameMap("z*=q*")}) ==
        "no array of a is called z*\nhint: one is called p");
  CHECK(error(Error::Kind::input, one, {}) ==
        "a holds 2 arrays, and one is one\nhint: name one of them, as in a:p");
}

TEST_CASE("links of one name with other targets are a difference, unless broken ones are followed") {
  Array x = plain::filled(DType::float32, {3}, 1);
  ArraySet a = set_of("a", {{"x", &x}}), e = a;
  a.links = {{"soft", {"x", "x"}}, {"out", {"f:/y", "/1/f:/y", true}}, {"here", {"x", "x"}}};
  e.links = {{"soft", {"y", "y"}}, {"out", {"f:/y", "/2/f:/y", true}}, {"there", {"x", "x"}}};
  CHECK(names_of(FilesPlan(a, e)) == Names{"x", "out not followed: a link to /1/f:/y against one to /2/f:/y",
                                           "soft a link to x against one to y"});
  CHECK(FilesPlan(a, e, {.follow_links = true}).pairs().size() == 2);
  CHECK_FALSE(FilesPlan(a, e).run().close);
}

TEST_CASE("an array of a type that is not supported is not compared, and all else that fails is an error") {
  Array x = plain::filled(DType::float32, {3}, 1);
  const auto plan_with = [&](Error::Code code) {
    ArraySet a = set_of("a", {{"x", &x}});
    a.arrays[0].open = [code]() -> std::shared_ptr<const ArraySource> {
      throw Error(Error::Kind::input, "x: why", code);
    };
    return FilesPlan(a, set_of("e", {{"x", &x}}));
  };
  CHECK(names_of(plan_with(Error::Code::unsupported)) == Names{"x not compared: x: why"});
  CHECK_THROWS_AS(plan_with(Error::Code::other), Error);
}

namespace {

// Numbers in bfloat16, quantised; `change` is a fault of what is stored, or of how it is decoded.
using Change = std::function<void(Quantized&, DecodeSettings&)>;

FilesComparison quantised_beside_original(const QuantizeSettings& settings, const Change& change,
                                          bool explain, const Tolerance& tolerance = {},
                                          std::uint64_t seed = 5) {
  std::mt19937_64 engine(seed);
  const Array x = plain::random(DType::bfloat16, {256, 512}, engine);
  Quantized q = quantize_array(*make_source(x.view()), settings);
  DecodeSettings decode;
  if (q.settings.scheme == QuantizationScheme::mx && q.values.dtype() == DType::uint8)
    decode.element = q.settings.element;
  if (change) change(q, decode);
  Array global = plain::filled(DType::float32, {}, q.global_scale.value_or(1));
  auto decoded = decoded_array({q.settings.scheme, make_source(q.values.view()), make_source(q.scales.view()),
                                make_source(global.view())},
                               decode);
  ArraySet a{"q", true, {{"w", "q:w", [decoded] { return decoded; }, q.settings.element}}};
  ArraySet e{"o", true, {{"w", "o:w", [&] { return make_source(x.view()); }}}};
  ExplainOptions options;
  options.tolerance = tolerance;
  return FilesPlan(a, e, {.explain = explain}).run(options, std::int64_t{1} << 30);
}

void swap_nibbles(Quantized&, DecodeSettings& decode) { decode.nibbles = NibbleOrder::high; }
void other_layout(Quantized& q, DecodeSettings&) {
  q.scales =
      convert_scale_layout(*make_source(q.scales.view()), ScaleLayout::linear, ScaleLayout::tiles_128x4);
}
// The scales of the next or the last row, or block.
Change shifted_scales(std::int64_t rows, std::int64_t columns) {
  return [=](Quantized& q, DecodeSettings&) {
    const Array old = Array::copy_of(q.scales.view());
    const std::int64_t width = old.shape()[1], height = old.shape()[0], size = size_of(old.dtype());
    for (std::int64_t r = 0; r < height; ++r)
      for (std::int64_t c = 0; c < width; ++c) {
        const std::int64_t from = (r + rows + height) % height * width + (c + columns + width) % width;
        std::copy_n(old.data() + from * size, size, q.scales.data() + (r * width + c) * size);
      }
  };
}
void twice_in_some_blocks(Quantized& q, DecodeSettings&) {
  for (std::int64_t i = 0; i < q.scales.size(); i += 3)
    q.scales.data()[i] = static_cast<std::byte>(static_cast<int>(q.scales.data()[i]) + 1);
}

}  // namespace

TEST_CASE(
    "scales that are used as their reciprocals, or not, and halves of blocks are named beside the originals") {
  const Change reciprocal = [](Quantized& q, DecodeSettings&) {
    if (q.scales.dtype() == DType::float32)
      for (float& scale : q.scales.elements<float>()) scale = 1 / scale;
    else
      for (std::int64_t i = 0; i < q.scales.size(); ++i)
        q.scales.data()[i] = static_cast<std::byte>(254 - static_cast<int>(q.scales.data()[i]));
  };
  const Change left_out = [](Quantized& q, DecodeSettings&) {
    if (q.scales.dtype() == DType::float32)
      for (float& scale : q.scales.elements<float>()) scale = 1;
    else
      std::fill_n(q.scales.data(), q.scales.size(), std::byte{127});
  };
  const Change split = [](Quantized&, DecodeSettings& decode) { decode.nibbles = NibbleOrder::split; };
  const QuantizeSettings tensor{.scheme = QuantizationScheme::fp8},
      rows{.scheme = QuantizationScheme::fp8, .block = ScaleBlock{1, 512}},
      blocks{.scheme = QuantizationScheme::fp8, .block = ScaleBlock{128, 128}},
      mxfp8{.scheme = QuantizationScheme::mx, .element = ElementFormat::e4m3},
      mxfp4{.scheme = QuantizationScheme::mx, .element = ElementFormat::e2m1};
  struct Fault {
    const char *kind, *text;
    QuantizeSettings settings;
    Change change;
  };
  std::vector<Fault> faults{{"nibbles", "bytes with neighbours along axis 1", mxfp4, split}};
  for (const QuantizeSettings& settings : {tensor, rows, blocks, mxfp8}) {
    faults.push_back({"misused-scales", "reciprocal", settings, reciprocal});
    faults.push_back({"misused-scales", "left out", settings, left_out});
  }
  for (const std::uint64_t seed : {1U, 2U})
    for (const Fault& fault : faults) {
      const FilesComparison found = quantised_beside_original(fault.settings, fault.change, true, {}, seed);
      CHECK_FALSE(found.close);
      REQUIRE(found.found[0].explanations.size() == 1);
      CHECK(found.found[0].explanations[0].kind == fault.kind);
      CHECK(test::contains(found.found[0].explanations[0].text, fault.text));
      CHECK(found.found[0].share_explained > 0.95);
    }
}

TEST_CASE(
    "of a decoded array that is compared exactly explanations hold within the rounding of its elements") {
  for (const std::uint64_t seed : {1U, 2U}) {
    std::mt19937_64 engine(seed);
    const Array x = plain::random(DType::float32, {64, 256}, engine);
    const Quantized q = quantize_array(*make_source(x.view()),
                                       {.scheme = QuantizationScheme::mx, .element = ElementFormat::e2m1});
    const auto decoded = [&](NibbleOrder nibbles) {
      DecodeSettings settings;
      settings.element = ElementFormat::e2m1, settings.nibbles = nibbles;
      return decoded_array({q.settings.scheme, make_source(q.values.view()), make_source(q.scales.view())},
                           settings);
    };
    for (const NibbleOrder nibbles : {NibbleOrder::low, NibbleOrder::split}) {
      const ArraySet a{"q", false, {{"w", "q", [&] { return decoded(nibbles); }}}},
          e{"o", false, {{"w", "o", [&] { return make_source(x.view()); }}}};
      const FilesPlan plan(a, e, {.explain = true});
      FilesComparison files = plan.run({}, std::int64_t{1} << 30);
      Explained& found = files.found[0];
      CHECK(found.explanations.empty());
      const std::int64_t differing = found.comparison.differing;
      explain_decoded(plan.pairs()[0], ElementFormat::e2m1, {}, std::int64_t{1} << 30, found);
      CHECK(found.comparison.differing == differing);
      REQUIRE(found.explanations.size() == 1);
      CHECK(found.explanations[0].text ==
            (nibbles == NibbleOrder::low
                 ? "rounded to e2m1 with scales"
                 : "bytes with neighbours along axis 1 were read as elements j and j + 16 of "
                   "blocks of 32, within the rounding of e2m1"));
      CHECK(found.share_explained > 0.95);
    }
  }
}

TEST_CASE("scales of other blocks are named") {
  const QuantizeSettings mx{.scheme = QuantizationScheme::mx, .element = ElementFormat::e2m1},
      nvfp4{.scheme = QuantizationScheme::nvfp4},
      fp8{.scheme = QuantizationScheme::fp8, .block = ScaleBlock{1, 128}};
  for (const QuantizeSettings& settings : {nvfp4, fp8, mx})
    for (const auto& [rows, columns] : {std::pair{1, 0}, {-1, 0}, {0, 1}, {0, -1}, {100, 3}}) {
      CAPTURE(name_of(settings.scheme));
      const FilesComparison found = quantised_beside_original(settings, shifted_scales(rows, columns), true);
      CHECK_FALSE(found.close);
      REQUIRE(found.found[0].explanations.size() == 1);
      CHECK(found.found[0].explanations[0].kind == "scales");
      CHECK(found.found[0].share_explained > 0.95);
    }
}

TEST_CASE("decoded numbers are close to their originals, and what is wrong with them is named") {
  using enum ElementFormat;
  const auto mx = [](ElementFormat element) {
    return QuantizeSettings{.scheme = QuantizationScheme::mx, .element = element};
  };
  const QuantizeSettings nvfp4{.scheme = QuantizationScheme::nvfp4},
      fp8{.scheme = QuantizationScheme::fp8, .block = ScaleBlock{128, 128}};
  for (const QuantizeSettings& settings : {nvfp4, fp8, mx(e2m1), mx(e4m3), mx(e5m2), mx(e2m3), mx(e3m2)}) {
    CAPTURE(name_of(settings.scheme));
    CAPTURE(name_of(settings.element.value_or(e2m1)));
    const FilesComparison right = quantised_beside_original(settings, {}, true);
    CHECK(right.close);
    CHECK(right.found[0].explanations.empty());
    CHECK_FALSE(quantised_beside_original(settings, {}, false, {.rtol = 1e-3}).close);
  }
  struct Fault {
    const char* kind;
    QuantizeSettings settings;
    Change change;
  };
  for (const Fault& fault :
       {Fault{"nibbles", nvfp4, swap_nibbles}, Fault{"nibbles", mx(e2m1), swap_nibbles},
        Fault{"scale-layout", nvfp4, other_layout}, Fault{"scale-step", mx(e2m1), twice_in_some_blocks},
        Fault{"scale-step", mx(e4m3), twice_in_some_blocks},
        Fault{"factor", nvfp4, [](Quantized&q, DecodeSettings&) { *q.global_scale *= 2; }},
        Fault{"factor", nvfp4, [](Quantized&q, DecodeSettings&) { *q.global_scale *= 0.5F; }},
        Fault{"factor", nvfp4, [](Quantized&q, DecodeSettings&) { *q.global_scale *= 1.75F; }},
        Fault{"factor", nvfp4,
              [](Quantized&q, DecodeSettings&) { *q.global_scale = 1 / *q.global_scale; }}}) {
    CAPTURE(fault.kind);
    CAPTURE(name_of(fault.settings.scheme));
    const FilesComparison found = quantised_beside_original(fault.settings, fault.change, true);
    CHECK_FALSE(found.close);
    REQUIRE(found.found[0].explanations.size() == 1);
    CHECK(found.found[0].explanations[0].kind == fault.kind);
    CHECK(found.found[0].share_explained > 0.95);
    CHECK_FALSE(quantised_beside_original(fault.settings, fault.change, false).close);
  }
}
