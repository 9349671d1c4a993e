// Packing against a plain loop and back, for random masks with padding anywhere; boxes, indices in any order,
// and errors that name the index.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <string>

#include "ejk/pack.hpp"
#include "support/failure.hpp"

using namespace ejk;

namespace {

Array counting_floats(Shape shape) {
  Array x(DType::float32, std::move(shape));
  std::iota(x.elements<float>().begin(), x.elements<float>().end(), 1.0f);
  return x;
}

// Padding on the right, on the left, on both sides or anywhere; some rows empty, some full.
Array random_mask(std::int64_t batch, std::int64_t seq, std::mt19937_64& random) {
  Array mask(DType::int64, {batch, seq});
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t kind = below(4), begin = kind % 2 == 0 ? 0 : below(seq + 1), end = below(seq + 1);
    for (std::int64_t s = 0; s < seq; ++s)
      mask.elements<std::int64_t>()[static_cast<std::size_t>(b * seq + s)] =
          kind == 3 ? std::min<std::int64_t>(below(3), 1) : static_cast<std::int64_t>(s >= begin && s < end);
  }
  return mask;
}

}  // namespace

TEST_CASE("sequences with padding behind them are packed and unpacked, in any boxes") {
  const std::vector<std::int64_t> cu{0, 3, 3, 5}, padded{0, 4, 6, 9};
  const Array x = counting_floats({11, 2});  // two tokens more than the padding ends at
  const Packed p = pack_sequences(make_source(x.view(), "x"), cu, padded);
  const Array packed = read_all(*p.packed), indices = read_all(*p.indices);
  const std::vector<std::int64_t> places{0, 1, 2, 6, 7};
  REQUIRE(packed.shape() == Shape{5, 2});
  CHECK(std::ranges::equal(indices.elements<std::int64_t>(), places));
  CHECK(std::ranges::equal(p.cu_seqlens.elements<std::int32_t>(), cu));
  CHECK(p.max_seqlen == 3);
  for (std::size_t i = 0; i < 5; ++i)
    for (std::size_t d = 0; d < 2; ++d)
      CHECK(packed.elements<float>()[2 * i + d] ==
            x.elements<float>()[2 * static_cast<std::size_t>(places[i]) + d]);
  const auto back = unpack_sequences(make_source(packed.view(), "p"), cu, padded, 11, -1.0);
  REQUIRE(back->shape() == Shape{11, 2});
  for (std::int64_t begin = 0; begin < 11; ++begin)
    for (std::int64_t count = 1; begin + count <= 11; ++count) {
      Array box(DType::float32, {count, 1});
      back->read(Shape{begin, 1}, Shape{count, 1}, box.data());
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t token = begin + i;
        const bool is_token = std::ranges::find(places, token) != places.end();
        CHECK(box.elements<float>()[static_cast<std::size_t>(i)] ==
              (is_token ? x.elements<float>()[static_cast<std::size_t>(2 * token + 1)] : -1.0f));
      }
    }
  CHECK(unpack_sequences(make_source(packed.view(), "p"), cu, padded)->shape() == Shape{9, 2});
  const auto source = make_source(x.view(), "x");
  CHECK(plain::failure([&] {
          pack_sequences(source, cu, std::vector<std::int64_t>{0, 2, 6, 9});
        }).find("sequence 0 has 2 tokens with its padding, and 3 without") != std::string::npos);
  CHECK(plain::failure([&] {
          pack_sequences(source, cu, std::vector<std::int64_t>{0, 4, 6, 12});
        }).find("ends at 12 (index 3), and x has 11 tokens") != std::string::npos);
  CHECK(plain::failure([&] { unpack_sequences(source, cu, padded); }).find("x has 11 tokens") !=
        std::string::npos);
}

TEST_CASE("tokens before the first sequence with padding are of none") {
  const std::vector<std::int64_t> cu{0, 3, 4}, padded{2, 6, 8};
  const Array x = counting_floats({9, 1});
  const Packed p = pack_sequences(make_source(x.view(), "x"), cu, padded);
  CHECK(std::ranges::equal(read_all(*p.indices).elements<std::int64_t>(),
                           std::vector<std::int64_t>{2, 3, 4, 6}));
  const Array back = read_all(*unpack_sequences(p.packed, cu, padded, 9, -1.0));
  for (std::int64_t token = 0; token < 9; ++token) {
    const bool is_token = (token >= 2 && token < 5) || token == 6;
    const auto at = static_cast<std::size_t>(token);
    CHECK(back.elements<float>()[at] == (is_token ? x.elements<float>()[at] : -1.0f));
  }
}

TEST_CASE("pack is a plain loop over the mask, and unpack is its inverse") {
  std::mt19937_64 random(11);
  for (int n = 0; n < 60; ++n) {
    const auto batch = static_cast<std::int64_t>(random() % 6),
               width = static_cast<std::int64_t>(random() % 4);
    const std::int64_t seq = std::vector<std::int64_t>{0, 1, 7, 64, 65, 200}[random() % 6];
    const Array x = counting_floats({batch, seq, width}),
                mask = random_mask(batch, std::max<std::int64_t>(seq, 0), random);
    const auto m = mask.elements<std::int64_t>();
    const auto v = x.elements<float>();

    std::vector<float> packed;
    std::vector<std::int64_t> indices;
    std::vector<std::int32_t> cu{0};
    std::vector<float> restored(v.size(), -2.0f);
    std::int64_t longest = 0;
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t s = 0; s < seq; ++s) {
        const std::int64_t flat = b * seq + s;
        if (m[static_cast<std::size_t>(flat)] == 0) continue;
        indices.push_back(flat);
        for (std::int64_t w = 0; w < width; ++w) {
          const auto at = static_cast<std::size_t>(flat * width + w);
          packed.push_back(v[at]);
          restored[at] = v[at];
        }
      }
      cu.push_back(static_cast<std::int32_t>(indices.size()));
      longest = std::max<std::int64_t>(longest, cu.back() - cu[cu.size() - 2]);
    }

    const auto mask_source = make_source(mask.view(), "mask");
    const Packed p = pack(make_source(x.view(), "x"), *mask_source);
    const Array got = read_all(*p.packed), places = read_all(*p.indices);
    REQUIRE(got.shape() == Shape{static_cast<std::int64_t>(indices.size()), width});
    CHECK(std::equal(packed.begin(), packed.end(), got.elements<float>().begin()));
    CHECK(std::equal(indices.begin(), indices.end(), places.elements<std::int64_t>().begin()));
    REQUIRE(p.cu_seqlens.shape() == Shape{batch + 1});
    CHECK(std::equal(cu.begin(), cu.end(), p.cu_seqlens.elements<std::int32_t>().begin()));
    CHECK(p.max_seqlen == longest);

    const auto same = [&](const Array& back) {
      REQUIRE(back.shape() == x.shape());
      return std::equal(restored.begin(), restored.end(), back.elements<float>().begin());
    };
    const auto tokens = make_source(got.view(), "packed");
    CHECK(same(read_all(*unpack(tokens, *mask_source, {}, {}, -2))));
    CHECK(same(read_all(*unpack(tokens, *p.indices, batch, seq, -2))));

    // Tokens in another order, with their indices.
    std::vector<std::size_t> order(indices.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    Array mixed(DType::float32, got.shape()), mixed_indices(DType::int64, {places.size()});
    for (std::size_t i = 0; i < order.size(); ++i) {
      mixed_indices.elements<std::int64_t>()[i] = indices[order[i]];
      for (std::size_t w = 0; w < static_cast<std::size_t>(width); ++w)
        mixed.elements<float>()[i * static_cast<std::size_t>(width) + w] =
            packed[order[i] * static_cast<std::size_t>(width) + w];
    }
    CHECK(same(read_all(*unpack(make_source(mixed.view(), "packed"),
                                *make_source(mixed_indices.view(), "indices"), batch, seq, -2))));

    // Boxes of both.
    if (batch > 1 && seq > 6 && width > 1 && got.shape()[0] > 3) {
      std::vector<float> box(2 * 1);
      p.packed->read(Shape{1, 1}, Shape{2, 1}, box.data());
      CHECK(box[0] == packed[static_cast<std::size_t>(width + 1)]);
      CHECK(box[1] == packed[static_cast<std::size_t>(2 * width + 1)]);
      std::vector<float> part(2 * 3 * 1);
      unpack(tokens, *mask_source, {}, {}, -2)->read(Shape{0, 2, 1}, Shape{2, 3, 1}, part.data());
      for (std::int64_t b = 0; b < 2; ++b)
        for (std::int64_t s = 0; s < 3; ++s)
          CHECK(part[static_cast<std::size_t>(3 * b + s)] ==
                restored[static_cast<std::size_t>((b * seq + 2 + s) * width + 1)]);
    }
  }
}

TEST_CASE("every element type is packed bit by bit and filled with what it can hold") {
  const std::vector<std::uint8_t> bits{1, 0, 1, 1};
  const auto mask = make_source(Array::from<std::uint8_t>({2, 2}, bits), "mask");
  for (const DType d : kDTypes) {
    CAPTURE(name_of(d));
    Array x(d, {2, 2});
    for (std::int64_t i = 0; i < x.bytes(); ++i) x.data()[i] = static_cast<std::byte>(i % 2);
    const Array packed = read_all(*pack(make_source(x.view(), "x"), *mask).packed);
    const Array back = read_all(*unpack(make_source(packed.view(), "p"), *mask, {}, {}, 1));
    const auto size = static_cast<std::size_t>(size_of(d));
    CHECK(std::memcmp(back.data(), x.data(), size) == 0);
    CHECK(std::memcmp(back.data() + 2 * size, x.data() + 2 * size, 2 * size) == 0);
    const auto element = make_source(ArrayView{back.data() + size, d, {1}, {size_of(d)}});
    dispatch(d, [&]<class T>(std::type_identity<T>) {
      const Array filled = read_all(*element);
      if constexpr (std::is_arithmetic_v<T>)
        CHECK(filled.elements<T>()[0] == T{1});
      else
        CHECK(static_cast<float>(filled.elements<T>()[0]) == 1.0f);
    });
  }
}

TEST_CASE("by cu_seqlens a row begins with its sequence, as a plain loop has it") {
  std::mt19937_64 random(12);
  for (int n = 0; n < 60; ++n) {
    const auto batch = static_cast<std::int64_t>(random() % 6);
    std::vector<std::int64_t> cu{0};
    std::int64_t longest = 0;
    for (std::int64_t i = 0; i < batch; ++i) {
      cu.push_back(cu.back() + static_cast<std::int64_t>(random() % 9));
      longest = std::max(longest, cu.back() - cu[cu.size() - 2]);
    }
    if (cu.back() == batch + 1) continue;  // as many tokens as numbers: below
    const std::int64_t seq = longest + static_cast<std::int64_t>(random() % 3);
    const Array x = counting_floats({cu.back(), 2});
    std::vector<float> expected(static_cast<std::size_t>(batch * seq * 2), -3.0f);
    for (std::int64_t i = 0; i < batch; ++i)
      for (std::int64_t t = cu[static_cast<std::size_t>(i)]; t < cu[static_cast<std::size_t>(i) + 1]; ++t)
        for (std::int64_t w = 0; w < 2; ++w)
          expected[static_cast<std::size_t>(((i * seq) + t - cu[static_cast<std::size_t>(i)]) * 2 + w)] =
              x.elements<float>()[static_cast<std::size_t>(2 * t + w)];
    const Array back =
        read_all(*unpack(make_source(x.view(), "x"),
                         *make_source(Array::from<std::int64_t>({batch + 1}, cu), "cu"), batch, seq, -3));
    REQUIRE(back.shape() == Shape{batch, seq, 2});
    CHECK(std::equal(expected.begin(), expected.end(), back.elements<float>().begin()));
  }
}

TEST_CASE("as many numbers as tokens are indices or cu_seqlens by what they hold") {
  const auto tokens = make_source(counting_floats({4, 1}), "p.npy");
  const auto with = [&]<class T = std::int64_t>(const std::vector<T>& values, std::int64_t seq) {
    const Array back =
        read_all(*unpack(tokens, *make_source(Array::from<T>({4}, values), "w.npy"), 3, seq, -1));
    const auto elements = back.elements<float>();
    return std::vector<float>(elements.begin(), elements.end());
  };
  CHECK(with({0, 0, 2, 4}, 2) == std::vector<float>{-1, -1, 1, 2, 3, 4});  // 0 twice: no indices
  CHECK(with({5, 0, 3, 1}, 2) == std::vector<float>{2, 4, -1, 3, -1, 1});
  CHECK(with({0, 1, 2, 3}, 2) == std::vector<float>{1, 2, 3, 4, -1, -1});  // ends with 3 of 4 tokens
  // Both can be: libraries have indices as int64.
  CHECK(with({0, 1, 3, 4}, 2) == std::vector<float>{1, 2, -1, 3, 4, -1});
  CHECK(plain::failure([&] {
          with(std::vector<std::int32_t>{0, 1, 3, 4}, 2);
        }) == "w.npy: its 4 numbers can be indices of as many tokens and cu_seqlens of 3 rows");
  CHECK(plain::failure([&] { with({0, 2, 3, 4}, 1); }) == "w.npy: sequence 0 has 2 tokens, a row 1");
}

TEST_CASE("what does not fit is refused by its index") {
  const auto source = [](std::vector<std::int64_t> values) {
    return make_source(Array::from<std::int64_t>({static_cast<std::int64_t>(values.size())},
                                                 std::span<const std::int64_t>(values)),
                       "i.npy");
  };
  const auto tokens = make_source(Array(DType::int32, {3}), "p.npy");
  const auto with = [&](std::vector<std::int64_t> values) {
    return plain::failure([&] { unpack(tokens, *source(std::move(values)), 2, 4); });
  };
  CHECK(with({0, 8, 1}) == "i.npy: indices[1] is 8, outside of the 2 x 4 places");
  CHECK(with({0, 1, -1}) == "i.npy: indices[2] is -1, outside of the 2 x 4 places");
  CHECK(with({5, 2, 5}) == "i.npy: indices[0] and indices[2] are both 5");
  CHECK(with({4, 5, 4}) == "i.npy: indices[0] and indices[2] are both 4");
  CHECK(with({4, 5}) == "i.npy has 2 elements; indices of the tokens of p.npy are 3, cu_seqlens of 2 rows 3");
  CHECK(with({0, 3, 4}) == "no error");
  CHECK(plain::failure(
            [&] {
              unpack(tokens, *source({0, 1, 2}), 2, 4, 1.5);
            },
            Error::Kind::usage) == "int32 cannot hold the padding value 1.5");
  CHECK(plain::failure([&] {
          pack(tokens, *make_source(Array(DType::boolean, {1, 3}), "m"));
        }) == "p.npy: a padded array is (batch, seq, ...), not of shape (3,)");
  CHECK(
      plain::failure([&] {
        pack(make_source(Array(DType::int32, {2, 3}), "x"), *make_source(Array(DType::boolean, {3, 2}), "m"));
      }) == "m: a mask of shape (3, 2) does not fit x of shape (2, 3)");
}
