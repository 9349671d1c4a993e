// ejk chunk, unchunk, log-sum-exp, safe-divide: array functions of one pass.
//
// tests: tests/cli/chunk/, tests/cli/unchunk/, tests/cli/log-sum-exp/, tests/cli/safe-divide/
#include "ejk/array_math.hpp"

#include <fmt/format.h>

#include "commands.hpp"
#include "job.hpp"
#include "schema.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

using Source = std::shared_ptr<const ArraySource>;

std::int64_t read_axis(const std::string& word) { return read_integer(word, INT64_MIN); }

// --- chunk, unchunk

struct ChunkOptions {
  std::string array;
  std::int64_t chunk_size = 0;
  std::int64_t axis = 0;
  Number pad = std::int64_t{0};
  std::int64_t length = 0;
};

Outcome run_chunk(const ChunkOptions& options, Job& job) {
  const Source x = job.open("x", options.array);
  const Source chunks = chunk_array(x, options.chunk_size, options.axis, options.pad);
  Report report;
  add_array(report, *chunks);
  report.add("padding", "of it padding", element_count(chunks->shape()) - element_count(x->shape()),
             Unit::elements);
  if (job.plan(report, piece_buffers(2, std::max(type_of(*x).bytes(), type_of(*chunks).bytes()))))
    return Outcome::passed;
  job.deliver(std::move(report), {{"chunk", chunks, {}}});
  return Outcome::passed;
}

Outcome run_unchunk(const ChunkOptions& options, Job& job) {
  const Source x = job.open("x", options.array);
  const Source joined = unchunk_array(x, options.length, options.axis);
  Report report;
  add_array(report, *joined);
  report.add("dropped", "cut off", element_count(x->shape()) - element_count(joined->shape()),
             Unit::elements);
  if (job.plan(report, piece_buffers(2, std::max(type_of(*x).bytes(), type_of(*joined).bytes()))))
    return Outcome::passed;
  job.deliver(std::move(report), {{"unchunk", joined, {}}});
  return Outcome::passed;
}

// --- log-sum-exp

struct LogSumExpOptions {
  std::string array;
  std::optional<std::int64_t> axis;
  bool keepdims = false;
};

Outcome run_log_sum_exp(const LogSumExpOptions& options, Job& job) {
  const Source x = job.open("x", options.array);
  Report report;
  report.add("input_shape", "input", x->shape());
  job.show_options(report);
  if (job.plan(report, log_sum_exp_bytes(*x, options.axis) + piece_buffers(1, type_of(*x).bytes())))
    return Outcome::passed;
  const Array sums = job.phase(Phase::compute, [&] {
    return log_sum_exp(*x, options.axis, options.keepdims ? Keepdims::yes : Keepdims::no);
  });
  const Source result = make_source(sums.view(), "log_sum_exp");
  add_array(report, *result);
  job.deliver(std::move(report), {{"log_sum_exp", result, {}}});
  return Outcome::passed;
}

// --- safe-divide

struct SafeDivideOptions {
  std::string numerator, denominator;
  double least = 1e-10;
};

Outcome run_safe_divide(const SafeDivideOptions& options, Job& job) {
  Source a = job.open("numerator", options.numerator);
  Source b = job.open("denominator", options.denominator);
  Source quotient = safe_divide(a, b, options.least);
  Report report;
  add_array(report, *quotient);
  job.show_options(report);
  // An operand that is broadcast and has sequential access alone is read into memory.
  std::int64_t buffered = 0;
  const auto is_buffered = [&](const ArraySource& x) {
    return !x.random_access() && x.shape() != quotient->shape();
  };
  for (const Source& x : {a, b})
    if (is_buffered(*x)) buffered += byte_count(x->shape(), x->dtype());
  const std::int64_t largest =
      std::max({type_of(*a).bytes(), type_of(*b).bytes(), type_of(*quotient).bytes()});
  if (job.plan(report, piece_buffers(6, largest) + buffered)) return Outcome::passed;
  job.phase(Phase::read, [&] {
    for (Source* x : {&a, &b})
      if (is_buffered(**x)) *x = in_memory(**x);
  });
  quotient = safe_divide(a, b, options.least);
  job.deliver(std::move(report), {{"safe_divide", quotient, {}}});
  return Outcome::passed;
}

Run declare_chunk(OptionSet& set) {
  const auto options = std::make_shared<ChunkOptions>();
  add_reference(set, "X", options->array, "an array of any type, with at least one axis").required();
  add_word(set, "--chunk-size", options->chunk_size, at_least(1), "N",
           "elements of a chunk\nAn axis of length n becomes two: ceil(n / N) chunks of N.")
      .required()
      .recorded();
  add_word(set, "--axis", options->axis, read_axis, "A",
           "the axis to cut, 0 by default\nNegative ones count from the end.")
      .recorded();
  add_word(
      set, "--pad-value", options->pad, read_number, "VALUE",
      "what fills up the last chunk, 0 by default\nConverted to X's type: floats are rounded; integers must "
      "hold it, and bool holds 0 and 1.")
      .recorded();
  return [options](Job& job) { return run_chunk(*options, job); };
}

Run declare_unchunk(OptionSet& set) {
  const auto options = std::make_shared<ChunkOptions>();
  add_reference(set, "X", options->array,
                "an array with an axis of chunks, followed by one of their elements")
      .required();
  add_word(set, "--length", options->length, at_least(0), "N",
           "length of the joined axis; the rest is cut off")
      .required()
      .recorded();
  add_word(set, "--axis", options->axis, read_axis, "A",
           "the joined axis, 0 by default\nNegative ones count from the end of the result's shape.")
      .recorded();
  return [options](Job& job) { return run_unchunk(*options, job); };
}

Run declare_log_sum_exp(OptionSet& set) {
  const auto options = std::make_shared<LogSumExpOptions>();
  add_reference(
      set, "X", options->array,
      "an array of any type\nThe result has its type, float32 for integers. Sums are taken in double "
      "precision around the largest term; a sum of -inf, or of nothing, is -inf.")
      .required();
  add_word(set, "--axis", options->axis, read_axis, "A",
           "sum along this axis; by default over all elements\nNegative ones count from the end.")
      .recorded()
      .shown("axis")
      .otherwise("all");
  add_flag(set, "--keepdims", options->keepdims, "keep what is summed as axes of length 1").recorded();
  return [options](Job& job) { return run_log_sum_exp(*options, job); };
}

Run declare_safe_divide(OptionSet& set) {
  const auto options = std::make_shared<SafeDivideOptions>();
  add_reference(set, "A", options->numerator, "the numerator").required();
  add_reference(set, "B", options->denominator,
                "the denominator, broadcast with A as in NumPy\nThe result is A / max(B, M): negative "
                "denominators become "
                "M too, NaN stays NaN. Integers count as float32, beside float64 as float64.")
      .required();
  add_word(
      set, "--min-denominator", options->least, read_real, "M",
      "the least denominator, 1e-10 by default\nRounded to B's type first, so 1e-10 is 0 for a float16 B.")
      .recorded()
      .shown("least denominator");
  return [options](Job& job) { return run_safe_divide(*options, job); };
}

}  // namespace

extern const Command chunk_command{
    .name = "chunk",
    .group = "Arrays",
    .summary = "cut an axis into chunks, the last one padded",
    .example = "ejk chunk hidden.npy --chunk-size 64 --axis 1 -o chunks.npy",
    .outputs = {{"chunk", "X's, with the axis (n,) become (ceil(n / N), N)",
                 "the chunks, the last one filled up"}},
    .use = R"(chunks = np.load("chunks.npy")  # chunks[:, i] is chunk i, for --axis 1)",
    .keys = joined({kArrayKeys, R"(
padding | integer | elements of it that are padding
)"}),
    .declare = declare_chunk,
};

extern const Command unchunk_command{
    .name = "unchunk",
    .group = "Arrays",
    .summary = "join chunks again, without their padding",
    .example = "ejk unchunk chunks.npy --length 4096 --axis 1 -o hidden.npy",
    .outputs = {{"unchunk", "X's, with two axes joined to --length", "the chunks one after the other"}},
    .use = R"(hidden = np.load("hidden.npy"))",
    .keys = joined({kArrayKeys, R"(
dropped | integer | elements of X that are cut off
)"}),
    .declare = declare_unchunk,
};

extern const Command log_sum_exp_command{
    .name = "log-sum-exp",
    .group = "Arrays",
    .summary = "ln of the sum of exponentials",
    .example = "ejk log-sum-exp logits.npy --axis -1 -o lse.npy",
    .outputs = {{"log_sum_exp", "X's without the axis, or ()", "ln of the sum of exp(x); -inf of nothing"}},
    .use = R"(p = np.exp(x - np.load("lse.npy")[..., None])  # for --axis -1)",
    .keys = R"(
input_shape | shape | of X
axis | integer or string | the axis that is summed over, or all
shape | shape | of the array that is written | done
dtype | string | its element type | done
size_bytes | integer | bytes of its elements | done
)",
    .declare = declare_log_sum_exp,
};

extern const Command safe_divide_command{
    .name = "safe-divide",
    .group = "Arrays",
    .summary = "divide, with a lower limit for the denominator",
    .example = "ejk safe-divide sums.npy counts.npy -o means.npy",
    .outputs = {{"safe_divide", "the broadcast shape of A and B", "A / max(B, M)"}},
    .use = R"(means = np.load("means.npy"))",
    .keys = joined({kArrayKeys, R"(
min_denominator | number | the lower limit of B
)"}),
    .declare = declare_safe_divide,
};

}  // namespace ejk::app
