// Zip archives over zlib: members stored or deflated, zip64 included. Reading validates the directory before
// it trusts it; a member's claimed size is compared with its stored bytes, so that a small archive cannot
// claim much memory. Memory: the directory, and 50 KB for each inflater in use.
// Source: PKWARE APPNOTE.TXT 6.3.10, sections 4.3 and 4.4.
// tests: tests/io/test_npz.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ejk/error.hpp"
#include "io/file.hpp"

namespace ejk::io {

class AtomicFile;

/// The bytes of a member are invalid (unlike a read that fails). Does not name the member.
struct DamagedMember : Error {
  explicit DamagedMember(std::string why) : Error(Kind::input, std::move(why)) {}
};

struct ZipEntry {
  std::string name;
  std::uint16_t flags = 0, method = 0;
  std::uint32_t crc = 0;
  std::uint64_t stored_bytes = 0, bytes = 0, header_at = 0;
  std::uint64_t limit = 0;  // of a member read: where the next one, or the directory, begins
};

/// An open archive; any number of threads may read it.
struct ZipFile {
  /// Throws Error{input}, which begins with the name `of`, where the file is no archive and so not `wanted`,
  /// such as "an .npz", and where its members overlap.
  ZipFile(File opened, std::string of, std::string_view wanted);

  File file;
  std::string name;
  std::int64_t size = 0;
  std::vector<ZipEntry> entries;
};

/// The decoded bytes of one member. Reading forward inflates once; going back in a deflated member restarts
/// it. The checksum is compared when the member has been read from its first to its last byte.
class ZipReader {
 public:
  /// Throws DamagedMember for a member that is encrypted, of another method, or larger than its bytes can be.
  ZipReader(std::shared_ptr<const ZipFile> zip, const ZipEntry& entry);
  ~ZipReader();

  std::int64_t bytes() const { return static_cast<std::int64_t>(entry_.bytes); }
  bool is_stored() const;
  /// Of a stored member: where its bytes are in the file.
  std::int64_t position() const { return data_at_; }
  /// Copies [offset, offset + n), which is within the member.
  void read(std::int64_t offset, std::int64_t n, std::byte* to);
  /// Frees the inflater; the next read restarts.
  void close();

 private:
  struct Inflater;
  void restart();
  void inflate_all(std::byte* to, std::int64_t n);
  /// Fewer than n bytes at the end of the stream.
  std::int64_t inflate_some(std::byte* to, std::int64_t n);

  std::shared_ptr<const ZipFile> zip_;
  const ZipEntry& entry_;
  std::int64_t data_at_ = 0;  // in the file
  std::unique_ptr<Inflater> inflater_;
  std::int64_t at_ = 0;  // of the member
  bool checked_ = true;  // crc_ is that of [0, at_)
  unsigned long crc_ = 0;
};

/// Writes a new archive: members in turn, dated 1980, so that the same work gives the same bytes.
class ZipWriter {
 public:
  /// `level`: 0 stores, 1 to 9 deflate. The file must be seekable.
  ZipWriter(AtomicFile& file, int level);
  ~ZipWriter();

  void begin(std::string name, std::int64_t bytes);
  void write(const void* data, std::int64_t n);
  void end();
  /// Writes the directory.
  void finish();

 private:
  struct Deflater;
  void put(const void* data, std::int64_t n);
  void deflate_all(const std::byte* data, unsigned n, int flush);

  AtomicFile& file_;
  int level_;
  std::unique_ptr<Deflater> deflater_;
  std::vector<ZipEntry> entries_;
  // Of the member: its local header has zip64 sizes; its first stored byte.
  bool is_large_ = false;
  std::uint64_t data_at_ = 0, at_ = 0;
};

}  // namespace ejk::io
