// Ranks look at runs of rows of blocks, and what they find is joined in the order of their ranks.
//
// States and sums are put together as they are. Partial blocks stay with the rank that found them: others
// learn of each no more than a digest, by which rank 0 finds those that several ranks have.
//
// Cost: of each different partial block one pass over its bits; of each block some bytes to rank 0.
// tests: tests/blocks/test_rank_scan.cpp
#include "blocks/rank_scan.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "blocks/scanner.hpp"
#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "mask/digest.hpp"
#include "mask/node.hpp"

namespace ejk::blocks {

namespace {

// Different digests, numbered in the order in which they are entered. A digest's own bits say where its number is
// looked for: in the first place from there on that is free or has it.
class DigestTable {
 public:
  explicit DigestTable(std::size_t most)
      : places_(std::bit_ceil(2 * most + 1), kFree), mask_(places_.size() - 1) {
    digests_.reserve(most);
  }

  std::int64_t size() const { return std::ssize(digests_); }

  /// The number of a digest, the next one where it is new.
  std::int32_t number(const Digest& digest) {
    for (std::size_t at = digest[0] & mask_;; at = (at + 1) & mask_) {
      std::int32_t& number = places_[at];
      if (number == kFree) {
        if (size() >= INT32_MAX) throw Error(Error::Kind::input, "more than 2^31 different partial blocks");
        number = static_cast<std::int32_t>(size());
        digests_.push_back(digest);
        return number;
      }
      if (digests_[static_cast<std::size_t>(number)] == digest) return number;
    }
  }

 private:
  static constexpr std::int32_t kFree = -1;
  std::vector<std::int32_t> places_;
  std::size_t mask_;
  std::vector<Digest> digests_;
};

std::vector<Digest> digests_of(const PatternTable& table, const Digester::Seed& seed) {
  const Digester digester(table.pattern_words(), seed);
  std::vector<Digest> digests(static_cast<std::size_t>(table.size()));
  const double words = static_cast<double>(table.size()) * static_cast<double>(table.pattern_words());
  core::parallel_for(table.size(), words, [&](std::int64_t id) {
    digests[static_cast<std::size_t>(id)] = digester(table.bits(id));
  });
  return digests;
}

template <class T>
std::span<const T> part_of(const std::vector<T>& values, std::int64_t begin, std::int64_t end) {
  return std::span(values).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
}

std::int64_t cell_columns(const MaskSummary& s) { return core::ceil_div(s.states->columns(), s.cell_blocks); }

// The cells in which rows of blocks lie.
IndexRange cells_of(const MaskSummary& s, const IndexRange& rows) {
  const std::int64_t columns = cell_columns(s);
  return {rows.begin / s.cell_blocks * columns, core::ceil_div(rows.end, s.cell_blocks) * columns};
}

// The words in which the bits of the queries of rows of blocks lie.
IndexRange words_of(const MaskSummary& s, const IndexRange& rows, BlockShape block) {
  return {rows.begin * block.q / 64, words_for(std::min(rows.end * block.q, s.q_length))};
}

// The ids of partial blocks alone, as of others there is none.
Bytes message_of(const std::optional<BandScan>& mine, BlockShape block) {
  RankMessage message;
  if (!mine) return {};
  const MaskSummary& s = mine->summary;
  const std::span<const std::uint8_t> states = s.states->held();
  message.put(mine->rows).put(s.empty_blocks).put(s.partial_blocks).put(s.full_blocks).put(s.true_elements);
  message.put_all(states);
  std::vector<std::int32_t> ids;
  const auto all_ids = mine->pattern_ids.elements<std::int32_t>();
  for (std::size_t b = 0; b < all_ids.size(); ++b)
    if (states[b] == kPartial) ids.push_back(all_ids[b]);
  message.put_all(ids);
  const IndexRange words = words_of(s, mine->rows, block), cells = cells_of(s, mine->rows);
  message.put_all(part_of(mine->rows_seen, words.begin, words.end)).put_all(mine->keys_seen);
  message.put_all(part_of(s.partial_elements, cells.begin, cells.end));
  const auto bytes = message.bytes();
  return {bytes.begin(), bytes.end()};
}

// Adds what a rank found. `ids`: for each of its patterns the id; null where none are kept.
void add(BandScan& all, BlockShape block, RankMessage message, const std::vector<std::int32_t>* ids) {
  MaskSummary& s = all.summary;
  const auto rows = message.take<IndexRange>();
  s.empty_blocks += message.take<std::int64_t>();
  s.partial_blocks += message.take<std::int64_t>();
  s.full_blocks += message.take<std::int64_t>();
  s.true_elements += message.take<std::int64_t>();
  const auto states = message.take_all<std::uint8_t>();
  const std::int64_t first = s.states->begin_of(rows.begin);
  std::copy(states.begin(), states.end(), s.states->held().begin() + first);
  const auto found = message.take_all<std::int32_t>();
  if (ids != nullptr) {
    const auto to = all.pattern_ids.elements<std::int32_t>().subspan(static_cast<std::size_t>(first));
    auto next = found.begin();
    for (std::size_t b = 0; b < states.size(); ++b)
      if (states[b] == kPartial) to[b] = (*ids)[static_cast<std::size_t>(*next++)];
  }
  const auto merge = [](std::vector<Word>& into, std::int64_t at, const std::vector<Word>& words) {
    for (const Word word : words) into[static_cast<std::size_t>(at++)] |= word;
  };
  merge(all.rows_seen, words_of(s, rows, block).begin, message.take_all<Word>());
  merge(all.keys_seen, 0, message.take_all<Word>());
  std::int64_t cell = cells_of(s, rows).begin;
  for (const std::int64_t elements : message.take_all<std::int64_t>())
    s.partial_elements[static_cast<std::size_t>(cell++)] += elements;
}

BandScan sum_of(const Mask& mask, BlockShape block, std::vector<Bytes> found, const RankPatterns* patterns) {
  const IndexRange rows{0, core::ceil_div(mask.q_length(), block.q)};
  BandScan all = begun_scan(mask, block, rows, patterns ? Patterns::kept : Patterns::dropped);
  all.summary.partial_elements.resize(static_cast<std::size_t>(cells_of(all.summary, rows).end));
  all.rows_seen.resize(static_cast<std::size_t>(words_for(mask.q_length())));
  all.keys_seen.resize(static_cast<std::size_t>(words_for(mask.kv_length()) + 1));  // as ranks have them
  for (std::size_t r = 0; r < found.size(); ++r)
    if (!found[r].empty())
      add(all, block, RankMessage(std::exchange(found[r], {})), patterns ? &patterns->ids[r] : nullptr);
  return all;
}

// Keys for digests, the same for all ranks.
Digester::Seed drawn_seed(Communicator& comm) {
  const auto seed = comm.is_first() ? Digester::drawn_seed() : Digester::Seed();
  return RankMessage(comm.broadcast(RankMessage().put(seed).bytes())).take<Digester::Seed>();
}

}  // namespace

QueryPartition::QueryPartition(std::int64_t q_length, std::int64_t q_block, std::int64_t ranks,
                               const std::vector<RowCosts>& costs)
    : q_length_(q_length), q_block_(q_block), rows_(core::ceil_div(q_length, q_block)) {
  std::vector<double> all;
  for (const RowCosts& of_mask : costs) all.insert(all.end(), of_mask.bytes.begin(), of_mask.bytes.end());
  bounds_ = even_runs(all, ranks);
}

IndexRange QueryPartition::queries(std::int64_t rank, std::int64_t mask) const {
  const std::int64_t first = mask * rows_;
  const auto query = [&](std::int64_t bound) {
    return std::min(std::clamp<std::int64_t>(bound - first, 0, rows_) * q_block_, q_length_);
  };
  return {query(bounds_[static_cast<std::size_t>(rank)]), query(bounds_[static_cast<std::size_t>(rank) + 1])};
}

IndexRange QueryPartition::rows(std::int64_t rank, std::int64_t mask, BlockShape block) const {
  const auto [begin, end] = queries(rank, mask);
  return {core::ceil_div(begin, block.q), core::ceil_div(end, block.q)};
}

RowCosts::RowCosts(const Mask& mask, BlockShape block)
    : stored_bytes(static_cast<double>(mask.node().stored_bytes())) {
  // Telling the state of a block and noting it takes as long as looking at so many bytes, unless a run of blocks
  // is known to be empty; an element that is not stored is filled and judged among others of its word.
  constexpr double kBlockBytes = 16, kElementBytes = 0.25;
  constexpr std::int64_t kAskedRows = 1024, kAskedBlocks = std::int64_t{1} << 22;
  const std::int64_t rows = core::ceil_div(mask.q_length(), block.q),
                     columns = core::ceil_div(mask.kv_length(), block.kv),
                     asked = std::clamp<std::int64_t>(kAskedBlocks / columns, 1, kAskedRows),
                     step = core::ceil_div(rows, asked);
  const auto classifier = mask.node().classifier(block.q, block.kv);
  std::vector<BlockState> states;
  for (std::int64_t row = 0; row < rows; ++row) {
    if (row % step == 0) {
      const std::int64_t begin = row * block.q, end = std::min(begin + block.q, mask.q_length());
      const IndexRange run = classifier->run(begin, end);
      states.resize(static_cast<std::size_t>(run.end - run.begin));
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
  const std::vector<Digest> mine = digests_of(table, drawn_seed(comm));
  std::vector<Bytes> found = comm.gather(RankMessage().put_all(mine).bytes());
  if (!comm.is_first()) {
    RankMessage answer(comm.receive(0));
    patterns.count = answer.take<std::int64_t>();
    patterns.own = answer.take<IndexRange>();
    patterns.own_here = answer.take_all<std::int32_t>();
    return patterns;
  }
  constexpr std::int64_t kBytes = 96;  // of a digest: as it came, in the table, and numbers
  std::size_t digests_of_all = 0;
  for (const Bytes& bytes : found) digests_of_all += bytes.size() / sizeof(Digest);
  table.count_bytes(kBytes * static_cast<std::int64_t>(digests_of_all));
  DigestTable numbers(digests_of_all);
  std::vector<IndexRange> own;
  std::vector<std::vector<std::int32_t>> own_there;
  for (Bytes& bytes : found) {
    const auto digests = RankMessage(std::exchange(bytes, {})).take_all<Digest>();
    std::vector<std::int32_t>& ids = patterns.ids.emplace_back();
    std::vector<std::int32_t>& held = own_there.emplace_back();
    ids.reserve(digests.size());
    const std::int64_t first = numbers.size();
    for (const Digest& digest : digests) {
      const std::int64_t known = numbers.size();
      const std::int32_t id = numbers.number(digest);
      if (id == known) held.push_back(static_cast<std::int32_t>(std::ssize(ids)));
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

std::optional<Scan> joined(const Mask& mask, BlockShape block, std::optional<BandScan> mine,
                           const RankPatterns* patterns, Communicator& comm) {
  const Bytes message = message_of(mine, block);
  mine.reset();
  std::vector<Bytes> found = comm.gather(message);
  if (!comm.is_first()) return std::nullopt;
  return completed(sum_of(mask, block, std::move(found), patterns), patterns ? patterns->count : 0);
}

Scan joined_by_all(const Mask& mask, BlockShape block, std::optional<BandScan> mine, Communicator& comm) {
  const Bytes message = message_of(mine, block);
  mine.reset();
  return completed(sum_of(mask, block, comm.all_gather(message), nullptr), 0);
}

}  // namespace ejk::blocks
