// Arrays in boxes, distributed over ranks.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "ejk/array.hpp"

namespace ejk::test {

/// Different bytes, as many as there are.
inline Array numbered(DType dtype, const Shape& shape) {
  Array array(dtype, shape);
  std::uint32_t state = 1;
  for (std::int64_t b = 0; b < array.bytes(); ++b)
    array.data()[b] = static_cast<std::byte>((state = state * 1664525 + 1013904223) >> 24);
  return array;
}

/// Cuts an array in two at random, again and again, until there are so many boxes, some perhaps empty. An
/// array without axes is one.
inline std::vector<ArrayBox> random_boxes(const Shape& shape, std::int64_t parts, std::mt19937& random) {
  std::vector<ArrayBox> boxes{whole_box(shape)};
  while (std::ssize(boxes) < parts && !shape.empty()) {
    ArrayBox& box = boxes[random() % boxes.size()];
    const std::size_t axis = random() % shape.size();
    const std::int64_t cut = static_cast<std::int64_t>(random()) % (box.count[axis] + 1);
    ArrayBox rest = box;
    rest.start[axis] += cut;
    rest.count[axis] -= cut;
    box.count[axis] = cut;
    boxes.push_back(rest);
  }
  return boxes;
}

}  // namespace ejk::test
