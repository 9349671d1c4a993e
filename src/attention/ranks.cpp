// A rank's part of attention. Between two rounds lse and δ are sent to the ranks that start with them; the
// division determines which rows, so messages contain nothing else.
// tests: tests/attention/test_division.cpp
#include <algorithm>
#include <cstring>
#include <utility>

#include "attention/division.hpp"
#include "ejk/program/attention_ranks.hpp"

namespace ejk {

namespace {

// lse and δ of the rows that both regions have, on their way to another rank.
class RowExchange {
 public:
  explicit RowExchange(const attn::CheckedArguments& setup) : setup_(setup) {}

  template <class Rows, class F>
  void each_run(Rows& rows, const attn::Region& with, F&& f) const {
    const attn::Region region = attn::common(rows.queries, with);
    const attn::RowSteps steps = setup_.steps_of(rows.queries);
    const std::int64_t size = size_of(setup_.shape.arithmetic);
    for (std::int64_t e = region.entries.begin; e < region.entries.end; ++e)
      for (std::int64_t h = region.heads.begin; h < region.heads.end; ++h) {
        const attn::Positions some = region.positions_of(setup_.q_length(e));
        if (some.count() <= 0) continue;
        const std::int64_t at = (setup_.first_row(steps, e, h) + some.begin) * size;
        f(rows.lse.data() + at, rows.delta.data() + at, static_cast<std::size_t>(some.count() * size));
      }
  }

  Bytes packed(const std::vector<attn::SavedRows>& mine, const std::vector<attn::Region>& theirs) const {
    Bytes bytes;
    for (const attn::SavedRows& rows : mine)
      for (const attn::Region& region : theirs)
        each_run(rows, region, [&](const std::byte* lse, const std::byte* delta, std::size_t count) {
          bytes.insert(bytes.end(), lse, lse + count);
          bytes.insert(bytes.end(), delta, delta + count);
        });
    return bytes;
  }

  // `theirs`: the rows that the sender passed to packed().
  void unpack(const Bytes& bytes, const std::vector<attn::Region>& theirs,
              std::vector<attn::SavedRows>& mine) const {
    const std::byte* from = bytes.data();
    const std::byte* const end = from + bytes.size();
    for (const attn::Region& region : theirs)
      for (attn::SavedRows& rows : mine)
        each_run(rows, region, [&](std::byte* lse, std::byte* delta, std::size_t count) {
          if (static_cast<std::size_t>(end - from) < 2 * count)
            throw Error(Error::Kind::internal, "a message of a rank is too short");
          std::memcpy(lse, from, count);
          std::memcpy(delta, from + count, count);
          from += 2 * count;
        });
  }

  bool any(const std::vector<attn::Region>& a, const std::vector<attn::Region>& b) const {
    return std::any_of(a.begin(), a.end(), [&](const attn::Region& x) {
      return std::any_of(b.begin(), b.end(),
                         [&](const attn::Region& y) { return setup_.rows(attn::common(x, y)) > 0; });
    });
  }

 private:
  const attn::CheckedArguments& setup_;
};

}  // namespace

struct AttentionRank::State {
  AttentionDivision division;
  std::shared_ptr<const attn::Division> shared;
  Communicator& comm;
  std::int64_t round = 0;
  std::size_t next = 0;                // of the round's parts
  std::vector<attn::SavedRows> saved;  // of the round's parts, in order
  std::int64_t reported = 0, all = 0;  // pairs of all parts of this rank
  AttentionPasses work;

  const attn::Plan& plan() const { return *shared->plan; }

  // What another rank's parts of a round have of the queries.
  const std::vector<attn::Region>& queries(std::int64_t rank, std::size_t of_round) const {
    return shared->queries[of_round][static_cast<std::size_t>(rank)];
  }

  void exchange() {
    const attn::CheckedArguments& setup = plan().setup;
    const RowExchange rows(setup);
    const std::int64_t me = comm.rank();
    const DType type = setup.shape.arithmetic;
    std::vector<attn::SavedRows> wanted;
    const std::vector<attn::Region>&have = queries(me, 0), &want = queries(me, 1);
    for (const attn::Region& region : want)
      wanted.push_back({region, Array(type, {setup.rows(region)}), Array(type, {setup.rows(region)})});
    const auto give = [&](std::int64_t to) {
      const std::vector<attn::Region>& theirs = queries(to, 1);
      if (rows.any(have, theirs)) comm.send(to, rows.packed(saved, theirs));
    };
    const auto take = [&](std::int64_t from) {
      const std::vector<attn::Region>& theirs = queries(from, 0);
      if (rows.any(theirs, want)) rows.unpack(comm.receive(from), theirs, wanted);
    };
    rows.unpack(rows.packed(saved, want), have, wanted);
    // Pairs in order of their distance, the lower rank sends first, which excludes deadlock.
    for (std::int64_t apart = 1; apart < comm.size(); ++apart) {
      if (me >= apart) take(me - apart), give(me - apart);
      if (me + apart < comm.size()) give(me + apart), take(me + apart);
    }
    saved = std::move(wanted);
  }
};

AttentionRank::AttentionRank(AttentionDivision division, Communicator& comm) {
  if (division.ranks() != comm.size())
    throw Error(Error::Kind::internal, "the work is divided among another number of ranks");
  const auto shared = division.division_;
  state_ = std::make_shared<State>(State{std::move(division), shared, comm, 0, 0, {}, 0, 0, {}});
  for (std::int64_t round = 0; round < state_->division.rounds(); ++round)
    for (const AttentionPart& part : state_->division.parts(comm.rank(), round))
      state_->all += attn::reported_pairs(*shared->plan, part);
}

void AttentionRank::run(const AttentionPart& part, const AttentionArrays& arrays,
                        const std::vector<MutableArrayView>& results, const PairProgress& progress) {
  State& s = *state_;
  PairProgress of_part;
  if (progress)
    of_part = [&s, &progress](std::int64_t done, std::int64_t) { progress(s.reported + done, s.all); };
  if (part.makes == AttentionPart::Makes::saved) s.saved.emplace_back();
  attn::SavedRows* const rows = s.next < s.saved.size() ? &s.saved[s.next] : nullptr;
  ++s.next;
  attn::add(s.work, attn::run_part(s.plan(), part, arrays, results, rows, of_part));
  s.reported += attn::reported_pairs(s.plan(), part);
}

void AttentionRank::end_round() {
  State& s = *state_;
  if (s.round == 0 && s.division.rounds() == 2) s.exchange();
  ++s.round;
  s.next = 0;
}

AttentionWork AttentionRank::work() {
  State& s = *state_;
  AttentionWork all = s.plan().blocks().work();
  RankMessage mine;
  mine.put(s.work.rows_without_key).put(s.work.rows_not_finite);
  mine.put_all(s.work.first_row_without_key).put_all(s.work.first_row_not_finite);
  mine.put_all(s.work.max_logits);
  mine.put(all.mask_seconds).put(s.work.forward_seconds).put(s.work.backward_seconds);
  AttentionPasses sum;
  double mask_seconds = 0, forward_seconds = 0, backward_seconds = 0;
  for (Bytes& bytes : s.comm.all_gather(mine.bytes())) {
    RankMessage message(std::move(bytes));
    AttentionPasses one;
    one.rows_without_key = message.take<std::int64_t>();
    one.rows_not_finite = message.take<std::int64_t>();
    one.first_row_without_key = message.take_all<std::int64_t>();
    one.first_row_not_finite = message.take_all<std::int64_t>();
    one.max_logits = message.take_all<double>();
    mask_seconds = std::max(mask_seconds, message.take<double>());
    forward_seconds = std::max(forward_seconds, message.take<double>());
    backward_seconds = std::max(backward_seconds, message.take<double>());
    attn::add(sum, one);
  }
  if (s.plan().settings.max_logits)  // a rank without parts has none
    sum.max_logits.resize(static_cast<std::size_t>(s.plan().setup.shape.heads), attn::RowEnd<double>::kEmpty);
  static_cast<AttentionPasses&>(all) = sum;
  all.forward_seconds = forward_seconds;
  all.backward_seconds = backward_seconds;
  all.mask_seconds = mask_seconds;
  return all;
}

}  // namespace ejk
