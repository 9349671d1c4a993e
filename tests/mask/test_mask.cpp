// Lazy evaluation of masks equals evaluation element by element: all sizes 1 to 70 against blocks 1 to 40,
// random expressions over every kind.
#include "ejk/mask.hpp"

#include <doctest/doctest.h>

#include "ejk/mask_info.hpp"
#include "mask/node.hpp"
#include "support/random_mask.hpp"

using namespace ejk;

namespace {

using plain::same_ranges;

// What the elements of each block say, the missing part of a cut block being False.
struct PlainBlocks {
  std::int64_t q_blocks, kv_blocks;
  std::vector<int> states;
  std::vector<std::vector<std::uint8_t>> blocks;  // (bq, bk) each
};

PlainBlocks plain_blocks(const std::vector<std::uint8_t>& elements, std::int64_t q, std::int64_t kv,
                         BlockShape b) {
  PlainBlocks result{(q + b.q - 1) / b.q, (kv + b.kv - 1) / b.kv, {}, {}};
  for (std::int64_t i = 0; i < result.q_blocks; ++i)
    for (std::int64_t j = 0; j < result.kv_blocks; ++j) {
      std::vector<std::uint8_t> block;
      std::int64_t ones = 0;
      for (std::int64_t r = i * b.q; r < (i + 1) * b.q; ++r)
        for (std::int64_t c = j * b.kv; c < (j + 1) * b.kv; ++c) {
          block.push_back(r < q && c < kv ? elements[static_cast<std::size_t>(r * kv + c)] : 0);
          ones += block.back();
        }
      result.states.push_back(ones == 0 ? 0 : ones == b.q * b.kv ? 2 : 1);
      result.blocks.push_back(std::move(block));
    }
  return result;
}

std::vector<std::int64_t> integers(const Array& a) {
  std::vector<std::int64_t> values;
  dispatch(a.dtype(), [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_integral_v<T>)
      for (const T v : a.elements<T>()) values.push_back(static_cast<std::int64_t>(v));
  });
  return values;
}

std::vector<IndexRange> runs_of_zero(const std::vector<std::int64_t>& counts) {
  std::vector<IndexRange> runs;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(counts.size()); ++i) {
    if (counts[static_cast<std::size_t>(i)] != 0) continue;
    if (!runs.empty() && runs.back().end == i)
      runs.back().end = i + 1;
    else
      runs.push_back({i, i + 1});
  }
  return runs;
}

}  // namespace

namespace {

// One mask of a size, lazily and element by element.
void check_evaluation(const plain::Pair& pair, std::int64_t q, std::int64_t kv, BlockShape block, bool dkv) {
  CAPTURE(pair.mask.text());
  CAPTURE(q);
  CAPTURE(kv);
  CAPTURE(block.q);
  CAPTURE(block.kv);

  std::vector<std::uint8_t> read(pair.elements.size());
  pair.mask.read(0, q, 0, kv, reinterpret_cast<bool*>(read.data()));
  REQUIRE(read == pair.elements);

  ProcessMaskOptions options;
  options.pad = true;
  options.shrink_grid = false;
  const MaskInfo info =
      dkv ? process_mask_dkv({pair.mask}, block, options) : process_mask({pair.mask}, block, options);
  const PlainBlocks expected = plain_blocks(pair.elements, q, kv, block);
  const auto states = integers(info.block_mask);
  REQUIRE(std::equal(states.begin(), states.end(), expected.states.begin(), expected.states.end()));

  // Each partial block is found where mask_next says, and ids count first appearances.
  const Array patterns = info.partial_mask_blocks ? read_all(*info.partial_mask_blocks) : Array();
  const auto next = info.mask_next ? integers(*info.mask_next) : std::vector<std::int64_t>();
  std::int64_t distinct = 0;
  for (std::size_t b = 0; b < states.size() && info.partial_mask_blocks; ++b) {
    if (states[b] != 1) continue;
    REQUIRE(next[b] <= distinct);
    distinct = std::max(distinct, next[b] + 1);
    const auto* pattern =
        reinterpret_cast<const std::uint8_t*>(patterns.data()) + next[b] * block.q * block.kv;
    bool equal = true;
    for (std::int64_t r = 0; r < block.q; ++r)
      for (std::int64_t c = 0; c < block.kv; ++c)
        equal = equal && pattern[dkv ? c * block.q + r : r * block.kv + c] ==
                             expected.blocks[b][static_cast<std::size_t>(r * block.kv + c)];
    REQUIRE(equal);
  }
  if (info.partial_mask_blocks) CHECK(patterns.shape()[0] == distinct);

  std::vector<std::int64_t> keys_of_row(static_cast<std::size_t>(q)),
      rows_of_key(static_cast<std::size_t>(kv));
  std::int64_t ones = 0;
  for (std::int64_t i = 0; i < q; ++i)
    for (std::int64_t j = 0; j < kv; ++j) {
      const std::int64_t e = pair.elements[static_cast<std::size_t>(i * kv + j)];
      keys_of_row[static_cast<std::size_t>(i)] += e;
      rows_of_key[static_cast<std::size_t>(j)] += e;
      ones += e;
    }
  const MaskSummary& s = info.summaries[0];
  CHECK(s.true_elements == ones);
  CHECK(s.empty_blocks == std::count(expected.states.begin(), expected.states.end(), 0));
  CHECK(s.partial_blocks == std::count(expected.states.begin(), expected.states.end(), 1));
  CHECK(s.full_blocks == std::count(expected.states.begin(), expected.states.end(), 2));
  CHECK(same_ranges(s.rows_without_key, runs_of_zero(keys_of_row)));
  CHECK(same_ranges(s.keys_without_row, runs_of_zero(rows_of_key)));
}

void check_random(plain::Random& random, std::int64_t q, std::int64_t kv, BlockShape block, bool dkv) {
  check_evaluation(plain::random_mask(random, q, kv, 3), q, kv, block, dkv);
}

}  // namespace

TEST_CASE("lazy evaluation gives the states, partial blocks and counts of a plain evaluation") {
  plain::Random random(11);
  // Every size up to 70 meets every block up to 40 over the run, the other axis at random.
  for (std::int64_t n = 0; n < 2800; ++n)
    check_random(random, n / 40 + 1, plain::between(random, 1, 70),
                 {n % 40 + 1, plain::between(random, 1, 40)}, n % 2 == 1);
  // Rows of bits that take several words, whole and cut short.
  for (std::int64_t n = 0; n < 300; ++n)
    check_random(random, plain::between(random, 1, 200), plain::between(random, 1, 400),
                 {plain::between(random, 1, 150), plain::between(random, 41, 300)}, n % 2 == 1);
  for (const std::int64_t kv : {1, 64, 65, 127, 128, 129, 130, 192, 193, 256, 300})
    for (const std::int64_t block : {64, 65, 100, 127, 128, 129, 192, 256})
      check_random(random, 130, kv, {128, block}, false);
}

TEST_CASE("what a classifier says of a block without looking is true") {
  plain::Random random(12);
  for (int n = 0; n < 1500; ++n) {
    const std::int64_t q = plain::between(random, 1, 70), kv = plain::between(random, 1, 70);
    const BlockShape block{plain::between(random, 1, 40), plain::between(random, 1, 40)};
    const plain::Pair pair = plain::random_mask(random, q, kv, 3);
    CAPTURE(pair.mask.text());
    const auto classifier = pair.mask.node().classifier(block.q, block.kv);
    for (std::int64_t begin = 0; begin < q; begin += block.q) {
      const std::int64_t end = std::min(q, begin + block.q), columns = (kv + block.kv - 1) / block.kv;
      std::vector<mask::BlockState> states(static_cast<std::size_t>(columns));
      classifier->classify(begin, end, {0, columns}, states.data());
      // A part of the row is told alike, and nothing is outside of the run.
      const std::int64_t from = plain::between(random, 0, columns),
                         to = plain::between(random, from, columns);
      std::vector<mask::BlockState> part(static_cast<std::size_t>(to - from));
      classifier->classify(begin, end, {from, to}, part.data());
      CHECK(std::equal(part.begin(), part.end(), states.begin() + from));
      const IndexRange run = classifier->run(begin, end);
      CHECK((0 <= run.begin && run.begin <= run.end && run.end <= columns));
      for (std::int64_t j = 0; j < columns; ++j) {
        bool some = false, every = true;
        for (std::int64_t r = begin; r < end; ++r)
          for (std::int64_t c = j * block.kv; c < std::min(kv, (j + 1) * block.kv); ++c) {
            const bool e = pair.elements[static_cast<std::size_t>(r * kv + c)] != 0;
            some = some || e, every = every && e;
          }
        const auto truth = !some   ? mask::BlockState::empty
                           : every ? mask::BlockState::full
                                   : mask::BlockState::partial;
        const auto said = states[static_cast<std::size_t>(j)];
        if (j < run.begin || j >= run.end) CHECK(!some);
        CHECK((said == mask::BlockState::undecided || said == truth));
      }
    }
  }
}

TEST_CASE("positional kinds never leave a block undecided, whatever the offset") {
  for (const std::int64_t offset :
       {std::int64_t{0}, INT64_MIN, INT64_MAX, std::int64_t{-5}, std::int64_t{64}}) {
    for (const Mask& m : {causal_mask(64, 48, offset), local_mask(64, 48, INT64_MAX, 3, offset),
                          chunked_mask(64, 48, INT64_MAX)}) {
      const auto classifier = m.node().classifier(16, 16);
      mask::BlockState states[3];
      for (std::int64_t q = 0; q < 64; q += 16) {
        classifier->classify(q, q + 16, {0, 3}, states);
        for (const auto s : states) CHECK(s != mask::BlockState::undecided);
      }
    }
  }
  // Nothing overflows: everything is seen, or nothing is.
  CHECK(process_mask({causal_mask(64, 48, INT64_MAX)}, {16, 16}).summaries[0].full_blocks == 12);
  CHECK(process_mask({causal_mask(64, 48, INT64_MIN)}, {16, 16}).summaries[0].empty_blocks == 12);
}

TEST_CASE("positional kinds are exact to the ends of 64 bits") {
  __extension__ using Exact = __int128;
  constexpr std::int64_t q = 7, kv = 9, most = INT64_MAX, least = INT64_MIN, half = std::int64_t{1} << 62;
  const auto check = [&](const Mask& mask, auto&& sees) {
    check_evaluation({mask, plain::table(q, kv, sees)}, q, kv, {2, 4}, false);
  };
  const Exact offsets[] = {least,    least + 1, least + 5,   -half - 3,       -half,           Exact{-4},
                           Exact{0}, Exact{3},  Exact{half}, Exact{half} + 2, Exact{most} - 5, Exact{most}};
  const std::optional<std::int64_t> counts[] = {std::nullopt, 0, 2, half - 4, half, half + 4, most - 5, most};
  for (const Exact offset : offsets) {
    const auto k = static_cast<std::int64_t>(offset);
    check(causal_mask(q, kv, k), [&](Exact i, Exact j) { return j <= i + offset; });
    for (const auto& left : counts)
      for (const auto& right : counts)
        check(local_mask(q, kv, left, right, k), [&](Exact i, Exact j) {
          return (!left || j >= i + offset - *left) && (!right || j <= i + offset + *right);
        });
  }
  for (const std::int64_t chunk : {std::int64_t{1}, std::int64_t{3}, half, most})
    check(chunked_mask(q, kv, chunk),
          [&](std::int64_t i, std::int64_t j) { return i / chunk == j / chunk && j <= i; });
}

namespace {

// A window, chunks or a prefix, and what is left of each without one of its bounds.
struct PlainTerm {
  Mask mask;
  std::vector<std::uint8_t> elements;
  std::vector<std::vector<std::uint8_t>> without;  // each bound, in order
};

PlainTerm random_term(plain::Random& random, std::int64_t q, std::int64_t kv) {
  using plain::between, plain::table;
  const std::int64_t offset = between(random, 0, 2) == 0   ? 0
                              : between(random, 0, 1) == 0 ? kv - q
                                                           : between(random, -30, 30);
  const std::int64_t kind = between(random, 0, 2);
  if (kind == 0) {
    const std::int64_t keys = between(random, 0, kv + 3);
    return {prefix_mask(q, kv, keys),
            table(q, kv, [&](auto, auto j) { return j < keys; }),
            {table(q, kv, [](auto, auto) { return true; })}};
  }
  if (kind == 1) {
    const std::int64_t size = between(random, 1, 40);
    const auto chunk = [&](std::int64_t i) { return i >= 0 ? i / size : (i + 1) / size - 1; };
    return {chunked_mask(q, kv, size, offset),
            table(q, kv, [&](auto i, auto j) { return j <= i + offset && chunk(i + offset) == chunk(j); }),
            {table(q, kv, [&](auto i, auto j) { return j <= i + offset; })}};
  }
  const std::int64_t left = between(random, -8, 40), right = between(random, -8, 40);  // negative: none
  const auto window = [&](bool has_left, bool has_right) {
    return table(q, kv, [&](auto i, auto j) {
      return (!has_left || j >= i + offset - left) && (!has_right || j <= i + offset + right);
    });
  };
  const auto side = [](std::int64_t n) { return n < 0 ? std::nullopt : std::optional(n); };
  PlainTerm term{local_mask(q, kv, side(left), side(right), offset), window(left >= 0, right >= 0), {}};
  if (left >= 0) term.without.push_back(window(false, right >= 0));
  if (right > 0) term.without.push_back(window(left >= 0, false));
  return term;
}

std::vector<std::uint8_t> gathered(const std::vector<std::uint8_t>& elements, std::int64_t kv,
                                   const std::vector<std::int64_t>& at_q,
                                   const std::vector<std::int64_t>& at_k) {
  return plain::table(std::ssize(at_q), std::ssize(at_k), [&](std::int64_t i, std::int64_t j) {
    return elements[static_cast<std::size_t>(at_q[static_cast<std::size_t>(i)] * kv +
                                             at_k[static_cast<std::size_t>(j)])] != 0;
  });
}

}  // namespace

TEST_CASE("a bound is idle where the mask without it has the same elements") {
  plain::Random random(20);
  std::int64_t idle = 0, active = 0;
  for (int n = 0; n < 4000; ++n) {
    const std::int64_t q = plain::between(random, 1, 24), kv = plain::between(random, 1, 40);
    CAPTURE(n);
    const PlainTerm a = random_term(random, q, kv), b = random_term(random, q, kv);
    REQUIRE(plain::elements_of(a.mask) == a.elements);
    std::vector<std::int64_t> at_q, at_k;
    for (std::int64_t i = plain::between(random, 1, 5); i > 0; --i)
      at_q.push_back(plain::between(random, 0, q - 1)), at_k.push_back(plain::between(random, 0, kv - 1));
    const std::vector<MaskBound> of_a = bounds_of(a.mask), of_b = bounds_of(b.mask),
                                 not_a = bounds_of(~a.mask), either = bounds_of(a.mask | b.mask),
                                 both = bounds_of(b.mask & ~a.mask),
                                 moved = bounds_of(positions_mask(a.mask, at_q, at_k));
    REQUIRE(of_a.size() == a.without.size());
    REQUIRE(not_a.size() == of_a.size());
    REQUIRE(moved.size() == of_a.size());
    REQUIRE(either.size() == of_a.size() + of_b.size());
    REQUIRE(both.size() == either.size());
    for (std::size_t i = 0; i < of_a.size(); ++i) {
      CAPTURE(of_a[i].text);
      CHECK(of_a[i].is_idle == (a.without[i] == a.elements));
      CHECK(not_a[i].is_idle == of_a[i].is_idle);
      CHECK(either[i].is_idle == of_a[i].is_idle);
      CHECK(both[of_b.size() + i].is_idle == of_a[i].is_idle);
      CHECK(moved[i].is_idle ==
            (gathered(a.without[i], kv, at_q, at_k) == gathered(a.elements, kv, at_q, at_k)));
      ++(of_a[i].is_idle ? idle : active);
    }
  }
  CHECK(idle > 500);
  CHECK(active > 500);
  const auto texts = [](const Mask& mask) {
    std::string all;
    for (const MaskBound& bound : bounds_of(mask)) all += bound.text + (bound.is_idle ? " idle, " : ", ");
    return all;
  };
  CHECK(texts(local_mask(1024, 1024, 4096, 0) & chunked_mask(1024, 1024, 1023)) ==
        "left=4096 idle, size=1023, ");
  CHECK(texts(local_mask(1024, 1024, 1022, 7) | prefix_mask(1024, 1024, 1024)) ==
        "left=1022, right=7, keys=1024 idle, ");
  CHECK(texts(local_mask(1, 1024, 1022, std::nullopt, 1023) | causal_mask(1, 1024, 1023)) == "left=1022, ");
  CHECK(texts(local_mask(5, 5, INT64_MAX, INT64_MAX, INT64_MIN)) ==
        "left=9223372036854775807 idle, "
        "right=9223372036854775807, ");
}

TEST_CASE("a bound is idle among documents where no pair of one document is beyond it") {
  plain::Random random(22);
  std::int64_t idle = 0, active = 0;
  for (int n = 0; n < 2000; ++n) {
    const std::int64_t tokens = plain::between(random, 1, 40);
    std::vector<std::int64_t> cu{0};
    while (cu.back() < tokens) cu.push_back(std::min(tokens, cu.back() + plain::between(random, 0, 20)));
    const PlainTerm term = random_term(random, tokens, tokens);
    const Mask documents = documents_mask(cu);
    const std::vector<std::uint8_t> allowed = plain::elements_of(documents);
    const auto within = [&](std::vector<std::uint8_t> elements) {
      for (std::size_t i = 0; i < elements.size(); ++i) elements[i] &= allowed[i];
      return elements;
    };
    CAPTURE(n);
    for (const Mask& mask : {term.mask & documents, full_mask(tokens, tokens) & (documents & term.mask),
                             ~(causal_mask(tokens, tokens, 50) & documents & term.mask)}) {
      const std::vector<MaskBound> bounds = bounds_of(mask);
      REQUIRE(bounds.size() == term.without.size());
      for (std::size_t i = 0; i < bounds.size(); ++i) {
        CHECK(bounds[i].is_idle == (within(term.without[i]) == within(term.elements)));
        ++(bounds[i].is_idle ? idle : active);
      }
    }
    const std::vector<MaskBound> alone = bounds_of(term.mask), either = bounds_of(term.mask | documents);
    for (std::size_t i = 0; i < alone.size(); ++i) CHECK(either[i].is_idle == alone[i].is_idle);
  }
  CHECK(idle > 500);
  CHECK(active > 500);
}

TEST_CASE("a mask that is known to be full is full, and positional kinds are known") {
  plain::Random random(21);
  const auto is_full = [](const std::vector<std::uint8_t>& elements) {
    return std::count(elements.begin(), elements.end(), 1) == std::ssize(elements);
  };
  std::int64_t known = 0;
  for (int n = 0; n < 4000; ++n) {
    const std::int64_t q = plain::between(random, 1, 12), kv = plain::between(random, 1, 12);
    const plain::Pair mask = plain::random_mask(random, q, kv, 2);
    CAPTURE(mask.mask.text());
    const bool is_known = is_known_full(mask.mask);
    known += is_known ? 1 : 0;
    CHECK((!is_known || is_full(mask.elements)));
    const PlainTerm term = random_term(random, q, kv);
    CHECK(is_known_full(term.mask) == is_full(term.elements));
  }
  CHECK(known > 200);
}

TEST_CASE("masks are the same when kind, parameters, operands and contents are") {
  const auto array = [](std::uint8_t last) {
    return array_mask(make_source(plain::array_of(2, 2, {1, 0, 1, last})));
  };
  CHECK(array(1).same_as(array(1)));
  CHECK_FALSE(array(1).same_as(array(0)));
  CHECK(causal_mask(2, 2).same_as(causal_mask(2, 2)));
  CHECK_FALSE(causal_mask(2, 2).same_as(causal_mask(2, 2, 1)));
  CHECK_FALSE(causal_mask(2, 2).same_as(array(1)));
  CHECK_FALSE(causal_mask(2, 2).same_as(local_mask(2, 2, std::nullopt, 0)));
  CHECK((causal_mask(2, 2) & array(1)).same_as(causal_mask(2, 2) & array(1)));
  CHECK_FALSE((causal_mask(2, 2) & array(1)).same_as(array(1) & causal_mask(2, 2)));
  CHECK_FALSE((causal_mask(2, 2) & array(1)).same_as(causal_mask(2, 2) | array(1)));
  CHECK((~array(0)).same_as(~array(0)));
}

TEST_CASE("documents: cu_seqlens that is none is refused with the index at fault") {
  const auto documents = [](std::vector<std::int32_t> cu) {
    return documents_mask(
        *make_source(Array::from<std::int32_t>({static_cast<std::int64_t>(cu.size())}, cu), "cu.npy"));
  };
  CHECK(documents({0, 3, 3, 5}).q_length() == 5);
  CHECK_THROWS_WITH_AS(documents({1, 3}), "cu.npy: cu_seqlens[0] is 1, not 0", Error);
  CHECK_THROWS_WITH_AS(documents({0, 3, 2}), "cu.npy: cu_seqlens decreases at index 2: 2 after 3", Error);
  CHECK_THROWS_AS(documents({}), Error);
  CHECK_THROWS_AS(documents({0}), Error);
}

TEST_CASE("segment ids of 64 bits keep their identity") {
  const std::vector<std::int64_t> ids{1, std::int64_t{1} << 32, (std::int64_t{1} << 32) + 1, -7,
                                      0, std::int64_t{1} << 32};
  const auto source = make_source(Array::from<std::int64_t>({6}, ids), "ids");
  const Mask m = segments_mask(*source, *source);
  bool elements[36];
  m.read(0, 6, 0, 6, elements);
  for (std::size_t i = 0; i < 6; ++i)
    for (std::size_t j = 0; j < 6; ++j) CHECK(elements[6 * i + j] == (ids[i] == ids[j] && ids[i] > 0));
}

TEST_CASE("the masks that a mask is taken for have its shape, and are what their texts say") {
  const auto elements = [](const Mask& mask) {
    std::vector<std::uint8_t> out(static_cast<std::size_t>(mask.q_length() * mask.kv_length()));
    mask.read(0, mask.q_length(), 0, mask.kv_length(), reinterpret_cast<bool*>(out.data()));
    return out;
  };
  const auto find = [](const Mask& mask, const std::string& text) {
    for (const mask::NearbyMask& other : mask::nearby_masks(mask))
      if (other.text == text) return other.mask;
    FAIL(text);
    return mask;
  };
  plain::Random random(41);
  for (int n = 0; n < 100; ++n) {
    const std::int64_t q = plain::between(random, 1, 70), kv = n % 2 == 0 ? q : plain::between(random, 1, 70);
    const plain::Pair pair = plain::random_mask(random, q, kv, 2);
    std::vector<std::uint8_t> inverted = pair.elements;
    for (auto& e : inverted) e ^= 1;
    CHECK(elements(find(pair.mask, "the mask is inverted")) == inverted);
    CHECK(elements(find(pair.mask, "the mask is ignored")) ==
          std::vector<std::uint8_t>(pair.elements.size(), 1));
    if (q == kv)
      CHECK(elements(find(pair.mask, "the mask is transposed")) == plain::table(q, q, [&](auto i, auto j) {
              return pair.elements[static_cast<std::size_t>(j * q + i)] != 0;
            }));
    for (const mask::NearbyMask& other : mask::nearby_masks(pair.mask)) {
      CHECK(other.mask.q_length() == q);
      CHECK(other.mask.kv_length() == kv);
      CHECK(elements(other.mask).size() == pair.elements.size());
    }
  }
  const auto same = [&](const Mask& mask, const char* text, const Mask& as) {
    CAPTURE(text);
    CHECK(find(mask, text).same_as(as));
  };
  same(causal_mask(9, 12, 2), "the causal edge is one key too far", causal_mask(9, 12, 3));
  same(causal_mask(9, 12, 2), "the causal edge is one key short", causal_mask(9, 12, 1));
  same(causal_mask(9, 12, 2), "queries and keys are aligned at the bottom right", causal_mask(9, 12, 3));
  same(local_mask(9, 9, 3, 0), "the window is one key longer at the left", local_mask(9, 9, 4, 0));
  same(local_mask(9, 9, 3, 0), "the window has no left edge", local_mask(9, 9, std::nullopt, 0));
  same(causal_mask(9, 9) & chunked_mask(9, 9, 4), "'causal' is left out", chunked_mask(9, 9, 4));
  same(causal_mask(9, 9) | full_mask(9, 9), "the causal edge is one key short",
       causal_mask(9, 9, -1) | full_mask(9, 9));
  same(chunked_mask(9, 12, 4), "queries and keys are aligned at the bottom right", chunked_mask(9, 12, 4, 3));
  same(chunked_mask(9, 12, 4, 3), "queries and keys are aligned at the top left", chunked_mask(9, 12, 4));
  same(chunked_mask(9, 12, 4, 3), "chunks are ignored: it is causal alone", causal_mask(9, 12, 3));
  same(chunked_mask(9, 12, 4, 3), "chunks are a window that moves with the query",
       local_mask(9, 12, 3, 0, 3));
  CHECK(elements(find(chunked_mask(9, 12, 4, -2), "chunks are not causal")) ==
        plain::table(9, 12, [](auto i, auto j) { return i >= 2 && (i - 2) / 4 == j / 4; }));
  same(~causal_mask(9, 9), "'causal' is not negated", causal_mask(9, 9));
  same(causal_mask(9, 9), "the last key is left out", causal_mask(9, 9) & prefix_mask(9, 9, 8));
  same(full_mask(2, 37), "the keys after whole tiles of 16 are left out",
       full_mask(2, 37) & prefix_mask(2, 37, 32));
  const std::vector<std::int64_t> ids{1, 1, 2, 0}, all{1, 1, 1, 0};
  same(segments_mask(ids, ids), "segments are ignored, padding is not", segments_mask(all, all));
  const std::vector<std::int64_t> cu{0, 2, 5}, late{0, 3, 5};
  same(documents_mask(cu), "documents begin one token late", documents_mask(late));
}

TEST_CASE("bands hold what elements are, and go forward") {
  plain::Random random(33);
  int told = 0;
  for (int round = 0; round < 2000; ++round) {
    CAPTURE(round);
    const std::int64_t q = plain::between(random, 1, 60), kv = plain::between(random, 1, 80);
    const plain::Pair pair = plain::random_mask(random, q, kv, 3);
    const MaskNode& node = pair.mask.node();
    REQUIRE(node.bands() <= mask::kMostBands);
    if (node.bands() == 0) continue;
    ++told;
    const std::int64_t first = plain::between(random, 0, q - 1), rows = plain::between(random, 1, q - first);
    std::vector<std::uint8_t> seen(static_cast<std::size_t>(rows * kv));
    bool forward = true;
    for (std::int64_t b = 0; b < node.bands(); ++b) {
      std::vector<IndexRange> runs(static_cast<std::size_t>(rows));
      node.band(b, {first, first + rows}, runs.data());
      for (std::size_t r = 0; r < runs.size(); ++r) {
        forward =
            forward && (r == 0 || (runs[r].begin >= runs[r - 1].begin && runs[r].end >= runs[r - 1].end));
        for (std::int64_t k = std::max<std::int64_t>(runs[r].begin, 0); k < std::min(runs[r].end, kv); ++k)
          seen[r * static_cast<std::size_t>(kv) + static_cast<std::size_t>(k)] = 1;
      }
    }
    CHECK(forward);
    CHECK(std::equal(seen.begin(), seen.end(), pair.elements.begin() + first * kv));
  }
  CHECK(told > 200);
}
