// What the fuzz targets share. A target is a source with LLVMFuzzerTestOneInput, which does with its bytes
// what the program would do with a file or a word, and LLVMFuzzerCustomMutator, which changes fields of a
// valid input and makes its checksums right again. README.md says what must hold of each input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/io.hpp"

// NOLINTBEGIN(readability-identifier-naming): libFuzzer's names
extern "C" {
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed);
/// libFuzzer's own mutator, or that of the replaying program.
std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);
}
// NOLINTEND(readability-identifier-naming)

namespace ejk::fuzz {

/// Ends the process and says why: the input broke a promise.
[[noreturn]] void fail(const std::string& why);
inline void require(bool holds, const std::string& what) {
  if (!holds) fail(what);
}

/// Runs f. Errors that are the caller's or the input's are its right to throw; Error{internal} and any other
/// exception break the promise. Memory that runs out does too: no small input has a claim to so much. Returns
/// whether f came to its end.
bool survives(const std::function<void()>& f);

/// The bytes as text.
std::string_view text_of(const std::uint8_t* data, std::size_t size);

/// A file in memory, with a path by which this process and its children can open it.
class MemoryFile {
 public:
  MemoryFile(const std::uint8_t* data, std::size_t size);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const;
  /// As a word of the command line names it.
  ArrayReference reference(ArrayReference::Container container) const;

 private:
  int fd_;
};

/// All elements, read twice, and a box of them read alone: they must be the same. Arrays of more than a
/// mebibyte are left alone: the input has far fewer bytes, and its array is one element that all others
/// equal, or zeros that a compressed one has by the thousand.
void read_consistently(const ArraySource& source);

/// All arrays of a container.
void read_container(const ArrayReference& reference);

// --- mutation

/// SplitMix64: the same numbers on every machine. Source: Steele, Lea and Flood, "Fast splittable
/// pseudorandom number generators", 2014.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  /// Less than n, which is at least 1.
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(next() % n); }
  bool one_in(std::size_t n) { return below(n) == 0; }

 private:
  std::uint64_t state_;
};

using Bytes = std::vector<std::uint8_t>;

/// A number that breaks things: 0, 1, powers of two and their neighbours, -1, the largest of each width, or
/// any.
std::uint64_t awkward_number(Random& random);

/// Little-endian numbers of `width` bytes; nothing is done, and 0 read, where they do not lie within the
/// bytes.
void put_number(Bytes& bytes, std::size_t at, std::size_t width, std::uint64_t value);
std::uint64_t get_number(const Bytes& bytes, std::size_t at, std::size_t width);

/// Makes a field something else: an awkward number, or a little more or less than it was.
void change_number(Bytes& bytes, std::size_t at, std::size_t width, Random& random);

/// Changes words: takes one out of `words`, a number for a number, a part away, twice, or to another place.
void change_text(std::string& text, const std::vector<std::string_view>& words, Random& random);

/// Changes the header of an .npy file that begins at byte `at`: its words, its version, and the length it
/// claims, which is mostly made right again.
void change_npy(Bytes& bytes, std::size_t at, Random& random);

/// What a custom mutator does: in one case of four libFuzzer's own mutation, else `change`; the result is cut
/// to `most`.
std::size_t mutate(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed,
                   const std::function<void(Bytes&, Random&)>& change);
/// The same for inputs that are text.
std::size_t mutate_text(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed,
                        const std::vector<std::string_view>& words);

}  // namespace ejk::fuzz
