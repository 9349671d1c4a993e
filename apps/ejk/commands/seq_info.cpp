// ejk seq-info: statistics of the lengths of packed sequences, and the savings of packing.
//
// tests: tests/cli/seq-info/
#include "commands.hpp"
#include "ejk/sequence.hpp"
#include "integers.hpp"
#include "job.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

Run declare_seq_info(OptionSet& set) {
  struct Words {
    std::string cu_seqlens, padded;
  };
  const auto words = std::make_shared<Words>();
  add_reference(set, "CU_SEQLENS", words->cu_seqlens, "where each sequence begins, and the number of tokens")
      .required();
  add_reference(set, "--cu-seqlens-padded", words->padded,
                "the same with the padding after each sequence\n"
                "As TransformerEngine's THD layout has it. The report then counts the padding, too.");
  set_footer(set,
             "Attention work is counted in pairs of a query and a key, the sum of squared\n"
             "lengths; a causal mask halves packed and padded work alike.");
  return [words](Job& job) {
    const auto cu = job.open("cu_seqlens", words->cu_seqlens);
    const auto padded = words->padded.empty() ? nullptr : job.open("cu_seqlens_padded", words->padded);
    Report plan;
    plan.add("shape", "shape", cu->shape()).add("dtype", "dtype", std::string(name_of(cu->dtype())));
    const std::int64_t bytes =
        sequence_work_bytes(type_of(*cu)) + (padded ? sequence_work_bytes(type_of(*padded)) : 0);
    if (job.plan(plan, kPieceBytes + bytes)) return Outcome::passed;
    Report report = job.phase(Phase::compute, [&] { return describe_sequences(cu, padded); });
    warn_of_offsets(*cu, report);
    job.deliver(std::move(report), {});
    return Outcome::passed;
  };
}

}  // namespace

extern const Command seq_info_command{
    .name = "seq-info",
    .group = "Sequences",
    .summary = "how long sequences are, and what packing saves",
    .example = "ejk seq-info cu_seqlens.npy",
    .keys = R"(
shape | shape | of CU_SEQLENS | plan
dtype | string | its element type | plan
sequences, tokens, empty_sequences | integer | sequences, their tokens, sequences without a token | done
padding_tokens | integer | tokens of padding behind sequences | with --cu-seqlens-padded
padding_share | share or null | padding_tokens / all tokens | with --cu-seqlens-padded
shortest, longest | integer or null | tokens of the shortest and the longest; null without sequences | done
mean | number or null | tokens of a sequence on average | done
percentiles | table | one row, none without sequences | done
  pN | number | p1, p5, p25, p50, p75, p95 and p99 of tokens of a sequence, interpolated as NumPy does
histogram | table | sequences by length, in bins that double | done
  range | string | the bin: 4-7
  from, to | integer | its least and largest length
  sequences | integer | sequences in it
  share | share | of all sequences
  token_share | share or null | its sequences' share of all tokens
packing | section | packed against padded to the longest; empty without sequences | done
  padded_tokens | integer | tokens and padding
  padding_share | share or null | padding / padded_tokens
  attention_pairs_packed, attention_pairs_padded | integer | pairs of tokens of one sequence, without and with padding
  attention_work_share | share or null | attention_pairs_packed / attention_pairs_padded
)",
    .declare = declare_seq_info,
};

}  // namespace ejk::app
