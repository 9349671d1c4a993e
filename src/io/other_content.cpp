// What a file is that is no container of arrays. Text is printable to the end of the bytes inspected.
// Definition of pointers: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
// tests: tests/io/test_other_content.cpp
#include "io/other_content.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "core/require.hpp"
#include "ejk/program/text.hpp"
#include "io/file.hpp"
#include "io/torch_file.hpp"

namespace ejk::io {

namespace {

struct Foreign {
  std::string_view magic, what, hint;
};
constexpr std::string_view kClassic = "netCDF-3 (the classic format), which is not read",
                           kToHdf5 = "`nccopy -k nc4 OLD NEW` makes netCDF-4 of it, which is HDF5";
constexpr std::array<Foreign, 6> kForeign{{
    {"CDF\1", kClassic, kToHdf5},
    {"CDF\2", kClassic, kToHdf5},
    {"CDF\5", kClassic, kToHdf5},
    {"\x0e\x03\x13\x01", "HDF4, which is not read", "`h4toh5 OLD NEW` makes HDF5 of it"},
    {kOldTorchMagic, "torch.save's format before PyTorch 1.6, which is not read", kToTorch},
    {"MATLAB 5.0 MAT", "MATLAB's format before 7.3, which is not read", "save(..., '-v7.3') writes HDF5"},
}};

constexpr std::string_view kPointer = "version https://git-lfs.github.com/spec/",
                           kOldPointer = "version https://hawser.github.com/spec/", kSize = "\nsize ",
                           kBlanks = " \t\r\n";

// Of fewer bytes than a magic has, a file cut off may be a container's.
bool is_text(std::string_view bytes) {
  constexpr std::size_t kLongestMagic = 8;
  return bytes.size() >= kLongestMagic && std::all_of(bytes.begin(), bytes.end(), [](char c) {
           const auto byte = static_cast<unsigned char>(c);
           return (byte >= 0x20 && byte != 0x7F) || kBlanks.find(c) != std::string_view::npos;
         });
}

bool begins_in_any_case(std::string_view text, std::string_view lower) {
  return text.size() >= lower.size() &&
         std::equal(lower.begin(), lower.end(), text.begin(),
                    [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b - 'A' + 'a' : b); });
}

Error pointer_to(std::string_view text) {
  std::string of;
  if (const std::size_t at = text.find(kSize); at != std::string_view::npos) {
    const std::string_view rest = text.substr(at + kSize.size());
    if (const auto bytes = parse_integer(rest.substr(0, rest.find('\n'))); bytes && *bytes >= 0)
      of = fmt::format(", to a file of {} bytes", format_count(*bytes));
  }
  return core::invalid("is a Git LFS pointer{}", of).hint("`git lfs pull` replaces it by the file");
}

}  // namespace

std::optional<Error> foreign_format(std::string_view begin) {
  for (const Foreign& foreign : kForeign)
    if (begin.starts_with(foreign.magic))
      return core::invalid("is {}", foreign.what).hint(std::string(foreign.hint));
  return std::nullopt;
}

std::optional<Error> other_content(std::string_view begin, std::string_view wanted) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF", kAgain = "download it again";
  if (auto foreign = foreign_format(begin)) return foreign;
  if (begin.starts_with(kPointer) || begin.starts_with(kOldPointer)) return pointer_to(begin);
  std::string_view text = begin.substr(0, kFirstBytes);
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  if (!is_text(text)) return std::nullopt;
  text = trimmed(text.substr(std::min(text.find_first_not_of(kBlanks), text.size())));
  const std::string line(text.substr(0, text.find_first_of("\r\n")));
  const auto is = [&](std::string_view what) {
    return core::invalid("not {} (it is {} that begins \"{}\")", wanted, what, printable(line, 60));
  };
  for (const std::string_view page : {"<!doctype", "<html", "<?xml"})
    if (begins_in_any_case(text, page))
      return is("text").hint(fmt::format("a web page was saved, perhaps of a login or an error; {}", kAgain));
  const bool is_object = text.starts_with('{');
  for (const std::string_view key : {"\"error\"", "\"errors\"", "\"message\"", "\"detail\""})
    if (is_object && text.find(key) != std::string_view::npos)
      return is("a server's answer in JSON").hint(std::string(kAgain));
  return is(is_object || text.starts_with('[') ? "JSON" : "text");
}

void refuse_other_content(int fd, std::string_view name, std::string_view wanted) {
  std::array<char, kFirstBytes> bytes{};
  const auto n = std::min<std::int64_t>(size_of_file(fd, name), kFirstBytes);
  read_all_at(fd, bytes.data(), n, 0, name);
  if (auto other = other_content({bytes.data(), static_cast<std::size_t>(n)}, wanted))
    throw std::move(other->at(name));
}

}  // namespace ejk::io
