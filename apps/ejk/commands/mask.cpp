// ejk mask: a mask as bools, computed while it is written.
// tests: tests/cli/mask/
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "commands.hpp"
#include "ejk/mask_info.hpp"
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
  const auto options = std::make_shared<MaskOptions>();
  declare_masks(set, *options);
  declare_picture(set);
  return [options](Job& job) { return run(*options, job); };
}

}  // namespace

extern const Command mask_command{
    .name = "mask",
    .group = "Masks",
    .summary = "write a mask out as a bool array",
    .example = "ejk mask --mask 'local(left=3, right=0)' --shape 8x8",
    .outputs = {{"mask", "(H, Q, K) or (Q, K) bool", "True where query q may attend to key k"}},
    .use = R"(scores = np.where(np.load("mask.npy"), scores, -np.inf))",
    .keys = std::string(kArrayKeys),
    .declare = declare_mask,
};

}  // namespace ejk::app
