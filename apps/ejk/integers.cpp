// Interpretation of integer arrays of sequences and groups. Arrays are read whole: 16 bytes an element.
//
// tests: tests/cli/cu-seqlens/, lens/, bin-pack/, group-metadata/, grouped-matmul/
#include "integers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "ejk/groups.hpp"
#include "ejk/program/text.hpp"
#include "ejk/sequence.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

using From = SequencesFrom;

const char* word_of(From from) {
  constexpr std::array<const char*, 6> words{"", "mask", "lens", "cu-seqlens", "segment-ids", "position-ids"};
  return words[static_cast<std::size_t>(from)];
}

const char* noun_of(From from) { return from == From::lens ? "lengths" : "cu_seqlens"; }

From from_of(SequenceForm form) {
  constexpr From forms[] = {From::cu_seqlens, From::segment_ids, From::position_ids};
  return forms[static_cast<std::size_t>(form)];
}

std::string segments_as_offsets(const ArraySource& input) {
  return fmt::format(
      "{} counts up in runs, as segment ids do: as offsets most sequences are empty; 'ejk cu-seqlens --from segment-ids' "
      "makes cu_seqlens of segment ids",
      printable(input.name()));
}

// Throws or warns if elements interpreted as lengths or offsets are more likely something else.
void require_likely(const ArraySource& input, From from, Report& report) {
  if (!is_integer(input.dtype())) return;  // an error of the interpretation
  const std::optional<LikelyForm> likely = likely_form(input);
  if (!likely || from_of(likely->form) == from) return;
  const char* word = word_of(from_of(likely->form));
  if (likely->restart)
    throw Error(Error::Kind::input,
                fmt::format("{}: elements restart at 0 at index {}, as position ids do; {} do not",
                            input.name(), *likely->restart, noun_of(from)))
        .hint(std::string("--from position-ids takes them") +
              (from == From::lens ? "; --from lens confirms lengths" : ""));
  if (from != From::lens && likely->form == SequenceForm::segment_ids) {
    report.warnings.push_back(segments_as_offsets(input));
    return;
  }
  if (from != From::lens) {  // offsets begin with 0 and never decrease, as do other forms
    if (likely->form == SequenceForm::position_ids)
      report.warnings.push_back(fmt::format(
          "{} is interpreted as cu_seqlens, but counts up by one, as position ids do: --from position-ids takes those, "
          "--from cu-seqlens confirms that each sequence has one token",
          printable(input.name())));
    return;
  }
  const char* pattern = likely->form == SequenceForm::cu_seqlens
                            ? "begins with 0 and never decreases, as cu_seqlens do"
                        : likely->form == SequenceForm::segment_ids ? "counts up in runs, as segment ids do"
                                                                    : "counts up from 0, as position ids do";
  const std::string otherwise = likely->form == SequenceForm::cu_seqlens
                                    ? "--from cu-seqlens takes those"
                                    : fmt::format("--from {} takes those", word);
  report.warnings.push_back(
      fmt::format("{} is interpreted as lengths, but {}: {}, --from lens confirms lengths",
                  printable(input.name()), pattern, otherwise));
}

// Adds the counts of rows with other padding than on the right; returns why offsets do not fit such a mask.
std::string add_padding(Report& report, const RowPadding& padding) {
  const auto rows = static_cast<std::int64_t>(padding.lens.size());
  if (padding.left_padded > 0) report.add("left_padded_rows", "left-padded", padding.left_padded, Unit::rows);
  if (padding.with_holes > 0) report.add("rows_with_holes", "with holes", padding.with_holes, Unit::rows);
  if (padding.left_padded + padding.with_holes == 0) return "";
  return fmt::format("{} of {} rows are not simply padded on the right",
                     std::max(padding.left_padded, padding.with_holes), rows);
}

std::optional<Array> ids_of(const ArraySource& input) {
  if (!is_integer(input.dtype()) && input.dtype() != DType::boolean) return std::nullopt;
  const Array raw = read_all(input);
  Array ids(DType::int64, input.shape());
  bool fits = true;
  dispatch(raw.dtype(), [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_same_v<T, bool>) {
      std::transform(raw.data(), raw.data() + raw.size(), ids.elements<std::int64_t>().begin(),
                     [](std::byte id) { return id != std::byte{0} ? 1 : 0; });
    } else if constexpr (std::is_integral_v<T>) {
      std::transform(raw.elements<T>().begin(), raw.elements<T>().end(), ids.elements<std::int64_t>().begin(),
                     [&](T id) {
                       fits = fits && std::in_range<std::int64_t>(id);
                       return static_cast<std::int64_t>(id);
                     });
    }
  });
  return fits ? std::optional(std::move(ids)) : std::nullopt;
}

// The number of padding ids, which are negative, or 0 of segment ids by its meaning.
std::int64_t mark_padding(Array& ids, ZeroId::Meaning zero) {
  const std::span<std::int64_t> values = ids.elements<std::int64_t>();
  if (zero == ZeroId::Meaning::padding)
    std::replace(values.begin(), values.end(), std::int64_t{0}, std::int64_t{-1});
  return std::count_if(values.begin(), values.end(), [](std::int64_t id) { return id < 0; });
}

// Whether a row of position ids begins or ends with several zeros, which are likely padding.
bool has_zeros_at_ends(const Array& ids) {
  const auto columns = static_cast<std::size_t>(ids.shape().empty() ? 0 : ids.shape().back());
  const std::span<const std::int64_t> values = ids.elements<std::int64_t>();
  for (std::size_t row = 0; columns > 2 && row < values.size(); row += columns) {
    const auto row_values = values.subspan(row, columns);
    if ((row_values[0] == 0 && row_values[1] == 0) ||
        (row_values[columns - 1] == 0 && row_values[columns - 2] == 0))
      return true;
  }
  return false;
}

// Rows of position ids that begin within a text: the first one, and how many there are.
struct LaterRows {
  std::size_t first = 0, count = 0;
  std::int64_t position = 0;  // of its first token
};
LaterRows rows_within_texts(const Array& ids) {
  LaterRows rows;
  const auto columns = static_cast<std::size_t>(ids.shape().empty() ? 0 : ids.shape().back());
  const std::span<const std::int64_t> values = ids.elements<std::int64_t>();
  for (std::size_t row = 0; columns > 0 && row < values.size(); row += columns) {
    const auto row_values = values.subspan(row, columns);
    const auto first =
        std::find_if(row_values.begin(), row_values.end(), [](std::int64_t id) { return id >= 0; });
    if (first == row_values.end() || *first == 0) continue;
    if (rows.count++ == 0) rows.first = row / columns, rows.position = *first;
  }
  return rows;
}

// Whether all rows are equal, as those of the axes of M-RoPE position ids for text.
bool rows_are_alike(const ArraySource& ids) {
  if (ids.shape().size() != 2 || ids.shape()[0] < 2 || ids.shape()[1] == 0) return false;
  const Array raw = read_all(ids);
  const std::int64_t row = raw.bytes() / raw.shape()[0];
  return std::equal(raw.data(), raw.data() + raw.bytes() - row, raw.data() + row);
}

}  // namespace

void add_sequences_from(OptionSet& set, From& into, const std::vector<From>& choices,
                        const std::string& help) {
  Choices<From> named;
  for (const From from : choices) named.emplace_back(word_of(from), from);
  add_choice(set, "--from", into, std::move(named), "WHAT",
             fmt::format("what it is\n{} Negative ids are padding. {}", help, kZeroIdRule))
      .recorded_by_command();
}

From resolve_from(const ArraySource& input, From from, From one_axis, Job& job, Report& report) {
  const std::size_t rank = input.shape().size();
  if (from == From::automatic && rank != 1 && rank != 2) {
    Error error(Error::Kind::input, fmt::format("{}: shape {} is neither {} (1-D) nor a mask (batch, seq)",
                                                input.name(), to_string(input.shape()), noun_of(one_axis)));
    // Position ids of M-RoPE are (3, batch, tokens), the same sequences three times.
    if (rank == 3 && input.shape()[0] == 3)
      error.hint(fmt::format("of position ids of three axes one is enough: \"{}[0]\" --from position-ids",
                             input.name()));
    else if (rank > 2)
      error.hint(fmt::format("a slice picks two axes, as in \"{}[:,0]\"", input.name()));
    throw error;
  }
  if (from == From::automatic) from = rank == 1 ? one_axis : From::mask;
  job.provenance.record("from", word_of(from));
  report.add("from", "made from", std::string(word_of(from)));
  return from;
}

std::int64_t lengths_bytes(const ArraySource& input, From from) {
  const bool by_token = from == From::segment_ids || from == From::position_ids;
  return sequence_work_bytes(by_token ? ArrayType(input.dtype(), {element_count(input.shape())})
                                      : type_of(input));
}

namespace {

void warn_of_later_rows(const Array& ids, const std::string& name, Report& report) {
  const LaterRows later = rows_within_texts(ids);
  if (later.count == 0) return;
  report.warnings.push_back(
      later.count == 1
          ? fmt::format(
                "{}: row {} begins within a text, at position {}: its tokens here are a sequence of their own",
                printable(name), later.first, later.position)
          : fmt::format(
                "{}: {} rows begin within a text, the first, row {}, at position {}: the tokens here of each "
                "are a sequence of their own",
                printable(name), later.count, later.first, later.position));
}

Lengths computed_lengths(const std::string& reference, const ArraySource& input, From from, From requested,
                         DType counted, Report& report, Job& job) {
  Lengths result;
  if (from == From::mask) {
    const RowPadding padding =
        inspect_padding(input, requested == From::automatic ? MaskIntegers::one_value : MaskIntegers::any);
    result.without_padding = add_padding(report, padding);
    result.lens = counted == DType::int32  // else the mask is not read again
                      ? prepare_lens_from_mask(input)
                      : Array::from<std::int64_t>({std::ssize(padding.lens)}, padding.lens);
    return result;
  }
  const auto values = in_memory(input);  // a stream can be read only once
  if (requested == From::automatic) require_likely(*values, from, report);
  if (from == From::lens) {
    prepare_cu_seqlens_from_lens(*values, DType::int64);  // no length is negative, no sum beyond 63 bits
    result.lens = read_all(*values);
    return result;
  }
  if (from == From::cu_seqlens) {
    result.lens = prepare_lens(*values);
    return result;
  }
  const bool positions = from == From::position_ids;
  const std::int64_t all = element_count(input.shape());
  const Array cu = [&] {
    const auto offsets = [&](const std::shared_ptr<const ArraySource>& ids) {
      return positions ? prepare_cu_seqlens_from_position_ids(ids, counted)
                       : prepare_cu_seqlens_from_segment_ids(ids, counted);
    };
    std::optional<Array> ids = ids_of(*values);
    if (!ids) return offsets(values);
    const ZeroId zero = positions ? ZeroId{} : zero_id_of({reference}, {values}, job);
    if (zero.meaning == ZeroId::Meaning::document) report.add("zero_id", "id 0", "a document: " + zero.why);
    if (const std::int64_t padding = mark_padding(*ids, zero.meaning); padding > 0)
      result.without_padding =
          fmt::format("{} of {} tokens are padding ({})", format_count(padding), format_count(all),
                      positions ? "negative ids" : "ids of 0 and less");
    if (positions && has_zeros_at_ends(*ids))
      report.warnings.push_back(fmt::format(
          "{}: zeros at an end of a row are sequences of one token each; if they are padding, make offsets from "
          "the mask",
          printable(input.name())));
    const auto own_ids = make_source(ids->view(), input.name());
    Array found = offsets(own_ids);
    if (positions) warn_of_later_rows(*ids, input.name(), report);
    return found;
  }();
  if (positions && rows_are_alike(*values))
    report.warnings.push_back(fmt::format(
        "all rows of {} are the same: if they are the axes of one sequence, as in M-RoPE, a slice selects "
        "one of them",
        printable(input.name())));
  result.lens = prepare_lens(*make_source(cu.view(), "cu_seqlens"));
  return result;
}

}  // namespace

const char* const kZeroIdRule =
    "Id 0 is padding, unless negative ids are, or every row (of the whole array, where it is a slice) begins "
    "with 0 and has it nowhere else.";

ZeroId zero_id_of(const std::vector<std::string>& references,
                  const std::vector<std::shared_ptr<const ArraySource>>& ids, Job& job) {
  const ZeroId own_ids = zero_id_of(ids);
  std::vector<std::shared_ptr<const ArraySource>> wholes = ids;
  for (std::size_t n = 0; n < ids.size(); ++n)
    if (const auto whole = job.inputs.open_whole(references[n])) wholes[n] = whole;
  return own_ids.meaning == ZeroId::Meaning::none || wholes == ids ? own_ids : zero_id_of(wholes);
}

std::string zero_id_warning(const ZeroId& zero, const std::string& name) {
  if (zero.meaning == ZeroId::Meaning::document)
    return fmt::format("{}: segment id 0 is interpreted as a document, because {}{}", printable(name),
                       zero.why, zero.why.starts_with("negative") ? "" : "; if it is padding, make it -1");
  if (zero.meaning == ZeroId::Meaning::padding && !zero.why.empty())
    return fmt::format(
        "{}: segment id 0 is interpreted as padding, because {}; if it is a document, add 1 to all ids",
        printable(name), zero.why);
  return "";
}

std::vector<std::shared_ptr<const ArraySource>> segment_ids_of(
    const std::vector<std::string>& references, std::vector<std::shared_ptr<const ArraySource>> ids, Job& job,
    std::vector<std::string>& warnings) {
  for (auto& one : ids) {
    job.budget.require(2 * byte_count(one->shape(), DType::int64), printable(one->name()) + ": ");
    if (!one->random_access()) one = in_memory(*one);
  }
  const ZeroId zero = zero_id_of(references, ids, job);
  if (std::string text = zero_id_warning(zero, ids.front()->name()); !text.empty())
    warnings.push_back(std::move(text));
  if (zero.meaning == ZeroId::Meaning::document)
    for (auto& one : ids) one = ids_from_1(*one);
  return ids;
}

Lengths lengths_of(const std::string& reference, const ArraySource& input, From from, From requested,
                   DType counted, Report& report, Job& job) {
  try {
    return computed_lengths(reference, input, from, requested, counted, report, job);
  } catch (Error& error) {
    const bool positions = error.code() == Error::Code::position_ids;
    if (!positions && error.code() != Error::Code::segment_ids) throw;
    throw Error(error.kind(), error.message())
        .hint(fmt::format("--from {0}-ids takes {0} ids{1}", positions ? "position" : "segment",
                          from == From::mask ? "; --from mask takes all but 0 for tokens" : ""));
  }
}

void warn_of_positions(const ArraySource& segment_ids, Report& report) {
  const std::size_t rank = segment_ids.shape().size();
  if (!segment_ids.random_access() || !is_integer(segment_ids.dtype()) || rank < 1 || rank > 2) return;
  const std::optional<LikelyForm> likely = likely_form(segment_ids);
  if (!likely || !likely->restart) return;
  report.warnings.push_back(fmt::format(
      "{} is interpreted as segment ids, but restarts at 0 at index {}, as position ids do: tokens at equal positions attend "
      "to each other; 'ejk cu-seqlens --from position-ids' makes cu_seqlens of them",
      printable(segment_ids.name()), *likely->restart));
}

void warn_of_offsets(const ArraySource& cu_seqlens, Report& report) {
  if (!cu_seqlens.random_access() || !is_integer(cu_seqlens.dtype()) || cu_seqlens.shape().size() != 1)
    return;
  const std::optional<LikelyForm> likely = likely_form(cu_seqlens);
  if (likely && likely->form == SequenceForm::segment_ids)
    report.warnings.push_back(segments_as_offsets(cu_seqlens));
  if (likely && likely->form == SequenceForm::position_ids && !likely->restart)
    report.warnings.push_back(fmt::format(
        "{} counts up by one, as position ids do: as offsets each sequence has one token; 'ejk cu-seqlens --from "
        "position-ids' makes cu_seqlens of position ids",
        printable(cu_seqlens.name())));
}

void warn_of_tail(const ArraySource& padded, std::int64_t tokens, Report& report) {
  if (!padded.random_access() || padded.shape().size() != 1 || padded.shape()[0] == 0) return;
  const Array all = read_all(padded);
  dispatch(all.dtype(), [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_integral_v<T>) {
      const auto end = static_cast<std::int64_t>(all.elements<T>().back());
      if (end < tokens)
        report.warnings.push_back(fmt::format("{} ends at {}, and there are {} tokens: the rest is padding",
                                              printable(padded.name()), end, tokens));
    }
  });
}

Option& add_groups_from(OptionSet& set, GroupsFrom& into) {
  Option& option =
      add_choice(set, "--from", into, {{"sizes", GroupsFrom::sizes}, {"ends", GroupsFrom::ends}}, "WHAT",
                 "what GROUP_SIZES are\nBy default sizes, with a warning where they look like ends. Ends "
                 "are cumulative sums of sizes, the offs of torch's grouped products.");
  return option.recorded("from", [&option] { return report_value(option.given); });
}

std::shared_ptr<const ArraySource> group_sizes_of(const ArraySource& input, GroupsFrom from,
                                                  std::optional<std::int64_t> m,
                                                  std::optional<std::int64_t> matrices, Report& report) {
  auto given = in_memory(input);  // a stream can be read only once
  const std::string name = printable(input.name());
  const auto warn = [&](const std::string& pattern, const std::string& way) {
    report.warnings.push_back(fmt::format("{} is interpreted as {} of groups, but {}: {}", name,
                                          from == GroupsFrom::ends ? "ends" : "sizes", pattern, way));
  };
  if (from == GroupsFrom::ends) {
    Array sizes = group_sizes_from_ends(*given);
    const bool from_0 = sizes.size() > 1 && sizes.elements<std::int64_t>()[0] == 0;
    if (from_0 && matrices && sizes.size() == *matrices + 1)
      throw Error(
          Error::Kind::input,
          fmt::format(
              "{}: {} ends, the first of them 0, for {} matrices: these are offsets, which begin with "
              "where the first group does",
              input.name(), sizes.size(), *matrices))
          .hint(fmt::format("the ends alone: \"{}[1:]\" --from ends", input.name()));
    if (from_0 && !matrices)
      warn("begins with 0, as offsets do",
           fmt::format("\"{}[1:]\" is the ends alone, unless the first group is empty", input.name()));
    return make_source(std::move(sizes), input.name());
  }
  if (from == GroupsFrom::sizes || !is_integer(given->dtype()) || given->shape().size() != 1) return given;
  const std::optional<LikelyForm> likely = likely_form(*given);
  const std::string confirm = "--from sizes confirms that these are sizes";
  if (likely && likely->restart)
    warn("restarts at 0, as position ids do", confirm);
  else if (likely_group_ends(*given, m.value_or(std::numeric_limits<std::int64_t>::max())) &&
           !(likely && likely->form == SequenceForm::segment_ids))
    warn("never decreases, as ends of groups do", "--from ends takes those, " + confirm);
  else if (likely && likely->form == SequenceForm::segment_ids)
    warn("counts up in runs, as the groups of rows do", "sizes are how often each group comes, " + confirm);
  return given;
}

}  // namespace ejk::app
