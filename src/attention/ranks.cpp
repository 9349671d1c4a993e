// A rank's part of attention, and what all ranks have done.
// tests: tests/attention/test_division.cpp
#include <algorithm>
#include <utility>

#include "attention/division.hpp"
#include "ejk/program/attention_ranks.hpp"

namespace ejk {

struct AttentionRank::State {
  AttentionDivision division;
  Communicator& comm;
  std::int64_t reported = 0, all = 0;  // pairs of all parts of this rank
  AttentionPasses work;

  const attn::Plan& plan() const { return *division.division_->plan; }
};

AttentionRank::AttentionRank(AttentionDivision division, Communicator& comm) {
  if (division.ranks() != comm.size())
    throw Error(Error::Kind::internal, "the work is divided among another number of ranks");
  state_ = std::make_shared<State>(State{std::move(division), comm, 0, 0, {}});
  for (const AttentionPart& part : state_->division.parts(comm.rank()))
    state_->all += attn::reported_pairs(state_->plan(), part);
}

void AttentionRank::run(const AttentionPart& part, const AttentionArrays& arrays,
                        const std::vector<MutableArrayView>& results, const PairProgress& progress) {
  State& s = *state_;
  PairProgress of_part;
  if (progress)
    of_part = [&s, &progress](std::int64_t done, std::int64_t) { progress(s.reported + done, s.all); };
  attn::add(s.work, attn::run_part(s.plan(), part, arrays, results, of_part));
  s.reported += attn::reported_pairs(s.plan(), part);
}

AttentionWork AttentionRank::work() {
  State& s = *state_;
  AttentionWork all = s.plan().blocks().work();
  RankMessage own;
  own.put(s.work.rows_without_key).put(s.work.rows_not_finite);
  own.put_all(s.work.first_row_without_key).put_all(s.work.first_row_not_finite);
  own.put_all(s.work.max_logits);
  own.put(all.mask_seconds).put(s.work.forward_seconds).put(s.work.backward_seconds);
  AttentionPasses sum;
  double mask_seconds = 0, forward_seconds = 0, backward_seconds = 0;
  for (Bytes& bytes : s.comm.all_gather(own.bytes())) {
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
