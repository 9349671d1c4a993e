// Scan of masks by several ranks. States and sums of their block rows are sent to rank 0 and reduced in rank
// order. Partial blocks stay on the rank that found them; rank 0 finds equal ones by digest.
//
// Cost: one pass over the bits of each distinct partial block, and some bytes for each block sent to rank 0.
// tests: tests/blocks/test_rank_scan.cpp
#include "blocks/rank_scan.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include "blocks/scan.hpp"
#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "core/pieces.hpp"

namespace ejk::blocks {

namespace {

std::vector<Digest> digests_of(const PatternTable& table, const Digester& digester) {
  std::vector<Digest> digests(static_cast<std::size_t>(table.size()));
  const double words = static_cast<double>(table.size()) * static_cast<double>(table.pattern_words());
  core::parallel_for(table.size(), words, [&](std::int64_t id) {
    digests[static_cast<std::size_t>(id)] = digester(table.bits(id));
  });
  return digests;
}

Bytes message_of(const std::optional<BandScan>& own) {
  RankMessage message;
  if (!own) return {};
  const MaskSummary& s = own->summary;
  const std::span<const std::uint8_t> states = s.states->stored();
  message.put(own->rows).put(s.empty_blocks).put(s.partial_blocks).put(s.full_blocks).put(s.true_elements);
  message.put_all(states);
  std::vector<std::int32_t> ids;
  const auto all_ids = own->pattern_ids.elements<std::int32_t>();
  for (std::size_t b = 0; b < all_ids.size(); ++b)
    if (states[b] == kPartial) ids.push_back(all_ids[b]);
  message.put_all(ids);
  message.put_all(own->rows_seen).put_all(own->keys_seen).put_all(s.partial_elements);
  const auto bytes = message.bytes();
  return {bytes.begin(), bytes.end()};
}

template <class T, class Reduce>
void merge(std::vector<T>& into, const std::vector<T>& from, Reduce&& reduce) {
  into.resize(from.size());
  std::transform(into.begin(), into.end(), from.begin(), into.begin(), reduce);
}

// Adds the scan of a rank. `ids`: the id of each of its patterns; null if none are kept.
void add(BandScan& all, RankMessage message, const std::vector<std::int32_t>* ids) {
  MaskSummary& s = all.summary;
  const auto rows = message.take<IndexRange>();
  s.empty_blocks += message.take<std::int64_t>();
  s.partial_blocks += message.take<std::int64_t>();
  s.full_blocks += message.take<std::int64_t>();
  s.true_elements += message.take<std::int64_t>();
  const auto states = message.take_all<std::uint8_t>();
  const std::int64_t first = s.states->begin_of(rows.begin);
  std::copy(states.begin(), states.end(), s.states->stored().begin() + first);
  const auto found = message.take_all<std::int32_t>();
  if (ids != nullptr) {
    const auto to = all.pattern_ids.elements<std::int32_t>().subspan(static_cast<std::size_t>(first));
    auto next = found.begin();
    for (std::size_t b = 0; b < states.size(); ++b)
      if (states[b] == kPartial) to[b] = (*ids)[static_cast<std::size_t>(*next++)];
  }
  merge(all.rows_seen, message.take_all<Word>(), std::bit_or<>());
  merge(all.keys_seen, message.take_all<Word>(), std::bit_or<>());
  merge(s.partial_elements, message.take_all<std::int64_t>(), std::plus<>());
}

BandScan sum_of(const Mask& mask, BlockShape block, std::vector<Bytes> found, const RankPatterns* patterns) {
  const IndexRange rows{0, core::ceil_div(mask.q_length(), block.q)};
  BandScan all = begun_scan(mask, block, rows, patterns ? Patterns::kept : Patterns::dropped);
  for (std::size_t r = 0; r < found.size(); ++r)
    if (!found[r].empty())
      add(all, RankMessage(std::exchange(found[r], {})), patterns ? &patterns->ids[r] : nullptr);
  return all;
}

Digester::Seed drawn_seed(Communicator& comm) {
  const auto seed = comm.is_first() ? Digester::drawn_seed() : Digester::Seed();
  return RankMessage(comm.broadcast(RankMessage().put(seed).bytes())).take<Digester::Seed>();
}

}  // namespace

RowPartition::RowPartition(std::int64_t ranks, const std::vector<RowCosts>& costs)
    : rows_(std::ssize(costs.front().bytes)) {
  std::vector<double> all;
  for (const RowCosts& of_mask : costs) all.insert(all.end(), of_mask.bytes.begin(), of_mask.bytes.end());
  bounds_ = core::even_runs(all, ranks);
}

IndexRange RowPartition::rows(std::int64_t rank, std::int64_t mask) const {
  const auto row = [&](std::int64_t bound) {
    return std::clamp<std::int64_t>(bounds_[static_cast<std::size_t>(bound)] - mask * rows_, 0, rows_);
  };
  return {row(rank), row(rank + 1)};
}

RowCosts::RowCosts(const Mask& mask, BlockShape block)
    : stored_bytes(static_cast<double>(mask.node().stored_bytes())) {
  // In bytes read: classifying and recording a block, and filling and testing an element.
  constexpr double kBlockBytes = 16, kElementBytes = 0.25;
  constexpr std::int64_t kMostRows = 1024, kMostBlocks = std::int64_t{1} << 22;
  const std::int64_t rows = core::ceil_div(mask.q_length(), block.q),
                     columns = core::ceil_div(mask.kv_length(), block.kv),
                     requested = std::clamp<std::int64_t>(kMostBlocks / columns, 1, kMostRows),
                     step = core::ceil_div(rows, requested);
  const auto classifier = mask.node().classifier(block.q, block.kv);
  std::vector<BlockState> states;
  for (std::int64_t row = 0; row < rows; ++row) {
    if (row % step == 0) {
      const std::int64_t begin = row * block.q, end = std::min(begin + block.q, mask.q_length());
      const IndexRange run = classifier->run(begin, end);
      states.resize(static_cast<std::size_t>(run.count()));
      classifier->classify(begin, end, run, states.data());
      const auto blocks = std::count_if(states.begin(), states.end(), is_open);
      const auto keys = std::min<double>(static_cast<double>(blocks) * static_cast<double>(block.kv),
                                         static_cast<double>(mask.kv_length()));
      open.push_back(keys * static_cast<double>(end - begin));
    } else {
      open.push_back(open.back());
    }
    bytes.push_back(static_cast<double>(states.size()) * kBlockBytes +
                    open.back() * (stored_bytes + kElementBytes));
  }
}

RankPatterns number_patterns(const PatternTable& table, Communicator& comm) {
  RankPatterns patterns;
  PatternTable numbers = PatternTable::of_digests(table.block(), 0, drawn_seed(comm));
  const std::vector<Digest> own_digests = digests_of(table, numbers.digester());
  std::vector<Bytes> found = comm.gather(RankMessage().put_all(own_digests).bytes());
  if (!comm.is_first()) {
    RankMessage answer(comm.receive(0));
    patterns.count = answer.take<std::int64_t>();
    patterns.own = answer.take<IndexRange>();
    patterns.own_here = answer.take_all<std::int32_t>();
    return patterns;
  }
  constexpr std::int64_t kBytes = 96;  // of a digest: as received, in the table, and ids
  std::size_t digests_of_all = 0;
  for (const Bytes& bytes : found) digests_of_all += bytes.size() / sizeof(Digest);
  table.count_bytes(kBytes * static_cast<std::int64_t>(digests_of_all));
  std::vector<IndexRange> own;
  std::vector<std::vector<std::int32_t>> own_there;
  for (Bytes& bytes : found) {
    const auto digests = RankMessage(std::exchange(bytes, {})).take_all<Digest>();
    std::vector<std::int32_t>& ids = patterns.ids.emplace_back();
    std::vector<std::int32_t>& places = own_there.emplace_back();
    ids.reserve(digests.size());
    const std::int64_t first = numbers.size();
    for (const Digest& digest : digests) {
      const std::int64_t known = numbers.size();
      const std::int32_t id = numbers.find_or_add(digest);
      if (id == known) places.push_back(static_cast<std::int32_t>(std::ssize(ids)));
      ids.push_back(id);
    }
    own.push_back({first, numbers.size()});
  }
  patterns.count = numbers.size();
  for (std::size_t r = 1; r < own.size(); ++r)
    comm.send(static_cast<std::int64_t>(r),
              RankMessage().put(patterns.count).put(own[r]).put_all(own_there[r]).bytes());
  patterns.own = own[0];
  patterns.own_here = std::move(own_there[0]);
  return patterns;
}

std::optional<Scan> joined(const Mask& mask, BlockShape block, std::optional<BandScan> own,
                           const RankPatterns* patterns, Communicator& comm) {
  const Bytes message = message_of(own);
  own.reset();
  std::vector<Bytes> found = comm.gather(message);
  if (!comm.is_first()) return std::nullopt;
  return completed(sum_of(mask, block, std::move(found), patterns), patterns ? patterns->count : 0);
}

Scan joined_by_all(const Mask& mask, BlockShape block, std::optional<BandScan> own, Communicator& comm) {
  const Bytes message = message_of(own);
  own.reset();
  return completed(sum_of(mask, block, comm.all_gather(message), nullptr), 0);
}

}  // namespace ejk::blocks
