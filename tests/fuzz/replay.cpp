// Replays files through a target, without libFuzzer: each of them, then mutants of them, always the same
// ones.
//   fuzz_TARGET --mutants N FILE-OR-FOLDER...
// Ends with a signal at the first input that breaks a promise, and leaves that one as crash-TARGET in the
// working folder. Limits for each input: processor time, and memory beyond what was held before, as far as it
// comes from operator new (not counted under sanitizers); what comes from elsewhere is bounded by RLIMIT_AS.
#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>

#include "ejk/threads.hpp"
#include "fuzz.hpp"

#if defined(__SANITIZE_ADDRESS__)
#define EJK_FUZZ_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EJK_FUZZ_SANITIZED 1
#endif
#endif

namespace {

std::atomic<std::int64_t> held_bytes = 0, peak_bytes = 0;

#ifndef EJK_FUZZ_SANITIZED
void* take(std::size_t size, std::size_t alignment) {
  void* memory = alignment > alignof(std::max_align_t)
                     ? std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment)
                     : std::malloc(std::max<std::size_t>(size, 1));
  if (memory == nullptr) throw std::bad_alloc();
  const std::int64_t now = held_bytes += static_cast<std::int64_t>(malloc_usable_size(memory));
  for (std::int64_t peak = peak_bytes; peak < now && !peak_bytes.compare_exchange_weak(peak, now);) {
  }
  return memory;
}

void give(void* memory) noexcept {
  if (memory == nullptr) return;
  held_bytes -= static_cast<std::int64_t>(malloc_usable_size(memory));
  std::free(memory);
}
#endif

}  // namespace

#ifndef EJK_FUZZ_SANITIZED
void* operator new(std::size_t size) { return take(size, 1); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return take(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { give(memory); }
void operator delete(void* memory, std::size_t) noexcept { give(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { give(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { give(memory); }
#endif

namespace {

namespace fs = std::filesystem;
using ejk::fuzz::Bytes;
using ejk::fuzz::Random;

constexpr std::size_t kMostBytes = 8192;

// The input at work, for the handler of a signal.
const Bytes* current = nullptr;
char crash_name[256];

// Only calls that a signal handler may make.
void keep_input(int signal) {
  if (current != nullptr) {
    std::FILE* out = std::fopen(crash_name, "wb");
    if (out != nullptr) {
      std::fwrite(current->data(), 1, current->size(), out);
      std::fclose(out);
    }
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

// Of this process and of those it has waited for.
double processor_seconds() {
  double seconds = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    getrusage(who, &usage);
    seconds += static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
               1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  }
  return seconds;
}

void run(const Bytes& input) {
  current = &input;
#ifdef EJK_FUZZ_SANITIZED
  constexpr double kSeconds = 10;
#else
  constexpr double kSeconds = 1;
#endif
  constexpr std::int64_t kMemory = std::int64_t{4} << 20, kMemoryPerByte = 512;
  constexpr unsigned kPatience = 120;  // seconds on the clock, for one that waits for ever
  alarm(kPatience);
  const double before = processor_seconds();
  const std::int64_t held = held_bytes;
  peak_bytes = held;
  // A copy of the exact size, so that a sanitizer sees who reads past its end.
  const std::unique_ptr<std::uint8_t[]> copy(new std::uint8_t[input.size()]);
  std::copy(input.begin(), input.end(), copy.get());
  LLVMFuzzerTestOneInput(copy.get(), input.size());
  alarm(0);
  const double seconds = processor_seconds() - before;
  if (seconds > kSeconds) ejk::fuzz::fail(fmt::format("it took {:.1f} s", seconds));
  const std::int64_t bytes = peak_bytes - held,
                     allowed = kMemory + kMemoryPerByte * static_cast<std::int64_t>(input.size());
  if (bytes > allowed)
    ejk::fuzz::fail(fmt::format("it took {} bytes of memory, {} are allowed", bytes, allowed));
  current = nullptr;
}

Bytes bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  return {text.begin(), text.end()};
}

std::uint64_t mutation_state = 0;

}  // namespace

// Stands in for libFuzzer's: bits, bytes, runs of them.
std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most) {
  Random random(++mutation_state);
  Bytes bytes(data, data + size);
  if (bytes.empty()) bytes.push_back(0);
  const std::size_t at = random.below(bytes.size());
  const std::size_t run_of = 1 + random.below(std::min<std::size_t>(bytes.size() - at, 16));
  const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(at);
  switch (random.below(6)) {
    case 0:
      bytes[at] = static_cast<std::uint8_t>(bytes[at] ^ (1U << random.below(8)));
      break;
    case 1:
      bytes[at] = static_cast<std::uint8_t>(random.below(256));
      break;
    case 2:
      bytes.erase(place, place + static_cast<std::ptrdiff_t>(run_of));
      break;
    case 3:
      bytes.insert(place, run_of, static_cast<std::uint8_t>(random.below(256)));
      break;
    case 4:
      bytes.resize(at);
      break;
    default:
      ejk::fuzz::change_number(bytes, at, std::size_t{1} << random.below(4), random);
      break;
  }
  const std::size_t held = std::min(bytes.size(), most);
  std::copy_n(bytes.begin(), held, data);
  return held;
}

int main(int argc, char** argv) {
  const std::string name = fs::path(argv[0]).filename();
  fmt::format_to_n(crash_name, sizeof crash_name - 1, "crash-{}", name);
  std::size_t mutants = 0;
  std::vector<fs::path> paths;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--mutants" && i + 1 < argc) {
      mutants = std::strtoull(argv[++i], nullptr, 10);
    } else if (fs::is_directory(word)) {
      for (const auto& entry : fs::recursive_directory_iterator(word))
        if (entry.is_regular_file()) paths.push_back(entry.path());
    } else {
      paths.emplace_back(word);
    }
  }
  std::sort(paths.begin(), paths.end());
  if (paths.empty()) {
    fmt::print(stderr, "usage: {} [--mutants N] FILE-OR-FOLDER...\n", name);
    return 2;
  }
  ejk::set_threads(1);
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM})
    std::signal(signal, keep_input);
#ifndef EJK_FUZZ_SANITIZED  // which map address space by the terabyte
  constexpr rlim_t kAddresses = rlim_t{1} << 30;
  rlimit limit{};
  getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = std::min(limit.rlim_max, kAddresses);  // a child may allow itself more
  setrlimit(RLIMIT_AS, &limit);
#endif

  std::vector<Bytes> inputs;
  for (const fs::path& path : paths) inputs.push_back(bytes_of(path));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!fs::is_regular_file(paths[i])) {
      fmt::print(stderr, "{}: there is no such file\n", paths[i].string());
      return 2;
    }
    run(inputs[i]);
  }
  Bytes mutant;
  for (std::size_t i = 0; i < mutants; ++i) {
    const auto seed = static_cast<unsigned>(i);
    // Some grow out of one another, so that several fields are changed.
    if (i % 4 != 3 || mutant.empty()) mutant = inputs[Random(seed).below(inputs.size())];
    const std::size_t size = mutant.size();
    mutant.resize(std::max(size, kMostBytes));
    mutant.resize(LLVMFuzzerCustomMutator(mutant.data(), size, mutant.size(), seed));
    run(mutant);
  }
  fmt::print("{} files and {} mutants of them\n", inputs.size(), mutants);
  return 0;
}
