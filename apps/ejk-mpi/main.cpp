// The program `ejk-mpi`: the commands of `ejk` on the ranks of an MPI job. mpi_communicator.hpp implements
// their communication; how work is divided is in the library and in apps/ejk.
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "command_line.hpp"
#include "ejk/io.hpp"
#include "errors.hpp"
#include "mpi_communicator.hpp"

namespace {

// A failure that cannot be reported in a collective.
[[noreturn]] void abort_job(const char* what) {
  ejk::remove_temporary_files();
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::fprintf(stderr, "ejk-mpi: rank %d: %s\n", rank, what);
  MPI_Abort(MPI_COMM_WORLD, ejk::app::kExitBug);
  std::abort();
}

}  // namespace

int main(int argc, char** argv) {
  // mpirun gives rank 0 a terminal as stdout even if its own stdout is a file.
  setenv("NO_COLOR", "1", 0);
  // The cores of a Slurm task, unless OMP_NUM_THREADS is set; without either, ranks share the cores of their
  // machine.
  if (const char* cores = std::getenv("SLURM_CPUS_PER_TASK"); cores != nullptr)
    setenv("OMP_NUM_THREADS", cores, 0);
  if (MPI_Init(&argc, &argv) != MPI_SUCCESS) return ejk::app::kExitBug;
  int status = ejk::app::kExitBug;
  try {
    ejk::app::MpiCommunicator comm;
    status = ejk::app::run(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc), "ejk-mpi", comm,
                           [&](const ejk::app::RankExit& own) { return comm.conclude(own); });
  } catch (const std::exception& error) {
    abort_job(error.what());
  }
  MPI_Finalize();
  return status;
}
