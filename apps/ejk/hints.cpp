// One row for each code whose way out is an option or a command.
#include "hints.hpp"

#include <fmt/format.h>

namespace ejk::app {

namespace {

using Code = Error::Code;

struct Row {
  Code code;
  const char* hint;  // {hint} is the library's own, {subject} what the error is about
};

constexpr Row kHints[] = {
    {Code::no_such_axis, "--{hint}"},
    {Code::not_integers, "whole numbers of a float type: ejk convert IN -o OUT --dtype int32"},
    {Code::not_floats, "ejk convert ... --dtype float32 makes it one of those"},
    {Code::not_offsets, "if these are lengths: ejk cu-seqlens IN -o OUT"},
    {Code::exceeds_dtype, "--dtype int64 holds more"},
    {Code::exceeds_row, "--long truncate cuts such sequences off, --long split cuts them into pieces"},
    {Code::exists, "--overwrite replaces it"},
    {Code::external, "--allow-external follows it, and reads what it names"},
    {Code::plugin_filter, "--allow-external loads the HDF5 library's plug-ins"},
    {Code::unchecked_filter,
     "`h5repack -f GZIP=4 OLD NEW` stores it with gzip; for a file you trust, --allow-external"},
};

}  // namespace

void add_hint(Error& error) {
  for (const Row& row : kHints)
    if (row.code == error.code())
      error.hint(fmt::format(fmt::runtime(row.hint), fmt::arg("hint", error.hint()),
                             fmt::arg("subject", error.subject())));
}

}  // namespace ejk::app
