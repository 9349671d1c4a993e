// Ids of packed elements as arrays that are computed while they are read.
//
// Sequence i covers the elements offsets[i] … offsets[i+1] - 1, in which the position counts from 0 and the
// label is constant. Tokens have cu_seqlens as offsets; chunks have the chunk offsets.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ejk/array.hpp"

namespace ejk::sequence {

enum class IdKind {
  position,  // (elements,)
  label,     // (elements,)
  both,      // (elements, 2): label, position
};

/// `labels`: of each run. Throws Error{input} naming the first label or length that dtype cannot hold.
std::shared_ptr<const ArraySource> make_ids(std::vector<std::int64_t> offsets,
                                            std::vector<std::int64_t> labels, IdKind kind, DType dtype,
                                            std::string name);

}  // namespace ejk::sequence
