// Compares JSON reports with the table of their keys (apps/ejk/schema.hpp), both ways: each key of a report
// is in the table and of its type, none is missing that is always there, and in the end each row was seen.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

class ReportKeys {
 public:
  /// What of a report is not as the table says, a line each.
  std::vector<std::string> faults_of(const nlohmann::json& report);

  /// Rows for `command` that no report had until now; of "program" those that all commands share.
  std::vector<std::string> unseen(const std::string& command) const;

 private:
  std::map<std::string, std::set<std::string>> seen_;  // paths in the table, by command
};
