// Report on cu_seqlens: the distribution of lengths, and the cost of padding.
// tests: tests/sequence/test_describe.cpp
#include <fmt/format.h>

#include <algorithm>

#include "core/distribution.hpp"
#include "core/offsets.hpp"
#include "ejk/sequence.hpp"

namespace ejk {

namespace {

Table histogram(const std::vector<std::int64_t>& sorted) {
  Table table{"histogram",
              "sequences by length",
              {{"range", "tokens"},
               {"from", "from", Unit::none, true},
               {"to", "to", Unit::none, true},
               {"sequences", "sequences"},
               {"share", "", Unit::bar},
               {"token_share", "of all tokens", Unit::share}},
              {},
              64};
  double all_tokens = 0;
  for (const std::int64_t length : sorted) all_tokens += static_cast<double>(length);
  for (const core::Bin& bin : core::doubling_bins(sorted))
    table.rows.push_back({bin.range(), bin.from, bin.to, bin.count,
                          static_cast<double>(bin.count) / static_cast<double>(sorted.size()),
                          ratio(bin.sum, all_tokens)});
  return table;
}

}  // namespace

Report describe_sequences(const IntegerArray& cu_seqlens, const IntegerArray& padded) {
  const std::vector<std::int64_t> cu = core::read_offsets(cu_seqlens);
  const std::int64_t all =
      padded ? core::read_padded_sequences(cu_seqlens, padded, core::FirstOffset::any).begins.back()
             : cu.back();
  std::vector<std::int64_t> sorted(cu.size() - 1);
  double packed_work = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    sorted[i] = cu[i + 1] - cu[i];
    packed_work += static_cast<double>(sorted[i]) * static_cast<double>(sorted[i]);
  }
  std::sort(sorted.begin(), sorted.end());
  const auto sequences = static_cast<std::int64_t>(sorted.size());

  Report report;
  report.add("sequences", "sequences", sequences, Unit::count)
      .add("tokens", "tokens", cu.back(), Unit::count)
      .add("empty_sequences", "empty sequences",
           static_cast<std::int64_t>(std::upper_bound(sorted.begin(), sorted.end(), 0) - sorted.begin()),
           Unit::count);
  if (padded)
    report.add("padding_tokens", "padding behind them", all - cu.back(), Unit::tokens)
        .add("padding_share", "of all tokens",
             ratio(static_cast<double>(all - cu.back()), static_cast<double>(all)), Unit::share);
  if (sequences == 0) {
    report.add(Remark{"There are no sequences."});
    for (const char* key : {"shortest", "longest", "mean"}) report.add(JsonField{key, "null"});
    report.add(Table{"percentiles", "", {}, {}}).add(Table{"histogram", "", {}, {}});
    report.add(Section{"packing", "", nullptr});
    return report;
  }
  const auto n = static_cast<double>(sequences), longest = static_cast<double>(sorted.back());
  const double padded_tokens = n * longest, padded_work = n * longest * longest;
  report.add("shortest", "shortest", sorted.front(), Unit::tokens)
      .add("longest", "longest", sorted.back(), Unit::tokens)
      .add("mean", "mean", static_cast<double>(cu.back()) / n, Unit::tokens);
  Table percentiles{"percentiles", "percentiles", {}, {{}}, 1};
  for (const int percent : {1, 5, 25, 50, 75, 95, 99}) {
    percentiles.columns.push_back({fmt::format("p{}", percent), fmt::format("{} %", percent)});
    percentiles.rows[0].emplace_back(core::percentile(sorted, percent));
  }
  report.add(std::move(percentiles)).add(histogram(sorted));

  const auto saved = std::make_shared<Report>();
  saved->add("padded_tokens", "tokens, padded", whole_number(padded_tokens), Unit::count);
  saved->add("padding_share", "padding among them",
             ratio(padded_tokens - static_cast<double>(cu.back()), padded_tokens), Unit::share);
  saved->add("attention_pairs_packed", "pairs of tokens, packed", whole_number(packed_work), Unit::count);
  saved->add("attention_pairs_padded", "pairs of tokens, padded", whole_number(padded_work), Unit::count);
  saved->add("attention_work_share", "attention work left by packing", ratio(packed_work, padded_work),
             Unit::share);
  report.add(Section{"packing", "packed, against padded to the longest", saved});
  return report;
}

}  // namespace ejk
