// Writing or printing of results. Sources are computed while they are written.
//
// tests: tests/app/test_outputs.cpp
#include "outputs.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "ejk/program/text.hpp"
#include "provenance.hpp"
#include "write_together.hpp"

namespace ejk::app {

Output output_in_parts(const std::string& name, const ArrayType& type, std::vector<ArrayPart> parts) {
  return {name, type_alone(type, name), {}, std::move(parts)};
}

void Outputs::declare(std::vector<std::string> names) {
  declared_ = std::move(names);
  chosen_ = shared_.field.empty() ? declared_ : std::vector{shared_.field};
  chosen_names_ = {chosen_.begin(), chosen_.end()};
  several_ = chosen_.size() > 1;
  if (!has_target()) return;

  target_ = parse_output(shared_.output);
  if (!target_->slice.empty()) throw usage("{}: an output cannot have a slice", printable(shared_.output));
  const bool is_stdout = target_->is_stream();
  if (several_ && !target_->holds_several())
    throw usage("{} holds one array, and {} makes {}", is_stdout ? "stdout" : printable(shared_.output),
                command_, chosen_.size())
        .hint(shared_.has_field
                  ? fmt::format("--field NAME picks one of {}; {}", fmt::join(chosen_, ", "), kTargetsOfAll)
                  : kTargetsOfAll);
  check_target(*target_, chosen_, several_, {shared_.overwrite, {}, {}, shared_.compression});
}

bool Outputs::replaces(const std::string& path) const {
  if (!target_ || shared_.overwrite || target_->is_stream()) return false;
  std::error_code error;
  return target_->container != ArrayReference::Container::hdf5 &&
         std::filesystem::equivalent(target_->path, path, error);
}

bool Outputs::is_chosen(const std::string& name) const { return chosen_names_.contains(name); }

// Without -o a single array is printed, unless there is a JSON report.
bool Outputs::writes_any() const {
  return !shared_.dry_run && !chosen_.empty() && (target_ || (!several_ && !shared_.json));
}

bool Outputs::to_stdout() const { return writes_any() && (!target_ || target_->is_stream()); }

std::vector<std::string> Outputs::lost_types(const std::vector<Output>& outputs) const {
  std::vector<std::string> warnings;
  if (!target_ || !writes_any()) return warnings;
  for (const Output& output : outputs) {
    if (!output.source || !is_chosen(output.name) || target_->names_type(output.source->dtype())) continue;
    const std::string_view dtype = name_of(output.source->dtype());
    if (target_->container != ArrayReference::Container::hdf5)
      warnings.push_back(
          fmt::format("{}: .npy has no name for {}, which is written as bytes '|V1': "
                      "numpy.load(...).view(ml_dtypes.{}), or ejk convert --view {}",
                      printable(output.name), dtype, dtype, dtype));
    else
      warnings.push_back(
          fmt::format("{}: HDF5 has no type for {}, which is written as uint8: ejk convert --view {}",
                      printable(output.name), dtype, dtype));
  }
  return warnings;
}

std::int64_t Outputs::write(const std::vector<Output>& outputs, const Settings& settings,
                            const std::function<void(std::int64_t done, std::int64_t all)>& progress,
                            Communicator& comm) const {
  std::vector<Output> arrays;
  std::vector<std::string> absent;
  std::int64_t bytes = 0;
  for (const Output& output : outputs) {
    if (!is_chosen(output.name)) continue;
    if (output.source) {
      arrays.push_back(output);
      bytes += type_of(*output.source).bytes();
    } else if (several_) {
      absent.push_back(output.name);
    } else {
      // Excluded by the options, or absent in the input.
      const bool never = std::find(declared_.begin(), declared_.end(), output.name) == declared_.end();
      throw Error(never ? Error::Kind::usage : Error::Kind::input,
                  fmt::format("there is no {}: {}", output.name, output.absent_because));
    }
  }
  if (arrays.empty() || !writes_any()) return 0;

  WriteOptions how{shared_.overwrite, settings, std::move(absent), shared_.compression};
  if (target_ && target_->container == ArrayReference::Container::hdf5) how.outdated = setting_names();
  how.sync = shared_.sync ? Sync::now : Sync::later;
  write_together(comm, arrays, progress, std::move(how),
                 [&](const std::vector<NamedArray>& all, const WriteOptions& options) {
                   if (target_ && several_)
                     write_arrays(*target_, all, options);
                   else if (target_)
                     write_array(*target_, all.front(), options);
                   else
                     print_array(stdout, *all.front().source);
                 });
  return bytes;
}

}  // namespace ejk::app
