// Missing or out-of-range arguments are Error{usage}, not memory errors.
#include "core/require.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/pieces.hpp"
#include "ejk/ejk.hpp"
#include "ejk/program/attention_ranks.hpp"

using namespace ejk;

namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

using Cases = std::vector<std::pair<const char*, std::function<void()>>>;

void check_all(const Cases& cases, Error::Kind kind) {
  for (const auto& one : cases) {
    CAPTURE(one.first);
    try {
      one.second();
      FAIL_CHECK("no error");
    } catch (const Error& error) {
      CHECK(static_cast<int>(error.kind()) == static_cast<int>(kind));
      CHECK(!error.message().empty());
    }
  }
}

std::shared_ptr<const ArraySource> zeros(DType dtype, Shape shape) {
  return make_source(Array(dtype, std::move(shape)), "x");
}

struct Forwarding final : ForwardingSource {
  explicit Forwarding(std::shared_ptr<const ArraySource> inner) : ForwardingSource(std::move(inner)) {}
  void read(std::span<const std::int64_t>, std::span<const std::int64_t>, void*) const override {}
};

}  // namespace

TEST_CASE("a missing array is said to be missing") {
  const std::shared_ptr<const ArraySource> none;
  const auto some = zeros(DType::boolean, {2, 2});
  check_all({{"slice_of", [&] { slice_of(none, 0); }},
             {"array_mask", [&] { array_mask(none); }},
             {"array_mask, polarity", [&] { array_mask(none, Polarity::drop); }},
             {"blocks_mask",
              [&] {
                blocks_mask(none, {2, 2}, 2, 2, Polarity::keep);
              }},
             {"head_masks", [&] { head_masks(none); }},
             {"process_dynamic_mask",
              [&] {
                process_dynamic_mask(none, {2, 2});
              }},
             {"mask_to_segment_ids", [&] { mask_to_segment_ids(none); }},
             {"pack", [&] { pack(none, *some); }},
             {"unpack", [&] { unpack(none, *some); }},
             {"reorder_sequence", [&] { reorder_sequence(none, 2, 0, Reorder::to_ring); }},
             {"chunk_array", [&] { chunk_array(none, 2, 0); }},
             {"unchunk_array", [&] { unchunk_array(none, 2, 0); }},
             {"safe_divide", [&] { safe_divide(zeros(DType::float32, {2}), none); }},
             {"convert_array", [&] { convert_array(none, DType::int8); }},
             {"a source made from it", [&] { Forwarding{none}; }},
             {"write_array",
              [&] {
                write_array(parse_reference("never.npy"), {"x", none});
              }}},
            Error::Kind::usage);
}

TEST_CASE("slices, heads and shapes that are not there") {
  const OpenArray nothing;
  const MaskExpression causal = MaskExpression::parse("causal");
  const auto masks = [&] {
    std::vector<HeadMasks> parts;
    parts.push_back(head_masks(std::vector<Mask>{causal_mask(4, 4)}));
    return parts;
  };
  const MaskInfo info = process_mask({local_mask(4, 4, 1, 1) & causal_mask(4, 4)}, {2, 2});
  const StoredMaskInfo stored(stored_arrays(info));
  check_all({{"slice behind the last",
              [&] {
                slice_of(zeros(DType::boolean, {2, 2}), 2);
              }},
             {"slice before the first",
              [&] {
                slice_of(zeros(DType::boolean, {2, 2}), -1);
              }},
             {"slice of a scalar", [&] { slice_of(zeros(DType::boolean, {}), 0); }},
             {"slice of none",
              [&] {
                slice_of(zeros(DType::boolean, {0, 2}), 0);
              }},
             {"resolve without a shape", [&] { (void)causal.resolve({}, 0, Polarity::keep, nothing); }},
             {"resolve of two axes",
              [&] {
                (void)causal.resolve({1, 4}, 0, Polarity::keep, nothing);
              }},
             {"resolve of head 2",
              [&] {
                (void)causal.resolve({2, 4, 4}, 2, Polarity::keep, nothing);
              }},
             {"resolve of head -1",
              [&] {
                (void)causal.resolve({2, 4, 4}, -1, Polarity::keep, nothing);
              }},
             {"a MaskInfo's head 1 of 1",
              [&] {
                (void)stored.mask({1, 4, 4}, 1);
              }},
             {"a MaskInfo's head -1",
              [&] {
                (void)stored.visited({1, 4, 4}, -1);
              }},
             {"a MaskInfo of two axes",
              [&] {
                (void)stored.mask({4, 4}, 0);
              }},
             {"settings without axes", [&] { StoredMaskInfo(stored_arrays(info), {.shape = Shape{}}); }},
             {"a set of one axis", [&] { MaskSet(masks(), MaskSet::Given{{4}}); }},
             {"a set of no axes", [&] { MaskSet(masks(), MaskSet::Given{{}}); }}},
            Error::Kind::usage);
  CHECK(stored.mask({1, 4, 4}, 0).q_length() == 4);
}

TEST_CASE("slices that no text can say are refused as those of texts are") {
  const auto path = std::filesystem::temp_directory_path() / "ejk_test_require.npy";
  write_array(parse_reference(path.string()), {"x", zeros(DType::int32, {2, 3})});
  const auto open = [&](std::vector<SliceItem> slice) {
    ArrayReference reference = parse_reference(path.string());
    reference.slice = std::move(slice);
    (void)open_array(reference);
  };
  SliceItem all, ellipsis;
  all.kind = SliceItem::Kind::range;
  ellipsis.kind = SliceItem::Kind::ellipsis;
  const auto steps = [&](std::int64_t step) {
    SliceItem item = all;
    item.step = step;
    return item;
  };
  check_all({{"step 0", [&] { open({steps(0)}); }},
             {"step -1", [&] { open({steps(-1)}); }},
             {"two ellipses",
              [&] {
                open({ellipsis, all, ellipsis});
              }}},
            Error::Kind::usage);
  CHECK_NOTHROW(open({ellipsis, all}));
  std::filesystem::remove(path);
}

TEST_CASE("levels of compression that zlib does not have") {
  const auto path = std::filesystem::temp_directory_path() / "ejk_test_require";
  for (const char* suffix : {".npz", ".h5"})
    for (const int level : {-1, 10, 99}) {
      CAPTURE(level);
      const ArrayReference target = parse_reference(path.string() + suffix);
      WriteOptions options;
      options.compression = level;
      check_all({{suffix,
                  [&] {
                    write_array(target, {"x", zeros(DType::int8, {4})}, options);
                  }}},
                Error::Kind::usage);
      CHECK(!std::filesystem::exists(target.path));
    }
}

TEST_CASE("work is shared among one at least") {
  const auto type = [](Shape shape) { return ArrayType(DType::float32, std::move(shape)); };
  const std::vector<std::int64_t> sizes{3, 3};
  const GroupedMatmulPlan product(type({6, 4}), type({2, 4, 4}), sizes, GroupedMatmulSettings{});
  AttentionTypes types;
  types.q = types.k = types.v = type({1, 4, 1, 4});
  const AttentionPlan attention(types, {});
  const std::vector<double> costs{1, 2};
  for (const std::int64_t members : {0, -1}) {
    CAPTURE(members);
    check_all({{"even_runs", [&] { core::even_runs(costs, members); }},
               {"products", [&] { (void)product.divide(members); }},
               {"attention", [&] { AttentionDivision(attention, members); }}},
              Error::Kind::usage);
  }
  const AttentionDivision division(attention, 3);
  check_all({{"share of member 5", [&] { (void)division.share(5); }},
             {"parts of member 3", [&] { (void)division.parts(3); }},
             {"parts of member -1", [&] { (void)division.parts(-1); }}},
            Error::Kind::usage);
}

TEST_CASE("estimates of memory stay estimates, however long the arrays") {
  const ArrayType ids(DType::int64, {kMost / 8}), mask(DType::boolean, {2, kMost / 4});
  for (const std::int64_t bytes :
       {sequence_work_bytes(ids), pack_bytes(ids), group_metadata_bytes(kMost), bin_pack_bytes(kMost),
        segment_mask_bytes(ids, ids), segment_ids_bytes(mask)})
    CHECK(bytes > std::int64_t{1} << 59);
  CHECK(check_mask_bytes(kMost, kMost, {1, 1}) > std::int64_t{1} << 50);
  CHECK(sequence_work_bytes(ArrayType(DType::int32, {3})) == 3 * 64);
  CHECK(group_metadata_bytes(5) == 5 * 48);
}

TEST_CASE("a message whose length is untrue is too short") {
  for (const std::int64_t length : {std::int64_t{-1}, std::int64_t{2}, std::int64_t{1} << 40, kMost}) {
    RankMessage message;
    message.put(length).put(std::int64_t{7});
    RankMessage received(Bytes(message.bytes().begin(), message.bytes().end()));
    check_all({{"take_all", [&] { received.take_all<std::int64_t>(); }}}, Error::Kind::internal);
  }
}

TEST_CASE("an error that was moved from has a reason, an empty one") {
  Error first(Error::Kind::input, "why");
  first.at("name");
  const Error second = std::move(first);
  CHECK(second.why() == "why");
  CHECK(std::string(first.why()).size() <= 3);  // NOLINT(bugprone-use-after-move): that is what is looked at
}
