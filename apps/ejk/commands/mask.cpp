// ejk mask: a mask as bools, computed while it is written.
// tests: tests/cli/mask/
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "commands.hpp"
#include "ejk/mask_info.hpp"
#include "ejk/program/identify.hpp"
#include "ejk/program/text.hpp"
#include "masks.hpp"
#include "schema.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

// The elements of the masks as an array (H, Q, K) or (Q, K), computed on read.
std::shared_ptr<const ArraySource> elements_of(Masks masks) {
  Shape shape{masks.q_length, masks.kv_length};
  if (masks.has_head_axis) shape.insert(shape.begin(), masks.head_count());
  const std::string name = masks.name;
  const auto fill = [masks = std::move(masks)](std::span<const std::int64_t> start,
                                               std::span<const std::int64_t> count, void* out) {
    const std::size_t q = count.size() - 2, k = q + 1;
    const std::int64_t head = q == 1 ? start[0] : 0, heads = q == 1 ? count[0] : 1;
    bool* to = static_cast<bool*>(out);
    for (std::int64_t h = head; h < head + heads; ++h, to += count[q] * count[k])
      masks.heads[static_cast<std::size_t>(h)].read(start[q], start[q] + count[q], start[k],
                                                    start[k] + count[k], to);
  };
  return generated_source({DType::boolean, std::move(shape)}, name, fill,
                          ArrayAccess(ArrayAccess::Order::sequential));
}

// The distinct masks, which are drawn.
std::vector<std::pair<std::size_t, Mask>> distinct(const std::vector<Mask>& heads) {
  std::vector<std::pair<std::size_t, Mask>> all;
  for (std::size_t h = 0; h < heads.size(); ++h)
    if (std::none_of(all.begin(), all.end(), [&](const auto& one) { return one.second.same_as(heads[h]); }))
      all.emplace_back(h, heads[h]);
  return all;
}

void add_pictures(const std::vector<std::pair<std::size_t, Mask>>& masks, Report& report) {
  for (std::size_t n = 0; n < std::min<std::size_t>(kMostPictures, masks.size()); ++n)
    report.add(picture_of(masks[n].second, fmt::format("picture_{}", n),
                          fmt::format("mask of head {} (queries down, keys across)", masks[n].first)));
  report.pictures_left_out = std::max<std::int64_t>(0, std::ssize(masks) - kMostPictures);
}

struct MaskCommand {
  MaskOptions masks;
  bool identify = false;
  bool all_pairs = false;
  std::string target;  // of -o, for references
};

Report described(const IdentifiedMask& found, const std::string& expression,
                 const std::vector<DifferingPair>& differing) {
  Report report;
  report.add(Line{"expression", expression})
      .add("exact", "exact", found.pairs_differ == 0)
      .add("pairs_differ", "pairs that differ", found.pairs_differ, Unit::count);
  Table pairs{"differing", "pairs that differ", {{"query", "query"}, {"key", "key"}, {"mask", "mask"}}, {}};
  pairs.text_rows = std::ssize(differing);
  for (const DifferingPair& pair : differing) pairs.rows.push_back({pair.query, pair.key, pair.is_in_first});
  Table arrays{"arrays", "arrays", {{"name", "name"}, {"dtype", "dtype"}, {"shape", "shape"}}, {}};
  for (const auto& array : found.arrays)
    arrays.rows.push_back({array->name(), std::string(name_of(array->dtype())), array->shape()});
  report.add(std::move(pairs)).add(std::move(arrays));
  return report;
}

Outcome identify(const MaskCommand& options, Job& job) {
  constexpr std::int64_t kBriefPairs = 10;
  if (!options.target.empty() && parse_output(options.target).is_stream())
    throw usage("--identify prints the expression on stdout: -o needs a file");
  const Masks masks = job.phase(Phase::read, [&] { return resolve_masks(options.masks, job); });
  if (masks.head_count() != 1)
    throw usage("--identify takes one mask: {} has {} heads", masks.name, masks.head_count())
        .hint("a slice is one of them: mask.npy[0]");
  const Mask& mask = masks.heads.front();
  Report report;
  if (job.plan(report, identify_mask_bytes(mask.q_length(), mask.kv_length()))) return Outcome::passed;
  const IdentifiedMask found = job.phase(Phase::compute, [&] { return identify_mask(mask); });
  const std::string expression = found.expression([&](const std::string& name) {
    if (options.target.empty()) return name;
    const ArrayReference target = parse_output(options.target);
    const std::string reference =
        target.holds_several() && target.member.empty() ? reference_to(target, name).text : target.text;
    return reference.find_first_of(" ,()&|~\"") == std::string::npos ? reference : '"' + reference + '"';
  });
  const std::int64_t most = options.all_pairs ? found.pairs_differ : kBriefPairs;
  report = job.phase(Phase::compute, [&] {
    return described(
        found, expression,
        found.pairs_differ == 0 ? std::vector<DifferingPair>() : differing_pairs(mask, found.mask, most));
  });
  report.warnings = masks.warnings();
  std::vector<std::string> names;
  std::vector<Output> outputs;
  if (!options.target.empty())
    for (const auto& array : found.arrays) {
      names.push_back(array->name());
      outputs.push_back({array->name(), array, {}});
    }
  if (options.target.empty() || !names.empty()) job.outputs.declare(names);
  job.deliver_line(expression, std::move(report), outputs);
  return found.pairs_differ == 0 ? Outcome::passed : Outcome::failed;
}

Outcome run(const MaskOptions& options, Job& job) {
  Masks masks = job.phase(Phase::read, [&] { return resolve_masks(options, job); });
  const std::vector<std::string> remarks = masks.remarks;
  std::vector<std::pair<std::size_t, Mask>> drawn;
  if (job.wants_picture()) drawn = job.phase(Phase::read, [&] { return distinct(masks.heads); });
  Report report;
  report.warnings = masks.warnings();
  const auto elements = elements_of(std::move(masks));
  report.add("shape", "shape", elements->shape())
      .add("dtype", "dtype", std::string("bool"))
      .add("size", "size", byte_count(elements->shape(), DType::boolean), Unit::bytes);
  std::int64_t peak = std::min(kPieceBytes, byte_count(elements->shape(), DType::boolean));
  for (std::size_t n = 0; n < std::min<std::size_t>(kMostPictures, drawn.size()); ++n)
    peak += picture_bytes(drawn[n].second);
  if (job.plan(report, peak)) return Outcome::passed;
  for (const std::string& remark : remarks) report.add(Remark{remark});
  job.phase(Phase::compute, [&] { add_pictures(drawn, report); });
  job.deliver(std::move(report), {{"mask", elements, {}}});
  return Outcome::passed;
}

Run declare_mask(OptionSet& set) {
  const auto options = std::make_shared<MaskCommand>();
  declare_masks(set, options->masks);
  declare_picture(set);
  add_flag(
      set, "--identify", options->identify,
      "print the shortest expression that equals one mask\n"
      "Exit 1 where none does: the expression is the nearest, and pairs that differ are listed. -q prints "
      "it alone; -o parts.npz writes the arrays that it names.")
      .excludes("--picture");
  add_flag(set, "--all", options->all_pairs, "list all pairs that differ, not 10").needs("--identify");
  return [options, &set](Job& job) {
    options->target = set.shared().output;
    return options->identify ? identify(*options, job) : run(options->masks, job);
  };
}

}  // namespace

extern const Command mask_command{
    .name = "mask",
    .group = "Masks",
    .summary = "write a mask out as a bool array",
    .example = "ejk mask --mask 'local(left=3, right=0)' --shape 8x8",
    .outputs = {{"mask", "(H, Q, K) or (Q, K) bool", "True where query q may attend to key k"}},
    .use = R"(scores = np.where(np.load("mask.npy"), scores, -np.inf))",
    .keys = R"(
shape | shape | of the array that is written | without --identify
dtype | string | its element type | without --identify
size_bytes | integer | bytes of its elements | without --identify
expression | string | the expression, with references to arrays in the file of -o | with --identify
exact | boolean | whether it equals the mask | with --identify
pairs_differ | integer | pairs that one of the two has | with --identify
differing | table | the first 10 of these, with --all all | with --identify
  query, key | integer | the pair
  mask | boolean | whether the mask has it
arrays | table | the arrays that the expression names | with --identify
  name, dtype | string | cu, ids, q_ids, kv_ids or blocks; its element type
  shape | shape | its shape
)",
    .declare = declare_mask,
};

}  // namespace ejk::app
