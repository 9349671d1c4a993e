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
/// are optional. "(dp)" is "(dp,)"; empty text is the empty spec. Throws Error{usage}.
PartitionSpec parse_partition_spec(std::string_view text);

/// "dp=2,mp=4". Throws Error{usage}.
Mesh parse_mesh(std::string_view text);

/// The inverse of parse_partition_spec; names are quoted where necessary. The empty spec is "P()".
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
  SpecEntry entry;
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

/// The valid spec for this shape: resized to the rank; an entry becomes none for an axis missing from the
/// mesh, for neither a name nor a tuple, or if the length is not a multiple of its sizes' product. Axes of
/// size 1 are kept; if every entry is none the result is empty. Throws Error{usage}: an axis used twice in
/// the result, equal axis names in the mesh, a size below 1, more than 2^63 - 1 devices, a negative length.
Sharding get_corrected_named_sharding(const Shape& shape, const PartitionSpec& spec, const Mesh& mesh);

/// The spec, each dimension and its correction, the local shape, the cost of corrections in elements a
/// device (bytes with a dtype), and the part of each of up to 64 devices.
Report describe(const Sharding& sharding, std::optional<DType> dtype = std::nullopt);

}  // namespace ejk
