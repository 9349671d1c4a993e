// HDF5 files, read as the program reads them: the library works in a process of its own, and whatever becomes
// of that is an Error here. Each input starts such processes anew, some hundred a second.
//
// Under libFuzzer two things reach over from them. The counters of branches are memory that both sides see,
// so the fuzzer learns what an input did in the server. And a sanitizer's report is kept, and is a failure
// here unless the fault is in the HDF5 library itself, which the guard is there for.
//
// The mutator changes fields of superblocks, object headers, trees, symbol tables and heaps, and makes the
// checksums right again of those newer structures that have a fixed length. Source of the fields: the HDF5
// file format specification, version 3.0. Source of the checksum: Bob Jenkins, lookup3.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "fuzz.hpp"

using namespace ejk;

#ifdef EJK_FUZZ

extern "C" {
extern std::uint8_t __start___sancov_cntrs[], __stop___sancov_cntrs[];
void __sanitizer_set_death_callback(void (*callback)());
void __asan_set_error_report_callback(void (*callback)(const char* report));
}

namespace {

// What a child leaves behind.
struct Death {
  bool is_ours;
  char report[8192];
};
Death* death = nullptr;
pid_t fuzzer = 0;
bool is_librarys = false;

// The first frame that is not the sanitizer's own says whose fault it is.
void note_report(const char* report) {
  if (getpid() == fuzzer) return;
  std::string_view text = report;
  for (auto at = text.find("    #"); at != std::string_view::npos; at = text.find("    #", at + 1)) {
    const std::string_view frame = text.substr(at, text.find('\n', at) - at);
    if (frame.find("__interceptor") != frame.npos || frame.find("sanitizer") != frame.npos ||
        frame.find("__asan") != frame.npos)
      continue;
    is_librarys = frame.find("/src/") == frame.npos;
    break;
  }
  std::strncpy(death->report, report, sizeof death->report - 1);
}

void note_death() {
  if (getpid() != fuzzer && !is_librarys) death->is_ours = true;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  fuzzer = getpid();
  void* memory = mmap(nullptr, sizeof(Death), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  death = static_cast<Death*>(memory);
  __asan_set_error_report_callback(note_report);
  __sanitizer_set_death_callback(note_death);
  // Whole pages of counters; what else is in the first and the last page stays this process's own.
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t begin =
      (reinterpret_cast<std::uintptr_t>(__start___sancov_cntrs) + page - 1) / page * page;
  const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(__stop___sancov_cntrs) / page * page;
  if (begin < end && mmap(reinterpret_cast<void*>(begin), end - begin, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
    return 1;
  return 0;
}

#endif

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::MemoryFile file(data, size);
  fuzz::read_container(file.reference(ArrayReference::Container::hdf5));
#ifdef EJK_FUZZ
  if (death->is_ours) fuzz::fail(std::string("a fault in the process that reads:\n") + death->report);
#endif
  return 0;
}

namespace {

using fuzz::Bytes;
using fuzz::get_number;
using fuzz::put_number;
using fuzz::Random;

struct Range {
  std::size_t at, bytes;
};

constexpr std::size_t kMostRanges = 1000;

bool lies_within(const Bytes& bytes, std::size_t at, std::size_t n) {
  return at <= bytes.size() && n <= bytes.size() - at;
}

bool is_signed(const Bytes& bytes, std::size_t at, std::string_view signature) {
  return lies_within(bytes, at, signature.size()) &&
         std::memcmp(bytes.data() + at, signature.data(), signature.size()) == 0;
}

constexpr std::size_t kSuperblockBytes = 96, kNewSuperblockBytes = 48, kNodeHead = 24;

// The messages of an object header of version 1, and of those that they lead to.
void find_objects(const Bytes& bytes, std::size_t header, std::vector<Range>& ranges,
                  std::vector<std::size_t>& seen) {
  if (std::find(seen.begin(), seen.end(), header) != seen.end() || seen.size() > 64) return;
  seen.push_back(header);
  if (!lies_within(bytes, header, 16) || bytes[header] != 1) return;
  ranges.push_back({header, 16});
  const std::size_t end = header + 16 + get_number(bytes, header + 8, 4);
  for (std::size_t at = header + 16; at + 8 <= std::min(end, bytes.size()) && ranges.size() < kMostRanges;) {
    const std::uint64_t type = get_number(bytes, at, 2), length = get_number(bytes, at + 2, 2);
    if (!lies_within(bytes, at + 8, length)) return;
    ranges.push_back({at, 8});
    if (length > 0) ranges.push_back({at + 8, length});
    if (length > 0)
      ranges.push_back({at + 8, std::min<std::size_t>(length, 16)});  // where most of it is decided
    constexpr std::uint64_t kSymbolTable = 0x11;
    if (type == kSymbolTable) ranges.push_back({get_number(bytes, at + 16, 8), 32});  // its heap
    at += 8 + length;
  }
}

std::vector<Range> ranges_of(const Bytes& bytes) {
  std::vector<Range> ranges;
  std::vector<std::size_t> seen;
  if (is_signed(bytes, 0, "\x89HDF") && get_number(bytes, 8, 1) == 0) {
    ranges.push_back({8, kSuperblockBytes - 8});
    find_objects(bytes, get_number(bytes, 64, 8), ranges, seen);
  }
  for (std::size_t at = 0; at + 8 <= bytes.size() && ranges.size() < kMostRanges; ++at) {
    if (is_signed(bytes, at, "TREE")) {
      ranges.push_back({at + 4, kNodeHead - 4});
      const std::size_t entries = std::min<std::size_t>(get_number(bytes, at + 6, 2), 8);
      ranges.push_back({at + kNodeHead, 8 + entries * 32});
    } else if (is_signed(bytes, at, "SNOD")) {
      const std::size_t entries = std::min<std::size_t>(get_number(bytes, at + 6, 2), 32);
      ranges.push_back({at + 4, 4 + 40 * entries});
      for (std::size_t i = 0; i < entries; ++i)
        find_objects(bytes, get_number(bytes, at + 16 + 40 * i, 8), ranges, seen);
    } else if (is_signed(bytes, at, "HEAP") || is_signed(bytes, at, "GCOL")) {
      ranges.push_back({at + 4, 60});
    } else if (is_signed(bytes, at, "OHDR") || is_signed(bytes, at, "OCHK") || is_signed(bytes, at, "FADB") ||
               is_signed(bytes, at, "FAHD") || is_signed(bytes, at, "EAHD") || is_signed(bytes, at, "EAIB") ||
               is_signed(bytes, at, "BTHD") || is_signed(bytes, at, "BTLF") || is_signed(bytes, at, "FRHP") ||
               is_signed(bytes, at, "FHDB")) {
      ranges.push_back({at + 4, 28});
      ranges.push_back({at + 4, 200});
    }
  }
  if (is_signed(bytes, 0, "\x89HDF") && get_number(bytes, 8, 1) >= 2)
    ranges.push_back({8, kNewSuperblockBytes - 12});
  std::erase_if(ranges, [&](const Range& range) {
    return !lies_within(bytes, range.at, std::min<std::size_t>(range.bytes, 1));
  });
  return ranges;
}

std::uint32_t rotated(std::uint32_t x, unsigned bits) { return x << bits | x >> (32 - bits); }

std::uint32_t lookup3(const std::uint8_t* data, std::size_t size) {
  std::uint32_t a = 0xDEADBEEF + static_cast<std::uint32_t>(size), b = a, c = a;
  const auto add = [&](std::size_t n) {
    std::uint32_t* const words[] = {&a, &b, &c};
    for (std::size_t i = 0; i < n; ++i) *words[i / 4] += static_cast<std::uint32_t>(data[i]) << (8 * (i % 4));
  };
  for (; size > 12; data += 12, size -= 12) {
    add(12);
    a -= c, a ^= rotated(c, 4), c += b;
    b -= a, b ^= rotated(a, 6), a += c;
    c -= b, c ^= rotated(b, 8), b += a;
    a -= c, a ^= rotated(c, 16), c += b;
    b -= a, b ^= rotated(a, 19), a += c;
    c -= b, c ^= rotated(b, 4), b += a;
  }
  if (size == 0) return c;
  add(size);
  c ^= b, c -= rotated(b, 14);
  a ^= c, a -= rotated(c, 11);
  b ^= a, b -= rotated(a, 25);
  c ^= b, c -= rotated(b, 16);
  a ^= c, a -= rotated(c, 4);
  b ^= a, b -= rotated(a, 14);
  c ^= b, c -= rotated(b, 24);
  return c;
}

void seal(Bytes& bytes, std::size_t at, std::size_t length) {
  if (length < bytes.size() && lies_within(bytes, at, length + 4))
    put_number(bytes, at + length, 4, lookup3(bytes.data() + at, length));
}

void mend_checksums(Bytes& bytes) {
  if (is_signed(bytes, 0, "\x89HDF") && get_number(bytes, 8, 1) >= 2) seal(bytes, 0, kNewSuperblockBytes - 4);
  for (std::size_t at = 0; at + 8 <= bytes.size(); ++at) {
    if (is_signed(bytes, at, "OHDR")) {
      const std::size_t flags = bytes[at + 5], width = std::size_t{1} << (flags & 3);
      const std::size_t size_at = at + 6 + ((flags & 0x20) != 0 ? 16 : 0) + ((flags & 0x10) != 0 ? 4 : 0);
      seal(bytes, at, size_at - at + width + get_number(bytes, size_at, width));
    }
    if (is_signed(bytes, at, "FAHD")) seal(bytes, at, 24);
    if (is_signed(bytes, at, "EAHD")) seal(bytes, at, 68);
    if (is_signed(bytes, at, "BTHD")) seal(bytes, at, 34);
  }
}

void change(Bytes& bytes, Random& random) {
  const std::vector<Range> ranges = ranges_of(bytes);
  if (ranges.empty()) {
    bytes[random.below(bytes.size())] = static_cast<std::uint8_t>(random.below(256));
    return;
  }
  const Range range = ranges[random.below(ranges.size())];
  const std::size_t width = std::size_t{1} << random.below(4);
  const std::size_t at = range.at + random.below(std::max<std::size_t>(range.bytes / width, 1)) * width;
  if (random.one_in(6)) {  // what stands elsewhere: addresses that lead back, one structure for another
    const Range other = ranges[random.below(ranges.size())];
    put_number(bytes, at, width,
               random.one_in(2) ? other.at
                                : get_number(bytes, other.at + 8 * random.below(other.bytes / 8 + 1), width));
  } else {
    fuzz::change_number(bytes, at, width, random);
  }
  if (random.one_in(40)) bytes.resize(1 + random.below(bytes.size()));
  if (!random.one_in(8)) mend_checksums(bytes);
}

}  // namespace

std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  return fuzz::mutate(data, size, most, seed, change);
}
