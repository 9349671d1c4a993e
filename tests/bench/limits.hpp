// Peak rates of this machine, measured beside the work: the denominators of all ratios.
#pragma once

#include <cstdint>
#include <string>

#include "ejk/dtype.hpp"

namespace bench {

/// Floating-point operations a second, a multiply-add as two, in registers alone and with all threads, of the
/// unit that multiplies such factors fastest here: for bfloat16 AMX, else AVX-512 BF16; float16 counts as
/// float32. Measured for `seconds`.
double multiply_add_rate(ejk::DType dtype, double seconds = 0.05);

/// The name of that unit.
std::string multiply_add_unit(ejk::DType dtype);

/// Bytes a second that all threads together read from memory (a buffer far larger than the caches): the
/// median of `passes` over 1 GiB.
double read_bandwidth(int passes = 5);

/// The same for a file in the page cache: mapped, read, unmapped, once.
double mapped_read_bandwidth(const std::string& path);

/// The same, written past the caches to memory that is already there.
double fill_bandwidth(int passes = 5);

/// Bytes a second at which `bytes` bytes are written to a file that is not there yet, from memory that is in
/// the caches: the best of one thread writing, the same with room reserved before, and all threads writing
/// pieces of the reserved file. The file is removed after each.
double new_file_bandwidth(const std::string& path, std::int64_t bytes);

}  // namespace bench
