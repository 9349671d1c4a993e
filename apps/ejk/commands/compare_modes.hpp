// ejk compare --runs and --routing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "commands.hpp"
#include "ejk/program/runs.hpp"
#include "job.hpp"

namespace ejk::app {

void warn_of_links(Report& report, const std::string& word, Job& job);

struct RunsWords {
  std::vector<std::string> runs;
  RunsOptions options;  // without the two that are files
  std::string group_sizes, cu_seqlens;
};
Outcome compare_runs_of(RunsWords& words, Job& job);

struct RoutingWords {
  std::string actual, expected;
  std::optional<std::int64_t> top_k;
};
Outcome compare_routings(const RoutingWords& words, Job& job);

}  // namespace ejk::app
