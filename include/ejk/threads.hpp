// How many threads the library works on.
#pragma once

#include <optional>

namespace ejk {

/// The most threads that work on one call, the caller among them. Small work takes fewer, and where the
/// system starts no more threads those that there are do it all. No result depends on it. At first what
/// OMP_NUM_THREADS says, else the cores that this process may run on. In a child process of fork() one thread
/// works alone where the parent had a communicator.
int threads();

/// Sets it, for all calls that begin from now on; less than 1 counts as 1.
void set_threads(int count);

/// Ends the threads that wait for this thread's next call. OpenMP lets them spin for some milliseconds after
/// each, on a processor that others may want; starting new ones takes some ten microseconds each.
void release_threads();

/// Whether OpenMP is starting threads for this thread's call. Whether they can be had is tried before, but
/// where other processes take them at that moment OpenMP ends this one, by exit(1): a handler of atexit()
/// tells by this that it was so.
bool is_starting_threads();

/// The number in the environment variable OMP_NUM_THREADS, of a list the first; nothing when it has none.
std::optional<int> threads_of_environment();

}  // namespace ejk
