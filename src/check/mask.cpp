// Checks of a mask: its pairs against other masks, block by block; queries without keys and keys without
// queries; signs of inverted polarity. Cost: one scan of the mask, and for each comparison one read of the
// blocks of both masks that are not known to be empty or full.
// tests: tests/check/test_mask.cpp
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "blocks/plan.hpp"
#include "blocks/scan.hpp"
#include "check/integers.hpp"
#include "check/mask_pair.hpp"
#include "core/parallel.hpp"
#include "core/pieces.hpp"
#include "core/progress.hpp"
#include "core/require.hpp"
#include "ejk/program/text.hpp"

namespace ejk {

namespace {

using blocks::known_same;
using check::BlockDifference;
using check::MaskPair;
using check::of_head;
using check::SharedHeads;

std::string also(std::int64_t heads) {
  return heads == 1 ? "" : fmt::format("; {} heads share this mask", heads);
}

class MaskCheck {
 public:
  MaskCheck(const std::vector<Mask>& heads, const MaskClaims& claims, const CheckOptions& options)
      : heads_(heads),
        claims_(claims),
        options_(options),
        found_(rules_of("mask"), options.most_findings),
        progress_(options.progress, steps()) {}

  Findings run() && {
    const Mask& first = heads_.front();
    if (claims_.stored) scan_values(*claims_.stored);
    found_.facts()
        .add("heads", "heads", std::ssize(heads_))
        .add("queries", "queries", first.q_length(), Unit::rows)
        .add("keys", "keys", first.kv_length(), Unit::keys)
        .add("block", "block", Shape{claims_.block.q, claims_.block.kv}, Unit::count);
    if (found_.count("between") + found_.count("ids") > 0) return std::move(found_);  // it is no mask
    scan();
    compare(claims_.within, "outside", &BlockDifference::outside, "within");
    compare(claims_.covers, "missing", &BlockDifference::missing, "covers");
    compare(claims_.equals, "outside", &BlockDifference::outside, "equals");
    compare(claims_.equals, "missing", &BlockDifference::missing, "equals");
    return std::move(found_);
  }

 private:
  std::int64_t steps() const {
    const Mask& first = heads_.front();
    const std::int64_t rows = core::ceil_div(first.q_length(), claims_.block.q);
    std::int64_t passes = 1 + (claims_.within.empty() ? 0 : 1) + (claims_.covers.empty() ? 0 : 1) +
                          (claims_.equals.empty() ? 0 : 2);
    return passes * rows * std::ssize(heads_);
  }

  // Elements before they become truth values. An additive mask has two values; others are between them.
  void scan_values(const ArraySource& array) {
    const bool additive = claims_.polarity == Polarity::additive;
    std::optional<std::uint64_t> value;  // the first that is not 0
    constexpr std::int64_t kAtOnce = std::int64_t{1} << 20;
    std::vector<std::byte> raw;
    std::int64_t done = 0;
    core::for_each_piece(array.shape(), kAtOnce, [&](const Shape& start, const Shape& count) {
      const std::int64_t n = element_count(count);
      raw.resize(static_cast<std::size_t>(n * size_of(array.dtype())));
      array.read(start, count, raw.data());
      const auto check_each = [&]<class T>(const T* values, auto&& fine) {
        for (std::int64_t i = 0; i < n; ++i)
          if (!fine(values[i]))
            report_value(array.shape(), done + i, values[i], additive ? "between" : "values");
      };
      dispatch_wide(array.dtype(), [&]<class T>(std::type_identity<T>) {
        if constexpr (std::is_same_v<T, bool>) {
          check_each(reinterpret_cast<const std::uint8_t*>(raw.data()), [](auto v) { return v <= 1; });
        } else if constexpr (std::is_integral_v<T>) {
          const auto* values = reinterpret_cast<const T*>(raw.data());
          for (std::int64_t i = 0; i < n; ++i) {
            if (values[i] == 0) continue;
            if (!value) value = static_cast<std::uint64_t>(values[i]);
            if (*value != static_cast<std::uint64_t>(values[i]))
              report_value(array.shape(), done + i, values[i], "ids");
            else if (values[i] != 1)
              report_value(array.shape(), done + i, values[i], "values");
          }
        } else {
          using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
          const auto hides = static_cast<Wide>(T(mask::kMaskedBias));
          check_each(reinterpret_cast<const T*>(raw.data()),
                     [&](T v) { return static_cast<Wide>(v) == 0 || static_cast<Wide>(v) <= hides; });
        }
      });
      done += n;
    });
  }

  template <class T>
  void report_value(const Shape& shape, std::int64_t at, T value, std::string_view rule) {
    found_.add(rule, at, [&] {
      ReportValue number;
      if constexpr (std::is_same_v<T, std::uint64_t>)
        number = std::in_range<std::int64_t>(value) ? ReportValue(static_cast<std::int64_t>(value)) : value;
      else if constexpr (std::is_integral_v<T>)
        number = static_cast<std::int64_t>(value);
      else
        number = static_cast<double>(
            static_cast<std::conditional_t<std::is_same_v<T, double>, double, float>>(value));
      return Finding{"mask", core::index_of(shape, at), number,
                     rule == "between"  ? "0 attends, and -1e4 and less hides"
                     : rule == "values" ? "taken as 1, being no 0"
                                        : "another value than before: ids, or positions?"};
    });
  }

  void scan() {
    std::int64_t pairs = 0;
    const auto same = [&](auto a, auto b) { return known_same(of_head(heads_, a), of_head(heads_, b)); };
    for (const auto& shared : check::shared_heads(std::ssize(heads_), same)) {
      const std::int64_t h = shared.first, count = shared.count;
      const Mask& mask = of_head(heads_, h);
      const std::int64_t columns = core::ceil_div(mask.kv_length(), claims_.block.kv);
      const blocks::Scan scan = blocks::scan_mask(mask, claims_.block, nullptr, [&](std::int64_t blocks) {
        progress_.add(count * blocks / columns);
      });
      pairs += count * scan.summary.true_elements;
      ranges("no-keys", h, count, scan.summary.rows_without_key, mask.q_length(), "query", "sees no key");
      ranges("unseen", h, count, scan.summary.keys_without_row, mask.kv_length(), "key",
             "is seen by no query");
      check_polarity(h, count, mask);
      if (claims_.stored && padding_guess(mask) == PaddingGuess::likely)
        check::add(found_, "padding-mask", h, "mask", {h}, {}, [&] {
          return fmt::format("{} rows, each one run from an end: padding of {} tokens?{}", mask.q_length(),
                             mask.kv_length(), also(count));
        });
    }
    found_.facts().add("pairs", "pairs", pairs, Unit::elements);
  }

  // A range at a time: a padded batch has many such rows.
  void ranges(std::string_view rule, std::int64_t head, std::int64_t heads,
              const std::vector<IndexRange>& found, std::int64_t length, const char* what, const char* why) {
    for (const IndexRange& range : found)
      found_.add(
          rule, head * length + range.begin,
          [&] {
            const std::int64_t n = range.count();
            return Finding{"mask",
                           {head, range.begin},
                           {},
                           n == 1 ? fmt::format("{} {} {}{}", what, range.begin, why, also(heads))
                                  : fmt::format("{} {} to {}: each {}{}", what, range.begin, range.end - 1,
                                                why, also(heads))};
          },
          heads * range.count());
  }

  // No query attends to the key at its own position, and some to a later one: as in the complement of a
  // causal mask, a window or packed documents.
  void check_polarity(std::int64_t head, std::int64_t heads, const Mask& mask) {
    const std::int64_t q = mask.q_length(), kv = mask.kv_length(), offset = kv - q;
    if (offset < 0 || q < 2) return;
    const auto pairs_of = [&](const Mask& part) {
      return blocks::scan_mask(mask & part, claims_.block, nullptr).summary.true_elements;
    };
    if (pairs_of(local_mask(q, kv, 0, 0, offset)) > 0) return;
    const std::int64_t pairs = pairs_of(~causal_mask(q, kv, offset));
    if (pairs == 0) return;
    check::add(found_, "inverted", head, "mask", {head}, {}, [&] {
      return fmt::format("no query sees the key at its own position, and {} pairs are of later keys{}",
                         format_count(pairs), also(heads));
    });
  }

  void compare(const std::vector<Mask>& others, std::string_view rule, std::int64_t BlockDifference::*pairs,
               const char* claim) {
    if (others.empty()) return;
    const auto same = [&](auto a, auto b) {
      return known_same(of_head(heads_, a), of_head(heads_, b)) &&
             known_same(of_head(others, a), of_head(others, b));
    };
    std::atomic<std::int64_t> blocks = 0;
    for (const SharedHeads& shared : check::shared_heads(std::ssize(heads_), same)) {
      const std::int64_t head = shared.first, heads = shared.count;
      const MaskPair pair(of_head(heads_, head), of_head(others, head), claims_.block);
      pair.compare(
          found_, options_, progress_, heads, [&](Findings& found, const BlockDifference& difference) {
            if (difference.*pairs == 0) return;
            blocks += heads;
            const bool outside = pairs == &BlockDifference::outside;
            found.add(
                rule, pair.place(head, difference),
                [&] {
                  return Finding{
                      "mask",
                      {head, outside ? difference.outside_q : difference.missing_q,
                       outside ? difference.outside_k : difference.missing_k},
                      std::int64_t{outside},
                      fmt::format("the first of {} in block ({}, {}){}", format_count(difference.*pairs),
                                  difference.i, difference.j, also(heads))};
                },
                heads * difference.*pairs);
          });
    }
    found_.facts().add(
        fmt::format("{}_{}_blocks", claim, rule),
        fmt::format("blocks {} ({})", rule == "outside" ? "with pairs outside" : "with pairs missing", claim),
        blocks.load(), Unit::blocks);
  }

  const std::vector<Mask>& heads_;
  const MaskClaims& claims_;
  const CheckOptions& options_;
  Findings found_;
  core::Progress progress_;
};

}  // namespace

Findings check_mask(const std::vector<Mask>& heads, const MaskClaims& claims, const CheckOptions& options) {
  if (heads.empty()) throw core::invalid("there is no head: at least one mask is needed");
  for (const std::vector<Mask>* others : {&claims.within, &claims.covers, &claims.equals}) {
    if (others->size() > 1 && others->size() != heads.size())
      throw core::invalid("{} masks are compared with those of {} heads", others->size(), heads.size());
    for (const Mask& other : *others)
      if (other.q_length() != heads.front().q_length() || other.kv_length() != heads.front().kv_length())
        throw core::invalid("{} is {} x {}, the mask is {} x {} (queries x keys)", other.text(),
                            other.q_length(), other.kv_length(), heads.front().q_length(),
                            heads.front().kv_length());
  }
  check::require_claim("block", std::min(claims.block.q, claims.block.kv), 1);
  return MaskCheck(heads, claims, options).run();
}

}  // namespace ejk
