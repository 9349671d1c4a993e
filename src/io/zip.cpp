// Zip archives: the directory at the end of the file, raw deflate streams, and the writer. Numbers are
// little-endian.
// tests: tests/io/test_npz.cpp
#include "io/zip.hpp"

#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>
#include <numeric>
#include <string_view>

#include "ejk/program/text.hpp"
#include "io/atomic_file.hpp"
#include "io/other_content.hpp"

namespace ejk::io {

namespace {

constexpr std::uint32_t kLocalHeader = 0x04034b50, kDirectoryEntry = 0x02014b50, kEnd = 0x06054b50,
                        kZip64Locator = 0x07064b50, kZip64End = 0x06064b50;
constexpr std::int64_t kLocalBytes = 30, kEntryBytes = 46, kEndBytes = 22, kLocatorBytes = 20,
                       kZip64EndBytes = 56, kLongestComment = 0xFFFF;
constexpr std::uint32_t kIn64 = 0xFFFFFFFF;  // a field whose value is in the zip64 extra field
constexpr std::uint16_t kZip64Extra = 1, kStored = 0, kDeflated = 8, kEncrypted = 1, kUtf8 = 1 << 11;
constexpr std::int64_t kBufferBytes = 1 << 16;
// Deflate emits at most 258 bytes for two bits, so no member is larger than this many times its stored size.
constexpr std::uint64_t kMaxDeflateRatio = 1032;

template <class T>
T number(const char* at) {
  T value = 0;
  for (std::size_t i = sizeof(T); i-- > 0;)
    value = static_cast<T>(value << 8 | static_cast<unsigned char>(at[i]));
  return value;
}

template <class T>
void append(std::string& to, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) to += static_cast<char>(value >> (8 * i) & 0xFF);
}

struct NoArchive {};
struct Overlap {
  std::string why;
};

std::string bytes_at(const ZipFile& zip, std::uint64_t at, std::int64_t n) {
  std::string bytes(static_cast<std::size_t>(n), '\0');
  read_all_at(zip.file.fd(), bytes.data(), n, static_cast<std::int64_t>(at), zip.name);
  return bytes;
}

struct Directory {
  std::uint64_t entries = 0, bytes = 0, at = 0;
};

bool fits(std::uint64_t at, std::uint64_t bytes, std::int64_t end) {
  return at <= static_cast<std::uint64_t>(end) && bytes <= static_cast<std::uint64_t>(end) - at;
}

// The last end record whose comment and directory are within the file.
Directory find_directory(const ZipFile& zip) {
  const std::int64_t n = std::min(zip.size, kEndBytes + kLongestComment), begin = zip.size - n;
  const std::string tail = bytes_at(zip, static_cast<std::uint64_t>(begin), n);
  for (std::int64_t i = n - kEndBytes; i >= 0; --i) {
    const char* end = tail.data() + i;
    if (number<std::uint32_t>(end) != kEnd || i + kEndBytes + number<std::uint16_t>(end + 20) > n) continue;
    Directory found{number<std::uint16_t>(end + 10), number<std::uint32_t>(end + 12),
                    number<std::uint32_t>(end + 16)};
    std::int64_t before = begin + i;
    if (const std::int64_t locator = before - kLocatorBytes; locator >= 0) {
      const std::string bytes = bytes_at(zip, static_cast<std::uint64_t>(locator), kLocatorBytes);
      const auto at = number<std::uint64_t>(bytes.data() + 8);
      if (number<std::uint32_t>(bytes.data()) == kZip64Locator && fits(at, kZip64EndBytes, locator)) {
        const std::string end64 = bytes_at(zip, at, kZip64EndBytes);
        if (number<std::uint32_t>(end64.data()) != kZip64End) continue;
        found = {number<std::uint64_t>(end64.data() + 32), number<std::uint64_t>(end64.data() + 40),
                 number<std::uint64_t>(end64.data() + 48)};
        before = static_cast<std::int64_t>(at);
      }
    }
    if (fits(found.at, found.bytes, before) && found.entries <= found.bytes / kEntryBytes) return found;
  }
  throw NoArchive();
}

// Sizes and position of an entry whose 32-bit fields are full.
void read_zip64(std::string_view extra, ZipEntry& entry) {
  while (extra.size() >= 4) {
    const auto id = number<std::uint16_t>(extra.data());
    const std::size_t n = number<std::uint16_t>(extra.data() + 2);
    extra.remove_prefix(4);
    if (n > extra.size()) return;
    std::string_view values = extra.substr(0, n);
    extra.remove_prefix(n);
    if (id != kZip64Extra) continue;
    for (std::uint64_t* field : {&entry.bytes, &entry.stored_bytes, &entry.header_at}) {
      if (*field != kIn64 || values.size() < 8) continue;
      *field = number<std::uint64_t>(values.data());
      values.remove_prefix(8);
    }
  }
}

// Members that share bytes would expand a small archive without bound, and no writer makes them. Headers may
// be longer than the directory says; a reader compares its member's end with the limit.
void set_limits(std::vector<ZipEntry>& entries, std::uint64_t directory_at) {
  std::vector<std::uint32_t> order(entries.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::pair(entries[a].header_at, a) < std::pair(entries[b].header_at, b);
  });
  for (std::size_t i = 0; i < order.size(); ++i) {
    ZipEntry& entry = entries[order[i]];
    const ZipEntry* next = i + 1 < order.size() ? &entries[order[i + 1]] : nullptr;
    entry.limit = next != nullptr ? next->header_at : directory_at;
    const std::uint64_t least = static_cast<std::uint64_t>(kLocalBytes) + entry.name.size();
    const bool fits_in = entry.header_at <= entry.limit && least <= entry.limit - entry.header_at &&
                         entry.stored_bytes <= entry.limit - entry.header_at - least;
    if (fits_in || next == nullptr || next->header_at >= directory_at) continue;
    throw Overlap{fmt::format("its members '{}' and '{}' overlap", printable(entry.name, 60),
                              printable(next->name, 60))};
  }
}

std::vector<ZipEntry> entries_of(const ZipFile& zip) {
  const Directory directory = find_directory(zip);
  const std::string bytes = bytes_at(zip, directory.at, static_cast<std::int64_t>(directory.bytes));
  std::string_view rest = bytes;
  std::vector<ZipEntry> entries;
  for (std::uint64_t i = 0; i < directory.entries; ++i) {
    if (rest.size() < kEntryBytes || number<std::uint32_t>(rest.data()) != kDirectoryEntry) throw NoArchive();
    const char* at = rest.data();
    const std::size_t name = number<std::uint16_t>(at + 28), extra = number<std::uint16_t>(at + 30),
                      all = kEntryBytes + name + extra + number<std::uint16_t>(at + 32);
    if (all > rest.size()) throw NoArchive();
    ZipEntry& entry = entries.emplace_back();
    entry.name = rest.substr(kEntryBytes, name);
    entry.flags = number<std::uint16_t>(at + 8);
    entry.method = number<std::uint16_t>(at + 10);
    entry.crc = number<std::uint32_t>(at + 16);
    entry.stored_bytes = number<std::uint32_t>(at + 20);
    entry.bytes = number<std::uint32_t>(at + 24);
    entry.header_at = number<std::uint32_t>(at + 42);
    read_zip64(rest.substr(kEntryBytes + name, extra), entry);
    rest.remove_prefix(all);
  }
  set_limits(entries, directory.at);
  return entries;
}

unsigned long checksum(unsigned long crc, const void* data, std::int64_t n) {
  return crc32_z(crc, static_cast<const Bytef*>(data), static_cast<z_size_t>(n));
}

unsigned limited(std::int64_t n) {
  return static_cast<unsigned>(std::min<std::int64_t>(n, std::numeric_limits<unsigned>::max()));
}

DamagedMember damaged_by(std::string_view why) {
  return DamagedMember(fmt::format("the member is damaged ({})", why));
}

}  // namespace

ZipFile::ZipFile(File opened, std::string of, std::string_view wanted)
    : file(std::move(opened)), name(std::move(of)) {
  size = size_of_file(file.fd(), name);
  if (size == 0) throw Error(Error::Kind::input, name + ": the file is empty");
  try {
    entries = entries_of(*this);
  } catch (const NoArchive&) {
    refuse_other_content(file.fd(), name, wanted);
    throw Error(Error::Kind::input,
                fmt::format("{}: not {} (no zip archive, or cut off before its end)", name, wanted));
  } catch (const Overlap& overlap) {
    throw Error(Error::Kind::input, fmt::format("{}: {}", name, overlap.why));
  }
}

struct ZipReader::Inflater {
  Inflater() {
    if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw std::bad_alloc();
  }
  ~Inflater() { inflateEnd(&stream); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  z_stream stream{};
  std::uint64_t consumed = 0;  // stored bytes that are in the buffer or before it
  bool ended = false;
  std::byte buffer[kBufferBytes];
};

ZipReader::ZipReader(std::shared_ptr<const ZipFile> zip, const ZipEntry& entry)
    : zip_(std::move(zip)), entry_(entry) {
  if ((entry.flags & kEncrypted) != 0) throw DamagedMember("the member is encrypted");
  if (entry.method != kStored && entry.method != kDeflated)
    throw DamagedMember(
        fmt::format("the member is compressed by method {}, not stored or deflated", entry.method));
  const bool can_hold =
      is_stored() ? entry.bytes == entry.stored_bytes : entry.bytes / kMaxDeflateRatio <= entry.stored_bytes;
  if (!can_hold || entry.bytes > INT64_MAX)
    throw DamagedMember(fmt::format("the member claims {} bytes, which its {} stored bytes cannot hold",
                                    entry.bytes, entry.stored_bytes));
  if (!fits(entry.header_at, kLocalBytes, zip_->size)) throw damaged_by("its header is outside the file");
  const std::string header = bytes_at(*zip_, entry.header_at, kLocalBytes);
  const std::uint64_t at = entry.header_at + kLocalBytes + number<std::uint16_t>(header.data() + 26) +
                           number<std::uint16_t>(header.data() + 28);
  if (number<std::uint32_t>(header.data()) != kLocalHeader ||
      number<std::uint16_t>(header.data() + 8) != entry.method)
    throw damaged_by("its header is not that of the directory");
  if (!fits(at, entry.stored_bytes, zip_->size)) throw damaged_by("its bytes are outside the file");
  if (at > entry.limit || entry.stored_bytes > entry.limit - at)
    throw damaged_by("its bytes overlap the next member or the directory");
  data_at_ = static_cast<std::int64_t>(at);
}

ZipReader::~ZipReader() = default;

bool ZipReader::is_stored() const { return entry_.method == kStored; }

void ZipReader::close() { inflater_.reset(); }

void ZipReader::restart() {
  inflater_ = std::make_unique<Inflater>();
  at_ = 0;
  checked_ = true;
  crc_ = 0;
}

void ZipReader::read(std::int64_t offset, std::int64_t n, std::byte* to) {
  if (is_stored()) {
    if (offset == 0) checked_ = true, crc_ = 0;
    checked_ = checked_ && (offset == 0 || offset == at_);
    read_all_at(zip_->file.fd(), to, n, data_at_ + offset, zip_->name);
    at_ = offset + n;
    if (checked_) crc_ = checksum(crc_, to, n);
  } else {
    if (!inflater_ || offset < at_) restart();
    std::byte skipped[1 << 14];
    while (at_ < offset) inflate_all(skipped, std::min<std::int64_t>(offset - at_, sizeof skipped));
    inflate_all(to, n);
  }
  if (at_ < bytes()) return;
  std::byte extra{};
  const bool holds_more = inflater_ && inflate_some(&extra, 1) > 0;
  close();
  if (holds_more)
    throw DamagedMember(fmt::format("the member holds more than the {} bytes it claims", entry_.bytes));
  if (checked_ && crc_ != entry_.crc) throw damaged_by("its checksum differs");
}

void ZipReader::inflate_all(std::byte* to, std::int64_t n) {
  const std::int64_t got = inflate_some(to, n);
  crc_ = checksum(crc_, to, got);
  at_ += got;
  if (got == n) return;
  close();
  throw DamagedMember(fmt::format("the member claims {} bytes and holds {}", entry_.bytes, at_));
}

std::int64_t ZipReader::inflate_some(std::byte* to, std::int64_t n) {
  z_stream& stream = inflater_->stream;
  std::int64_t done = 0;
  while (done < n && !inflater_->ended) {
    if (stream.avail_in == 0) {
      const std::uint64_t left = entry_.stored_bytes - inflater_->consumed;
      const auto some = static_cast<std::int64_t>(std::min<std::uint64_t>(left, kBufferBytes));
      if (some == 0) break;
      read_all_at(zip_->file.fd(), inflater_->buffer, some,
                  data_at_ + static_cast<std::int64_t>(inflater_->consumed), zip_->name);
      inflater_->consumed += static_cast<std::uint64_t>(some);
      stream.next_in = reinterpret_cast<Bytef*>(inflater_->buffer);
      stream.avail_in = static_cast<uInt>(some);
    }
    const uInt most = limited(n - done);
    stream.next_out = reinterpret_cast<Bytef*>(to + done);
    stream.avail_out = most;
    const int status = inflate(&stream, Z_NO_FLUSH);
    done += most - stream.avail_out;
    if (status == Z_MEM_ERROR) throw std::bad_alloc();
    if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR) {
      close();
      throw damaged_by("its deflate stream is invalid");
    }
    inflater_->ended = status == Z_STREAM_END;
  }
  return done;
}

struct ZipWriter::Deflater {
  explicit Deflater(int level) {
    if (deflateInit2(&stream, level, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK)
      throw std::bad_alloc();
  }
  ~Deflater() { deflateEnd(&stream); }
  Deflater(const Deflater&) = delete;
  Deflater& operator=(const Deflater&) = delete;

  z_stream stream{};
  std::byte buffer[kBufferBytes];
};

namespace {

// 1 January 1980, midnight; read and written by anyone, as Unix has it.
constexpr std::uint16_t kDate = 1 << 5 | 1, kTime = 0, kUnix = 3 << 8;
constexpr std::uint32_t kMode = 0100644U << 16;

std::uint16_t version_of(bool zip64) { return zip64 ? 45 : 20; }

std::uint32_t low(std::uint64_t value, bool in_64) {
  return in_64 || value >= kIn64 ? kIn64 : static_cast<std::uint32_t>(value);
}

// The fields that a local header and an entry of the directory share.
void append_fields(std::string& to, const ZipEntry& entry, bool zip64, bool in_64) {
  append(to, version_of(zip64));
  append(to, entry.flags);
  append(to, entry.method);
  append(to, kTime);
  append(to, kDate);
  append(to, entry.crc);
  append(to, low(entry.stored_bytes, in_64));
  append(to, low(entry.bytes, in_64));
  append(to, static_cast<std::uint16_t>(entry.name.size()));
}

std::string local_header(const ZipEntry& entry, bool in_64) {
  std::string header;
  append(header, kLocalHeader);
  append_fields(header, entry, in_64, in_64);
  append(header, static_cast<std::uint16_t>(in_64 ? 20 : 0));
  header += entry.name;
  if (in_64) {
    append(header, kZip64Extra);
    append(header, std::uint16_t{16});
    append(header, entry.bytes);
    append(header, entry.stored_bytes);
  }
  return header;
}

std::string directory_entry(const ZipEntry& entry) {
  std::string values;
  for (const std::uint64_t value : {entry.bytes, entry.stored_bytes, entry.header_at})
    if (value >= kIn64) append(values, value);
  const bool zip64 = !values.empty();
  std::string bytes;
  append(bytes, kDirectoryEntry);
  append(bytes, static_cast<std::uint16_t>(kUnix | version_of(zip64)));
  append_fields(bytes, entry, zip64, false);
  append(bytes, static_cast<std::uint16_t>(zip64 ? 4 + values.size() : 0));
  append(bytes, std::uint16_t{0});  // comment
  append(bytes, std::uint16_t{0});  // disk
  append(bytes, std::uint16_t{0});  // internal attributes
  append(bytes, kMode);
  append(bytes, low(entry.header_at, false));
  bytes += entry.name;
  if (zip64) {
    append(bytes, kZip64Extra);
    append(bytes, static_cast<std::uint16_t>(values.size()));
    bytes += values;
  }
  return bytes;
}

}  // namespace

ZipWriter::ZipWriter(AtomicFile& file, int level) : file_(file), level_(level) {
  // Headers are written again when sizes are known.
  if (lseek(file.fd(), 0, SEEK_CUR) < 0) throw system_error(Error::Kind::output, file.name(), errno);
}

ZipWriter::~ZipWriter() = default;

void ZipWriter::put(const void* data, std::int64_t n) {
  file_.write(data, n);
  at_ += static_cast<std::uint64_t>(n);
}

void ZipWriter::begin(std::string name, std::int64_t bytes) {
  if (name.size() > 0xFFFF)
    throw Error(Error::Kind::output, fmt::format("{}: a name has more than 65,535 bytes", file_.name()));
  ZipEntry& entry = entries_.emplace_back();
  const bool is_ascii = std::all_of(name.begin(), name.end(), [](char c) { return (c & 0x80) == 0; });
  entry.name = std::move(name);
  entry.flags = is_ascii ? 0 : kUtf8;
  entry.method = level_ > 0 ? kDeflated : kStored;
  entry.header_at = at_;
  // Deflate may add a little.
  is_large_ =
      static_cast<std::uint64_t>(bytes) + static_cast<std::uint64_t>(bytes) / 1000 + (1 << 16) >= kIn64;
  if (level_ > 0) deflater_ = std::make_unique<Deflater>(level_);
  const std::string header = local_header(entry, is_large_);
  put(header.data(), std::ssize(header));
  data_at_ = at_;
}

void ZipWriter::write(const void* data, std::int64_t n) {
  ZipEntry& entry = entries_.back();
  entry.crc = static_cast<std::uint32_t>(checksum(entry.crc, data, n));
  entry.bytes += static_cast<std::uint64_t>(n);
  if (!deflater_) return put(data, n);
  const auto* next = static_cast<const std::byte*>(data);
  while (n > 0) {
    const uInt some = limited(n);
    deflate_all(next, some, Z_NO_FLUSH);
    next += some, n -= some;
  }
}

void ZipWriter::deflate_all(const std::byte* data, unsigned n, int flush) {
  z_stream& stream = deflater_->stream;
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(data));
  stream.avail_in = n;
  do {
    stream.next_out = reinterpret_cast<Bytef*>(deflater_->buffer);
    stream.avail_out = kBufferBytes;
    deflate(&stream, flush);
    put(deflater_->buffer, kBufferBytes - stream.avail_out);
  } while (stream.avail_out == 0);
}

void ZipWriter::end() {
  if (deflater_) deflate_all(nullptr, 0, Z_FINISH);
  deflater_.reset();
  ZipEntry& entry = entries_.back();
  entry.stored_bytes = at_ - data_at_;
  const std::string header = local_header(entry, is_large_);
  write_all_at(file_.fd(), header.data(), std::ssize(header), static_cast<std::int64_t>(entry.header_at),
               file_.name());
}

void ZipWriter::finish() {
  std::string directory;
  for (const ZipEntry& entry : entries_) directory += directory_entry(entry);
  const std::uint64_t n = entries_.size(), bytes = directory.size(), at = at_, end64_at = at + bytes;
  const bool zip64 = n >= 0xFFFF || bytes >= kIn64 || at >= kIn64;
  if (zip64) {
    append(directory, kZip64End);
    append(directory, std::uint64_t{kZip64EndBytes - 12});
    append(directory, static_cast<std::uint16_t>(kUnix | version_of(true)));
    append(directory, version_of(true));
    append(directory, std::uint64_t{0});  // disks
    append(directory, n);
    append(directory, n);
    append(directory, bytes);
    append(directory, at);
    append(directory, kZip64Locator);
    append(directory, std::uint32_t{0});
    append(directory, end64_at);
    append(directory, std::uint32_t{1});
  }
  append(directory, kEnd);
  append(directory, std::uint32_t{0});  // disks
  const auto count = static_cast<std::uint16_t>(std::min<std::uint64_t>(n, 0xFFFF));
  append(directory, count);
  append(directory, count);
  append(directory, low(bytes, false));
  append(directory, low(at, false));
  append(directory, std::uint16_t{0});  // comment
  put(directory.data(), std::ssize(directory));
}

}  // namespace ejk::io
