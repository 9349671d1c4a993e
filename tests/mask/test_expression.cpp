// The language of mask expressions: parsing, and the positions of errors.
#include <doctest/doctest.h>

#include <map>

#include "ejk/mask.hpp"
#include "ejk/mask_info.hpp"
#include "support/failure.hpp"
#include "support/random_mask.hpp"

using namespace ejk;

namespace {

std::shared_ptr<const ArraySource> open_test_array(const std::string& reference) {
  if (reference == "cu.npy")
    return make_source(Array::from<std::int32_t>({3}, std::vector<std::int32_t>{0, 3, 8}), reference);
  if (reference == "ids[0,:]" || reference == "a,b.npy")
    return make_source(Array::from<std::int32_t>({8}, std::vector<std::int32_t>{1, 1, 1, 2, 2, 2, 2, 2}),
                       reference);
  if (reference == "heads.npy") {
    Array a(DType::boolean, {2, 8, 8});
    for (std::size_t i = 0; i < 64; ++i) a.elements<bool>()[64 + i] = true;
    return make_source(std::move(a), reference);
  }
  if (reference == "blocks.npy")  // 0 1 1 / 1 0 0
    return make_source(plain::array_of(2, 3, {0, 1, 1, 1, 0, 0}), reference);
  const auto integers = [&](Shape shape, const std::vector<std::int32_t>& values) {
    return make_source(Array::from<std::int32_t>(std::move(shape), values), reference);
  };
  if (reference == "order.npy") return integers({8}, {0, 7, 1, 6, 2, 5, 3, 4});
  if (reference == "keys.npy") return integers({8, 2}, {0, -1, 1, 0, 7, 2, 3, -1, 4, 0, 5, -1, 6, 0, -1, -1});
  if (reference == "twice.npy") return integers({8, 2}, {0, 0, 1, 0, 7, 2, 3, -1, 4, 0, 5, -1, 6, 0, -1, -1});
  if (reference == "far.npy") return integers({8, 1}, {0, 1, 2, 8, 4, 5, 6, 7});
  if (reference == "huge.npy")
    return make_source(Array::from<std::int64_t>({8}, std::vector<std::int64_t>(8, INT64_MAX)), reference);
  if (reference == "parents.npy") return integers({8}, {-1, 0, 0, 1, 1, 2, -1, 6});
  if (reference == "late.npy") return integers({8}, {-1, 0, 3, 1, 1, 2, -1, 6});
  if (reference == "empty.npy") return make_source(Array(DType::boolean, {0, 8}), reference);
  throw Error(Error::Kind::input, reference + ": no such file");
}

std::vector<std::uint8_t> elements(const std::string& text, std::int64_t head = 0, std::int64_t heads = 1) {
  const Mask m = MaskExpression::parse(text).resolve({heads, 8, 8}, head, Polarity::keep, open_test_array);
  std::vector<std::uint8_t> out(64);
  m.read(0, 8, 0, 8, reinterpret_cast<bool*>(out.data()));
  return out;
}

std::string failure(const std::string& text) {
  return plain::failure_and_hint([&] { elements(text); });
}

}  // namespace

TEST_CASE("operators bind ~ before & before |, left to right") {
  CHECK(elements("full") == plain::table(8, 8, [](auto, auto) { return true; }));
  CHECK(elements("causal()") == elements("causal"));
  CHECK(elements("~causal & local(1,1) | chunked(4)") ==
        elements("((~causal) & local(left=1,right=1)) | chunked(size=4)"));
  CHECK(elements("causal | full & ~full") == elements("causal"));
  CHECK(elements("~~causal") == elements("causal"));
  CHECK(elements("~(causal|full)") == elements("~full"));
  CHECK(elements(" causal ( offset = -2 ) ") ==
        plain::table(8, 8, [](auto i, auto j) { return i - 2 >= j; }));
  CHECK(elements("local(none,2,1)") == plain::table(8, 8, [](auto i, auto j) { return j <= i + 3; }));
  CHECK(elements("local(left=2,right=none)") ==
        plain::table(8, 8, [](auto i, auto j) { return j >= i - 2; }));
}

TEST_CASE("a window needs both sides, and one alone is answered with what it may mean") {
  CHECK(failure("local(256)") ==
        "mask expression 'local(256)': at \"local(256)\": local needs its argument 'right' | a causal window "
        "of "
        "256 keys is local(left=255, right=0); without a bound: right=none");
  CHECK(failure("causal | local(left=1)")
            .ends_with("| a causal window of 1 key is local(left=0, right=0); without a bound: right=none"));
  for (const char* text : {"local", "local()", "local(left=0)", "local(left=none)", "local(right=3)"})
    CHECK(failure(text).ends_with(
        "| local(left=L, right=R) with offset=K or align=bottom-right; L and R are counts or none"));
  CHECK(elements("local(none,none)") == elements("full"));
  CHECK(elements("causal()") == elements("causal"));
  CHECK(failure("causal(offset=none)").find("is not a whole number") != std::string::npos);
}

TEST_CASE("a window is aligned at the bottom right as a causal mask is") {
  const auto of = [](const char* text) {
    const Mask m = MaskExpression::parse(text).resolve({1, 3, 8}, 0, Polarity::keep, open_test_array);
    return m.text();
  };
  CHECK(of("causal(align=bottom-right)") == "causal(offset=5)");
  CHECK(of("local(2,0,align=bottom-right)") == "local(left=2,right=0,offset=5)");
  CHECK(of("local(2,0,align=top-left)") == "local(left=2,right=0)");
  CHECK(failure("local(1,1,offset=2,align=top-left)").find("exclude each other") != std::string::npos);
}

TEST_CASE("an expression knows whether it leaves the alignment open") {
  const auto open = [](const char* text) { return MaskExpression::parse(text).leaves_alignment_open(); };
  for (const char* text :
       {"causal", "~causal & file(a.npy)", "full | local(3,none)", "chunked(4) & causal()", "chunked(4)"})
    CHECK_MESSAGE(open(text), text);
  for (const char* text : {"causal(offset=0)", "causal(align=top-left)", "local(3,0,1)", "local(none,none)",
                           "chunked(4,offset=0)", "documents(cu.npy)"})
    CHECK_MESSAGE(!open(text), text);
}

TEST_CASE("references keep their brackets, and quotes keep anything") {
  const auto documents = plain::table(8, 8, [](auto i, auto j) { return (i < 3) == (j < 3); });
  CHECK(elements("documents(cu.npy)") == documents);
  CHECK(elements("segments(ids[0,:])") == documents);
  CHECK(elements("segments(ids[0,:],ids[0,:])") == documents);
  CHECK(elements("segments(\"a,b.npy\")") == documents);
  CHECK(elements("causal & documents( cu.npy )") ==
        plain::table(8, 8, [&](auto i, auto j) { return i >= j && (i < 3) == (j < 3); }));
  CHECK(elements("file(heads.npy)", 0, 2) == elements("~full"));
  CHECK(elements("file(heads.npy)", 1, 2) == elements("full"));
}

TEST_CASE("a prefix is the first keys, and blocks stand for elements") {
  CHECK(elements("prefix(3)") == plain::table(8, 8, [](auto, auto j) { return j < 3; }));
  CHECK(elements("prefix(keys=0)") == elements("~full"));
  CHECK(elements("prefix(100)") == elements("full"));
  CHECK(failure("prefix").ends_with("prefix needs its argument 'keys' | prefix(KEYS)"));
  CHECK(failure("prefix(-1)").ends_with("keys=-1 is not a count | prefix(KEYS)"));
  const auto expected = plain::table(8, 8, [](auto i, auto j) { return (i < 4) == (j >= 3); });
  CHECK(elements("blocks(blocks.npy, 4x3)") == expected);
  CHECK(elements("blocks(blocks.npy, block=4x3)") == expected);
  CHECK(failure("blocks(blocks.npy, 3x3)") ==
        "blocks.npy: 2 x 3 blocks of 3x3 do not make 8 queries x 8 keys");
  CHECK(failure("blocks(blocks.npy)").ends_with("blocks needs its argument 'block' | blocks(REF, QxK)"));
  for (const char* block : {"4", "4x", "4x3x2", "0x4", "4 x 3", "99999999999999999999x1"})
    CHECK(failure("blocks(blocks.npy, " + std::string(block) + ")").find(" is not QxK | ") !=
          std::string::npos);
  CHECK(
      failure("blocks(cu.npy, 4x3)") ==
      "cu.npy: a mask is (query blocks, key blocks) or (heads, query blocks, key blocks), not of shape (3,)");
}

TEST_CASE("a MaskInfo is read back by from and visited") {
  const MaskInfo info = process_mask({causal_mask(8, 8) & full_mask(8, 8)}, {4, 2});
  ArrayGroup group = stored_arrays(info);
  int opened = 0;
  const OpenArray open(open_test_array, [&](const std::string& reference, const auto&) {
    ++opened;
    if (reference != "a.h5") throw Error(Error::Kind::input, reference + ": no such file");
    return group;
  });
  const auto read = [&](const char* text, const Shape& shape = {1, 8, 8}) {
    const Mask m = MaskExpression::parse(text).resolve(shape, 0, Polarity::keep, open);
    std::vector<std::uint8_t> out(64);
    m.read(0, 8, 0, 8, reinterpret_cast<bool*>(out.data()));
    return out;
  };
  CHECK(read("from(a.h5)") == elements("causal"));
  CHECK(read("visited(a.h5) & from(a.h5)") == elements("causal"));
  CHECK(read("visited(a.h5)") == plain::table(8, 8, [](auto i, auto j) { return i / 4 >= j / 4; }));
  CHECK(opened == 1);  // by what is said of it
  CHECK(read("from(a.h5, block=4x2, shape=8x8, walk=forward, head_shards=1)") == elements("causal"));
  CHECK(opened == 2);
  const MaskShape shape = MaskExpression::parse("from(a.h5)").shape(open);
  CHECK((shape.heads == 1 && shape.q_length == 8 && shape.kv_length == 8 && !shape.at_most));
  const auto refused = [&](const char* text, Error::Kind kind = Error::Kind::usage) {
    return plain::failure([&] { read(text, {1, 8, 8}); }, kind);
  };
  CHECK(refused("from(b.h5)", Error::Kind::input) == "b.h5: no such file");
  CHECK(refused("from(a.h5, 2x2)") == "the MaskInfo: its block is 4x2, and 2x2 is given");
  CHECK(refused("from(a.h5, walk=dkv)") == "the MaskInfo: its direction is forward, and dkv is given");
  CHECK(refused("from(a.h5, shape=1x8x9)").ends_with("its shape is (1, 8, 8), and (1, 8, 9) is given"));
  CHECK(refused("from(a.h5, walk=up)").ends_with("walk=up is neither forward nor dkv"));
  CHECK(refused("from(a.h5, head_shards=0)").ends_with("the number of head shards 0 is not positive"));
  CHECK(failure("from(a.h5)") == "from(...) names a file of several arrays, which cannot be opened here");
}

TEST_CASE("keys of queries, trees and positions have their elements, and wrong numbers are named") {
  const std::int64_t order[] = {0, 7, 1, 6, 2, 5, 3, 4}, sequence[] = {0, 0, 0, 1, 1, 1, 1, 1};
  CHECK(
      elements("positions(causal & documents(cu.npy), q=order.npy)") ==
      plain::table(8, 8, [&](auto i, auto j) { return order[i] >= j && sequence[order[i]] == sequence[j]; }));
  CHECK(elements("positions(local(left=1, right=0), k=order.npy) & full") ==
        plain::table(8, 8, [&](auto i, auto j) { return i - 1 <= order[j] && order[j] <= i; }));
  CHECK(elements("positions(positions(causal, q=order.npy), q=order.npy)") ==
        plain::table(8, 8, [&](auto i, auto j) { return order[order[i]] >= j; }));
  CHECK(elements("indices(keys.npy)") == plain::table(8, 8, [](auto i, auto j) {
          return i < 7 &&
                 (j == (i == 2 ? 7 : i) || (j == 0 && (i == 1 || i == 4 || i == 6)) || (i == 2 && j == 2));
        }));
  CHECK(elements("tree(parents.npy)")[5 * 8 + 2] == 1);
  CHECK(elements("tree(parents.npy)")[5 * 8 + 1] == 0);
  CHECK(MaskExpression::parse("tree(parents.npy, prefix=4)").shape(open_test_array).kv_length == 12);

  CHECK(failure("indices(twice.npy)") ==
        "twice.npy: query 0 has key 0 twice, which a kernel that gathers keys counts twice");
  CHECK(failure("indices(far.npy)") == "far.npy(3, 0) is 8: there are 8 keys, and -1 is none");
  CHECK(failure("tree(late.npy)") ==
        "late.npy(2) is 3: a parent comes before its child, and that of a root is -1");
  CHECK(failure("positions(chunked(2), q=far.npy)").find("far.npy") != std::string::npos);
  CHECK(failure("positions(causal, q=huge.npy)") ==
        "huge.npy(0) is 9223372036854775807: the mask has 281474976710656 queries");
  CHECK(failure("positions(casual, q=order.npy)").find("did you mean 'causal'?") != std::string::npos);
  CHECK(failure("positions(q=order.npy)").find("needs its argument 'mask'") != std::string::npos);
  CHECK(failure("positions(documents(cu.npy), q=ids.npy[0,:])").find("no such file") != std::string::npos);
}

TEST_CASE("align=bottom-right moves the diagonal by kv - q") {
  const Mask m = MaskExpression::parse("causal(align=bottom-right)")
                     .resolve({1, 3, 8}, 0, Polarity::keep, open_test_array);
  CHECK(m.same_as(causal_mask(3, 8, 5)));
}

TEST_CASE("arrays fix the shape, and disagreement is an error") {
  const auto shape = [](const char* text) {
    const MaskShape found = MaskExpression::parse(text).shape(open_test_array);
    CHECK(found.at_most == (std::string(text).find("file") == std::string::npos &&
                            std::string(text).find("documents") == std::string::npos));
    return Shape{found.heads, found.q_length, found.kv_length};
  };
  CHECK(shape("causal & documents(cu.npy)") == Shape{1, 8, 8});
  CHECK(shape("documents(cu.npy) | file(heads.npy)") == Shape{2, 8, 8});
  CHECK(shape("causal & prefix(3)") == Shape{0, 0, 0});
  // Blocks are whole unless something else says how long they are.
  CHECK(shape("blocks(blocks.npy, 4x3)") == Shape{1, 8, 9});
  CHECK(shape("blocks(blocks.npy, 4x3) & blocks(blocks.npy, 5x4)") == Shape{1, 8, 9});
  CHECK(shape("blocks(blocks.npy, 4x3) & file(heads.npy)") == Shape{2, 8, 8});
  CHECK_THROWS_AS(
      MaskExpression::parse("documents(cu.npy)").resolve({1, 8, 9}, 0, Polarity::keep, open_test_array),
      Error);
  CHECK_THROWS_AS(
      MaskExpression::parse("file(heads.npy)").resolve({3, 8, 8}, 0, Polarity::keep, open_test_array), Error);
}

TEST_CASE("the text of a mask is an expression that gives it again") {
  plain::Random random(5);
  for (int n = 0; n < 300; ++n) {
    Mask m = causal_mask(8, 8);
    for (int k = 0; k < 6; ++k) {
      const std::int64_t x = plain::between(random, 0, 9);
      const Mask leaf = x < 3   ? causal_mask(8, 8, x - 1)
                        : x < 6 ? local_mask(8, 8, x, std::nullopt, x - 4)
                                : chunked_mask(8, 8, x, n % 5 - 2);
      switch (plain::between(random, 0, 4)) {
        case 0:
          m = ~m;
          break;
        case 1:
          m = m & leaf;
          break;
        case 2:
          m = leaf & m;
          break;
        case 3:
          m = m | leaf;
          break;
        default:
          m = leaf | m;
          break;
      }
    }
    CHECK_MESSAGE(
        MaskExpression::parse(m.text()).resolve({1, 8, 8}, 0, Polarity::keep, open_test_array).same_as(m),
        m.text());
  }
}

TEST_CASE("what is no expression is refused where it stops making sense") {
  CHECK(failure("casual") ==
        "mask expression 'casual': at \"casual\": 'casual' is not a kind of mask | did you mean 'causal'?");
  CHECK(failure("") ==
        "mask expression '': at its end: expected a kind of mask | the kinds are full, causal, local, "
        "chunked, prefix, segments, documents, file, blocks, indices, tree, positions, from, visited");
  CHECK(failure("causal &").find("at its end: expected a kind") != std::string::npos);
  CHECK(failure("(causal").find("expected ')'") != std::string::npos);
  CHECK(failure("causal)").find("')' closes nothing") != std::string::npos);
  CHECK(failure("causal causal").find("expected '&', '|' or the end") != std::string::npos);
  CHECK(failure("causal(ofset=1)").find("causal has no argument 'ofset'") != std::string::npos);
  CHECK(failure("from(x.h5, foo=1)").find("from has no argument 'foo'") != std::string::npos);
  CHECK(failure("blocks(x.npy, sizes=4x4)").find("blocks has no argument 'sizes'") != std::string::npos);
  CHECK(failure("causal(offset=x)").find("offset=x is not a whole number") != std::string::npos);
  CHECK(failure("causal(offset=none)").find("not a whole number") != std::string::npos);
  CHECK(failure("causal(offset=99999999999999999999)").find("beyond 64 bits") != std::string::npos);
  CHECK(failure("causal(offset=1,offset=2)").find("offset is given twice") != std::string::npos);
  CHECK(failure("causal(offset=1,align=bottom-right)").find("exclude each other") != std::string::npos);
  CHECK(failure("chunked").find("chunked needs its argument") != std::string::npos);
  CHECK(failure("chunked(0)").find("the chunk size 0 is not positive") != std::string::npos);
  CHECK(failure("chunked(4").find("'(' is not closed") != std::string::npos);
  CHECK(failure("causal(").find("'(' is not closed") != std::string::npos);
  CHECK(failure("full & chunked(1.5)").find("at \"chunked(1.5)\": size=1.5 is not a whole number") !=
        std::string::npos);
  CHECK(failure("local(-1,2)").find("left=-1 is not a count") != std::string::npos);
  CHECK(failure("full(1)").find("full takes no such argument") != std::string::npos);
  CHECK(failure("file(\"x").find("is not closed") != std::string::npos);
  CHECK(MaskExpression::parse("file(empty.npy)").shape(open_test_array).q_length == 0);
  CHECK(failure("file(empty.npy)") == "empty.npy: shape (0, 8) has no element");
  CHECK(failure("file(gone.npy)") == "gone.npy: no such file");
  CHECK(failure(std::string(100000, '(')).find("nested more than") != std::string::npos);
  CHECK(failure(std::string(100000, '~') + "causal").find("nested more than") != std::string::npos);
  std::string chain = "full";
  for (int n = 0; n < 26000; ++n) chain += "&full";
  CHECK(failure(chain).find("more than 1000 operators") != std::string::npos);
  CHECK(failure("\x1b[2Jcausal").find('\x1b') == std::string::npos);
}

TEST_CASE("chunks are aligned as causal masks and windows are") {
  const auto row = [](const char* text) {
    const Mask mask = MaskExpression::parse(text).resolve({1, 1, 11}, 0, Polarity::keep, open_test_array);
    return plain::elements_of(mask);
  };
  CHECK(row("chunked(4, align=bottom-right)") == std::vector<std::uint8_t>{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1});
  CHECK(row("chunked(4, offset=5)") == std::vector<std::uint8_t>{0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0});
  CHECK(row("chunked(4, offset=-1)") == std::vector<std::uint8_t>(11));
  CHECK(row("chunked(4)") == row("chunked(4, align=top-left)"));
  CHECK(MaskExpression::parse("full & chunked(4)").leaves_alignment_open());
  CHECK_FALSE(MaskExpression::parse("chunked(4, align=bottom-right)").leaves_alignment_open());
  // As JAX's ChunkedCausalMask, which has no offset.
  CHECK(chunked_mask(8, 8, 4).is_computable());
  CHECK_FALSE(chunked_mask(8, 8, 4, 1).is_computable());
  CHECK_FALSE(chunked_mask(8, 8, 4, 1).same_as(chunked_mask(8, 8, 4)));
  for (const std::int64_t far : {INT64_MIN, INT64_MAX - 1})
    CHECK(plain::elements_of(chunked_mask(1, 11, INT64_MAX, far)) == std::vector<std::uint8_t>(11, far > 0));
}

TEST_CASE("the words of other libraries get the expression that is meant") {
  const auto meant = [](const char* text) { return MaskExpression::meant_by(text).value_or(""); };
  CHECK(meant("causal and local(left=255, right=0)") == "causal & local(left=255, right=0)");
  CHECK(meant("causal&&full||not full") == "causal&full|~full");
  CHECK(meant("!causal AND Full") == "~causal & full");
  CHECK(meant("sliding_window(256)") == "local(left=255, right=0)");
  CHECK(meant("window(128, 0) & causal") == "local(left=128, right=0) & causal");
  CHECK(meant("window_size(-1, 0)") == "local(left=none, right=0)");
  CHECK(meant("sliding_window(window=4, align=bottom-right)") ==
        "local(left=3, right=0, align=bottom-right)");
  CHECK(meant("sliding_window(256) or sink(4)") == "local(left=255, right=0) | causal & prefix(4)");
  CHECK(meant("q >= k") == "causal");
  CHECK(meant("kv_idx<=q_idx") == "causal");
  CHECK(meant("i > j") == "causal(offset=-1)");
  CHECK(meant("(q_idx >= kv_idx) & (q_idx - kv_idx < 128)") == "(causal) & (local(left=127, right=none))");
  CHECK(meant("row - col <= 4 and causal") == "local(left=4, right=none) & causal");
  for (const char* other :
       {"q <= k", "q >= q", "q", "q >=", "k - q < 4", "q - k < 0", "q - k > 4", "xq >= k", "q - k"})
    CHECK_MESSAGE(meant(other) == "", other);
  CHECK(meant("sinks(4) | window(3)") == "causal & prefix(4) | local(left=2, right=0)");
  CHECK(meant("chunk(64) & block_diagonal(cu.npy)") == "chunked(64) & documents(cu.npy)");
  CHECK(meant("document(cu.h5:/x[0,:]) and causal_mask") == "documents(cu.h5:/x[0,:]) & causal");
  CHECK(meant("segment(q.npy, kv.npy)") == "");
  CHECK(meant("padding(pad.npy[0])") == "segments(pad.npy[0])");
  CHECK(meant("prefix_lm(4) & documents(cu.npy)") == "(causal | prefix(4)) & documents(cu.npy)");
  CHECK(meant("prefix_lm(4)") == "causal | prefix(4)");
  CHECK(meant("causal_lower_right") == "causal(align=bottom-right)");
  CHECK(meant("file(this and that.npy) and causal") == "file(this and that.npy) & causal");
  // No expression is meant, or it is one.
  for (const char* text : {"causal", "casual and full", "window(0)", "window", "window(x)", "sink(4)",
                           "causal & sink(4)", "and", "window(4", "sink((((", ""})
    CHECK_MESSAGE(meant(text) == "", text);
  CHECK(failure("causal and full").find(" | 'causal & full'") != std::string::npos);
  CHECK(failure("sink(4)").find("local(left=L, right=0) | causal & prefix(N)") != std::string::npos);
  CHECK(failure("window").find("a causal window of L + 1 keys is local(left=L, right=0)") !=
        std::string::npos);
  CHECK(failure("casual and full").find("did you mean 'causal'?") != std::string::npos);
  CHECK(failure("causal and casual").find("& is and") != std::string::npos);
}

TEST_CASE("an expression says what it is without naming its arrays") {
  const auto hidden = [](const char* text) { return MaskExpression::parse(text).text(References::hidden); };
  CHECK(hidden("causal(offset=3) & ~full") == "causal(offset=3) & ~full");
  CHECK(hidden("causal & file(secret/b.npy)") == "causal & file(...)");
  CHECK(hidden("file (secret.npy)|(segments(q=secret.npy, kv=secret.h5:/x[0,:]))") ==
        "file (...)|(segments(...))");
  CHECK(hidden("documents(\"secret ) (.npy\" ) & local(3,0)") == "documents(...) & local(3,0)");
  CHECK(hidden("(file(secret(1).npy))") == "(file(...))");
  CHECK(MaskExpression::parse("file( a.npy )").text(References::shown) == "file( a.npy )");
}
