// The inputs of a run: arrays by references, all arrays of a file, JSON. What is opened is noted in the
// provenance, and what is read is counted.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "budget.hpp"
#include "ejk/array.hpp"
#include "ejk/communicator.hpp"
#include "ejk/io.hpp"
#include "ejk/json.hpp"
#include "provenance.hpp"

namespace ejk::app {

/// One of the arrays that an argument of the command line names.
struct NamedInput : FoundArray {
  std::shared_ptr<const ArraySource> stream;  // cached, because a stream cannot be opened again
};

class Inputs {
 public:
  /// `allow_external`: HDF5 files may refer to other files. All references outlive this. Ranks open
  /// the same inputs; standard input is read by rank 0, for all.
  Inputs(bool allow_external, const Budget& budget, Provenance& provenance,
         Communicator& comm = single_process())
      : allow_external_(allow_external),
        budget_(budget),
        provenance_(provenance),
        comm_(comm),
        spare_(budget.bytes() / 4),
        read_memory_(std::make_shared<ReadMemory>(spare_ + kHeldBeside)) {}

  /// The array that a reference names, noted as `role`. Each reference is opened once.
  std::shared_ptr<const ArraySource> open(const std::string& role, const std::string& reference);

  /// Those of some arrays that a file, folder or group in an HDF5 file holds, and its attributes, noted as
  /// `role`. The caller counts what it reads.
  ArrayGroup open_group(const std::string& role, const std::string& reference,
                        const std::vector<std::string>& names);

  /// An array that is looked at and let go again: neither kept nor noted. count_read() counts what was read.
  std::shared_ptr<const ArraySource> open(const ArrayReference& reference);
  std::shared_ptr<const ArraySource> open(NamedInput& input);

  /// The same, where a type that is not supported does not hide the file's other arrays: unless the word
  /// names this array, it is nothing then, and `why` is the error. All else that is wrong is thrown.
  std::shared_ptr<const ArraySource> open_supported(NamedInput& input, std::optional<Error>& why);

  /// The arrays of a file, or of a group in an HDF5 file, unless the word names one of them.
  std::vector<NamedInput> arrays_in(const std::string& word);
  /// Whether files may refer to other files.
  bool allow_external() const { return allow_external_; }
  /// The links beside them, which lead to arrays but are none.
  std::vector<ArrayLink> links_in(const std::string& word);
  /// A warning that names those links; "" where there are none.
  std::string links_left_out(const std::string& word);

  /// A file of JSON, or - for stdin, which is noted as `role`. Text that would take more memory than allowed
  /// once it is taken apart is not read. `hint_for_npy` is for what turns out to be an .npy file.
  JsonValue read_json(
      const std::string& role, const std::string& path,
      const std::string& hint_for_npy = "this is an array (.npy), and JSON text is wanted here");

  void count_read(std::int64_t bytes) { bytes_read_ += bytes; }
  std::int64_t bytes_read() const { return bytes_read_; }

  /// Files may hold so many bytes to read on (ReadMemory; at first a quarter of the budget), beside the few
  /// of kHeldBeside. Returns how many of them one of those opened so far will.
  std::int64_t allow_held(std::int64_t bytes);

  /// "a.npy holds 3 GiB: " where one input alone exceeds the memory allowed.
  std::string too_large() const;

 private:
  struct Opened {
    std::string role;
    std::shared_ptr<const ArraySource> source;
  };

  const ArrayFile& file(const ArrayReference& reference);

  // What no plan counts, as the memory of HDF5's processes itself: two arrays are often read in turns.
  static constexpr std::int64_t kHeldBeside = std::int64_t{128} << 20;

  bool allow_external_;
  const Budget& budget_;
  Provenance& provenance_;
  Communicator& comm_;
  std::map<std::string, Opened> opened_;
  std::vector<ArrayFile> files_;  // the last few
  std::int64_t bytes_read_ = 0, spare_;
  std::shared_ptr<ReadMemory> read_memory_;
};

}  // namespace ejk::app
