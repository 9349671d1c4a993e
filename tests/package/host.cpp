// Loads the extension as Python would, and catches ejk::Error across the boundary.
#include <dlfcn.h>

#include <cstdint>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include <ejk/error.hpp>

namespace {

void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

template <class Function>
Function* function(void* extension, const char* name) {
  void* found = dlsym(extension, name);
  require(found != nullptr, name);
  return reinterpret_cast<Function*>(found);
}

using GroupedProduct = double(const float*, const float*, const std::int32_t*, float*, std::int64_t,
                              std::int64_t, std::int64_t, std::int64_t);
using CausalBlocks = std::int64_t(std::int64_t, std::int64_t);

}  // namespace

// host EXTENSION
int main(int, char** arguments) try {
  void* extension = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  if (extension == nullptr) throw std::logic_error(dlerror());
  auto* grouped_product = function<GroupedProduct>(extension, "grouped_product");
  auto* causal_blocks = function<CausalBlocks>(extension, "causal_blocks");

  // Rows (1, 2) and (3, 4) are the first group's, (5, 6) the second's; the matrices are 1 and a swap.
  const std::vector<float> lhs{1, 2, 3, 4, 5, 6}, rhs{1, 0, 0, 1, 0, 1, 1, 0};
  std::vector<std::int32_t> sizes{2, 1};
  std::vector<float> out(6, -1);
  require(grouped_product(lhs.data(), rhs.data(), sizes.data(), out.data(), 3, 2, 2, 2) == 2 * 3 * 2 * 2,
          "floating-point operations");
  require(out == std::vector<float>{1, 2, 3, 4, 6, 5}, "the product");
  require(causal_blocks(512, 128) == 4 + 3 + 2 + 1, "blocks of a causal mask");

  try {
    sizes = {2, -1};
    grouped_product(lhs.data(), rhs.data(), sizes.data(), out.data(), 3, 2, 2, 2);
    require(false, "a negative group size is an error");
  } catch (const ejk::Error& error) {
    require(error.kind() == ejk::Error::Kind::input, "the kind of the error");
    std::cout << "caught: " << error.message() << "\n";
  }
  try {
    causal_blocks(512, 100);
    require(false, "blocks that do not divide the mask are an error");
  } catch (const ejk::Error& error) {
    std::cout << "caught: " << error.message() << "\n";
  }
} catch (const std::logic_error& failed) {
  std::cerr << "host: " << failed.what() << "\n";
  return 1;
}
