// Shardings: which axes of a device mesh cut which dimensions of an array, corrected where they cannot.
// Source: the document xla_utils.shardings (get_corrected_named_sharding).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/report.hpp"

namespace ejk {

/// An axis of a mesh of devices; the first of a mesh is the slowest.
struct MeshAxis {
  std::string name;
  std::int64_t size = 1;
};
using Mesh = std::vector<MeshAxis>;

/// How one dimension is cut: by no axis, by one, or by several in order, the first being the slowest.
struct SpecEntry {
  enum class Kind { axes, unconstrained };
  std::vector<std::string> axes;
  Kind kind = Kind::axes;

  bool operator==(const SpecEntry&) const = default;
};
using PartitionSpec = std::vector<SpecEntry>;

/// "dp,None,(mp,tp)", "P('dp', None)": names, None or null, UNCONSTRAINED, tuples; quotes, spaces and P(...)
/// around the whole may be there or not. "(dp)" is "(dp,)", and the empty text the empty spec. Throws
/// Error{usage}.
PartitionSpec parse_partition_spec(std::string_view text);

/// "dp=2,mp=4". Throws Error{usage}.
Mesh parse_mesh(std::string_view text);

/// "dp,None,(mp,tp)", which parse_partition_spec takes back; names that need quotes have them. The empty spec is
/// "P()".
std::string to_string(const PartitionSpec& spec);

/// One entry that was not kept.
struct SpecCorrection {
  enum class Reason {
    unknown_axis,   // `axis` is not in the mesh
    not_divisible,  // the length is no multiple of `shards`
    unconstrained,  // neither a name nor a tuple of names
    no_dimension,   // the array has no such dimension
  };
  Reason reason = Reason::unknown_axis;
  std::int64_t dimension = 0;
  SpecEntry asked;
  std::string axis;
  std::int64_t shards = 1;  // the product of the sizes of its axes that the mesh has, at most 2^63 - 1
};

struct Sharding {
  Shape shape;
  Mesh mesh;
  /// An entry for each dimension, or none at all when no dimension is cut.
  PartitionSpec spec;
  std::vector<SpecCorrection> corrections;
  /// Of the part that each device holds.
  Shape local_shape;
  std::int64_t devices = 1;
  /// Devices that hold the same part.
  std::int64_t copies = 1;
};

/// Why, in words: "1022 is not a multiple of mp = 4".
std::string to_string(const SpecCorrection& correction, const Sharding& sharding);

/// The spec that an array of this shape can have on the mesh. Cut or filled up with none to the rank; then an
/// entry becomes none if an axis of it is not in the mesh, if it is neither a name nor a tuple, or if the
/// length is no multiple of the product of its sizes (0 is a multiple). Axes of size 1 are kept, a tuple of
/// one is its name, an empty one none, and if every entry is none the result is the empty spec. Throws
/// Error{usage} for an axis used twice in what remains, for a mesh with two axes of one name, a size below 1
/// or more than 2^63 - 1 devices, and for a negative length.
Sharding get_corrected_named_sharding(const Shape& shape, const PartitionSpec& spec, const Mesh& mesh);

/// A report: the spec, each dimension and what became of it, the local shape, and what a correction costs in
/// elements a device, in bytes with a dtype; up to 64 devices, the part that each one holds.
Report describe(const Sharding& sharding, std::optional<DType> dtype = std::nullopt);

}  // namespace ejk
