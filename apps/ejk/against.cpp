// Results of another program: which array is which result, and the report on them.
// tests: tests/cli/attention/against.case, tests/cli/grouped-matmul/against.case
#include "against.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "ejk/error.hpp"
#include "ejk/program/text.hpp"

namespace ejk::app {

namespace {

std::string names_of(const std::vector<PlannedArray>& results) {
  std::vector<std::string> names;
  for (const PlannedArray& result : results) names.push_back(result.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

void check_type(const BufferedInput& given, const PlannedArray& planned) {
  const ArraySource& source = *given.source;
  if (source.shape() != planned.type.shape) {
    Error error(Error::Kind::input,
                fmt::format("{}: its shape is {}, and {} is {}", source.name(), to_string(source.shape()),
                            planned.name, to_string(planned.type.shape)));
    Shape is = source.shape(), wanted = planned.type.shape;
    std::sort(is.begin(), is.end());
    std::sort(wanted.begin(), wanted.end());
    if (is == wanted)
      error.hint(planned.name == "lse"
                     ? "--lse-layout hn or nh says which of its axes has the heads; --layout bhsd is "
                       "for inputs with heads before positions"
                 : planned.name == "final_state" ? "--state-layout says in which order its last two axes are"
                                                 : "its axes are in another order than those of the inputs");
    throw std::move(error);
  }
  if (is_integer(planned.type.dtype) ? is_integer(source.dtype()) : is_wide_float(source.dtype())) return;
  if (is_integer(planned.type.dtype))
    throw Error(Error::Kind::input, fmt::format("{}: {} is {}, not of an integer type", source.name(),
                                                planned.name, name_of(source.dtype())));
  else
    throw Error(Error::Kind::input, fmt::format("{}: {} is {}, not of a float type of 16 bits or more",
                                                source.name(), planned.name, name_of(source.dtype())));
}

// The only result of the shape of an array of another name; without one the first, for the error.
std::ptrdiff_t result_of(const ArraySource& source, const std::vector<PlannedArray>& results,
                         const char* option) {
  const auto is_like = [&](const PlannedArray& result) {
    return result.type.shape == source.shape() && is_integer(result.type.dtype) == is_integer(source.dtype());
  };
  std::vector<PlannedArray> alike;
  for (const PlannedArray& result : results)
    if (is_like(result)) alike.push_back(result);
  if (alike.size() > 1)
    throw usage("{}: {} may be any of {}, which have the same shape", option, source.name(), names_of(alike))
        .hint(fmt::format("a file or an array of the name says which it is: {}.npy, FILE.npz:{}",
                          alike[0].name, alike[0].name));
  const auto found = std::find_if(results.begin(), results.end(), is_like);
  return found == results.end() ? 0 : found - results.begin();
}

// The results among the arrays of a reference; names of other arrays are added to `others`.
std::vector<BufferedInput> results_in(const std::string& word, const char* option,
                                      const std::vector<PlannedArray>& results,
                                      const std::vector<AbsentResult>& absent,
                                      std::vector<std::string>& others, Job& job) {
  std::vector<BufferedInput> given;
  for (const PlannedArray& result : results) given.push_back({result.name, nullptr});
  std::vector<NamedInput> arrays = job.inputs.arrays_in(word);
  for (NamedInput& input : arrays) {
    for (const AbsentResult& result : absent)
      if (result.name == input.name)
        throw Error(Error::Kind::input,
                    fmt::format("{}: {} is not among the results, and would not be compared", printable(word),
                                result.name))
            .hint(result.hint);
    auto of = std::find_if(given.begin(), given.end(),
                           [&](const BufferedInput& g) { return g.argument == input.name; });
    std::shared_ptr<const ArraySource> source;
    if (of == given.end() && arrays.size() == 1 && (input.is_word || results.size() == 1)) {
      source = job.inputs.open(input);
      of = given.begin() + result_of(*source, results, option);
    }
    if (of == given.end()) {
      others.push_back(printable(input.name, 60));
      continue;
    }
    of->source = source ? source : job.inputs.open(input);
    check_type(*of, results[static_cast<std::size_t>(of - given.begin())]);
    job.inputs.count_read(type_of(*of->source).bytes());
  }
  if (std::none_of(given.begin(), given.end(), [](const BufferedInput& g) { return g.source != nullptr; }))
    throw Error(Error::Kind::input,
                fmt::format("{}: holds {}, and the results are {}", printable(word),
                            others.empty() ? "no array" : fmt::format("{}", fmt::join(others, ", ")),
                            names_of(results)))
        .hint("a reference names one array: FILE.h5:/path or FILE.npz:name");
  return given;
}

}  // namespace

void declare_against(OptionSet& set, AgainstOptions& into) {
  add_reference(
      set, "--against", into.actual,
      "another program's result: exit with 1 where it is wrong\n"
      "It is compared with the result for these inputs. REF is an array, or a file, HDF5 group or folder that holds "
      "arrays by the names of the results; those that it lacks are not compared, max_logits with --max-logits "
      "alone, topk_ids and topk_weights with --logits. A single array of another name is the only result of its "
      "shape. Every element has its own bound, with the rounding of its own type. Without -o the report alone is "
      "printed.")
      .group(kAgainstGroup);
  add_flag(set, "--explain", into.explain, Explain::yes,
           "say which usual mistake it is\n"
           "Mistakes are recomputed on some of the rows that are wrong, and named where both agree. Their "
           "shares are counted on all elements beyond the bound.")
      .needs("--against")
      .group(kAgainstGroup);
  add_word(set, "--tiles", into.tiles, split_references, "A,B",
           "the axes of the picture of what is beyond the bound\nNames, or their first letters: "
           "query,head or q,c; column is that of the elements.")
      .needs("--against")
      .group(kAgainstGroup);
  add_format(set).needs("--against");
  add_flag(set, "--brief", into.brief, "with --json: the verdict as text, too, on stderr")
      .needs("--against")
      .group(kAgainstGroup);
}

void declare_no_worse_than(OptionSet& set, AgainstOptions& into) {
  declare_no_worse_than(
      set, into.other, kAgainstGroup,
      "another implementation's result, whose error is the measure\n"
      "In the place of the bounds: passes where max |A - E| <= F (max |REF - E| + e max |E|), E the result for these "
      "inputs, e the spacing of A's type above 1. REF holds arrays by name, as that of --against.")
      .needs("--against");
}

std::vector<BufferedInput> open_beside(const BesideWords& words, const std::vector<PlannedArray>& results,
                                       Job& job) {
  if (!words.given()) return {};
  job.provenance.input("no_worse_than", words.reference);
  std::vector<std::string> unused;
  std::vector<BufferedInput> beside =
      results_in(words.reference, "--no-worse-than", results, {}, unused, job);
  for (const BufferedInput& one : beside)
    if (!one.source)
      throw Error(Error::Kind::input,
                  fmt::format("{}: holds no array '{}'", printable(words.reference), one.argument));
  return beside;
}

OtherResults read_beside(const BesideWords& words, std::vector<BufferedInput>& beside,
                         const std::vector<BufferedInput>& results) {
  OtherResults other{{}, words.factor};
  if (beside.empty()) return other;
  auto next = beside.begin();
  for (std::size_t r = 0; r < std::max(results.size(), beside.size()); ++r) {
    const bool is_there = results.empty() || results[r].source;
    other.results.push_back(is_there ? std::optional((next++)->view()) : std::nullopt);
  }
  return other;
}

ActualArrays open_actual(const AgainstOptions& options, const std::vector<PlannedArray>& results,
                         const std::vector<AbsentResult>& absent, Job& job, Report& report) {
  ActualArrays actual;
  std::vector<std::string>& others = actual.others;
  if (!options.given()) {
    for (const PlannedArray& result : results) actual.results.push_back({result.name, nullptr});
    return actual;
  }
  job.provenance.input("against", options.actual);
  if (job.outputs.replaces(parse_input(options.actual).path))
    throw usage("-o would replace {}, the result that is compared", printable(options.actual))
        .hint("another name for the computed one; --overwrite replaces it all the same");
  actual.results = results_in(options.actual, "--against", results, absent, others, job);
  if (!others.empty())
    report.warnings.push_back(fmt::format("{}: not compared, as the results are {}: {}",
                                          printable(options.actual), names_of(results),
                                          fmt::join(others, ", ")));
  std::vector<PlannedArray> compared;
  for (std::size_t r = 0; r < results.size(); ++r)
    if (actual.results[r].source) compared.push_back(results[r]);
  actual.beside = open_beside(options.other, compared, job);
  return actual;
}

void add_against(Report& report, const AgainstOptions& options, Against against,
                 const std::vector<std::string>& others, const std::string& hint, Job& job) {
  against.not_compared = others;
  Report about = describe(against);
  if (against.tried && !against.agrees() && against.explanations.empty() && against.agrees_with.empty())
    about.add(Remark{hint});
  if (options.explain == Explain::no && !against.agrees() && against.agrees_with.empty())
    about.add(Remark{"--explain says which usual mistake it is."});
  if (options.brief && job.json()) job.print(about);
  report.cases = about.cases;
  // What else is known of the run are details beside the verdict.
  report.move_to_details([](const Report::Item& item) {
    const auto* const section = std::get_if<Section>(&item);
    return section != nullptr && section->key == "check";
  });
  const Report::Item verdict = about.items.front();
  about.items.erase(about.items.begin());
  report.items.insert(
      report.items.begin(),
      {verdict, Section{"against", "against " + printable(options.actual), std::make_shared<Report>(about)}});
  for (const std::string& warning : about.warnings)
    report.warnings.push_back(fmt::format("against {}: {}", printable(options.actual), warning));
}

}  // namespace ejk::app
