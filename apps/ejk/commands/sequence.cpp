// ejk cu-seqlens, lens, position-ids, sequence-ids, token-indices, chunk-indices, chunk-offsets, cdiv: packed
// sequences, and everything that is made from their cu_seqlens.
//
// tests: tests/cli/cu-seqlens/, tests/cli/token-indices/ and a folder for each other command
#include "ejk/sequence.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <type_traits>
#include <vector>

#include "commands.hpp"
#include "ejk/text.hpp"
#include "job.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

using Source = std::shared_ptr<const ArraySource>;

// What an input stands for; `automatic` goes by its rank.
enum class From { automatic, mask, lens, segment_ids, cu_seqlens };

From by_rank(const ArraySource& input, From one_axis) {
  const std::size_t rank = input.shape().size();
  if (rank == 1) return one_axis;
  if (rank == 2) return From::mask;
  Error error(Error::Kind::input,
              fmt::format("{}: shape {} is neither {} (1-D) nor a mask (batch, seq)", input.name(),
                          to_string(input.shape()), one_axis == From::lens ? "lens" : "cu_seqlens"));
  if (rank > 2) error.hint("a slice picks two axes, as in mask.npy[:,0]");
  throw error;
}

void add_padding(Report& report, const RowPadding& padding, bool offsets_lost) {
  const auto rows = static_cast<std::int64_t>(padding.lens.size());
  if (padding.left_padded > 0) report.add("left_padded_rows", "left-padded", padding.left_padded, Unit::rows);
  if (padding.with_holes > 0) report.add("rows_with_holes", "with holes", padding.with_holes, Unit::rows);
  if (offsets_lost && padding.left_padded + padding.with_holes > 0)
    report.warnings.push_back(
        fmt::format("{} of {} rows are not simply padded on the right: these offsets fit only the packed "
                    "form, which 'ejk pack' makes",
                    std::max(padding.left_padded, padding.with_holes), rows));
}

void add_counts(Report& report, const SequenceCounts& counts) {
  report.add("sequences", "sequences", counts.sequences, Unit::count);
  if (counts.empty > 0) report.add("empty_sequences", "of them empty", counts.empty, Unit::count);
  report.add("tokens", "tokens", counts.tokens, Unit::count);
  report.add("longest", "longest", counts.longest, Unit::tokens);
}

// --- cu-seqlens

struct CuSeqlensOptions {
  std::string input;
  From from = From::automatic;
  DType dtype = DType::int32;
};

std::vector<std::int64_t> integers_of(const ArraySource& source) {
  const Array raw = read_all(source);
  std::vector<std::int64_t> values;
  dispatch(raw.dtype(), [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_integral_v<T>)
      for (const T value : raw.elements<T>()) values.push_back(static_cast<std::int64_t>(value));
  });
  return values;
}

// Lengths that begin with 0 and never decrease are likely offsets. All that is 0 says nothing.
void warn_of_offsets(Report& report, const ArraySource& lens) {
  const std::vector<std::int64_t> values = integers_of(lens);
  if (values.size() < 2 || values.front() != 0 || values.back() == 0 ||
      !std::is_sorted(values.begin(), values.end()))
    return;
  report.warnings.push_back(fmt::format(
      "{} was taken for lengths, but begins with 0 and never decreases, as cu_seqlens do: 'ejk lens' "
      "makes lengths of cu_seqlens, --from lens confirms that these are lengths",
      printable(lens.name())));
}

// Padding has negative ids, or 0 at the end: elsewhere 0 may be an id like others.
void warn_of_padding(Report& report, const ArraySource& ids) {
  std::vector<std::int64_t> values = integers_of(ids);
  const auto total = static_cast<std::int64_t>(values.size());
  std::int64_t tokens = 0;
  while (!values.empty() && values.back() == 0) values.pop_back(), ++tokens;
  if (values.empty()) return;  // a single sequence
  tokens += std::count_if(values.begin(), values.end(), [](std::int64_t id) { return id < 0; });
  if (tokens == 0) return;
  report.warnings.push_back(fmt::format(
      "{}: {} of {} tokens are likely padding (negative ids, or 0 at the end), and their runs are "
      "counted as sequences; a slice of the input leaves them out",
      printable(ids.name()), format_count(tokens), format_count(total)));
}

Answer run_cu_seqlens(const CuSeqlensOptions& options, Job& job) {
  if (options.dtype == DType::boolean) throw usage("--dtype: cu_seqlens cannot be bool");
  const Source input = job.open("input", options.input);
  const From from = options.from == From::automatic ? by_rank(*input, From::lens) : options.from;
  const char* words = from == From::mask ? "mask" : from == From::lens ? "lens" : "segment-ids";
  job.provenance.record("from", words);

  Report report;
  report.add("from", "made from", std::string(words));
  report.add("dtype", "dtype", std::string(name_of(options.dtype)));
  const std::int64_t entries = input->shape().empty() ? 0 : input->shape()[0];
  Report planned = report;
  planned.add("shape", from == From::segment_ids ? "shape, at most" : "shape", Shape{entries + 1});
  if (job.plan(planned, kPieceBytes + sequence_work_bytes(type_of(*input)))) return Answer::yes;

  const Array cu = job.phase(Phase::compute, [&] {
    if (from == From::lens || from == From::segment_ids) {
      const Source values = in_memory(*input);  // a stream is read once
      Array made = from == From::lens ? prepare_cu_seqlens_from_lens(*values, options.dtype)
                                      : prepare_cu_seqlens_from_segment_ids(*values, options.dtype);
      // Who says --from lens means it.
      if (from == From::lens && options.from == From::automatic) warn_of_offsets(report, *values);
      if (from == From::segment_ids) warn_of_padding(report, *values);
      return made;
    }
    const RowPadding padding = inspect_padding(*input);
    add_padding(report, padding, true);
    const auto rows = static_cast<std::int64_t>(padding.lens.size());
    return prepare_cu_seqlens_from_lens(
        *make_source(Array::from<std::int64_t>({rows}, padding.lens), input->name()), options.dtype);
  });
  report.add("shape", "shape", cu.shape());
  if (is_integer(cu.dtype())) add_counts(report, count_sequences(*make_source(cu.view(), "cu_seqlens")));
  job.deliver(std::move(report), {{"cu_seqlens", make_source(cu.view()), {}}});
  return Answer::yes;
}

// --- lens

struct LensOptions {
  std::string input;
  From from = From::automatic;
};

Answer run_lens(const LensOptions& options, Job& job) {
  const Source input = job.open("input", options.input);
  const From from = options.from == From::automatic ? by_rank(*input, From::cu_seqlens) : options.from;
  const char* words = from == From::mask ? "mask" : "cu-seqlens";
  job.provenance.record("from", words);
  Report report;
  report.add("from", "made from", std::string(words));
  if (job.plan(report, kPieceBytes + sequence_work_bytes(type_of(*input)))) return Answer::yes;

  const Array lens = job.phase(Phase::compute, [&] {
    if (from == From::cu_seqlens) return prepare_lens(*input);
    add_padding(report, inspect_padding(*input), false);
    return prepare_lens_from_mask(*input);
  });
  report.add("shape", "shape", lens.shape()).add("dtype", "dtype", std::string(name_of(lens.dtype())));
  const Array cu = prepare_cu_seqlens_from_lens(*make_source(lens.view(), "lens"), DType::int64);
  add_counts(report, count_sequences(*make_source(cu.view(), "cu_seqlens")));
  job.deliver(std::move(report), {{"lens", make_source(lens.view()), {}}});
  return Answer::yes;
}

// --- ids, indices and chunk offsets

struct IdOptions {
  std::string cu_seqlens;
  std::int64_t chunk_size = 0;
  std::optional<Convention> convention;  // nothing: there is but one
};

using MakeIds = Source (*)(const ArraySource& cu_seqlens, const IdOptions& options);

Answer run_ids(const char* name, MakeIds make, const IdOptions& options, Job& job) {
  const Source input = job.open("cu_seqlens", options.cu_seqlens);
  const std::int64_t peak = kPieceBytes + type_of(*input).bytes() + sequence_work_bytes(type_of(*input));
  job.require_memory(peak);

  // The sequences say how large the result is, so they are looked at even when nothing else is done.
  const Source cu = job.phase(Phase::read, [&] { return in_memory(*input); });
  const Source ids = job.phase(Phase::compute, [&] { return make(*cu, options); });
  Report report;
  add_counts(report, count_sequences(*cu));
  report.add("shape", "shape", ids->shape())
      .add("dtype", "dtype", std::string(name_of(ids->dtype())))
      .add("size", "size", byte_count(ids->shape(), ids->dtype()), Unit::bytes);
  job.show_options(report);
  if (job.plan(report, peak)) return Answer::yes;
  job.deliver(std::move(report), {{name, ids, {}}});
  return Answer::yes;
}

enum class Has { neither, convention, chunk_size, both };

Run declare_ids(OptionSet& set, const char* name, Has has, MakeIds make) {
  const auto options = std::make_shared<IdOptions>();
  add_reference(set, "CU_SEQLENS", options->cu_seqlens,
                "where each sequence begins, and the number of tokens (sequences + 1,)\n"
                "Integers that begin with 0 and never decrease; ejk cu-seqlens makes them.")
      .required();
  if (has == Has::chunk_size || has == Has::both)
    add_word(set, "--chunk-size", options->chunk_size, at_least(1), "N",
             "tokens of a chunk; the last one of a sequence may be shorter")
        .required()
        .recorded()
        .shown("chunk size", Unit::tokens);
  if (has == Has::convention || has == Has::both)
    add_convention(
        set, options->convention.emplace(Convention::document),
        "of empty sequences: document or ejkernel\n"
        "document (default): an id is the index of the sequence. ejkernel: empty sequences are not "
        "counted.");
  return [=](Job& job) { return run_ids(name, make, *options, job); };
}

// --- cdiv

struct CdivOptions {
  std::string array;
  std::int64_t by = 0;
};

Answer run_cdiv(const CdivOptions& options, Job& job) {
  const Source input = job.open("array", options.array);
  const std::int64_t bytes = byte_count(input->shape(), input->dtype());
  Report report;
  report.add("shape", "shape", input->shape()).add("dtype", "dtype", std::string(name_of(input->dtype())));
  job.show_options(report);
  if (job.plan(report, bytes + kPieceBytes)) return Answer::yes;
  const Array result = job.phase(Phase::compute, [&] { return cdiv(*input, options.by); });
  job.deliver(std::move(report), {{"cdiv", make_source(result.view()), {}}});
  return Answer::yes;
}

}  // namespace

Run cu_seqlens(OptionSet& set) {
  const auto options = std::make_shared<CuSeqlensOptions>();
  add_reference(set, "INPUT", options->input,
                "a mask (batch, seq), lengths (sequences,) or segment ids (tokens,)\n"
                "Non-zero elements of a mask are tokens, anywhere in their row.")
      .required();
  add_word(
      set, "--from", options->from,
      [](const std::string& word) {
        constexpr From values[] = {From::mask, From::lens, From::segment_ids};
        return values[read_choice(word, {"mask", "lens", "segment-ids"})];
      },
      "WHAT",
      "what INPUT is: mask, lens or segment-ids\n"
      "By default two axes are a mask and one is lens. Each run of equal segment ids is a sequence.");
  add_word(set, "--dtype", options->dtype, read_dtype, "TYPE",
           "element type, int32 by default\nA sum that it cannot hold exactly is an error.");
  return [options](Job& job) { return run_cu_seqlens(*options, job); };
}

Run lens(OptionSet& set) {
  const auto options = std::make_shared<LensOptions>();
  add_reference(set, "INPUT", options->input, "cu_seqlens (sequences + 1,) or a mask (batch, seq)")
      .required();
  add_word(
      set, "--from", options->from,
      [](const std::string& word) {
        constexpr From values[] = {From::cu_seqlens, From::mask};
        return values[read_choice(word, {"cu-seqlens", "mask"})];
      },
      "WHAT", "what INPUT is: cu-seqlens or mask\nBy default two axes are a mask and one is cu-seqlens.");
  return [options](Job& job) { return run_lens(*options, job); };
}

Run position_ids(OptionSet& set) {
  return declare_ids(set, "position_ids", Has::neither,
                     [](const ArraySource& cu, const IdOptions&) { return prepare_position_ids(cu); });
}

Run sequence_ids(OptionSet& set) {
  return declare_ids(set, "sequence_ids", Has::convention,
                     [](const ArraySource& cu, const IdOptions& options) {
                       return prepare_sequence_ids(cu, *options.convention);
                     });
}

Run token_indices(OptionSet& set) {
  return declare_ids(set, "token_indices", Has::convention,
                     [](const ArraySource& cu, const IdOptions& options) {
                       return prepare_token_indices(cu, *options.convention);
                     });
}

Run chunk_indices(OptionSet& set) {
  return declare_ids(set, "chunk_indices", Has::both, [](const ArraySource& cu, const IdOptions& options) {
    return prepare_chunk_indices(cu, options.chunk_size, *options.convention);
  });
}

Run chunk_offsets(OptionSet& set) {
  return declare_ids(set, "chunk_offsets", Has::chunk_size,
                     [](const ArraySource& cu, const IdOptions& options) {
                       return make_source(prepare_chunk_offsets(cu, options.chunk_size), "chunk_offsets");
                     });
}

Run cdiv(OptionSet& set) {
  const auto options = std::make_shared<CdivOptions>();
  add_reference(set, "A", options->array, "integers of any shape, negative ones too").required();
  add_word(set, "--by", options->by, at_least(1), "B", "what to divide by, at least 1")
      .required()
      .recorded()
      .shown("divided by", Unit::count);
  return [options](Job& job) { return run_cdiv(*options, job); };
}

}  // namespace ejk::app
