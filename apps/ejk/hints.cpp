// One row for each code whose way out is an option or a command.
#include "hints.hpp"

#include <fmt/format.h>

namespace ejk::app {

namespace {

struct Row {
  Error::Code code;
  const char* hint;  // {} is the library's own
};

constexpr Row kHints[] = {
    {Error::Code::no_such_axis, "--{}"},
    {Error::Code::not_integers, "whole numbers of a float type: ejk convert IN -o OUT --dtype int32"},
    {Error::Code::not_offsets, "if these are lengths: ejk cu-seqlens IN -o OUT"},
    {Error::Code::exceeds_dtype, "--dtype int64 holds more"},
    {Error::Code::exceeds_row, "--long truncate cuts such sequences off, --long split cuts them into pieces"},
    {Error::Code::exists, "--overwrite replaces it"},
    {Error::Code::external, "--allow-external follows it, and reads what it names"},
    {Error::Code::plugin_filter, "--allow-external loads the HDF5 library's plug-ins"},
    {Error::Code::unchecked_filter,
     "`h5repack -f GZIP=4 OLD NEW` stores it with gzip; for a file you trust, --allow-external"},
};

}  // namespace

void add_hint(Error& error) {
  for (const Row& row : kHints)
    if (row.code == error.code()) error.hint(fmt::format(fmt::runtime(row.hint), error.hint()));
}

}  // namespace ejk::app
