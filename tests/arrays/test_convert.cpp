// Conversions: every pair of types against long double, all 16-bit patterns in both directions, halfway
// cases, overflow.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "arrays/cast.hpp"
#include "core/pieces.hpp"
#include "ejk/array_math.hpp"
#include "io/support.hpp"
#include "support/arrays.hpp"
#include "support/threads.hpp"

using namespace ejk;

namespace {

template <class To, class From>
Array converted(const std::vector<From>& values) {
  return read_all(
      *convert_array(make_source(Array::from<From>({static_cast<std::int64_t>(values.size())}, values), "x"),
                     dtype_of<To>()));
}

template <class From>
std::string refused(DType to, const std::vector<From>& values) {
  return test::error_of(Error::Kind::input, [&] {
    read_all(*convert_array(
        make_source(Array::from<From>({static_cast<std::int64_t>(values.size())}, values), "x"), to));
  });
}

// Elements begin <= i < end of a source, read in boxes of at most `most` that follow one another, to their
// places; the message of the first that cannot be read, after which nothing is.
std::string read_range(const ArraySource& source, std::int64_t begin, std::int64_t end, std::int64_t most,
                       std::byte* out) {
  Shape start(source.shape().size()), count(start.size());
  try {
    while (begin < end) {
      const std::int64_t n = core::box_at(source.shape(), begin, std::min(most, end - begin), start, count);
      source.read(start, count, out + begin * size_of(source.dtype()));
      begin += n;
    }
  } catch (const Error& error) {
    return error.message();
  }
  return {};
}

}  // namespace

TEST_CASE("small numbers are the same in every type") {
  for (const DType from : test::kAllTypes)
    for (const DType to : test::kAllTypes) {
      CAPTURE(name_of(from));
      CAPTURE(name_of(to));
      const std::vector<std::int8_t> ones{0, 1, 1, 0, 1};
      const auto first = convert_array(make_source(Array::from<std::int8_t>({5}, ones)), from);
      const auto back = convert_array(convert_array(first, to), DType::int8);
      CHECK(test::same(read_all(*back), Array::from<std::int8_t>({5}, ones)));
    }
}

TEST_CASE("to 16 bits from wider types is rounded once") {
  // Just above halfway between two bfloat16: rounding to float first would make it a tie, and 1.
  const double above_tie = 1 + 0x1p-8 + 0x1p-40;
  CHECK(static_cast<float>(converted<bfloat16>(std::vector<double>{above_tie}).elements<bfloat16>()[0]) ==
        1 + 0x1p-7f);
  CHECK(static_cast<float>(converted<bfloat16>(std::vector<double>{-(1 + 0x1p-8)}).elements<bfloat16>()[0]) ==
        -1);
  const double half_tie = 1 + 0x1p-11 + 0x1p-45;
  CHECK(static_cast<float>(converted<float16>(std::vector<double>{half_tie}).elements<float16>()[0]) ==
        1 + 0x1p-10f);
  const std::int64_t wide = (std::int64_t{1} << 60) + (std::int64_t{1} << 52) + 1;
  CHECK(static_cast<float>(converted<bfloat16>(std::vector<std::int64_t>{wide}).elements<bfloat16>()[0]) ==
        0x1p60f + 0x1p53f);
  CHECK(static_cast<float>(
            converted<bfloat16>(std::vector<std::int64_t>{INT64_MIN}).elements<bfloat16>()[0]) == -0x1p63f);
  CHECK(static_cast<float>(
            converted<bfloat16>(std::vector<std::uint64_t>{UINT64_MAX}).elements<bfloat16>()[0]) == 0x1p64f);
  CHECK(static_cast<float>(converted<float16>(std::vector<std::int32_t>{70000}).elements<float16>()[0]) ==
        INFINITY);
  CHECK(static_cast<float>(converted<float16>(std::vector<double>{1e300}).elements<float16>()[0]) ==
        INFINITY);
  CHECK(
      std::isnan(static_cast<float>(converted<bfloat16>(std::vector<double>{NAN}).elements<bfloat16>()[0])));
}

TEST_CASE("integers and floats at the ends of their ranges") {
  const auto whole = converted<std::int32_t>(std::vector<double>{-2147483648.9, 2147483647.9, -0.9, 2.5});
  const auto i = whole.elements<std::int32_t>();
  CHECK(i[0] == INT32_MIN);
  CHECK(i[1] == INT32_MAX);
  CHECK(i[2] == 0);
  CHECK(i[3] == 2);
  CHECK(converted<std::int64_t>(std::vector<float>{-0x1p63f}).elements<std::int64_t>()[0] == INT64_MIN);
  CHECK(refused(DType::int32, std::vector<double>{0, 2147483648.0}) ==
        "x: element (1,) is 2147483648, which int32 cannot hold");
  CHECK(refused(DType::int32, std::vector<float>{0x1p31f}) ==
        "x: element (0,) is 2147483600, which int32 cannot hold");
  CHECK(test::contains(refused(DType::int64, std::vector<double>{0x1p63}), "which int64 cannot hold"));
  CHECK(test::contains(refused(DType::uint8, std::vector<float>{-1}), "element (0,) is -1"));
  CHECK(test::contains(refused(DType::uint8, std::vector<std::int64_t>{3, 256}), "element (1,) is 256"));
  CHECK(
      test::contains(refused(DType::int8, std::vector<std::uint8_t>{128}), "is 128, which int8 cannot hold"));
  CHECK(test::contains(refused(DType::uint64, std::vector<std::int8_t>{-1}),
                       "is -1, which uint64 cannot hold"));
  CHECK(test::contains(refused(DType::int16, std::vector<float>{NAN}), "is nan"));
  CHECK(test::contains(refused(DType::boolean, std::vector<float>{NAN}), "is nan"));
  CHECK(converted<bool>(std::vector<float>{0.25f, -0.0f, INFINITY}).elements<bool>()[0]);
  CHECK_FALSE(converted<bool>(std::vector<float>{-0.0f}).elements<bool>()[0]);
}

TEST_CASE("the fraction is cut off between -1 and 0 as well, for every float and every unsigned integer") {
  const auto check = [](auto zero) {
    using To = decltype(zero);
    const auto all_zero = [&](const auto& values) {
      const Array to = converted<To>(values);
      const auto elements = to.template elements<To>();
      return std::all_of(elements.begin(), elements.end(), [](To x) { return x == 0; });
    };
    CAPTURE(name_of(dtype_of<To>()));
    CHECK(all_zero(std::vector<double>{-0.75, -0x1p-60, -0.99999}));
    CHECK(all_zero(std::vector<float>{-0.75f, -0x1p-60f, -0.99999f}));
    CHECK(all_zero(std::vector<float16>{float16(-0.75f)}));
    CHECK(all_zero(std::vector<bfloat16>{bfloat16(-0.75f)}));
    for (const double below : {-1.0, -1.5}) {
      CHECK(test::contains(refused(dtype_of<To>(), std::vector<double>{below}), "cannot hold"));
      CHECK(test::contains(refused(dtype_of<To>(), std::vector<float>{static_cast<float>(below)}),
                           "cannot hold"));
    }
  };
  check(std::uint8_t());
  check(std::uint16_t());
  check(std::uint32_t());
  check(std::uint64_t());
}

TEST_CASE("pieces, boxes and turned arrays are converted alike, and the index is the array's") {
  Array x = test::counting({300, 1000});
  ArrayView turned = x.view();
  std::swap(turned.shape[0], turned.shape[1]);
  std::swap(turned.strides[0], turned.strides[1]);
  const Array wide = read_all(*convert_array(make_source(turned), DType::float64));
  std::int64_t wrong = 0;
  for (std::int64_t e = 0; e < wide.size(); ++e)
    wrong += static_cast<std::int64_t>(wide.elements<double>()[static_cast<std::size_t>(e)]) !=
             e % 300 * 1000 + e / 300;
  CHECK(wrong == 0);
  double box[6];
  convert_array(make_source(x.view()), DType::float64)->read(Shape{7, 10}, Shape{2, 3}, box);
  CHECK(box[4] == 8011);
  x.elements<std::int32_t>()[299'999] = -1;
  CHECK(test::error_of(Error::Kind::input, [&] {
          read_all(*convert_array(make_source(x.view(), "x"), DType::uint32));
        }) == "x: element (299, 999) is -1, which uint32 cannot hold");
  const auto same = make_source(x.view());
  CHECK(convert_array(same, DType::int32) == same);
}

TEST_CASE("what is known to be one element everywhere stays known, unless the new type cannot hold it") {
  ArrayAccess access(ArrayAccess::Order::any);
  const std::int16_t element = 300;
  access.uniform.assign(reinterpret_cast<const std::byte*>(&element),
                        reinterpret_cast<const std::byte*>(&element + 1));
  const auto source = generated_source(
      {DType::int16, {std::int64_t{1} << 40}}, "x",
      [element](std::span<const std::int64_t>, std::span<const std::int64_t> count, void* out) {
        std::fill_n(static_cast<std::int16_t*>(out), count[0], element);
      },
      access);
  const auto wide = convert_array(source, DType::float64);
  double value = 0;
  REQUIRE(wide->access().uniform.size() == sizeof value);
  std::memcpy(&value, wide->access().uniform.data(), sizeof value);
  CHECK(value == 300);
  const auto narrow = convert_array(source, DType::int8);
  CHECK(narrow->access().uniform.empty());
  std::int8_t out = 0;
  CHECK_THROWS_WITH(narrow->read(Shape{5}, Shape{1}, &out), "x: element (5,) is 300, which int8 cannot hold");
}

TEST_CASE(
    "ranges read apart give the bytes of the whole, and the first of their errors is the error of the whole") {
  std::mt19937_64 random(17);
  std::int64_t refused_before = 0;
  for (int round = 0; round < 60; ++round) {
    const Shape shape = std::array{Shape{70'001}, Shape{37, 1999}, Shape{5, 61, 401}}[random() % 3];
    const std::int64_t n = element_count(shape);
    Array x(DType::float64, shape);
    for (double& value : x.elements<double>()) value = static_cast<double>(random() % 200);
    // None, one or some that int16 cannot hold, each another number so that messages differ.
    for (std::uint64_t bad = random() % 4; bad-- > 0;) {
      const auto at = static_cast<std::size_t>(random() % static_cast<std::uint64_t>(n));
      x.elements<double>()[at] = 40'000 + static_cast<double>(at);
    }
    ArrayView turned = x.view();
    std::reverse(turned.shape.begin(), turned.shape.end());
    std::reverse(turned.strides.begin(), turned.strides.end());
    const auto by_read = [&](std::span<const std::int64_t> start, std::span<const std::int64_t> count,
                             void* out) { make_source(x.view())->read(start, count, out); };
    const std::shared_ptr<const ArraySource> sources[] = {
        make_source(x.view(), "x"), make_source(turned, "x"),
        generated_source({DType::float64, shape}, "x", by_read),
        generated_source({DType::float64, shape}, "x", by_read, ArrayAccess(ArrayAccess::Order::sequential))};
    const auto source = convert_array(sources[round % 4], DType::int16);
    const auto bytes = static_cast<std::size_t>(type_of(*source).bytes());
    std::vector<std::byte> whole(bytes);
    const std::string wanted = read_range(*source, 0, n, n, whole.data());
    refused_before += wanted.empty() ? 0 : 1;
    for (const int threads : {1, 5}) {
      const Threads set(threads);
      for (const std::int64_t members : {1, 2, 3, 5, 16}) {
        CAPTURE(round);
        CAPTURE(members);
        std::vector<std::byte> parts(bytes);
        std::vector<std::int64_t> bounds{0, n};
        for (std::int64_t m = 1; m < members; ++m)
          bounds.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n + 1)));
        std::sort(bounds.begin(), bounds.end());
        const auto most = static_cast<std::int64_t>(1 + random() % 50'000) + n / 50;
        std::string first;
        for (std::size_t m = 0; m + 1 < bounds.size(); ++m) {
          const std::string error = read_range(*source, bounds[m], bounds[m + 1], most, parts.data());
          if (first.empty()) first = error;
        }
        CHECK(first == wanted);
        if (wanted.empty()) CHECK(parts == whole);
      }
    }
  }
  CHECK(refused_before > 20);
  CHECK(refused_before < 55);
}

TEST_CASE("8-bit floats are widened exactly, and rounded once from every type") {
  std::mt19937_64 random(8);
  constexpr std::int64_t kCount = 5000;  // more than one block
  for (const DType small : kDTypes) {
    if (!is_8_bit_float(small)) continue;
    CAPTURE(name_of(small));
    const auto bytes = [&](DType dtype) {
      Array x(dtype, {kCount});
      for (std::byte& b : std::span(x.data(), static_cast<std::size_t>(x.bytes()))) b = std::byte(random());
      return x;
    };
    Array codes = bytes(small);
    const auto source = make_source(codes.view(), "codes");
    const Array wide = read_all(*convert_array(source, DType::float64));
    const Array narrow = read_all(*convert_array(source, DType::bfloat16));
    dispatch(small, [&]<class T>(std::type_identity<T>) {
      if constexpr (is_8_bit_float(dtype_of<T>())) {
        for (std::size_t i = 0; i < kCount; ++i) {
          const auto value = static_cast<float>(codes.elements<T>()[i]);
          const double widened = wide.elements<double>()[i];
          CHECK((widened == static_cast<double>(value) || (std::isnan(value) && std::isnan(widened))));
          const auto of_16 = static_cast<float>(narrow.elements<bfloat16>()[i]);
          CHECK((of_16 == value || (std::isnan(value) && std::isnan(of_16))));
        }
        // The nearest number of a double or an integer, of which float32 is only near.
        const double above = 1 + std::ldexp(1.0, -float_format(small).mantissa_bits - 1);  // half way
        const Array from = Array::from<double>({2}, std::vector{above + 0x1p-50, above - 0x1p-50});
        const Array rounded = read_all(*convert_array(make_source(from.view()), small));
        T one(1.0f), next = one;
        ++next.bits;
        CHECK(rounded.elements<T>()[0].bits == next.bits);
        CHECK(rounded.elements<T>()[1].bits == one.bits);
      }
    });
    for (const DType from : test::kAllTypes) {
      CAPTURE(name_of(from));
      const Array x = bytes(from);
      std::atomic<std::int64_t> count = 0;
      const Array saturated =
          read_all(*convert_array(make_source(x.view()), small, {Overflow::saturate, &count}));
      const Array nan = read_all(*convert_array(make_source(x.view()), small, {Overflow::nan, nullptr}));
      std::int64_t differ = 0;
      for (std::int64_t i = 0; i < kCount; ++i) differ += saturated.data()[i] != nan.data()[i];
      CHECK(count == differ);
    }
  }
}

TEST_CASE("all 16-bit patterns to small floats are rounded once from their numbers") {
  // Not a multiple of what is converted at once.
  constexpr std::size_t kAll = 1 << 16, kMore = kAll + 77;
  const auto check = [&]<class From>(std::type_identity<From>) {
    std::vector<std::uint16_t> bits(kMore);
    for (std::size_t i = 0; i < kMore; ++i) bits[i] = static_cast<std::uint16_t>(i);
    Array x(dtype_of<From>(), {static_cast<std::int64_t>(kMore)});
    std::memcpy(x.data(), bits.data(), kMore * 2);
    const auto to = [&]<class To>(std::type_identity<To>) {
      CAPTURE(name_of(dtype_of<From>()));
      CAPTURE(name_of(dtype_of<To>()));
      const Array y = read_all(*convert_array(make_source(x.view()), dtype_of<To>()));
      int wrong = 0;
      for (std::size_t i = 0; i < kMore; ++i) {
        const auto element = std::bit_cast<From>(bits[i]);
        const auto value = static_cast<float>(element);
        if (std::isnan(value)) continue;  // of which upper bits are kept elsewhere
        wrong += y.elements<To>()[i].bits != To(value).bits;
      }
      CHECK(wrong == 0);
    };
    to(std::type_identity<float16>{});
    to(std::type_identity<bfloat16>{});
    to(std::type_identity<float8_e4m3fn>{});
    to(std::type_identity<float8_e5m2>{});
  };
  check(std::type_identity<std::int16_t>{});
  check(std::type_identity<std::uint16_t>{});
  check(std::type_identity<float16>{});
  check(std::type_identity<bfloat16>{});
}

TEST_CASE("infinities of an array in the type that it has become what is requested, else they stay") {
  // inf, -inf, the largest number, NaN, 1.
  const std::vector<std::uint8_t> codes{0x7C, 0xFC, 0x7B, 0x7F, 0x3C};
  Array x(DType::float8_e5m2, {5});
  std::memcpy(x.data(), codes.data(), codes.size());
  const auto converted = [&](std::optional<Overflow> to, std::int64_t& overflowed) {
    std::atomic<std::int64_t> count = 0;
    const Array y = read_all(*convert_array(make_source(x.view()), DType::float8_e5m2, {to, &count}));
    overflowed = count;
    std::vector<int> got;
    for (std::int64_t i = 0; i < y.size(); ++i) got.push_back(std::to_integer<int>(y.data()[i]));
    return got;
  };
  std::int64_t n = -1;
  CHECK(converted(std::nullopt, n) == std::vector<int>{0x7C, 0xFC, 0x7B, 0x7F, 0x3C});
  CHECK(converted(Overflow::saturate, n) == std::vector<int>{0x7B, 0xFB, 0x7B, 0x7F, 0x3C});
  CHECK(n == 2);
  CHECK(converted(Overflow::nan, n) == std::vector<int>{0x7F, 0xFF, 0x7B, 0x7F, 0x3C});
  CHECK(n == 2);
  CHECK(converted(Overflow::infinity, n) == std::vector<int>{0x7C, 0xFC, 0x7B, 0x7F, 0x3C});
  CHECK(n == 2);
}

TEST_CASE("overflow of an element that all are counts for all, and a type without infinity has none") {
  ArrayAccess access(ArrayAccess::Order::any);
  const float large = 1e6f;
  access.uniform.resize(sizeof large);
  std::memcpy(access.uniform.data(), &large, sizeof large);
  const auto fill = [](std::span<const std::int64_t>, std::span<const std::int64_t> count, void* out) {
    std::fill_n(static_cast<float*>(out), element_count(count), 1e6f);
  };
  const auto source = generated_source({DType::float32, {3, 4}}, "x", fill, access);
  std::atomic<std::int64_t> count = 0;
  const auto converted = convert_array(source, DType::float8_e5m2, {Overflow::infinity, &count});
  CHECK(std::isinf(static_cast<float>(read_all(*converted).elements<float8_e5m2>()[11])));
  CHECK(count == 12);
  CHECK(test::contains(
      test::error_of(Error::Kind::usage,
                     [&] { convert_array(source, DType::float8_e4m3fn, {Overflow::infinity}); }),
      "float8_e4m3fn has no infinity"));
}

TEST_CASE("a view has the bits of its array, mapped or read") {
  const Array x = Array::from<std::uint8_t>({2, 2}, std::vector<std::uint8_t>{0x38, 0x40, 0xB8, 0x7E});
  const auto view = view_array(make_source(x.view(), "x"), DType::float8_e4m3fn);
  REQUIRE(view->mapped());
  CHECK(view->mapped()->data == x.data());
  const Array values = read_all(*convert_array(view, DType::float32));
  CHECK(plain::doubles(values.view()) == std::vector<double>{1, 2, -1, 448});
  CHECK(test::contains(
      test::error_of(Error::Kind::usage, [&] { view_array(make_source(x.view(), "x"), DType::int16); }),
      "x: uint8 has 1 byte, int16 has 2"));
}
