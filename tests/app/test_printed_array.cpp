// Arrays as Python prints them.
#include "printed_array.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ejk/error.hpp"

using namespace ejk;
using namespace ejk::app;

namespace {

void check(const std::string& word, DType dtype, const Shape& shape, const std::vector<std::int64_t>& values,
           const std::string& slice = "") {
  CAPTURE(word);
  CHECK(is_printed_array(word));
  const auto printed = printed_array(word);
  REQUIRE(printed);
  CHECK(printed->array.dtype() == dtype);
  CHECK(printed->array.shape() == shape);
  CHECK(printed->slice == slice);
  std::vector<std::int64_t> found;
  dispatch(dtype, [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_same_v<T, bool>)
      for (std::int64_t i = 0; i < printed->array.size(); ++i)
        found.push_back(printed->array.data()[i] != std::byte{0} ? 1 : 0);
    else if constexpr (std::is_integral_v<T>)
      for (const T v : printed->array.elements<T>()) found.push_back(static_cast<std::int64_t>(v));
  });
  CHECK(found == values);
}

std::string error_of_printed(const std::string& word) {
  try {
    (void)printed_array(word);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("lists, arrays and tensors are read as they are printed") {
  check("[0, 144, 432, 944]", DType::int64, {4}, {0, 144, 432, 944});
  check("[  0 144\n 432]", DType::int64, {3}, {0, 144, 432});
  check("[[0, 1], [2, 3]]", DType::int64, {2, 2}, {0, 1, 2, 3});
  check("[[ 0 -1]\n [ 2  3]]", DType::int64, {2, 2}, {0, -1, 2, 3});
  check("tensor([0, 144, 432], device='cuda:0', dtype=torch.int32)", DType::int32, {3}, {0, 144, 432});
  check("tensor([0, 144,\n        432])", DType::int64, {3}, {0, 144, 432});
  check("array([0, 144], dtype=int32)", DType::int32, {2}, {0, 144});
  check("np.array([0, 144], dtype='uint8')", DType::uint8, {2}, {0, 144});
  check("Array([0, 144], dtype=int32)", DType::int32, {2}, {0, 144});
  check("[np.int64(0), np.int64(144)]", DType::int64, {2}, {0, 144});
  check("[tensor(0), tensor(3, device='cuda:0')]", DType::int64, {2}, {0, 3});
  check("tensor([True, False])", DType::boolean, {2}, {1, 0});
  check("tensor(5)", DType::int64, {}, {5});
  check("[]", DType::int64, {0}, {});
  check("tensor([], size=(0, 3), dtype=torch.int32)", DType::int32, {0}, {});
  check("[0, 5, -1][:2]", DType::int64, {3}, {0, 5, -1}, "[:2]");
  check(" [0, 5,] ", DType::int64, {2}, {0, 5});
}

TEST_CASE("files and other words are no printed arrays") {
  for (const char* word : {"a.npy[0]", "[a].npy", "./[0, 1]", "array(1).npy", "rows(a.npy, b.npy)", "-[0]",
                           "-", "tensor.npy", "[old", "fp8(a, b)[0]", ""}) {
    CAPTURE(word);
    CHECK(!is_printed_array(word));
    CHECK(!printed_array(word));
  }
}

TEST_CASE("what is no whole number, and what is cut out, is refused") {
  CHECK(error_of_printed("[0, 0.5]") ==
        "[0, 0.5]: 0.5 is no whole number: floats are rounded where they are printed");
  CHECK(error_of_printed("[0., 1.]") ==
        "[0., 1.]: 0. is no whole number: floats are rounded where they are printed");
  CHECK(error_of_printed("[0, 1, ..., 9]") == "[0, 1, ..., 9]: numbers are cut out at \"...\"");
  CHECK(error_of_printed("tensor([0, 1], dtype=torch.float32)")
            .ends_with("numbers of type float32 are rounded where they are printed"));
  CHECK(error_of_printed("[[0, 1], [2]]") == "[[0, 1], [2]]: at \"[2]]\": rows are of shapes (2,) and (1,)");
  CHECK(error_of_printed("[0, [1]]") == "[0, [1]]: at \"[1]]\": rows are of shapes () and (1,)");
  CHECK(error_of_printed("array([300], dtype=int8)") == "array([300], dtype=int8): 300 is beyond int8");
  CHECK(error_of_printed("[99999999999999999999]") ==
        "[99999999999999999999]: 99999999999999999999 is beyond 64 bits");
  CHECK(error_of_printed("[0, True]") == "[0, True]: at \"True]\": numbers beside True and False");
  CHECK(error_of_printed("[0, x]") == "[0, x]: at \"x]\": expected a whole number");
  CHECK(error_of_printed("[0, 1") == "[0, 1: the bracket '[' is not closed");
  CHECK(error_of_printed("array([1], dtype=widget)") ==
        "array([1], dtype=widget): 'widget' is no type of elements");
  CHECK(error_of_printed("tensor([1], 2)") == "tensor([1], 2): at \"2)\": expected NAME=VALUE or ')'");
  CHECK(error_of_printed(std::string(40, '[') + std::string(40, ']')).ends_with("too many brackets"));
}
