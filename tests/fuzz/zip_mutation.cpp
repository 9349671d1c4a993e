// A member's new content moves all members after it.
#include "zip_mutation.hpp"

#include <zlib.h>

#include <algorithm>

namespace ejk::fuzz {

namespace {

// A member, by what the central directory says of it.
struct Entry {
  std::size_t central = 0, local = 0, data = 0, stored = 0;
  bool is_deflated = false;
};

constexpr std::size_t kCentralBytes = 46, kLocalBytes = 30, kEndBytes = 22;

std::size_t end_record(const Bytes& bytes) {
  for (std::size_t at = bytes.size() < kEndBytes ? 0 : bytes.size() - kEndBytes + 1; at-- > 0;)
    if (get_number(bytes, at, 4) == 0x06054B50) return at;
  return bytes.size();
}

std::vector<Entry> entries_of(const Bytes& bytes) {
  std::vector<Entry> entries;
  std::size_t at = get_number(bytes, end_record(bytes) + 16, 4);
  while (entries.size() < 64 && get_number(bytes, at, 4) == 0x02014B50) {
    Entry entry;
    entry.central = at;
    entry.local = get_number(bytes, at + 42, 4);
    entry.data = entry.local + kLocalBytes + get_number(bytes, entry.local + 26, 2) +
                 get_number(bytes, entry.local + 28, 2);
    entry.stored = get_number(bytes, at + 20, 4);
    entry.is_deflated = get_number(bytes, at + 10, 2) == 8;
    if (entry.data > bytes.size() || entry.stored > bytes.size() - entry.data) break;
    entries.push_back(entry);
    at += kCentralBytes + get_number(bytes, at + 28, 2) + get_number(bytes, at + 30, 2) +
          get_number(bytes, at + 32, 2);
  }
  return entries;
}

constexpr std::size_t kMostContent = 1 << 16;

Bytes content_of(const Bytes& bytes, const Entry& entry) {
  const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(entry.data);
  Bytes stored(begin, begin + static_cast<std::ptrdiff_t>(entry.stored));
  if (!entry.is_deflated) return stored;
  Bytes content(kMostContent);
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) return {};
  stream.next_in = stored.data(), stream.avail_in = static_cast<uInt>(stored.size());
  stream.next_out = content.data(), stream.avail_out = static_cast<uInt>(content.size());
  inflate(&stream, Z_FINISH);
  content.resize(stream.total_out);
  inflateEnd(&stream);
  return content;
}

Bytes deflated(Bytes content) {
  Bytes stored(content.size() + 64);
  z_stream stream{};
  if (deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK) return {};
  stream.next_in = content.data(), stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = stored.data(), stream.avail_out = static_cast<uInt>(stored.size());
  deflate(&stream, Z_FINISH);
  stored.resize(stream.total_out);
  deflateEnd(&stream);
  return stored;
}

// Puts other bytes in place of a member's, and all that says where and how many they are.
void replace_content(Bytes& bytes, const Entry& entry, const Bytes& content) {
  const Bytes stored = entry.is_deflated ? deflated(content) : content;
  const uLong sum = crc32(crc32(0, nullptr, 0), content.data(), static_cast<uInt>(content.size()));
  for (const std::size_t fields : {entry.central + 16, entry.local + 14}) {
    put_number(bytes, fields, 4, sum);
    put_number(bytes, fields + 4, 4, stored.size());
    put_number(bytes, fields + 8, 4, content.size());
  }
  const std::size_t more = stored.size() - entry.stored;  // modulo 2^64
  for (const Entry& other : entries_of(bytes))
    if (other.local > entry.local) put_number(bytes, other.central + 42, 4, other.local + more);
  const std::size_t end = end_record(bytes);
  put_number(bytes, end + 16, 4, get_number(bytes, end + 16, 4) + more);
  const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(entry.data);
  bytes.erase(begin, begin + static_cast<std::ptrdiff_t>(entry.stored));
  bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(entry.data), stored.begin(), stored.end());
}

struct Field {
  std::size_t at, width;
};
// Version, flags, method, checksum, sizes, lengths of name and extra field; the central ones have more.
constexpr Field kCentral[] = {{6, 2},  {8, 2},  {10, 2}, {16, 4}, {20, 4}, {24, 4},
                              {28, 2}, {30, 2}, {32, 2}, {34, 2}, {38, 4}, {42, 4}};
constexpr Field kLocal[] = {{4, 2}, {6, 2}, {8, 2}, {14, 4}, {18, 4}, {22, 4}, {26, 2}, {28, 2}};
constexpr Field kEnd[] = {{4, 2}, {6, 2}, {8, 2}, {10, 2}, {12, 4}, {16, 4}, {20, 2}};

}  // namespace

void change_zip(Bytes& bytes, Random& random,
                const std::function<void(Bytes& content, Random&)>& change_content) {
  const std::vector<Entry> entries = entries_of(bytes);
  if (entries.empty() || random.one_in(10)) {
    const Field field = kEnd[random.below(std::size(kEnd))];
    return change_number(bytes, end_record(bytes) + field.at, field.width, random);
  }
  const Entry& entry = entries[random.below(entries.size())];
  switch (random.below(6)) {
    case 0: {
      const Field field = kCentral[random.below(std::size(kCentral))];
      return change_number(bytes, entry.central + field.at, field.width, random);
    }
    case 1: {
      const Field field = kLocal[random.below(std::size(kLocal))];
      return change_number(bytes, entry.local + field.at, field.width, random);
    }
    case 2: {  // both tell the same lie
      const std::size_t field = random.below(3);
      change_number(bytes, entry.central + 16 + 4 * field, 4, random);
      return put_number(bytes, entry.local + 14 + 4 * field, 4,
                        get_number(bytes, entry.central + 16 + 4 * field, 4));
    }
    case 3: {  // the bytes as they are stored
      if (entry.stored == 0) return;
      bytes[entry.data + random.below(entry.stored)] = static_cast<std::uint8_t>(random.below(256));
      return;
    }
    default: {  // another array, and all the rest right
      Bytes content = content_of(bytes, entry);
      if (random.one_in(4) && !content.empty())
        content.resize(random.below(2 * content.size()));
      else
        change_content(content, random);
      content.resize(std::min(content.size(), kMostContent));
      return replace_content(bytes, entry, content);
    }
  }
}

}  // namespace ejk::fuzz
