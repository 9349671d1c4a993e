// ejk seq-info: how long packed sequences are, and what packing them saves.
//
// tests: tests/cli/seq-info/
#include "commands.hpp"
#include "ejk/sequence.hpp"
#include "job.hpp"
#include "sources.hpp"

namespace ejk::app {

Run seq_info(OptionSet& set) {
  const auto reference = std::make_shared<std::string>();
  add_reference(set, "CU_SEQLENS", *reference, "where each sequence begins, and the number of tokens")
      .required();
  set_footer(set,
             "Attention work is counted in pairs of a query and a key, the sum of squared\n"
             "lengths; a causal mask halves packed and padded work alike.");
  return [reference](Job& job) {
    const auto cu = job.open("cu_seqlens", *reference);
    Report plan;
    plan.add("shape", "shape", cu->shape()).add("dtype", "dtype", std::string(name_of(cu->dtype())));
    if (job.plan(plan, kPieceBytes + sequence_work_bytes(type_of(*cu)))) return Answer::yes;
    job.deliver(job.phase(Phase::compute, [&] { return describe_sequences(*cu); }), {});
    return Answer::yes;
  };
}

}  // namespace ejk::app
