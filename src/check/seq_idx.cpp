// The sequence of each token, as ids that change where sequences begin. A change off those tokens is attributed to the
// boundary that lacks one: before it, or behind it.
// tests: tests/check/test_seq_idx.cpp, tests/check/test_rules.cpp
#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

#include "check/integers.hpp"
#include "core/offsets.hpp"

namespace ejk {

namespace {

class SeqIdxWalk {
 public:
  SeqIdxWalk(const ArraySource& ids, const std::vector<std::int64_t>& cu, Findings& found)
      : shape_(ids.shape()), cu_(cu), seen_(cu.size()), found_(found) {}

  void see(std::int64_t at, std::int64_t id, std::int64_t before, std::size_t s) {
    const bool begins_run = at == 0 || id != before;
    if (s + 1 == cu_.size()) {
      if (id != -1 && (begins_run || at == cu_.back()))
        add("padding", {at, id}, [&] { return fmt::format("the sequences end at token {}", cu_.back()); });
      return;
    }
    const bool begins_sequence = at == cu_[s];
    if (begins_sequence) begin(at, id, s);
    if (id == -1) {
      if (begins_run)
        add("padding", {at, id}, [&] { return fmt::format("token {} of sequence {}", at - cu_[s], s); });
      current_.reset();
      return;
    }
    if (current_ != id) {
      if (current_ && !begins_sequence) change(at, id, s);
      if (begins_run) see_run(at, id, s);
      current_ = id;
    }
  }

  // Boundaries without a change that no later change is of, and changes that are of no boundary.
  void end() {
    if (unchanged_)
      add("boundary", unchanged_->token, [&] {
        return fmt::format("sequence {} begins here, and the id does not change", unchanged_->sequence);
      });
    report_change();
    unchanged_.reset();
  }

 private:
  struct Token {
    std::int64_t at, id;
  };
  struct OfSequence {
    Token token;
    std::size_t sequence;
  };

  template <class Message>
  void add(std::string_view rule, const Token& token, Message&& message) {
    check::add_at(found_, rule, "seq_idx", shape_, token.at, token.id, message);
  }

  void report_change() {
    if (changed_)
      add("boundary", changed_->token, [&] {
        return fmt::format("the id changes inside sequence {}, which is tokens {} to {}", changed_->sequence,
                           cu_[changed_->sequence], cu_[changed_->sequence + 1] - 1);
      });
    changed_.reset();
  }

  void begin(std::int64_t at, std::int64_t id, std::size_t s) {
    const bool is_changed = current_ != id;
    if (!is_changed && changed_) {
      const Token early = std::exchange(changed_, std::nullopt)->token;
      end();
      add("boundary", early,
          [&] { return fmt::format("sequence {} begins at token {}, and the id changes before it", s, at); });
      return;
    }
    end();
    if (!is_changed) unchanged_ = OfSequence{{at, id}, s};
  }

  void change(std::int64_t at, std::int64_t id, std::size_t s) {
    if (!unchanged_) {
      report_change();
      changed_ = OfSequence{{at, id}, s};
      return;
    }
    unchanged_.reset();
    add("boundary", {at, id}, [&] {
      return fmt::format("sequence {} begins at token {}, and the id changes after it", s, cu_[s]);
    });
  }

  void see_run(std::int64_t at, std::int64_t id, std::size_t s) {
    const std::int64_t sequences = std::ssize(cu_) - 1;
    if (id < 0 || id >= sequences) {
      add("range", {at, id}, [&] { return check::there_are(sequences, "sequence"); });
      return;
    }
    if (seen_[static_cast<std::size_t>(id)])
      add("repeated", {at, id}, [&] { return fmt::format("in sequence {}, after other ids", s); });
    else if (id < last_)
      add("order", {at, id}, [&] { return fmt::format("{} before it; sequence {}", last_, s); });
    seen_[static_cast<std::size_t>(id)] = true;
    last_ = id;
  }

  const Shape& shape_;
  const std::vector<std::int64_t>& cu_;
  std::vector<bool> seen_;
  std::optional<std::int64_t> current_;  // id of the sequence; none behind a -1
  std::int64_t last_ = 0;                // the last id in range
  std::optional<OfSequence> unchanged_;  // a boundary without a change
  std::optional<OfSequence> changed_;    // a change inside a sequence
  Findings& found_;
};

}  // namespace

Findings check_seq_idx(const IntegerArray& seq_idx, const IntegerArray& cu_seqlens,
                       const CheckOptions& options) {
  check::require_integers(*seq_idx, "seq_idx", 1, 2, "(tokens,) or (1, tokens)");
  check::require_one_row(*seq_idx, "seq_idx");
  Findings found(rules_of("seq-idx"), options.most_findings);
  const std::vector<std::int64_t> cu = core::read_offsets(*cu_seqlens);
  found.facts()
      .add("sequences", "sequences", std::ssize(cu) - 1, Unit::count)
      .add("tokens", "tokens", cu.back(), Unit::count);
  if (seq_idx->dtype() != DType::int32)
    check::add(found, "type", 0, "seq_idx", {}, {},
               fmt::format("{}; causal_conv1d and mamba_ssm read int32", name_of(seq_idx->dtype())));
  SeqIdxWalk walk(*seq_idx, cu, found);
  check::scan_sequences(*seq_idx, cu, options, found, "ids",
                        [&](std::int64_t at, std::int64_t id, std::int64_t before, std::size_t s) {
                          walk.see(at, id, before, s);
                        });
  walk.end();
  return found;
}

}  // namespace ejk
