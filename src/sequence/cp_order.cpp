// Orders of context parallelism: a rank has one or two runs of tokens, or two of each sequence, which are written
// one after the other; or blocks, whose ranks are given. O(tokens + ranks · sequences).
// tests: tests/sequence/test_cp_order.cpp
#include "ejk/cp_order.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "core/checked.hpp"
#include "core/offsets.hpp"
#include "core/require.hpp"

namespace ejk {

namespace {

constexpr std::int64_t kMostInt32 = std::numeric_limits<std::int32_t>::max();

core::PaddedSequences documents_of(const IntegerArray& cu_seqlens, const IntegerArray& padded,
                                   std::int64_t tokens) {
  core::PaddedSequences documents;
  if (padded)
    documents = core::read_padded_sequences(cu_seqlens, padded, core::FirstOffset::zero);
  else if (cu_seqlens)
    documents.begins = core::read_offsets(cu_seqlens);
  else
    documents.begins = {0, tokens};
  if (!padded)
    for (std::size_t s = 0; s + 1 < documents.begins.size(); ++s)
      documents.lengths.push_back(documents.begins[s + 1] - documents.begins[s]);
  return documents;
}

core::PaddedSequences documents_of(const CpSettings& settings) {
  core::require_ranks(settings.ranks);
  if (settings.ranks > kMostInt32 / 2) throw core::usage("{} ranks are too many", settings.ranks);
  if (settings.cu_seqlens && settings.tokens)
    throw core::usage("cu_seqlens and a number of tokens are both given");
  if (!settings.cu_seqlens && is_by_sequence(settings.order))
    throw core::usage("order {} needs cu_seqlens", name_of(settings.order));
  if (!settings.cu_seqlens && settings.tokens.value_or(-1) < 0)
    throw core::usage("neither cu_seqlens nor a number of tokens is given");
  if (is_by_work(settings.order) && settings.block < 1)
    throw core::usage("order {} needs the tokens of a block", name_of(settings.order));
  if (settings.padded && settings.order != CpOrder::thd)
    throw core::usage("padded cu_seqlens are of order thd, not {}", name_of(settings.order));
  core::PaddedSequences documents =
      documents_of(settings.cu_seqlens, settings.padded, settings.tokens.value_or(0));
  if (documents.begins.back() > kMostInt32)
    throw core::invalid("{} tokens are more than {}, which int32 can count", documents.begins.back(),
                        kMostInt32);
  return documents;
}

// What lengths are a multiple of, and its name in messages.
struct Parts {
  std::int64_t count;
  std::string name;
};
Parts parts_of(const CpSettings& settings) {
  switch (settings.order) {
    case CpOrder::balanced:
      return {settings.block, fmt::format("blocks of {}", settings.block)};
    case CpOrder::ptrr:
      return {core::checked_mul(settings.block, settings.ranks).value_or(kMostInt32),
              fmt::format("{} ranks' blocks of {}", settings.ranks, settings.block)};
    case CpOrder::contiguous:
      return {settings.ranks, fmt::format("{} ranks", settings.ranks)};
    default:
      return {2 * settings.ranks, fmt::format("2 x {} ranks", settings.ranks)};
  }
}

std::optional<CpIndivisible> find_indivisible(const CpSettings& settings,
                                              const core::PaddedSequences& documents) {
  const std::int64_t parts = parts_of(settings).count;
  if (!is_by_sequence(settings.order)) {
    if (documents.begins.back() % parts == 0) return {};
    return CpIndivisible{{}, documents.begins.back(), parts};
  }
  for (std::size_t s = 0; s + 1 < documents.begins.size(); ++s)
    if (const std::int64_t length = documents.begins[s + 1] - documents.begins[s]; length % parts != 0)
      return CpIndivisible{static_cast<std::int64_t>(s), length, parts};
  return {};
}

[[noreturn]] void fail(const CpSettings& settings, const CpIndivisible& found) {
  const std::string by = parts_of(settings).name;
  Error error = found.sequence
                    ? core::invalid("sequence {} has {} tokens{}, not a multiple of {}", *found.sequence,
                                    found.length, settings.padded ? " with its padding" : "", by)
                    : core::invalid("{} tokens are not a multiple of {}", found.length, by);
  if (settings.cu_seqlens) error.at((settings.padded ? settings.padded : settings.cu_seqlens)->name());
  throw std::move(error.hint(fmt::format("order {} needs padding to {}", name_of(settings.order),
                                         core::ceil_div(found.length, found.parts) * found.parts)));
}

// The blocks of each rank, ascending.
std::vector<std::vector<std::int64_t>> blocks_of_ranks(const CpSettings& settings, std::int64_t tokens) {
  if (std::ssize(settings.block_ranks) != tokens / settings.block)
    throw core::usage("{} blocks of {} tokens have ranks, and there are {} tokens",
                      settings.block_ranks.size(), settings.block, tokens);
  std::vector<std::vector<std::int64_t>> blocks(static_cast<std::size_t>(settings.ranks));
  std::int64_t block = 0;
  for (const std::int64_t rank : settings.block_ranks) {
    if (rank < 0 || rank >= settings.ranks)
      throw core::usage("block {} is of rank {}, and there are {} ranks", block, rank, settings.ranks);
    blocks[static_cast<std::size_t>(rank)].push_back(block++);
  }
  return blocks;
}

// Calls f(i, position, s) for tokens[i] of sequence s; ascending tokens are found faster.
template <class F>
void each_position(const core::PaddedSequences& documents, std::span<const std::int32_t> tokens, F&& f) {
  const std::vector<std::int64_t>& begins = documents.begins;
  std::size_t s = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::int64_t token = tokens[i];
    if (token < begins[s] || token >= begins[s + 1])
      s = static_cast<std::size_t>(std::upper_bound(begins.begin(), begins.end(), token) - begins.begin()) -
          1;
    f(i, token - begins[s], s);
  }
}

// Of ascending tokens. A rank needs the keys up to its last query of each sequence.
CpRank work_of(const core::PaddedSequences& documents, std::span<const std::int32_t> tokens) {
  CpRank rank;
  std::size_t sequence = 0;
  std::int64_t needed = 0;  // keys of this sequence
  each_position(documents, tokens, [&](std::size_t, std::int64_t position, std::size_t s) {
    if (position >= documents.lengths[s]) return;
    if (std::exchange(sequence, s) != s) rank.keys_received += std::exchange(needed, 0);
    ++rank.tokens;
    needed = position + 1;
    rank.pairs += needed;
  });
  rank.keys_received += needed - rank.tokens;
  return rank;
}

}  // namespace

std::string_view name_of(CpOrder order) {
  static constexpr std::string_view kNames[] = {"contiguous", "head-tail", "per-document",
                                                "thd",        "ptrr",      "balanced"};
  return kNames[static_cast<std::size_t>(order)];
}

std::optional<CpIndivisible> find_indivisible(const CpSettings& settings) {
  return find_indivisible(settings, documents_of(settings));
}

std::int64_t cp_order_bytes(std::int64_t tokens, std::int64_t sequences, std::int64_t ranks) {
  return core::bytes_of_estimate(12 * static_cast<double>(tokens) + 24 * static_cast<double>(sequences) +
                                 52 * static_cast<double>(ranks));
}

CpTokens make_cp_order(const CpSettings& settings) {
  const core::PaddedSequences documents = documents_of(settings);
  if (const auto found = find_indivisible(settings, documents)) fail(settings, *found);
  const std::int64_t tokens = documents.begins.back(), ranks = settings.ranks;
  CpTokens made{Array(DType::int32, {tokens}),
                Array(DType::int32, {tokens}),
                Array(DType::int32, {ranks + 1}),
                Array(DType::int32, {tokens}),
                {}};
  const auto order = made.order.elements<std::int32_t>(), inverse = made.inverse.elements<std::int32_t>(),
             positions = made.positions.elements<std::int32_t>(),
             offsets = made.rank_offsets.elements<std::int32_t>();
  std::size_t at = 0;
  const auto run = [&](std::int64_t begin, std::int64_t count) {
    for (std::int64_t token = begin; token < begin + count; ++token, ++at) {
      order[at] = static_cast<std::int32_t>(token);
      inverse[static_cast<std::size_t>(token)] = static_cast<std::int32_t>(at);
    }
  };
  const auto head_and_tail = [&](std::int64_t rank, std::int64_t begin, std::int64_t end) {
    const std::int64_t chunk = (end - begin) / (2 * ranks);
    run(begin + rank * chunk, chunk);
    run(end - (rank + 1) * chunk, chunk);
  };
  std::vector<std::vector<std::int64_t>> blocks;
  if (is_by_work(settings.order)) blocks = blocks_of_ranks(settings, tokens);
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const std::size_t first = at;
    if (!blocks.empty())
      for (const std::int64_t block : blocks[static_cast<std::size_t>(rank)])
        run(block * settings.block, settings.block);
    else if (settings.order == CpOrder::contiguous)
      run(rank * (tokens / ranks), tokens / ranks);
    else if (settings.order == CpOrder::head_tail)
      head_and_tail(rank, 0, tokens);
    else
      for (std::size_t s = 0; s + 1 < documents.begins.size(); ++s)
        head_and_tail(rank, documents.begins[s], documents.begins[s + 1]);
    offsets[static_cast<std::size_t>(rank) + 1] = static_cast<std::int32_t>(at);
    const auto own = order.subspan(first, at - first);
    each_position(documents, own, [&](std::size_t i, std::int64_t position, std::size_t) {
      positions[first + i] = static_cast<std::int32_t>(position);
    });
    made.ranks.push_back(work_of(documents, own));
  }
  return made;
}

std::vector<CpRank> cp_work(std::span<const std::int32_t> order, std::int64_t ranks,
                            const IntegerArray& cu_seqlens, const IntegerArray& padded) {
  core::require_ranks(ranks);
  const auto tokens = std::ssize(order);
  if (tokens % ranks != 0) throw core::usage("{} tokens are not a multiple of {} ranks", tokens, ranks);
  const core::PaddedSequences documents = documents_of(cu_seqlens, padded, tokens);
  if (documents.begins.back() != tokens)
    throw core::invalid("there are {} tokens in the order and {} in the sequences", tokens,
                        documents.begins.back());
  std::vector<CpRank> all;
  std::vector<std::int32_t> own;
  const auto part = static_cast<std::size_t>(tokens / ranks);
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks); ++rank) {
    const auto given = order.subspan(rank * part, part);
    own.assign(given.begin(), given.end());
    if (!std::is_sorted(own.begin(), own.end())) std::sort(own.begin(), own.end());
    all.push_back(work_of(documents, own));
  }
  return all;
}

Report describe_cp_work(std::span<const CpRank> ranks, std::string_view pairs) {
  Table table{
      "ranks",
      fmt::format("work of ranks ({})", pairs),
      {{"rank", "rank"}, {"tokens", "tokens"}, {"pairs", "pairs"}, {"keys_received", "keys received"}},
      {},
      16};
  double most = 0, sum = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    table.rows.push_back(
        {static_cast<std::int64_t>(r), ranks[r].tokens, ranks[r].pairs, ranks[r].keys_received});
    most = std::max(most, static_cast<double>(ranks[r].pairs));
    sum += static_cast<double>(ranks[r].pairs);
  }
  Report report;
  report.add("ranks_count", "ranks", std::ssize(ranks), Unit::count)
      .add("imbalance", "heaviest rank to mean", ratio(most * static_cast<double>(ranks.size()), sum))
      .add(std::move(table));
  return report;
}

}  // namespace ejk
