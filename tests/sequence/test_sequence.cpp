// cu_seqlens and derived arrays: golden cases of both conventions, round trips, errors with their index.
#include "ejk/sequence.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <numeric>
#include <random>

#include "support/equal.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"

using namespace ejk;

namespace {

using plain::failure;

using Source = std::shared_ptr<const ArraySource>;

void check_family(const std::string& family, const std::string& in, const std::string& out,
                  const std::function<Array(const Source&, const nlohmann::json&)>& f) {
  for (const golden::Case& c : golden::load(family)) {
    CAPTURE(family);
    CAPTURE(c.name);
    const Source source = make_source(c.in.at(in).view(), in);
    if (c.is_error)
      CHECK_THROWS_AS(f(source, c.params), Error);
    else
      golden::check_equal(f(source, c.params), c, out);
  }
}

Source integers(const std::vector<std::int64_t>& values) {
  return make_source(Array::from<std::int64_t>({static_cast<std::int64_t>(values.size())}, values), "cu.npy");
}

std::vector<std::int64_t> values_of(const Array& a) {
  std::vector<std::int64_t> values;
  dispatch(a.dtype(), [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_integral_v<T>)
      for (const T v : a.elements<T>()) values.push_back(static_cast<std::int64_t>(v));
  });
  return values;
}

}  // namespace

TEST_CASE("golden cases of the sequence functions") {
  check_family("cdiv", "a", "out",
               [](const Source& a, const nlohmann::json& p) { return cdiv(*a, p.at("b")); });
  check_family("prepare_lens", "cu_seqlens", "lens",
               [](const Source& cu, const auto&) { return prepare_lens(*cu); });
  check_family("prepare_lens_from_mask", "mask", "lens",
               [](const Source& m, const auto&) { return prepare_lens_from_mask(*m); });
  check_family("prepare_cu_seqlens_from_mask", "mask", "cu_seqlens",
               [](const Source& m, const nlohmann::json& p) {
                 return prepare_cu_seqlens_from_mask(*m, *dtype_named(p.at("out_dtype").get<std::string>()));
               });
  check_family("prepare_position_ids", "cu_seqlens", "position_ids",
               [](const Source& cu, const auto&) { return read_all(*prepare_position_ids(*cu)); });
  check_family("prepare_chunk_offsets", "cu_seqlens", "chunk_offsets",
               [](const Source& cu, const nlohmann::json& p) {
                 return prepare_chunk_offsets(*cu, p.at("chunk_size"));
               });
  for (const Convention convention : {Convention::document, Convention::ejkernel}) {
    const std::string suffix = convention == Convention::ejkernel ? "_ejkernel" : "";
    check_family(
        "prepare_sequence_ids" + suffix, "cu_seqlens", "sequence_ids",
        [&](const Source& cu, const auto&) { return read_all(*prepare_sequence_ids(*cu, convention)); });
    check_family(
        "prepare_token_indices" + suffix, "cu_seqlens", "token_indices",
        [&](const Source& cu, const auto&) { return read_all(*prepare_token_indices(*cu, convention)); });
    check_family("prepare_chunk_indices" + suffix, "cu_seqlens", "chunk_indices",
                 [&](const Source& cu, const nlohmann::json& p) {
                   return read_all(*prepare_chunk_indices(*cu, p.at("chunk_size"), convention));
                 });
  }
}

TEST_CASE("ids of random lengths are those of a plain loop, whole and in boxes") {
  std::mt19937_64 random(1);
  for (int n = 0; n < 60; ++n) {
    std::vector<std::int64_t> cu{0}, labels, positions;
    const std::int64_t count = static_cast<std::int64_t>(random() % 40), longest = n % 10 == 0 ? 200'000 : 70;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t length =
          random() % 4 == 0 ? 0 : static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(longest));
      for (std::int64_t k = 0; k < length; ++k) labels.push_back(i), positions.push_back(k);
      cu.push_back(cu.back() + length);
    }
    const auto tokens = static_cast<std::int64_t>(labels.size());
    for (const DType dtype : {DType::int32, DType::int64, DType::uint32}) {
      const Source source = make_source([&] {
        Array a(dtype, {static_cast<std::int64_t>(cu.size())});
        dispatch(dtype, [&]<class T>(std::type_identity<T>) {
          if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
            for (std::size_t i = 0; i < cu.size(); ++i) a.elements<T>()[i] = static_cast<T>(cu[i]);
        });
        return a;
      }());
      CHECK(values_of(read_all(*prepare_position_ids(*source))) == positions);
      CHECK(values_of(read_all(*prepare_sequence_ids(*source))) == labels);
      const auto pairs = prepare_token_indices(*source);
      const auto all = values_of(read_all(*pairs));
      bool right = static_cast<std::int64_t>(all.size()) == 2 * tokens;
      for (std::size_t i = 0; right && i < labels.size(); ++i)
        right = all[2 * i] == labels[i] && all[2 * i + 1] == positions[i];
      CHECK(right);
      if (tokens < 3) continue;
      const std::int64_t begin = static_cast<std::int64_t>(random()) & 1, part = tokens - 2;
      for (const std::int64_t column : {0, 1}) {
        Array box(dtype, {part, 1});
        pairs->read(Shape{begin, column}, Shape{part, 1}, box.data());
        const auto got = values_of(box);
        const auto& expected = column == 0 ? labels : positions;
        CHECK(std::equal(got.begin(), got.end(), expected.begin() + begin));
      }
    }
    // lens ↔ cu_seqlens ↔ ids
    const Source source = integers(cu);
    const Array lens = prepare_lens(*source);
    CHECK(values_of(prepare_cu_seqlens_from_lens(*make_source(lens.view()), DType::int64)) == cu);
    if (tokens > 0) {
      std::vector<std::int64_t> without_empty{0};
      for (std::size_t i = 1; i < cu.size(); ++i)
        if (cu[i] > cu[i - 1]) without_empty.push_back(cu[i]);
      CHECK(values_of(prepare_cu_seqlens_from_segment_ids(*prepare_sequence_ids(*source), DType::int64)) ==
            without_empty);
    }
  }
}

TEST_CASE("cu_seqlens that is none is refused with the index at fault") {
  CHECK(failure([] {
          prepare_lens(*integers({0, 3, 2}));
        }) == "cu.npy: cu_seqlens decreases at index 2: 2 after 3");
  CHECK(failure([] { prepare_lens(*integers({1, 3})); }) == "cu.npy: cu_seqlens[0] is 1, not 0");
  CHECK(failure([] { prepare_lens(*integers({})); }).find("no element") != std::string::npos);
  CHECK(failure([] { prepare_chunk_offsets(*integers({0, 3}), 0); }).find("at least 1") != std::string::npos);
  CHECK(failure([] {
          prepare_cu_seqlens_from_lens(*integers({3, -1}));
        }).find("lens[1] is -1") != std::string::npos);
  CHECK(failure([] {
          prepare_cu_seqlens_from_lens(*integers({100, 100}), DType::int8);
        }) == "cu_seqlens[2] is 200, which int8 cannot hold");
  CHECK(failure([] {
          prepare_cu_seqlens_from_lens(*integers({2048, 1}), DType::float16);
        }) == "cu_seqlens[2] is 2049, which float16 cannot hold");
  CHECK(failure([] {
          prepare_cu_seqlens_from_lens(*integers({INT64_MAX, 1}), DType::int64);
        }).find("63 bits") != std::string::npos);
}

TEST_CASE("no sequence, one token and empty sequences are legal everywhere") {
  for (const std::vector<std::int64_t>& cu :
       {std::vector<std::int64_t>{0}, {0, 0, 0}, {0, 1}, {0, 0, 1, 1}}) {
    const Source source = integers(cu);
    const std::int64_t tokens = cu.back();
    CHECK(prepare_lens(*source).size() == static_cast<std::int64_t>(cu.size()) - 1);
    CHECK(read_all(*prepare_position_ids(*source)).shape() == Shape{tokens});
    CHECK(read_all(*prepare_token_indices(*source)).shape() == Shape{tokens, 2});
    CHECK(read_all(*prepare_chunk_indices(*source, 5)).shape() == Shape{tokens, 2});
  }
}

TEST_CASE("inspect_padding tells right-padded rows from others, for any type and width") {
  std::mt19937_64 random(7);
  for (const std::int64_t width : {1, 5, 63, 64, 65, 200, 700000}) {
    constexpr std::int64_t kRows = 5;
    Array mask(DType::int32, {kRows, width});
    const auto m = mask.elements<std::int32_t>();
    for (std::int64_t r = 0; r < kRows; ++r) {
      const std::int64_t begin = r % 2 == 0 ? 0 : static_cast<std::int64_t>(random() % 3),
                         end = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(width + 1));
      for (std::int64_t c = begin; c < end; ++c)
        m[static_cast<std::size_t>(r * width + c)] = r < 3 || random() % 4 != 0 ? -8 : 0;
    }
    const RowPadding padding = inspect_padding(*make_source(mask.view(), "mask"));
    std::int64_t left = 0, holes = 0;
    for (std::int64_t r = 0; r < kRows; ++r) {
      std::int64_t count = 0, first = -1, last = -1;
      for (std::int64_t c = 0; c < width; ++c)
        if (m[static_cast<std::size_t>(r * width + c)] != 0) {
          if (first < 0) first = c;
          last = c;
          ++count;
        }
      CHECK(padding.lens[static_cast<std::size_t>(r)] == count);
      left += count > 0 && first > 0;
      holes += count > 0 && last - first + 1 != count;
    }
    CHECK(padding.left_padded == left);
    CHECK(padding.with_holes == holes);
  }
}

TEST_CASE("count_sequences counts what is there and what is empty") {
  const auto count = [](std::vector<std::int32_t> cu) {
    return count_sequences(*make_source(
        Array::from<std::int32_t>({static_cast<std::int64_t>(cu.size())}, std::span<const std::int32_t>(cu)),
        "cu"));
  };
  const SequenceCounts some = count({0, 3, 3, 5});
  CHECK(some.sequences == 3);
  CHECK(some.tokens == 5);
  CHECK(some.empty == 1);
  CHECK(some.longest == 3);
  const SequenceCounts none = count({0});
  CHECK(none.sequences == 0);
  CHECK(none.longest == 0);
}
