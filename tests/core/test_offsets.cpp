// cu_seqlens and other integer arrays: read exactly, or refused with the index at fault.
#include "core/offsets.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

using namespace ejk;

namespace {

std::shared_ptr<const ArraySource> integers(const std::vector<std::int64_t>& values) {
  return make_source(Array::from<std::int64_t>({static_cast<std::int64_t>(values.size())}, values), "cu.npy");
}

}  // namespace

TEST_CASE("cu_seqlens that is none is refused with the index at fault") {
  CHECK(core::read_offsets(*integers({0, 3, 3, 5})) == std::vector<std::int64_t>{0, 3, 3, 5});
  CHECK(core::read_last_offset(*integers({0, 3, 7})) == 7);
  CHECK_THROWS_WITH_AS(core::read_offsets(*integers({1, 3})), "cu.npy: cu_seqlens[0] is 1, not 0", Error);
  CHECK_THROWS_WITH_AS(core::read_offsets(*integers({0, 3, 2})),
                       "cu.npy: cu_seqlens decreases at index 2: 2 after 3", Error);
  CHECK_THROWS_AS(core::read_offsets(*integers({})), Error);
  CHECK_THROWS_AS(core::read_last_offset(*integers({})), Error);
}

TEST_CASE("other ranks and dtypes, and numbers beyond 63 bits, are refused") {
  CHECK_THROWS_AS(core::read_integers(*make_source(Array(DType::int32, {2, 2}), "x"), "ids"), Error);
  CHECK_THROWS_AS(core::read_integers(*make_source(Array(DType::float32, {2}), "x"), "ids"), Error);
  CHECK_THROWS_AS(core::read_integers(*make_source(Array(DType::boolean, {2}), "x"), "ids"), Error);
  const std::vector<std::uint64_t> huge{1, UINT64_MAX};
  CHECK_THROWS_WITH_AS(core::read_integers(*make_source(Array::from<std::uint64_t>({2}, huge), "x"), "ids"),
                       "x: ids[1] is 18446744073709551615, beyond 63 bits", Error);
}

TEST_CASE("offsets that are filled up have their number in the hint") {
  for (const std::vector<std::int64_t>& filled :
       {std::vector<std::int64_t>{0, 5, 9, -1, -1}, std::vector<std::int64_t>{0, 5, 9, 0, 0}}) {
    try {
      core::read_offsets(*integers(filled));
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.message() ==
            fmt::format("cu.npy: cu_seqlens is filled up with {} from index 3 on", filled.back()));
      CHECK(error.hint() == "the offsets are \"cu.npy[:3]\"");
    }
  }
  CHECK_THROWS_WITH_AS(core::read_offsets(*integers({0, 5, -1, 9})),
                       "cu.npy: cu_seqlens decreases at index 2: -1 after 5", Error);
  CHECK_THROWS_WITH_AS(core::read_offsets(*integers({0, 5, -2, -2})),
                       "cu.npy: cu_seqlens decreases at index 2: -2 after 5", Error);
}

TEST_CASE("offsets with padding may begin after 0 where tokens may belong to no sequence") {
  const auto cu = integers({0, 3, 7}), padded = integers({2, 9, 14});
  const auto sequences = core::read_padded_sequences(*cu, *padded, core::FirstOffset::any);
  CHECK(sequences.begins == std::vector<std::int64_t>{2, 9, 14});
  CHECK(sequences.lengths == std::vector<std::int64_t>{3, 4});
  CHECK_THROWS_AS(core::read_padded_sequences(*cu, *padded, core::FirstOffset::zero), Error);
  CHECK_THROWS_AS(core::read_padded_sequences(*cu, *integers({-1, 9, 14}), core::FirstOffset::any), Error);
}
