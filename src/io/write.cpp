// Writing: the target and the names become a job, which its container's row carries out.
// tests: tests/io/test_write.cpp
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/checked.hpp"
#include "core/require.hpp"
#include "core/text.hpp"
#include "ejk/io.hpp"
#include "io/container.hpp"

namespace ejk {

namespace {

using Kind = ArrayReference::Container;

std::string without_slash(std::string_view name) {
  while (name.starts_with('/')) name.remove_prefix(1);
  while (name.ends_with('/')) name.remove_suffix(1);
  return std::string(name);
}

std::string joined(const std::string& group, const std::string& name) {
  return group.empty() ? "/" + name : "/" + group + "/" + name;
}

// Gives each array the name it will have in the container.
io::WriteJob make_job(const ArrayReference& target, std::vector<NamedArray> arrays, bool several,
                      const WriteOptions& options) {
  const std::string text = core::printable(target.text.empty() ? target.path : target.text);
  const auto misused = [&](std::string_view why) {
    return Error(Error::Kind::usage, fmt::format("{}: {}", text, why));
  };
  if (!target.slice.empty()) throw misused("an output cannot be a slice");
  if (several && !io::container(target.container).holds_several)
    throw misused(fmt::format("{} holds one array, not several", io::container(target.container).label))
        .hint("write to out.h5, out.npz or a folder (out/)");
  if (arrays.empty()) throw misused("there is no array to write");
  constexpr int kMostCompression = 9;
  if (options.compression < 0 || options.compression > kMostCompression)
    throw misused(fmt::format("{} is no level of compression, which go from 0 to {}", options.compression,
                              kMostCompression));
  if (options.compression != 0 && target.container != Kind::npz && target.container != Kind::hdf5)
    throw misused(fmt::format("{} has no compression", io::container(target.container).label))
        .hint("an .npz or HDF5 file has");
  if (!several && arrays.size() != 1) throw Error(Error::Kind::internal, "write_array: one array at a time");

  io::WriteJob job{target.path, std::move(arrays), "", options};
  const std::string member = without_slash(target.member);
  if (target.container == Kind::npz || target.container == Kind::hdf5) {
    if (several && target.container == Kind::npz && !member.empty())
      throw misused("a member of an .npz holds one array, not several");
    for (NamedArray& array : job.arrays) {
      const std::string name = without_slash(array.name);
      if (!several && !member.empty())
        array.name = target.container == Kind::hdf5 ? "/" + member : member;
      else
        array.name = target.container == Kind::hdf5 ? joined(several ? member : "", name) : name;
      if (without_slash(array.name).empty()) throw misused("an array to be written has no name");
    }
    for (std::string& name : job.options.absent)
      if (target.container == Kind::hdf5) name = joined(member, without_slash(name));
    job.attributes_at = several ? "/" + member : job.arrays[0].name;
  } else {
    for (NamedArray& array : job.arrays) array.name = without_slash(array.name);
  }
  std::set<std::string_view> names;
  for (const NamedArray& array : job.arrays)
    if (!names.insert(array.name).second)
      throw misused(fmt::format("two arrays are named '{}'", core::printable(array.name)));
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
