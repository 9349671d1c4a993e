// MaskInfo with one number changed: exactly the changes that alter the result of a kernel are errors, and the
// finding has the wrong index and its correct value.
#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "check/artefacts.hpp"
#include "ejk/check.hpp"
#include "support/random_mask_info.hpp"

using namespace ejk;

namespace {

using artefacts::text_of;
using plain::between;
using plain::Random;

using Integers = std::vector<std::int64_t>;

// The arrays of a MaskInfo as numbers, and what is known of them.
struct Artefact {
  plain::Example of;
  Shape grid, patterns_shape;
  std::map<std::string, Integers> arrays;
  std::map<std::string, std::string> attributes;
  bool is_dynamic = false;

  std::int64_t heads() const { return std::ssize(of.heads); }

  ArrayGroup group() const {
    ArrayGroup group{"info.h5", {}, attributes};
    for (const auto& [name, values] : arrays) {
      const bool truth = name == "partial_mask_blocks" || name == "is_dynamic_mask";
      const Shape shape = name == "partial_mask_blocks" ? patterns_shape
                          : name == "is_dynamic_mask"   ? Shape{}
                          : name == "q_sequence"        ? Shape{std::ssize(values)}
                                                        : grid;
      Array array(truth ? DType::boolean : DType::int32, shape);
      for (std::size_t i = 0; i < values.size(); ++i)
        if (truth)
          array.elements<bool>()[i] = values[i] != 0;
        else
          array.elements<std::int32_t>()[i] = static_cast<std::int32_t>(values[i]);
      group.arrays.emplace(name, make_source(std::move(array), name));
    }
    return group;
  }
};

Artefact artefact_of(const plain::Example& e) {
  const MaskInfo info = plain::info_of(e);
  Artefact a{e, info.block_mask.shape(), {}, {}, stored_arrays(info).attributes, info.is_dynamic_mask};
  if (info.partial_mask_blocks) a.patterns_shape = info.partial_mask_blocks->shape();
  for (const auto& [name, source] : stored_arrays(info).arrays) {
    const Array all = read_all(*source);
    Integers& values = a.arrays[name];
    dispatch(all.dtype(), [&]<class T>(std::type_identity<T>) {
      if constexpr (std::is_integral_v<T>)
        for (const T v : all.elements<T>()) values.push_back(static_cast<std::int64_t>(v));
    });
  }
  return a;
}

// What a kernel computes: for each head the pairs of whole blocks, and the positions that it computes
// elements by. Nothing where it would read what is not there, or count a block twice.
std::optional<Integers> meaning(const Artefact& a) {
  const plain::Example& e = a.of;
  const bool forward = e.setting.direction == Direction::forward;
  const std::int64_t rows = a.grid[0], height = a.grid[1], width = a.grid[2];
  const std::int64_t hs = e.setting.how.head_shards, qs = e.setting.how.q_seq_shards;
  const std::int64_t q_blocks = (e.q + e.block.q - 1) / e.block.q,
                     kv_blocks = (e.kv + e.block.kv - 1) / e.block.kv;
  const std::int64_t per_shard = q_blocks / qs, lines = height / qs;
  const std::int64_t all_kv = kv_blocks * e.block.kv, block_size = e.block.q * e.block.kv;
  const bool computable = a.arrays.contains("q_sequence");
  if (a.arrays.at("is_dynamic_mask")[0] != a.is_dynamic) return std::nullopt;
  Integers result;
  for (std::int64_t h = 0; h < a.heads(); ++h) {
    const std::int64_t r = h / (a.heads() / rows), shard = h / (a.heads() / hs);
    Integers computed(static_cast<std::size_t>(q_blocks * kv_blocks * block_size));
    std::set<std::pair<std::int64_t, std::int64_t>> visited;
    for (std::int64_t i = 0; i < height; ++i)
      for (std::int64_t p = 0; p < width; ++p) {
        const auto at = static_cast<std::size_t>((r * height + i) * width + p);
        const std::int64_t state = a.arrays.at("block_mask")[at], data = a.arrays.at("data_next")[at];
        const std::int64_t t = i / lines;
        if (state < 0 || state > 2) return std::nullopt;
        if (data < 0 || data >= (forward ? kv_blocks : per_shard)) return std::nullopt;
        std::int64_t pattern = 0;
        if (a.arrays.contains("mask_next")) {
          pattern = a.arrays.at("mask_next")[at];
          const std::int64_t limit =
              a.is_dynamic ? a.heads() / hs * per_shard * kv_blocks : a.patterns_shape[0];
          if (pattern < 0 || pattern >= limit) return std::nullopt;
        }
        if (state == 0) continue;
        const std::int64_t qb = forward ? i : t * per_shard + data, kb = forward ? data : p;
        if (!visited.insert({qb, kb}).second) return std::nullopt;
        if (a.is_dynamic)
          pattern = ((shard * (a.heads() / hs) + pattern / (per_shard * kv_blocks)) * q_blocks +
                     t * per_shard + pattern / kv_blocks % per_shard) *
                        kv_blocks +
                    pattern % kv_blocks;
        for (std::int64_t x = 0; x < e.block.q; ++x)
          for (std::int64_t y = 0; y < e.block.kv; ++y) {
            const std::int64_t q = qb * e.block.q + x, k = kb * e.block.kv + y;
            std::int64_t& pair = computed[static_cast<std::size_t>(q * all_kv + k)];
            if (state == 2)
              pair = 1;
            else if (computable)
              pair = e.heads[static_cast<std::size_t>(h)].elements[static_cast<std::size_t>(q * e.kv + k)];
            else if (!a.arrays.contains("partial_mask_blocks"))
              return std::nullopt;
            else
              pair = a.arrays.at("partial_mask_blocks")[static_cast<std::size_t>(
                  pattern * block_size + (forward ? x * e.block.kv + y : y * e.block.q + x))];
          }
      }
    result.insert(result.end(), computed.begin(), computed.end());
  }
  if (computable)
    result.insert(result.end(), a.arrays.at("q_sequence").begin(), a.arrays.at("q_sequence").end());
  return result;
}

std::vector<Mask> masks_of(const plain::Example& e) {
  std::vector<Mask> masks;
  for (const plain::Pair& head : e.heads) masks.push_back(head.mask);
  return masks;
}

plain::Example random_computable(Random& random) {
  plain::Example e = plain::random_example(random);
  e.setting.kind = MaskInfoKind::fixed;
  e.setting.how.pad = false;
  e.setting.how.computable = true;
  e.q = (e.q + e.block.q - 1) / e.block.q * e.block.q;
  e.kv = (e.kv + e.block.kv - 1) / e.block.kv * e.block.kv;
  plain::Pair one{full_mask(e.q, e.kv), {}};
  while (!one.mask.is_computable()) one = plain::random_mask(random, e.q, e.kv, 0);
  for (plain::Pair& head : e.heads) head = one;
  return e;
}

}  // namespace

TEST_CASE("what process_mask makes is right in every setting, by itself and against its masks") {
  Random random(5);
  for (int n = 0; n < 1000; ++n) {
    CAPTURE(n);
    const Artefact a = artefact_of(n % 6 == 0 ? random_computable(random) : plain::random_example(random));
    const ArrayGroup group = a.group();
    const bool is_stored = group.find("q_sequence") == nullptr;  // else a kernel computes elements
    CHECK(text_of(check_mask_info(group)).find("dtype") == std::string::npos);
    const Findings found = check_mask_info(group, {.masks = masks_of(a.of)});
    REQUIRE_MESSAGE(found.errors() == 0, text_of(found));
    REQUIRE_MESSAGE(found.warnings() == found.count("assumed"), text_of(found));
    if (is_stored) CHECK(found.count("assumed") == 0);
  }
}

TEST_CASE("one number that is changed is an error if and only if it alters what a kernel computes") {
  Random random(6);
  int altered = 0, harmless = 0, named = 0, said = 0;
  for (int n = 0; n < 3000; ++n) {
    CAPTURE(n);
    Artefact a = artefact_of(n % 8 == 0 ? random_computable(random) : plain::random_example(random));
    const std::optional<Integers> before = meaning(a);
    REQUIRE(before);
    std::vector<std::string> names;
    for (const auto& [name, values] : a.arrays)
      if (name != "is_dynamic_mask" || n % 50 == 0) names.push_back(name);
    const std::string& name = names[static_cast<std::size_t>(between(random, 0, std::ssize(names) - 1))];
    Integers& values = a.arrays[name];
    const auto at = static_cast<std::size_t>(between(random, 0, std::ssize(values) - 1));
    const std::int64_t was = values[at];
    if (name == "partial_mask_blocks" || name == "is_dynamic_mask")
      values[at] ^= 1;
    else
      while (values[at] == was)
        values[at] = between(random, 0, 3) == 0
                         ? values[static_cast<std::size_t>(between(random, 0, std::ssize(values) - 1))]
                     : between(random, 0, 9) == 0 ? between(random, -200, 200)
                                                  : was + between(random, -2, 2);
    const bool alters = meaning(a) != before;
    const Findings found = check_mask_info(a.group(), {.masks = masks_of(a.of)});
    CAPTURE(name);
    CAPTURE(at);
    CAPTURE(was);
    REQUIRE_MESSAGE((found.errors() > 0) == alters, text_of(found));
    ++(alters ? altered : harmless);
    if (!alters || name == "is_dynamic_mask") continue;
    // It is named, and what it was.
    const Shape shape = name == "partial_mask_blocks" ? a.patterns_shape
                        : name == "q_sequence"        ? Shape{std::ssize(values)}
                                                      : a.grid;
    Shape index(shape.size());
    auto rest = static_cast<std::int64_t>(at);
    for (std::size_t d = shape.size(); d-- > 0; rest /= shape[d]) index[d] = rest % shape[d];
    const auto kept = found.kept();
    const auto is_it = [&](const Findings::Kept& k) {
      return k.finding.array == name && k.finding.index == index;
    };
    named += std::any_of(kept.begin(), kept.end(), is_it);
    said += std::any_of(kept.begin(), kept.end(), [&](const Findings::Kept& k) {
      return is_it(k) && (k.finding.message.find("should be " + std::to_string(was)) != std::string::npos ||
                          name == "q_sequence");
    });
  }
  CHECK(harmless > 200);
  // A block that is visited twice, or a number that is out of range: there may be several ways to be right.
  CHECK(named > altered * 97 / 100);
  CHECK(said > altered * 3 / 4);
}

TEST_CASE("of two steps for one block the one is named that should have had another") {
  // Rows of a window have two or three blocks of eight, so that the grid is shrunk.
  const std::vector<Mask> masks{local_mask(64, 64, 10, 10)};
  ProcessMaskOptions how;
  how.computable = false;
  const MaskInfo info = process_mask(masks, {8, 8}, how);
  const ArrayGroup right = stored_arrays(info);
  const Array data = read_all(*right.find("data_next")), states = read_all(*right.find("block_mask"));
  const std::int64_t width = data.shape()[2];
  REQUIRE(width < 8);
  const auto number = [](const Array& array, std::int64_t i, std::int64_t p) {
    return static_cast<std::int64_t>(
        array.elements<std::int8_t>()[static_cast<std::size_t>(i * array.shape()[2] + p)]);
  };
  for (std::int64_t i = 1; i < 7; ++i)
    for (std::int64_t p = 0; p < width; ++p)
      for (std::int64_t other = 0; other < width; ++other) {
        if (other == p || number(states, i, p) == 0 || number(states, i, other) == 0) continue;
        CAPTURE(i);
        CAPTURE(p);
        CAPTURE(other);
        Array changed = Array::copy_of(data.view());
        changed.elements<std::int8_t>()[static_cast<std::size_t>(i * width + p)] =
            static_cast<std::int8_t>(number(data, i, other));
        ArrayGroup wrong = right;
        wrong.arrays["data_next"] = make_source(changed.view(), "data_next");
        const Findings found = check_mask_info(wrong, {.masks = masks});
        REQUIRE(found.errors() > 0);
        for (const auto& [rule, finding] : found.kept()) {
          CAPTURE(text_of(found));
          if (finding.array == "data_next" && rule.severity == Severity::error)
            CHECK(finding.index == Shape{0, i, p});
        }
      }
}

TEST_CASE("a dynamic mask's partial block that holds one value alone is told by its state") {
  // Two heads of 8 x 12 in blocks of 4: (0, 0, 1) is all True, (1, 1, 2) all False, the others are neither.
  Array elements(DType::boolean, {2, 8, 12});
  for (std::int64_t e = 0; e < elements.size(); ++e) {
    const std::int64_t head = e / 96, q = e / 12 % 8, k = e % 12;
    const bool full = head == 0 && q < 4 && k / 4 == 1, empty = head == 1 && q >= 4 && k >= 8;
    elements.elements<bool>()[static_cast<std::size_t>(e)] = full || (!empty && (q + k) % 2 == 0);
  }
  for (const Direction direction : {Direction::forward, Direction::dkv}) {
    CAPTURE(static_cast<int>(direction));
    const auto source = make_source(elements.view(), "mask");
    MaskInfo info = direction == Direction::forward ? process_dynamic_mask(source, {4, 4})
                                                    : process_dynamic_mask_dkv(source, {4, 4});
    const std::vector<Mask> masks = info.masks;
    CHECK(text_of(check_mask_info(stored_arrays(info), {.masks = masks})) == "");
    const auto entry = [&](Array& array, std::size_t at) -> std::int8_t& {
      return array.elements<std::int8_t>()[at];
    };
    entry(info.block_mask, 1) = 1;
    entry(info.mask_next.value(), 1) = 1;
    // An empty block is not visited: of dkv data_next counts queries.
    entry(info.block_mask, 11) = 1;
    entry(info.mask_next.value(), 11) = 11;
    entry(info.data_next, 11) = direction == Direction::forward ? 2 : 1;
    const Findings found = check_mask_info(stored_arrays(info), {.masks = masks});
    CHECK(text_of(found) ==
          "decided: block_mask(0, 0, 1): block (0, 1) is all True: that is full (2)\n"
          "decided: block_mask(1, 1, 2): block (1, 2) is all False: that is empty (0)\n");
    CHECK(found.errors() == 0);

    // With positions instead of mask_next its partial blocks have no elements to look at.
    ArrayGroup computable = stored_arrays(info);
    computable.arrays.erase("mask_next");
    computable.arrays["q_sequence"] = make_source(
        Array::from<std::int32_t>({8}, std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7}), "q_sequence");
    CHECK(text_of(check_mask_info(computable, {.masks = masks})).find("decided") == std::string::npos);
  }
}

TEST_CASE("a block beyond the lengths that is not the mask's is said once") {
  // 10 queries and keys in blocks of 4: the last block is partial in any mask.
  const std::vector<Mask> masks{causal_mask(10, 10)};
  ProcessMaskOptions how;
  how.computable = false, how.pad = true;
  const MaskInfo info = process_mask(masks, {4, 4}, how);  // the group is of its arrays
  const ArrayGroup right = stored_arrays(info);
  ArrayGroup wrong = right;
  Array states = read_all(*right.find("block_mask"));
  states.elements<std::int8_t>()[2] = 2;  // block (0, 2), which is empty
  Array data = read_all(*right.find("data_next"));
  data.elements<std::int8_t>()[2] = 2;
  wrong.arrays["block_mask"] = make_source(states.view(), "block_mask");
  wrong.arrays["data_next"] = make_source(data.view(), "data_next");
  CHECK(check_mask_info(wrong).count("padding") == 1);
  const Findings found = check_mask_info(wrong, {.masks = masks});
  CAPTURE(text_of(found));
  CHECK(found.count("outside") == 1);
  CHECK(found.count("padding") == 0);
}

TEST_CASE("a check of a MaskInfo without a mask sees what is wrong by itself") {
  Random random(7);
  for (int n = 0; n < 300; ++n) {
    const Artefact a = artefact_of(plain::random_example(random));
    const Findings found = check_mask_info(a.group());
    REQUIRE_MESSAGE(found.errors() + found.warnings() == 0, text_of(found));
  }
}

TEST_CASE("a MaskInfo of another mask is told apart from it block by block") {
  Random random(8);
  for (int n = 0; n < 400; ++n) {
    CAPTURE(n);
    const Artefact a = artefact_of(plain::random_example(random));
    plain::Example other = a.of;
    const auto h = static_cast<std::size_t>(between(random, 0, a.heads() - 1));
    other.heads[h] = plain::random_mask(random, other.q, other.kv, 2);
    std::int64_t wrong = 0;
    const std::int64_t columns = (other.kv + other.block.kv - 1) / other.block.kv;
    std::set<std::int64_t> blocks;
    for (std::int64_t q = 0; q < other.q; ++q)
      for (std::int64_t k = 0; k < other.kv; ++k) {
        const auto e = static_cast<std::size_t>(q * other.kv + k);
        if (other.heads[h].elements[e] != a.of.heads[h].elements[e])
          blocks.insert(q / other.block.q * columns + k / other.block.kv);
      }
    wrong = std::ssize(blocks);
    const Findings found = check_mask_info(a.group(), {.masks = masks_of(other)});
    REQUIRE_MESSAGE(found.count("missing") + found.count("outside") == wrong, text_of(found));
    REQUIRE(found.errors() == wrong);
  }
}
