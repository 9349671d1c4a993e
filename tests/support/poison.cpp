// All unit tests run with poisoned memory: what is never written shows. (What malloc gives is poisoned by the C
// library, as tests/CMakeLists.txt and run_cases ask it to.)
#include "core/workspace.hpp"

namespace {

[[maybe_unused]] const bool poisoned = (ejk::core::poison_memory(true), true);

}  // namespace
