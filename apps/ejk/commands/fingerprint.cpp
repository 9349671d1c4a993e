// ejk fingerprint: the machine, and the part of it that this process may use.
//
// tests: tests/cli/fingerprint/
#include "commands.hpp"
#include "ejk/program/machine.hpp"
#include "job.hpp"
#include "schema.hpp"

namespace ejk::app {

namespace {

Run declare_fingerprint(OptionSet& set) {
  const auto convention = std::make_shared<Convention>(Convention::document);
  add_convention(set, *convention,
                 "form of the first line\ndocument: PLATFORM|VERSION, as cpu| or gpu|cuda_535.104.05. "
                 "ejkernel: the device's name instead of the platform, as cpu|cpu.");
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

}  // namespace

extern const Command fingerprint_command{
    .name = "fingerprint",
    .group = "Settings",
    .summary = "describe this machine",
    .example = "ejk fingerprint",
    .keys = joined({R"(
fingerprint | string | kind|version of the device | done
)",
                    kConventionKey, R"(
platform | string | cpu or gpu | done
device_kind | string | the kind of the device | done
cpu | string | the processor's name | done
architecture | string | its architecture: x86_64 | done
vector_extensions | string | its vector extensions | done
instruction_sets | string | the instruction sets that ejk supports here | done
instruction_set | string | the one that it uses | done
cores, usable_cores | integer | cores of the machine; those that this process may use | done
cpu_quota | number | the limit in cores | where a control group limits it | some machines
memory_bytes | integer | memory of the machine | done
memory_limit_bytes | integer | memory that this process may use | done
memory_available_bytes | integer | of it available now | done
caches | table | the first core's caches, as far as the system reports them | done
  name | string | its level and kind |  | some machines
  size_bytes, shared_by | integer | its size; cores that share it |  | some machines
gpu_query | string | done, failed or not_run: the outcome of nvidia-smi | done
gpus | table | the GPUs that nvidia-smi lists | done
  name, driver_version | string | the name, and the version of the driver
  memory_bytes | integer or null | its memory
)"}),
    .declare = declare_fingerprint,
};

}  // namespace ejk::app
