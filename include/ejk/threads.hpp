// The number of threads of the library.
#pragma once

#include <optional>

namespace ejk {

/// Most threads of one call, including the caller; no result depends on it. Default: OMP_NUM_THREADS, else
/// the usable cores. A child of fork() is single-threaded if the parent had started threads.
int threads();

/// Sets it for all later calls; values below 1 count as 1.
void set_threads(int count);

/// Ends idle OpenMP threads, which spin for milliseconds after each call; restarting takes some ten
/// microseconds.
void release_threads();

/// Whether OpenMP is starting threads for this thread: if that fails it calls exit(1), which an atexit()
/// handler recognises by this.
bool is_starting_threads();

/// The number in the environment variable OMP_NUM_THREADS, the first of a list; nothing if there is none.
std::optional<int> threads_of_environment();

}  // namespace ejk
