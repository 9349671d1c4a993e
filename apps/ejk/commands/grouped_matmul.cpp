// ejk grouped-matmul, transposed-grouped-matmul: the products of a mixture of experts, forward and backward.
// tests: tests/cli/grouped-matmul/, tests/cli/transposed-grouped-matmul/
#include "ejk/grouped_matmul.hpp"

#include <algorithm>
#include <array>

#include "against.hpp"
#include "commands.hpp"
#include "commands/audit.hpp"
#include "ejk/matmul_check.hpp"
#include "ejk/program/machine.hpp"
#include "ejk/program/text.hpp"
#include "integers.hpp"
#include "job.hpp"
#include "schema.hpp"
#include "sources.hpp"
#include "write_together.hpp"

namespace ejk::app {

namespace {

using Source = std::shared_ptr<const ArraySource>;

// Settings are GroupedMatmulSettings or TransposedGroupedMatmulSettings.
template <class Settings>
struct ProductOptions {
  std::string lhs, rhs, group_sizes, row_groups, existing_out;
  GroupsFrom from = GroupsFrom::automatic;
  bool transpose_lhs = false;
  std::string tiling_table;
  Settings how;
  bool check = false;
  AgainstOptions against;
  Accumulator accumulator = Accumulator::float32;
};

struct Views {
  ArrayView lhs, rhs;
  std::optional<ArrayView> existing;

  Views boxes(const GroupedMatmulNeeds& needs, const ArrayBox& out) const {
    Views part{box_of(lhs, needs.lhs), {}, {}};
    if (rhs.data != nullptr) part.rhs = box_of(rhs, needs.rhs);
    if (existing) part.existing = box_of(*existing, out);
    return part;
  }
};

template <class T>
T transposed(T matrix) {
  if constexpr (std::is_same_v<T, ArrayBox>) {
    std::swap(matrix.start[0], matrix.start[1]);
    std::swap(matrix.count[0], matrix.count[1]);
  } else {
    std::swap(matrix.shape[0], matrix.shape[1]);
    std::swap(matrix.strides[0], matrix.strides[1]);
  }
  return matrix;
}

struct BufferedProductInputs {
  BufferedInput lhs{"lhs", nullptr}, rhs{"rhs", nullptr}, existing{"existing_out", nullptr};
  Source groups;               // sizes, or the group of each row
  bool transpose_lhs = false;  // the plan's lhs is the transpose of what is stored
  bool boxes_rhs = false;      // the plan reads rhs in boxes: decoded, it is larger than what is stored

  std::array<const BufferedInput*, 3> all() const { return {&lhs, &rhs, &existing}; }

  ArrayType lhs_type() const {
    const ArrayType type = type_of(*lhs.source);
    return transpose_lhs && type.rank() == 2 ? transposed(type) : type;
  }
  Views view() {
    Views views{transpose_lhs ? transposed(lhs.view()) : lhs.view(), {}, {}};
    if (!boxes_rhs) views.rhs = rhs.view();
    if (existing.source) views.existing = existing.view();
    return views;
  }
  Views view(const GroupedMatmulNeeds& needs, const ArrayBox& out) {
    Views views{transpose_lhs ? transposed(lhs.view(transposed(needs.lhs))) : lhs.view(needs.lhs), {}, {}};
    if (!boxes_rhs) views.rhs = rhs.view(needs.rhs);
    if (existing.source) views.existing = existing.view(out);
    return views;
  }
  void release() {
    for (BufferedInput* input : {&lhs, &rhs, &existing}) input->elements = Array();
  }
};

template <class Settings>
BufferedProductInputs open_inputs(const ProductOptions<Settings>& options, Job& job, Report& report) {
  BufferedProductInputs inputs;
  inputs.transpose_lhs = options.transpose_lhs;
  inputs.lhs.source = job.open_operand("lhs", options.lhs);
  inputs.rhs.source = job.open_operand("rhs", options.rhs);
  // Rows of the products: an axis that lhs may lack, which the plan says.
  const Shape& shape = inputs.lhs.source->shape();
  constexpr bool kPlain = std::is_same_v<Settings, GroupedMatmulSettings>;
  const std::size_t rows = kPlain || options.transpose_lhs ? 0 : 1;
  std::optional<std::int64_t> m;
  if (shape.size() > rows) m = shape[rows];
  const Shape& rhs = inputs.rhs.source->shape();
  std::optional<std::int64_t> matrices;
  if (kPlain && !rhs.empty()) matrices = rhs[0];
  if (!options.row_groups.empty())
    inputs.groups = job.open("row_groups", options.row_groups);
  else
    inputs.groups =
        group_sizes_of(*job.open("group_sizes", options.group_sizes), options.from, m, matrices, report);
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

double longest(Communicator& comm, double seconds) {
  if (comm.is_single()) return seconds;
  for (Bytes& bytes : comm.all_gather(RankMessage().put(seconds).bytes()))
    seconds = std::max(seconds, RankMessage(std::move(bytes)).take<double>());
  return seconds;
}

// --check and --against, on rank 0. The outcome does not depend on the number of ranks.
template <class Settings>
bool judge(const GroupedMatmulPlan& plan, const ProductOptions<Settings>& options, ActualArrays& actual,
           const Views& all, const ArrayView& out, Job& job, Report& report) {
  bool passed = true;
  BufferedInput& given = actual.results[0];
  if (options.check) {
    const MatmulCheck check = job.phase(Phase::compute, [&] {
      return check_results(plan, all.lhs, all.rhs, all.existing, out, job.progress());
    });
    passed = check.passed();
    report.add(Section{"check", "check", std::make_shared<Report>(describe(check))});
    if (!passed) report.warnings.emplace_back("the result differs from float64 by more than the tolerance");
  }
  if (given.source) {
    const ArrayView view = job.phase(Phase::read, [&] { return given.view(); });
    const OtherResults other =
        job.phase(Phase::read, [&] { return read_beside(options.against.other, actual.beside); });
    const Against against = job.phase(Phase::compute, [&] {
      return naming_other(options.against.other, [&] {
        return compare_results(plan, all.lhs, all.rhs, all.existing, out, view, options.against.explain,
                               job.progress(), options.against.tiles, options.accumulator, other);
      });
    });
    passed = passed && against.agrees();
    add_against(report, options.against, against, actual.others,
                "'ejk compare MINE RESULT --explain' looks at the two arrays by themselves.", job);
  }
  return passed;
}

template <class Settings>
GroupedMatmulPlan plan_of(BufferedProductInputs& inputs, const Settings& how) {
  std::optional<ArrayType> existing;
  if (inputs.existing.source) existing = type_of(*inputs.existing.source);
  return naming(inputs.all(), [&] {
    try {
      return GroupedMatmulPlan(inputs.lhs_type(), type_of(*inputs.rhs.source), inputs.groups, how, existing);
    } catch (const Error& error) {
      if (!inputs.transpose_lhs || error.code() != Error::Code::transposed_lhs) throw;
      throw Error(error.kind(), error.message())
          .about(error.subject())
          .hint("LHS (k, m) is given without --transpose-lhs");
    }
  });
}

// Computes this rank's boxes, from `all` or from what each box needs; adds the rate to the report.
Output compute(const GroupedMatmulPlan& plan, BufferedProductInputs& inputs, const std::optional<Views>& all,
               Job& job, Report& report) {
  Output out = output_in_parts("out", plan.out(), {});
  const std::vector<ArrayBox> boxes = plan.divide(job.comm.size())[static_cast<std::size_t>(job.comm.rank())];
  const auto progress = job.progress();
  double seconds = 0;
  for (const ArrayBox& box : boxes) {
    const GroupedMatmulNeeds needs = plan.needs(box);
    const Views views =
        all ? all->boxes(needs, box) : job.phase(Phase::read, [&] { return inputs.view(needs, box); });
    const Timer timer;
    Array made(plan.out().dtype, box.count);
    const auto before = std::ssize(*out.parts), count = std::ssize(boxes);
    job.phase(Phase::compute, [&] {
      const auto report_done = [&](std::int64_t done, std::int64_t of) {
        progress(before * of + done, count * of);
      };
      if (inputs.boxes_rhs)
        plan.run(box, views.lhs, *inputs.rhs.source, views.existing, made.mutable_view(), report_done);
      else
        plan.run(box, views.lhs, views.rhs, views.existing, made.mutable_view(), report_done);
    });
    seconds += timer.seconds();
    if (!all) inputs.release();
    out.parts->push_back({box, make_source(std::move(made))});
  }
  seconds = longest(job.comm, seconds);
  report.add("rate", "computed at", seconds > 0 ? ReportValue(plan.flop() / seconds) : ReportValue(),
             Unit::flop_per_second);
  if (job.comm.is_single()) return {"out", out.parts->front().elements, {}};
  return out;
}

template <class Settings>
Outcome run(const ProductOptions<Settings>& options, Job& job) {
  Settings how = options.how;
  if (options.group_sizes.empty() == options.row_groups.empty())
    throw usage(options.group_sizes.empty() ? "GROUP_SIZES is missing"
                                            : "GROUP_SIZES and --row-groups both give the groups")
        .hint("either the rows of each group, or --row-groups REF, the group of each row");
  if (!options.row_groups.empty()) how.groups = GroupsGiven::row_groups;
  std::optional<TilingTable> table;
  if (!options.tiling_table.empty())
    how.tiling_table = &table.emplace(read_tiling_table(options.tiling_table));

  Report read;
  BufferedProductInputs inputs = open_inputs(options, job, read);
  const GroupedMatmulPlan plan = plan_of(inputs, how);
  if (plan.tiling()) job.provenance.record("tiling", to_string(*plan.tiling()));
  Report report = describe(plan);
  report.warnings.insert(report.warnings.begin(), read.warnings.begin(), read.warnings.end());
  ActualArrays actual = job.phase(Phase::read, [&] {
    return open_actual(options.against, {{"out", plan.out()}}, {}, job, report);
  });
  const BufferedInput& given = actual.results[0];

  GroupedMatmulRun how_run{inputs.lhs.is_mapped(), inputs.rhs.is_mapped(), inputs.existing.is_mapped()};
  const std::int64_t check = options.check ? bytes_to_check(plan) : 0;
  if (options.check) how_run.verdict = {0, check};
  if (given.source) {
    std::int64_t buffers = given.bytes_to_buffer();
    for (const BufferedInput& beside : actual.beside) buffers += beside.bytes_to_buffer();
    how_run.verdict = {type_of(*given.source).bytes(),
                       buffers + std::max(check, bytes_to_compare(plan, options.against.explain))};
  }
  // Comparisons read all of rhs.
  constexpr bool kPlain = std::is_same_v<Settings, GroupedMatmulSettings>;
  const bool is_compared = options.check || given.source != nullptr;
  inputs.boxes_rhs = how_run.boxes_rhs =
      kPlain && !is_compared && !inputs.rhs.is_mapped() && inputs.rhs.source->random_access();
  const Division division = [&](std::int64_t ranks) {
    std::vector<RankWork> work = plan.work(ranks, how_run);
    for (RankWork& rank : work) rank.peak_bytes += piece_buffers(2, plan.out().bytes());
    return work;
  };
  report.add("instruction_set", "instruction set", instruction_set());
  if (job.plan(report, peak_of(division(job.comm.size())), division)) return Outcome::passed;

  std::optional<Views> all;
  if (job.comm.is_single() || (is_compared && job.comm.is_first()))
    all = job.phase(Phase::read, [&] { return inputs.view(); });
  const Output out = compute(plan, inputs, all, job, report);
  bool passed = true;
  if (is_compared) {
    const Array gathered = job.comm.is_single() ? Array() : gather_parts(job.comm, out);
    const ArrayView result = job.comm.is_single() ? *out.source->mapped() : gathered.view();
    if (job.comm.is_first()) passed = judge(plan, options, actual, *all, result, job, report);
  }
  job.deliver(std::move(report), {out});
  return passed ? Outcome::passed : Outcome::failed;
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
                "belong to no group.");
  add_groups_from(set, options.from).needs("GROUP_SIZES");
  add_reference(
      set, "--row-groups", options.row_groups,
      "instead the group of each row (m,), -1 for none\n"
      "DeepGEMM's labels: groups ascend, the rows of one are contiguous, and rows of -1 belong to no group.")
      .recorded("row_groups", [&options]() -> ReportValue {
        return options.row_groups.empty() ? ReportValue() : ReportValue(true);
      });
}

template <class Settings>
void add_common(OptionSet& set, ProductOptions<Settings>& options) {
  add_dtype(set, "--dtype", options.how.dtype,
            "type of the result\nSums are float32, or float64 with a float64 factor, and are rounded once.",
            float_dtypes())
      .recorded();
  add_word(set, "--group-offset", options.how.group_offset, at_least(0), "G",
           "the group to begin with, 0 by default")
      .recorded();
  add_word(set, "--tiling", options.how.tiling, read_tiling, "TMxTKxTN",
           "rows, depth and columns of a block; automatic by default\n"
           "It decides the order of sums and the speed.")
      .recorded_by_command();
  add_word(
      set, "--tiling-table", options.tiling_table,
      [](const std::string& word) {
        if (word.empty()) throw usage("the value is empty");
        if (word == "-") throw usage("a table is read from a file, not from standard input");
        return word;
      },
      "FILE",
      "take the tiling from a table\n"
      "Lines \"m k n tm tk tn\"; * for m, k or n is any length, from # on is a comment. The first line that "
      "fits is taken.")
      .excludes("--tiling");
  add_flag(set, "--strict", options.how.strict, "tm must divide m, and the sizes sum to m").recorded();
  add_flag(set, "--check", options.check,
           "compare with float64; exit with 1 where it differs too much\n"
           "Small products element by element; of large ones some rows of every group, and all rows by "
           "a random vector. The result is written all the same.");
  declare_against(set, options.against);
  declare_no_worse_than(set, options.against);
  add_choice(
      set, "--accumulator", options.accumulator,
      {{"float32", Accumulator::float32}, {"fp8", Accumulator::fp8}, {"fp8-fast", Accumulator::fp8_fast}},
      "TYPE",
      "how the kernel sums its products\nfp8: by Hopper's FP8 tensor cores, which keep 14 "
      "bits, added in float32 after every 128; fp8-fast: in them alone (fast accumulation).")
      .needs("--against");
  // A comparison has a report; its own result goes where -o says, or nowhere.
  set.set_outputs([&set, &options] {
    const bool printed = set.shared().output.empty();
    return options.against.given() && printed ? std::vector<std::string>() : std::vector<std::string>{"out"};
  });
}

void add_factors(OptionSet& set, ProductOptions<GroupedMatmulSettings>& options) {
  add_reference(set, "LHS", options.lhs, "rows, those of a group together (m, k)").required();
  add_reference(set, "RHS", options.rhs,
                "a matrix for each group (groups, k, n)\n"
                "Fewer than there are groups are those from --group-offset on; rows of other groups are 0.")
      .required();
}

Run declare_grouped_matmul(OptionSet& set) {
  const auto options = std::make_shared<ProductOptions<GroupedMatmulSettings>>();
  add_factors(set, *options);
  add_group_sizes(set, *options);
  add_reference(set, "--existing-out", options->existing_out,
                "an earlier result (m, n)\n"
                "Rows that are not computed keep its values; the others are replaced.")
      .recorded("existing_out", [options]() -> ReportValue {
        if (options->existing_out.empty()) return {};
        return options->how.existing == Existing::add ? "added" : "kept where nothing is computed";
      });
  add_flag(set, "--accumulate", options->how.existing, Existing::add, "add to it, everywhere")
      .needs("--existing-out");
  add_flag(set, "--transpose-rhs", options->how.transpose_rhs, "RHS is (groups, n, k)").recorded();
  add_common(set, *options);
  return [options](Job& job) { return run(*options, job); };
}

Run declare_transposed_grouped_matmul(OptionSet& set) {
  const auto options = std::make_shared<ProductOptions<TransposedGroupedMatmulSettings>>();
  add_reference(set, "LHS", options->lhs,
                "columns, those of a group together (k, m)\n"
                "For the gradient of experts: the tokens, transposed, or as they are with --transpose-lhs.")
      .required();
  add_reference(set, "RHS", options->rhs, "rows, those of a group together (m, n)").required();
  add_group_sizes(set, *options);
  add_reference(set, "--existing-out", options->existing_out, "a result (groups, k, n) that is added to")
      .recorded("existing_out",
                [options] { return options->existing_out.empty() ? ReportValue() : ReportValue("added"); });
  add_flag(set, "--transpose-lhs", options->transpose_lhs, "LHS is (m, k): tokens as they are").recorded();
  add_word(set, "--num-actual-groups", options->how.num_actual_groups, at_least(0), "N",
           "groups to compute; all from --group-offset on by default")
      .recorded();
  add_common(set, *options);
  return [options](Job& job) { return run(*options, job); };
}

// --- ejk audit grouped-matmul

Outcome run_audit_of(const ProductOptions<GroupedMatmulSettings>& options, const TestFlags& test, Job& job) {
  GroupedMatmulSettings how = options.how;
  if (options.group_sizes.empty() == options.row_groups.empty())
    throw usage("either GROUP_SIZES or --row-groups gives the groups");
  if (!options.row_groups.empty()) how.groups = GroupsGiven::row_groups;
  Report head;
  BufferedProductInputs inputs = open_inputs(options, job, head);
  const GroupedMatmulPlan plan = plan_of(inputs, how);
  constexpr std::int64_t kCopies = 6;  // the result, a mutant, both as numbers
  std::int64_t peak = 2 * kPieceBytes + kCopies * 8 * element_count(plan.out().shape) +
                      bytes_to_compare(plan, Explain::no) + 4 * element_count(inputs.lhs.source->shape()) +
                      4 * element_count(inputs.rhs.source->shape());
  for (const BufferedInput* input : inputs.all())
    if (input->source) peak += input->bytes_to_buffer();
  std::vector<BufferedInput> beside = job.phase(Phase::read, [&] {
    return open_beside(test.words.other, {{"out", plan.out()}}, job);
  });
  for (const BufferedInput& input : beside) peak += input.bytes_to_buffer();
  if (job.plan(head, peak)) return Outcome::passed;
  const Views views = job.phase(Phase::read, [&] { return inputs.view(); });
  AuditOptions audited;
  audited.other = job.phase(Phase::read, [&] { return read_beside(test.words.other, beside); });
  return run_audit(test, how.dtype, std::move(audited), std::move(head), job, [&](const AuditOptions& with) {
    return audit(views.lhs, views.rhs, IntegerArray(inputs.groups), how, with);
  });
}

Run declare_audit_of(OptionSet& set) {
  const auto options = std::make_shared<ProductOptions<GroupedMatmulSettings>>();
  const auto test = std::make_shared<TestFlags>();
  add_factors(set, *options);
  add_group_sizes(set, *options);
  add_flag(set, "--transpose-rhs", options->how.transpose_rhs, "RHS is (groups, n, k)");
  add_dtype(set, "--dtype", options->how.dtype, "type of the kernel's result", float_dtypes());
  add_word(set, "--group-offset", options->how.group_offset, at_least(0), "G",
           "the group to begin with, 0 by default");
  declare_test(set, *test);
  return [options, test](Job& job) { return run_audit_of(*options, *test, job); };
}

constexpr std::string_view kProductKeys = R"(
lhs, rhs, out | shape | the shapes of LHS, RHS and the result
factors, dtype | string | the element types of LHS and RHS; that of the result
groups | integer | groups
first_group | integer | the first group that is computed
groups_computed | integer | groups that are computed
empty_groups | integer | of these, those without a row
rows, rows_of_other_groups, rows_of_no_group | integer | rows of the computed groups, of other groups, of none
work_flop | integer | multiplications and additions
size_bytes | integer | bytes of the result
tiling | string | the tiles, TMxTKxTN, or automatic
tiling_line | integer or null | the line of the table that was used, or none | with --tiling-table
instruction_set | string | the instruction set that is used
rate_flop_per_s | number or null | work_flop / the time of the product | done
check | section | the comparison with float64 | with --check
  passed | boolean | whether no element is out of tolerance
  method | string | every element or sampled rows
  elements, compared, violating | integer | elements of the result; compared ones; those out of tolerance
  violating_share | share or null | violating / compared
  rows_by_vector | integer | rows that were also compared as a product with a random vector | with sampled rows
  rows_refuted | integer | rows that fail this, too many to compare by element | with sampled rows
  rows_open | integer | rows with NaN or infinities, which it cannot decide | with sampled rows, where there are such
  differences | table | the largest differences
    kind | string | absolute, relative, ulps, or worst: furthest out of tolerance
    difference | number or null | the difference
    index | shape | where it is
    value, reference | number or null | the result there, and the float64 value
)";

// The rest of kAgainstKeys.
constexpr std::string_view kNoGroupKeys = R"(
  no_group | section | rows of no group | where some of them are out of tolerance
    rows, elements, beyond | integer | these rows; their elements; those out of tolerance
    not_numbers | integer | of these, NaN and infinities
    groups_agree | boolean | whether all rows of groups are within their bounds
)";

}  // namespace

extern const Command grouped_matmul_command{
    .name = "grouped-matmul",
    .group = "Groups",
    .summary = "rows of each group times the group's own matrix",
    .example = "ejk grouped-matmul tokens.npy experts.npy group_sizes.npy -o out.npy",
    .outputs = {{"out", "(m, n) of --dtype",
                 "row i is LHS[i] @ RHS[g] for its group g; 0 in rows of no group"}},
    .use = R"(out = np.load("out.npy")
first = lhs[:sizes[0]] @ rhs[0]  # equals out[:sizes[0]] but for rounding)",
    .keys = joined({kProductKeys, kAgainstKeys, kAgainstPartsKeys, kNoWorseThanKeys, kNoGroupKeys}),
    .declare = declare_grouped_matmul,
    .is_divided = true,
};

extern const Command transposed_grouped_matmul_command{
    .name = "transposed-grouped-matmul",
    .group = "Groups",
    .summary = "a matrix for each group: the gradient of experts",
    .example = "ejk transposed-grouped-matmul tokens_t.npy grad.npy group_sizes.npy -o out.npy",
    .outputs = {{"out", "(groups, k, n) of --dtype",
                 "LHS[:, rows] @ RHS[rows] over the rows of each group; 0 for a group without rows"}},
    .use = R"(grad = np.load("out.npy")
first = lhs[:, :sizes[0]] @ rhs[:sizes[0]]  # grad[0] but for rounding)",
    .keys = joined({kProductKeys, kAgainstKeys, kAgainstPartsKeys, kNoWorseThanKeys}),
    .declare = declare_transposed_grouped_matmul,
    .is_divided = true,
};

extern const Command audit_grouped_matmul_command{
    .name = "audit grouped-matmul",
    .summary = "of a test of a grouped product",
    .example = "ejk audit grouped-matmul tokens.npy experts.npy group_sizes.npy --rtol 1e-2",
    .outputs = {{"expected", "(m, n) of --dtype", "the right result"},
                {"FAULT, FAULT.PARAMETER", "the same", "the result of a kernel with that fault"}},
    .declare = declare_audit_of,
};

}  // namespace ejk::app
