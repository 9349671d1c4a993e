// ejk fingerprint: what this machine is, and how much of it this process may use.
//
// tests: tests/cli/fingerprint/
#include "commands.hpp"
#include "ejk/machine.hpp"
#include "job.hpp"

namespace ejk::app {

Run fingerprint(OptionSet& set) {
  const auto convention = std::make_shared<Convention>(Convention::document);
  add_convention(
      set, *convention,
      "what the first line says: document or ejkernel\n"
      "document (default): PLATFORM|VERSION, as cpu| or gpu|cuda_535.104.05. ejkernel: the device's "
      "name instead of the platform, as cpu|cpu.");
  set_footer(set,
             "The first line is the fingerprint alone. The device is the first GPU that\n"
             "nvidia-smi lists, else the CPU. nvidia-smi has ten seconds to answer; it is not\n"
             "an error if it is missing or fails.");
  return [convention](Job& job) {
    Report plan;
    job.show_options(plan);
    if (job.plan(std::move(plan), 0)) return Outcome::passed;
    const GpuQuery gpus = job.phase(Phase::read, [] { return query_gpus(); });
    job.deliver(job.phase(Phase::compute, [&] { return describe(inspect_machine(gpus), *convention); }), {});
    return Outcome::passed;
  };
}

}  // namespace ejk::app
