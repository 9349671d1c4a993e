// ejk sharding: corrects a partition spec to the shape and the mesh.
//
// tests: tests/cli/sharding/
#include "ejk/program/sharding.hpp"

#include <fmt/format.h>

#include <memory>
#include <optional>

#include "commands.hpp"
#include "ejk/program/text.hpp"
#include "job.hpp"

namespace ejk::app {

namespace {

struct ShardingOptions {
  std::string shape_word, spec_word, mesh_word;  // for the report
  Shape shape;
  PartitionSpec spec;
  Mesh mesh;
  std::optional<DType> dtype;
  bool strict = false;
};

// "8,1024,512", "(8, 1024)"; empty text is rank 0.
Shape read_shape(const std::string& word) {
  Shape shape;
  std::string_view rest = trimmed(word);
  if (rest.starts_with('(') && rest.ends_with(')')) rest = trimmed(rest.substr(1, rest.size() - 2));
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(','), rest.size());
    const auto value = parse_integer(trimmed(rest.substr(0, end)));
    if (!value || *value < 0)
      throw usage("'{}' is not lengths with commas between them, such as 8,1024,512", printable(word));
    shape.push_back(*value);
    rest = trimmed(rest.substr(std::min(end + 1, rest.size())));
  }
  return shape;
}

Outcome run(const ShardingOptions& options, Job& job) {
  job.provenance.input("shape", options.shape_word);
  job.provenance.input("spec", options.spec_word);
  job.provenance.input("mesh", options.mesh_word);
  const Sharding sharding = job.phase(Phase::compute, [&] {
    return get_corrected_named_sharding(options.shape, options.spec, options.mesh);
  });
  if (options.strict && !sharding.corrections.empty()) {
    const SpecCorrection& first = sharding.corrections.front();
    const std::size_t others = sharding.corrections.size() - 1;
    throw usage("dimension {} cannot be cut by {}: {}{}", first.dimension,
                printable(to_string({first.entry})), to_string(first, sharding),
                others == 0 ? "" : fmt::format(" (and {} more)", others))
        .hint(fmt::format("without --strict the spec becomes {}", printable(to_string(sharding.spec))));
  }
  Report report = describe(sharding, options.dtype);
  if (job.plan(report, 0)) return Outcome::passed;
  job.deliver(std::move(report), {});
  return Outcome::passed;
}

Run declare_sharding(OptionSet& set) {
  const auto options = std::make_shared<ShardingOptions>();
  // Both the text and its value.
  const auto add = [&](const char* name, std::string& word, auto& value, auto read, const char* type,
                       const char* help) {
    add_word(
        set, name, value,
        [&word, read](const std::string& text) {
          word = text;
          return read(text);
        },
        type, help)
        .required();
  };
  add("--shape", options->shape_word, options->shape, read_shape, "N,N,...",
      "lengths of the array, such as 8,1024,512; '' is rank 0");
  add(
      "--spec", options->spec_word, options->spec,
      [](const std::string& text) { return parse_partition_spec(text); }, "SPEC",
      "an axis, None or a tuple for each dimension, such as 'dp,None,(mp,tp)'\n"
      "Quotes and P(...) around it may stay. Dimensions without an entry are not cut; '' is the empty spec.");
  add(
      "--mesh", options->mesh_word, options->mesh, [](const std::string& text) { return parse_mesh(text); },
      "NAME=N,...", "axes of the mesh of devices, such as dp=2,mp=4");
  add_dtype(set, "--dtype", options->dtype, "element type, to report memory in bytes");
  add_flag(set, "--strict", options->strict, "a spec that needs a correction is an error");
  set_footer(set,
             "The first line is the spec. A dimension is not cut where an axis is not in the\n"
             "mesh or the length is not a multiple of its axes' sizes; the report states the\n"
             "part of a device. An axis used twice is an error.");
  return [options](Job& job) { return run(*options, job); };
}

}  // namespace

extern const Command sharding_command{
    .name = "sharding",
    .group = "Settings",
    .summary = "a partition spec, corrected to what a mesh and a shape allow",
    .example = "ejk sharding --shape 8,1024,510 --spec 'dp,None,(mp,tp)' --mesh dp=2,mp=4",
    .keys = R"(
spec_text | string | the corrected spec as text
spec | list | the same: for each dimension null, an axis, or a list of axes
dimensions | table | the dimensions of the shape
  dimension | integer | its number
  length | integer | its length
  asked, spec | string | the requested and the corrected entry
  shards, local_length | integer | its shards, and its length on each device
  times_more | number | local_length / its length if sharded as requested
  why | string | why it was corrected, or nothing
left_out | table | entries of the spec beyond the dimensions
  dimension | integer | its place in the spec
  asked | string or list | the axis, or the axes
corrections | integer | entries that were corrected or dropped
shape, local_shape | shape | the shape of the array, and on each device
devices | integer | devices of the mesh
copies | integer | devices with the same part
local_elements, asked_elements | integer | elements on each device, and if sharded as requested
dtype | string | the element type | with --dtype
local_bytes, asked_bytes | integer | memory on each device, and if sharded as requested | with --dtype
parts | table | the part on each device | of at most 64 devices
  device | string | its place in the mesh: dp=0 mp=3
  part | string | its part of the array as a slice
)",
    .declare = declare_sharding,
};

}  // namespace ejk::app
