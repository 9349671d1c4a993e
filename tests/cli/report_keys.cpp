// Walks a report key by key beside the rows of its command, and records the rows that occurred.
#include "report_keys.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <span>

#include "schema.hpp"

namespace {

using ejk::app::ReportKey;
using nlohmann::json;

// "picture_0" is the row "picture_N".
bool names(std::string_view row, std::string_view path) {
  while (!row.empty() && !path.empty()) {
    if (row.front() == 'N' && std::isdigit(static_cast<unsigned char>(path.front()))) {
      path.remove_prefix(std::min(path.find_first_not_of("0123456789"), path.size()));
    } else {
      if (row.front() != path.front()) return false;
      path.remove_prefix(1);
    }
    row.remove_prefix(1);
  }
  return row.empty() && path.empty();
}

bool is_integer(const json& value) {
  // Doubles of this size have no fraction.
  return value.is_number_integer() || (value.is_number_float() && std::abs(value.get<double>()) >= 0x1p53);
}

bool all_of(const json& list, bool (*is)(const json&)) {
  return list.is_array() && std::all_of(list.begin(), list.end(), is);
}

bool is_of(std::string_view type, const json& value) {
  if (type == "null") return value.is_null();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "integer") return is_integer(value);
  if (type == "number") return value.is_number();
  if (type == "share") return value.is_number() && value.get<double>() >= 0 && value.get<double>() <= 1;
  if (type == "shape") return all_of(value, is_integer);
  if (type == "table") return all_of(value, [](const json& row) { return row.is_object(); });
  if (type == "section" || type == "picture") return value.is_object();
  return type == "list" && value.is_array();
}

// "integer or null"
bool is_of_one(std::string_view types, const json& value) {
  constexpr std::string_view kOr = " or ";
  const std::size_t end = types.find(kOr);
  return is_of(types.substr(0, end), value) ||
         (end != std::string_view::npos && is_of_one(types.substr(end + kOr.size()), value));
}

struct Walk {
  bool is_dry_run = false;
  bool is_whole = true;  // an empty plan is all that a dry run over the budget may say
  std::function<void(const ReportKey&)> saw;
  std::vector<std::string> faults;

  // An object, whose keys stand in the table behind `prefix`.
  void object(const json& object, const std::string& prefix, std::span<const ReportKey> keys) {
    for (const auto& item : object.items()) {
      const std::string path = prefix + item.key();
      const json& value = item.value();
      // A key may have two rows, a table in one mode of a command and a section in another.
      const auto with = [&](bool of_type) {
        return std::find_if(keys.begin(), keys.end(), [&](const ReportKey& k) {
          return names(k.path, path) && (!of_type || is_of_one(k.type, value));
        });
      };
      const auto key = with(true) != keys.end() ? with(true) : with(false);
      if (key == keys.end()) {
        faults.push_back(fmt::format("the key {} is not in the table", path));
        continue;
      }
      saw(*key);
      if (!is_of_one(key->type, value))
        faults.push_back(fmt::format("{} is {}, in the table {}", path, value.dump(), key->type));
      else if (key->type == "section")
        this->object(value, std::string(key->path) + ".", keys);
      else if (key->type == "picture")
        this->object(value, "", ejk::app::picture_keys());
      else if (key->type == "table")
        for (const json& row : value) this->object(row, std::string(key->path) + "[].", keys);
    }
    if (object.empty() && !prefix.empty()) return;
    for (const ReportKey& key : keys) {
      if (!key.path.starts_with(prefix)) continue;
      const std::string name(key.path.substr(prefix.size()));
      const bool is_needed =
          key.when == ejk::app::kAlways || key.when == (is_dry_run ? ejk::app::kDryRun : ejk::app::kDone);
      if (is_needed && name.find_first_of(".[N") == std::string::npos && is_whole && !object.contains(name))
        faults.push_back(fmt::format("there is no {}, which is there {}", key.path,
                                     key.when.empty() ? "always" : key.when));
    }
  }
};

}  // namespace

std::vector<std::string> ReportKeys::faults_of(const json& report) {
  const std::string command = report.value("command", "");
  const json result = report.value("result", json::object());
  std::vector<ReportKey> keys = ejk::app::keys_of(command);
  const std::vector<ReportKey>& shared = ejk::app::shared_keys();
  keys.insert(keys.end(), shared.begin(), shared.end());

  Walk walk;
  walk.saw = [&](const ReportKey& key) {
    seen_[command].emplace(key.path);
    seen_["program"].emplace(key.path);  // those that all share among them
  };
  if (result.contains("max_memory_bytes")) {
    walk.is_dry_run = true;
    walk.is_whole = result.value("peak_bytes", 0.0) <= result.value("max_memory_bytes", 0.0);
  }
  walk.object(result, "", keys);
  walk.is_whole = true;
  walk.saw = [](const ReportKey&) {};
  json envelope = report;
  envelope["result"] = json::object();
  walk.object(envelope, "", ejk::app::envelope_keys());
  return std::move(walk.faults);
}

std::vector<std::string> ReportKeys::unseen(const std::string& command) const {
  std::vector<std::string> paths;
  const auto seen = seen_.find(command);
  for (const ReportKey& key : command == "program" ? ejk::app::shared_keys() : ejk::app::keys_of(command))
    if (key.on_all_machines && (seen == seen_.end() || !seen->second.contains(std::string(key.path))))
      paths.emplace_back(key.path);
  return paths;
}
