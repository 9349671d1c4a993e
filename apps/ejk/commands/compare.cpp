// ejk compare: two arrays, or all arrays of two files or groups, within a tolerance; --explain adds where and
// why.
// tests: tests/cli/compare/
#include "ejk/program/compare_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "commands.hpp"
#include "compare_modes.hpp"
#include "ejk/program/checkpoint.hpp"
#include "ejk/program/text.hpp"
#include "job.hpp"
#include "printed_array.hpp"
#include "tolerances.hpp"

namespace ejk::app {

namespace {

struct CompareOptions {
  std::string actual, expected;
  Tolerance tolerance;
  ToleranceWords words;
  bool explain = false;
  // Of --explain, for two arrays.
  std::vector<std::string> axes;
  std::string group_sizes, cu_seqlens;
  Shape tile;
  std::vector<std::string> tile_axes;
  bool decode = false;
  bool runs = false, first = false, routing = false;
  std::vector<std::string> more;  // runs
  std::vector<NameMap> maps;
  std::optional<std::int64_t> top_k;

  bool describes_one_array() const {
    return !axes.empty() || !group_sizes.empty() || !cu_seqlens.empty() || !tile.empty() ||
           !tile_axes.empty();
  }
  bool explains() const { return explain || describes_one_array(); }
};

// Targets of links by name, as names in the set; FILE:/NAME outside of it.
std::map<std::string, ArraySet::Link> links_of(Job& job, const std::string& word) {
  namespace fs = std::filesystem;
  if (is_printed_array(word)) return {};
  const ArrayReference named = job.inputs.parsed(word);
  const std::string top = (fs::path("/") / named.member / "").lexically_normal();
  const auto below = [&](const fs::path& path) {
    const std::string name = path.lexically_normal();
    if (name + "/" == top) return std::string();
    return name.starts_with(top) ? name.substr(top.size()) : name;
  };
  const fs::path file = fs::absolute(named.path).lexically_normal();
  std::map<std::string, ArraySet::Link> links;
  for (const ArrayLink& link : job.inputs.links_in(word)) {
    ArraySet::Link& one = links[below(link.name)];
    one.target = link.target;
    one.is_outside = link.kind == "external" || link.kind == "unknown";
    one.resolved = link.kind == "external" ? (file.parent_path() / link.target).lexically_normal().string()
                   : one.is_outside        ? fmt::format("{}:{}", file.string(), link.name)
                                           : below(fs::path(link.name).parent_path() / link.target);
  }
  return links;
}

ArraySet set_of(Job& job, const std::string& word) {
  const auto inputs = std::make_shared<std::vector<NamedInput>>(job.inputs.arrays_in(word));
  ArraySet set{word, inputs->size() != 1 || !inputs->front().is_word, {}};
  for (NamedInput& input : *inputs)
    set.arrays.push_back(
        {input.name, input.reference.text, [&job, &input, inputs] { return job.inputs.open(input); }});
  return set;
}

// The block of scales that the config in a model's folder specifies.
std::optional<ScaleBlock> block_of_model(Job& job, const ArrayReference& model) {
  const std::string folder = model_folder(model.path);
  const std::string config = folder.empty() ? "" : config_in_folder(folder);
  return config.empty() ? std::nullopt : weight_block(job.inputs.read_json("config", config));
}

// The set with numbers in place of quantised tensors, under the names that they have where they are not
// quantised. Tensors of unsupported types stay as they are.
ArraySet decoded(Job& job, ArraySet set, const ArrayReference& model) {
  const auto tensors = std::make_shared<Tensors>();
  for (const ArraySet::Member& array : set.arrays) try {
      tensors->emplace(array.name, array.open());
    } catch (const Error& error) {
      if (!error.is_of_unsupported_type()) throw;
    }
  std::set<std::string> parts;
  std::vector<ArraySet::Member> numbers;
  std::vector<QuantizedTensor> quantized = quantized_tensors(*tensors);
  const bool has_blocks = std::any_of(quantized.begin(), quantized.end(), [](const QuantizedTensor& tensor) {
    return tensor.scheme == CheckpointScheme::fp8_blocks;
  });
  const std::optional<ScaleBlock> block = has_blocks ? block_of_model(job, model) : std::nullopt;
  for (QuantizedTensor& tensor : quantized) {
    if (!tensor.element || tensor.scales.empty()) continue;
    parts.insert({tensor.values, tensor.scales, tensor.global_scale, tensor.input_scale});
    const bool is_taken =
        tensor.unquantized_name != tensor.values && tensors->contains(tensor.unquantized_name);
    const std::string name = is_taken ? tensor.values : tensor.unquantized_name;
    const auto element = tensor.element;
    numbers.push_back({name, set.name + ":" + name,
                       [&job, operand = model.text, block, tensors, tensor = std::move(tensor)] {
                         DecodedAs taken;
                         auto source = decoded_tensor(tensor, *tensors, block, &taken);
                         job.inputs.note_decoded(operand, tensor.values, taken);
                         return source;
                       },
                       element});
  }
  std::erase_if(set.arrays, [&](const ArraySet::Member& array) { return parts.contains(array.name); });
  std::move(numbers.begin(), numbers.end(), std::back_inserter(set.arrays));
  std::sort(set.arrays.begin(), set.arrays.end(),
            [](const ArraySet::Member& x, const ArraySet::Member& y) { return x.name < y.name; });
  return set;
}

// Of one side of --decode: a file, group or folder, or one tensor of it, by its name where it is not quantised.
ArraySet decoded_set(Job& job, const std::string& word) {
  const ArrayReference named = job.inputs.parsed(word);
  if (!named.slice.empty())
    throw usage("{}: --decode requires whole tensors", printable(word))
        .hint("a slice is for a reference that decodes, as in 'nvfp4(w, w_scale, w_scale_2)[0]'");
  const std::string& name = named.member;
  if (name.empty() || !named.holds_several()) return decoded(job, set_of(job, word), named);
  std::string file = named.text;
  file.resize(file.rfind(name));
  ArraySet set = decoded(job, set_of(job, file), named);
  set.name = word, set.is_whole = false;
  std::erase_if(set.arrays, [&](const ArraySet::Member& array) { return array.name != name; });
  return set.arrays.empty() ? set_of(job, word) : set;
}

// Scales that one side alone has, of the cache and of activations: an unquantised model has no such tensor.
void leave_out_scales(ArraySet& set, const ArraySet& other, Report& head) {
  std::set<std::string> names;
  for (const ArraySet::Member& array : other.arrays) names.insert(array.name);
  const std::size_t left_out = std::erase_if(set.arrays, [&](const ArraySet::Member& array) {
    return !names.contains(array.name) && is_scale_name(array.name);
  });
  if (left_out > 0)
    head.warnings.push_back(
        fmt::format("{} of {} without a partner left out: scales of activations or caches", left_out,
                    printable(set.name)));
}

struct Planned {
  FilesPlan files;
  bool is_whole;  // of files, groups or folders
  Report head;    // above the result
};

Planned plan_of(const CompareOptions& options, Job& job) {
  const auto opened = [&](const std::string& word) {
    return options.decode ? decoded_set(job, word) : set_of(job, word);
  };
  ArraySet actual = opened(options.actual), expected = opened(options.expected);
  const bool is_whole = actual.is_whole && expected.is_whole;
  if (!is_whole && !options.maps.empty())
    throw usage("--map requires two files, groups or folders, and {} is one array",
                printable(actual.is_whole ? expected.name : actual.name));
  Report head;
  if (options.decode && is_whole) {
    leave_out_scales(actual, expected, head);
    leave_out_scales(expected, actual, head);
  }
  if (options.first && !is_whole)
    throw usage("--first goes through files, groups or folders of arrays, and {} is one array",
                printable(actual.is_whole ? expected.name : actual.name))
        .hint(fmt::format("two arrays: ejk compare {} {}", printable(actual.name), printable(expected.name)));
  if (is_whole && options.describes_one_array())
    throw usage(
        "--axes, --group-sizes, --cu-seqlens, --block and --tiles describe one array, and these are several")
        .hint("name one on each side, as in a.h5:/out");
  if (is_whole)
    for (ArraySet* set : {&actual, &expected}) set->links = links_of(job, set->name);
  const auto planned = [&] {
    try {
      FilesOptions how{options.maps, options.first, job.inputs.allow_external(), options.explains()};
      if (!options.words.other.reference.empty()) how.reference = set_of(job, options.words.other.reference);
      how.factor = options.words.other.factor;
      return FilesPlan(actual, expected, how);
    } catch (Error& error) {
      if (error.subject() == "maps") error.at("--map");
      throw;
    }
  };
  Planned plan{planned(), is_whole, std::move(head)};
  const std::vector<ArrayPair>& pairs = plan.files.pairs();
  std::vector<std::string>& warnings = plan.head.warnings;
  if (options.first && !pairs.empty() && std::none_of(pairs.begin(), pairs.end(), [](const ArrayPair& pair) {
        return pair.open_actual && pair.open_expected;
      }))
    warnings.emplace_back(
        "no array has a name that is on both sides; --map 'A*B=C*D' says what names of ACTUAL are in EXPECTED");
  if (is_whole)
    for (const ArraySet* set : {&actual, &expected}) warn_of_links(plan.head, set->name, job);
  if (pairs.empty()) warnings.emplace_back("neither side holds an array");
  for (const ArrayPair& pair : pairs)
    if (is_whole && options.maps.empty() && pair.open_actual && pair.open_expected &&
        pair.name != pair.expected_name)
      warnings.push_back(fmt::format("{} of {} and {} of {} are compared, the only arrays of each",
                                     printable(pair.name), printable(actual.name),
                                     printable(pair.expected_name), printable(expected.name)));
  return plan;
}

Table planned_table(const std::vector<ArrayPair>& pairs) {
  Table table{"arrays", "", {{"array", "array"}, {"actual", "actual"}, {"expected", "expected"}}, {}};
  const auto header = [](const ArrayType& type) {
    return fmt::format("{} {}", name_of(type.dtype), to_string(type.shape));
  };
  for (const ArrayPair& pair : pairs)
    if (pair.why.empty())
      table.rows.push_back({printable(pair.name), header(pair.actual), header(pair.expected)});
    else
      table.rows.push_back({printable(pair.name), pair.why, {}});
  return table;
}

Outcome run(const CompareOptions& options, Job& job) {
  job.provenance.input("actual", options.actual);
  job.provenance.input("expected", options.expected);
  if (!options.words.other.reference.empty())
    job.provenance.input("no_worse_than", options.words.other.reference);
  Planned planned = job.phase(Phase::read, [&] { return plan_of(options, job); });
  const FilesPlan& plan = planned.files;
  Report report = std::move(planned.head);
  report.add("reference", "reference", printable(options.expected));
  job.show_options(report);
  Report dry = report;
  dry.add(planned_table(plan.pairs()));
  if (job.plan(std::move(dry), plan.peak_bytes())) return Outcome::passed;

  job.inputs.count_read(plan.bytes());
  ExplainOptions explain{options.tolerance, options.axes, {}, {}, options.tile, options.tile_axes};
  if (!options.group_sizes.empty()) explain.group_sizes = job.open("group_sizes", options.group_sizes);
  if (!options.cu_seqlens.empty()) explain.cu_seqlens = job.open("cu_seqlens", options.cu_seqlens);
  const FilesComparison files = job.phase(Phase::compute, [&] {
    const std::int64_t spare = (job.budget.bytes() - plan.peak_bytes()) / 2;
    FilesComparison found = plan.run(explain, spare, job.progress());
    if (const auto element = job.inputs.decoded_element(); element && !planned.is_whole && options.explains())
      explain_decoded(plan.pairs()[0], *element, explain, spare, found.found[0]);
    return found;
  });
  // What is known of the run is behind the verdict.
  report.move_to_details();
  if (!planned.is_whole)
    append(report, describe(files.found[0])), report.cases.front().name = printable(plan.pairs()[0].name);
  else if (options.first)
    append(report, describe_layers(files));
  else
    append(report, describe(files, job.json() ? ListedPairs::all : ListedPairs::differing));
  const Explained* const one = planned.is_whole ? nullptr : files.found.data();
  const bool has_cause =
      one == nullptr || one->share_explained > 0.95 || (one->permuted && one->permuted->comparison.close);
  if (options.explains() && !files.close && !has_cause)
    report.add(Remark{
        "attention, grouped-matmul, their gradients, moe and route try more: with the inputs, --against ACTUAL and "
        "--explain."});
  if (planned.is_whole && !options.decode && !files.close &&
      std::any_of(files.pairs.begin(), files.pairs.end(), [](const ArrayPair& pair) {
        return !(pair.open_actual && pair.open_expected) && is_scale_name(pair.name);
      }))
    report.add(
        Remark{"One side has scales that the other has not: --decode compares the numbers of quantised "
               "tensors."});
  report.without_text = files.close && !options.first && !(options.decode && planned.is_whole);  // like diff
  job.deliver(std::move(report), {});
  return files.close ? Outcome::passed : Outcome::failed;
}

void check_tolerance(const CompareOptions& options) {
  const ToleranceWords& words = options.words;
  if (options.tolerance.has_hard_limit() && !words.allows_some() && words.metric.empty())
    throw usage("--hard-rtol and --hard-atol require --allow-fraction, --allow-count or --metric")
        .hint("for example --allow-fraction 1e-4 --hard-rtol 0.1");
  refuse_eager(words.library);
  if (!words.library.empty()) check_allowance(words, named_rule(words.library, DType::float32));
  if (!options.runs && !options.more.empty())
    throw usage("unexpected argument '{}'", printable(options.more[0]))
        .hint("--runs compares more than two results of the same work");
}

std::vector<std::string> read_names(const std::string& word) {
  std::vector<std::string> names = split_references(word);
  for (const std::string& name : names)
    if (name.empty()) throw usage("a name is empty").hint("for example b,q,h,d");
  return names;
}

const char* const kFooter =
    R"(Nothing is printed when all arrays are close; --runs, --first, --routing and
--decode of files print their report in any case. Exit status: 0 close, 1 not
close, also when shapes or names differ, or an array's type is not supported.)";

void declare_inputs(OptionSet& set, const std::shared_ptr<CompareOptions>& options) {
  add_reference(
      set, "ACTUAL", options->actual,
      "an array, or a file, HDF5 group or folder of arrays\n"
      "Two of those are compared array by array, by their names in there; a name on one side only is "
      "a difference, as is a link that leads elsewhere on the other side. Two files of one array each may have "
      "different names for it.")
      .required();
  add_reference(set, "EXPECTED", options->expected, "what it should be: the reference").required();
  add_references(set, "RUN", options->more, "with --runs: more results of the same work");
}

void declare_tolerance(OptionSet& set, const std::shared_ptr<CompareOptions>& options) {
  declare_library(set, options->words, kTolerancesGroup,
                  "--rtol, --atol, --max-ulp, --metric, --no-worse-than, --runs, --routing");
  add_word(
      set, "--rtol", options->tolerance.rtol, read_tolerance, "R",
      "relative tolerance; that of the dtypes by default\nElements agree when |ACTUAL - EXPECTED| <= A + R "
      "|EXPECTED|, computed in their common float type. By default R and A are 1e-5 and 1e-8 for float32 "
      "and float64, 1e-3 and 1e-5 for float16, 1.6e-2 and 1e-5 for bfloat16; for 8-bit floats the spacing above 1 and the least positive number "
      "(float8_e4m3fn 0.125 and 2^-9, float8_e5m2 0.25 and 2^-16), but float8_e8m0fnu exactly; those of the coarser of two; "
      "integers and bools are compared exactly.")
      .group(kTolerancesGroup);
  add_word(set, "--atol", options->tolerance.atol, read_tolerance, "A",
           "absolute tolerance; that of the dtypes by default")
      .group(kTolerancesGroup);
  add_flag(set, "--no-equal-nan", options->tolerance.nan, NanEqual::no,
           "NaN differs from NaN\nBy default NaN on both sides agrees. NaN on one side never does.")
      .from([options] { return options->tolerance.nan == NanEqual::yes; })
      .key("equal_nan")
      .shown("NaN equals NaN")
      .group(kTolerancesGroup);
  declare_allowance(set, options->words, kTolerancesGroup);
  add_word(
      set, "--max-ulp", options->tolerance.max_ulp, at_least(0), "N",
      "units in the last place that elements may be apart\nNumbers of the type that lie between both, and one; "
      "0 and -0 are 0 apart. Of two float types units of the coarser at the expected element; integers are their own "
      "units. In the place of rtol and atol, or with those that are given.")
      .group(kTolerancesGroup);
  add_word(
      set, "--hard-rtol", options->tolerance.hard_rtol, read_tolerance, "R",
      "relative limit of elements that are let pass\nBy --allow-fraction, --allow-count or --metric: none of them may be off "
      "by more than A + R |EXPECTED|, nor be NaN on one side.")
      .group(kTolerancesGroup);
  add_word(set, "--hard-atol", options->tolerance.hard_atol, read_tolerance, "A", "the same, absolute")
      .group(kTolerancesGroup);
  declare_no_worse_than(
      set, options->words.other, kTolerancesGroup,
      "another implementation's result, whose error is the measure\n"
      "EXPECTED is of a higher precision. Passes where max |ACTUAL - EXPECTED| <= F (max |REF - EXPECTED| + e max "
      "|EXPECTED|), e the spacing of ACTUAL's type above 1. Arrays of files are found by name.")
      .excludes(
          "--rtol, --atol, --allow-fraction, --allow-count, --max-ulp, --metric, --runs, --first, --routing, --decode");
  declare_metric(set, options->words, kTolerancesGroup);
}

void declare_modes(OptionSet& set, const std::shared_ptr<CompareOptions>& options) {
  add_flag(
      set, "--explain", options->explain,
      "say where they differ, and what accounts for it\n"
      "Indices of each axis, groups, sequences and tiles that hold differences; then a factor, an offset, "
      "indices exchanged, repeated or shifted, axes transposed, boxes never written, rounding, scales "
      "or codes of quantised arrays read in another way: said only when it accounts for the differences and was tested on all elements.");
  add_flag(
      set, "--decode", options->decode,
      "compare the numbers of quantised tensors\n"
      "Checkpoints in FP8, MXFP8, MXFP6, MXFP4, NVFP4 and gpt-oss' form, on either side: values and scales "
      "are found by their names (ejk check checkpoint); blocks of FP8 are those of the config in the model's folder, "
      "else 128x128. A quantised tensor beside an unquantised one is "
      "close if the signal to noise ratio is at least 15 dB of e2m1, 21 of e5m2 and e3m2, 27 of e4m3 and e2m3, unless a tolerance is given; "
      "--explain allows for the rounding of its elements.");
  const char* const modes = "Modes";
  add_flag(
      set, "--runs", options->runs,
      "compare results of the same work, two or many\n"
      "How many are distinct, which elements move, the largest spread (largest - smallest over the runs), "
      "and whether what moves follows an axis, a group or a sequence. Equal is bit for bit: NaN of the same "
      "bits are equal, 0 and -0 are not. With --rtol or --atol each run is close that is within them of the "
      "first. Files of several arrays are compared by the names in there.")
      .excludes(
          "--first, --routing, --explain, --allow-fraction, --allow-count, --metric, --max-ulp, "
          "--no-equal-nan, --map, --decode, --top-k")
      .group(modes);
  add_flag(
      set, "--first", options->first,
      "list the arrays of two files in the order of layers\n"
      "That of the arrays in EXPECTED, or else in ACTUAL: .npz, .pt, .safetensors, and HDF5 groups that track "
      "the order of creation. Where they are sorted by name (or by dtype and name, as the safetensors package "
      "writes them), and in folders, the natural order of names: layer.2 before layer.10. A line for each array: close or not, the largest "
      "difference, rel (as of --metric), and what the array adds, its rel less that of the array before it; "
      "the first that is out of tolerance, and the one that adds the most.")
      .excludes("--routing, --explain, --axes, --group-sizes, --cu-seqlens, --block, --tiles")
      .group(modes);
  take_words(
      set, "--map",
      [options](const std::string& word) {
        try {
          options->maps.emplace_back(word);
        } catch (Error& error) {
          error.at("--map");
          throw;
        }
      },
      "A*B=C*D",
      "arrays called A*B are C*D in EXPECTED\n"
      "* matches any text, which is kept. May be repeated; the first that matches a name counts.")
      .group(modes);
  add_flag(
      set, "--routing", options->routing,
      "compare the experts of tokens, in any order\n"
      "ACTUAL and EXPECTED are ids (tokens, k), in which -1 is no choice, or with --top-k scores (tokens, "
      "experts), one of them or both. Tokens that differ by a tie alone, the K-th and the next largest score "
      "being equal, are counted apart and are no difference. An expert twice for a token is a fault.")
      .excludes(
          "--explain, --axes, --group-sizes, --cu-seqlens, --block, --tiles, --allow-fraction, "
          "--allow-count, --metric, --max-ulp, --no-equal-nan, --map, --decode, --rtol, --atol")
      .group(modes);
  add_format(set).excludes("--runs, --routing");
  add_word(set, "--top-k", options->top_k, at_least(1), "K", "experts chosen of scores")
      .needs("--routing")
      .group(modes);
}

void declare_names(OptionSet& set, const std::shared_ptr<CompareOptions>& options) {
  const char* const group = "Names for --explain, which they imply, and for --runs";
  add_word(set, "--axes", options->axes, read_names, "NAMES", "what the axes are called, such as b,q,h,d")
      .group(group);
  add_reference(
      set, "--group-sizes", options->group_sizes,
      "name groups: rows of each, or one index each\nThey are those of the axis whose length is their sum, "
      "or of the axis that has one index a group; else of the first one, where rows are left behind the last "
      "group.")
      .group(group);
  add_reference(set, "--cu-seqlens", options->cu_seqlens,
                "name sequences: the tokens of the axis that ends with it")
      .group(group);
  add_word(
      set, "--block", options->tile, [](const std::string& w) { return read_lengths(w, 2, 2, "QxK"); }, "QxK",
      "rows and columns of a tile of the last two axes")
      .group(group);
  add_word(
      set, "--tiles", options->tile_axes, read_names, "A,B",
      "the axes of the picture of tiles\nNames of --axes, or numbers: 1,2. By default the last two with --block, else "
      "the two longest.")
      .group(group);
}

Run declare_compare(OptionSet& set) {
  const auto options = std::make_shared<CompareOptions>();
  declare_inputs(set, options);
  declare_tolerance(set, options);
  declare_modes(set, options);
  declare_names(set, options);
  set_footer(set, kFooter);
  return [options](Job& job) {
    check_tolerance(*options);
    const ToleranceWords& words = options->words;
    if (!words.metric.empty())
      options->tolerance.metric = metric_limit(words.metric, words.at_least, words.at_most);
    options->tolerance.library = words.library;
    options->tolerance.allowed_count = words.allow_count.value_or(0);
    options->tolerance.allowed_share = words.allow_fraction.value_or(0);
    if (options->runs) {
      RunsWords runs{{options->actual, options->expected},
                     {options->tolerance.rtol,
                      options->tolerance.atol,
                      options->axes,
                      {},
                      {},
                      options->tile,
                      options->tile_axes},
                     options->group_sizes,
                     options->cu_seqlens};
      runs.runs.insert(runs.runs.end(), options->more.begin(), options->more.end());
      return compare_runs_of(runs, job);
    }
    if (options->routing) return compare_routings({options->actual, options->expected, options->top_k}, job);
    return run(*options, job);
  };
}

}  // namespace

extern const Command compare_command{
    .name = "compare",
    .group = "Arrays",
    .summary = "compare two arrays, or all arrays of two files",
    .example = "ejk compare out.h5 expected.h5 --rtol 1e-3",
    .keys = R"(
reference | string | EXPECTED | without --runs and --routing
equal_nan | boolean | whether NaN equals NaN | without --runs and --routing
verdict | string | how much differs, and why where --explain says so; of several arrays that of the first | without --runs and --routing
close | boolean | whether all elements are close | done
failed | string | those that failed: elements, hard limit, metric, no-worse-than | of two arrays that are not close, with several conditions
no_worse_than | section | the error beside that of another implementation; of several arrays of the worst | with --no-worse-than
  factor | number | how many times its error is allowed
  error | number or null | the largest error of ACTUAL; null where an element is not finite on one side alone
  reference_error | number | that of the other implementation
  allowed | number | what it may be
tolerance | section | that of a library | with --tolerance
  name | string | which
  text | string | what it is for the types of the arrays
rtol, atol | number | the relative and the absolute tolerance | of two arrays, but for --max-ulp alone
max_ulp | integer | units in the last place that elements may be apart | of two arrays, with --max-ulp
shape | shape | the shape of both | of two arrays of one shape
actual_shape, expected_shape | shape | the shapes of ACTUAL and EXPECTED | of two arrays of different shapes
actual_dtype, expected_dtype | string | the element types of ACTUAL and EXPECTED | of two arrays
elements, differing | integer | elements of each; those that are not close | of two arrays of one shape
differing_share | share or null | differing / elements | of two arrays of one shape
beyond_hard | integer | elements of these beyond the hard limit | of two arrays of one shape, with a hard limit
first_beyond_hard | shape or null | the first of them | of two arrays of one shape, with a hard limit
both_zero | integer | elements that are 0 in both | of two arrays of one shape
rms | number or null | root of the mean square of the differences of finite elements | of two arrays of one shape
cosine | number or null | cosine between both, of finite elements; null where one is 0 | of two arrays of one shape
snr, rel | number or null | as of two arrays | of two arrays of one shape
special | table | how many, and those on one side | where elements are NaN or infinite
  kind | string | NaN or infinite
  actual, expected | integer | the elements of ACTUAL and EXPECTED
  one_sided | integer | elements that are so on one side; infinities: or of the other sign
  first_index | shape or null | the first of those
worst | table | the largest differences of finite elements, close or not | of two arrays of one shape
  by | string | absolute, relative or ulps; beyond the tolerance: the largest absolute one of elements that are not close, if it is another
  difference | number or null | the difference; null if it is infinite or NaN
  index | shape | where it is
  actual, expected | number or null | the elements of ACTUAL and EXPECTED
arrays_count | integer | arrays of both, by name | of two files, groups or folders
differing_arrays | integer | of these, those that are not close | of two files, groups or folders
only_in_actual, only_in_expected | integer | of these, those on one side alone | of two files, groups or folders
differing_links | integer | links of one name in both that lead elsewhere | of two files where there are any
max_difference | number or null | the largest absolute difference of finite elements; null where there are none to subtract, or NaN or infinities alone differ | without --runs and --routing
max_array | string or null | the array where it is | of two files, groups or folders
max_index | shape or null | and the index | without --runs and --routing
patterns | table | decoded arrays whose names differ in numbers only | of two files, groups or folders, with --decode
  pattern | string | their name, with # for the numbers
  element | string | the format of their elements: e2m1, e4m3
  arrays, differing | integer | how many; those that are not close
  least_snr, median_snr | number or null | decibels, as snr
arrays | table | the arrays by name | of two files, groups or folders, or with --dry-run
  array | string | its name | without --first
  name | string | its name | with --first
  expected_name | string or null | its name in EXPECTED; null where it is not there | with --first
  added | number or null | its rel less that of the array before it | with --first
  actual | string | type and shape in ACTUAL, or why it is not compared | plan
  expected | string or null | type and shape in EXPECTED | plan
  element | string or null | the format of the elements of a decoded array | with --decode
  actual_dtype, expected_dtype | string or null | the element types of ACTUAL and EXPECTED | done
  close | boolean | whether all elements are close | done
  rtol, atol | number or null | the relative and the absolute tolerance | done
  elements, differing | integer or null | elements of each; those that are not close | done
  differing_share | share or null | differing / elements | done
  max_difference | number or null | the largest absolute difference of finite elements; null also where NaN or infinities alone differ | done
  max_index | shape or null | where it is | done
  max_relative, max_ulps | number or null | the largest relative difference, and in ulps | done
  rms | number or null | root of the mean square of the differences | done
  cosine | number or null | cosine between both | done
  snr, rel | number or null | as of two arrays | done
  one_sided_nans, one_sided_infinities | integer or null | elements that are NaN, or infinite, on one side | done
  why | string or null | why it is not compared, or what else differs | done
permuted_axes | shape | the order of the axes of ACTUAL, as of numpy.transpose | with --explain, of shapes that differ, where axes in another order agree
permuted_close | boolean | whether all elements are close then | with --explain, of shapes that differ, where axes in another order agree
permuted_differing | integer | elements that are not | with --explain, of shapes that differ, where axes in another order agree
axes | table | how the differences are distributed along each axis | with --explain, where arrays of one shape differ
  array | string | the array | of two files, groups or folders
  axis | string | the axis
  length | integer | its length
  indices | integer | of its indices those that hold differences
  ranges | string or null | those: all, or the first ranges
  whole | string or null | those in which every element differs
  zero | string or null | those in which every element that differs is 0 in ACTUAL
runs | table | groups and sequences that hold differences | with --group-sizes or --cu-seqlens
  of | string | group or sequence
  index, begin, end, differing | integer | which; its first row or token; the one after its last; elements not close
  differing_share | share or null | of its elements
no_group | section | rows past the last group | with --group-sizes, where some of them differ
  rows, elements, differing | integer | these rows; their elements; those that differ
  not_numbers | integer | NaN and infinities of one side alone
  groups_agree | boolean | whether no row of a group differs
tiles | picture | where nothing, some or everything differs | with --explain, where tiles of two axes are not all alike
share_explained | share | of the differences, the share that the explanations account for | with --explain, where arrays of one shape differ
not_tried | string | what was not tested, and why | with --explain, where something could not be
explanations | table | what accounts for the differences | with --explain, where arrays of one shape differ
  array | string | the array | of two files, groups or folders
  kind | string | factor, offset, exchanged, repeated, permuted, shifted, transposed, unwritten, rounding; of quantised arrays nibbles, interleaved-rows, scale-step, scale-layout, scales, misused-scales, subnormal-scales, cut-off, e8m0-int8, fnuz
  share_explained | share | of the differences, the share that it accounts for
  text | string | what it is
moved_arrays | table | arrays of ACTUAL that are close to another one of EXPECTED, as exchanged experts are | of two files, groups or folders, with --explain, where there are any
  kind | string | exchanged; permuted: the other holds a third; repeated: the other is where it belongs
  count | integer | how many; of exchanged ones of both
  text | string | which, with # for numbers and * for what their names have in common
order_of | string | the file whose order the arrays are in | with --first, unless it is that of names
first | null | no array is out of tolerance | with --first, where there is none
first | section | the first array that is out of tolerance | with --first
  name | string | its name
  max_difference | number or null | its largest difference
  max_index | shape or null | where that is
  rel, added | number or null | its rel, and what it adds
most_added | null | no array adds anything | with --first, where there is none
most_added | section | the array that adds the most | with --first
  name | string | its name
  max_difference | number or null | its largest difference
  max_index | shape or null | where that is
  rel, added | number or null | its rel, and what it adds
runs | section | the comparison of runs | with --runs
  count | integer | runs
  planned | table | the runs | plan
    run | string | its name
    arrays | integer | arrays that it has
    size_bytes | integer | bytes of their elements
  distinct | integer | of these, those that are not equal bit for bit to one before | done
  elements | integer | elements of a run | done
  moving | integer | elements that are not the same in all runs | done
  moving_share | share or null | moving / elements | done
  nonfinite | integer | of those that vary, those that are NaN or infinite in some run | done
  max_spread | number or null | the largest value less the smallest, of the element where that is most; null where none is finite in two runs | done
  max_spread_index | shape or null | that element | done
  max_spread_array | string or null | its array | with --runs, of files
  ends | table | the values of that element, a row | where an element moves
    least, largest | number or null | the smallest and the largest value
    least_run, largest_run | string | the first runs that have them
  first_moving_index | shape or null | the first element that varies | with --runs, of one array each
  first_nonfinite_index | shape | the first that is | where one is NaN or infinite in some run
  follows | string or null | the part of the array that holds all that varies, as head 3 | with --runs, of one array each
  groups | table | runs that are equal bit for bit | done
    group | integer | the group, from 0
    count | integer | runs in it
    which | string | the first of them
  results | table | each run beside the first | done
    run | string | its name
    group | integer | its group
    differing | integer or null | elements whose bits differ from those of the first run
    max_difference | number or null | the largest difference, of finite elements
    beyond | integer or null | elements that are not within --rtol and --atol of the first
    why | string or null | why it was not compared with the first, or not in all arrays
  arrays | table | the arrays by name | with --runs, of files
    array | string | its name
    close | boolean | whether all runs are close
    distinct | integer or null | as of all arrays; null if it was not compared
    elements | integer or null | its elements
    moving | integer or null | those that move
    max_spread | number or null | their largest spread
    max_spread_index | shape or null | where it is
    follows | string or null | the part that holds all that varies
    why | string or null | why it was not compared in all runs
  axes | table | where elements move, along each axis | with --runs, of one array each
    axis | string | the axis
    length | integer | its length
    indices | integer | indices that hold elements that vary
    ranges | string or null | those: all, or the first ranges
    whole | string or null | those in which every element moves
  parts | table | groups and sequences that hold some that move | with --group-sizes or --cu-seqlens
    of | string | group or sequence
    index, begin, end, moving | integer | which; its first row or token; the one after its last; elements that vary
    moving_share | share or null | of its elements
  tiles | picture | where nothing, some or everything moves | with --runs, where tiles of two axes are not all alike
tokens | integer or null | tokens; null where both have another number of them | with --routing
tokens_equal | share or null | of these, those with the same experts | with --routing
choices_equal | share or null | experts that a token has in both, of the larger number of experts that it has in either | with --routing
ties | integer or null | tokens whose K-th and next largest score are equal in either | with --routing
tokens_tied | integer or null | tokens with other experts that a tie accounts for | with --routing
first_token | integer or null | the first token that differs, ties apart | with --routing
first_actual, first_expected | shape or null | its experts on each side | with --routing
experts | integer or null | experts: that there are scores of, else the largest id and 1 | with --routing
sides | table | both routings | with --routing
  side | string | actual or expected
  from | string | ids or scores
  choices | integer | experts of all tokens, none counted twice for a token
  unrouted_tokens | integer | tokens without an expert
  ties | integer | tokens whose K-th and next largest score are equal
  duplicate_tokens | integer | tokens that have an expert twice
  first_duplicate | integer or null | the first of those
  max_over_mean | number or null | the largest load over the mean
loads | table | how often each expert is selected | with --routing, of at most 65,536 experts
  expert | integer | the expert
  actual, expected | integer | the elements of ACTUAL and EXPECTED
  difference | integer | actual - expected
)",
    .declare = declare_compare,
};

}  // namespace ejk::app
