// The outputs of a run: -o, --field, or text on stdout.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/communicator.hpp"
#include "ejk/io.hpp"
#include "options.hpp"

namespace ejk::app {

/// The hint for a target of one array.
inline constexpr char kTargetsOfAll[] = "out.safetensors, out.h5, out.npz or out/ takes all";

/// A result array of a command, or the reason why there is none.
struct Output {
  std::string name;
  /// All of the array, which every rank can read; with parts it only has the type.
  std::shared_ptr<const ArraySource> source;
  std::string absent_because;
  /// The boxes of this rank, if ranks have parts: all parts together are the array, each element once.
  std::optional<std::vector<ArrayPart>> parts = {};
};

Output output_in_parts(const std::string& name, const ArrayType& type, std::vector<ArrayPart> parts);

using Settings = std::map<std::string, std::string>;

class Outputs {
 public:
  /// `shared` outlives this.
  Outputs(std::string command, const SharedOptions& shared) : command_(std::move(command)), shared_(shared) {}

  /// The result arrays. Throws Error{usage} if -o holds fewer, Error{output} if it cannot be written.
  void declare(std::vector<std::string> names);

  bool has_target() const { return !shared_.output.empty(); }
  bool is_field(const std::string& name) const { return shared_.field == name; }
  /// Writing would replace this file without --overwrite: not of HDF5, whose other objects stay.
  bool replaces(const std::string& path) const;

  /// An array goes to stdout: the report must not.
  bool to_stdout() const;

  /// Warnings: arrays whose type the container of -o does not name.
  std::vector<std::string> lost_types(const std::vector<Output>& outputs) const;

  /// Writes the requested arrays, of all ranks, and returns their bytes. Collective.
  std::int64_t write(const std::vector<Output>& outputs, const Settings& settings,
                     const std::function<void(std::int64_t done, std::int64_t all)>& progress,
                     Communicator& comm = single_process()) const;

 private:
  bool writes_any() const;
  bool is_chosen(const std::string& name) const;

  std::string command_;
  const SharedOptions& shared_;
  std::optional<ArrayReference> target_;
  std::vector<std::string> declared_;
  std::vector<std::string> chosen_;  // the requested ones
  std::unordered_set<std::string> chosen_names_;
  bool several_ = false;  // more than one
};

}  // namespace ejk::app
