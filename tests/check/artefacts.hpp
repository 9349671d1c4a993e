// Valid integer artefacts, and copies with one number changed.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ejk/check.hpp"
#include "support/random_mask.hpp"

namespace artefacts {

using Numbers = std::vector<std::int64_t>;
using plain::between;
using plain::Random;

/// The numbers as an array of any integer dtype that holds them.
inline ejk::IntegerArray integers(const Numbers& values, ejk::Shape shape,
                                  ejk::DType dtype = ejk::DType::int64) {
  ejk::Array array(dtype, std::move(shape));
  REQUIRE(array.size() == std::ssize(values));
  ejk::dispatch(dtype, [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_integral_v<T>)
      for (std::size_t i = 0; i < values.size(); ++i) array.elements<T>()[i] = static_cast<T>(values[i]);
  });
  return ejk::make_source(std::move(array), "x.npy");
}
inline ejk::IntegerArray integers(const Numbers& values) { return integers(values, {std::ssize(values)}); }

/// The findings that were kept, a line each.
inline std::string text_of(const ejk::Findings& findings) {
  std::string text;
  for (const auto& [rule, finding] : findings.kept())
    text += std::string(rule.name) + ": " + finding.array + ejk::to_string(finding.index) + ": " +
            finding.message + "\n";
  return text;
}

/// One of a few dtypes.
inline ejk::DType any_dtype(Random& random) {
  constexpr ejk::DType all[] = {ejk::DType::int16, ejk::DType::int32, ejk::DType::int64};
  return all[between(random, 0, 2)];
}

/// 0 and the running sum.
inline Numbers offsets_of(const Numbers& sizes) {
  Numbers offsets{0};
  for (const std::int64_t size : sizes) offsets.push_back(offsets.back() + size);
  return offsets;
}

/// So many sizes up to `most`; some are 0.
inline Numbers random_sizes(Random& random, std::int64_t count, std::int64_t most) {
  Numbers sizes;
  for (std::int64_t i = 0; i < count; ++i)
    sizes.push_back(between(random, 0, 3) == 0 ? 0 : between(random, 0, most));
  return sizes;
}

/// Puts another number at a random place; mostly one that is near, or that stands elsewhere in the array.
inline void change_one(Random& random, Numbers& values) {
  if (values.empty()) return;
  const auto place = [&] { return static_cast<std::size_t>(between(random, 0, std::ssize(values) - 1)); };
  std::int64_t& value = values[place()];
  const std::int64_t before = value;
  while (value == before) switch (between(random, 0, 4)) {
      case 0:
        value = before + between(random, -2, 2);
        break;
      case 1:
        value = values[place()];
        if (value == before) value = before + between(random, -1, 1);
        break;
      case 2:
        value = between(random, -2, 3);
        break;
      case 3:
        value = before + between(random, -40, 40);
        break;
      default:
        value = between(random, -20000, 20000);
    }
}

/// How often each of two answers came; both must have, or a test of either proves nothing.
struct Answers {
  int yes = 0, no = 0;
  void add(bool answer) { ++(answer ? yes : no); }
};

}  // namespace artefacts
