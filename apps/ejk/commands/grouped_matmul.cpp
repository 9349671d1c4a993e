// ejk grouped-matmul, transposed-grouped-matmul: the products of a mixture of experts, forward and backward.
//
// tests: tests/cli/grouped-matmul/, tests/cli/transposed-grouped-matmul/
#include "ejk/grouped_matmul.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "against.hpp"
#include "commands.hpp"
#include "ejk/machine.hpp"
#include "ejk/matmul_check.hpp"
#include "ejk/text.hpp"
#include "ejk/tiling.hpp"
#include "job.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

using Source = std::shared_ptr<const ArraySource>;

// Settings are GroupedMatmulSettings or TransposedGroupedMatmulSettings.
template <class Settings>
struct ProductOptions {
  std::string lhs, rhs, group_sizes, existing_out;
  std::string tiling_table;
  Settings how;
  bool check = false;
  AgainstOptions against;
};

struct Operands {
  HeldInput lhs{"lhs", nullptr}, rhs{"rhs", nullptr}, existing{"existing_out", nullptr};
  Source group_sizes;

  std::array<const HeldInput*, 3> all() const { return {&lhs, &rhs, &existing}; }
};

template <class Settings>
Operands open_inputs(const ProductOptions<Settings>& options, Job& job) {
  Operands inputs;
  inputs.lhs.source = job.open("lhs", options.lhs);
  inputs.rhs.source = job.open("rhs", options.rhs);
  inputs.group_sizes = job.open("group_sizes", options.group_sizes);
  if (!options.existing_out.empty()) inputs.existing.source = job.open("existing_out", options.existing_out);
  return inputs;
}

TilingTable read_tiling_table(const std::string& path) {
  constexpr std::int64_t kMost = std::int64_t{1} << 24;  // far more than a table of measurements holds
  const std::optional<std::string> text = read_file(path, kMost);
  try {
    if (!text) throw Error(Error::Kind::input, "too long for a table of tilings");
    return TilingTable::parse(*text, printable(path));
  } catch (Error& error) {
    error.at(printable(path));
    throw;
  }
}

template <class Settings>
Answer run(const ProductOptions<Settings>& options, Job& job) {
  Settings how = options.how;
  if (how.tiling && !options.tiling_table.empty())
    throw Error(Error::Kind::usage, "--tiling and --tiling-table are two answers to one question");
  std::optional<TilingTable> table;
  if (!options.tiling_table.empty())
    how.tiling_table = &table.emplace(read_tiling_table(options.tiling_table));

  Operands inputs = open_inputs(options, job);
  std::optional<ArrayType> existing_type;
  if (inputs.existing.source) existing_type = type_of(*inputs.existing.source);
  const GroupedMatmulPlan plan = naming(inputs.all(), [&] {
    return GroupedMatmulPlan(type_of(*inputs.lhs.source), type_of(*inputs.rhs.source), *inputs.group_sizes,
                             how, existing_type);
  });
  if (plan.tiling()) job.provenance.record("tiling", to_string(*plan.tiling()));
  Report report = describe(plan);
  HeldInput given = std::move(job.phase(Phase::read, [&] {
    return open_given(options.against, {{"out", plan.out()}}, job, report);
  })[0]);
  const std::int64_t held = inputs.lhs.bytes_to_hold() + inputs.rhs.bytes_to_hold() +
                            inputs.existing.bytes_to_hold() + given.bytes_to_hold();
  const std::int64_t peak =
      2 * kPieceBytes + held + plan.out().bytes() + plan.work_bytes() +
      std::max(options.check ? plan.check_bytes() : 0, options.against.given() ? plan.compare_bytes() : 0);
  report.add("instruction_set", "instruction set", instruction_set());
  if (job.plan(report, peak)) return Answer::yes;

  ArrayView lhs, rhs;
  std::optional<ArrayView> existing;
  job.phase(Phase::read, [&] {
    lhs = inputs.lhs.view();
    rhs = inputs.rhs.view();
    if (inputs.existing.source) existing = inputs.existing.view();
  });
  const auto progress = job.progress();
  const auto begin = std::chrono::steady_clock::now();
  Array out(plan.out().dtype, plan.out().shape);
  job.phase(Phase::compute, [&] { plan.run(lhs, rhs, existing, out.mutable_view(), progress); });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  report.add("rate", "computed at", seconds > 0 ? ReportValue(plan.flop() / seconds) : ReportValue(),
             Unit::flop_per_second);

  bool passed = true;
  if (options.check) {
    const MatmulCheck check =
        job.phase(Phase::compute, [&] { return plan.check(lhs, rhs, existing, out.view(), job.progress()); });
    passed = check.passed();
    report.add(Section{"check", "check", std::make_shared<Report>(describe(check))});
    if (!passed) report.warnings.emplace_back("the result differs from float64 by more than the tolerance");
  }
  if (given.source) {
    const ArrayView mine = job.phase(Phase::read, [&] { return given.view(); });
    const Against against = job.phase(Phase::compute, [&] {
      return plan.compare(lhs, rhs, existing, out.view(), mine, options.against.explain, job.progress());
    });
    passed = passed && against.agrees();
    add_against(report, options.against, against);
  }
  job.deliver(std::move(report), {{"out", make_source(out.view()), {}}});
  return passed ? Answer::yes : Answer::no;
}

Tiling read_tiling(const std::string& word) {
  const Shape lengths = read_lengths(word, 3, 3, "TMxTKxTN");
  return {lengths[0], lengths[1], lengths[2]};
}

template <class Settings>
void add_group_sizes(OptionSet& set, ProductOptions<Settings>& options) {
  add_reference(set, "GROUP_SIZES", options.group_sizes,
                "rows of each group (groups,), any integers\n"
                "Groups follow one another; their sizes sum to at most m. Rows after the last group "
                "belong to no group.")
      .required();
}

template <class Settings>
void add_common(OptionSet& set, ProductOptions<Settings>& options) {
  add_word(set, "--dtype", options.how.dtype, read_float_dtype, "TYPE",
           "of the result: float16, bfloat16, float32, float64\n"
           "float32 by default. Sums are float32, float64 with a float64 factor, and are rounded once.")
      .recorded();
  add_word(set, "--group-offset", options.how.group_offset, at_least(0), "G",
           "the group to begin with, 0 by default")
      .recorded();
  add_word(set, "--tiling", options.how.tiling, read_tiling, "TMxTKxTN",
           "rows, depth and columns of a block; automatic by default\n"
           "It decides the order of sums and the speed.");
  add_word(
      set, "--tiling-table", options.tiling_table,
      [](const std::string& word) {
        if (word.empty()) throw Error(Error::Kind::usage, "the value is empty");
        if (word == "-")
          throw Error(Error::Kind::usage, "a table is read from a file, not from standard input");
        return word;
      },
      "FILE",
      "take the tiling from a table\n"
      "Lines \"m k n tm tk tn\"; * for m, k or n is any length, from # on is a comment. The first line that "
      "fits is taken.");
  add_flag(set, "--strict", options.how.strict, "tm must divide m, and the sizes sum to m").recorded();
  add_flag(set, "--check", options.check,
           "compare with float64; exit with 1 where it differs too much\n"
           "Small products element by element; of large ones some rows of every group, and all rows by "
           "a random vector. The result is written all the same.");
  declare_against(set, options.against, "An array, or a file that holds one, or one named out.");
  // A comparison has a report; its own result goes where -o says, or nowhere.
  set.set_outputs([&set, &options] {
    const bool printed = set.shared().output.empty();
    return options.against.given() && printed ? std::vector<std::string>() : std::vector<std::string>{"out"};
  });
}

}  // namespace

Run grouped_matmul(OptionSet& set) {
  const auto options = std::make_shared<ProductOptions<GroupedMatmulSettings>>();
  add_reference(set, "LHS", options->lhs, "rows, those of a group together (m, k)").required();
  add_reference(set, "RHS", options->rhs,
                "a matrix for each group (groups, k, n)\n"
                "Fewer than there are groups are those from --group-offset on; rows of other groups are 0.")
      .required();
  add_group_sizes(set, *options);
  add_reference(set, "--existing-out", options->existing_out,
                "an earlier result (m, n)\n"
                "Rows that are not computed keep its values; the others are replaced.")
      .recorded("existing_out", [options]() -> ReportValue {
        if (options->existing_out.empty()) return {};
        return options->how.existing == Existing::add ? "added" : "kept where nothing is computed";
      });
  add_flag(set, "--accumulate", options->how.existing, Existing::add, "add to --existing-out, everywhere");
  add_flag(set, "--transpose-rhs", options->how.transpose_rhs, "RHS is (groups, n, k)").recorded();
  add_common(set, *options);
  return [options](Job& job) {
    if (options->how.existing == Existing::add && options->existing_out.empty())
      throw Error(Error::Kind::usage, "--accumulate adds to --existing-out, which is not given");
    return run(*options, job);
  };
}

Run transposed_grouped_matmul(OptionSet& set) {
  const auto options = std::make_shared<ProductOptions<TransposedGroupedMatmulSettings>>();
  add_reference(set, "LHS", options->lhs,
                "columns, those of a group together (k, m)\n"
                "For the gradient of experts: the tokens, transposed.")
      .required();
  add_reference(set, "RHS", options->rhs, "rows, those of a group together (m, n)").required();
  add_group_sizes(set, *options);
  add_reference(set, "--existing-out", options->existing_out, "a result (groups, k, n) that is added to")
      .recorded("existing_out",
                [options] { return options->existing_out.empty() ? ReportValue() : ReportValue("added"); });
  add_word(set, "--num-actual-groups", options->how.num_actual_groups, at_least(0), "N",
           "groups to compute; all from --group-offset on by default")
      .recorded();
  add_common(set, *options);
  return [options](Job& job) { return run(*options, job); };
}

}  // namespace ejk::app
