// Formatting of values by unit: three significant digits, counts with their plural.
// tests: tests/report/test_text.cpp
#include "report/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "ejk/program/text.hpp"

namespace ejk::report {

namespace {

// By Unit: what it counts, in the plural, and the end of its JSON key.
constexpr std::string_view kPlurals[] = {"", "", "blocks", "rows", "keys", "elements", "tokens", "",
                                         "", "", "",       "",     "",     "",         ""};
constexpr std::string_view kKeyEndings[] = {
    "", "", "", "", "", "", "", "_bytes", "", "_s", "_flop", "_bytes_per_s", "_flop_per_s", "", ""};

std::string seconds(double s) {
  if (s == 0) return "0 s";
  if (s < 0.9995e-3) return fmt::format("{:.1g} ms", s * 1e3);
  if (s < 0.9995) return fmt::format("{:.3g} ms", s * 1e3);
  if (s < 59.95) return fmt::format("{:.3g} s", s);
  const auto whole = static_cast<std::int64_t>(std::llround(s));
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

std::string bytes(double value) {
  constexpr double most = 9e18;  // what 64 bits count
  return format_bytes(std::llround(std::clamp(value, 0.0, most)));
}

std::string flop(double value) {
  constexpr std::array units{"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"};
  if (value < 1000) return fmt::format("{:.4g} FLOP", value);
  std::size_t unit = 1;
  for (value /= 1000; value >= 999.95 && unit + 1 < units.size(); ++unit) value /= 1000;
  return fmt::format("{:.1f} {}", value, units[unit]);
}

// "1,048,576", "256.5", "2.98"; below 1 as many digits as tell it from 0.
std::string plain(double value) {
  constexpr double most = 1e15;
  const double size = std::abs(value);
  if (value == 0) return "0";
  if (size < 0.995 || size >= most) return fmt::format("{:.3g}", value);
  const auto hundredths = std::llround(size * 100);
  std::string text = (value < 0 ? "-" : "") + format_count(hundredths / 100);
  if (hundredths % 100 == 0) return text;
  text += fmt::format(".{:02}", hundredths % 100);
  return text.ends_with('0') ? text.substr(0, text.size() - 1) : text;
}

// In so many significant digits; NaN has a sign that says nothing.
std::string real(double value, int digits = 3) {
  return std::isnan(value) ? "nan" : fmt::format("{:.{}g}", value, digits);
}

std::string measure(double value, Unit unit) {
  if (!std::isfinite(value)) return real(value);
  if (unit == Unit::bytes) return bytes(value);
  if (unit == Unit::share) return percent(value);
  if (unit == Unit::seconds) return seconds(value);
  if (unit == Unit::flop) return flop(value);
  if (unit == Unit::bytes_per_second) return bytes(value) + "/s";
  if (unit == Unit::flop_per_second) return flop(value) + "/s";
  return plain(value);
}

bool is_measure(Unit unit) { return unit >= Unit::bytes && unit <= Unit::flop_per_second; }

std::string number(const ReportValue& value, Unit unit) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) {
    if (unit == Unit::bytes) return format_bytes(*whole);
    return is_measure(unit) ? measure(static_cast<double>(*whole), unit) : format_count(*whole);
  }
  if (const auto* large = std::get_if<std::uint64_t>(&value))
    return is_measure(unit) ? measure(static_cast<double>(*large), unit)
                            : format_count(static_cast<std::int64_t>(*large / 1000)) +
                                  fmt::format(",{:03}", *large % 1000);
  if (const auto* floating = std::get_if<double>(&value)) return measure(*floating, unit);
  if (const auto* truth = std::get_if<bool>(&value)) return *truth ? "yes" : "no";
  if (const auto* text = std::get_if<std::string>(&value)) return printable(*text);
  if (const auto* list = std::get_if<std::vector<std::int64_t>>(&value)) {
    if (unit == Unit::none) return to_string(*list);  // a shape
    std::string out;
    for (const std::int64_t n : *list) out += (out.empty() ? "" : " x ") + number(n, unit);
    return out;
  }
  return "-";
}

// The fewest significant digits, at least three, in which numbers that differ are written differently.
int digits_apart(const std::vector<double>& numbers) {
  constexpr int kMost = std::numeric_limits<double>::max_digits10;
  int digits = 3;
  const auto are_alike = [&](double a, double b) {
    return a != b && !(std::isnan(a) && std::isnan(b)) && real(a, digits) == real(b, digits);
  };
  for (std::size_t i = 1; i < numbers.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      while (digits < kMost && are_alike(numbers[i], numbers[j])) ++digits;
  return digits;
}

}  // namespace

std::string percent(double share) {
  const double p = 100 * share;
  if (!std::isfinite(p)) return real(p);
  if (p == std::round(p) && std::abs(p) <= 100) return fmt::format("{:.0f} %", p);
  // Enough digits that the distance to 0 % or 100 % shows.
  const double distance = std::min(std::abs(p), std::abs(100 - p));
  int digits = 1;
  for (double d = distance; d < 0.9995 && digits < 6; d *= 10) ++digits;
  if (distance < 0.5e-6) return p < 50 ? "< 0.000001 %" : "> 99.999999 %";
  return fmt::format("{:.{}f} %", p, digits);
}

std::string with_unit(const ReportValue& value, Unit unit) {
  std::string text = number(value, unit);
  std::string_view word = kPlurals[static_cast<std::size_t>(unit)];
  if (word.empty() || std::holds_alternative<std::string>(value) ||
      std::holds_alternative<std::monostate>(value))
    return text;
  if (const auto* whole = std::get_if<std::int64_t>(&value); whole && *whole == 1) word.remove_suffix(1);
  return fmt::format("{} {}", text, word);
}

std::string cell(const Table& table, std::size_t row, std::size_t column) {
  const std::vector<ReportValue>& cells = table.rows[row];
  const Unit unit = table.columns[column].unit;
  const double* floating = std::get_if<double>(&cells.at(column));
  if (unit != Unit::value || floating == nullptr) return number(cells.at(column), unit);
  std::vector<double> elements;
  for (std::size_t c = 0; c < table.columns.size(); ++c)
    if (const auto* value = std::get_if<double>(&cells.at(c));
        value != nullptr && table.columns[c].unit == Unit::value)
      elements.push_back(*value);
  return real(*floating, digits_apart(elements));
}

std::string_view key_ending(Unit unit) { return kKeyEndings[static_cast<std::size_t>(unit)]; }

}  // namespace ejk::report

ejk::ReportValue ejk::whole_number(double count) {
  return std::abs(count) < 0x1p53 ? ReportValue(static_cast<std::int64_t>(count)) : ReportValue(count);
}

ejk::ReportValue ejk::ratio(double part, double whole) {
  return whole == 0 ? ReportValue() : ReportValue(part / whole);
}
