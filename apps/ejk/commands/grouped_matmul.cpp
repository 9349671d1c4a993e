// ejk grouped-matmul, transposed-grouped-matmul: the products of a mixture of experts, forward and backward.
//
// tests: tests/cli/grouped-matmul/, tests/cli/transposed-grouped-matmul/
#include "ejk/grouped_matmul.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "commands.hpp"
#include "ejk/groups.hpp"
#include "ejk/machine.hpp"
#include "ejk/matmul_check.hpp"
#include "ejk/text.hpp"
#include "ejk/tiling.hpp"
#include "job.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

using Source = std::shared_ptr<const ArraySource>;

// What both commands take.
struct ProductOptions {
  std::string lhs, rhs, group_sizes, existing_out;
  DType dtype = DType::float32;
  std::optional<Tiling> tiling;
  std::string tiling_table;
  std::int64_t group_offset = 0;
  bool strict = false;
  bool check = false;
};

struct GroupedOptions : ProductOptions {
  bool accumulate = false;
  bool transpose_rhs = false;
};

struct TransposedOptions : ProductOptions {
  std::optional<std::int64_t> num_actual_groups;
};

// One product or the other: the functions of the library, and where its lengths stand.
struct GroupedProduct {
  using How = GroupedMatmulOptions;
  static constexpr auto shape = grouped_matmul_shape;
  static constexpr auto work_bytes = grouped_matmul_work_bytes;
  static constexpr auto compute = grouped_matmul_into;
  static constexpr auto check = check_grouped_matmul;

  static std::int64_t m(const ArrayView& lhs) { return lhs.shape[0]; }
  static std::int64_t k(const ArrayView& lhs) { return lhs.shape[1]; }
  static std::int64_t computed(const ArrayView& rhs, const Shape&) { return rhs.shape[0]; }
  static std::string left_out(bool existing) {
    return existing ? "as they are in existing_out" : "0 in the result";
  }
};

struct TransposedProduct {
  using How = TransposedGroupedMatmulOptions;
  static constexpr auto shape = transposed_grouped_matmul_shape;
  static constexpr auto work_bytes = transposed_grouped_matmul_work_bytes;
  static constexpr auto compute = transposed_grouped_matmul_into;
  static constexpr auto check = check_transposed_grouped_matmul;

  static std::int64_t m(const ArrayView& lhs) { return lhs.shape[1]; }
  static std::int64_t k(const ArrayView& lhs) { return lhs.shape[0]; }
  static std::int64_t computed(const ArrayView&, const Shape& out) { return out[0]; }
  static std::string left_out(bool) { return "left out"; }
};

std::int64_t bytes_of(const ArraySource& source) { return byte_count(source.shape(), source.dtype()); }

// An array as its header describes it.
ArrayView header_of(const ArraySource& source) {
  if (const auto mapped = source.mapped()) return *mapped;
  return {nullptr, source.dtype(), source.shape(), c_strides(source.shape(), source.dtype())};
}

// An input, and its elements once they are needed: where they lie, or read.
struct Input {
  Source source;
  Array held;

  std::int64_t bytes_to_hold() const { return !source || source->mapped() ? 0 : bytes_of(*source); }
  ArrayView view() {
    if (const auto mapped = source->mapped()) return *mapped;
    held = read_all(*source);
    return held.view();
  }
};

struct Inputs {
  Input lhs, rhs, existing;
  Source group_sizes;

  // The library speaks of lhs and rhs; people know them by their files.
  template <class F>
  auto naming(F&& f) const {
    try {
      return f();
    } catch (Error& error) {
      const auto is_of = [&](const char* role, const Input& input) {
        if (!input.source || !error.message().starts_with(role)) return false;
        error.at(input.source->name());
        return true;
      };
      is_of("lhs", lhs) || is_of("rhs", rhs) || is_of("existing_out", existing);
      throw;
    }
  }
};

void require_float(const char* role, const ArraySource& source) {
  if (is_float(source.dtype())) return;
  throw std::move(
      Error(Error::Kind::input, fmt::format("{} is {}; float16, bfloat16, float32 and float64 are multiplied",
                                            role, name_of(source.dtype())))
          .at(source.name())
          .hint("ejk convert ... --dtype float32 makes it one of those"));
}

Inputs open_inputs(const ProductOptions& options, Job& job) {
  return job.phase(Job::Phase::read, [&] {
    Inputs inputs;
    inputs.lhs.source = job.open("lhs", options.lhs);
    inputs.rhs.source = job.open("rhs", options.rhs);
    inputs.group_sizes = job.open("group_sizes", options.group_sizes);
    if (!options.existing_out.empty())
      inputs.existing.source = job.open("existing_out", options.existing_out);
    require_float("lhs", *inputs.lhs.source);
    require_float("rhs", *inputs.rhs.source);
    return inputs;
  });
}

TilingTable read_tiling_table(const std::string& path) {
  constexpr std::size_t kMost = std::size_t{1} << 24;  // far more than anybody measures
  const auto refuse = [&](const std::string& why) {
    throw std::move(Error(Error::Kind::input, why).at(path));
  };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) refuse(std::strerror(errno));
  std::string text;
  char piece[4096];
  for (std::size_t n = 0; (n = std::fread(piece, 1, sizeof piece, file.get())) > 0;) {
    text.append(piece, n);
    if (text.size() > kMost) refuse("too long for a table of tilings");
  }
  if (std::ferror(file.get()) != 0) refuse(std::strerror(errno));
  try {
    return TilingTable::parse(text);
  } catch (Error& error) {
    error.at(path);
    throw;
  }
}

std::string text_of(const Tiling& tiling) { return fmt::format("{}x{}x{}", tiling.tm, tiling.tk, tiling.tn); }

// 2 for a multiply-add; a whole number while a double can tell it from its neighbours.
ReportValue flop(std::int64_t rows, std::int64_t k, std::int64_t n) {
  const double value = 2.0 * static_cast<double>(rows) * static_cast<double>(k) * static_cast<double>(n);
  return value < 0x1p53 ? ReportValue(static_cast<std::int64_t>(value)) : ReportValue(value);
}

double as_number(const ReportValue& value) {
  const auto* whole = std::get_if<std::int64_t>(&value);
  return whole ? static_cast<double>(*whole) : std::get<double>(value);
}

void note_settings(const ProductOptions& options, Job& job) {
  job.note_setting("dtype", std::string(name_of(options.dtype)));
  job.note_setting("group_offset", fmt::format("{}", options.group_offset));
  job.note_setting("strict", options.strict ? "true" : "false");
  if (options.tiling && !options.tiling_table.empty())
    throw Error(Error::Kind::usage, "--tiling and --tiling-table are two answers to one question");
}

template <class Product>
Answer run(const ProductOptions& options, typename Product::How how, Job& job) {
  how.dtype = options.dtype;
  how.group_offset = options.group_offset;
  how.strict = options.strict;
  std::optional<TilingTable> table;
  if (!options.tiling_table.empty()) table = read_tiling_table(options.tiling_table);
  Inputs inputs = open_inputs(options, job);
  if (inputs.existing.source) how.existing_out = header_of(*inputs.existing.source);

  // All that headers and group sizes tell.
  const ArrayView lhs_header = header_of(*inputs.lhs.source), rhs_header = header_of(*inputs.rhs.source);
  const ArraySource& group_sizes = *inputs.group_sizes;
  const auto checked_shape = [&] {
    return inputs.naming([&] { return Product::shape(lhs_header, rhs_header, group_sizes, how); });
  };
  how.tiling = options.tiling;
  const Shape shape = checked_shape();
  const std::int64_t m = Product::m(lhs_header), k = Product::k(lhs_header), n = shape.back();
  const TilingTable::Row* row = table ? table->find(m, k, n) : nullptr;
  if (row) {
    how.tiling = row->tiling;
    checked_shape();
  }
  if (how.tiling) job.note_setting("tiling", text_of(*how.tiling));
  const std::vector<std::int64_t> offsets = group_offsets(group_sizes, m, options.strict);
  const std::int64_t computed = Product::computed(rhs_header, shape), first = options.group_offset;
  const auto offset = [&](std::int64_t group) { return offsets[static_cast<std::size_t>(group)]; };
  std::int64_t empty = 0;
  for (std::int64_t g = first; g < first + computed; ++g) empty += offset(g) == offset(g + 1);
  const std::int64_t rows = offset(first + computed) - offset(first), rest = m - offsets.back();
  const ReportValue work = flop(rows, k, n);

  Report report;
  report.add("lhs", "lhs", lhs_header.shape)
      .add("rhs", "rhs", rhs_header.shape)
      .add("out", "out", shape)
      .add("factors", "factors", fmt::format("{}, {}", name_of(lhs_header.dtype), name_of(rhs_header.dtype)))
      .add("dtype", "dtype", std::string(name_of(options.dtype)))
      .add("groups", "groups", std::ssize(offsets) - 1, Unit::count)
      .add("first_group", "first computed", first, Unit::count)
      .add("groups_computed", "computed", computed, Unit::count)
      .add("empty_groups", "empty among them", empty, Unit::count)
      .add("rows", "their rows", rows, Unit::rows)
      .add("rows_of_other_groups", "rows of other groups", offsets.back() - rows, Unit::rows)
      .add("rows_of_no_group", "rows of no group", rest, Unit::rows)
      .add("work", "work", work, Unit::flop)
      .add("size", "size", byte_count(shape, options.dtype), Unit::bytes)
      .add("tiling", "tiling", how.tiling ? text_of(*how.tiling) : std::string("automatic"));
  if (table)
    report.add("tiling_line", "line of the tiling table", row ? ReportValue(row->line) : ReportValue());
  report.add("instruction_set", "instruction set", instruction_set());
  if (rest > 0)
    report.warnings.push_back(fmt::format("{} of {} rows belong to no group: they are {}", format_count(rest),
                                          format_count(m), Product::left_out(how.existing_out.has_value())));
  if (table && !row)
    report.warnings.push_back(
        fmt::format("{}: no line for m = {}, k = {}, n = {}", options.tiling_table, m, k, n));
  const std::int64_t held =
      inputs.lhs.bytes_to_hold() + inputs.rhs.bytes_to_hold() + inputs.existing.bytes_to_hold();
  // The check keeps some numbers for each row of rhs.
  const std::int64_t check_bytes =
      options.check ? 48 * (element_count(rhs_header.shape) / std::max<std::int64_t>(n, 1)) : 0;
  const std::int64_t peak = 2 * kPieceBytes + held + check_bytes + byte_count(shape, options.dtype) +
                            Product::work_bytes(lhs_header, rhs_header, group_sizes, how);
  if (job.plan(report, peak)) return Answer::yes;

  ArrayView lhs, rhs;
  job.phase(Job::Phase::read, [&] {
    lhs = inputs.lhs.view();
    rhs = inputs.rhs.view();
    if (inputs.existing.source) how.existing_out = inputs.existing.view();
  });
  how.progress = job.progress();
  const auto begin = std::chrono::steady_clock::now();
  Array out(options.dtype, shape);
  job.phase(Job::Phase::compute,
            [&] { inputs.naming([&] { Product::compute(lhs, rhs, group_sizes, how, out.data()); }); });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  report.add("rate", "computed at", seconds > 0 ? ReportValue(as_number(work) / seconds) : ReportValue(),
             Unit::flop_per_second);

  bool passed = true;
  if (options.check) {
    how.progress = job.progress();
    const MatmulCheck check = job.phase(
        Job::Phase::compute, [&] { return Product::check(lhs, rhs, group_sizes, how, out.view()); });
    passed = check.passed();
    report.add(Section{"check", "check", std::make_shared<Report>(describe(check))});
    if (!passed) report.warnings.emplace_back("the result differs from float64 by more than the tolerance");
  }
  job.deliver(std::move(report), {{"out", make_source(out.view()), {}}});
  return passed ? Answer::yes : Answer::no;
}

Answer run_grouped(const GroupedOptions& options, Job& job) {
  note_settings(options, job);
  if (options.accumulate && options.existing_out.empty())
    throw Error(Error::Kind::usage, "--accumulate adds to --existing-out, which is not given");
  job.note_setting("transpose_rhs", options.transpose_rhs ? "true" : "false");
  if (!options.existing_out.empty())
    job.note_setting("existing_out", options.accumulate ? "added" : "kept where nothing is computed");
  GroupedMatmulOptions how;
  how.transpose_rhs = options.transpose_rhs;
  how.existing = options.accumulate ? Existing::add : Existing::keep;
  return run<GroupedProduct>(options, std::move(how), job);
}

Answer run_transposed(const TransposedOptions& options, Job& job) {
  note_settings(options, job);
  if (!options.existing_out.empty()) job.note_setting("existing_out", "added");
  if (options.num_actual_groups)
    job.note_setting("num_actual_groups", fmt::format("{}", *options.num_actual_groups));
  TransposedGroupedMatmulOptions how;
  how.num_actual_groups = options.num_actual_groups;
  return run<TransposedProduct>(options, std::move(how), job);
}

Tiling read_tiling(const std::string& word) {
  const Shape lengths = read_lengths(word, 3, 3, "TMxTKxTN");
  return {lengths[0], lengths[1], lengths[2]};
}

std::int64_t read_count(const std::string& word) { return read_integer(word, 0); }

void add_group_sizes(CLI::App& app, ProductOptions& options) {
  add_reference(app, "GROUP_SIZES", options.group_sizes,
                "rows of each group (groups,), any integers\n"
                "Groups follow one another; their sizes sum to at most m. Rows after the last group "
                "belong to no group.")
      .required();
}

void add_common(CLI::App& app, ProductOptions& options) {
  add_word(app, "--dtype", options.dtype, read_float_dtype, "TYPE",
           "of the result: float16, bfloat16, float32, float64\n"
           "float32 by default. Sums are float32, float64 with a float64 factor, and are rounded once.");
  add_word(app, "--group-offset", options.group_offset, read_count, "G",
           "the group to begin with, 0 by default");
  add_word(app, "--tiling", options.tiling, read_tiling, "TMxTKxTN",
           "rows, depth and columns of a block; automatic by default\n"
           "It decides the order of sums and the speed.");
  add_word(
      app, "--tiling-table", options.tiling_table,
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
  add_flag(app, "--strict", options.strict, "tm must divide m, and the sizes sum to m");
  add_flag(app, "--check", options.check,
           "compare with float64; exit with 1 where it differs too much\n"
           "Small products element by element; of large ones some rows of every group, and all rows by "
           "a random vector. The result is written all the same.");
}

}  // namespace

Run grouped_matmul(CLI::App& app) {
  const auto options = std::make_shared<GroupedOptions>();
  add_reference(app, "LHS", options->lhs, "rows, those of a group together (m, k)").required();
  add_reference(app, "RHS", options->rhs,
                "a matrix for each group (groups, k, n)\n"
                "Fewer than there are groups are those from --group-offset on; rows of other groups are 0.")
      .required();
  add_group_sizes(app, *options);
  add_reference(app, "--existing-out", options->existing_out,
                "an earlier result (m, n)\n"
                "Rows that are not computed keep its values; the others are replaced.");
  add_flag(app, "--accumulate", options->accumulate, "add to --existing-out, everywhere");
  add_flag(app, "--transpose-rhs", options->transpose_rhs, "RHS is (groups, n, k)");
  add_common(app, *options);
  return [options](Job& job) { return run_grouped(*options, job); };
}

Run transposed_grouped_matmul(CLI::App& app) {
  const auto options = std::make_shared<TransposedOptions>();
  add_reference(app, "LHS", options->lhs,
                "columns, those of a group together (k, m)\n"
                "For the gradient of experts: the tokens, transposed.")
      .required();
  add_reference(app, "RHS", options->rhs, "rows, those of a group together (m, n)").required();
  add_group_sizes(app, *options);
  add_reference(app, "--existing-out", options->existing_out, "a result (groups, k, n) that is added to");
  add_word(app, "--num-actual-groups", options->num_actual_groups, read_count, "N",
           "groups to compute; all from --group-offset on by default");
  add_common(app, *options);
  return [options](Job& job) { return run_transposed(*options, job); };
}

}  // namespace ejk::app
