// Runs a program and makes one of its system calls fail: which one is said by the task (process or thread),
// the call's name, and how many of that name the task has made before.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ejk::faults {

/// One call of a run. Counting begins where the program sets up its signals: what the loader does before is
/// not the program's.
struct Call {
  int task = 0;  // processes and threads by their begin; 0 is the program's first thread
  std::string name;
  int n = 0;              // the n-th of that name by that task, from 1 on
  std::int64_t size = 0;  // what a read or write asks for
  std::string path;       // the file it is about, where that is known
  std::string from;       // of a rename the name until then
};

struct Fault {
  enum class How {
    error,       // the call is not made and fails
    error_late,  // it is made and says that it failed
    shorten,     // it is made for half of the bytes
    kill,        // its process is killed before it
    terminate,   // the program gets SIGTERM before it
  };
  int task = 0;
  std::string call;
  int n = 0;
  How how = How::error;
  int code = 0;  // errno
};

struct Run {
  std::vector<std::string> words;  // the program's path first
  std::string folder;              // where it runs
  std::string stdin_path, stdout_path, stderr_path;
  int seconds = 20;
};

struct Outcome {
  int status = -1;  // exit status of the program, -1 after a signal
  int signal = 0;
  bool met = false;        // the call of the fault was made
  std::string path;        // of that call
  bool writable = false;   // it closes a file that was open to be written
  bool hung = false;       // it did not end in time
  bool left_some = false;  // it ended, and a process that it had started did not
  std::vector<Call> calls;
};

/// The calls that can be made to fail.
const std::vector<std::string>& known_calls();

/// Runs it, with the fault, or writing down all calls. Throws std::runtime_error where the system does not
/// let a process be traced.
Outcome run_traced(const Run& run, const std::optional<Fault>& fault);

}  // namespace ejk::faults
