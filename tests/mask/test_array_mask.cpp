// Stored masks of every dtype, polarity and layout, mapped or only readable, give the bits of a plain loop.
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
      for (auto& b : raw)
        b = static_cast<std::byte>(dtype == DType::boolean ? random() % 2 : random() % 7 == 0 ? random() : 0);
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
