// Paged caches as packed tokens: what is past a sequence's length is never read.
#include "ejk/paged.hpp"

#include <limits>
#include <numeric>

#include "ejk/attention.hpp"
#include "support/arrays.hpp"
#include "support/failure.hpp"

using namespace ejk;

namespace {

constexpr std::int64_t kGarbage = std::numeric_limits<std::int64_t>::max();

std::shared_ptr<const ArraySource> integers_of(const std::vector<std::int64_t>& values, Shape shape,
                                               const char* name, DType dtype = DType::int64) {
  Array array(dtype, std::move(shape));
  for (std::size_t n = 0; n < values.size(); ++n)
    if (dtype == DType::int32)
      array.elements<std::int32_t>()[n] = static_cast<std::int32_t>(values[n]);
    else
      array.elements<std::int64_t>()[n] = values[n];
  return make_source(std::move(array), name);
}

// A cache of NaN but for the slots that sequences use, and the same tokens packed.
struct Cache {
  Array packed;
  std::shared_ptr<const ArraySource> cache;
};
Cache made(DType dtype, CacheLayout layout, std::int64_t pages, std::int64_t page_size, std::int64_t heads,
           std::int64_t size, const std::vector<std::vector<std::int64_t>>& table,
           const std::vector<std::int64_t>& lengths, std::mt19937_64& engine) {
  const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  Cache c{plain::random(dtype, {tokens, heads, size}, engine), nullptr};
  const std::vector<double> from = plain::doubles(c.packed.view());
  std::vector<double> to(static_cast<std::size_t>(pages * page_size * heads * size), std::nan(""));
  std::int64_t token = 0;
  for (std::size_t s = 0; s < lengths.size(); ++s)
    for (std::int64_t t = 0; t < lengths[s]; ++t, ++token)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t d = 0; d < size; ++d) {
          const std::int64_t page = table[s][static_cast<std::size_t>(t / page_size)], slot = t % page_size;
          const std::int64_t row = layout == CacheLayout::nhd ? (page * page_size + slot) * heads + h
                                                              : (page * heads + h) * page_size + slot;
          to[static_cast<std::size_t>(row * size + d)] =
              from[static_cast<std::size_t>((token * heads + h) * size + d)];
        }
  const Shape shape = layout == CacheLayout::nhd ? Shape{pages, page_size, heads, size}
                                                 : Shape{pages, heads, page_size, size};
  c.cache = make_source(plain::array_of(dtype, shape, to), "cache.npy");
  return c;
}

const std::vector<std::vector<std::int64_t>> kTable{
    {5, 2, kGarbage}, {0, -1, -1}, {7, 1, 3}, {-9, 99, kGarbage}};
const std::vector<std::int64_t> kLengths{7, 4, 9, 0};

std::vector<std::int64_t> flat(const std::vector<std::vector<std::int64_t>>& rows) {
  std::vector<std::int64_t> all;
  for (const auto& row : rows) all.insert(all.end(), row.begin(), row.end());
  return all;
}

}  // namespace

TEST_CASE("tokens of a paged cache are those of its pages, and nothing past a length is read") {
  std::mt19937_64 engine(3);
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16})
    for (const CacheLayout layout : {CacheLayout::nhd, CacheLayout::hnd}) {
      const Cache k = made(dtype, layout, 8, 4, 2, 6, kTable, kLengths, engine),
                  v = made(dtype, layout, 8, 4, 2, 5, kTable, kLengths, engine);
      const auto sequences = std::make_shared<const PagedSequences>(
          read_block_table(*integers_of(flat(kTable), {4, 3}, "table.npy"),
                           *integers_of(kLengths, {4}, "lengths.npy"), cache_size(*k.cache, layout)));
      CHECK(sequences->offsets == std::vector<std::int64_t>{0, 7, 11, 20, 20});
      const auto keys = paged_tokens(k.cache, layout, sequences),
                 values = paged_tokens(v.cache, layout, sequences);
      const Array all_keys = read_all(*keys), all_values = read_all(*values);
      CHECK(plain::same_bytes(all_keys, k.packed));
      CHECK(plain::same_bytes(all_values, v.packed));
      // Boxes.
      for (std::int64_t first = 0; first < 20; first += 3) {
        Array box(dtype, {std::min<std::int64_t>(5, 20 - first), 1, 3});
        keys->read(std::array<std::int64_t, 3>{first, 1, 2}, box.shape(), box.data());
        const ArrayView whole = k.packed.view();
        for (std::int64_t t = 0; t < box.shape()[0]; ++t)
          CHECK(std::memcmp(
                    box.data() + t * 3 * size_of(dtype),
                    whole.data + (first + t) * whole.strides[0] + whole.strides[1] + 2 * whole.strides[2],
                    static_cast<std::size_t>(3 * size_of(dtype))) == 0);
      }
      // Attention over the pages is that over packed tokens: several queries a request, from the bottom right.
      const Array q = plain::random(dtype, {8, 4, 6}, engine);
      AttentionOptions options;
      options.layout = AttentionLayout::thd;
      options.cu_seqlens_q = IntegerArray(std::vector<std::int64_t>{0, 1, 4, 7, 8});
      options.cu_seqlens_kv = IntegerArray(sequences->offsets);
      const Attention paged = attention(q.view(), all_keys.view(), all_values.view(), options),
                      packed = attention(q.view(), k.packed.view(), v.packed.view(), options);
      CHECK(plain::same_bytes(paged.out, packed.out));
      CHECK(plain::doubles(paged.out.view()).back() == 0);  // the request without keys
    }
}

TEST_CASE("a table of each key/value head has its own pages, in every layout and in boxes of some heads") {
  std::mt19937_64 engine(4);
  const std::vector<std::vector<std::int64_t>> tables[] = {
      kTable, {{1, 6, kGarbage}, {3, -1, -1}, {2, 7, 0}, {-9, 99, kGarbage}}};
  std::vector<std::int64_t> both = flat(tables[0]);
  for (const std::int64_t page : flat(tables[1])) both.push_back(page);
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16})
    for (const CacheLayout layout : {CacheLayout::nhd, CacheLayout::hnd}) {
      // Head h of the cache is that of a cache with the pages of h alone; the other heads there are NaN.
      const std::int64_t heads_axis = layout == CacheLayout::nhd ? 2 : 1;
      std::vector<Array> packed;
      std::vector<std::vector<double>> of_heads;
      for (const auto& table : tables) {
        Cache one = made(dtype, layout, 8, 4, 2, 6, table, kLengths, engine);
        packed.push_back(std::move(one.packed));
        of_heads.push_back(plain::doubles(read_all(*one.cache).view()));
      }
      const Shape shape = layout == CacheLayout::nhd ? Shape{8, 4, 2, 6} : Shape{8, 2, 4, 6};
      std::int64_t after = 1;
      for (std::size_t d = static_cast<std::size_t>(heads_axis) + 1; d < 4; ++d) after *= shape[d];
      std::vector<double> mixed(of_heads[0].size());
      for (std::size_t n = 0; n < mixed.size(); ++n)
        mixed[n] = of_heads[static_cast<std::int64_t>(n) / after % 2 == 0 ? 0 : 1][n];
      const auto cache = make_source(plain::array_of(dtype, shape, mixed), "cache.npy");
      const auto sequences = std::make_shared<const PagedSequences>(
          read_block_table(*integers_of(both, {2, 4, 3}, "table.npy"),
                           *integers_of(kLengths, {4}, "lengths.npy"), cache_size(*cache, layout)));
      CHECK(sequences->offsets == std::vector<std::int64_t>{0, 7, 11, 20, 20});
      const auto tokens = paged_tokens(cache, layout, sequences);
      std::vector<double> expected;
      const auto first = plain::doubles(packed[0].view()), second = plain::doubles(packed[1].view());
      for (std::size_t n = 0; n < first.size(); ++n) expected.push_back((n / 6 % 2 == 0 ? first : second)[n]);
      CHECK(plain::doubles(read_all(*tokens).view()) == expected);
      for (std::int64_t head = 0; head < 2; ++head) {
        Array box(dtype, {9, 1, 4});
        tokens->read(std::array<std::int64_t, 3>{5, head, 1}, box.shape(), box.data());
        const auto values = plain::doubles(box.view());
        for (std::int64_t t = 0; t < 9; ++t)
          for (std::int64_t d = 0; d < 4; ++d)
            CHECK(values[static_cast<std::size_t>(t * 4 + d)] ==
                  expected[static_cast<std::size_t>(((5 + t) * 2 + head) * 6 + 1 + d)]);
      }
      // Decoding in place is that over packed tokens.
      const Array q = plain::random(dtype, {4, 4, 6}, engine), k = read_all(*tokens);
      AttentionOptions options;
      options.layout = AttentionLayout::thd;
      options.cu_seqlens_q = IntegerArray(std::vector<std::int64_t>{0, 1, 2, 3, 4});
      options.cu_seqlens_kv = IntegerArray(std::vector(sequences->offsets));
      const Attention whole = attention(q.view(), k.view(), k.view(), options);
      AttentionArrays arrays{q.view(), k.view(), k.view()};
      const AttentionPlan plan(types_of(arrays), options);
      REQUIRE(plan.boxes_keys());
      arrays.k.reset(), arrays.v.reset();
      Array out(whole.out.dtype(), whole.out.shape()), lse(whole.lse.dtype(), whole.lse.shape());
      plan.run(arrays, *tokens, *tokens, {out.mutable_view(), lse.mutable_view()});
      CHECK(plain::same_bytes(out, whole.out));
      CHECK(plain::same_bytes(lse, whole.lse));
    }
}

TEST_CASE("pages by indptr, indices and lengths of last pages are those of a block table") {
  const CacheSize size{8, 4};
  const PagedSequences by_table = read_block_table(*integers_of(flat(kTable), {4, 3}, "t"),
                                                   *integers_of(kLengths, {4}, "l"), size),
                       by_indices =
                           read_page_indices(*integers_of({0, 2, 3, 6, 6}, {5}, "p", DType::int32),
                                             *integers_of({5, 2, 0, 7, 1, 3, kGarbage, -1}, {8}, "i"),
                                             *integers_of({3, 4, 1, -7}, {4}, "last"), size);
  CHECK(by_table.offsets == by_indices.offsets);
  CHECK(by_table.pages == by_indices.pages);
  CHECK(by_table.first_page == by_indices.first_page);
}

TEST_CASE("tables that do not fit their cache are refused, with request and slot") {
  const auto refused = [](const std::vector<std::int64_t>& table, const std::vector<std::int64_t>& lengths,
                          CacheSize size = {8, 4}) {
    return plain::failure([&] {
      read_block_table(*integers_of(table, {2, 2}, "t.npy"),
                       *integers_of(lengths, {std::ssize(lengths)}, "l.npy"), size);
    });
  };
  CHECK(refused({0, 1, 2, 8}, {8, 5}) == "t.npy: request 1 has page 8 in slot 1, and the cache has 8 pages");
  CHECK(refused({0, -1, 2, 3}, {5, 1}) ==
        "t.npy: request 0 has page -1 in slot 1, and the cache has 8 pages");
  CHECK(refused({0, 1, 2, 3}, {9, 1}) ==
        "l.npy: request 0 has 9 tokens, which take 3 pages of 4, and its row in t.npy has 2");
  CHECK(refused({0, 1, 2, 3}, {1, kGarbage}).find("request 1 has 9223372036854775807 tokens") !=
        std::string::npos);
  CHECK(refused({0, 1, 2, 3}, {1, -1}) == "l.npy: the length of request 1 is -1");
  CHECK(refused({0, 1, 2, 3}, {1}) == "l.npy: there are 1 requests here, and 2 in t.npy");
  const auto by_head = [](Shape shape, std::vector<std::int64_t> pages, CacheSize size) {
    return plain::failure([&] {
      read_block_table(*integers_of(pages, std::move(shape), "t.npy"), *integers_of({8, 1}, {2}, "l.npy"),
                       size);
    });
  };
  CHECK(by_head({2, 2, 2}, {0, 1, 2, -1, 3, 8, 2, -1}, {8, 4, 2}) ==
        "t.npy: key/value head 1, request 0 has page 8 in slot 1, and the cache has 8 pages");
  CHECK(by_head({2, 2, 2}, {0, 1, 2, -1, 3, 4, 2, -1}, {8, 4, 2}) == "no error");
  CHECK(by_head({2, 2, 2}, {0, 1, 2, -1, 3, 4, 2, -1}, {8, 4, 4}) ==
        "t.npy: there are tables of 2 key/value heads, and the cache has 4");
  CHECK(by_head({2, 2, 1}, {0, 1, 2, 3}, {8, 4, 2}) ==
        "l.npy: request 0 has 8 tokens, which take 2 pages of 4, and its row in t.npy has 1");
  CHECK(by_head({8}, {0, 1, 2, 3, 4, 5, 6, 7}, {8, 4, 2}) ==
        "t.npy: a block table is (requests, pages) or (heads, requests, pages), not of shape (8,)");
  const auto narrow = make_source(Array(DType::float32, {8, 4, 3, 4}), "v.npy");
  CHECK(plain::failure([&] {
          paged_tokens(narrow, CacheLayout::nhd,
                       std::make_shared<const PagedSequences>(
                           read_block_table(*integers_of({0, 1, 2, 3}, {2, 1, 2}, "t.npy"),
                                            *integers_of({8}, {1}, "l.npy"), {8, 4, 2})));
        }) == "v.npy: it has 3 heads, and there are tables of 2");
  const auto csr = [](const std::vector<std::int64_t>& indptr, const std::vector<std::int64_t>& last,
                      CacheSize size = {8, 4}) {
    return plain::failure([&] {
      read_page_indices(*integers_of(indptr, {std::ssize(indptr)}, "p.npy"),
                        *integers_of({0, 9}, {2}, "i.npy"),
                        *integers_of(last, {std::ssize(last)}, "last.npy"), size);
    });
  };
  CHECK(csr({0, 2}, {1}) == "i.npy: request 0 has page 9 in slot 1, and the cache has 8 pages");
  CHECK(csr({0, 1}, {5}) == "last.npy: the last page of request 0 holds 5 tokens, of a page of 4");
  CHECK(csr({0, 3}, {1}) == "p.npy: its last element is 3, and i.npy has 2 pages");
  CHECK(csr({0, 1}, {1, 1}) == "last.npy: there are 2 requests here, and 1 in p.npy");
  CHECK(csr({0, 2}, {1}, {10, std::int64_t{1} << 62}) == "no error");
  const auto flat_cache = make_source(Array(DType::float32, {2, 3, 4}), "c.npy");
  CHECK(plain::failure([&] { cache_size(*flat_cache, CacheLayout::hnd); }) ==
        "c.npy: a cache is (pages, heads, page size, size), not of shape (2, 3, 4)");
}
