// Where the documents and the packages ejkernel and fla differ, functions take the convention to follow.
#pragma once

namespace ejk {

enum class Convention {
  document,  // the default
  ejkernel,
  fla,  // of ids and indices in packed sequences
};

/// "document", "ejkernel", "fla".
constexpr const char* name_of(Convention convention) {
  return convention == Convention::document   ? "document"
         : convention == Convention::ejkernel ? "ejkernel"
                                              : "fla";
}

}  // namespace ejk
