// Group metadata: the steps of a kernel are sorted by group and tile, as they are in valid metadata, and
// compared with the tiles that contain the rows of each group. Definitions: include/ejk/groups.hpp.
// tests: tests/check/test_groups.cpp
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "check/groups.hpp"
#include "check/integers.hpp"
#include "core/require.hpp"
#include "ejk/program/text.hpp"

namespace ejk {

namespace {

struct Step {
  std::int64_t group = 0, tile = 0, index = 0;
};

class Checker {
 public:
  Checker(const GroupMetadataArrays& arrays, const GroupMetadataClaims& claims, const CheckOptions& options)
      : arrays_(arrays),
        claims_(claims),
        options_(options),
        found_(rules_of("group-metadata"), options.most_findings) {}

  Findings check() {
    check::require_integers(*arrays_.group_offsets, "group_offsets", 1, 1, "a 1-D array");
    check::require_integers(*arrays_.group_ids, "group_ids", 1, 1, "a 1-D array");
    check::require_integers(*arrays_.m_tile_ids, "m_tile_ids", 1, 1, "a 1-D array");
    check::require_integers(*arrays_.num_tiles, "num_tiles", 0, 1, "one number");
    check::require_claim("tm", claims_.tm.value_or(1), 1);
    check::require_claim("align", claims_.align, 1);
    check::require_claim("m", claims_.m.value_or(0), 0);
    check::require_claim("start_group", claims_.start_group.value_or(0), 0);
    check::require_claim("num_nonzero_groups", claims_.num_nonzero_groups.value_or(0), 0);
    check::require_claim("experts", claims_.experts, 0);
    given_sizes_ = check::claimed_sizes(claims_);

    check_offsets();
    if (check_lengths()) {
      read_steps();
      // Steps are compared with rows that are known.
      if (found_.count("begin") + found_.count("decreasing") == 0) check_rows();
    }
    if (!claims_.tm)
      check::add(found_, "unchecked", 0, "m_tile_ids", {}, {},
                 "tiles are not compared with the rows of their groups");
    found_.facts()
        .add("groups", "groups", groups_, Unit::count)
        .add("rows", "rows", offsets_.empty() ? 0 : offsets_.back(), Unit::count)
        .add("tm", "rows of a tile (tm)", claims_.tm ? ReportValue(*claims_.tm) : ReportValue(), Unit::count)
        .add("num_tiles", "steps (num_tiles)", num_tiles_, Unit::count);
    return std::move(found_);
  }

 private:
  template <class Message>
  void add(std::string_view rule, const char* array, std::int64_t index, const ReportValue& value,
           Message&& message) {
    check::add(found_, rule, index, array, {index}, value, message);
  }

  void add_whole(std::string_view rule, const char* array, const ReportValue& value,
                 const std::string& message) {
    check::add(found_, rule, -1, array, {}, value, message);
  }

  std::int64_t begin_of(std::int64_t g) const { return offsets_[static_cast<std::size_t>(g)]; }
  std::int64_t end_of(std::int64_t g) const { return offsets_[static_cast<std::size_t>(g) + 1]; }

  void check_offsets() {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    offsets_ = check::read_all_of(*arrays_.group_offsets);
    const char* const name = "group_offsets";
    for (std::size_t i = 0; i < offsets_.size(); ++i) {
      const auto g = static_cast<std::int64_t>(i);
      if (i == 0 && offsets_[0] != 0) add("begin", name, 0, offsets_[0], "not 0");
      if (i > 0 && offsets_[i] < offsets_[i - 1])
        add("decreasing", name, g, offsets_[i],
            [&] { return check::less_than(offsets_[i - 1], offsets_[i]); });
      if (offsets_[i] > kMost && (i == 0 || offsets_[i - 1] <= kMost))
        add("int32", name, g, offsets_[i], [&] { return fmt::format("beyond {}", kMost); });
      if (i + 1 < offsets_.size() && offsets_[i + 1] > offsets_[i] && offsets_[i] % claims_.align != 0)
        add("misaligned", name, g, offsets_[i],
            [&] { return fmt::format("group {} is off by {}", g, offsets_[i] % claims_.align); });
    }
    if (claims_.m && !offsets_.empty() && offsets_.back() > *claims_.m)
      add("rows", name, std::ssize(offsets_) - 1, offsets_.back(),
          [&] { return check::there_are(*claims_.m, "row"); });
    if (given_sizes_) compare_sizes(*given_sizes_);
  }

  void compare_sizes(const std::vector<std::int64_t>& sizes) {
    if (sizes.size() + 1 != offsets_.size())
      return add_whole("shape", "group_offsets", {},
                       fmt::format("{} offsets for {} groups", offsets_.size(), sizes.size()));
    // A wrong size shifts all later offsets, so the rows of each group are compared.
    for (std::size_t g = 0; g < sizes.size(); ++g) {
      const bool counts = offsets_[g] >= 0 && offsets_[g + 1] >= offsets_[g];
      const std::int64_t rows = counts ? offsets_[g + 1] - offsets_[g] : -1;
      const std::int64_t wanted = check::padded_rows(sizes[g], claims_.align);
      if (sizes[g] < 0 || rows != wanted)
        add("sizes", "group_offsets", static_cast<std::int64_t>(g) + 1, offsets_[g + 1], [&] {
          return fmt::format("group {} has {} rows, not {}", g, counts ? fmt::format("{}", rows) : "no",
                             sizes[g] < 0 ? sizes[g] : wanted);
        });
    }
  }

  bool check_lengths() {
    groups_ = std::max<std::int64_t>(std::ssize(offsets_) - 1, 0);
    const std::int64_t length = arrays_.group_ids->shape()[0], of_tiles = arrays_.m_tile_ids->shape()[0];
    const std::vector<std::int64_t> num_tiles = check::read_all_of(*arrays_.num_tiles);
    const auto wrong = [&](const char* array, const std::string& message) {
      add_whole("shape", array, {}, message);
      return false;
    };
    if (offsets_.empty()) return wrong("group_offsets", "it has no element, not even a 0");
    if (num_tiles.size() != 1)
      return wrong("num_tiles", fmt::format("{} numbers, not one", num_tiles.size()));
    num_tiles_ = num_tiles[0];
    // Without rows there are no tiles; else the list of groups has an entry for each tile and group but one.
    tiles_ = length - (groups_ - 1);
    const bool no_rows = of_tiles == 0 && (length == groups_ - 1 || groups_ == 0);
    if (no_rows) tiles_ = 0;
    if (of_tiles != length && !no_rows)
      return wrong("m_tile_ids", fmt::format("{} entries; group_ids has {}", of_tiles, length));
    if (tiles_ < 0 || (groups_ == 0 && length > 0))
      return wrong("group_ids", fmt::format("{} entries do not go with {} groups", length, groups_));
    first_ = claims_.start_group.value_or(0);
    if (first_ > groups_) throw core::usage("start_group is {}, but there are {} groups", first_, groups_);
    const std::int64_t rest = groups_ - first_;
    end_ = first_ + std::min(rest, claims_.num_nonzero_groups.value_or(rest));
    const std::int64_t rows = std::max<std::int64_t>(offsets_.back(), 0);
    const auto capacity = [&](const std::string& wanted) {
      wrong("group_ids", fmt::format("room for {} tiles, and {}", tiles_, wanted));
    };
    if (tiles_ < (claims_.tm ? core::ceil_div(rows, *claims_.tm) : std::min<std::int64_t>(rows, 1)))
      capacity("rows for more");
    else if (const std::int64_t wanted =
                 claims_.m && claims_.tm ? core::ceil_div(*claims_.m, *claims_.tm) : tiles_;
             groups_ > 0 && tiles_ != wanted)
      capacity(fmt::format("there {} {}", wanted == 1 ? "is" : "are", wanted));
    // Steps of empty groups need entries as well.
    const std::int64_t most = tiles_ == 0 ? groups_ : length;
    if (num_tiles_ < 0 || num_tiles_ > most)
      add_whole("num-tiles", "num_tiles", num_tiles_,
                length == 1 ? "there is 1 entry" : fmt::format("there are {} entries", length));
    steps_count_ = tiles_ == 0 ? 0 : std::clamp<std::int64_t>(num_tiles_, 0, length);
    return true;
  }

  // Steps with valid labels, and whether they are in order.
  void read_steps() {
    steps_.reserve(static_cast<std::size_t>(steps_count_));
    check::Buffer of_groups, of_tiles;
    std::int64_t group_before = 0, tile_before = 0;
    for (std::int64_t begin = 0; begin < steps_count_; begin += check::kPiece) {
      const std::int64_t end = std::min(steps_count_, begin + check::kPiece);
      const auto groups = check::read_range(*arrays_.group_ids, begin, end, of_groups);
      const auto tiles = check::read_range(*arrays_.m_tile_ids, begin, end, of_tiles);
      for (std::int64_t i = begin; i < end; ++i) {
        const auto k = static_cast<std::size_t>(i - begin);
        const Step step{groups[k], tiles[k], i};
        const bool is_group = step.group >= first_ && step.group < end_;
        const bool is_tile = step.tile >= 0 && step.tile < tiles_;
        if (!is_group)
          add("range", "group_ids", i, step.group, [&] {
            return step.group >= 0 && step.group < groups_ ? "a group that is not computed"
                                                           : check::there_are(groups_, "group");
          });
        if (!is_tile)
          add("range", "m_tile_ids", i, step.tile, [&] { return check::there_are(tiles_, "tile"); });
        if (i > 0 && step.group < group_before)
          add("order", "group_ids", i, step.group,
              [&] { return fmt::format("after group {}", group_before); });
        if (i > 0 && step.tile < tile_before)
          add("order", "m_tile_ids", i, step.tile, [&] { return fmt::format("after tile {}", tile_before); });
        group_before = step.group, tile_before = step.tile;
        if (is_group && is_tile) steps_.push_back(step);
      }
      if (options_.progress) options_.progress(end, steps_count_);
    }
    const auto place = [](const Step& s) { return std::tuple(s.group, s.tile, s.index); };
    const auto before = [&](const Step& a, const Step& b) { return place(a) < place(b); };
    if (!std::is_sorted(steps_.begin(), steps_.end(), before))
      std::sort(steps_.begin(), steps_.end(), before);
  }

  void check_rows() {
    bool any_has_step = false;  // of the empty groups
    std::optional<std::int64_t> without_step;
    auto at = steps_.begin();
    for (std::int64_t g = first_; g < end_; ++g) {
      auto stop = at;
      while (stop != steps_.end() && stop->group == g) ++stop;
      const std::span<const Step> steps(at, stop);
      at = stop;
      if (end_of(g) > begin_of(g)) {
        check_group(g, steps);
        continue;
      }
      if (steps.empty()) {
        without_step = g;
        continue;
      }
      any_has_step = true;
      for (const Step& step : steps.subspan(1)) idle(step, "an empty group's second step");
    }
    // Without tiles all groups are empty, and no label assigns steps to groups.
    if (tiles_ == 0) any_has_step = num_tiles_ > 0;
    const bool must_have = claims_.empty_groups ? *claims_.empty_groups == EmptyGroups::visit : any_has_step;
    if (tiles_ == 0 && must_have && num_tiles_ >= 0 && num_tiles_ < end_ - first_)
      add_whole("empty-groups", "num_tiles", num_tiles_,
                fmt::format("there are {} empty groups", end_ - first_));
    if (tiles_ > 0 && must_have && without_step)
      add("empty-groups", "group_offsets", *without_step, begin_of(*without_step),
          [&] { return fmt::format("empty group {} has no step", *without_step); });
  }

  // The steps of a group with rows: one for each of its tiles.
  void check_group(std::int64_t g, std::span<const Step> steps) {
    if (steps.empty()) return add("dropped", "group_offsets", g, begin_of(g), "it has no step");
    // If the rows of a tile are unknown, the tiles from the first to the last step.
    const std::int64_t first = claims_.tm ? begin_of(g) / *claims_.tm : steps.front().tile;
    const std::int64_t last = claims_.tm ? (end_of(g) - 1) / *claims_.tm : steps.back().tile;
    const auto dropped = [&](std::int64_t from, std::int64_t to) {
      add("dropped", "group_offsets", g, begin_of(g), [&] {
        const auto without_step = [](const char* what, std::int64_t first_one, std::int64_t last_one) {
          return first_one == last_one ? fmt::format("{} {} has no step", what, first_one)
                                       : fmt::format("{}s {} to {} have no step", what, first_one, last_one);
        };
        if (!claims_.tm) return without_step("tile", from, to);
        const std::int64_t end = to == last ? end_of(g) : (to + 1) * *claims_.tm;
        return without_step("row", std::max(from * *claims_.tm, begin_of(g)), end - 1);
      });
    };
    std::int64_t next = first;  // the first tile without a step
    for (const Step& step : steps) {
      if (step.tile < first || step.tile > last) {
        idle(step, [&] { return fmt::format("no row of it in tile {}", step.tile); });
      } else if (step.tile < next) {
        add("twice", "m_tile_ids", step.index, step.tile,
            [&] { return fmt::format("again for group {}", g); });
      } else {
        if (step.tile > next) dropped(next, step.tile - 1);
        next = step.tile + 1;
      }
    }
    if (next <= last) dropped(next, last);
  }

  template <class Why>
  void idle(const Step& step, Why&& why) {
    add("idle", "group_ids", step.index, step.group, why);
  }

  const GroupMetadataArrays& arrays_;
  const GroupMetadataClaims& claims_;
  const CheckOptions& options_;
  std::optional<std::vector<std::int64_t>> given_sizes_;
  Findings found_;
  std::vector<std::int64_t> offsets_;
  std::int64_t groups_ = 0, tiles_ = 0, num_tiles_ = 0, steps_count_ = 0;
  std::int64_t first_ = 0, end_ = 0;  // the groups that are computed
  std::vector<Step> steps_;
};

}  // namespace

std::optional<std::vector<std::int64_t>> check::claimed_sizes(const GroupMetadataClaims& claims) {
  if (claims.group_sizes && claims.topk_ids)
    throw Error(Error::Kind::usage, "sizes of the groups are given, and the experts of tokens as well");
  if (claims.group_sizes) {
    require_integers(*claims.group_sizes, "group_sizes", 1, 1, "a 1-D array");
    return read_all_of(*claims.group_sizes);
  }
  if (!claims.topk_ids) return std::nullopt;
  require_integers(*claims.topk_ids, "topk_ids", 1, SIZE_MAX, "(tokens, k)");
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(claims.experts));
  scan(*claims.topk_ids, {}, [&](std::span<const std::int64_t> ids, std::int64_t first) {
    for (std::size_t k = 0; k < ids.size(); ++k) {
      if (ids[k] == -1) continue;
      if (ids[k] < 0 || ids[k] >= claims.experts)
        throw std::move(core::invalid("element {} is {}; {}", first + static_cast<std::int64_t>(k), ids[k],
                                      there_are(claims.experts, "expert"))
                            .at(claims.topk_ids->name()));
      ++sizes[static_cast<std::size_t>(ids[k])];
    }
  });
  return sizes;
}

GroupMetadataArrays group_metadata_in(const ArrayGroup& group, GroupMetadataClaims& claims) {
  const auto array = [&](const char* name) -> IntegerArray {
    if (auto source = group.find(name)) return source;
    throw core::invalid("{}: holds no array '{}'", group.name, name)
        .hint("group metadata is group_offsets, group_ids, m_tile_ids and num_tiles");
  };
  GroupMetadataArrays arrays{array("group_offsets"), array("group_ids"), array("m_tile_ids"),
                             array("num_tiles")};

  const auto attribute = [&](const char* name) -> std::string {
    const auto found = group.attributes.find(name);
    return found == group.attributes.end() ? "" : found->second;
  };
  if (attribute("ejk_command") != "group-metadata") return arrays;
  const Shape& offsets = arrays.group_offsets->shape();
  const std::int64_t groups = offsets.size() == 1 ? std::max<std::int64_t>(offsets[0] - 1, 0) : 0;
  const auto set = [&](std::optional<std::int64_t>& claim, const char* name, std::int64_t least,
                       std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
    const std::string text = attribute(name);
    if (claim || text.empty() || text == "all") return;
    claim = parse_integer(text);
    if (!claim || *claim < least || *claim > most)
      throw core::invalid("{}: the attribute {} is '{}'", group.name, name, printable(text, 40));
  };
  set(claims.tm, "tm", 1);
  set(claims.m, "m", 0);
  set(claims.start_group, "start_group", 0, groups);
  set(claims.num_nonzero_groups, "num_nonzero_groups", 0);
  const std::string visits = attribute("visit_empty_groups");
  if (!claims.empty_groups && (visits == "true" || visits == "false"))
    claims.empty_groups = visits == "true" ? EmptyGroups::visit : EmptyGroups::skip;
  return arrays;
}

Findings check_group_metadata(const GroupMetadataArrays& arrays, const GroupMetadataClaims& claims,
                              const CheckOptions& options) {
  return Checker(arrays, claims, options).check();
}

}  // namespace ejk
