// Arrays as Python prints them, as one word of the command line.
// tests: tests/app/test_printed_array.cpp
#pragma once

#include <optional>
#include <string>

#include "ejk/array.hpp"

namespace ejk::app {

/// Whole numbers, or True and False, as a list, an array or a tensor is printed, with a slice after it or
/// without:
///   [0, 144, 432]   [[0 1]\n [2 3]]   [np.int64(0), np.int64(3)]
///   tensor([0, 3], device='cuda:0', dtype=torch.int32)
///   array([0, 3], dtype=int32)   Array([0, 3], dtype=int32)
struct PrintedArray {
  Array array;        // int64 where no dtype is printed, or bool
  std::string slice;  // "[:3]"; empty: everything
};

/// Whether a word has that form; files of such names begin with "./".
bool is_printed_array(const std::string& word);

/// Nothing for another word. Throws Error{usage}: floats, which are rounded where they are printed; an array
/// with "...", whose numbers are cut out; rows of several lengths; a number beyond its dtype.
std::optional<PrintedArray> printed_array(const std::string& word);

}  // namespace ejk::app
