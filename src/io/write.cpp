// Writing of arrays: target and names become a job for the functions of the container's row.
// tests: tests/io/test_write.cpp
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/checked.hpp"
#include "core/require.hpp"
#include "ejk/io.hpp"
#include "ejk/program/text.hpp"
#include "io/container.hpp"

namespace ejk {

namespace {

// Gives each array the name it will have in the container.
io::WriteJob make_job(const ArrayReference& target, std::vector<NamedArray> arrays, bool several,
                      const WriteOptions& options) {
  const std::string text = printable(target.text.empty() ? target.path : target.text);
  const auto misused = [&](std::string_view why) { return core::usage("{}: {}", text, why); };
  if (!target.slice.empty()) throw misused("an output cannot be a slice");
  const io::Container& container = io::container(target.container);
  if (several && !container.holds_several())
    throw misused(fmt::format("{} holds one array, not several", container.label))
        .hint("write to out.h5, out.npz or a folder (out/)");
  if (arrays.empty()) throw misused("there is no array to write");
  constexpr int kMostCompression = 9;
  if (options.compression < 0 || options.compression > kMostCompression)
    throw misused(fmt::format("{} is no level of compression, which go from 0 to {}", options.compression,
                              kMostCompression));
  if (options.compression != 0 && !container.compresses)
    throw misused(fmt::format("{} has no compression", container.label)).hint("an .npz or HDF5 file has");
  if (!several && arrays.size() != 1) throw Error(Error::Kind::internal, "write_array: one array at a time");

  io::WriteJob job{target.path, std::move(arrays), "", options};
  const std::string member(io::without_slashes(target.member));
  if (several && !member.empty() && !container.has_groups())
    throw misused(fmt::format("a member of {} holds one array, not several", container.label));
  const auto in_container = [&](const std::string& array) {
    std::string name(io::without_slashes(array));
    if (!member.empty()) name = several ? member + "/" + name : member;
    if (io::without_slashes(name).empty() && container.holds_several())
      throw misused("an array to be written has no name");
    return container.has_groups() ? "/" + name : name;
  };
  for (NamedArray& array : job.arrays) array.name = in_container(array.name);
  for (std::string& name : job.options.absent) name = in_container(name);
  if (container.has_groups()) job.attributes_at = several ? "/" + member : job.arrays[0].name;
  std::set<std::string_view> names;
  for (const NamedArray& array : job.arrays)
    if (!names.insert(array.name).second)
      throw misused(fmt::format("two arrays are named '{}'", printable(array.name)));
  return job;
}

}  // namespace

std::int64_t io::WriteJob::bytes() const {
  if (options.compression != 0) return 0;
  std::int64_t sum = 0;
  for (const NamedArray& array : arrays)
    sum =
        core::checked_add(sum, byte_count(array.source->shape(), array.source->dtype())).value_or(INT64_MAX);
  return sum;
}

void write_arrays(const ArrayReference& target, const std::vector<NamedArray>& arrays,
                  const WriteOptions& options) {
  const ArrayReference to = io::as_output(target);
  for (const NamedArray& array : arrays) (void)core::required(array.source);
  io::container(to.container).write(make_job(to, arrays, true, options));
}

void write_array(const ArrayReference& target, const NamedArray& array, const WriteOptions& options) {
  const ArrayReference to = io::as_output(target);
  (void)core::required(array.source);
  io::container(to.container).write(make_job(to, {array}, false, options));
}

void check_target(const ArrayReference& target, const std::vector<std::string>& names, bool several,
                  const WriteOptions& options) {
  const ArrayReference to = io::as_output(target);
  std::vector<NamedArray> arrays;
  for (const std::string& name : names) arrays.push_back({name, nullptr});
  io::container(to.container).check(make_job(to, std::move(arrays), several, options));
}

}  // namespace ejk
