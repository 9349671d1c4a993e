// The options of a router, which route and moe have.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "ejk/route.hpp"
#include "job.hpp"
#include "options.hpp"

namespace ejk::app {

struct RouterOptions {
  std::string logits, bias;
  std::optional<std::int64_t> top_k, groups, top_groups;
  std::optional<RouterScore> score;
  bool renormalize = false;

  bool given() const { return !logits.empty(); }
  RouterSettings settings(Job& job) const;
};

/// `into` outlives the set. `group`: the heading in help.
void declare_router(OptionSet& set, RouterOptions& into, const char* group);

}  // namespace ejk::app
