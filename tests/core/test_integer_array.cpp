// Integer arguments: the same result from every container and type.
#include "ejk/array.hpp"

#include <doctest/doctest.h>

#include "ejk/attention.hpp"
#include "ejk/grouped_matmul.hpp"
#include "ejk/groups.hpp"
#include "ejk/pack.hpp"
#include "ejk/sequence.hpp"

using namespace ejk;

TEST_CASE("group sizes come as vectors, spans and sources") {
  std::vector<std::int32_t> narrow{2, 0, 3};
  const std::vector<std::int64_t> wide{2, 0, 3};
  const auto source = make_source(Array::from<std::int16_t>({3}, std::vector<std::int16_t>{2, 0, 3}));
  const std::vector<std::int64_t> expected{0, 2, 2, 5};
  CHECK(group_offsets(narrow, 5) == expected);
  CHECK(group_offsets(wide, 5) == expected);
  CHECK(group_offsets(std::vector<std::int32_t>{2, 0, 3}, 5) == expected);
  CHECK(group_offsets(std::span(narrow), 5) == expected);
  CHECK(group_offsets(std::span<const std::int64_t>(wide), 5) == expected);
  CHECK(group_offsets(source, 5) == expected);
  CHECK(group_offsets(*source, 5) == expected);
  CHECK_THROWS_AS(group_offsets(narrow, 4), Error);

  const std::vector<float> lhs(5, 2), rhs(3, 4);
  const Array out = grouped_matmul(view_of(lhs.data(), {5, 1}), view_of(rhs.data(), {3, 1, 1}), narrow);
  CHECK(out.elements<float>()[4] == 8);
}

TEST_CASE("cu_seqlens are looked at where they lie, or taken over") {
  std::vector<std::int32_t> cu{0, 2, 5};
  CHECK(prepare_lens(cu).dtype() == DType::int32);
  CHECK(count_sequences(cu).longest == 3);
  IntegerArray looked(cu), taken(std::vector<std::int64_t>{0, 2, 5}), none;
  CHECK_FALSE(none);
  CHECK_THROWS_AS(prepare_lens(none), Error);
  cu[2] = 9;
  CHECK(count_sequences(looked).tokens == 9);
  CHECK(count_sequences(taken).tokens == 5);
  bool attends = true;
  documents_mask(cu).read(1, 2, 2, 3, &attends);  // the last token of a sequence, and the first of the next
  CHECK_FALSE(attends);
  CHECK(bin_pack(std::vector<std::int64_t>{3, 2, 4}, 5).rows == 2);
  AttentionSettings settings;
  settings.layout = AttentionLayout::thd;
  settings.cu_seqlens_q = std::vector<std::int32_t>{0, 2, 5};
  const ArrayType tokens(DType::float32, {5, 1, 2});
  CHECK(AttentionPlan({tokens, tokens, tokens}, settings).work().dense_pairs == 4 + 9);
}
