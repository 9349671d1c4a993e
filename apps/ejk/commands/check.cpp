// ejk check: validates arrays that kernels read. An action for each kind of array.
//
// tests: tests/cli/check/

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "commands.hpp"
#include "ejk/check.hpp"
#include "ejk/groups.hpp"
#include "ejk/program/checkpoint.hpp"
#include "ejk/program/text.hpp"
#include "integers.hpp"
#include "job.hpp"
#include "masks.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

struct CheckFlags {
  bool all = false;
  bool strict = false;

  CheckOptions options(Job& job) const {
    constexpr std::int64_t kAllFindings = 100'000;  // of one rule, which bounds the memory
    return {all ? kAllFindings : Findings::kFew, job.progress(), job.budget.bytes()};
  }
};

// --all and --strict, and in the footer the rules of the kind; `more` are paragraphs before them.
void declare_check(OptionSet& set, std::string_view kind, CheckFlags& flags, const std::string& more = "") {
  add_flag(set, "--all", flags.all,
           "show all findings, not the first 10 of each rule\nAt most 100,000 of each; all are counted.");
  add_flag(set, "--strict", flags.strict, "a warning makes the exit status 1, as an error does");
  add_format(set);
  std::string rules = "Rules (a finding names the violated one)\n";
  std::size_t width = 14;
  for (const Rule& rule : rules_of(kind)) width = std::max(width, rule.name.size());
  for (const Rule& rule : rules_of(kind))
    rules += fmt::format("  {:{}}  {:7}  {}\n", rule.name, width, name_of(rule.severity), rule.text);
  set.set_footer(fmt::format("{}{}{}\nExit status: 0 without an error, 1 with one.", more,
                             more.empty() ? "" : "\n\n", rules));
}

// What to type where a rule of a kind is broken.
struct Remedy {
  std::string_view kind, rule, text;
};
constexpr Remedy kRemedies[] = {
    {"chunk-indices", "shape", "those of ejk chunk-indices --layout sglang are of Mamba 2, and not checked"},
    {"chunk-indices", "per-row", "'ejk chunk-indices CU --chunk-size N' makes chunks of sequences"},
    {"chunk-indices", "numbering",
     "--convention ejkernel takes rows that do not count empty sequences, --convention document those that do"},
    {"chunk-indices", "offsets", "'ejk chunk-offsets CU --chunk-size N' makes them"},
    {"seq-idx", "boundary",
     "'ejk chunk-indices CU --chunk-size N --layout sglang --field seq_idx' makes ids"},
    {"seq-idx", "type", "'ejk convert IN -o OUT --dtype int32' converts them"},
    {"state-indices", "padding", "--pad-slot N is the slot of padding, -1 by default"},
    {"state-indices", "duplicate", "--read takes slots that are only read, which sequences may share"},
};

// Prints the findings. The check failed if there is an error; with --strict also if there is a warning.
// `remarks`: warnings about the check itself, which are no findings.
Outcome deliver(const Findings& findings, const CheckFlags& flags, Job& job,
                const std::vector<std::string>& remarks = {}) {
  Report report = describe(findings, flags.strict ? Severity::warning : Severity::error);
  report.warnings.insert(report.warnings.end(), remarks.begin(), remarks.end());
  report.cases.front().name = job.command.action();
  for (const auto& [kind, rule, text] : kRemedies)
    if (kind == job.command.action() && findings.count(rule) > 0)
      report.warnings.push_back(fmt::format("{}: {}", rule, text));
  job.deliver(std::move(report), {});
  return findings.errors() > 0 || (flags.strict && findings.warnings() > 0) ? Outcome::failed
                                                                            : Outcome::passed;
}

// A check: its arrays by their roles, plan and report.
class Inspection {
 public:
  Inspection(Job& job, const CheckFlags& flags) : job_(job), flags_(flags) {}

  /// Opens an array; an empty reference is an array that was not given.
  IntegerArray open(const char* role, const std::string& word) {
    if (word.empty()) return {};
    return add(role, job_.open(role, word));
  }
  IntegerArray add(const std::string& role, std::shared_ptr<const ArraySource> source) {
    arrays_.rows.push_back({role, std::string(name_of(source->dtype())), source->shape()});
    return source;
  }
  /// The meaning of id 0 in an array that is open.
  ZeroId zero_id(const std::string& word) {
    return zero_id_of({word}, {job_.inputs.open("ids", word)}, job_);
  }
  /// Group sizes, without warnings about their form: the check reports it.
  IntegerArray open_groups(const std::string& word, GroupsFrom from) {
    IntegerArray array = open("group_sizes", word);
    if (!array || from != GroupsFrom::ends) return array;
    from_ends_ += 3 * 8 * element_count(array->shape());  // as read, as ends, as sizes
    return job_.phase(Phase::read, [&] { return make_source(group_sizes_from_ends(array), array->name()); });
  }

  /// Plans a check with this memory; runs check(arguments..., options) unless it is a dry run.
  template <class Check, class... Arguments>
  Outcome run(std::int64_t bytes, Check check, const Arguments&... arguments) {
    constexpr double kMost = 9e18;
    const double peak = static_cast<double>(kPieceBytes + from_ends_) + static_cast<double>(bytes);
    if (job_.plan(Report().add(arrays_), static_cast<std::int64_t>(std::min(peak, kMost))))
      return Outcome::passed;
    const CheckOptions options = flags_.options(job_);
    return deliver(job_.phase(Phase::compute, [&] { return check(arguments..., options); }), flags_, job_);
  }

 private:
  Job& job_;
  const CheckFlags& flags_;
  Table arrays_{"arrays", "", {{"name", "array"}, {"dtype", "dtype"}, {"shape", "shape"}}, {}};
  std::int64_t from_ends_ = 0;  // bytes of sizes converted from ends
};

// The options of one action; shared with its Run.
template <class Claims>
struct Words {
  CheckFlags flags;
  Claims claims;
  std::string array, second, third;
  GroupsFrom from = GroupsFrom::automatic;
};

void add_cu_seqlens(OptionSet& set, std::string& into) {
  add_reference(set, "--cu-seqlens", into,
                "where the sequences begin, (sequences + 1,)\nThe ids are then of one row of tokens.");
}

Run declare_check_cu_seqlens(OptionSet& set) {
  const auto words = std::make_shared<Words<CuSeqlensClaims>>();
  add_reference(set, "CU_SEQLENS", words->array, "where each sequence begins, and the number of tokens")
      .required();
  add_word(set, "--tokens", words->claims.tokens, at_least(0), "N",
           "tokens of the packed array: the last offset");
  add_word(set, "--max-seqlen", words->claims.max_seqlen, at_least(0), "N",
           "the most tokens that a sequence may have\nA kernel with a smaller limit skips tokens.");
  add_word(set, "--align", words->claims.align, at_least(1), "N", "sequences begin at multiples of N tokens");
  add_reference(set, "--padded", words->second,
                "where they begin with padding behind each, (sequences + 1,)\n"
                "TransformerEngine's cu_seqlens_padded. --tokens, --align and --cp are then of these.");
  add_word(set, "--cp", words->claims.ranks, at_least(1), "N",
           "context-parallel ranks\nEach length is a multiple of 2 N, with padding where --padded is given.");
  declare_check(set, "cu-seqlens", words->flags);
  return [words](Job& job) {
    Inspection inspection(job, words->flags);
    const auto cu = inspection.open("cu_seqlens", words->array);
    words->claims.padded = inspection.open("padded", words->second);
    return inspection.run(2 * check_bytes(), ejk::check_cu_seqlens, cu, words->claims);
  };
}

Run declare_check_segment_ids(OptionSet& set) {
  const auto words = std::make_shared<Words<SegmentIdsClaims>>();
  add_reference(set, "IDS", words->array, "the segment of each token, (tokens,) or (..., tokens)").required();
  add_cu_seqlens(set, words->second);
  const Option& convention = add_convention(
      set, words->claims.convention,
      fmt::format(
          "which ids are padding\n"
          "document: 0 and less. ejkernel: -1 and less, for ids that count from 0. Without the option: {}",
          kZeroIdRule));
  declare_check(set, "segment-ids", words->flags);
  return [words, &convention](Job& job) {
    Inspection inspection(job, words->flags);
    const auto ids = inspection.open("ids", words->array);
    if (convention.given.empty() && is_integer(ids->dtype()) && !job.is_dry_run())
      words->claims.zero = job.phase(Phase::read, [&] { return inspection.zero_id(words->array); });
    words->claims.cu_seqlens = inspection.open("cu_seqlens", words->second);
    return inspection.run(check_segment_ids_bytes(words->claims), ejk::check_segment_ids, ids, words->claims);
  };
}

Run declare_check_position_ids(OptionSet& set) {
  const auto words = std::make_shared<Words<PositionIdsClaims>>();
  add_reference(set, "IDS", words->array,
                "the position of each token, (tokens,) or (..., tokens)\nBelow 0 is padding.")
      .required();
  add_cu_seqlens(set, words->second);
  add_word(set, "--padding", words->claims.padding, at_least(0), "N",
           "the position of padding, as 1 in some tokenizers\n"
           "Only where it does not continue the previous position.")
      .excludes("--cu-seqlens");
  add_reference(set, "--mask", words->third,
                "not 0 where there is a token, of the shape of IDS\n"
                "Positions then count the tokens of a row, cumsum(mask) - 1.")
      .excludes("--cu-seqlens")
      .excludes("--padding");
  declare_check(set, "position-ids", words->flags);
  return [words](Job& job) {
    Inspection inspection(job, words->flags);
    const auto ids = inspection.open("ids", words->array);
    words->claims.cu_seqlens = inspection.open("cu_seqlens", words->second);
    words->claims.mask = inspection.open("mask", words->third);
    return inspection.run(check_position_ids_bytes(words->claims), ejk::check_position_ids, ids,
                          words->claims);
  };
}

Run declare_check_permutation(OptionSet& set) {
  const auto words = std::make_shared<Words<PermutationClaims>>();
  add_reference(set, "ORDER", words->array, "the token at each place, (tokens,), as ejk cp-order writes it")
      .required();
  add_reference(set, "--cu-seqlens", words->second,
                "where sequences of the tokens begin, (sequences + 1,)\n"
                "Of padded ones with their padding, or without it beside --padded.");
  add_reference(
      set, "--padded", words->third,
      "where they begin with padding behind each, (sequences + 1,)\nPadding has a place, and no work.")
      .needs("--cu-seqlens");
  add_word(set, "--cp", words->claims.ranks, at_least(1), "N",
           "context-parallel ranks\nThe report has the orders that it is, and the work of each rank.");
  add_choice(set, "--order", words->claims.order, named_choices<std::optional<CpOrder>>(kCpOrders), "NAME",
             "the order that it is\nptrr and balanced need --mask and --block.")
      .needs("--cp");
  const auto masks = std::make_shared<MaskOptions>();
  add_mask_expressions(
      set, "--mask", masks->expressions,
      "the mask of all tokens, whose pairs are the work of ranks\n"
      "Otherwise those of a causal mask in each sequence. ejk mask-info --help lists the terms.")
      .needs("--cp");
  add_mask_kind(set, masks->polarity);
  add_word(set, "--block", words->claims.block, read_block, "QxK",
           "queries and keys of a block, of orders ptrr and balanced")
      .needs("--mask");
  declare_check(set, "permutation", words->flags);
  return [words, masks](Job& job) {
    const auto& order = words->claims.order;
    if (order && is_by_work(*order) && !words->claims.block)
      throw usage("--order {} requires --mask EXPR and --block QxK", name_of(*order));
    if (order && is_by_sequence(*order) && words->second.empty())
      throw usage("--order {} requires --cu-seqlens", name_of(*order));
    Inspection inspection(job, words->flags);
    const auto tokens = inspection.open("order", words->array);
    words->claims.cu_seqlens = inspection.open("cu_seqlens", words->second);
    words->claims.padded = inspection.open("padded", words->third);
    if (!masks->expressions.empty() && tokens->shape().size() == 1) {
      masks->shape = {tokens->shape()[0], tokens->shape()[0]};
      Masks resolved = job.phase(Phase::read, [&] { return resolve_masks(*masks, job); });
      if (resolved.head_count() != 1) throw usage("--mask is one mask, of all heads");
      words->claims.mask = resolved.heads.front();
    }
    return inspection.run(check_permutation_bytes(tokens, words->claims), ejk::check_permutation, tokens,
                          words->claims);
  };
}

Run declare_check_group_sizes(OptionSet& set) {
  const auto words = std::make_shared<Words<std::optional<std::int64_t>>>();
  add_reference(set, "GROUP_SIZES", words->array, "rows of each group, (groups,)").required();
  add_groups_from(set, words->from);
  add_word(set, "--m", words->claims, at_least(0), "M", "all rows: the sum of the sizes");
  declare_check(set, "group-sizes", words->flags, "The report states how evenly the groups are filled.");
  return [words](Job& job) {
    Inspection inspection(job, words->flags);
    const auto sizes = inspection.open_groups(words->array, words->from);
    return inspection.run(check_bytes(), ejk::check_group_sizes, sizes, words->claims);
  };
}

// Given, or a number that `ejk group-metadata` wrote beside the arrays.
std::optional<std::int64_t> stated(std::optional<std::int64_t> given, const char* name,
                                   const ArrayGroup& group) {
  const auto attribute = group.attributes.find(name);
  return given || attribute == group.attributes.end() ? given : parse_integer(attribute->second);
}

// The arrays of group metadata. A single array is that of its layout, whatever its name.
ArrayGroup open_group_metadata(Job& job, const std::string& word, const GroupMetadataClaims& claims) {
  std::vector<NamedInput> found = job.inputs.arrays_in(word);
  if (found.size() == 1) {
    ArrayGroup group{word, {}, job.inputs.attributes_in(word, found[0].reference.member)};
    const auto layout = group_layout_of(group, claims);
    const auto names = layout ? group_array_names(*layout) : std::vector<std::string>();
    if (names.size() == 1) {
      group.arrays[names[0]] = job.inputs.open(found[0]);
      job.inputs.count_read(found[0].bytes);
      job.provenance.input("group_metadata", word);
      return group;
    }
  }
  std::vector<std::string> names{"group_offsets", "group_ids", "m_tile_ids", "num_tiles"};
  for (const GroupLayout layout : kGroupLayouts)
    for (std::string& name : group_array_names(layout, true))
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
  try {
    ArrayGroup group = job.inputs.open_group("group_metadata", word, names);
    for (const auto& [name, source] : group.arrays) job.inputs.count_read(type_of(*source).bytes());
    return group;
  } catch (Error& error) {
    if (found.size() == 1)
      error.hint("of one array --layout is needed: offsets, deepgemm, deepgemm-psum or deepgemm-masked");
    throw;
  }
}

// The check of another library's arrays. Where nothing states the alignment, a remark has one without an error.
Findings check_layout(GroupLayout layout, const ArrayGroup& group, GroupMetadataClaims claims,
                      std::optional<std::int64_t> alignment, const CheckOptions& options) {
  constexpr std::int64_t kMostAlignment = 1024;
  const bool has_sizes = claims.group_sizes || claims.topk_ids;
  const std::int64_t own = alignment.value_or(default_alignment(layout));
  const auto fitting = [&]() -> std::optional<std::int64_t> {
    if (own < 1 && !has_sizes) return std::nullopt;  // most have no error
    for (claims.align = kMostAlignment; claims.align > (has_sizes ? 0 : 1); claims.align /= 2)
      if (check_group_arrays(layout, group, claims).errors() == 0) return claims.align;
    return std::nullopt;
  };
  if (own < 1) {
    const auto fit = fitting();
    throw usage("layout {} has blocks of rows, whose size is not given", name_of(layout))
        .hint(fit ? fmt::format("with --align {} there is no error", *fit) : "--align N gives it");
  }
  claims.align = own;
  Findings found = check_group_arrays(layout, group, claims, options);
  if (found.errors() > 0 && !alignment)
    if (const auto fit = fitting())
      found.facts().warnings.push_back(
          fmt::format("there is no error with --align {}; the file does not contain its alignment", *fit));
  return found;
}

Run declare_check_group_metadata(OptionSet& set) {
  const auto words = std::make_shared<Words<GroupMetadataClaims>>();
  GroupMetadataClaims& claims = words->claims;
  add_word(
      set, "FILE", words->array, [](const std::string& word) { return word; }, "FILE",
      "the arrays that ejk group-metadata writes, in an HDF5 file or group, .npz, folder or safetensors\nThe layout "
      "is that of the file's attributes, or by the names of the arrays; one array alone may be that of --layout.")
      .required();
  Choices<std::optional<GroupLayout>> layouts;
  for (const GroupLayout layout : kGroupLayouts) layouts.emplace_back(name_of(layout), layout);
  add_choice(set, "--layout", claims.layout, std::move(layouts), "LAYOUT",
             "another library's arrays, where their names do not tell it");
  add_word(set, "--tm", claims.tm, at_least(1), "T",
           "rows of a tile\nAn HDF5 file of ejk contains it. If it is unknown, tiles are not compared with "
           "the rows of their groups.");
  add_word(set, "--m", claims.m, at_least(0), "M", "all rows");
  add_reference(set, "--group-sizes", words->second,
                "rows of each group, which the offsets must be those of");
  add_groups_from(set, words->from).needs("--group-sizes");
  add_reference(set, "--topk-ids", words->third,
                "instead the experts of each token, (tokens, k)\nEach entry but -1 is a row of its expert.")
      .needs("--experts")
      .excludes("--group-sizes");
  add_word(set, "--experts", claims.experts, at_least(0), "N", "how many experts there are")
      .needs("--topk-ids");
  const auto align = std::make_shared<std::optional<std::int64_t>>();
  add_word(
      set, "--align", *align, at_least(1), "N",
      "groups begin at multiples of N rows\nSizes that are given are rounded up to it. By default that of the layout "
      "(ejk group-metadata); of vllm and sglang the rows of a block are needed.");
  add_word(set, "--start-group", claims.start_group, at_least(0), "S",
           "the first group that is computed, 0 by default");
  add_word(set, "--num-nonzero-groups", claims.num_nonzero_groups, at_least(0), "N",
           "how many groups are computed, by default all of the rest");
  declare_check(set, "group-metadata", words->flags,
                "Only the first num_tiles entries of labels are checked; others are unused.");
  return [words, align](Job& job) {
    Inspection inspection(job, words->flags);
    const ArrayGroup group =
        job.phase(Phase::read, [&] { return open_group_metadata(job, words->array, words->claims); });
    const std::optional<std::int64_t> alignment = stated(*align, "align", group);
    words->claims.align = std::max<std::int64_t>(alignment.value_or(default_alignment(GroupLayout::deepgemm)),
                                                 1);  // of layouts that values distinguish
    const auto layout = [&] {
      try {
        return group_layout_of(group, words->claims);
      } catch (Error& error) {
        error.hint("--layout LAYOUT selects one");
        throw;
      }
    }();
    words->claims.align = align->value_or(1);
    if (layout) words->claims.m = stated(words->claims.m, "m", group);
    const GroupMetadataArrays arrays =
        layout ? GroupMetadataArrays{} : group_metadata_in(group, words->claims);
    for (const auto& [name, source] : group.arrays) inspection.add(name, source);
    words->claims.group_sizes = inspection.open_groups(words->second, words->from);
    words->claims.topk_ids = inspection.open("topk_ids", words->third);
    if (layout)
      return inspection.run(check_group_arrays_bytes(group, words->claims), check_layout, *layout, group,
                            words->claims, alignment);
    return inspection.run(check_group_metadata_bytes(arrays, words->claims), ejk::check_group_metadata,
                          arrays, words->claims);
  };
}

Run declare_check_topk_ids(OptionSet& set) {
  const auto words = std::make_shared<Words<std::optional<std::int64_t>>>();
  add_reference(set, "IDS", words->array, "the experts of each token, (tokens, k); -1 is none").required();
  add_word(set, "--experts", words->claims, at_least(0), "N", "how many experts there are");
  declare_check(set, "topk-ids", words->flags,
                "With --experts the report states how evenly experts are chosen.");
  return [words](Job& job) {
    Inspection inspection(job, words->flags);
    const auto ids = inspection.open("topk_ids", words->array);
    return inspection.run(check_topk_ids_bytes(ids, words->claims), ejk::check_topk_ids, ids, words->claims);
  };
}

Run declare_check_indices(OptionSet& set) {
  const auto words = std::make_shared<Words<IndicesClaims>>();
  add_reference(set, "IDS", words->array, "the keys of each query, (..., queries, n); -1 is none").required();
  add_word(set, "--keys", words->claims.keys, at_least(0), "K", "how many keys there are");
  add_flag(set, "--causal", words->claims.causal, "query i sees key j where j <= i, or i + OFFSET");
  add_word(
      set, "--offset", words->claims.offset,
      [](const std::string& word) { return read_integer(word, INT64_MIN); }, "OFFSET",
      "query 0 is aligned with key OFFSET, 0 by default\nWhere the last query is the last key: keys - queries.")
      .needs("--causal");
  declare_check(set, "indices", words->flags);
  return [words](Job& job) {
    Inspection inspection(job, words->flags);
    const auto indices = inspection.open("indices", words->array);
    return inspection.run(check_indices_bytes(indices), ejk::check_indices, indices, words->claims);
  };
}

Run declare_check_block_table(OptionSet& set) {
  const auto words = std::make_shared<Words<BlockTableClaims>>();
  add_reference(
      set, "TABLE", words->array,
      "the pages of each sequence, (batch, pages)\nEntries after those of a sequence are not checked.")
      .required();
  add_reference(set, "SEQ_LENS", words->second, "tokens of each sequence, (batch,)").required();
  add_word(set, "--page-size", words->claims.page_size, at_least(1), "P", "tokens of a page").required();
  add_word(set, "--pages", words->claims.pages, at_least(0), "N", "how many pages the cache has");
  add_word(set, "--null-page", words->claims.null_page, at_least(0), "N",
           "an empty page that may precede others, for pages before a sliding window");
  declare_check(set, "block-table", words->flags);
  return [words](Job& job) {
    Inspection inspection(job, words->flags);
    const auto table = inspection.open("block_table", words->array);
    const auto lengths = inspection.open("seq_lens", words->second);
    return inspection.run(check_block_table_bytes(table, lengths, words->claims), ejk::check_block_table,
                          table, lengths, words->claims);
  };
}

Run declare_check_chunk_indices(OptionSet& set) {
  const auto words = std::make_shared<Words<ChunkIndicesClaims>>();
  add_reference(
      set, "INDICES", words->array,
      "[sequence, chunk in it] of each chunk, (chunks, 2)\n"
      "As flash-linear-attention reads them, and ejk chunk-indices writes them. Rows with a -1 behind "
      "them are padding.")
      .required();
  add_reference(set, "--cu-seqlens", words->second, "where the sequences begin, (sequences + 1,)").required();
  add_word(set, "--chunk-size", words->claims.chunk_size, at_least(1), "N",
           "tokens of a chunk; the last one of a sequence may be shorter")
      .required();
  add_reference(
      set, "--chunk-offsets", words->third,
      "chunks before each sequence, and of all, (sequences + 1,)\nAs ejk chunk-offsets writes them.");
  add_convention(
      set, words->claims.convention,
      "ids around empty sequences\ndocument, fla: the index of the sequence. ejkernel: empty sequences are not "
      "counted.",
      {Convention::document, Convention::ejkernel, Convention::fla});
  declare_check(set, "chunk-indices", words->flags);
  return [words](Job& job) {
    Inspection inspection(job, words->flags);
    const auto indices = inspection.open("chunk_indices", words->array);
    words->claims.cu_seqlens = inspection.open("cu_seqlens", words->second);
    words->claims.chunk_offsets = inspection.open("chunk_offsets", words->third);
    return inspection.run(check_chunk_indices_bytes(indices, words->claims), ejk::check_chunk_indices,
                          indices, words->claims);
  };
}

Run declare_check_seq_idx(OptionSet& set) {
  const auto words = std::make_shared<Words<IntegerArray>>();
  add_reference(
      set, "SEQ_IDX", words->array,
      "the sequence of each token, (tokens,) or (1, tokens)\n"
      "As causal_conv1d and the kernels of Mamba 2 read it; -1 behind the sequences. An empty sequence "
      "may have an id that no token has.")
      .required();
  add_reference(set, "--cu-seqlens", words->second, "where the sequences begin, (sequences + 1,)").required();
  declare_check(set, "seq-idx", words->flags);
  return [words](Job& job) {
    Inspection inspection(job, words->flags);
    const auto ids = inspection.open("seq_idx", words->array);
    const auto cu = inspection.open("cu_seqlens", words->second);
    return inspection.run(check_seq_idx_bytes(cu), ejk::check_seq_idx, ids, cu);
  };
}

Run declare_check_state_indices(OptionSet& set) {
  const auto words = std::make_shared<Words<StateIndicesClaims>>();
  StateIndicesClaims& claims = words->claims;
  const auto initial = std::make_shared<std::string>();
  add_reference(set, "SLOTS", words->array, "the slot of each sequence's state in the pool, (sequences,)")
      .required();
  add_word(set, "--slots", claims.slots, at_least(0), "S", "how many slots the pool has").required();
  add_word(
      set, "--pad-slot", claims.pad_slot,
      [](const std::string& word) { return read_integer(word, INT64_MIN); }, "N",
      "the slot of a sequence that is padding, -1 by default\nNewer vLLM has 0, its null page.");
  add_flag(set, "--read", claims.read, "the slots are only read: sequences may share one");
  add_reference(set, "--computed", words->third, "tokens of each sequence before the new ones, (sequences,)");
  add_reference(set, "--block-table", words->second,
                "the pages of each sequence, (sequences, pages), whose slots they are\n"
                "The state of a sequence is in the page of its last computed token; page 0 is null.")
      .needs("--computed")
      .needs("--block-size");
  add_word(set, "--block-size", claims.page_size, at_least(1), "B", "tokens of a page")
      .needs("--block-table");
  add_reference(set, "--has-initial-state", *initial,
                "not 0 where a sequence begins from the state in its slot, (sequences,)")
      .needs("--computed");
  declare_check(set, "state-indices", words->flags);
  return [words, initial](Job& job) {
    if (!words->third.empty() && words->second.empty() && initial->empty())
      throw usage("--computed requires --block-table or --has-initial-state");
    Inspection inspection(job, words->flags);
    const auto slots = inspection.open("state_indices", words->array);
    words->claims.block_table = inspection.open("block_table", words->second);
    words->claims.computed = inspection.open("computed", words->third);
    words->claims.has_initial_state = inspection.open("has_initial_state", *initial);
    return inspection.run(check_state_indices_bytes(slots, words->claims), ejk::check_state_indices, slots,
                          words->claims);
  };
}

Run declare_check_slot_mapping(OptionSet& set) {
  const auto words = std::make_shared<Words<SlotMappingClaims>>();
  const auto positions = std::make_shared<std::string>(), cu_seqlens = std::make_shared<std::string>();
  add_reference(set, "SLOTS", words->array,
                "the slot that each new token is written to, (tokens,)\n"
                "page x size + offset in it; -1 is not written. Entries behind the tokens are -1.")
      .required();
  add_reference(set, "TABLE", words->second, "the pages of each sequence, (batch, pages)").required();
  add_reference(set, "SEQ_LENS", words->third,
                "length of each sequence, (batch,); its new tokens are the last ones");
  add_word(set, "--page-size", words->claims.page_size, at_least(1), "P", "tokens of a page").required();
  add_reference(set, "--positions", *positions,
                "instead of SEQ_LENS the position of each new token in its sequence, (tokens,)");
  add_reference(set, "--cu-seqlens", *cu_seqlens,
                "where the new tokens of each sequence begin, (batch + 1,)\n"
                "vLLM's query_start_loc. By default each sequence has one.");
  declare_check(set, "slot-mapping", words->flags);
  return [words, positions, cu_seqlens](Job& job) {
    if (words->third.empty() == positions->empty())
      throw usage(positions->empty() ? "SEQ_LENS or --positions is needed"
                                     : "SEQ_LENS and --positions both give the positions");
    Inspection inspection(job, words->flags);
    const auto slots = inspection.open("slots", words->array);
    const auto table = inspection.open("block_table", words->second);
    words->claims.seq_lens = inspection.open("seq_lens", words->third);
    words->claims.positions = inspection.open("positions", *positions);
    words->claims.cu_seqlens = inspection.open("cu_seqlens", *cu_seqlens);
    return inspection.run(check_slot_mapping_bytes(slots, table, words->claims), ejk::check_slot_mapping,
                          slots, table, words->claims);
  };
}

struct MaskWords {
  CheckFlags flags;
  MaskOptions masks;
  std::vector<MaskExpression> within, covers, equals;
  BlockShape block{128, 128};
};

struct MaskInfoWords {
  CheckFlags flags;
  std::string file;
  MaskOptions masks;
  StoredSettings settings;
  KernelOptions kernel;
  bool dkv = false;
};

// Assumptions about masks are findings: they count with --strict.
void add_assumptions(const std::vector<std::string>& warnings, Findings& found) {
  for (std::size_t n = 0; n < warnings.size(); ++n)
    found.add("assumed", static_cast<std::int64_t>(n) + 1, [&] {
      return Finding{"mask", {}, {}, warnings[n]};
    });
}

Outcome run(const MaskWords& words, Job& job) {
  Masks masks = job.phase(Phase::read, [&] { return resolve_masks(words.masks, job); });
  MaskClaims claims;
  claims.block = words.block;
  claims.polarity = words.masks.polarity;
  if (!words.masks.array.empty()) claims.stored = job.open("mask", words.masks.array);
  job.phase(Phase::read, [&] {
    for (const auto& [option, expressions, into] : {std::tuple{"--within", &words.within, &claims.within},
                                                    std::tuple{"--covers", &words.covers, &claims.covers},
                                                    std::tuple{"--equals", &words.equals, &claims.equals}})
      *into = resolve_expressions(option, *expressions, words.masks.polarity, masks, job);
  });
  Report plan;
  plan.warnings = masks.warnings();
  const std::int64_t peak = ejk::check_mask_bytes(masks.q_length, masks.kv_length, words.block);
  if (job.plan(std::move(plan), peak)) return Outcome::passed;
  const CheckOptions options = words.flags.options(job);
  Findings found = job.phase(Phase::compute, [&] { return ejk::check_mask(masks.heads, claims, options); });
  if (claims.stored) masks.padding.clear();  // a rule of its own
  add_assumptions(masks.assumptions(), found);
  return deliver(found, words.flags, job, masks.idle);
}

// The shape in the file, empty if it has none. Nothing if it is no MaskInfo, which is a finding.
std::optional<Shape> shape_in(const ArrayGroup& group, const StoredSettings& settings) {
  try {
    const MaskShape shape = StoredMaskInfo(group, settings).shape();
    return shape.q_length == 0 ? Shape() : Shape{shape.heads, shape.q_length, shape.kv_length};
  } catch (const Error& error) {
    if (error.kind() == Error::Kind::usage) throw;
    return std::nullopt;
  }
}

Outcome run(const MaskInfoWords& words, Job& job) {
  MaskInfoClaims claims;
  claims.settings = words.settings;
  claims.kernel = words.kernel.kernel();
  if (words.dkv) claims.settings.direction = Direction::dkv;
  MaskOptions masks = words.masks;
  if (!masks.shape.empty()) {
    claims.settings.shape = masks.shape;
    if (masks.shape.size() == 2) claims.settings.shape->insert(claims.settings.shape->begin(), 1);
  }
  const ArrayGroup group = group_opener(job)(words.file, StoredMaskInfo::array_names());
  Report plan;
  std::vector<std::string> assumptions, idle;
  const std::optional<Shape> shape = shape_in(group, claims.settings);
  if (shape && !shape->empty()) claims.settings.shape = shape;
  if (shape && (!masks.array.empty() || !masks.expressions.empty())) {
    if (masks.shape.empty() && masks.array.empty()) masks.shape = *shape;
    Masks given = job.phase(Phase::read, [&] { return resolve_masks(masks, job); });
    claims.masks = std::move(given.heads);
    plan.warnings = given.warnings();
    assumptions = given.assumptions(), idle = given.idle;
  }
  if (job.wants_picture()) claims.pictures = kMostPictures;
  if (job.plan(std::move(plan), ejk::check_mask_info_bytes(group, claims))) return Outcome::passed;
  const CheckOptions options = words.flags.options(job);
  Findings found = job.phase(Phase::compute, [&] { return ejk::check_mask_info(group, claims, options); });
  add_assumptions(assumptions, found);
  return deliver(found, words.flags, job, idle);
}

Run declare_check_mask(OptionSet& set) {
  const auto words = std::make_shared<MaskWords>();
  declare_masks(set, words->masks);
  add_mask_expressions(set, "--within", words->within,
                       "the mask has no pair that this one hides\nOne for all heads, or one each.");
  add_mask_expressions(set, "--covers", words->covers, "the mask has each pair of this one");
  add_mask_expressions(set, "--equals", words->equals, "the mask is this one");
  add_word(set, "--block", words->block, read_block, "QxK",
           "queries and keys of a block, 128x128 by default\nPairs that differ are counted by block.");
  declare_check(set, "mask", words->flags);
  return [words](Job& job) { return run(*words, job); };
}

Run declare_check_mask_info(OptionSet& set) {
  const auto words = std::make_shared<MaskInfoWords>();
  add_word(
      set, "FILE", words->file, [](const std::string& word) { return word; }, "FILE",
      "block metadata in any layout of ejk mask-info, in an HDF5 file or group, .npz, safetensors or folder\n"
      "Or FlashInfer's custom_mask or packed_custom_mask with qo_indptr and kv_indptr.")
      .required();
  declare_masks(set, words->masks);
  add_word(set, "--block", words->settings.block, read_block, "QxK",
           "queries and keys of a block\nFor an .npz or a folder without partial blocks.");
  add_flag(set, "--dkv", words->dkv,
           "it is for the backward pass of keys and values\nHDF5 files contain it.");
  add_word(set, "--head-shards", words->settings.head_shards, at_least(1), "N",
           "devices that share the heads\nHDF5 files contain it; 1 otherwise.");
  add_word(set, "--q-seq-shards", words->settings.q_seq_shards, at_least(1), "N",
           "devices that share the queries\nHDF5 files contain it, and those of tokamax; 1 otherwise.");
  add_word(set, "--kv-seq-shards", words->settings.kv_seq_shards, at_least(1), "N",
           "devices that share the keys, of tokamax\nFiles of mask-info contain it; 1 otherwise.");
  declare_kernel(set, words->kernel);
  declare_picture(set);
  declare_check(set, "mask-info", words->flags,
                "The arrays are walked as the kernel of their library walks them.\n"
                "With a mask, a finding names the wrong index and its expected value.");
  return [words](Job& job) {
    try {
      return run(*words, job);
    } catch (Error& error) {
      if (error.code() == Error::Code::unknown_block) error.hint("--block QxK says it");
      throw;
    }
  };
}

struct CheckpointWords {
  CheckFlags flags;
  std::string path, config;
  CheckpointClaims claims;
};

// Files of a checkpoint, in order, with the index beside them, "" where there is none; and its folder, "" of a file.
struct CheckpointPaths {
  std::vector<std::string> files;
  std::string index, folder;
};

CheckpointPaths paths_of(const std::string& path) {
  const std::string folder = model_folder(path);
  if (folder.empty()) return {{path}, "", ""};
  CheckpointPaths paths{model_files_in_folder(folder), "", folder};
  if (paths.files.empty()) paths.files = {folder};  // of .npy files
  const bool is_index = parse_reference(path).container == ArrayReference::Container::model;
  paths.index = is_index ? path : index_in_folder(folder);
  return paths;
}

Outcome run(const CheckpointWords& words, Job& job) {
  const CheckpointPaths paths = paths_of(words.path);
  std::string config = words.config;
  if (config.empty() && !paths.folder.empty()) config = config_in_folder(paths.folder);
  Checkpoint checkpoint;
  std::int64_t left_out = 0, bytes = 0;
  std::string reason;
  std::vector<std::string> remarks;
  job.phase(Phase::read, [&] {
    job.provenance.input("checkpoint", words.path);
    for (const std::string& path : paths.files) {
      const ArrayFile file(path,
                           {job.inputs.allow_external(), job.budget.bytes(), nullptr, UntypedBytes::read});
      const std::string name = std::filesystem::path(path).filename();
      checkpoint.files.push_back({name, file.names()});
      for (std::string& line : file.remarks()) remarks.push_back(std::move(line));
      for (const std::string& tensor : checkpoint.files.back().tensors) try {
          const auto source = file.array(tensor);
          if (checkpoint.tensors.emplace(tensor, source).second) bytes += type_of(*source).bytes();
        } catch (const Error& error) {
          if (!error.is_of_unsupported_type()) throw;
          if (left_out++ == 0) reason = error.what();
        }
    }
    if (checkpoint.tensors.empty() && left_out == 0)
      throw Error(Error::Kind::input, printable(words.path) + ": there is no tensor in it");
    if (!paths.index.empty()) checkpoint.index = job.inputs.read_json("index", paths.index);
    if (!config.empty()) checkpoint.config = job.inputs.read_json("config", config);
  });
  Report plan;
  plan.add("tensors", "tensors", std::ssize(checkpoint.tensors), Unit::count)
      .add("size", "size", bytes, Unit::bytes);
  if (job.plan(std::move(plan), check_checkpoint_bytes(checkpoint))) return Outcome::passed;
  const CheckOptions options = words.flags.options(job);
  Findings found =
      job.phase(Phase::compute, [&] { return ejk::check_checkpoint(checkpoint, words.claims, options); });
  std::move(remarks.begin(), remarks.end(), std::back_inserter(found.facts().warnings));
  if (left_out > 0)
    found.facts().warnings.push_back(
        fmt::format("{} tensor{} left out: {}", left_out, left_out == 1 ? "" : "s", reason));
  return deliver(found, words.flags, job);
}

std::vector<std::string> read_rules(const std::string& word) {
  std::vector<std::string> known, rules = split_references(word);
  for (const Rule& rule : rules_of("checkpoint")) known.emplace_back(rule.name);
  for (const std::string& rule : rules) read_choice(rule, known);
  return rules;
}

Run declare_check_checkpoint(OptionSet& set) {
  const auto words = std::make_shared<CheckpointWords>();
  const auto as_is = [](const std::string& word) { return word; };
  add_word(set, "CHECKPOINT", words->path, as_is, "CHECKPOINT",
           "a file of tensors, a folder of them, or an index (.safetensors.index.json, .bin.index.json)")
      .required();
  add_word(set, "--config", words->config, as_is, "FILE",
           "the model's config.json or hf_quant_config.json\nBy default that of the folder.");
  add_flag(set, "--codes", words->claims.codes,
           "read the values as well\nWithout it only headers and scales are read, and the values where a "
           "scale is 0.");
  add_word(set, "--rules", words->claims.rules, read_rules, "A,B", "apply these rules alone");
  declare_check(set, "checkpoint", words->flags,
                "Quantised tensors are found by the names and types of their parts: weight,\n"
                "weight_packed and ..._blocks beside weight_scale, weight_scale_inv, scale,\n"
                "weight_scale_2, weight_global_scale, input_scale and ..._scales, as ModelOpt,\n"
                "compressed-tensors, DeepSeek and gpt-oss write them. Findings of one kind in\n"
                "many layers and experts are one line, with # for the numbers in their names;\n"
                "--all lists each.");
  return [words](Job& job) { return run(*words, job); };
}

const Command kActions[] = {
    {.name = "check mask",
     .summary = "a mask, by itself or against others",
     .example = "ejk check mask mask.npy --within causal",
     .declare = declare_check_mask},
    {.name = "check mask-info",
     .summary = "a block-sparse kernel's arrays, against the mask that they store",
     .example = "ejk check mask-info info.h5 --mask 'causal & documents(cu.npy)'",
     .declare = declare_check_mask_info},
    {.name = "check cu-seqlens",
     .summary = "offsets of packed sequences",
     .example = "ejk check cu-seqlens cu_seqlens.npy --tokens 16384",
     .declare = declare_check_cu_seqlens},
    {.name = "check segment-ids",
     .summary = "the segment of each token",
     .example = "ejk check segment-ids segment_ids.npy",
     .declare = declare_check_segment_ids},
    {.name = "check chunk-indices",
     .summary = "the sequence of each chunk, and its number in it",
     .example = "ejk check chunk-indices chunk_indices.npy --cu-seqlens cu.npy --chunk-size 64",
     .declare = declare_check_chunk_indices},
    {.name = "check seq-idx",
     .summary = "the sequence of each token, as kernels of Mamba 2 read it",
     .example = "ejk check seq-idx seq_idx.npy --cu-seqlens cu.npy",
     .declare = declare_check_seq_idx},
    {.name = "check state-indices",
     .summary = "the slots that states of sequences are read from and written to",
     .example = "ejk check state-indices slots.npy --slots 128",
     .declare = declare_check_state_indices},
    {.name = "check position-ids",
     .summary = "each token's position in its sequence",
     .example = "ejk check position-ids position_ids.npy --cu-seqlens cu_seqlens.npy",
     .declare = declare_check_position_ids},
    {.name = "check permutation",
     .summary = "an order of tokens among context-parallel ranks",
     .example = "ejk check permutation perm.npy --cu-seqlens cu.npy --cp 4 --order per-document",
     .declare = declare_check_permutation},
    {.name = "check group-sizes",
     .summary = "rows of each group, and how even they are",
     .example = "ejk check group-sizes group_sizes.npy --m 16384",
     .declare = declare_check_group_sizes},
    {.name = "check group-metadata",
     .summary = "the steps of a grouped kernel",
     .example = "ejk check group-metadata groups.h5 --tm 128 --group-sizes group_sizes.npy",
     .declare = declare_check_group_metadata},
    {.name = "check topk-ids",
     .summary = "the experts of each token, and their load",
     .example = "ejk check topk-ids topk_ids.npy --experts 64",
     .declare = declare_check_topk_ids},
    {.name = "check indices",
     .summary = "the keys that each query has chosen",
     .example = "ejk check indices indices.npy --keys 4096 --causal",
     .declare = declare_check_indices},
    {.name = "check block-table",
     .summary = "the pages of each sequence of a paged cache",
     .example = "ejk check block-table block_table.npy seq_lens.npy --page-size 16 --pages 1024",
     .declare = declare_check_block_table},
    {.name = "check slot-mapping",
     .summary = "the slots of a paged cache that new tokens are written to",
     .example = "ejk check slot-mapping slots.npy block_table.npy seq_lens.npy --page-size 16",
     .declare = declare_check_slot_mapping},
    {.name = "check checkpoint",
     .summary = "the scales of a quantised model",
     .example = "ejk check checkpoint model/ --codes",
     .declare = declare_check_checkpoint},
};

std::vector<const Command*> check_actions() {
  std::vector<const Command*> all;
  for (const Command& action : kActions) all.push_back(&action);
  return all;
}

}  // namespace

extern const Command check_command{
    .name = "check",
    .group = "Arrays",
    .summary = "whether arrays that kernels read are what they claim to be",
    .example = "ejk check cu-seqlens cu_seqlens.npy --tokens 16384",
    .keys = R"(
verdict | string | ok, or how many errors; and how many warnings | done
errors, warnings | integer | findings of rules of either severity | done
findings | table | the first 10 findings of each rule; with --all 100,000 | done
  rule | string | the rule that is broken
  severity | string | error or warning
  array | string | the array that it is in
  index | shape | of the element; empty: of the array as a whole
  value | number or null | the element
  message | string | what is wrong
counts | table | the rules that are broken | done
  rule | string | the rule
  severity | string | error or warning
  count | integer | its findings, all of them
  text | string | the rule's condition
sequences | integer | sequences | cu-seqlens, position-ids, chunk-indices, seq-idx, state-indices, block-table and slot-mapping
tokens | integer | tokens, without padding | cu-seqlens, segment-ids, position-ids, seq-idx, permutation, topk-ids and slot-mapping
chunks | integer | chunks of all sequences | chunk-indices
slots | integer | slots of the pool | state-indices
written | integer | slots that are written | slot-mapping
empty_sequences | integer | sequences without a token | cu-seqlens
longest | integer | tokens of the longest sequence | cu-seqlens
orders | string | the orders that it is, or none | permutation with --cp
ranks_count | integer | ranks | permutation with --cp, of each token once
imbalance | number or null | causal pairs of the heaviest rank / the mean | permutation with --cp, of each token once
ranks | table | work of each rank | permutation with --cp, of each token once
  rank | integer | the rank
  tokens | integer | its tokens
  pairs | integer | causal pairs of a query and a key of its sequence
  keys_received | integer | keys of these that are on other ranks
padding | integer | elements or rows that are padding | segment-ids, position-ids and state-indices, and chunk-indices with such rows
segments | integer | segments | segment-ids
layout | string | another library's arrays | group-metadata with other arrays than megablox'
groups | integer | groups | group-sizes and group-metadata
experts | integer | experts | topk-ids with --experts
rows | integer | rows of all groups or experts | group-sizes, group-metadata, and topk-ids with --experts
empty | integer | groups or experts without a row | group-sizes, and topk-ids with --experts
empty_share | share or null | of all | group-sizes, and topk-ids with --experts
largest | integer or null | rows of the largest | group-sizes, and topk-ids with --experts
largest_index | integer or null | which that is | group-sizes, and topk-ids with --experts
max_over_mean | number or null | largest / mean | group-sizes, and topk-ids with --experts
load | list | how often each expert is selected | topk-ids with --experts, of at most 65,536
tm | integer or null | rows of a tile, where that is known | group-metadata
num_tiles | integer | steps of the kernel | group-metadata
experts_per_token | integer | entries of a token | topk-ids
choices | integer | entries that are experts | topk-ids
unrouted_tokens | integer | tokens without an expert | topk-ids
queries | integer | queries | indices and mask
heads, keys | integer | of the mask | mask
block | shape | queries and keys of a block | mask and mask-info
pairs | integer | allowed pairs of a query and a key, of all heads | mask
within_outside_blocks | integer | blocks with pairs that are outside | mask with --within
covers_missing_blocks | integer | blocks of which pairs are missing | mask with --covers
equals_outside_blocks | integer | blocks with pairs that are too many | mask with --equals
equals_missing_blocks | integer | blocks of which pairs are missing | mask with --equals
direction | string | forward or dkv | mask-info
kind | string | static or dynamic | mask-info
shape | shape | heads, queries and keys | mask-info
grid | shape | shape of the index arrays | mask-info
patterns | integer or null | distinct partial blocks; null where every block is stored | mask-info
visited_blocks | integer | blocks that a kernel visits, of all heads | mask-info
wrong_blocks | integer | blocks that differ from it | mask-info with a mask
keys_per_query | integer | entries of a query | indices
keys_used | integer | entries that are keys | indices
tensors | integer | of the checkpoint | checkpoint, also in a plan
size_bytes | integer | their bytes | checkpoint, in a plan
files | integer | of the checkpoint | checkpoint
schemes | table | quantised tensors by scheme, and the others | checkpoint
  scheme | string | fp8, fp8-blocks, mxfp8, nvfp4, mxfp4, mxfp6, gptoss; not checked int8, pack-quantized, gptq, awq, bitsandbytes, other; not quantised
  tensors | integer | how many
  parameters | integer or null | numbers that they are; null where the packing is not known
  values_bytes, scales_bytes | integer | bytes of values and of all scales
pages_needed, pages_used | integer | entries that sequences need; different pages among them | block-table
arrays | table | the arrays that are read | plan, but not of checkpoint
  name | string | what it is: cu_seqlens
  dtype | string | its element type
  shape | shape | its shape
)",
    .actions = check_actions(),
};

}  // namespace ejk::app
