// The scan of a mask: the same bytes on any number of threads, on every path.
#include "blocks/scan.hpp"

#include <doctest/doctest.h>

#include "blocks/plan.hpp"
#include "support/arrays.hpp"
#include "support/random_mask.hpp"
#include "support/threads.hpp"

using namespace ejk;

namespace {

using plain::same_bytes;

bool same_info(const MaskInfo& a, const MaskInfo& b) {
  return same_bytes(a.data_next, b.data_next) && same_bytes(a.block_mask, b.block_mask) &&
         a.mask_next.has_value() == b.mask_next.has_value() &&
         (!a.mask_next || same_bytes(*a.mask_next, *b.mask_next)) &&
         (a.partial_mask_blocks == nullptr) == (b.partial_mask_blocks == nullptr) &&
         (!a.partial_mask_blocks ||
          same_bytes(read_all(*a.partial_mask_blocks), read_all(*b.partial_mask_blocks)));
}

}  // namespace

TEST_CASE("1, 2 and 7 threads give the same bytes") {
  // Large enough for several tasks: the scan hands out two million elements at a time.
  const std::int64_t n = 6000;
  Array dense(DType::boolean, {n, n});
  plain::Random random(4);
  for (std::int64_t i = 0; i < 4000;
       ++i) {  // stripes and specks: empty, full, equal and unequal partial blocks
    const std::int64_t q = plain::between(random, 0, n - 1), k = plain::between(random, 0, n - 1);
    std::fill_n(dense.elements<bool>().begin() + q / 64 * 64 * n + k, std::min<std::int64_t>(300, n - k),
                true);
  }
  const Mask stored = array_mask(make_source(dense.view()));
  const Mask masks[] = {stored, stored & causal_mask(n, n), ~stored | chunked_mask(n, n, 777)};
  ProcessMaskOptions options;
  options.pad = true;
  for (const Mask& m : masks)
    for (const BlockShape block : {BlockShape{64, 128}, BlockShape{100, 37}}) {
      const Threads one(1);
      const MaskInfo forward = process_mask({m, causal_mask(n, n)}, block, options);
      const MaskInfo dkv = process_mask_dkv({m}, block, options);
      for (const int threads : {2, 7}) {
        const Threads several(threads);
        CHECK(same_info(forward, process_mask({m, causal_mask(n, n)}, block, options)));
        CHECK(same_info(dkv, process_mask_dkv({m}, block, options)));
      }
    }
}

TEST_CASE("an error in any thread comes out as it is") {
  Array bias(DType::float32, {3000, 3000});
  bias.elements<float>()[2999 * 3000 + 7] = 0.5f;
  const Mask m = array_mask(make_source(bias.view(), "bias"), Polarity::additive);
  for (const int threads : {1, 7}) {
    const Threads several(threads);
    CHECK_THROWS_WITH_AS(
        process_mask({m}, {100, 100}),
        "bias: element [2999, 7] is 0.5: an additive mask holds 0 (attend) and -1e4 or less (hide)", Error);
  }
}

TEST_CASE("patterns beyond the budget stop the scan") {
  plain::Random random(6);
  std::vector<std::uint8_t> elements(1024 * 1024);
  for (auto& e : elements) e = random() % 2;
  ProcessMaskOptions options;
  options.max_pattern_bytes = 10 * 64 * 8;
  const Mask m = array_mask(make_source(plain::array_of(1024, 1024, elements)));
  try {
    process_mask({m}, {64, 64}, options);
    FAIL("no error");
  } catch (const Error& e) {
    CHECK(e.kind() == Error::Kind::budget);
  }
}

TEST_CASE("progress counts all blocks, never backwards") {
  std::int64_t last = 0, all = 0;
  bool forward = true;
  ProcessMaskOptions options;
  options.progress = [&](std::int64_t done, std::int64_t of) {
    forward = forward && done > last;
    last = done, all = of;
  };
  process_mask({causal_mask(4096, 4096), full_mask(4096, 4096)}, {64, 64}, options);
  CHECK(forward);
  CHECK(last == 2 * 64 * 64);
  CHECK(all == last);
}

TEST_CASE("blocks far longer than the mask are scanned as if they ended where it does") {
  const Mask mask = causal_mask(16, 40);
  const MaskSummary near = blocks::scan_mask(mask, {17, 41}, nullptr).summary;
  constexpr std::int64_t k32 = std::int64_t{1} << 32, k38 = std::int64_t{1} << 38,
                         k47 = std::int64_t{1} << 47;
  // Products of some of these are 0 modulo 2^64.
  for (const BlockShape block : {BlockShape{k47, k47}, BlockShape{k32, k38}, BlockShape{k47, 64}}) {
    const MaskSummary far = blocks::scan_mask(mask, block, nullptr).summary;
    CHECK(far.partial_blocks == near.partial_blocks);
    CHECK(far.true_elements == near.true_elements);
    CHECK(far.rows_without_key.size() == near.rows_without_key.size());
    CHECK(far.keys_without_row.size() == near.keys_without_row.size());
    CHECK(blocks::scan_bytes(16, 40, block, blocks::Patterns::dropped, blocks::Reading::in_order) ==
          blocks::scan_bytes(16, 40, {16, 40}, blocks::Patterns::dropped, blocks::Reading::in_order));
  }
}

TEST_CASE("a partial block that no memory can hold is refused, whatever its size comes to in 64 bits") {
  ProcessMaskOptions options;
  options.pad = true;
  for (const BlockShape block : {BlockShape{std::int64_t{1} << 47, std::int64_t{1} << 47},
                                 BlockShape{std::int64_t{1} << 32, std::int64_t{1} << 38}}) {
    CHECK_FALSE(blocks::scan_bytes(16, 16, block, blocks::Patterns::kept, blocks::Reading::any_order));
    CHECK_THROWS_AS(process_mask({causal_mask(16, 16)}, block, options), Error);
    CHECK(blocks::checked({causal_mask(16, 16)}, block, Direction::forward, MaskInfoKind::fixed, options)
              .work_bytes() == INT64_MAX);
  }
}
