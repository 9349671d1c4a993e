// ejk seq-info: how long packed sequences are, and what packing them saves.
//
// tests: tests/cli/seq-info/
#include "commands.hpp"
#include "ejk/sequence.hpp"
#include "integers.hpp"
#include "job.hpp"
#include "sources.hpp"

namespace ejk::app {

Run seq_info(OptionSet& set) {
  struct Words {
    std::string cu_seqlens, padded;
  };
  const auto words = std::make_shared<Words>();
  add_reference(set, "CU_SEQLENS", words->cu_seqlens, "where each sequence begins, and the number of tokens")
      .required();
  add_reference(set, "--cu-seqlens-padded", words->padded,
                "the same with the padding behind each sequence\n"
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

}  // namespace ejk::app
