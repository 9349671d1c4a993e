// Arrays are written, or printed, while they are made: what a source computes, it computes here.
//
// tests: tests/app/test_outputs.cpp
#include "outputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <utility>

#include "ejk/text.hpp"
#include "provenance.hpp"

namespace ejk::app {

namespace {

using Container = ArrayReference::Container;
using Progress = std::function<void(std::int64_t done, std::int64_t all)>;

// Calls `count` with the bytes of everything that is read from a source. What lies in memory is not read.
class CountedSource final : public ForwardingSource {
 public:
  CountedSource(std::shared_ptr<const ArraySource> source, std::function<void(std::int64_t)> count)
      : ForwardingSource(std::move(source)), count_(std::move(count)) {}

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    inner().read(start, count, out);
    count_(byte_count(count, dtype()));
  }

 private:
  std::function<void(std::int64_t)> count_;
};

// The same arrays, with progress while they are read.
std::vector<NamedArray> counted(const std::vector<NamedArray>& arrays, const Progress& progress) {
  struct Count {
    std::mutex mutex;
    std::int64_t done = 0;
    std::int64_t all = 0;
  };
  const auto total = std::make_shared<Count>();
  std::vector<NamedArray> out;
  for (const NamedArray& array : arrays) {
    if (array.source->access().prefer == ArrayAccess::Prefer::copy)
      total->all += type_of(*array.source).bytes();
    out.push_back({array.name, std::make_shared<CountedSource>(array.source, [=](std::int64_t bytes) {
                     const std::scoped_lock lock(total->mutex);
                     progress(total->done += bytes, total->all);
                   })});
  }
  return out;
}

}  // namespace

Output output_in_parts(std::string name, const ArrayType& type, std::vector<OutputPart> parts) {
  const auto nothing = [name](std::span<const std::int64_t>, std::span<const std::int64_t>, void*) {
    throw Error(Error::Kind::internal, name + ": no member of the team holds all of it");
  };
  Output output{name, generated_source(type, name, nothing), {}, std::move(parts)};
  return output;
}

void Outputs::declare(std::vector<std::string> names) {
  declared_ = std::move(names);
  chosen_ = shared_.field.empty() ? declared_ : std::vector{shared_.field};
  several_ = chosen_.size() > 1;
  if (!has_target()) return;

  target_ = parse_output(shared_.output);
  if (!target_->slice.empty())
    throw Error(Error::Kind::usage,
                fmt::format("{}: an output cannot have a slice", printable(shared_.output)));
  const bool is_stdout = target_->container == Container::stream;
  if (several_ && (target_->container == Container::npy || is_stdout))
    throw Error(Error::Kind::usage,
                fmt::format("{} holds one array, and {} makes {}",
                            is_stdout ? "stdout" : printable(shared_.output), command_, chosen_.size()))
        .hint(shared_.has_field
                  ? fmt::format("--field NAME picks one of {}; out.h5, out.npz or out/ takes all",
                                fmt::join(chosen_, ", "))
                  : "out.h5, out.npz or out/ takes all");
  many_ = several_ || target_->container == Container::directory;
  check_target(*target_, chosen_, many_, {shared_.overwrite, {}, {}, shared_.compression});
}

bool Outputs::is_chosen(const std::string& name) const {
  return std::find(chosen_.begin(), chosen_.end(), name) != chosen_.end();
}

// A single array is printed when nobody says where to write it; several are not, nor is one beside JSON.
bool Outputs::writes_any() const {
  return !shared_.dry_run && !chosen_.empty() && (target_ || (!several_ && !shared_.json));
}

bool Outputs::to_stdout() const {
  return writes_any() && (!target_ || target_->container == Container::stream);
}

std::int64_t Outputs::write(const std::vector<Output>& outputs, const Settings& settings,
                            const Progress& progress) const {
  std::vector<NamedArray> arrays;
  std::vector<std::string> absent;
  std::int64_t bytes = 0;
  for (const Output& output : outputs) {
    if (!is_chosen(output.name)) continue;
    if (output.source) {
      arrays.push_back({output.name, output.source});
      bytes += type_of(*output.source).bytes();
    } else if (several_) {
      absent.push_back(output.name);
    } else {
      // By what was asked for, or by what the input holds.
      const bool never = std::find(declared_.begin(), declared_.end(), output.name) == declared_.end();
      throw Error(never ? Error::Kind::usage : Error::Kind::input,
                  fmt::format("there is no {}: {}", output.name, output.absent_because));
    }
  }
  if (arrays.empty() || !writes_any()) return 0;

  arrays = counted(arrays, progress);
  WriteOptions how{shared_.overwrite, settings, std::move(absent), shared_.compression};
  how.outdated = setting_names();
  if (target_ && many_)
    write_arrays(*target_, arrays, how);
  else if (target_)
    write_array(*target_, arrays.front(), how);
  else
    print_array(stdout, *arrays.front().source);
  return bytes;
}

}  // namespace ejk::app
