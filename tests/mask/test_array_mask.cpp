// Stored masks of every dtype, polarity and layout, mapped or readable: the bits of a plain loop.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ejk/mask.hpp"
#include "ejk/mask_info.hpp"
#include "support/random_mask.hpp"

using namespace ejk;

namespace {

using plain::elements_of;

// A source that can only be read, and notes when it is asked for rows it has already given.
class StreamSource final : public ForwardingSource {
 public:
  explicit StreamSource(Array array) : StreamSource(make_source(std::move(array), "stream")) {}
  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    went_back = went_back || start[0] < next_row;
    next_row = start[0] + count[0];
    inner().read(start, count, out);
  }

  mutable bool went_back = false;
  mutable std::int64_t next_row = 0;

 private:
  explicit StreamSource(const std::shared_ptr<const ArraySource>& source)
      : ForwardingSource(source, type_of(*source), ArrayAccess(ArrayAccess::Order::sequential)) {}
};

}  // namespace

TEST_CASE("integer masks of every width, C and Fortran order, strided and backwards, kept and dropped") {
  plain::Random random(2);
  for (const DType dtype : {DType::boolean, DType::int8, DType::int16, DType::int32, DType::int64,
                            DType::uint8, DType::uint16, DType::uint32, DType::uint64})
    for (int n = 0; n < 12; ++n) {
      const std::int64_t q = plain::between(random, 1, 150), kv = plain::between(random, 1, 150),
                         size = size_of(dtype);
      std::vector<std::byte> raw(static_cast<std::size_t>(4 * q * kv * size));
      // One value beside 0, of one byte or of all.
      const std::size_t width = static_cast<std::size_t>(size);
      const bool all_bytes = dtype != DType::boolean && n % 2 == 1;
      const auto value = static_cast<std::byte>(dtype == DType::boolean ? 1 : 1 + random() % 255);
      for (std::size_t at = 0; at < raw.size(); at += width)
        if (random() % 7 == 0) std::fill_n(raw.data() + at, all_bytes ? width : 1, value);
      ArrayView view{raw.data(), dtype, {q, kv}, {kv * size, size}};
      if (n % 4 == 1) view.strides = {size, q * size};
      if (n % 4 == 2) view.strides = {4 * kv * size, 2 * size};
      if (n % 4 == 3) view.data += (q * kv - 1) * size, view.strides = {-kv * size, -size};
      const auto truth = plain::table(q, kv, [&](auto i, auto j) {
        const std::byte* e = view.data + i * view.strides[0] + j * view.strides[1];
        return std::any_of(e, e + size, [](std::byte b) { return b != std::byte{0}; });
      });
      CAPTURE(name_of(dtype));
      CAPTURE(n);
      const Mask mask = array_mask(make_source(view), Polarity::keep);
      CHECK(elements_of(mask) == truth);
      for (const std::int64_t key : {std::int64_t{0}, kv / 2, kv - 1}) {  // a column by itself
        std::vector<char> column(static_cast<std::size_t>(q));
        mask.read(0, q, key, key + 1, reinterpret_cast<bool*>(column.data()));
        bool right = true;
        for (std::int64_t i = 0; i < q; ++i)
          right =
              right && column[static_cast<std::size_t>(i)] == truth[static_cast<std::size_t>(i * kv + key)];
        CHECK_MESSAGE(right, "key ", key, " of ", kv);
      }
      auto hidden = truth;
      for (auto& e : hidden) e ^= 1;
      CHECK(elements_of(array_mask(make_source(view), Polarity::drop)) == hidden);
    }
}

TEST_CASE("integers of several values are ids and no mask, wherever the second one stands") {
  plain::Random random(8);
  const auto of = [](std::vector<std::int64_t> values, std::int64_t rows, DType dtype = DType::int64) {
    Array array(dtype, {rows, std::ssize(values) / rows});
    dispatch(dtype, [&]<class T>(std::type_identity<T>) {
      if constexpr (std::is_integral_v<T>)
        for (std::size_t i = 0; i < values.size(); ++i)
          reinterpret_cast<T*>(array.data())[i] = static_cast<T>(values[i]);
    });
    return make_source(std::move(array), "ids.npy");
  };
  const auto failure = [](const std::shared_ptr<const ArraySource>& source) {
    try {
      elements_of(array_mask(source, Polarity::keep));
    } catch (const Error& e) {
      CHECK(e.code() == Error::Code::ids_in_mask);
      return e.message();
    }
    return std::string();
  };
  CHECK(failure(of({0, 1, 2, 0, 1, 2}, 2)) ==
        "ids.npy: element [0, 2] is 2 and another is 1: a mask of integers holds 0 and one other value");
  CHECK(failure(of({0, -1, 0, 255, 0, -1}, 2, DType::uint8)).empty());
  CHECK(failure(of({0, 0, 0, -128, 0, -1}, 2, DType::int8)).find("[1, 2] is -1 and another is -128") !=
        std::string::npos);
  // A value of 1 and one whose bits hold that; both alone are masks.
  for (const DType dtype : {DType::int8, DType::uint16, DType::int32, DType::uint64})
    for (int n = 0; n < 30; ++n) {
      std::vector<std::int64_t> values(static_cast<std::size_t>(3 * plain::between(random, 2000, 3000)));
      const std::int64_t one = plain::between(random, 1, 100), other = plain::between(random, 1, 100);
      for (auto& v : values) v = random() % 3 == 0 ? one : 0;
      CHECK(failure(of(values, 3, dtype)).empty());
      const auto at = static_cast<std::size_t>(plain::between(random, 0, std::ssize(values) - 1));
      values[at] = other;
      CHECK(failure(of(values, 3, dtype)).empty() == (one == other));
    }
  // The same place is named whatever a thread looks at first, and of a source that is read in order.
  std::vector<std::int64_t> blocks(300 * 300);
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<std::int64_t>(i / 300 / 100) + 1;
  const std::string expected =
      "ids.npy: element [100, 0] is 2 and another is 1: a mask of integers holds 0 and one other value";
  for (int n = 0; n < 5; ++n) try {
      process_mask({array_mask(of(blocks, 300), Polarity::keep)}, {50, 50});
      FAIL("ids are taken for a mask");
    } catch (const Error& e) {
      CHECK(e.message() == expected);
    }
  CHECK(failure(std::make_shared<StreamSource>(read_all(*of(blocks, 300)))) ==
        "stream" + expected.substr(expected.find(':')));
}

TEST_CASE("a padding mask is told from masks of few queries") {
  const auto resembles = [](std::int64_t rows, const std::vector<std::uint8_t>& elements) {
    return padding_guess(array_mask(make_source(
               plain::array_of(rows, std::ssize(elements) / rows, elements)))) == PaddingGuess::likely;
  };
  const auto runs = [](std::int64_t columns, const std::vector<std::pair<std::int64_t, std::int64_t>>& rows) {
    return plain::table(std::ssize(rows), columns, [&](auto i, auto j) {
      return rows[static_cast<std::size_t>(i)].first <= j && j < rows[static_cast<std::size_t>(i)].second;
    });
  };
  CHECK(resembles(2, runs(16, {{0, 16}, {0, 5}})));                  // padded at the right
  CHECK(resembles(3, runs(16, {{9, 16}, {0, 16}, {4, 16}})));        // at the left
  CHECK_FALSE(resembles(2, runs(16, {{0, 16}, {0, 16}})));           // nothing is padded
  CHECK(resembles(2, runs(16, {{0, 7}, {0, 5}})));                   // to a fixed length
  CHECK_FALSE(resembles(2, runs(16, {{0, 7}, {0, 7}})));             // a prefix
  CHECK_FALSE(resembles(3, runs(16, {{0, 14}, {0, 15}, {0, 16}})));  // causal, the last queries
  CHECK_FALSE(resembles(2, runs(16, {{0, 16}, {3, 9}})));
  CHECK(resembles(2, runs(16, {{0, 16}, {7, 7}})));  // an empty row
  CHECK(resembles(4, runs(8, {{0, 8}, {0, 5}, {0, 3}, {0, 8}})));
  CHECK_FALSE(resembles(4, runs(4, {{0, 4}, {0, 2}, {0, 3}, {0, 4}})));  // as many rows as columns
  CHECK_FALSE(resembles(1, runs(16, {{0, 9}})));
  // These may be either.
  const auto look = [&](std::int64_t rows, const std::vector<std::uint8_t>& elements) {
    return padding_guess(
        array_mask(make_source(plain::array_of(rows, std::ssize(elements) / rows, elements))));
  };
  CHECK(look(1, runs(16, {{0, 9}})) == PaddingGuess::possible);
  CHECK(look(2, runs(16, {{0, 16}, {0, 16}})) == PaddingGuess::possible);
  CHECK(look(1, runs(16, {{3, 9}})) == PaddingGuess::none);
  CHECK(look(3, runs(16, {{0, 14}, {0, 15}, {0, 16}})) == PaddingGuess::none);
}

TEST_CASE("additive masks attend at 0, hide at -1e4 and less, and anything between is an error") {
  const auto additive = [](std::vector<float> values) {
    return array_mask(
        make_source(Array::from<float>({1, static_cast<std::int64_t>(values.size())}, values), "bias.npy"),
        Polarity::additive);
  };
  CHECK(elements_of(additive({0.0f, -0.0f, -INFINITY, -1e4f, -1e9f, -3.4e38f})) ==
        std::vector<std::uint8_t>{1, 1, 0, 0, 0, 0});
  for (const float bad : {1.0f, -9999.0f, NAN, INFINITY, -1e-30f})
    CHECK_THROWS_AS(elements_of(additive({0.0f, bad})), Error);
  try {
    elements_of(additive({0.0f, -1.5f}));
  } catch (const Error& e) {
    CHECK(e.message() ==
          "bias.npy: element [0, 1] is -1.5: an additive mask holds 0 (attend) and -1e4 or less (hide)");
  }
  Array half(DType::bfloat16, {1, 2});
  half.elements<bfloat16>()[1] = bfloat16(-1e4f);  // which is -9984
  CHECK(elements_of(array_mask(make_source(std::move(half)), Polarity::additive)) ==
        std::vector<std::uint8_t>{1, 0});
}

TEST_CASE("a polarity that does not fit the dtype is an error with a hint") {
  const auto make = [](DType d, Polarity p) { return array_mask(make_source(Array(d, {2, 2}), "m"), p); };
  CHECK_THROWS_AS(make(DType::float32, Polarity::keep), Error);
  CHECK_THROWS_AS(make(DType::boolean, Polarity::additive), Error);
  CHECK_THROWS_AS(array_mask(make_source(Array(DType::int32, {2, 2}))), Error);
  CHECK_THROWS_AS(array_mask(make_source(Array(DType::boolean, {2, 2, 2}))), Error);
  CHECK_THROWS_AS(array_mask(make_source(Array(DType::boolean, {0, 2}))), Error);
  try {
    make(DType::float32, Polarity::drop);
  } catch (const Error& e) {
    CHECK(e.code() == Error::Code::float_mask);
  }
}

TEST_CASE("a source that can only be read in order is read once, in order") {
  plain::Random random(9);
  const std::int64_t q = 300, kv = 500;
  std::vector<std::uint8_t> elements(static_cast<std::size_t>(q * kv));
  for (auto& e : elements) e = random() % 50 == 0;
  const auto stream = std::make_shared<StreamSource>(plain::array_of(q, kv, elements));
  ProcessMaskOptions options;
  options.pad = true;
  for (const bool composed : {false, true}) {
    stream->next_row = 0;
    const Mask streamed = composed ? array_mask(stream) & causal_mask(q, kv) : array_mask(stream);
    const Mask mapped = composed
                            ? array_mask(make_source(plain::array_of(q, kv, elements))) & causal_mask(q, kv)
                            : array_mask(make_source(plain::array_of(q, kv, elements)));
    const MaskInfo a = process_mask({streamed}, {16, 32}, options),
                   b = process_mask({mapped}, {16, 32}, options);
    CHECK_FALSE(stream->went_back);
    CHECK(std::memcmp(a.block_mask.data(), b.block_mask.data(),
                      static_cast<std::size_t>(a.block_mask.bytes())) == 0);
    CHECK(std::memcmp(a.mask_next->data(), b.mask_next->data(),
                      static_cast<std::size_t>(a.mask_next->bytes())) == 0);
  }
}
