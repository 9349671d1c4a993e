// The inputs of a run: arrays by reference, all arrays of a file, JSON; recorded in the provenance and
// counted.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "budget.hpp"
#include "ejk/array.hpp"
#include "ejk/communicator.hpp"
#include "ejk/io.hpp"
#include "ejk/program/json.hpp"
#include "ejk/quantize.hpp"
#include "ejk/report.hpp"
#include "provenance.hpp"
#include "replay.hpp"

namespace ejk::app {

/// One of the arrays that an argument of the command line names.
struct NamedInput : FoundArray {
  std::shared_ptr<const ArraySource> stream;  // cached, because a stream cannot be opened again
  std::int64_t bytes = 0;                     // stored, once it is open: all parts of a quantised array
};

class Inputs {
 public:
  /// `allow_external`: HDF5 files may refer to other files. All references outlive this. Standard input is
  /// read by rank 0, for all.
  Inputs(bool allow_external, const Budget& budget, Provenance& provenance,
         Communicator& comm = single_process(), std::shared_ptr<const ReplayFile> replay = nullptr)
      : allow_external_(allow_external),
        replay_(std::move(replay)),
        budget_(budget),
        provenance_(provenance),
        comm_(comm),
        spare_(budget.bytes() / 4),
        read_memory_(std::make_shared<ReadMemory>(spare_ + kHeldBeside)) {}

  /// parse_input(); of a replayed command the tensors of its file alone.
  ArrayReference parsed(const std::string& word) const {
    return replay_ ? replay_->reference(word) : parse_input(word);
  }

  /// The array that a reference names, recorded as `role`. Each reference is opened once.
  std::shared_ptr<const ArraySource> open(const std::string& role, const std::string& reference);

  /// The arrays of `names` in a file, folder or HDF5 group, and its attributes, recorded as `role`. The
  /// caller counts the bytes read.
  ArrayGroup open_group(const std::string& role, const std::string& reference,
                        const std::vector<std::string>& names);

  /// An array that is neither cached nor recorded; the caller counts the bytes read.
  std::shared_ptr<const ArraySource> open(const std::string& reference);
  /// The array of a file that a slice is taken from; null for other references.
  std::shared_ptr<const ArraySource> open_whole(const std::string& reference);
  std::shared_ptr<const ArraySource> open(NamedInput& input);

  /// Null, with the error in `why`, for an array of an unsupported type that the argument does not name.
  std::shared_ptr<const ArraySource> open_supported(NamedInput& input, std::optional<Error>& why);

  /// The arrays of a file or HDF5 group, or the one that the argument names.
  std::vector<NamedInput> arrays_in(const std::string& word);
  /// All arrays of a file whose header lists them, none opened; nothing for other words.
  std::optional<std::vector<StoredArray>> stored_in(const std::string& word);
  /// The attributes of such a file, or of an array or group in it.
  std::map<std::string, std::string> attributes_in(const std::string& word, const std::string& array = "");
  bool allow_external() const { return allow_external_; }
  /// The links to arrays beside them.
  std::vector<ArrayLink> links_in(const std::string& word);
  /// Warnings: those links, and what else is left out of a file.
  std::vector<std::string> left_out(const std::string& word);
  std::vector<std::string> remarks_in(const std::string& word);

  /// A file of JSON, or - for stdin, recorded as `role`; not read if parsing would exceed the memory limit.
  /// `hint_for_npy`: the hint for an .npy file.
  JsonValue read_json(
      const std::string& role, const std::string& path,
      const std::string& hint_for_npy = "this is an array (.npy), and JSON text is expected here");

  /// Notes what an array of an operand was decoded as; those of references are noted as they are opened.
  void note_decoded(const std::string& operand, const std::string& array, const DecodedAs& taken);
  /// The format of elements of the operand that was decoded; none where there are several.
  std::optional<ElementFormat> decoded_element() const;
  /// Adds what operands were decoded as, the key `decoded`, below the lines at the top of a report.
  void add_decoded(Report& report) const;

  /// Files opened from now on may have elements of one byte without a type.
  void read_untyped_bytes() { untyped_ = UntypedBytes::read; }

  void count_read(std::int64_t bytes) { bytes_read_ += bytes; }
  std::int64_t bytes_read() const { return bytes_read_; }

  /// Lets files cache these bytes (ReadMemory; initially a quarter of the budget) in addition to kHeldBeside.
  /// Returns how many of them the files opened so far will use.
  std::int64_t allow_buffered(std::int64_t bytes);

  /// "a.npy holds 3 GiB: " if one input alone exceeds the memory limit.
  std::string too_large() const;

 private:
  std::string links_left_out(const std::string& word);

  struct Opened {
    std::string role;
    std::shared_ptr<const ArraySource> source;
  };

  struct Decoded {
    std::string operand;  // a reference, or a file of several arrays
    DecodedAs taken;
    std::set<std::string> arrays;
  };

  struct OpenFile {
    ArrayFile file;
    UntypedBytes untyped;
  };

  ArrayGroup replayed_group(const std::string& word, const std::vector<std::string>& names);
  const ArrayFile& file(const ArrayReference& reference, UntypedBytes untyped);
  const ArrayFile& file(const ArrayReference& reference) { return file(reference, untyped_); }
  std::shared_ptr<const ArraySource> open(const ArrayReference& reference, UntypedBytes untyped);
  /// The same for any reference; adds the bytes that are stored to `bytes`.
  std::shared_ptr<const ArraySource> open(const std::string& reference, UntypedBytes untyped,
                                          std::int64_t& bytes);

  // Not included in plans, as the memory of HDF5's processes.
  static constexpr std::int64_t kHeldBeside = std::int64_t{128} << 20;

  bool allow_external_;
  std::shared_ptr<const ReplayFile> replay_;
  UntypedBytes untyped_ = UntypedBytes::refuse;
  const Budget& budget_;
  Provenance& provenance_;
  Communicator& comm_;
  std::map<std::string, Opened> opened_;
  std::vector<OpenFile> files_;   // the last few
  std::vector<Decoded> decoded_;  // in the order in which they were opened
  std::int64_t bytes_read_ = 0, spare_;
  std::shared_ptr<ReadMemory> read_memory_;
};

/// The folder of the model that a path names, by its folder or its index: "." where the index has none; "" for a
/// path of something else.
std::string model_folder(const std::string& path);

/// Whether a word is no file's: an array that is computed, or given itself.
bool is_without_file(const std::string& word);

/// The config of the model in a folder, config.json or hf_quant_config.json; "" where there is none.
std::string config_in_folder(const std::string& folder);

}  // namespace ejk::app
