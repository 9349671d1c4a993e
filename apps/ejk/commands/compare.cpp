// ejk compare: two arrays, or all arrays of two files or groups, within a tolerance; with --explain where and why they
// differ. Prints nothing when all are close, like diff.
//
// tests: tests/cli/compare/
#include "ejk/compare_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "commands.hpp"
#include "compare_modes.hpp"
#include "ejk/text.hpp"
#include "job.hpp"

namespace ejk::app {

namespace {

struct CompareOptions {
  std::string actual, expected;
  Tolerance tolerance;
  std::optional<std::int64_t> allow_count;
  std::optional<double> allow_fraction;
  std::string metric;  // empty: none
  std::optional<double> at_least, at_most;
  bool explain = false;
  // Of --explain, for two arrays.
  std::vector<std::string> axes;
  std::string group_sizes, cu_seqlens;
  Shape tile;
  std::vector<std::string> tile_axes;
  // Modes.
  bool runs = false, first = false, routing = false;
  std::vector<std::string> more;  // runs
  std::vector<NameMap> maps;      // of --first
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
  const ArrayReference named = parse_input(word);
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

struct Planned {
  FilesPlan files;
  bool is_whole;  // of files, groups or folders
  Report head;    // above the result
};

Planned plan_of(const CompareOptions& options, Job& job) {
  ArraySet actual = set_of(job, options.actual), expected = set_of(job, options.expected);
  const bool is_whole = actual.is_whole && expected.is_whole;
  if (options.first && !is_whole)
    throw usage(fmt::format("--first goes through files, groups or folders of arrays, and {} is one array",
                            printable(actual.is_whole ? expected.name : actual.name)))
        .hint(fmt::format("two arrays go without it: ejk compare {} {}", printable(actual.name),
                          printable(expected.name)));
  if (is_whole && options.describes_one_array())
    throw usage(
        "--axes, --group-sizes, --cu-seqlens, --block and --tiles describe one array, and these are several")
        .hint("name one on each side, as in a.h5:/out");
  if (is_whole)
    for (ArraySet* set : {&actual, &expected}) set->links = links_of(job, set->name);
  const auto planned = [&] {
    try {
      return FilesPlan(actual, expected,
                       {options.maps, options.first, job.inputs.allow_external(), options.explains()});
    } catch (Error& error) {
      if (error.subject() == "maps") error.at("--map");
      throw;
    }
  };
  Planned plan{planned(), is_whole, {}};
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
  return plan;
}

// What --dry-run lists.
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
    return plan.run(explain, (job.budget.bytes() - plan.peak_bytes()) / 2, job.progress());
  });
  if (!planned.is_whole)
    append(report, describe(files.found[0]));
  else if (options.first)
    append(report, describe_layers(files));
  else
    append(report, describe(files, job.json() ? ListedPairs::all : ListedPairs::differing));
  const Explained* const one = planned.is_whole ? nullptr : &files.found[0];
  const bool has_cause =
      one == nullptr || one->share_explained > 0.95 || (one->permuted && one->permuted->comparison.close);
  if (options.explains() && !files.close && !has_cause)
    report.add(Remark{
        "attention, attention-grad, grouped-matmul and transposed-grouped-matmul try more: with the inputs, "
        "--against ACTUAL and --explain."});
  report.without_text = files.close && !options.first;  // like diff
  job.deliver(std::move(report), {});
  return files.close ? Outcome::passed : Outcome::failed;
}

// Refuses options that the modes have no use for.
void check_modes(const CompareOptions& options) {
  const Tolerance& tolerance = options.tolerance;
  const bool has_tolerance = tolerance.rtol || tolerance.atol;
  const bool lets_pass = options.allow_count || options.allow_fraction || !options.metric.empty();
  const bool has_limits = lets_pass || options.at_least || options.at_most;
  if (tolerance.has_hard_limit() && !lets_pass)
    throw usage("--hard-rtol and --hard-atol limit what --allow-fraction, --allow-count or --metric let pass")
        .hint("for example --allow-fraction 1e-4 --hard-rtol 0.1");
  struct Given {
    bool is;
    const char* what;
  };
  const auto refuse = [&](const char* mode, std::initializer_list<Given> others, const std::string& hint) {
    for (const Given& other : others)
      if (other.is) throw usage(fmt::format("{} does not go with {}", other.what, mode)).hint(hint);
  };
  const Given explain{options.explain, "--explain"},
      names{options.describes_one_array(), "--axes, --group-sizes, --cu-seqlens, --block or --tiles"},
      limits{has_limits, "--allow-fraction, --allow-count or --metric"},
      ulps{tolerance.max_ulp.has_value(), "--max-ulp"}, nan{tolerance.nan == NanEqual::no, "--no-equal-nan"},
      maps{!options.maps.empty(), "--map"}, top_k{options.top_k.has_value(), "--top-k"};
  if (options.runs)
    refuse(
        "--runs",
        {{options.first, "--first"}, {options.routing, "--routing"}, explain, limits, ulps, nan, maps, top_k},
        fmt::format("two of them alone: ejk compare {} {}", printable(options.actual),
                    printable(options.expected)));
  else if (options.first)
    refuse("--first", {{options.routing, "--routing"}, explain, names, top_k},
           "of one array: ejk compare A.h5:/x B.h5:/x --explain");
  else if (options.routing)
    refuse("--routing", {explain, names, limits, ulps, nan, maps, {has_tolerance, "--rtol or --atol"}},
           "choices of experts are compared exactly: ejk compare A B --routing");
  if (!options.runs && !options.more.empty())
    throw usage(fmt::format("unexpected argument '{}'", printable(options.more[0])))
        .hint("--runs compares more than two results of the same work");
  if (!options.first && !options.maps.empty())
    throw usage("--map goes with --first").hint("ejk compare A B --first --map 'A*B=C*D'");
  if (!options.routing && options.top_k)
    throw usage("--top-k goes with --routing").hint("ejk compare A B --routing --top-k 8");
}

// The limit of --metric; says what is missing.
std::optional<MetricLimit> metric_of(const CompareOptions& options) {
  if (options.metric.empty()) {
    if (options.at_least || options.at_most) throw usage("--at-least and --at-most are limits of --metric");
    return std::nullopt;
  }
  const bool most = options.metric == "rel";
  const std::optional<double>& limit = most ? options.at_most : options.at_least;
  if (!limit || (most ? options.at_least : options.at_most))
    throw usage(most ? "--metric rel goes with --at-most" : "--metric cos and snr go with --at-least")
        .hint(most ? "for example --at-most 1e-3" : "for example --metric cos --at-least 0.999");
  return MetricLimit{most ? Metric::rel : options.metric == "snr" ? Metric::snr : Metric::cosine, *limit};
}

double read_allowed(const std::string& word) {
  const double value = read_real(word);
  if (!(value >= 0 && value <= 1)) throw usage(fmt::format("{} is not from 0 to 1", word));
  return value;
}

double read_tolerance(const std::string& word) {
  const double value = read_real(word);
  if (!(value >= 0)) throw usage(fmt::format("{} is not at least 0", value));
  if (value > std::numeric_limits<double>::max()) throw usage("it must be finite");
  return value;
}

std::vector<std::string> read_names(const std::string& word) {
  std::vector<std::string> names = split_references(word);
  for (const std::string& name : names)
    if (name.empty()) throw usage("a name is empty").hint("for example b,q,h,d");
  return names;
}

const char* const kFooter =
    R"(Nothing is printed when all arrays are close; --runs, --first and --routing
print their report in any case. Exit status: 0 close, 1 not close, also when
shapes or names differ, or an array's type is not supported.

Is a kernel deterministic? Ten runs of the same work:
  ejk compare --runs run*.npy --axes batch,query,head,d
Where does a model's error begin, and which layer adds the most?
  ejk compare mine/ right/ --first --map 'model.layers.*=layers.*'
Do two routers choose the same experts?
  ejk compare my_ids.npy right_scores.npy --routing --top-k 8

A wrong kernel, step by step
  ejk compare mine.npy right.npy
    50 % of the elements differ, by up to 2.98 at (0, 0, 1, 31).
  ejk compare mine.npy right.npy --explain --axes batch,query,head,d
    Of 8 heads 1, 3, 4 and 6 are wholly different, for every query. Nothing
    that the two arrays tell accounts for it: no factor, no heads exchanged.
  ejk attention q.npy k.npy v.npy --mask causal --against mine.npy --explain
    With the inputs it does: query head h uses key/value head h mod G, not
    h / (H/G). There are 2 key heads, and 1, 3, 4 and 6 are the query heads
    for which h mod 2 and h / 4 are not the same.)";

void declare_inputs(OptionSet& set, const std::shared_ptr<CompareOptions>& options) {
  add_reference(
      set, "ACTUAL", options->actual,
      "an array, or a file, HDF5 group or folder of arrays\n"
      "Two of those are compared array by array, by their names in there; a name on one side only is "
      "a difference, as is a link that leads elsewhere on the other side.")
      .required();
  add_reference(set, "EXPECTED", options->expected, "what it should be: the reference").required();
  add_references(set, "RUN", options->more, "with --runs: more results of the same work");
}

void declare_tolerance(OptionSet& set, const std::shared_ptr<CompareOptions>& options) {
  add_word(
      set, "--rtol", options->tolerance.rtol, read_tolerance, "R",
      "relative tolerance; that of the dtypes by default\nElements agree when |ACTUAL - EXPECTED| <= A + R "
      "|EXPECTED|, computed in their common float type. By default R and A are 1e-5 and 1e-8 for float32 "
      "and float64, 1e-3 and 1e-5 for float16, 1.6e-2 and 1e-5 for bfloat16, those of the coarser of two; "
      "integers and bools are compared exactly.");
  add_word(set, "--atol", options->tolerance.atol, read_tolerance, "A",
           "absolute tolerance; that of the dtypes by default");
  add_flag(set, "--no-equal-nan", options->tolerance.nan, NanEqual::no,
           "NaN differs from NaN\nBy default NaN on both sides agrees. NaN on one side never does.")
      .from([options] { return options->tolerance.nan == NanEqual::yes; })
      .key("equal_nan")
      .shown("NaN equals NaN");
  add_word(set, "--allow-fraction", options->allow_fraction, read_allowed, "P",
           "share of all elements that may be out of tolerance\nFrom 0 to 1; of --allow-count the larger.");
  add_word(set, "--allow-count", options->allow_count, at_least(0), "N",
           "number of elements that may be out of tolerance");
  add_word(
      set, "--max-ulp", options->tolerance.max_ulp, at_least(0), "N",
      "units in the last place that elements may be apart\nNumbers of the type that lie between both, and one; "
      "0 and -0 are 0 apart. Of two float types units of the coarser at the expected element; integers are their own "
      "units. In the place of rtol and atol, or with those that are given.");
  add_word(
      set, "--hard-rtol", options->tolerance.hard_rtol, read_tolerance, "R",
      "relative limit of what --allow-fraction, --allow-count or --metric let pass\nNone of these elements may be off "
      "by more than A + R |EXPECTED|, nor be NaN on one side.");
  add_word(set, "--hard-atol", options->tolerance.hard_atol, read_tolerance, "A", "the same, absolute");
  add_word(
      set, "--metric", options->metric,
      [](const std::string& word) {
        read_choice(word, {"cos", "snr", "rel"});
        return word;
      },
      "NAME",
      "one number decides: cos, snr or rel, with a limit\n"
      "cos is the cosine between both, snr 10 log10(sum E^2 / sum (A - E)^2) in decibels, rel sum (A - E)^2 / "
      "sum (A^2 + E^2), as DeepGEMM has it. Elements count, too, only where --rtol or --atol is given; NaN on "
      "one side is never close.");
  add_word(set, "--at-least", options->at_least, read_finite, "X", "the limit of --metric cos or snr");
  add_word(set, "--at-most", options->at_most, read_finite, "X", "the limit of --metric rel");
}

void declare_modes(OptionSet& set, const std::shared_ptr<CompareOptions>& options) {
  add_flag(
      set, "--explain", options->explain,
      "say where they differ, and what accounts for it\n"
      "Indices of each axis, groups, sequences and tiles that hold differences; then a factor, an offset, "
      "indices exchanged, repeated, shifted or reversed, axes transposed, boxes never written, rounding: said "
      "only when it accounts for the differences and was tested on all elements.");
  const char* const modes = "Modes";
  add_flag(
      set, "--runs", options->runs,
      "compare results of the same work, two or many\n"
      "How many are distinct, which elements move, the largest spread (largest - smallest over the runs), "
      "and whether what moves follows an axis, a group or a sequence. Equal is bit for bit: NaN of the same "
      "bits are equal, 0 and -0 are not. With --rtol or --atol each run is close that is within them of the "
      "first. Files of several arrays are compared by the names in there.")
      .group(modes);
  add_flag(
      set, "--first", options->first,
      "list the arrays of two files in the order of layers\n"
      "Natural order of names: layer.2 before layer.10. A line for each array: close or not, the largest "
      "difference, rel (as of --metric), and what the array adds, its rel less that of the array before it; "
      "the first that is out of tolerance, and the one that adds the most.")
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
      "with --first: arrays called A*B are C*D in EXPECTED\n"
      "* matches any text, which is kept. May be repeated; the first that matches a name counts.")
      .group(modes);
  add_flag(
      set, "--routing", options->routing,
      "compare the experts of tokens, in any order\n"
      "ACTUAL and EXPECTED are ids (tokens, k), in which -1 is no choice, or with --top-k scores (tokens, "
      "experts), one of them or both. Tokens that differ by a tie alone, the K-th and the next largest score "
      "being equal, are counted apart and are no difference. An expert twice for a token is a fault.")
      .group(modes);
  add_word(set, "--top-k", options->top_k, at_least(1), "K", "with --routing: experts chosen of scores")
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

}  // namespace

Run compare(OptionSet& set) {
  const auto options = std::make_shared<CompareOptions>();
  declare_inputs(set, options);
  declare_tolerance(set, options);
  declare_modes(set, options);
  declare_names(set, options);
  set_footer(set, kFooter);
  return [options](Job& job) {
    check_modes(*options);
    options->tolerance.metric = metric_of(*options);
    options->tolerance.allowed_count = options->allow_count.value_or(0);
    options->tolerance.allowed_share = options->allow_fraction.value_or(0);
    if (options->runs) {
      RunsWords words{{options->actual, options->expected},
                      {options->tolerance.rtol,
                       options->tolerance.atol,
                       options->axes,
                       {},
                       {},
                       options->tile,
                       options->tile_axes},
                      options->group_sizes,
                      options->cu_seqlens};
      words.runs.insert(words.runs.end(), options->more.begin(), options->more.end());
      return compare_runs_of(words, job);
    }
    if (options->routing) return compare_routings({options->actual, options->expected, options->top_k}, job);
    return run(*options, job);
  };
}

}  // namespace ejk::app
