// The number of threads of the library.
#pragma once

#include <optional>

namespace ejk {

/// The most threads that work on one call, including the caller. Small work uses fewer, as does a system that
/// starts no more. No result depends on it. The default is OMP_NUM_THREADS, or else the number of cores that
/// this process may use. A child of fork() is single-threaded if the parent had started threads.
int threads();

/// Sets it for all later calls; values below 1 count as 1.
void set_threads(int count);

/// Ends the threads that wait for this thread's next call. OpenMP lets them spin for some milliseconds after
/// each call, which costs other processes CPU time; starting a new one takes some ten microseconds.
void release_threads();

/// Whether OpenMP is starting threads for this thread's call. The library tests first that they can be
/// started, but if other processes exhaust the limit meanwhile, OpenMP calls exit(1): an atexit() handler
/// recognises that case by this.
bool is_starting_threads();

/// The number in the environment variable OMP_NUM_THREADS, the first of a list; nothing if there is none.
std::optional<int> threads_of_environment();

}  // namespace ejk
