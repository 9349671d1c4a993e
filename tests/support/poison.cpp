// Poisoned memory for all unit tests: reads of uninitialised memory show. (The C library poisons malloc, by
// the environment set in tests/CMakeLists.txt and run_cases.)
#include "core/workspace.hpp"

namespace {

[[maybe_unused]] const bool poisoned = (ejk::core::poison_memory(true), true);

}  // namespace
