// check mask-info of other libraries' layouts: one number of valid arrays is changed; plain loops, as the
// library's kernels run them, determine whether anything else is computed.
#include <map>
#include <string>

#include "check/artefacts.hpp"
#include "ejk/mask_layouts.hpp"
#include "support/failure.hpp"
#include "support/plain_layouts.hpp"

using namespace ejk;
using namespace artefacts;

namespace {

MaskInfoClaims claims_of(const plain::PlainCase& c) {
  MaskInfoClaims claims;
  for (const plain::Pair& head : c.heads) claims.masks.push_back(head.mask);
  claims.settings.q_seq_shards = c.settings.q_seq_shards;
  claims.settings.kv_seq_shards = c.settings.kv_seq_shards;
  return claims;
}

bool is_setting(const std::string& name) {
  const std::string settings =
      " block shape BLOCK_SIZE block_size seq_lengths dkv causal M N R C cu_seqlens_q cu_seqlens_k ";
  return settings.find(" " + name + " ") != std::string::npos;
}

}  // namespace

TEST_CASE("a changed number is an error exactly where a kernel computes something else") {
  Random random{9};
  std::int64_t with_effect = 0, without = 0;
  std::map<std::string, Answers> of_form;
  for (const MaskLayout layout : kMaskLayouts)
    for (int round = 0; round < 600; ++round) {
      CAPTURE(name_of(layout));
      CAPTURE(round);
      const plain::PlainCase c = plain::random_case(random, layout);
      const MaskArrays made = plain::arrays_of(c);
      if (made.differing > 0) continue;
      plain::StoredArrays arrays = plain::stored(made);
      const MaskInfoClaims claims = claims_of(c);
      const plain::Computed right = plain::computed(c, arrays);
      const Findings sound = check_mask_info(plain::group_of(arrays), claims);
      REQUIRE_MESSAGE(sound.errors() + sound.warnings() == 0, text_of(sound));

      auto at = arrays.begin();
      std::advance(at, between(random, 0, std::ssize(arrays) - 1));
      plain::Stored& array = at->second;
      if (is_setting(at->first) || array.values.empty()) continue;
      const auto n = static_cast<std::size_t>(between(random, 0, std::ssize(array.values) - 1));
      const std::int64_t old = array.values[n];
      if (array.dtype == DType::boolean || at->first == "partial_mask_blocks") {
        array.values[n] = 1 - old;
      } else if (array.dtype == DType::uint8) {
        array.values[n] = old ^ (std::int64_t{1} << between(random, 0, 7));
      } else {
        array.dtype = DType::int64;
        const std::int64_t far[] = {INT64_MIN, INT64_MAX, -1};
        array.values[n] = between(random, 0, 9) == 0
                              ? far[between(random, 0, 2)]
                              : old + (between(random, 0, 1) ? 1 : -1) * between(random, 1, 2);
      }
      CAPTURE(at->first);
      CAPTURE(n);
      CAPTURE(old);
      CAPTURE(array.values[n]);
      CAPTURE(c.heads.front().mask.text());
      const bool has_effect = plain::computed(c, arrays) != right;
      const Findings found = check_mask_info(plain::group_of(arrays), claims);
      CHECK_MESSAGE((found.errors() > 0) == has_effect, text_of(found));
      ++(has_effect ? with_effect : without);
      of_form[std::string(name_of(layout)) + (c.settings.dynamic ? " dynamic" : "") +
              (c.cu_q.empty() ? "" : " packed")]
          .add(has_effect);
    }
  for (const char* form : {"tokamax dynamic", "fa4 packed"}) {
    CHECK(of_form[form].yes > 20);
    CHECK(of_form[form].no > 5);
  }
  CHECK(of_form["flashinfer-variable"].yes > 50);
  CHECK(with_effect > 1000);
  CHECK(without > 50);
}

TEST_CASE("a changed order of writes to dQ is an error exactly below the counts") {
  Random random{10};
  Answers right;
  for (int round = 0; round < 400; ++round) {
    CAPTURE(round);
    const bool flex = between(random, 0, 1) == 1;
    MaskLayoutSettings settings{.layout = flex ? MaskLayout::flex : MaskLayout::fa4};
    if (!flex) settings.direction = Direction::dkv;
    settings.dq_write_order = between(random, 0, 1) ? WriteOrder::ascending : WriteOrder::descending;
    const std::int64_t q = 4 * between(random, 1, 6), kv = 4 * between(random, 1, 6);
    const Mask mask = plain::random_mask(random, q, kv, 1).mask;
    plain::StoredArrays arrays = plain::stored(make_mask_arrays({mask}, {4, 4}, settings));
    MaskInfoClaims claims;
    claims.masks = {mask};
    const Findings sound = check_mask_info(plain::group_of(arrays), claims);
    REQUIRE_MESSAGE(sound.errors() == 0, text_of(sound));
    const bool full = between(random, 0, 1) == 1;
    std::vector<std::int64_t>& order = arrays.at(full ? "dq_write_order_full" : "dq_write_order").values;
    const std::string count = flex   ? full ? "full_q_num_blocks" : "q_num_blocks"
                              : full ? "full_block_cnt"
                                     : "mask_block_cnt";
    const auto n = static_cast<std::size_t>(between(random, 0, std::ssize(order) - 1));
    order[n] += between(random, 0, 1) ? 1 : -1;
    const auto width = static_cast<std::size_t>(q / 4);
    const bool is_read = static_cast<std::int64_t>(n % width) < arrays.at(count).values[n / width];
    right.add(is_read);
    const Findings found = check_mask_info(plain::group_of(arrays), claims);
    CHECK_MESSAGE((found.count("write-order") > 0) == is_read, text_of(found));
    CHECK((found.errors() > 0) == is_read);
  }
  CHECK(right.yes > 50);
  CHECK(right.no > 50);
}

TEST_CASE("packed sequences without the elements of their partial blocks: these are taken to be right") {
  Random random{12};
  Answers right;
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    plain::PlainCase c;
    do c = plain::random_case(random, MaskLayout::fa4);
    while (c.cu_q.empty());
    const MaskArrays made = plain::arrays_of(c);
    if (made.differing > 0) continue;
    plain::StoredArrays arrays = plain::stored(made);
    arrays.erase("partial_mask_blocks"), arrays.erase("partial_block_ids");
    const MaskInfoClaims claims = claims_of(c);
    const Findings sound = check_mask_info(plain::group_of(arrays), claims);
    CHECK_MESSAGE(sound.errors() == 0, text_of(sound));
    std::vector<std::int64_t>& counts =
        arrays.at(between(random, 0, 1) ? "full_block_cnt" : "mask_block_cnt").values;
    const auto n = static_cast<std::size_t>(between(random, 0, std::ssize(counts) - 1));
    if (counts[n] == 0) continue;
    --counts[n];  // a block is missing, which has a pair
    const Findings found = check_mask_info(plain::group_of(arrays), claims);
    CHECK_MESSAGE(found.count("missing") > 0, text_of(found));
    right.add(true);
  }
  CHECK(right.yes > 30);
}
