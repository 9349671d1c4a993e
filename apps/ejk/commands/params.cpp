// ejk params: parameters of kernels as JSON, and how the documents choose warps and stages.
//
// tests: tests/cli/params/
#include "ejk/params.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>

#include "commands.hpp"
#include "ejk/text.hpp"
#include "job.hpp"

namespace ejk::app {

namespace {

enum class Action { to_dict, merge, backward, warps, stages };

struct ActionWords {
  std::string name;
  std::size_t files;
  std::vector<std::string> options;   // those that it takes
  std::vector<std::string> required;  // and those of them that it must have
};

const std::vector<ActionWords>& actions() {
  static const std::vector<ActionWords> table{
      {"to-dict", 1, {"--kind"}, {}},
      {"merge", 2, {"--kind"}, {}},
      {"backward", 1, {"--scale"}, {}},
      {"warps",
       0,
       {"--q-block", "--kv-block", "--head-dim", "--dtype"},
       {"--q-block", "--kv-block", "--head-dim"}},
      {"stages", 0, {"--smem-bytes", "--smem-limit"}, {"--smem-bytes"}},
  };
  return table;
}

enum class Kind { forward, backward };

struct ParamsOptions {
  Action action = Action::to_dict;
  std::vector<std::string> files;
  Kind kind = Kind::forward;
  double scale = 0.5;
  std::int64_t q_block = 0, kv_block = 0, head_dim = 0;
  DType dtype = DType::float16;
  std::int64_t smem_bytes = 0;
  std::optional<std::int64_t> smem_limit;
};

Error usage(std::string message) { return Error(Error::Kind::usage, std::move(message)); }

// Options of other actions are mistakes, not decoration.
void check_words(const CLI::App& app, const ParamsOptions& options) {
  const ActionWords& action = actions()[static_cast<std::size_t>(options.action)];
  const auto has = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const ActionWords& other : actions())
    for (const std::string& name : other.options)
      if (was_given(app, name) && !has(action.options, name))
        throw usage(
            fmt::format("{} is an option of 'params {}', not of 'params {}'", name, other.name, action.name));
  for (const std::string& name : action.required)
    if (!was_given(app, name)) throw usage(fmt::format("{} is required", name));
  if (options.files.size() < action.files)
    throw usage(
        fmt::format("'params {}' takes {} of JSON", action.name, action.files == 1 ? "a file" : "two files"))
        .hint(fmt::format("for example: ejk params {}",
                          action.files == 1 ? action.name + " fwd.json" : "merge base.json override.json"));
  if (options.files.size() > action.files)
    throw usage(fmt::format("unexpected argument '{}'", printable(options.files[action.files])));
}

// What the file holds has the file's name in front of its faults.
template <class Read>
auto read_params(Job& job, const char* role, const std::string& file, Read read) {
  const JsonValue value = job.phase(Job::Phase::read, [&] { return job.read_json(role, file); });
  try {
    return read(value);
  } catch (Error& error) {
    error.at(printable(file));
    throw;
  }
}

Answer deliver_dict(Job& job, const ParamsDict& dict, std::vector<std::string> warnings) {
  Report report;
  report.warnings = std::move(warnings);
  std::string text;
  for (const auto& [name, value] : dict) {
    text += fmt::format("{}\"{}\":{}", text.empty() ? "" : ",", name, value);
    report.add(name, name, value);
  }
  if (!job.plan(report, 0)) job.deliver_text("{" + text + "}\n", report);
  return Answer::yes;
}

Answer deliver_number(Job& job, const char* key, std::int64_t number, Report report) {
  if (job.plan(report, 0)) return Answer::yes;
  report.add(key, key, number);
  job.deliver_text(fmt::format("{}\n", number), std::move(report));
  return Answer::yes;
}

template <class Read>
Answer run_dicts(const ParamsOptions& options, Job& job, Read read) {
  if (options.action == Action::to_dict)
    return deliver_dict(job, to_dict(read_params(job, "params", options.files[0], read)), {});
  const auto base = read_params(job, "base", options.files[0], read);
  const auto override = read_params(job, "override", options.files[1], read);
  return deliver_dict(job, to_dict(merge(base, override)), {});
}

Answer run_backward(const ParamsOptions& options, Job& job) {
  const BwdParams params =
      BwdParams::from_fwd_params(read_params(job, "fwd", options.files[0], fwd_params_from), options.scale);
  std::vector<std::string> warnings;
  for (const auto& [name, value] : to_dict(params))
    if (name.ends_with("_blocksize") && value < 1)
      warnings.push_back(fmt::format("{} is {}: no block has that size", name, value));
  return deliver_dict(job, to_dict(params), std::move(warnings));
}

Answer run(const ParamsOptions& options, Job& job) {
  switch (options.action) {
    case Action::backward:
      return run_backward(options, job);
    case Action::warps: {
      const std::int64_t warps =
          select_num_warps(options.q_block, options.kv_block, options.head_dim, options.dtype);
      Report report;
      report.add("q_block", "queries", options.q_block)
          .add("kv_block", "keys", options.kv_block)
          .add("head_dim", "head dimension", options.head_dim)
          .add("dtype", "dtype", std::string(name_of(options.dtype)));
      return deliver_number(job, "num_warps", warps, std::move(report));
    }
    case Action::stages: {
      const std::int64_t limit = options.smem_limit ? *options.smem_limit : smem_limit();
      const std::int64_t stages = select_num_stages(options.smem_bytes, limit);
      Report report;
      report.add("smem", "shared memory taken", options.smem_bytes, Unit::bytes)
          .add("smem_limit", "shared memory there is", limit, Unit::bytes);
      return deliver_number(job, "num_stages", stages, std::move(report));
    }
    default:
      return options.kind == Kind::forward ? run_dicts(options, job, fwd_params_from)
                                           : run_dicts(options, job, bwd_params_from);
  }
}

}  // namespace

Run params(CLI::App& app) {
  const auto options = std::make_shared<ParamsOptions>();
  add_word(
      app, "ACTION", options->action,
      [](const std::string& word) {
        std::vector<std::string> names;
        for (const ActionWords& action : actions()) names.push_back(action.name);
        return static_cast<Action>(read_choice(word, names));
      },
      "ACTION",
      "to-dict, merge, backward, warps or stages\n"
      "to-dict P.json: the fields that are set. merge BASE.json OVERRIDE.json: what the second sets, else "
      "what "
      "the first does. backward FWD.json: backward parameters from forward ones. warps, stages: how many.")
      .required();
  take_words(
      app, "FILE", [options](const std::string& word) { options->files.push_back(word); }, "FILE",
      "JSON objects of parameters, or - for stdin\nAn unknown field is an error; "
      "null is a field left open, 0 a value like any other.");
  add_word(
      app, "--kind", options->kind,
      [](const std::string& word) {
        return static_cast<Kind>(read_choice(word, {"fwd", "bwd"}));
      },
      "KIND", "to-dict, merge: what the files hold, fwd (default) or bwd");
  add_word(app, "--scale", options->scale, read_real, "S",
           "backward: parts of forward blocks, 0.5 by default\n"
           "q_blocksize and kv_blocksize are multiplied and cut; 128 stands for one that is unset or 0.");
  const auto length = [](const std::string& word) { return read_integer(word, 1); };
  add_word(app, "--q-block", options->q_block, length, "N", "warps: queries of a block");
  add_word(app, "--kv-block", options->kv_block, length, "N", "warps: keys of a block");
  add_word(app, "--head-dim", options->head_dim, length, "N", "warps: length of a head's vectors");
  add_word(app, "--dtype", options->dtype, read_dtype, "TYPE", "warps: element type, float16 by default");
  add_word(app, "--smem-bytes", options->smem_bytes, read_size_or_zero, "SIZE",
           "stages: shared memory that a block takes");
  add_word(app, "--smem-limit", options->smem_limit, read_size_or_zero, "SIZE",
           "stages: shared memory there is\nDefault: EJKERNEL_TRITON_SMEM_LIMIT in bytes, else by the GPU "
           "here: A100 164 KiB, V100 96 KiB, T4 64 KiB, any other or none 48 KiB.");
  return [options, &app](Job& job) {
    check_words(app, *options);
    return run(*options, job);
  };
}

}  // namespace ejk::app
