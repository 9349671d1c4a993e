// check mask-info of other libraries' layouts: one number of valid arrays is changed; plain loops, as the
// library's kernels run them, determine whether anything else is computed.
#include <fmt/format.h>

#include <map>
#include <set>
#include <string>

#include "check/artefacts.hpp"
#include "ejk/mask_layouts.hpp"
#include "ejk/program/text.hpp"
#include "support/failure.hpp"
#include "support/plain_layouts.hpp"

using namespace ejk;
using namespace artefacts;

namespace {

MaskInfoClaims claims_of(const plain::PlainCase& c) {
  MaskInfoClaims claims;
  for (const plain::Pair& head : c.heads) claims.masks.push_back(head.mask);
  return claims;
}

bool is_setting(const std::string& name) {
  const std::string settings =
      " block shape BLOCK_SIZE block_size seq_lengths dkv causal M N R C cu_seqlens_q cu_seqlens_k q_seq_shards "
      "kv_seq_shards ";
  return settings.find(" " + name + " ") != std::string::npos;
}

// Whether it is where the query blocks of a sequence begin, which is fixed by the sequences before.
bool is_row_of_another(const plain::PlainCase& c, const std::string& array, std::size_t n) {
  return array == "cu_total_m_blocks" && n + 1 < c.cu_q.size() && c.cu_q[n] < c.cu_q[n + 1];
}

plain::PlainCase random_packed_case(Random& random) {
  for (;;)
    if (plain::PlainCase c = plain::random_case(random, MaskLayout::fa4); !c.cu_q.empty()) return c;
}

}  // namespace

TEST_CASE("a changed number is an error exactly where a kernel computes something else") {
  Random random{9};
  std::int64_t with_effect = 0, without = 0;
  std::map<std::string, Answers> of_form;
  for (const MaskLayout layout : plain::kLoopedLayouts)
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
      const bool has_effect = plain::computed(c, arrays) != right || is_row_of_another(c, at->first, n);
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
    // The elements determine the direction where the flag does not.
    if (between(random, 0, 1)) REQUIRE(arrays.erase(flex ? "dq_kv_order_spt" : "spt") == 1);
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

TEST_CASE("lists of flex without one of their arrays are an error, those of columns too") {
  MaskInfoClaims claims;
  claims.masks = {causal_mask(12, 12)};
  const plain::StoredArrays all = plain::stored(make_mask_arrays(
      claims.masks, {4, 4}, {.layout = MaskLayout::flex, .dq_write_order = WriteOrder::ascending}));
  for (const char* name :
       {"kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "q_num_blocks", "q_indices",
        "full_q_num_blocks", "full_q_indices", "dq_write_order", "dq_write_order_full"}) {
    CAPTURE(name);
    plain::StoredArrays arrays = all;
    REQUIRE(arrays.erase(name) == 1);
    const Findings found = check_mask_info(plain::group_of(arrays), claims);
    CHECK(found.errors() > 0);
    CHECK_MESSAGE(text_of(found).find(name) != std::string::npos, text_of(found));
  }
  plain::StoredArrays rows = all;
  for (const char* name : {"q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices",
                           "dq_write_order", "dq_write_order_full"})
    rows.erase(name);
  CHECK(check_mask_info(plain::group_of(rows), claims).errors() == 0);
}

TEST_CASE("lists of flex of one direction that have another block are found without a mask and with it") {
  Random random{11};
  const Mask mask = causal_mask(24, 32, 8) & ~prefix_mask(24, 32, 3);
  for (const std::int64_t heads : {1, 2})
    for (const bool with_mask : {false, true}) {
      CAPTURE(heads);
      CAPTURE(with_mask);
      std::vector<Mask> masks{mask};
      if (heads == 2) masks.push_back(causal_mask(24, 32, 8));
      const plain::StoredArrays all =
          plain::stored(make_mask_arrays(masks, {4, 4}, {.layout = MaskLayout::flex}));
      MaskInfoClaims claims;
      if (with_mask) claims.masks = masks;
      if (with_mask && heads == 1) claims.masks.resize(4, mask);  // one mask for four heads
      REQUIRE(check_mask_info(plain::group_of(all), claims).errors() == 0);
      for (const auto& entry : all) {
        const std::string& name = entry.first;
        const plain::Stored& stored = entry.second;
        if (name.find("kv_") == std::string::npos && name.find("q_") == std::string::npos) continue;
        if (name == "seq_lengths") continue;
        for (std::size_t n = 0; n < stored.values.size(); ++n)
          for (const int by : {-1, 1}) {
            plain::StoredArrays arrays = all;
            arrays.at(name).values[n] += by;
            CAPTURE(name);
            CAPTURE(n);
            CAPTURE(by);
            const auto rows = plain::listed_blocks(arrays, false),
                       columns = plain::listed_blocks(arrays, true);
            const Findings found = check_mask_info(plain::group_of(arrays), claims);
            if (found.count("range") + found.count("twice") > 0) continue;
            CHECK_MESSAGE((found.errors() > 0) == (rows != columns), text_of(found));
            std::set<Shape> wrong;  // head, query block, key block that are not the same in both
            for (const auto& [a, b] : {std::pair(&rows, &columns), std::pair(&columns, &rows)})
              for (const auto& block : *a)
                if (!b->contains(block)) wrong.insert({block[0], block[2], block[3]});
            CHECK(found.count("directions") == std::ssize(wrong));
            if (wrong.empty()) continue;
            const Shape& first = *wrong.begin();
            const std::int64_t of_head = with_mask && heads == 1 ? 4 * first[0] : first[0];
            CHECK_MESSAGE(text_of(found).find(fmt::format("block (0, {}, {}, {}) of (batch, head, q block, "
                                                          "kv block) is ",
                                                          of_head, first[1], first[2])) != std::string::npos,
                          text_of(found));
          }
      }
    }
  plain::StoredArrays arrays = plain::stored(make_mask_arrays({mask}, {4, 4}, {.layout = MaskLayout::flex}));
  arrays.at("q_num_blocks").values[3] += 1;
  CHECK(text_of(check_mask_info(plain::group_of(arrays))).find("directions: q_indices(0, 0, 3, ") == 0);
  CHECK(text_of(check_mask_info(plain::group_of(arrays))).find(", and in q_indices\n") != std::string::npos);
}

TEST_CASE("a forward list of Tokamax computes a block of state 0 whole, a backward one skips it") {
  for (const Direction direction : {Direction::forward, Direction::dkv}) {
    MaskLayoutSettings settings{.layout = MaskLayout::tokamax, .direction = direction, .computable = false};
    const Mask mask = causal_mask(8, 8);
    plain::StoredArrays arrays = plain::stored(make_mask_arrays({mask}, {4, 4}, settings));
    plain::Stored& states = arrays.at("block_mask");
    REQUIRE(states.values.size() == 3);
    states.values[0] = 0;  // block (0, 0), which is partial
    MaskInfoClaims claims;
    claims.masks = {mask};
    const Findings found = check_mask_info(plain::group_of(arrays), claims);
    const bool is_forward = direction == Direction::forward;
    CHECK_MESSAGE(found.count(is_forward ? "outside" : "missing") == 1, text_of(found));
    CHECK(check_mask_info(plain::group_of(arrays)).count("assumed") == (is_forward ? 1 : 0));
    StoredSettings stored;
    if (!is_forward) stored.direction = direction;
    const StoredMaskInfo info(plain::group_of(arrays), stored);
    const std::vector<std::uint8_t> elements = plain::elements_of(info.mask({1, 8, 8}, 0));
    for (std::size_t q = 0; q < 4; ++q)
      for (std::size_t k = 0; k < 4; ++k) CHECK(elements[q * 8 + k] == is_forward);
  }
}

TEST_CASE("packed sequences without the elements of their partial blocks: these are taken to be right") {
  Random random{12};
  Answers right;
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    const plain::PlainCase c = random_packed_case(random);
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

TEST_CASE("rows of a packed sequence that are those of another are found without a mask") {
  Random random{13};
  Answers shifted;
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    const plain::PlainCase c = random_packed_case(random);
    plain::StoredArrays arrays = plain::stored(plain::arrays_of(c));
    const Findings sound = check_mask_info(plain::group_of(arrays));
    REQUIRE_MESSAGE(sound.errors() == 0, text_of(sound));
    std::vector<std::int64_t>& first = arrays.at("cu_total_m_blocks").values;
    const auto n = static_cast<std::size_t>(between(random, 0, std::ssize(first) - 1));
    first[n] += between(random, 0, 1) ? 1 : -1;
    const Findings found = check_mask_info(plain::group_of(arrays));
    const bool is_wrong = is_row_of_another(c, "cu_total_m_blocks", n);
    CHECK_MESSAGE((found.errors() > 0) == is_wrong, text_of(found));
    shifted.add(found.count("order") > 0);
  }
  CHECK(shifted.yes > 20);
}

TEST_CASE("a wrong block of any size is one finding, with all of its pairs") {
  Random random{14};
  std::int64_t all = 0, large = 0;
  for (int round = 0; round < 60; ++round) {
    CAPTURE(round);
    const Numbers q_sizes = random_sizes(random, between(random, 1, 8), 150),
                  kv_sizes = random_sizes(random, between(random, 1, 8), 150);
    const std::int64_t q = offsets_of(q_sizes).back(), kv = offsets_of(kv_sizes).back();
    if (q == 0 || kv == 0) continue;
    const Mask mask = plain::random_mask(random, q, kv, 1).mask;
    const MaskArrays made = make_mask_arrays(
        {mask}, {1, 1},
        {.layout = MaskLayout::flashinfer_variable, .q_sizes = q_sizes, .kv_sizes = kv_sizes});
    plain::StoredArrays arrays = plain::stored(made);
    std::vector<std::int64_t>& cells = arrays.at("block_mask_map").values;
    for (int n = 0; n < 3; ++n)
      cells[static_cast<std::size_t>(between(random, 0, std::ssize(cells) - 1))] ^= 1;

    // By hand: the pairs of each block that are only in one of the two.
    const std::vector<std::uint8_t> wanted = plain::elements_of(mask);
    std::map<Shape, std::pair<std::int64_t, std::int64_t>> wrong;  // missing, too many
    const Numbers q_ends = offsets_of(q_sizes), kv_ends = offsets_of(kv_sizes);
    for (std::size_t i = 0; i < q_sizes.size(); ++i)
      for (std::size_t j = 0; j < kv_sizes.size(); ++j)
        for (std::int64_t row = q_ends[i]; row < q_ends[i + 1]; ++row)
          for (std::int64_t key = kv_ends[j]; key < kv_ends[j + 1]; ++key) {
            const bool is = cells[i * kv_sizes.size() + j] != 0,
                       should = wanted[static_cast<std::size_t>(row * kv + key)] != 0;
            if (is == should) continue;
            auto& [missing, outside] = wrong[{0, static_cast<std::int64_t>(i), static_cast<std::int64_t>(j)}];
            ++(should ? missing : outside);
          }

    MaskInfoClaims claims;
    claims.masks = {mask};
    CheckOptions options;
    options.most_findings = 1000;
    const Findings found = check_mask_info(plain::group_of(arrays), claims, options);
    CHECK_MESSAGE(found.errors() == std::ssize(wrong), text_of(found));
    std::map<Shape, std::int64_t> listed;
    for (const Findings::Kept& kept : found.kept()) {
      const Finding& finding = kept.finding;
      CHECK(finding.array == "block_mask_map");
      ++listed[finding.index];
      const auto [missing, outside] = wrong[finding.index];
      const std::int64_t pairs = missing > 0 ? missing : outside;
      CAPTURE(finding.message);
      CHECK(kept.rule.name == (missing > 0 ? "missing" : "outside"));
      CHECK(finding.message.find("block " + to_string(finding.index) + (missing > 0 ? " lacks " : " has ") +
                                 format_count(pairs) + " pair") != std::string::npos);
      large += pairs > 64 * 64;
    }
    CHECK(listed.size() == wrong.size());
    all += std::ssize(wrong);
  }
  CHECK(all > 100);
  CHECK(large > 5);
}

TEST_CASE("FlashAttention-4 takes its own arrays of one direction, and flex's of both") {
  const auto check = [](const MaskLayoutSettings& settings, Direction asked) {
    MaskInfoClaims claims;
    claims.kernel = Fa4Kernel{.direction = asked};
    return check_mask_info(plain::group_of(make_mask_arrays({causal_mask(256, 256)}, {128, 128}, settings)),
                           claims);
  };
  MaskLayoutSettings columns{.layout = MaskLayout::fa4};
  columns.direction = Direction::dkv;
  for (const Direction asked : {Direction::forward, Direction::dkv}) {
    CHECK(check({.layout = MaskLayout::flex}, asked).errors() == 0);
    CHECK(check(columns, asked).errors() == 0);
    const Findings of_rows = check({.layout = MaskLayout::fa4}, asked);
    CHECK(of_rows.count("runs-on") == (asked == Direction::dkv));
    if (asked == Direction::dkv) CHECK(of_rows.kept().front().finding.array == "dkv");
    for (const MaskLayout other : plain::kLoopedLayouts)
      if (other != MaskLayout::fa4 && other != MaskLayout::flex)
        CHECK(plain::failure([&] { check({.layout = other}, asked); }, Error::Kind::usage) ==
              "m.npz: FlashAttention-4 takes blocks in the layouts fa4 and flex, not " +
                  std::string(name_of(other)));
  }
  const MaskInfo jax = process_mask({full_mask(8, 8)}, {4, 4});
  MaskInfoClaims claims;
  claims.kernel = Fa4Kernel{};
  CHECK(plain::failure([&] { check_mask_info(stored_arrays(jax), claims); }, Error::Kind::usage)
            .find("takes blocks in the layouts fa4 and flex, not jax") != std::string::npos);
}
