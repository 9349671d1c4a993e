// Group metadata of other libraries, walked as their kernels do: ends of groups, labels of rows, blocks of
// choices. With the sizes of the groups or the experts of tokens every change of meaning is found; without
// them what the arrays contradict among each other. Memory: the arrays as 64-bit integers.
// tests: tests/check/test_group_arrays.cpp
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <map>
#include <unordered_map>

#include "check/groups.hpp"
#include "check/integers.hpp"
#include "core/checked.hpp"
#include "core/require.hpp"
#include "ejk/program/text.hpp"

namespace ejk {

namespace {

using Values = std::vector<std::int64_t>;

// The layout that is claimed, or that ejk wrote beside the arrays.
std::optional<GroupLayout> stated_layout(const ArrayGroup& group, const GroupMetadataClaims& claims) {
  if (claims.layout) return claims.layout;
  const auto& attributes = group.attributes;
  const auto command = attributes.find("ejk_command"), name = attributes.find("layout");
  if (command == attributes.end() || command->second != "group-metadata" || name == attributes.end())
    return std::nullopt;
  for (const GroupLayout layout : kGroupLayouts)
    if (name_of(layout) == name->second) return layout;
  return std::nullopt;
}

// DeepGEMM's labels: the group of each row, equal or padding within a tile of `align` rows. DeepGEMM's ends: the end
// of each group, which begins at a multiple of `align`. An array may satisfy both.
bool fits_labels(const Values& values, std::int64_t align) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::int64_t first = values[i - i % static_cast<std::size_t>(align)];
    if (values[i] < -1 || (values[i] != -1 && values[i] != first) ||
        (i > 0 && values[i] >= 0 && values[i] < values[i - 1]))
      return false;
  }
  return std::ssize(values) % align == 0;
}
bool fits_ends(const Values& values, std::int64_t align) {
  std::int64_t begin = 0;
  for (const std::int64_t end : values) {
    if (end < begin) return false;
    begin = check::padded_rows(end, align);
  }
  return true;
}

class ArraysCheck {
 public:
  ArraysCheck(GroupLayout layout, const ArrayGroup& group, const GroupMetadataClaims& claims,
              const CheckOptions& options)
      : layout_(layout), claims_(claims), found_(rules_of("group-metadata"), options.most_findings) {
    for (const auto& [name, source] : group.arrays) {
      check::require_integers(*source, name.c_str(), 0, 1, "a 1-D array");
      arrays_[name] = check::read_all_of(*source);
    }
    for (const std::string& name : group_array_names(layout))
      if (!arrays_.contains(name))
        throw core::invalid("{}: holds no array '{}'", group.name, name)
            .hint(
                fmt::format("layout {} has {}", name_of(layout), fmt::join(group_array_names(layout), ", ")));
    check::require_claim("align", claims.align, 1);
    check::require_claim("m", claims.m.value_or(0), 0);
    check::require_claim("experts", claims.experts, 0);
    sizes_ = check::claimed_sizes(claims);
    if (claims.topk_ids) choices_ = check::read_all_of(*claims.topk_ids);
    is_assumed_ = (layout == GroupLayout::deepgemm || layout == GroupLayout::deepgemm_psum) &&
                  !stated_layout(group, claims);
  }

  Findings run() {
    switch (layout_) {
      case GroupLayout::offsets:
        check_offsets();
        break;
      case GroupLayout::deepgemm:
        check_labels();
        break;
      case GroupLayout::deepgemm_psum:
        check_psum();
        break;
      case GroupLayout::deepgemm_masked:
        check_masked();
        break;
      case GroupLayout::vllm:
        check_blocks("num_tokens_post_padded");
        break;
      case GroupLayout::sglang:
        check_blocks("num_tokens_post_pad");
        break;
      case GroupLayout::megablocks:
        check_megablocks();
        break;
    }
    check_assumption();
    if (!sizes_)
      check::add(found_, "unchecked", 0, group_array_names(layout_)[0].c_str(), {}, {}, [] {
        return std::string("rows are not compared with the sizes of groups: none are given");
      });
    found_.facts()
        .add("layout", "layout", std::string(name_of(layout_)))
        .add("groups", "groups", groups_, Unit::count)
        .add("rows", "rows", rows_, Unit::count);
    return std::move(found_);
  }

 private:
  template <class Message>
  void add(std::string_view rule, const char* array, std::int64_t index, const ReportValue& value,
           Message&& message) {
    check::add(found_, rule, index, array, {index}, value, message);
  }
  void add_whole(std::string_view rule, const char* array, const std::string& message) {
    check::add(found_, rule, -1, array, {}, {}, [&] { return message; });
  }

  void check_assumption() {
    if (!is_assumed_) return;
    const Values& numbers = values("grouped_layout");
    if (numbers.empty() || !fits_labels(numbers, claims_.align) || !fits_ends(numbers, claims_.align)) return;
    const bool are_labels = layout_ == GroupLayout::deepgemm;
    check::add(found_, "assumed", 0, "grouped_layout", {}, {}, [&] {
      return fmt::format("interpreted as {}; in layout {} it is {}",
                         are_labels ? "labels of rows" : "ends of groups",
                         name_of(are_labels ? GroupLayout::deepgemm_psum : GroupLayout::deepgemm),
                         are_labels ? "ends of groups" : "labels of rows");
    });
  }

  const Values& values(const char* array) const { return arrays_.at(array); }
  std::int64_t padded(std::int64_t rows) const { return check::padded_rows(rows, claims_.align); }
  static std::int64_t sum(std::int64_t a, std::int64_t b) {
    return core::checked_add(a, std::max<std::int64_t>(b, 0)).value_or(INT64_MAX);
  }

  // Values that are known but for some: `expected` of each index.
  void compare(const char* array, const Values& expected, std::string_view rule = "sizes") {
    const Values& actual = values(array);
    if (actual.size() != expected.size())
      return add_whole("shape", array, fmt::format("{} entries, not {}", actual.size(), expected.size()));
    for (std::size_t i = 0; i < actual.size(); ++i)
      if (actual[i] != expected[i])
        add(rule, array, static_cast<std::int64_t>(i), actual[i],
            [&] { return fmt::format("not {}", expected[i]); });
  }

  // Ends of groups that never decrease; group g begins at begin(the end before it).
  template <class Begin>
  void check_ends(const char* array, Begin&& begin) {
    const Values& ends = values(array);
    groups_ = std::ssize(ends);
    std::int64_t before = 0;
    for (std::size_t g = 0; g < ends.size(); ++g) {
      if (ends[g] < begin(before))
        add("decreasing", array, static_cast<std::int64_t>(g), ends[g],
            [&] { return fmt::format("less than {}, where the group begins", begin(before)); });
      before = std::max(before, ends[g]);
    }
    rows_ = before;
    if (claims_.m && before > *claims_.m)
      add("rows", array, groups_ - 1, before, [&] { return check::there_are(*claims_.m, "row"); });
  }

  Values running(const std::function<std::int64_t(std::int64_t end, std::int64_t size)>& next) const {
    Values ends;
    for (const std::int64_t size : *sizes_) ends.push_back(next(ends.empty() ? 0 : ends.back(), size));
    return ends;
  }

  void check_offsets() {
    check_ends("offs", [](std::int64_t end) { return end; });
    const Values& ends = values("offs");
    // The last group may have the rest of the buffer.
    for (std::size_t g = 0; !sizes_ && g < ends.size(); ++g)
      if (ends[g] % claims_.align != 0 && !(g + 1 == ends.size() && ends[g] == claims_.m))
        add("misaligned", "offs", static_cast<std::int64_t>(g), ends[g],
            [&] { return fmt::format("off by {}", ends[g] % claims_.align); });
    if (!sizes_) return;
    Values expected = running([&](std::int64_t end, std::int64_t size) { return sum(end, padded(size)); });
    if (claims_.m && !expected.empty() && ends.size() == expected.size() && ends.back() == *claims_.m)
      expected.back() = *claims_.m;
    compare("offs", expected);
  }

  void check_psum() {
    check_ends("grouped_layout", [&](std::int64_t end) { return padded(end); });
    if (sizes_)
      compare("grouped_layout",
              running([&](std::int64_t end, std::int64_t size) { return sum(padded(end), size); }));
  }

  void check_masked() {
    const Values& sizes = values("masked_m");
    groups_ = std::ssize(sizes);
    for (std::size_t g = 0; g < sizes.size(); ++g) {
      rows_ = sum(rows_, sizes[g]);
      if (sizes[g] < 0 || (claims_.m && sizes[g] > *claims_.m))
        add("rows", "masked_m", static_cast<std::int64_t>(g), sizes[g],
            [&] { return sizes[g] < 0 ? std::string("negative") : check::there_are(*claims_.m, "row"); });
    }
    if (sizes_) compare("masked_m", *sizes_);
  }

  // A kernel computes a tile for the label of its first row.
  void check_labels() {
    const char* const array = "grouped_layout";
    const Values& labels = values(array);
    rows_ = std::ssize(labels);
    std::map<std::int64_t, std::int64_t> rows_of;
    std::int64_t group = -1, tile = -1;
    for (std::int64_t row = 0; row < rows_; ++row) {
      const std::int64_t label = labels[static_cast<std::size_t>(row)];
      if (row % claims_.align == 0) tile = label;
      if (label == -1) continue;
      if (label < -1 || (sizes_ && label >= std::ssize(*sizes_))) {
        add("range", array, row, label, [&] {
          return label < -1 ? std::string("below -1, which is padding")
                            : check::there_are(std::ssize(*sizes_), "group");
        });
        continue;
      }
      if (label < group)
        add("order", array, row, label, [&] { return fmt::format("after group {}", group); });
      group = std::max(group, label);
      if (label != tile)
        add("dropped", array, row, label, [&] {
          return fmt::format("the tile of this row begins with {}, for which it is computed",
                             tile < 0 ? std::string("padding") : fmt::format("group {}", tile));
        });
      ++rows_of[label];
    }
    groups_ = sum(group, 1);
    if (claims_.m && rows_ != *claims_.m)
      add_whole("rows", array, fmt::format("{} labels, and {}", rows_, check::there_are(*claims_.m, "row")));
    if (!sizes_) return;
    groups_ = std::ssize(*sizes_);
    for (std::int64_t g = 0; g < groups_; ++g) {
      const std::int64_t wanted = (*sizes_)[static_cast<std::size_t>(g)];
      if (rows_of[g] != wanted)
        add("sizes", array, g, rows_of[g],
            [&] { return fmt::format("rows of group {}, not {}", g, wanted); });
    }
  }

  // Each choice is in one block of its expert. Places within an expert, and blocks of one expert, are free.
  void check_blocks(const char* count_name) {
    const Values &tokens = values("sorted_token_ids"), &experts = values("expert_ids"),
                 &counts = values(count_name);
    if (counts.empty()) return add_whole("shape", count_name, "it has no number");
    const std::int64_t block = claims_.align, used = counts[0];
    const std::int64_t blocks = core::ceil_div(std::max<std::int64_t>(used, 0), block);
    if (used < 0 || blocks > std::ssize(experts) || blocks > core::ceil_div(std::ssize(tokens), block))
      return add("num-tiles", count_name, 0, used, [&] {
        return fmt::format("there are {} entries and {} blocks", tokens.size(), experts.size());
      });
    if (used % block != 0)
      add("whole-blocks", count_name, 0, used, [&] {
        return fmt::format("no multiple of {} rows: a kernel that rounds down drops the last {}", block,
                           used % block);
      });
    const std::int64_t n = choices_         ? std::ssize(*choices_)
                           : tokens.empty() ? 0
                                            : *std::max_element(tokens.begin(), tokens.end());
    // Padding has one number, which is known where it is there twice.
    const bool knows_padding = choices_ || std::count(tokens.begin(), tokens.end(), n) > 1;
    std::unordered_map<std::int64_t, std::int64_t> place;  // of a choice
    std::map<std::int64_t, std::int64_t> rows_of;
    for (std::int64_t b = 0; b < blocks; ++b) {
      const std::int64_t expert = experts[static_cast<std::size_t>(b)];
      groups_ = std::max(groups_, sum(expert, 1));
      const bool is_expert = expert >= -1 && (!sizes_ || expert < std::ssize(*sizes_));
      if (!is_expert)
        add("range", "expert_ids", b, expert, [&] {
          return expert < -1 ? std::string("below -1, which is none")
                             : check::there_are(std::ssize(*sizes_), "expert");
        });
      const std::int64_t end = std::min((b + 1) * block, std::ssize(tokens));
      const auto is_padding = [&](std::int64_t choice) { return choice >= n; };
      if (knows_padding && std::all_of(tokens.begin() + b * block, tokens.begin() + end, is_padding))
        add("idle", "expert_ids", b, expert, [] { return std::string("a block of padding alone"); });
      for (std::int64_t i = b * block; i < end; ++i) {
        const std::int64_t choice = tokens[static_cast<std::size_t>(i)];
        if (choice >= n) continue;  // padding: kernels mask what is beyond the choices
        if (choice < 0) {
          add("range", "sorted_token_ids", i, choice, [&] { return check::there_are(n, "choice"); });
          continue;
        }
        // Blocks of no expert write zeros: choices of none may be there, as often as they like.
        const bool is_free = expert == -1 && choices_ && (*choices_)[static_cast<std::size_t>(choice)] == -1;
        if (is_free) continue;
        if (const auto [before, is_new] = place.insert({choice, i}); !is_new)
          add("twice", "sorted_token_ids", i, choice,
              [at = before->second] { return fmt::format("as at {}", at); });
        ++rows_, ++rows_of[expert];
        if (choices_ && is_expert && (*choices_)[static_cast<std::size_t>(choice)] != expert)
          add("experts", "sorted_token_ids", i, choice, [&] {
            return fmt::format("a choice of expert {} in a block of {}",
                               (*choices_)[static_cast<std::size_t>(choice)], expert);
          });
      }
    }
    if (choices_) {
      for (std::int64_t f = 0; f < n; ++f)
        if (!place.contains(f) && (*choices_)[static_cast<std::size_t>(f)] >= 0)
          add("dropped", "sorted_token_ids", f, {}, [&] {
            return fmt::format("choice {}, of expert {}, is in no block", f,
                               (*choices_)[static_cast<std::size_t>(f)]);
          });
    } else if (sizes_) {
      for (std::int64_t e = 0; e < std::ssize(*sizes_); ++e)
        if (rows_of[e] != (*sizes_)[static_cast<std::size_t>(e)])
          add("sizes", "sorted_token_ids", e, rows_of[e], [&] {
            return fmt::format("rows of expert {}, not {}", e, (*sizes_)[static_cast<std::size_t>(e)]);
          });
    }
    if (sizes_) groups_ = std::ssize(*sizes_);
  }

  void check_megablocks() {
    // Sizes are the argument, or what the arrays say.
    const bool are_given = sizes_.has_value();
    groups_ = std::ssize(values("tokens_per_expert"));
    if (!are_given) sizes_ = values("tokens_per_expert");
    for (std::size_t g = 0; g < sizes_->size(); ++g)
      if ((*sizes_)[g] < 0) {
        add("rows", "tokens_per_expert", static_cast<std::int64_t>(g), (*sizes_)[g],
            [] { return std::string("negative"); });
        (*sizes_)[g] = 0;
      }
    if (are_given) compare("tokens_per_expert", *sizes_);
    compare("bins", running(sum));
    const Values ends = running([&](std::int64_t end, std::int64_t size) { return sum(end, padded(size)); });
    compare("padded_bins", ends);
    for (const std::int64_t size : *sizes_) rows_ = sum(rows_, size);
    const Values& indices = values("indices");
    if (std::ssize(values("bin_ids")) != std::ssize(indices) || std::ssize(indices) != rows_) {
      add_whole("shape", "indices",
                fmt::format("{} rows, and bin_ids has {}; the experts have {}", indices.size(),
                            values("bin_ids").size(), rows_));
    } else {
      Values bin_ids;
      for (std::size_t g = 0; g < sizes_->size(); ++g)
        bin_ids.insert(bin_ids.end(), static_cast<std::size_t>((*sizes_)[g]), static_cast<std::int64_t>(g));
      compare("bin_ids", bin_ids, "experts");
      check_permutation(indices, bin_ids);
    }
    if (arrays_.contains("offsets")) check_topology(ends);
    if (!are_given) sizes_.reset();
  }

  void check_permutation(const Values& indices, const Values& experts) {
    std::vector<std::int64_t> place(indices.size(), -1);
    for (std::int64_t i = 0; i < std::ssize(indices); ++i) {
      const std::int64_t choice = indices[static_cast<std::size_t>(i)];
      if (choice < 0 || choice >= std::ssize(indices)) {
        add("range", "indices", i, choice, [&] { return check::there_are(std::ssize(indices), "choice"); });
        continue;
      }
      std::int64_t& before = place[static_cast<std::size_t>(choice)];
      if (before >= 0) add("twice", "indices", i, choice, [&] { return fmt::format("as at {}", before); });
      before = i;
      const std::int64_t expert = experts[static_cast<std::size_t>(i)];
      if (choices_ && std::ssize(*choices_) == std::ssize(indices) &&
          (*choices_)[static_cast<std::size_t>(choice)] != expert)
        add("experts", "indices", i, choice, [&] {
          return fmt::format("a choice of expert {} among the rows of {}",
                             (*choices_)[static_cast<std::size_t>(choice)], expert);
        });
    }
    for (std::int64_t f = 0; f < std::ssize(indices); ++f)
      if (place[static_cast<std::size_t>(f)] < 0)
        add("dropped", "indices", f, {}, [&] { return fmt::format("choice {} is in no row", f); });
  }

  // The blocks of the topology are determined by the rows of each expert and the columns of one.
  void check_topology(const Values& ends) {
    for (const char* array :
         {"column_indices", "row_indices", "column_indices_t", "offsets_t", "block_offsets_t"})
      if (!arrays_.contains(array)) return add_whole("shape", array, "it is missing beside offsets");
    const std::int64_t experts = std::ssize(ends), columns = std::ssize(values("offsets_t")) - 1;
    if (experts == 0 || columns < experts || columns % experts != 0)
      return add_whole("shape", "offsets_t",
                       fmt::format("{} columns are not those of {} experts", columns, experts));
    const std::int64_t ffn = columns / experts;
    // As many as there are: what follows is no larger than the arrays.
    const auto blocks = core::checked_mul(ends.back() / claims_.align, ffn);
    if (!blocks || *blocks != std::ssize(values("column_indices")))
      return add_whole("shape", "column_indices",
                       fmt::format("{} blocks are not those of {} rows with padding, {} blocks wide",
                                   values("column_indices").size(), ends.back(), ffn));
    Values offsets, column_indices, row_indices, column_indices_t, offsets_t{0}, block_offsets_t;
    for (std::int64_t e = 0, row = 0; e < experts; ++e) {
      const std::int64_t first = row, end = ends[static_cast<std::size_t>(e)] / claims_.align;
      for (; row < end; ++row) {
        offsets.push_back(row * ffn);
        for (std::int64_t c = 0; c < ffn; ++c)
          column_indices.push_back(e * ffn + c), row_indices.push_back(row);
      }
      for (std::int64_t c = 0; c < ffn; ++c) {
        for (std::int64_t r = first; r < end; ++r)
          column_indices_t.push_back(r), block_offsets_t.push_back(r * ffn + c);
        offsets_t.push_back(std::ssize(column_indices_t));
      }
    }
    offsets.push_back(std::ssize(row_indices));
    compare("offsets", offsets, "blocks");
    compare("column_indices", column_indices, "blocks");
    compare("row_indices", row_indices, "blocks");
    compare("column_indices_t", column_indices_t, "blocks");
    compare("offsets_t", offsets_t, "blocks");
    compare("block_offsets_t", block_offsets_t, "blocks");
  }

  GroupLayout layout_;
  const GroupMetadataClaims& claims_;
  Findings found_;
  std::map<std::string, Values> arrays_;
  std::optional<Values> sizes_, choices_;
  bool is_assumed_ = false;  // by the values, which of DeepGEMM's two layouts it is
  std::int64_t groups_ = 0, rows_ = 0;
};

}  // namespace

std::optional<GroupLayout> group_layout_of(const ArrayGroup& group, const GroupMetadataClaims& claims) {
  if (const auto stated = stated_layout(group, claims)) return stated;
  if (group.find("group_offsets")) return std::nullopt;
  std::vector<GroupLayout> fits;
  for (const GroupLayout layout : kGroupLayouts) {
    const std::vector<std::string> names = group_array_names(layout);
    if (std::all_of(names.begin(), names.end(),
                    [&](const std::string& name) { return group.find(name) != nullptr; }))
      fits.push_back(layout);
  }
  // Labels are less than their number, or fit where ends do not; ends of more rows than groups are not less.
  if (fits == std::vector{GroupLayout::deepgemm, GroupLayout::deepgemm_psum}) {
    const ArraySource& array = *group.find("grouped_layout");
    if (!is_integer(array.dtype()) || array.shape().size() != 1) return GroupLayout::deepgemm;
    const Values values = check::read_all_of(array);
    const std::int64_t align = std::max<std::int64_t>(claims.align, 1);
    const bool are_ends = !values.empty() &&
                          *std::max_element(values.begin(), values.end()) >= std::ssize(values) &&
                          (fits_ends(values, align) || !fits_labels(values, align));
    return are_ends ? GroupLayout::deepgemm_psum : GroupLayout::deepgemm;
  }
  if (fits.size() > 1)
    throw core::invalid("{}: its arrays are those of layout {} and of {}", group.name, name_of(fits[0]),
                        name_of(fits[1]));
  return fits.empty() ? std::nullopt : std::optional(fits[0]);
}

Findings check_group_arrays(GroupLayout layout, const ArrayGroup& group, const GroupMetadataClaims& claims,
                            const CheckOptions& options) {
  return ArraysCheck(layout, group, claims, options).run();
}

std::int64_t check_group_arrays_bytes(const ArrayGroup& group, const GroupMetadataClaims& claims) {
  std::int64_t bytes = 0;
  const auto add = [&](const ArraySource& source, std::int64_t each) {
    bytes += element_count(source.shape()) * each;
  };
  for (const auto& [name, source] : group.arrays) add(*source, 16);
  for (const IntegerArray& given : {claims.group_sizes, claims.topk_ids})
    if (given) add(*given, 24);
  return bytes + check_bytes();
}

}  // namespace ejk
