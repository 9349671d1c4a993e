// Offsets of groups of rows, and errors that name the index.
#include "ejk/groups.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <limits>

using namespace ejk;

namespace {

using Sizes = std::vector<std::int64_t>;

std::shared_ptr<const ArraySource> source_of(const Sizes& sizes, DType dtype = DType::int64) {
  Array a(dtype, {static_cast<std::int64_t>(sizes.size())});
  dispatch(dtype, [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
      for (std::size_t i = 0; i < sizes.size(); ++i) a.elements<T>()[i] = static_cast<T>(sizes[i]);
  });
  return make_source(std::move(a), "sizes.npy");
}

std::string failure(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    CHECK(e.kind() == Error::Kind::input);
    return e.message();
  }
  return "no error";
}

}  // namespace

TEST_CASE("group offsets are the running sum, for every integer dtype") {
  for (const DType dtype : {DType::int8, DType::uint8, DType::int16, DType::uint16, DType::int32,
                            DType::uint32, DType::int64, DType::uint64}) {
    CHECK(group_offsets(*source_of({100, 0, 127, 50}, dtype), 300) == Sizes{0, 100, 100, 227, 277});
    CHECK(group_offsets(*source_of({100, 0, 127, 50}, dtype), 277, true) == Sizes{0, 100, 100, 227, 277});
  }
  CHECK(group_offsets(*source_of({}), 0, true) == Sizes{0});
  CHECK(group_offsets(*source_of({}), 5) == Sizes{0});
  CHECK(group_offsets(*source_of({0, 0}), 0, true) == Sizes{0, 0, 0});
}

TEST_CASE("group offsets do not wrap where int32 sizes sum to more than int32 holds") {
  const std::int64_t most = std::numeric_limits<std::int32_t>::max();
  CHECK(group_offsets(*source_of({most, most, 5}, DType::int32), 3 * most) ==
        Sizes{0, most, 2 * most, 2 * most + 5});
}

TEST_CASE("group sizes at fault are named with their index and the numbers") {
  CHECK(failure([] {
          group_offsets(*source_of({3, -1}), 10);
        }) == "sizes.npy: group_sizes[1] is -1; a size is at least 0");
  CHECK(failure([] {
          group_offsets(*source_of({3, 4, 6, 1}), 12);
        }) == "sizes.npy: group_sizes[2] is 6: the sum up to it is 13, more than m = 12");
  CHECK(failure([] {
          group_offsets(*source_of({3, 4}), 12, true);
        }) == "sizes.npy: group_sizes of 2 groups sum to 7, less than m = 12");
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  CHECK(failure([&] {
          group_offsets(*source_of({most, 1}), most);
        }) == "sizes.npy: group_sizes[1] is 1: the sum up to it passes 63 bits");
  CHECK(failure([] { group_offsets(*source_of({}), -1); }) == "m is -1; it is at least 0");
  CHECK(failure([] { group_offsets(*make_source(Array(DType::float32, {2}), "sizes.npy"), 1); }) ==
        "sizes.npy: group_sizes: integers, not float32");
  CHECK(failure([] {
          group_offsets(*make_source(Array(DType::int32, {2, 2}), "sizes.npy"), 1);
        }) == "sizes.npy: group_sizes: a 1-D array, not one of shape (2, 2)");
  Array beyond(DType::uint64, {2});
  beyond.elements<std::uint64_t>()[1] = std::uint64_t{1} << 63;
  CHECK(failure([&] { group_offsets(*make_source(beyond.view(), "sizes.npy"), 1); }) ==
        "sizes.npy: group_sizes[1] is 9223372036854775808, beyond 63 bits");
}
