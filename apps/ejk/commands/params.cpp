// ejk params: parameters of kernels as JSON, and the documented choice of warps and stages.
//
// tests: tests/cli/params/
#include "ejk/program/params.hpp"

#include <fmt/format.h>

#include <memory>
#include <optional>

#include "commands.hpp"
#include "ejk/program/text.hpp"
#include "job.hpp"

namespace ejk::app {

namespace {

enum class Kind { forward, backward };

struct FileOptions {
  std::string file, override;
  Kind kind = Kind::forward;
};

void add_file(OptionSet& set, const std::string& name, std::string& into, const std::string& help) {
  add_word(
      set, name, into, [](const std::string& word) { return word; }, "FILE", help)
      .required();
}

const char* const kFileHelp =
    "a JSON object of parameters, or - for stdin\n"
    "An unknown field is an error; null is a field left open, 0 a value like any other.";

void add_kind(OptionSet& set, Kind& into) {
  add_choice(set, "--kind", into, {{"fwd", Kind::forward}, {"bwd", Kind::backward}}, "KIND",
             "kind of parameters");
}

// Errors in the parameters are prefixed with the file's name.
template <class Read>
auto read_params(Job& job, const char* role, const std::string& file, Read read) {
  const JsonValue value = job.phase(Phase::read, [&] { return job.inputs.read_json(role, file); });
  try {
    return read(value);
  } catch (Error& error) {
    error.at(printable(file));
    throw;
  }
}

Outcome deliver_dict(Job& job, const ParamsDict& dict, std::vector<std::string> warnings = {}) {
  Report report;
  report.warnings = std::move(warnings);
  std::string text;
  for (const auto& [name, value] : dict) {
    text += fmt::format("{}\"{}\":{}", text.empty() ? "" : ",", name, value);
    report.add(name, name, value);
  }
  if (!job.plan(report, 0)) job.deliver_text("{" + text + "}\n", report);
  return Outcome::passed;
}

Outcome deliver_number(Job& job, const char* key, std::int64_t number, Report report) {
  if (job.plan(report, 0)) return Outcome::passed;
  report.add(key, key, number);
  job.deliver_text(fmt::format("{}\n", number), std::move(report));
  return Outcome::passed;
}

template <class Read>
Outcome merge_files(const FileOptions& options, Job& job, Read read) {
  const auto base = read_params(job, "base", options.file, read);
  const auto override = read_params(job, "override", options.override, read);
  return deliver_dict(job, to_dict(merge(base, override)));
}

struct BlockOptions {
  std::int64_t q_block = 0, kv_block = 0, head_dim = 0;
  DType dtype = DType::float16;
};

Run declare_params_to_dict(OptionSet& set) {
  const auto options = std::make_shared<FileOptions>();
  add_file(set, "FILE", options->file, kFileHelp);
  add_kind(set, options->kind);
  return [options](Job& job) {
    const std::string& file = options->file;
    return options->kind == Kind::forward
               ? deliver_dict(job, to_dict(read_params(job, "params", file, fwd_params_from)))
               : deliver_dict(job, to_dict(read_params(job, "params", file, bwd_params_from)));
  };
}

Run declare_params_merge(OptionSet& set) {
  const auto options = std::make_shared<FileOptions>();
  add_file(set, "BASE", options->file, kFileHelp);
  add_file(set, "OVERRIDE", options->override, "another, whose fields come first");
  add_kind(set, options->kind);
  return [options](Job& job) {
    return options->kind == Kind::forward ? merge_files(*options, job, fwd_params_from)
                                          : merge_files(*options, job, bwd_params_from);
  };
}

Run declare_params_backward(OptionSet& set) {
  const auto options = std::make_shared<FileOptions>();
  const auto scale = std::make_shared<double>(0.5);
  add_file(set, "FILE", options->file, kFileHelp);
  add_word(set, "--scale", *scale, read_real, "S",
           "parts of forward blocks, 0.5 by default\n"
           "q_blocksize and kv_blocksize are multiplied and cut; one that is unset or 0 counts as 128.");
  return [options, scale](Job& job) {
    const BwdParams params =
        BwdParams::from_fwd_params(read_params(job, "fwd", options->file, fwd_params_from), *scale);
    std::vector<std::string> warnings;
    for (const auto& [name, value] : to_dict(params))
      if (name.ends_with("_blocksize") && value < 1)
        warnings.push_back(fmt::format("{} is {}: no block has that size", name, value));
    return deliver_dict(job, to_dict(params), std::move(warnings));
  };
}

Run declare_params_warps(OptionSet& set) {
  const auto options = std::make_shared<BlockOptions>();
  add_word(set, "--q-block", options->q_block, at_least(1), "N", "queries of a block")
      .required()
      .shown("queries");
  add_word(set, "--kv-block", options->kv_block, at_least(1), "N", "keys of a block")
      .required()
      .shown("keys");
  add_word(set, "--head-dim", options->head_dim, at_least(1), "N", "length of a head's vectors")
      .required()
      .shown("head dimension");
  add_dtype(set, "--dtype", options->dtype, "element type").shown("dtype");
  return [options](Job& job) {
    Report report;
    job.show_options(report);
    const std::int64_t warps =
        select_num_warps(options->q_block, options->kv_block, options->head_dim, options->dtype);
    return deliver_number(job, "num_warps", warps, std::move(report));
  };
}

Run declare_params_stages(OptionSet& set) {
  const auto taken = std::make_shared<std::int64_t>(0);
  const auto given_limit = std::make_shared<std::optional<std::int64_t>>();
  add_word(set, "--smem-bytes", *taken, read_size_or_zero, "SIZE", "shared memory that a block takes")
      .required()
      .key("smem")
      .shown("shared memory taken", Unit::bytes);
  add_word(set, "--smem-limit", *given_limit, read_size_or_zero, "SIZE",
           "shared memory there is\nDefault: EJKERNEL_TRITON_SMEM_LIMIT in bytes, else by the GPU "
           "here: A100 164 KiB, V100 96 KiB, T4 64 KiB, any other or none 48 KiB.");
  return [taken, given_limit](Job& job) {
    const std::int64_t limit = *given_limit ? **given_limit : smem_limit();
    Report report;
    job.show_options(report);
    report.add("smem_limit", "shared memory there is", limit, Unit::bytes);
    return deliver_number(job, "num_stages", select_num_stages(*taken, limit), std::move(report));
  };
}

}  // namespace

extern const Command params_to_dict_command{
    .name = "params to-dict",
    .summary = "the fields that are set",
    .example = "ejk params to-dict fwd.json",
    .declare = declare_params_to_dict,
};

extern const Command params_merge_command{
    .name = "params merge",
    .summary = "the fields of the second file, else those of the first",
    .example = "ejk params merge base.json override.json",
    .declare = declare_params_merge,
};

extern const Command params_backward_command{
    .name = "params backward",
    .summary = "backward parameters from forward ones",
    .example = "ejk params backward fwd.json --scale 0.5",
    .declare = declare_params_backward,
};

extern const Command params_warps_command{
    .name = "params warps",
    .summary = "how many warps a block gets",
    .example = "ejk params warps --q-block 128 --kv-block 128 --head-dim 64",
    .declare = declare_params_warps,
};

extern const Command params_stages_command{
    .name = "params stages",
    .summary = "how many pipeline stages fit in shared memory",
    .example = "ejk params stages --smem-bytes 16k --smem-limit 48KiB",
    .declare = declare_params_stages,
};

extern const Command params_command{
    .name = "params",
    .group = "Settings",
    .summary = "parameters of kernels: clean, merge, derive, choose",
    .example = "ejk params backward fwd.json --scale 0.5",
    .keys = R"(
blocksize_m, blocksize_k, blocksize_n, q_blocksize, kv_blocksize | integer | the parameter | where it is set
blocksize_heads, blocksize_keys, num_key_splits | integer | the same, of forward parameters alone | where it is set
q_block, kv_block, head_dim | integer | queries and keys of a block, length of a head's vectors | warps
dtype | string | the element type | warps
num_warps | integer | the parameter of this name, or the result | where it is set; warps
smem_bytes, smem_limit_bytes | integer | shared memory that a block needs, and the limit | stages
num_stages | integer | the parameter of this name, or the result | where it is set; stages
)",
    .actions = {&params_to_dict_command, &params_merge_command, &params_backward_command,
                &params_warps_command, &params_stages_command},
};

}  // namespace ejk::app
