// Sets of masks: the parts are broadcast to one number of entries, heads, queries and keys, created, and
// combined. The first of a stored mask's three axes is settled here: entries, or heads where their number alone
// fits. The cost is that of the distinct masks.
// tests: tests/mask/test_mask_set.cpp
#include "ejk/mask_set.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/checked.hpp"
#include "core/named.hpp"
#include "core/require.hpp"
#include "mask/node.hpp"

namespace ejk {

namespace {

using core::invalid;

// Whether all parts have one mask for all entries, or for all heads.
bool all_share(const std::vector<HeadMasks>& parts, std::int64_t HeadMasks::*axis) {
  return std::all_of(parts.begin(), parts.end(), [&](const HeadMasks& part) { return part.*axis == 1; });
}

std::string counted(std::int64_t heads) { return fmt::format("{} head{}", heads, heads == 1 ? "" : "s"); }

// What fixes heads or lengths.
struct Claim {
  const std::string* who;
  std::int64_t heads, q, kv;
};

std::string text_of(const Claim& claim) {
  return claim.q > 0 ? fmt::format("{} of {} x {}", counted(claim.heads), claim.q, claim.kv)
                     : counted(claim.heads);
}

void require_equal_lengths(const Claim& claim, const Claim& first) {
  if (claim.q != first.q || claim.kv != first.kv)
    throw invalid("{} has {} queries x {} keys, {} has {} x {}", *claim.who, claim.q, claim.kv, *first.who,
                  first.q, first.kv);
}

// `is` the lengths of a mask of `part`, `wanted` those of an entry.
void require_lengths(const HeadMasks& part, MaskSet::Lengths is, MaskSet::Lengths wanted,
                     std::int64_t entries) {
  if (is.q == wanted.q && is.kv == wanted.kv) return;
  const bool transposed = is.q == wanted.kv && is.kv == wanted.q;
  const bool keys_alone = is.q == 1 && is.kv == wanted.kv;
  const bool padding = !transposed && !keys_alone && is.q == entries && is.kv == wanted.kv && part.batch == 1;
  Error error(Error::Kind::input,
              fmt::format("{} is {} x {}, and there are {} queries x {} keys", part.name, is.q, is.kv,
                          wanted.q, wanted.kv),
              padding ? Error::Code::padding_mask : Error::Code::other);
  if (transposed) error.hint("it looks transposed: queries are the axis before keys");
  if (keys_alone)
    error.hint("a mask of keys alone goes as segment ids: ones for the queries, the mask for the keys");
  if (padding)
    error.about(part.name).hint("a padding mask (B, K) goes as segment ids, 1 for tokens and 0 for padding");
  throw std::move(error);
}

const char* hint_of_heads(const HeadMasks& part, const char* otherwise) {
  return part.heads_are_rows ? "shape=HxQxK in from() or visited() says for how many heads its arrays are"
                             : otherwise;
}

// Axes of heads, queries and keys alone, none of which is empty.
void require_heads_queries_keys(const ArraySource& array) {
  const Shape& shape = array.shape();
  const std::size_t rank = shape.size();
  if (rank != 2 && rank != 3) {
    Error error = invalid("{}: shape {} is neither (Q, K) nor (H, Q, K)", array.name(), to_string(shape));
    if (rank == 4) error.hint(fmt::format("a slice picks one batch entry: '{}[0]'", array.name()));
    throw std::move(error);
  }
  const char* const axes[] = {"heads", "queries", "keys"};
  for (std::size_t d = 0; d < rank; ++d)
    if (shape[d] == 0)
      throw invalid("{}: shape {} has no {}", array.name(), to_string(shape), axes[d + 3 - rank]);
}

}  // namespace

void mask::agree_on_entries(std::int64_t& batch, bool& may_be_heads, std::int64_t more,
                            bool more_may_be_heads, const std::string& name) {
  if (more == 1) return;
  if (batch != 1 && more != batch)
    throw invalid("{} has {} batch entries, what is before it {}", name, more, batch);
  may_be_heads = more_may_be_heads && (batch == 1 || may_be_heads);
  batch = more;
}

bool settle_first_axis(HeadMasks& part, std::int64_t entries, std::int64_t heads) {
  if (!part.may_be_heads || part.batch != heads) return false;
  if (part.batch == entries) return true;
  part.batch = 1;
  part.heads = heads;
  part.has_head_axis = true;
  part.may_be_heads = false;
  part.mask = [of = std::move(part.mask)](std::int64_t, std::int64_t head, std::int64_t q, std::int64_t kv) {
    return of(head, head, q, kv);
  };
  return false;
}

HeadMasks conjunction_of(std::vector<HeadMasks> parts) {
  HeadMasks all;
  for (const HeadMasks& part : parts) {
    all.batch = std::max(all.batch, part.batch);
    all.heads = std::max(all.heads, part.heads);
  }
  all.mask = [parts = std::move(parts)](std::int64_t entry, std::int64_t head, std::int64_t q,
                                        std::int64_t kv) {
    Mask mask = full_mask(q, kv);
    for (const HeadMasks& part : parts)
      mask = mask & part.mask(part.batch == 1 ? 0 : entry, part.heads == 1 ? 0 : head, q, kv);
    return mask;
  };
  return all;
}

HeadMasks head_masks(std::vector<Mask> heads) {
  if (heads.empty()) throw invalid("the list of masks is empty");
  HeadMasks part;
  part.heads = std::ssize(heads);
  part.is_list = part.heads > 1;
  part.q_length = heads.front().q_length();
  part.kv_length = heads.front().kv_length();
  for (const Mask& mask : heads)
    if (mask.q_length() != part.q_length || mask.kv_length() != part.kv_length)
      throw invalid("the list of masks has one of {} x {} and one of {} x {}", part.q_length, part.kv_length,
                    mask.q_length(), mask.kv_length());
  part.name = part.is_list ? "the list of masks" : heads.front().text();
  part.mask = [heads = std::move(heads)](std::int64_t, std::int64_t head, std::int64_t, std::int64_t) {
    return heads[static_cast<std::size_t>(head)];
  };
  return part;
}

HeadMasks head_masks(std::vector<MaskExpression> heads, Polarity polarity, OpenArray open,
                     LeadingAxis leading) {
  if (heads.empty()) throw invalid("the list of masks is empty");
  HeadMasks part;
  part.heads = std::ssize(heads);
  part.is_list = part.heads > 1;
  part.name = part.is_list ? "the list of masks" : heads.front().text();
  std::optional<Claim> first;
  MaskSet::Lengths at_most;
  for (const MaskExpression& expression : heads) {
    if (expression.leaves_alignment_open()) part.unaligned.push_back(expression.text());
    const MaskShape shape = expression.shape(open, leading);
    const Claim claim{&expression.text(), shape.heads, shape.q_length, shape.kv_length};
    if (claim.q > 0 && !shape.at_most) {
      if (first) require_equal_lengths(claim, *first);
      if (!first) first = claim;
    } else if (claim.q > 0) {
      at_most = {at_most.q > 0 ? std::min(at_most.q, claim.q) : claim.q,
                 at_most.kv > 0 ? std::min(at_most.kv, claim.kv) : claim.kv};
    }
    mask::agree_on_entries(part.batch, part.may_be_heads, shape.batch, shape.may_be_heads, expression.text());
    if (claim.heads <= 1) continue;
    part.heads_are_rows = part.heads_are_rows || shape.heads_are_rows;
    if (!part.is_list)
      part.heads = claim.heads;
    else if (claim.heads != part.heads)
      throw invalid("{} has {} heads, and there are {} expressions", expression.text(), claim.heads,
                    heads.size());
  }
  part.lengths_at_most = !first;
  part.q_length = first ? first->q : at_most.q;
  part.kv_length = first ? first->kv : at_most.kv;
  const bool has_batch = leading == LeadingAxis::batch;
  part.mask = [expressions = std::move(heads), polarity, open = std::move(open), has_batch,
               count = part.heads](std::int64_t entry, std::int64_t head, std::int64_t q_length,
                                   std::int64_t kv_length) {
    const std::size_t which = expressions.size() == 1 ? 0 : static_cast<std::size_t>(head);
    return expressions[which].resolve({count, q_length, kv_length}, count == 1 ? 0 : head, polarity, open,
                                      has_batch ? std::optional(entry) : std::nullopt);
  };
  return part;
}

HeadMasks head_masks(std::shared_ptr<const ArraySource> array, Polarity polarity, LeadingAxis leading) {
  const Shape& shape = core::required(array).shape();
  const std::size_t rank = shape.size();
  if (leading == LeadingAxis::heads) require_heads_queries_keys(*array);
  if (rank < 2 || rank > 4)
    throw invalid("{}: a mask is (Q, K), (B, Q, K), (B, 1, Q, K) or (B, H, Q, K), not of shape {}",
                  array->name(), to_string(shape));
  HeadMasks part;
  part.name = array->name();
  part.is_array = true;
  part.q_length = shape[rank - 2];
  part.kv_length = shape[rank - 1];
  const bool by_entry = rank == 4 || (rank == 3 && leading == LeadingAxis::batch);
  const bool by_head = rank == 4 || (rank == 3 && leading == LeadingAxis::heads);
  if (by_entry) part.batch = shape[0];
  if (by_head) part.heads = shape[rank - 3];
  part.has_head_axis = by_head;
  part.may_be_heads = by_entry && !by_head && part.batch > 1;
  part.mask = [array = std::move(array), polarity, by_entry, by_head](std::int64_t entry, std::int64_t head,
                                                                      std::int64_t, std::int64_t) {
    auto one = array;
    if (by_entry) one = slice_of(one, entry);
    if (by_head) one = slice_of(one, head);
    return array_mask(std::move(one), polarity);
  };
  return part;
}

MaskSet::MaskSet(std::vector<HeadMasks> parts, const std::optional<Given>& given) : parts_(std::move(parts)) {
  std::optional<Claim> lengths, heads;  // the first of each
  if (given) {
    const Shape& shape = given->shape;
    const std::size_t rank = shape.size();
    if (rank != 2 && rank != 3)
      throw core::usage("{} is {}, not ([heads,] queries, keys)", given->name, to_string(shape));
    core::named(given->name, [&] { return element_count(shape); });  // fails here, where the name is known
    lengths = heads = Claim{&given->name, rank == 3 ? shape[0] : 1, shape[rank - 2], shape[rank - 1]};
    has_head_axis_ = rank == 3;
  }
  for (const HeadMasks& part : parts_) {
    const Claim claim{&part.name, part.heads, part.q_length, part.kv_length};
    if (part.q_length > 0 && !part.lengths_at_most) {
      if (lengths) require_equal_lengths(claim, *lengths);
      if (!lengths) lengths = claim;
    }
    if (!given && part.has_head_axis) has_head_axis_ = true;
    if (part.heads == 1 || part.is_list) continue;
    if (heads && heads->heads != claim.heads)
      throw invalid("{} has {}, {} has {}", part.name, text_of(claim), *heads->who, text_of(*heads))
          .hint(hint_of_heads(part, ""));
    if (!heads) heads = claim;
  }
  for (const HeadMasks& part : parts_) {
    if (!part.is_list) continue;
    if (heads && heads->heads != part.heads)
      throw Error(given ? Error::Kind::usage : Error::Kind::input,
                  fmt::format("{} for {} ({})", part.name, counted(heads->heads), *heads->who),
                  Error::Code::masks_of_heads)
          .hint("one mask serves all heads, else each head has its own");
    if (!heads) heads = Claim{&part.name, part.heads, part.q_length, part.kv_length};
  }
  if (!lengths)  // by default blocks are whole
    for (const HeadMasks& part : parts_)
      if (part.q_length > 0 && (!lengths || part.q_length < lengths->q))
        lengths = Claim{&part.name, part.heads, part.q_length, part.kv_length};
  if (!lengths) throw invalid("nothing says how many queries and keys the masks have");
  heads_ = heads ? heads->heads : 1;
  has_head_axis_ = has_head_axis_ || heads_ > 1;
  lengths_ = [all = Lengths{lengths->q, lengths->kv}](std::int64_t) { return all; };
}

MaskSet::MaskSet(std::vector<HeadMasks> parts, std::int64_t entries, std::int64_t heads,
                 std::function<Lengths(std::int64_t entry)> lengths, Entries kind)
    : parts_(std::move(parts)),
      entries_(entries),
      heads_(heads),
      lengths_(std::move(lengths)),
      packed_(kind == Entries::packed),
      has_head_axis_(true) {
  for (const HeadMasks& part : parts_) {
    if (packed_ && part.q_length > 0)
      throw invalid("{} has one length; packed sequences differ in length", part.name)
          .hint("masks of positions fit every length: causal, local, chunked");
    if (part.batch != 1 && part.batch != entries)
      throw part.may_be_heads ? invalid("{} has {} masks, q has {} batch entries and {}", part.name,
                                        part.batch, entries, counted(heads))
                              : invalid("{} has {} batch entries, q has {}", part.name, part.batch, entries);
    if (part.heads != 1 && part.heads != heads)
      throw invalid("{} has {} heads, q has {}", part.name, part.heads, heads)
          .hint(hint_of_heads(part, "one mask serves all heads, else each query head has its own"));
  }
  if (packed_ && !parts_.empty() && entries_ > 1 && all_share(parts_, &HeadMasks::batch)) share_by_lengths();
}

void MaskSet::share_by_lengths() {
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> rows;
  of_entry_.reserve(static_cast<std::size_t>(entries_));
  for (std::int64_t e = 0; e < entries_; ++e) {
    const Lengths l = lengths_(e);
    const auto [row, is_new] = rows.try_emplace({l.q, l.kv}, std::ssize(first_));
    if (is_new) first_.push_back(e);
    of_entry_.push_back(row->second);
  }
}

std::int64_t MaskSet::distinct_entries() const {
  if (!first_.empty()) return std::ssize(first_);
  return !packed_ && all_share(parts_, &HeadMasks::batch) ? std::min<std::int64_t>(1, entries_) : entries_;
}

std::int64_t MaskSet::distinct_heads() const {
  return all_share(parts_, &HeadMasks::heads) ? std::min<std::int64_t>(1, heads_) : heads_;
}

std::int64_t MaskSet::bytes() const {
  constexpr std::int64_t kMask = 512, kShared = 64;  // a mask with its parts; a head's share in another's
  if (parts_.empty()) return 0;
  const auto distinct = core::checked_mul(distinct_entries(), distinct_heads());
  const std::int64_t row_bytes = 8 * (std::ssize(of_entry_) + std::ssize(first_));
  const auto bytes = distinct == 1 ? core::checked_mul(heads_, kShared)
                     : distinct    ? core::checked_mul(*distinct, kMask)
                                   : std::nullopt;
  return core::sum_of_bytes({std::min(bytes.value_or(core::kMostBytes), core::kMostBytes), row_bytes});
}

std::vector<MaskBroadcast> MaskSet::broadcasts() const {
  std::vector<MaskBroadcast> all;
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    if (parts_[p].is_array && parts_[p].batch == 1 && entries_ > 1)
      all.push_back({p, MaskBroadcast::Axis::batch, entries_});
    if (parts_[p].heads == 1 && heads_ > 1 && !parts_[p].same_for_heads)
      all.push_back({p, MaskBroadcast::Axis::heads, heads_});
  }
  return all;
}

std::vector<std::string> MaskSet::unaligned() const {
  std::vector<std::string> all;
  for (const HeadMasks& part : parts_) all.insert(all.end(), part.unaligned.begin(), part.unaligned.end());
  return all;
}

JoinedMasks MaskSet::make(const HeadMasks& part) const {
  JoinedMasks made;
  made.entries = packed_ ? distinct_entries() : std::min(part.batch, entries_);
  made.heads = std::min(part.heads, heads_);
  made.masks.reserve(static_cast<std::size_t>(made.entries * made.heads));
  for (std::int64_t row = 0; row < made.entries; ++row) {
    const std::int64_t e = entry_of_row(row);
    const Lengths lengths = lengths_(e);
    for (std::int64_t h = 0; h < made.heads; ++h) {
      auto& mask = made.masks.emplace_back();
      if (lengths.q == 0 || lengths.kv == 0) continue;
      mask = part.mask(e, h, lengths.q, lengths.kv);
      require_lengths(part, {mask->q_length(), mask->kv_length()}, lengths, entries_);
    }
  }
  return made;
}

JoinedMasks MaskSet::join() const {
  JoinedMasks joined;
  joined.entries = distinct_entries();
  joined.heads = distinct_heads();
  joined.of_entry = of_entry_;
  joined.masks.resize(static_cast<std::size_t>(joined.entries * joined.heads));
  for (const HeadMasks& part : parts_) {
    const JoinedMasks made = make(part);
    for (std::int64_t e = 0; e < joined.entries; ++e)
      for (std::int64_t h = 0; h < joined.heads; ++h) {
        auto& mask = joined.masks[static_cast<std::size_t>(e * joined.heads + h)];
        const auto& one = made.of(e, h);
        if (one) mask = mask ? *mask & *one : *one;
      }
  }
  return joined;
}

}  // namespace ejk
