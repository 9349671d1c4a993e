// Explanations of kernels that read other keys of a paged cache: lengths that are too long, stale last pages.
#include <numeric>

#include "ejk/against.hpp"
#include "ejk/attention.hpp"
#include "ejk/attention_check.hpp"
#include "ejk/paged.hpp"
#include "support/attention_loops.hpp"

using namespace ejk;

namespace pages {

namespace {

constexpr std::int64_t kPages = 16, kPageSize = 4;

using Tables = std::vector<std::int64_t>;

// A cache of pages of normal numbers, sequences in it, and one query or several of each.
struct Paged {
  Array q;
  std::shared_ptr<const ArraySource> k, v, table;
  PagedSequences right;
  AttentionOptions options;

  Paged(DType type, std::int64_t queries, std::uint64_t seed) {
    std::mt19937_64 engine(seed);
    const auto cache = [&](const char* name) {
      return make_source(plain::random(type, {kPages, kPageSize, 2, 16}, engine), name);
    };
    k = cache("k.npy"), v = cache("v.npy");
    q = plain::random(type, {3 * queries, 4, 16}, engine);
    // The last entry of each is of an earlier owner; the third has none that is valid.
    table = plain::integers({3, 7, 1, 5, /**/ 2, 9, 14, 0, /**/ 11, 4, 8, 99}, {3, 4}, "table.npy");
    right = read_block_table(*table, *plain::integers({9, 6, 11}, {3}, "lengths.npy"),
                             cache_size(*k, CacheLayout::nhd));
    options.layout = AttentionLayout::thd;
    options.cu_seqlens_q = IntegerArray(Tables{0, queries, 2 * queries, 3 * queries});
    HeadMasks mask;
    mask.mask = [](std::int64_t, std::int64_t, std::int64_t queries_of, std::int64_t keys) {
      return causal_mask(queries_of, keys, keys - queries_of);
    };
    options.masks.push_back(mask);
  }

  std::shared_ptr<const ArraySource> tokens(const PagedSequences& of,
                                            const std::shared_ptr<const ArraySource>& cache) const {
    return paged_tokens(cache, CacheLayout::nhd, std::make_shared<const PagedSequences>(of));
  }
  Attention attention_of(const PagedSequences& of) const {
    const Array keys = read_all(*tokens(of, k)), values = read_all(*tokens(of, v));
    AttentionOptions how = options;
    how.cu_seqlens_kv = IntegerArray(std::vector(of.offsets));
    return attention(q.view(), keys.view(), values.view(), how);
  }
  Tried tried() const {
    const auto keys = [this](const char* text, const PagedSequences& of) {
      return TriedKeys{text, tokens(of, k), tokens(of, v), of.offsets};
    };
    Tried all;
    all.keys.push_back(keys("longer", longer()));
    all.keys.push_back(keys("rounded up", rounded_up()));
    all.pages = TriedPages{kPages, [this, keys](const std::vector<std::int64_t>& last) {
                             std::string text = "last";
                             for (const std::int64_t page : last) text += fmt::format(" {}", page);
                             return keys(text.c_str(), with_last_pages(right, last));
                           }};
    return all;
  }
  PagedSequences longer() const {
    return with_lengths(right, table.get(), [](std::int64_t keys) { return keys + kPageSize; });
  }
  PagedSequences rounded_up() const {
    return with_lengths(right, table.get(),
                        [](std::int64_t keys) { return (keys + kPageSize - 1) / kPageSize * kPageSize; });
  }
  // What explains the results of these sequences; kinds and texts of out.
  std::string explained(const PagedSequences& of) const {
    const Array keys = read_all(*tokens(right, k)), values = read_all(*tokens(right, v));
    AttentionOptions how = options;
    how.cu_seqlens_kv = IntegerArray(std::vector(right.offsets));
    const AttentionArrays arrays{q.view(), keys.view(), values.view()};
    const AttentionPlan plan(types_of(arrays), how);
    const Attention own = attention_of(right), given = attention_of(of);
    const Against against = compare_results(plan, arrays, {own.out.view(), own.lse.view()},
                                            {given.out.view(), given.lse.view()}, Explain::yes, {}, tried());
    if (against.agrees()) return "agrees";
    std::string all;
    for (const auto& e : against.explanations) {
      CHECK(e.kind == "pages");
      all += fmt::format("{}{}: {}", all.empty() ? "" : "; ", e.array, e.text);
    }
    for (const auto& u : against.unexplained) all += fmt::format("; {} left: {:.2f}", u.array, u.share);
    return all;
  }
};

}  // namespace

TEST_CASE("sequences of other lengths have further pages of their table, where these are valid") {
  const Paged paged(DType::float32, 1, 1);
  const PagedSequences longer = paged.longer(), rounded = paged.rounded_up();
  CHECK(longer.offsets == std::vector<std::int64_t>{0, 13, 23, 34});  // the third has no page for more
  CHECK(longer.pages == std::vector<std::int64_t>{3, 7, 1, 5, 2, 9, 14, 11, 4, 8});
  CHECK(longer.first_page == std::vector<std::int64_t>{0, 4, 7, 10});
  CHECK(rounded.offsets == std::vector<std::int64_t>{0, 12, 20, 32});
  CHECK(rounded.pages == paged.right.pages);
  const PagedSequences shorter =
      with_lengths(paged.right, nullptr, [](std::int64_t keys) { return keys - 8; });
  CHECK(shorter.offsets == std::vector<std::int64_t>{0, 1, 1, 4});
  CHECK(shorter.pages == std::vector<std::int64_t>{3, 11});
  CHECK(with_lengths(paged.right, nullptr, [](std::int64_t keys) { return keys + kPageSize; }).offsets ==
        paged.right.offsets);
  CHECK(with_last_pages(paged.right, {-1, 6, 0}).pages == std::vector<std::int64_t>{3, 7, 1, 2, 6, 11, 4, 0});
  // A table of each head.
  const PagedSequences by_head = read_block_table(*plain::integers({1, 2, 3, 4, 5, 6}, {2, 1, 3}, "t"),
                                                  *plain::integers({5}, {1}, "l"), {8, 4, 2});
  CHECK(by_head.pages == std::vector<std::int64_t>{1, 2, 4, 5});
  CHECK(
      with_lengths(by_head, plain::integers({1, 2, 3, 4, 5, 6}, {2, 1, 3}, "t").get(), [](std::int64_t keys) {
        return keys + 4;
      }).pages == std::vector<std::int64_t>{1, 2, 3, 4, 5, 6});
  CHECK(with_last_pages(by_head, {7}).pages == std::vector<std::int64_t>{1, 7, 4, 7});
}

TEST_CASE("lengths that are too long, and stale last pages, are named in every type") {
  for (const DType type : {DType::float32, DType::bfloat16, DType::float16})
    for (const std::int64_t queries : {1, 3}) {
      CAPTURE(name_of(type));
      CAPTURE(queries);
      const Paged paged(type, queries, 5);
      CHECK(paged.explained(paged.right) == "agrees");
      CHECK(paged.explained(paged.rounded_up()) == "out: rounded up; lse: rounded up");
      CHECK(paged.explained(paged.longer()) == "out: longer; lse: longer");
      CHECK(paged.explained(with_last_pages(paged.right, {13, -1, 12})) ==
            "out: last 13 -1 12; lse: last 13 -1 12");
    }
}

}  // namespace pages
