// Plans of MaskInfo: sizes known before an element is read equal those of the result.
#include "blocks/plan.hpp"

#include <doctest/doctest.h>

#include <map>
#include <string>

#include "ejk/mask_info.hpp"
#include "support/counted_source.hpp"
#include "support/random_mask.hpp"
#include "support/random_mask_info.hpp"

using namespace ejk;
using blocks::InfoPlan;

namespace {

std::map<std::string, ArrayType> planned(const InfoPlan& plan) {
  std::map<std::string, ArrayType> arrays;
  for (const auto& [name, type] : plan.arrays()) arrays.emplace(name, type);
  return arrays;
}

std::map<std::string, ArrayType> made(const MaskInfo& info) {
  std::map<std::string, ArrayType> arrays;
  for (const auto& named : stored_arrays(info).arrays) arrays.emplace(named.first, type_of(*named.second));
  return arrays;
}

// Whether an array is of the planned type, or of a smaller one.
bool fits(const ArrayType& array, const ArrayType& plan) {
  if (size_of(array.dtype) > size_of(plan.dtype) || array.shape.size() != plan.shape.size()) return false;
  for (std::size_t axis = 0; axis < array.shape.size(); ++axis)
    if (array.shape[axis] > plan.shape[axis]) return false;
  return true;
}

// A source that must not be read.
class Unread final : public ArraySource {
 public:
  explicit Unread(Shape shape) : ArraySource({DType::boolean, std::move(shape)}, "unread") {}
  void read(std::span<const std::int64_t>, std::span<const std::int64_t>, void*) const override {
    FAIL("a plan reads no element");
  }
};

InfoPlan plan_of(std::vector<Mask> heads, BlockShape block, const MaskInfoSettings& settings = {}) {
  return blocks::checked(std::move(heads), block, Direction::forward, MaskInfoKind::fixed, settings);
}

}  // namespace

TEST_CASE("the arrays of random masks are those planned, or smaller where the plan says at most") {
  plain::Random random(20);
  for (int round = 0; round < 600; ++round) {
    MaskInfoSettings settings;
    settings.head_shards = plain::between(random, 1, 3);
    settings.q_seq_shards = plain::between(random, 1, 3);
    settings.shrink_grid = plain::between(random, 0, 1) == 1;
    settings.downcast = plain::between(random, 0, 3) != 0;
    settings.computable = plain::between(random, 0, 3) != 0;
    settings.pad = plain::between(random, 0, 1) == 1;
    const BlockShape block{plain::between(random, 1, 9), plain::between(random, 1, 9)};
    std::int64_t q = block.q * settings.q_seq_shards * plain::between(random, 1, 8),
                 kv = block.kv * plain::between(random, 1, 20);
    if (settings.pad) {
      q -= plain::between(random, 0, block.q - 1);
      kv -= plain::between(random, 0, block.kv - 1);
    }
    // A few masks over several heads, so that some shards hold a single one.
    std::vector<Mask> some, heads;
    for (std::int64_t n = plain::between(random, 1, 3); n > 0; --n)
      some.push_back(plain::random_mask(random, q, kv, plain::between(random, 0, 1) == 0 ? 0 : 2).mask);
    for (std::int64_t n = settings.head_shards * plain::between(random, 1, 3); n > 0; --n)
      heads.push_back(some[static_cast<std::size_t>(
          plain::between(random, 0, static_cast<std::int64_t>(some.size()) - 1))]);
    const auto direction = plain::between(random, 0, 1) == 0 ? Direction::forward : Direction::dkv;
    const auto kind = plain::between(random, 0, 2) == 0 ? MaskInfoKind::dynamic : MaskInfoKind::fixed;
    CAPTURE(round);

    const InfoPlan plan = blocks::checked(heads, block, direction, kind, settings);
    const auto expected = planned(plan);
    ProcessMaskOptions how;
    static_cast<MaskInfoSettings&>(how) = settings;
    const MaskInfo info = plain::processed(heads, block, {direction, kind, how});
    const auto found = made(info);
    std::int64_t index_bytes = 0;
    for (const auto& row : found) {
      const auto& name = row.first;
      const auto& type = row.second;
      CAPTURE(name);
      REQUIRE(expected.count(name) == 1);
      const ArrayType& most = expected.at(name);
      CAPTURE(to_string(type));
      CAPTURE(to_string(most));
      CHECK(fits(type, most));
      // These depend on nothing that is found on the way.
      if (kind == MaskInfoKind::dynamic || name == "q_sequence" || name == "is_dynamic_mask")
        CHECK(to_string(type) == to_string(most));
      if (name != "partial_mask_blocks") index_bytes += type.bytes();
    }
    CHECK(index_bytes <= plan.work_bytes());
    for (const auto& row : expected) {
      const auto& name = row.first;
      CAPTURE(name);
      if (found.count(name) == 1) continue;
      CHECK((name == "mask_next" || name == "partial_mask_blocks"));
      CHECK(kind == MaskInfoKind::fixed);
      CHECK(info.distinct_partial_blocks == 0);
    }
  }
}

TEST_CASE("where nothing is shared or shrunk the arrays are exactly those planned") {
  // 200 blocks, each with a False of its own.
  Array dense(DType::boolean, {20, 20 * 10});
  const auto elements = dense.elements<bool>();
  std::fill(elements.begin(), elements.end(), true);
  for (std::size_t b = 0; b < 200; ++b) {
    const std::size_t row = b / 20 * 2, column = b % 20 * 10;
    for (std::size_t bit = 0; bit < 8; ++bit) elements[row * 200 + column + bit] = (b + 1) >> bit & 1;
  }
  const Mask mask = array_mask(make_source(dense.view()));
  for (const Direction direction : {Direction::forward, Direction::dkv}) {
    const auto expected = planned(blocks::checked({mask}, {2, 10}, direction, MaskInfoKind::fixed, {})),
               found = made(plain::processed({mask}, {2, 10}, {direction, MaskInfoKind::fixed, {}}));
    CHECK(expected.size() == found.size());
    for (const auto& row : expected) {
      const auto& name = row.first;
      const auto& type = row.second;
      CAPTURE(name);
      REQUIRE(found.count(name) == 1);
      CHECK(to_string(found.at(name)) == to_string(type));
    }
  }
}

TEST_CASE("a plan reads no element") {
  const auto array = std::make_shared<Unread>(Shape{4, 64, 64});
  std::vector<Mask> heads;
  for (std::int64_t h = 0; h < 4; ++h) heads.push_back(array_mask(slice_of(array, h)));
  for (const auto kind : {MaskInfoKind::fixed, MaskInfoKind::dynamic}) {
    const InfoPlan plan = blocks::checked(heads, {16, 16}, Direction::forward, kind, {});
    CHECK(planned(plan).at("data_next").shape == Shape{4, 4, 4});
    CHECK(plan.work_bytes() > 0);
  }
}

TEST_CASE("heads that are known to be equal share a row for each head shard") {
  MaskInfoSettings settings;
  settings.head_shards = 2;
  const Mask causal = causal_mask(64, 64), full = full_mask(64, 64);
  CHECK(planned(plan_of({causal, causal, full, full}, {16, 16}, settings)).at("data_next").shape ==
        Shape{2, 4, 4});
  CHECK(planned(plan_of({causal, full, full, causal}, {16, 16}, settings)).at("data_next").shape ==
        Shape{4, 4, 4});
  // Equal ones of which that is found only by reading count as different.
  CHECK(planned(plan_of({~causal, ~causal, full, full}, {16, 16}, settings)).at("data_next").shape[0] == 4);
}

TEST_CASE("different heads are told apart with few reads, equal ones wherever they are") {
  constexpr std::int64_t kHeads = 40, kLength = 64;
  for (const bool composed : {false, true})
    for (const std::int64_t differs_at : {std::int64_t{0}, kLength - 1}) {
      std::vector<std::shared_ptr<plain::CountedSource>> sources;
      std::vector<Array> arrays;
      for (std::int64_t h = 0; h < kHeads; ++h) {
        Array& array = arrays.emplace_back(DType::boolean, Shape{kLength, kLength});
        // Heads h and h + 30 are equal.
        array.elements<bool>()[static_cast<std::size_t>(differs_at * kLength + h % 30)] = true;
      }
      std::vector<Mask> heads;
      for (const Array& array : arrays) {
        sources.push_back(std::make_shared<plain::CountedSource>(array, ArrayAccess::Order::any));
        const Mask mask = array_mask(sources.back());
        heads.push_back(composed ? ~(mask | causal_mask(kLength, kLength)) : mask);
      }
      heads.push_back(heads[3]);
      const blocks::DistinctMasks found = blocks::distinct_masks(heads, single_process());
      // With ~(mask | causal) elements may be equal where the masks are not.
      CHECK(found.masks.size() == 30);
      for (std::int64_t h = 0; h <= kHeads; ++h)
        CHECK(found.of_head[static_cast<std::size_t>(h)] == (h == kHeads ? 3 : h % 30));
      std::int64_t read = 0;
      for (const auto& source : sources) read += source->elements;
      CHECK(read <= 2 * kHeads * kLength * kLength);
    }
}

TEST_CASE("what is known to be empty takes no memory, and little time") {
  constexpr std::int64_t kTokens = std::int64_t{1} << 20, kSide = kTokens / 64;  // 2^28 blocks
  std::vector<std::int64_t> offsets, ids;
  for (std::int64_t at = 0; at <= kTokens; at += 16) offsets.push_back(at);
  for (std::int64_t at = 0; at < kTokens; ++at) ids.push_back(at / 16);
  const Mask documents = documents_mask(offsets), segments = segments_mask(ids, ids);
  const Mask causal = causal_mask(kTokens, kTokens), local = local_mask(kTokens, kTokens, 100, 0);
  for (const Mask& mask :
       {documents, segments, local, causal & documents, documents | local, ~causal & segments})
    for (const Direction direction : {Direction::forward, Direction::dkv}) {
      CAPTURE(mask.text());
      const InfoPlan plan = blocks::checked({mask}, {64, 64}, direction, MaskInfoKind::fixed, {});
      const auto working = blocks::scan_bytes(kTokens, kTokens, {64, 64}, blocks::Patterns::kept,
                                              blocks::Reading::any_order);  // on all threads that there are
      CHECK(plan.work_bytes() - *working < kSide * 1000);
      const MaskInfo info = plain::processed({mask}, {64, 64}, {direction, MaskInfoKind::fixed, {}});
      CHECK(std::ssize(info.summaries[0].states->stored()) <= 3 * kSide);
      CHECK(info.summaries[0].empty_blocks >= kSide * (kSide - 3));
      CHECK(info.block_mask.size() <= 3 * kSide);
      describe(info);
    }
}

TEST_CASE("a plan refuses what cannot be, and counts what no memory holds") {
  MaskInfoSettings settings;
  settings.pad = true;
  CHECK_THROWS_AS(plan_of({}, {1, 1}), Error);
  CHECK_THROWS_AS(plan_of({full_mask(8, 8)}, {INT64_MAX / 2, 1}, settings), Error);
  CHECK_THROWS_AS(plan_of({full_mask(8, 8)}, {3, 8}), Error);
  // A large block is counted as what threads work in.
  CHECK(plan_of({full_mask(32768, 32768)}, {32768, 32768}).work_bytes() > 32768 / 8 * 32768);
  // 2^42 blocks have no 32-bit numbers within one shard; 2^30 in each of 2^12 query shards have.
  for (const std::int64_t shards : {1, 4096}) {
    settings.q_seq_shards = shards;
    try {
      blocks::checked({full_mask(1 << 21, 1 << 21)}, {1, 1}, Direction::forward, MaskInfoKind::dynamic,
                      settings);
      CHECK(shards == 4096);
    } catch (const Error& e) {
      CHECK(shards == 1);
      CHECK(e.message() == "a shard has more blocks than 32-bit indices can name");
    }
  }
}
