// ejk check: whether arrays for kernels satisfy their rules. An action for each kind of array.
// tests: tests/cli/check/
#include "ejk/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "checks.hpp"
#include "commands.hpp"
#include "ejk/groups.hpp"
#include "integers.hpp"
#include "job.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

// A check: its arrays by their roles, plan and report.
class Inspection {
 public:
  Inspection(Job& job, const CheckFlags& flags) : job_(job), flags_(flags) {}

  /// An empty word: no array.
  IntegerArray open(const char* role, const std::string& word) {
    if (word.empty()) return {};
    return add(role, job_.open(role, word));
  }
  IntegerArray add(const std::string& role, std::shared_ptr<const ArraySource> source) {
    arrays_.rows.push_back({role, std::string(name_of(source->dtype())), source->shape()});
    return source;
  }
  /// The sizes of groups, unchecked.
  IntegerArray open_groups(const std::string& word, GroupsFrom from) {
    IntegerArray array = open("group_sizes", word);
    if (!array || from != GroupsFrom::ends) return array;
    from_ends_ += 3 * 8 * element_count(array->shape());  // as read, as ends, as sizes
    return job_.phase(Phase::read, [&] { return make_source(group_sizes_from_ends(array), array->name()); });
  }

  /// Plans a check with this memory, and runs it unless it is a dry run.
  Outcome run(std::int64_t bytes, const std::function<Findings(const CheckOptions&)>& check) {
    constexpr double kMost = 9e18;
    const double peak = static_cast<double>(kPieceBytes + from_ends_) + static_cast<double>(bytes);
    if (job_.plan(Report().add(arrays_), static_cast<std::int64_t>(std::min(peak, kMost))))
      return Outcome::passed;
    const CheckOptions options = flags_.options(job_);
    return deliver(job_.phase(Phase::compute, [&] { return check(options); }), flags_, job_);
  }

 private:
  Job& job_;
  const CheckFlags& flags_;
  Table arrays_{"arrays", "", {{"name", "array"}, {"dtype", "dtype"}, {"shape", "shape"}}, {}};
  std::int64_t from_ends_ = 0;  // bytes of sizes converted from ends
};

// Options of an action, alive as long as its Run.
template <class Claims>
struct Words {
  CheckFlags flags;
  Claims claims;
  std::string array, second, third;
  GroupsFrom from = GroupsFrom::automatic;
};

void add_cu_seqlens(OptionSet& set, std::string& into) {
  add_reference(
      set, "--cu-seqlens", into,
      "where the sequences begin, (sequences + 1,)\nThe ids are then of one row of tokens. It must be right "
      "itself: ejk check cu-seqlens.");
}

}  // namespace

Run check_cu_seqlens(OptionSet& set) {
  const auto words = std::make_shared<Words<CuSeqlensClaims>>();
  add_reference(set, "CU_SEQLENS", words->array, "where each sequence begins, and the number of tokens")
      .required();
  add_word(set, "--tokens", words->claims.tokens, at_least(0), "N",
           "tokens of the packed array: the last offset");
  add_word(set, "--max-seqlen", words->claims.max_seqlen, at_least(0), "N",
           "the most tokens that a sequence may have\nA kernel that is told less leaves tokens out.");
  add_word(set, "--align", words->claims.align, at_least(1), "N", "sequences begin at multiples of N tokens");
  declare_check(set, "cu-seqlens", words->flags);
  return [words](Job& job) {
    Inspection inspection(job, words->flags);
    const auto cu = inspection.open("cu_seqlens", words->array);
    return inspection.run(check_bytes(), [&](const CheckOptions& options) {
      return ejk::check_cu_seqlens(cu, words->claims, options);
    });
  };
}

Run check_segment_ids(OptionSet& set) {
  const auto words = std::make_shared<Words<SegmentIdsClaims>>();
  add_reference(set, "IDS", words->array, "the segment of each token, (tokens,) or (..., tokens)").required();
  add_cu_seqlens(set, words->second);
  add_convention(set, words->claims.convention,
                 "which ids are padding: document or ejkernel\n"
                 "document (default): 0 and less. ejkernel: -1 and less, for ids that count from 0.");
  declare_check(set, "segment-ids", words->flags);
  return [words](Job& job) {
    Inspection inspection(job, words->flags);
    const auto ids = inspection.open("ids", words->array);
    words->claims.cu_seqlens = inspection.open("cu_seqlens", words->second);
    return inspection.run(check_segment_ids_bytes(words->claims), [&](const CheckOptions& options) {
      return ejk::check_segment_ids(ids, words->claims, options);
    });
  };
}

Run check_position_ids(OptionSet& set) {
  const auto words = std::make_shared<Words<PositionIdsClaims>>();
  add_reference(set, "IDS", words->array,
                "the position of each token, (tokens,) or (..., tokens)\nBelow 0 is padding.")
      .required();
  add_cu_seqlens(set, words->second);
  add_word(set, "--padding", words->claims.padding, at_least(0), "N",
           "the position that padding has, as 1 in some tokenizers; without --cu-seqlens\n"
           "Only where it does not go on from the position before it.");
  add_reference(
      set, "--mask", words->third,
      "not 0 where there is a token, of the shape of IDS\n"
      "Positions then count the tokens of a row, cumsum(mask) - 1, and not its places; those of padding "
      "may be anything. Without --cu-seqlens and --padding.");
  declare_check(set, "position-ids", words->flags);
  return [words](Job& job) {
    if (!words->third.empty() && (words->claims.padding || !words->second.empty()))
      throw usage("--mask goes without --cu-seqlens and --padding").hint("the mask says what is padding");
    if (words->claims.padding && !words->second.empty())
      throw usage("--padding goes without --cu-seqlens")
          .hint("cu_seqlens say where the tokens end; what is behind them may be anything");
    Inspection inspection(job, words->flags);
    const auto ids = inspection.open("ids", words->array);
    words->claims.cu_seqlens = inspection.open("cu_seqlens", words->second);
    words->claims.mask = inspection.open("mask", words->third);
    return inspection.run(check_position_ids_bytes(words->claims), [&](const CheckOptions& options) {
      return ejk::check_position_ids(ids, words->claims, options);
    });
  };
}

Run check_group_sizes(OptionSet& set) {
  const auto words = std::make_shared<Words<std::optional<std::int64_t>>>();
  add_reference(set, "GROUP_SIZES", words->array, "rows of each group, (groups,)").required();
  add_groups_from(set, words->from);
  add_word(set, "--m", words->claims, at_least(0), "M", "all rows: what the sizes sum to");
  declare_check(set, "group-sizes", words->flags, "The report says how evenly the groups are filled.");
  return [words](Job& job) {
    Inspection inspection(job, words->flags);
    const auto sizes = inspection.open_groups(words->array, words->from);
    return inspection.run(check_bytes(), [&](const CheckOptions& options) {
      return ejk::check_group_sizes(sizes, words->claims, options);
    });
  };
}

Run check_group_metadata(OptionSet& set) {
  const auto words = std::make_shared<Words<GroupMetadataClaims>>();
  GroupMetadataClaims& claims = words->claims;
  add_word(
      set, "FILE", words->array, [](const std::string& word) { return word; }, "FILE",
      "the arrays that ejk group-metadata writes, in an HDF5 file or group, .npz or folder")
      .required();
  add_word(
      set, "--tm", claims.tm, at_least(1), "T",
      "rows of a tile\nAn HDF5 file of ejk says this, and what was computed, itself. Where nothing does, "
      "tiles are not compared with the rows of their groups.");
  add_word(set, "--m", claims.m, at_least(0), "M", "all rows");
  add_reference(set, "--group-sizes", words->second,
                "rows of each group, which the offsets must be those of");
  add_groups_from(set, words->from);
  add_reference(set, "--topk-ids", words->third,
                "instead the experts of each token, (tokens, k)\nEach entry but -1 is a row of its expert.");
  add_word(set, "--experts", claims.experts, at_least(0), "N", "how many experts there are, with --topk-ids");
  add_word(set, "--align", claims.align, at_least(1), "N",
           "groups begin at multiples of N rows\nSizes that are given are rounded up to it.");
  add_word(set, "--start-group", claims.start_group, at_least(0), "S",
           "the first group that is computed, 0 by default");
  add_word(set, "--num-nonzero-groups", claims.num_nonzero_groups, at_least(0), "N",
           "how many groups are computed, by default all of the rest");
  declare_check(set, "group-metadata", words->flags,
                "Only the first num_tiles entries of the labels are looked at: the others mean\nnothing.");
  return [words](Job& job) {
    if (!words->second.empty() && !words->third.empty())
      throw usage("--group-sizes and --topk-ids: one of them says the sizes");
    if (words->second.empty() && words->from != GroupsFrom::automatic)
      throw usage("--from says what --group-sizes are, which are not given");
    if (words->third.empty() != (words->claims.experts == 0))
      throw usage(words->third.empty() ? "--experts goes with --topk-ids" : "--topk-ids needs --experts N");
    Inspection inspection(job, words->flags);
    const ArrayGroup group = job.phase(Phase::read, [&] {
      return job.inputs.open_group("group_metadata", words->array,
                                   {"group_offsets", "group_ids", "m_tile_ids", "num_tiles"});
    });
    const GroupMetadataArrays arrays = group_metadata_in(group, words->claims);
    for (const auto& [name, source] : group.arrays) {
      job.inputs.count_read(type_of(*source).bytes());
      inspection.add(name, source);
    }
    words->claims.group_sizes = inspection.open_groups(words->second, words->from);
    words->claims.topk_ids = inspection.open("topk_ids", words->third);
    return inspection.run(check_group_metadata_bytes(arrays, words->claims),
                          [&](const CheckOptions& options) {
                            return ejk::check_group_metadata(arrays, words->claims, options);
                          });
  };
}

Run check_topk_ids(OptionSet& set) {
  const auto words = std::make_shared<Words<std::optional<std::int64_t>>>();
  add_reference(set, "IDS", words->array, "the experts of each token, (tokens, k); -1 is none").required();
  add_word(set, "--experts", words->claims, at_least(0), "N", "how many experts there are");
  declare_check(set, "topk-ids", words->flags,
                "With --experts the report says how evenly experts are chosen.");
  return [words](Job& job) {
    Inspection inspection(job, words->flags);
    const auto ids = inspection.open("topk_ids", words->array);
    return inspection.run(check_topk_ids_bytes(ids, words->claims), [&](const CheckOptions& options) {
      return ejk::check_topk_ids(ids, words->claims, options);
    });
  };
}

Run check_indices(OptionSet& set) {
  const auto words = std::make_shared<Words<IndicesClaims>>();
  add_reference(set, "IDS", words->array, "the keys of each query, (..., queries, n); -1 is none").required();
  add_word(set, "--keys", words->claims.keys, at_least(0), "K", "how many keys there are");
  add_flag(set, "--causal", words->claims.causal, "query i sees key j where j <= i, or i + OFFSET");
  add_word(
      set, "--offset", words->claims.offset,
      [](const std::string& word) { return read_integer(word, INT64_MIN); }, "OFFSET",
      "with --causal: query 0 stands at key OFFSET, 0 by default\nWhere the last query is the last key: keys - queries.");
  declare_check(set, "indices", words->flags);
  return [words](Job& job) {
    if (words->claims.offset && !words->claims.causal)
      throw usage("--offset goes with --causal")
          .hint(fmt::format("--causal --offset {}", *words->claims.offset));
    Inspection inspection(job, words->flags);
    const auto indices = inspection.open("indices", words->array);
    return inspection.run(check_indices_bytes(indices), [&](const CheckOptions& options) {
      return ejk::check_indices(indices, words->claims, options);
    });
  };
}

Run check_block_table(OptionSet& set) {
  const auto words = std::make_shared<Words<BlockTableClaims>>();
  add_reference(
      set, "TABLE", words->array,
      "the pages of each sequence, (batch, pages)\nEntries past those that a sequence needs may be anything.")
      .required();
  add_reference(set, "SEQ_LENS", words->second, "tokens of each sequence, (batch,)").required();
  add_word(set, "--page-size", words->claims.page_size, at_least(1), "P", "tokens of a page").required();
  add_word(set, "--pages", words->claims.pages, at_least(0), "N", "how many pages the cache has");
  add_word(set, "--null-page", words->claims.null_page, at_least(0), "N",
           "a page that holds nothing, in front of others\n"
           "Some servers put it where a sliding window has left a page behind.");
  declare_check(set, "block-table", words->flags);
  return [words](Job& job) {
    Inspection inspection(job, words->flags);
    const auto table = inspection.open("block_table", words->array);
    const auto lengths = inspection.open("seq_lens", words->second);
    return inspection.run(check_block_table_bytes(table, lengths, words->claims),
                          [&](const CheckOptions& options) {
                            return ejk::check_block_table(table, lengths, words->claims, options);
                          });
  };
}

}  // namespace ejk::app
