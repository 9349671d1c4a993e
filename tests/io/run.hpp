// The program run by a shell, and faults injected into its system calls.
#pragma once

#include "io/support.hpp"
#include "support/shell.hpp"

namespace ejk::test {

/// Runs a command line in which $EJK names the program. Standard error is among what it prints.
inline Printed run(const std::string& command) {
  return shell("EJK='" EJK_PROGRAM "'; { " + command + "\n} 2>&1");
}

/// Whether faults can be injected here; says so where not. With sanitizers they would hit the calls of these.
inline bool can_inject_faults() {
#if defined(__SANITIZE_ADDRESS__)
  MESSAGE("skipped: sanitizers make system calls of their own");
  return false;
#elif defined(EJK_COVERAGE)
  MESSAGE("skipped: faults would meet the counts of coverage, which the program writes at its end");
  return false;
#endif
  const bool can = run("strace -f -o /dev/null -e inject=pwrite64:error=EIO:when=99 true").status == 0;
  if (!can) MESSAGE("skipped: strace cannot run here");
  return can;
}

}  // namespace ejk::test
