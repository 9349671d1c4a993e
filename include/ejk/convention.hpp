// Where the documents and the package ejkernel differ, functions take the convention to follow.
#pragma once

namespace ejk {

enum class Convention {
  document,  // the default
  ejkernel,
};

/// "document", "ejkernel".
constexpr const char* name_of(Convention convention) {
  return convention == Convention::document ? "document" : "ejkernel";
}

}  // namespace ejk
