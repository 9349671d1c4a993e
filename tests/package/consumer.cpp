#include <ejk/ejk.hpp>

#include <array>
#include <cstdint>
#include <iostream>

int main() {
  const std::array<std::int32_t, 4> lens{3, 0, 5, 8};
  const ejk::Array array = ejk::Array::from<std::int32_t>({4}, lens);
  std::cout << ejk::to_string(array.shape()) << " " << ejk::name_of(array.dtype()) << "\n";
  try {
    ejk::Array(ejk::DType::boolean, {-1});
  } catch (const ejk::Error& error) {
    std::cout << error.message() << "\n";
    return 0;
  }
  return 1;
}
