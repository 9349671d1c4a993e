// Segment ids to masks and back.
// tests: tests/mask/test_segment_ids.cpp
#include "mask/segment_ids.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "core/checked.hpp"
#include "core/errors.hpp"
#include "core/parallel.hpp"
#include "core/require.hpp"
#include "kernels/kernels.hpp"
#include "mask/labels.hpp"
#include "mask/node.hpp"
#include "mask/patterns.hpp"

namespace ejk {

namespace {

using core::invalid;
using mask::BitRows;
using mask::PatternTable;
using mask::Word;

// --- ids to mask ---

// Ids of (batch, length) as the 32-bit labels that the bit kernels compare: equal where the ids are, 0 for
// padding.
struct LabelRows {
  std::int64_t batch = 0;
  std::int64_t length = 0;
  std::vector<std::int32_t> values;

  const std::int32_t* row(std::int64_t b) const { return values.data() + b * length; }
};

struct IdRows {
  std::int64_t batch, length;
  std::vector<std::int64_t> values;
};

IdRows read_ids(const ArraySource& source, Convention convention) {
  if (source.shape().size() != 2)
    throw invalid(fmt::format("{}: segment ids are (batch, length), not of shape {}", source.name(),
                              to_string(source.shape())));
  if (!is_integer(source.dtype()))
    throw invalid(
        fmt::format("{}: segment ids must be integers, not {}", source.name(), name_of(source.dtype())));
  const Array raw = read_all(source);
  IdRows ids{source.shape()[0], source.shape()[1], {}};
  ids.values.reserve(static_cast<std::size_t>(raw.size()));
  dispatch(raw.dtype(), [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
      for (const T id : raw.elements<T>()) {
        // Beyond 63 bits only uint64 goes; as numbers below zero those ids would be padding.
        if (!std::in_range<std::int64_t>(id))
          throw invalid(fmt::format("{}: the id {} does not fit 63 bits", source.name(), id));
        const auto value = static_cast<std::int64_t>(id);
        ids.values.push_back(convention == Convention::document
                                 ? std::max<std::int64_t>(value, 0)
                                 : std::max<std::int64_t>(value, -1) + (value < INT64_MAX));
      }
  });
  return ids;
}

// Bits as 0 and 1 of any dtype.
void expand(const Word* bits, std::int64_t n, DType dtype, std::byte* out) {
  if (size_of(dtype) == 1) {
    kernels::active().expand_bits(bits, n, reinterpret_cast<std::uint8_t*>(out));
    return;
  }
  dispatch(dtype, [&]<class T>(std::type_identity<T>) {
    T one;
    if constexpr (std::is_arithmetic_v<T>)
      one = T{1};
    else
      one = T(1.0f);
    const T values[2] = {T{}, one};
    auto* to = reinterpret_cast<T*>(out);
    for (std::int64_t i = 0; i < n; ++i) to[i] = values[bits[i / 64] >> (i % 64) & 1u];
  });
}

class SegmentMaskSource final : public ArraySource {
 public:
  SegmentMaskSource(LabelRows q, LabelRows kv, DType dtype, Convention convention)
      : ArraySource({dtype, convention == Convention::ejkernel ? Shape{q.batch, 1, q.length, kv.length}
                                                               : Shape{q.batch, q.length, kv.length}},
                    "attention_mask", ArrayAccess(ArrayAccess::Order::any)),
        q_(std::move(q)),
        kv_(std::move(kv)) {}

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    const std::size_t q_axis = shape().size() - 2, kv_axis = q_axis + 1;
    const std::int64_t columns = count[kv_axis], row_bytes = columns * size_of(dtype());
    if (element_count(count) == 0) return;
    auto* to = static_cast<std::byte*>(out);
    std::vector<Word> bits(static_cast<std::size_t>(mask::words_for(columns)));
    for (std::int64_t b = start[0]; b < start[0] + count[0]; ++b) {
      const std::int32_t* keys = kv_.row(b) + start[kv_axis];
      const std::int32_t* queries = q_.row(b) + start[q_axis];
      for (std::int64_t i = 0; i < count[q_axis]; ++i, to += row_bytes) {
        if (i > 0 && queries[i] == queries[i - 1]) {  // a query's neighbour mostly has the same row
          std::copy(to - row_bytes, to, to);
          continue;
        }
        if (queries[i] == 0)
          std::fill(bits.begin(), bits.end(), Word{0});
        else
          kernels::active().equal_bits_32(keys, columns, queries[i], bits.data());
        expand(bits.data(), columns, dtype(), to);
      }
    }
  }

 private:
  LabelRows q_, kv_;
};

Array padding_mask(const LabelRows& labels, DType dtype) {
  Array result(dtype, {labels.batch, labels.length});
  std::vector<Word> bits(static_cast<std::size_t>(mask::words_for(labels.length)));
  for (std::int64_t b = 0; b < labels.batch; ++b) {
    kernels::active().nonzero_bits_32(labels.row(b), labels.length, bits.data());
    expand(bits.data(), labels.length, dtype, result.data() + b * labels.length * size_of(dtype));
  }
  return result;
}

// --- mask to ids ---

// Distinct runs of bits, numbered by place; runs without a bit have no number.
struct Classes {
  std::vector<std::int32_t> class_of;  // per run, -1 without a bit
  std::shared_ptr<PatternTable> patterns;

  std::int64_t count() const { return patterns->size(); }
};

// Groups `runs` runs of `bits` bits. read(first, n, out) gives n of them; by several threads if `access` says
// so.
enum class Access { any_order, in_order };
template <class Read>
Classes classify(std::int64_t runs, std::int64_t bits, Access access, std::int64_t max_bytes,
                 PatternTable::Hash hash, Read&& read) {
  constexpr std::int64_t kBitsAtOnce = std::int64_t{1} << 21;
  Classes classes{std::vector<std::int32_t>(static_cast<std::size_t>(runs)),
                  std::make_shared<PatternTable>(BlockShape{1, bits}, max_bytes, hash)};
  std::vector<std::uint8_t> some(static_cast<std::size_t>(runs));
  const std::int64_t at_once = std::max<std::int64_t>(1, kBitsAtOnce / bits);
  const std::int64_t tasks = core::ceil_div(runs, at_once);
  const double work = static_cast<double>(runs) * static_cast<double>(bits) / 8;
  struct Part {
    std::shared_ptr<PatternTable> table;
    std::vector<std::int64_t> members;
    mask::BitBuffer buffer;
  };
  core::parallel_reduce(
      tasks, access == Access::any_order ? core::threads_for(tasks, work) : 1,
      [&] {
        return Part{std::make_shared<PatternTable>(classes.patterns->part()), {}, {}};
      },
      [&](Part& part, std::int64_t task) {
        const std::int64_t first = task * at_once, n = std::min(at_once, runs - first);
        const BitRows rows = part.buffer.rows(n, bits);
        read(first, n, rows);
        std::int32_t last = -1;
        for (std::int64_t r = 0; r < n; ++r) {
          const Word* row = rows.row(r);
          const auto at = static_cast<std::size_t>(first + r);
          if (std::all_of(row, row + rows.row_words, [](Word w) { return w == 0; })) continue;
          // Neighbours are mostly equal: then no hash is needed.
          const bool repeats = r > 0 && last >= 0 && some[at - 1] != 0 &&
                               std::equal(row, row + rows.row_words, row - rows.row_words);
          last = repeats ? last : part.table->find_or_add(row);
          classes.class_of[at] = last;
          some[at] = 1;
          part.members.push_back(first + r);
        }
      },
      [&](Part& part) {
        const std::vector<std::int32_t> slots = classes.patterns->join(std::move(*part.table));
        for (const std::int64_t m : part.members) {
          std::int32_t& slot = classes.class_of[static_cast<std::size_t>(m)];
          slot = slots[static_cast<std::size_t>(slot)];
        }
      });
  classes.patterns->number(some, classes.class_of);
  for (std::size_t r = 0; r < some.size(); ++r)
    if (some[r] == 0) classes.class_of[r] = -1;
  return classes;
}

// Two columns are equal in all rows if they are in the distinct ones.
Classes classify_columns(const Classes& rows, std::int64_t columns, std::int64_t max_bytes,
                         PatternTable::Hash hash) {
  const std::int64_t distinct = std::max<std::int64_t>(rows.count(), 1);
  return classify(columns, distinct, Access::any_order, max_bytes, hash,
                  [&](std::int64_t first, std::int64_t n, const BitRows& out) {
                    std::fill(out.words, out.words + n * out.row_words, Word{0});
                    for (std::int64_t d = 0; d < rows.count(); d += 64)
                      for (std::int64_t c = first / 64 * 64; c < first + n; c += 64) {
                        Word square[64] = {};
                        for (std::int64_t r = d; r < std::min(rows.count(), d + 64); ++r)
                          square[r - d] = rows.patterns->bits(r)[c / 64];
                        mask::transpose_64(square);
                        for (std::int64_t k = std::max(c, first); k < std::min(c + 64, first + n); ++k)
                          out.row(k - first)[d / 64] = square[k - c];
                      }
                  });
}

// Elements of these rows where equality of ids says something else than the mask. `numbers` are the rows'
// classes among all rows.
std::int64_t count_differences(const Classes& rows, const std::vector<std::int32_t>& numbers,
                               const std::vector<std::int32_t>& kv_classes) {
  std::vector<std::int64_t> members(static_cast<std::size_t>(rows.count()));
  for (const std::int32_t c : rows.class_of)
    if (c >= 0) ++members[static_cast<std::size_t>(c)];
  std::int64_t differing = 0;
  const auto columns = static_cast<std::int64_t>(kv_classes.size());
  const double work = static_cast<double>(rows.count()) * static_cast<double>(columns) / 4;
  core::parallel_reduce(
      rows.count(), core::threads_for(rows.count(), work), [] { return std::int64_t{0}; },
      [&](std::int64_t& sum, std::int64_t r) {
        std::vector<Word> given(static_cast<std::size_t>(mask::words_for(columns)));
        kernels::active().equal_bits_32(kv_classes.data(), columns, numbers[static_cast<std::size_t>(r)],
                                        given.data());
        const Word* wanted = rows.patterns->bits(r);
        for (std::size_t w = 0; w < given.size(); ++w) given[w] ^= wanted[w];
        sum += members[static_cast<std::size_t>(r)] *
               kernels::active().count_bits(given.data(), static_cast<std::int64_t>(given.size()));
      },
      [&](std::int64_t sum) { differing += sum; });
  return differing;
}

// A row class and a column class of the same number get the same id, though they are numbered apart: that is
// how the documented procedure makes ids meet.
void write_ids(const std::vector<std::int32_t>& class_of, Convention convention, std::int32_t* out) {
  const std::int32_t first = convention == Convention::document ? 1 : 0;
  for (std::size_t i = 0; i < class_of.size(); ++i) out[i] = class_of[i] < 0 ? -1 : class_of[i] + first;
}

// --- mask to ids, by a team ---
//
// The rows of all slices, one slice after the other, are cut into a run for each member. Most slices are then
// one member's. Those that share a slice pass on what the others need to know, from neighbour to neighbour.

// The slices of a mask, and their rows.
struct Slices {
  Shape leading;  // axes
  std::int64_t count = 0, rows = 0, columns = 0;

  // `members` + 1 bounds of runs of rows of all slices. Where there are many slices none is shared.
  std::vector<std::int64_t> cut(std::int64_t members) const {
    constexpr std::int64_t kMany = 8;  // for each member
    const bool whole = count / kMany >= members;
    const std::int64_t items = whole ? count : count * rows, size = whole ? rows : 1;
    std::vector<std::int64_t> bounds;
    for (std::int64_t m = 0; m <= members; ++m)
      bounds.push_back(size * (items / members * m + std::min(items % members, m)));
    return bounds;
  }
};

Slices slices_of(const ArrayType& type, const SegmentIdsOptions& options) {
  const Shape& shape = type.shape;
  const bool merge_heads = shape.size() == 4 && !options.per_head;
  // By ejkernel's convention only head 0 of each batch entry counts.
  Slices slices{Shape(shape.begin(), shape.end() - (merge_heads ? 3 : 2))};
  slices.count = element_count(slices.leading);
  slices.rows = shape[shape.size() - 2];
  slices.columns = shape.back();
  return slices;
}

// Columns are equal where both keys are. Numbers them by place; -1 is a column without a bit.
void join_columns(std::vector<std::int32_t>& classes, const std::vector<std::int32_t>& others) {
  std::unordered_map<std::uint64_t, std::int32_t> joined;
  for (std::size_t i = 0; i < classes.size(); ++i) {
    if (classes[i] < 0 && others[i] < 0) continue;
    const std::uint64_t key = static_cast<std::uint64_t>(static_cast<std::uint32_t>(classes[i])) << 32 |
                              static_cast<std::uint32_t>(others[i]);
    classes[i] = joined.try_emplace(key, static_cast<std::int32_t>(joined.size())).first->second;
  }
}

// The rows of a slice that a member has, and its columns, as far as these rows tell.
struct Band {
  std::int64_t slice, first;
  Classes rows;
  std::vector<std::int32_t> columns;  // their classes
  std::vector<std::int32_t> numbers;  // of the rows' classes
  std::int64_t row_classes = 0;       // numbered so far, in this band and those before it
};

// Makes the classes of a band those of the slice, which `members`, this one among them, have bands of, in
// order. Rows are numbered as they appear: a member hears of the distinct rows of those before it, and tells
// those behind it of these and its own, but of none whose hash they do not have. So a row is compared by all
// its bits, and few are sent. No member holds more than some of the others' rows at a time.
class Joining {
 public:
  Joining(Team& team, const std::vector<std::int64_t>& members, Band& band, PatternTable::Hash hash)
      : team_(team), band_(band), hash_(hash), words_(band.rows.patterns->row_words()) {
    const auto me = std::find(members.begin(), members.end(), team.rank());
    if (me != members.begin()) before_ = *std::prev(me);
    if (std::next(me) != members.end()) behind_ = *std::next(me);
    for (std::int64_t c = 0; c < band.rows.count(); ++c) class_of_hash_.emplace(hash_of(row(c)), c);
  }

  void run() {
    hear_from_behind();
    if (before_) band_.columns = TeamMessage(team_.receive(*before_)).take_all<std::int32_t>();
    if (behind_) team_.send(*behind_, TeamMessage().put_all(band_.columns).bytes());
    number_rows();
  }

 private:
  static constexpr std::int64_t kBytesAtOnce = std::int64_t{1} << 20;

  const Word* row(std::int64_t row_class) const { return band_.rows.patterns->bits(row_class); }
  std::uint64_t hash_of(const Word* bits) const { return hash_(bits, words_); }

  // Columns as all bands from here on tell them apart, and the hashes of these bands' rows.
  void hear_from_behind() {
    if (behind_) {
      TeamMessage message(team_.receive(*behind_));
      behind_have_ = message.take_all<std::uint64_t>();
      join_columns(band_.columns, message.take_all<std::int32_t>());
    }
    if (!before_) return;
    std::vector<std::uint64_t> hashes = behind_have_;
    for (const auto& entry : class_of_hash_) hashes.push_back(entry.first);
    std::sort(hashes.begin(), hashes.end());
    hashes.erase(std::unique(hashes.begin(), hashes.end()), hashes.end());
    team_.send(*before_, TeamMessage().put_all(hashes).put_all(band_.columns).bytes());
  }

  void number_rows() {
    band_.numbers.assign(static_cast<std::size_t>(band_.rows.count()), -1);
    for (bool more = before_.has_value(); more;) {
      TeamMessage message(team_.receive(*before_));
      more = message.take<std::uint8_t>() != 0;
      band_.row_classes = message.take<std::int64_t>();
      const auto numbers = message.take_all<std::int32_t>();
      const auto bits = message.take_all<Word>();
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        const Word* there = bits.data() + static_cast<std::int64_t>(i) * words_;
        const std::uint64_t hash = hash_of(there);
        const auto [from, to] = class_of_hash_.equal_range(hash);
        for (auto mine = from; mine != to; ++mine)
          if (std::equal(there, there + words_, row(mine->second)))
            band_.numbers[static_cast<std::size_t>(mine->second)] = numbers[i];
        tell(numbers[i], hash, there);
      }
    }
    for (std::int64_t c = 0; c < band_.rows.count(); ++c) {
      std::int32_t& number = band_.numbers[static_cast<std::size_t>(c)];
      if (number >= 0) continue;
      number = static_cast<std::int32_t>(band_.row_classes++);
      tell(number, hash_of(row(c)), row(c));
    }
    send_told(false);
  }

  void tell(std::int32_t number, std::uint64_t hash, const Word* bits) {
    if (!std::binary_search(behind_have_.begin(), behind_have_.end(), hash)) return;
    told_numbers_.push_back(number);
    told_bits_.insert(told_bits_.end(), bits, bits + words_);
    if (std::ssize(told_bits_) * static_cast<std::int64_t>(sizeof(Word)) >= kBytesAtOnce) send_told(true);
  }

  void send_told(bool more) {
    if (behind_)
      team_.send(*behind_, TeamMessage()
                               .put(static_cast<std::uint8_t>(more))
                               .put(band_.row_classes)
                               .put_all(told_numbers_)
                               .put_all(told_bits_)
                               .bytes());
    told_numbers_.clear();
    told_bits_.clear();
  }

  Team& team_;
  Band& band_;
  PatternTable::Hash hash_;
  std::int64_t words_;
  std::optional<std::int64_t> before_, behind_;  // ranks
  std::unordered_multimap<std::uint64_t, std::int64_t> class_of_hash_;
  std::vector<std::uint64_t> behind_have_;  // sorted
  std::vector<std::int32_t> told_numbers_;
  std::vector<Word> told_bits_;
};

// Each member has the ids of its rows, and those of the columns of the slices that begin with one of them: after
// this all have all.
void share_ids(Team& team, const Slices& slices, const std::vector<std::int64_t>& bounds, SegmentIds& ids) {
  const auto q_ids = ids.q_segment_ids.elements<std::int32_t>(),
             kv_ids = ids.kv_segment_ids.elements<std::int32_t>();
  const auto part_of = [&](std::span<std::int32_t> all, std::int64_t from, std::int64_t to) {
    return all.subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(to - from));
  };
  const auto rows_of = [&](std::size_t member) { return part_of(q_ids, bounds[member], bounds[member + 1]); };
  const auto columns_of = [&](std::size_t member) {
    return part_of(kv_ids, core::ceil_div(bounds[member], slices.rows) * slices.columns,
                   core::ceil_div(bounds[member + 1], slices.rows) * slices.columns);
  };
  const auto me = static_cast<std::size_t>(team.rank());
  TeamMessage mine;
  mine.put(ids.segments).put(ids.differing_elements);
  mine.put_all(std::span<const std::int32_t>(rows_of(me)));
  mine.put_all(std::span<const std::int32_t>(columns_of(me)));
  std::vector<Bytes> all = team.all_gather(mine.bytes());
  ids.segments = ids.differing_elements = 0;
  for (std::size_t m = 0; m < all.size(); ++m) {
    TeamMessage message(std::move(all[m]));
    ids.segments = std::max(ids.segments, message.take<std::int64_t>());
    ids.differing_elements += message.take<std::int64_t>();
    std::ranges::copy(message.take_all<std::int32_t>(), rows_of(m).begin());
    std::ranges::copy(message.take_all<std::int32_t>(), columns_of(m).begin());
  }
}

}  // namespace

SegmentMask segment_ids_to_mask(const ArraySource& q_ids, const ArraySource& kv_ids,
                                const SegmentMaskOptions& options) {
  const IdRows q = read_ids(q_ids, options.convention);
  const IdRows kv = &q_ids == &kv_ids ? q : read_ids(kv_ids, options.convention);
  if (q.batch != kv.batch)
    throw invalid(fmt::format("query ids have {} batch entries, key ids {}", q.batch, kv.batch));
  LabelRows q_labels{q.batch, q.length, {}}, kv_labels{kv.batch, kv.length, {}};
  mask::to_labels(q.values, kv.values, q_labels.values, kv_labels.values);
  SegmentMask result;
  if (options.separate) {
    result.q_mask = padding_mask(q_labels, options.dtype);
    result.kv_mask = padding_mask(kv_labels, options.dtype);
  }
  result.attention_mask = std::make_shared<SegmentMaskSource>(std::move(q_labels), std::move(kv_labels),
                                                              options.dtype, options.convention);
  return result;
}

SegmentMask segment_ids_to_mask(const ArraySource& ids, const SegmentMaskOptions& options) {
  return segment_ids_to_mask(ids, ids, options);
}

namespace mask {

SegmentIds segment_ids_of(const std::shared_ptr<const ArraySource>& source, const SegmentIdsOptions& options,
                          PatternTable::Hash hash, Team& team) {
  const Shape& shape = core::required(source).shape();
  if (shape.size() < 2 || shape.size() > 4)
    throw invalid(
        fmt::format("{}: a mask has two to four axes, ([batch, [heads,]] queries, keys), not the shape {}",
                    source->name(), to_string(shape)));
  const bool merge_heads = shape.size() == 4 && !options.per_head;
  if (merge_heads && options.convention == Convention::document)
    throw Error(Error::Kind::input,
                fmt::format("{}: a mask of shape {} has an axis of heads, and no rule says how to merge them",
                            source->name(), to_string(shape)),
                Error::Code::heads_of_mask)
        .hint("make ids for each head, or take one head");
  if (merge_heads && shape[1] == 0)
    throw Error(Error::Kind::input, fmt::format("{}: a mask of shape {} has no heads; ids are made of head 0",
                                                source->name(), to_string(shape)));
  const Slices slices = slices_of(type_of(*source), options);
  const std::int64_t q = slices.rows, kv = slices.columns;
  const auto with = [&](std::int64_t length) {
    Shape s = slices.leading;
    s.push_back(length);
    return s;
  };
  SegmentIds ids;
  ids.q_segment_ids = Array(DType::int32, with(q));
  ids.kv_segment_ids = Array(DType::int32, with(kv));
  auto* q_out = ids.q_segment_ids.elements<std::int32_t>().data();
  auto* kv_out = ids.kv_segment_ids.elements<std::int32_t>().data();
  if (q == 0 || kv == 0) {
    std::fill_n(q_out, ids.q_segment_ids.size(), -1);
    std::fill_n(kv_out, ids.kv_segment_ids.size(), -1);
    return ids;
  }
  ids.elements = slices.count * q * kv;

  const std::vector<std::int64_t> bounds = slices.cut(team.size());
  const std::int64_t begin = bounds[static_cast<std::size_t>(team.rank())],
                     end = bounds[static_cast<std::size_t>(team.rank()) + 1];
  const auto scan = [&](std::int64_t s, std::int64_t first, std::int64_t rows) {
    auto slice = source;
    if (shape.size() == 3) slice = slice_of(source, s);
    if (shape.size() == 4)
      slice = slice_of(slice_of(source, merge_heads ? s : s / shape[1]), merge_heads ? 0 : s % shape[1]);
    const Mask m = array_mask(slice, options.polarity);
    const MaskNode& node = m.node();
    const Access access = node.random_access() ? Access::any_order : Access::in_order;
    Band band{s,
              first,
              classify(rows, kv, access, options.max_pattern_bytes, hash,
                       [&](std::int64_t from, std::int64_t n, const BitRows& out) {
                         node.fill({first + from, first + from + n, 0, kv}, out);
                       }),
              {},
              {}};
    band.columns = classify_columns(band.rows, kv, options.max_pattern_bytes, hash).class_of;
    return band;
  };
  // A band whose rows' numbers and columns' classes are those of the slice.
  const auto finish = [&](Band band) {
    const std::int64_t columns = *std::max_element(band.columns.begin(), band.columns.end()) + 1;
    ids.segments = std::max({ids.segments, band.row_classes, columns});
    ids.differing_elements += count_differences(band.rows, band.numbers, band.columns);
    for (std::int32_t& c : band.rows.class_of)
      if (c >= 0) c = band.numbers[static_cast<std::size_t>(c)];
    write_ids(band.rows.class_of, options.convention, q_out + band.slice * q + band.first);
    if (band.first == 0) write_ids(band.columns, options.convention, kv_out + band.slice * kv);
  };
  std::vector<Band> shared;
  for (std::int64_t at = begin, after = 0; at < end; at = after) {
    const std::int64_t s = at / q;
    after = std::min(end, (s + 1) * q);
    Band band = scan(s, at % q, after - at);
    if (after - at < q) {
      shared.push_back(std::move(band));
      continue;
    }
    band.row_classes = band.rows.count();
    band.numbers.resize(static_cast<std::size_t>(band.row_classes));
    std::iota(band.numbers.begin(), band.numbers.end(), 0);
    finish(std::move(band));
  }
  // All have looked at their rows by now: from here on nobody waits for that.
  for (Band& band : shared) {
    std::vector<std::int64_t> members;
    for (std::int64_t m = 0; m < team.size(); ++m) {
      const std::int64_t from = std::max(bounds[static_cast<std::size_t>(m)], band.slice * q),
                         to = std::min(bounds[static_cast<std::size_t>(m) + 1], (band.slice + 1) * q);
      if (from < to) members.push_back(m);
    }
    Joining(team, members, band, hash).run();
    finish(std::move(band));
  }
  if (!team.is_alone()) share_ids(team, slices, bounds, ids);
  return ids;
}

}  // namespace mask

SegmentIds mask_to_segment_ids(const std::shared_ptr<const ArraySource>& source,
                               const SegmentIdsOptions& options, Team& team) {
  return mask::segment_ids_of(source, options, mask::hash_words, team);
}

std::vector<WorkShare> segment_ids_shares(const ArrayType& mask, const SegmentIdsOptions& options,
                                          std::int64_t members) {
  core::require_members(members);
  std::vector<WorkShare> shares(static_cast<std::size_t>(members));
  if (mask.rank() < 2 || mask.rank() > 4) return shares;
  const Slices slices = slices_of(mask, options);
  const std::vector<std::int64_t> bounds = slices.cut(members);
  for (std::size_t m = 0; m < shares.size(); ++m) {
    const std::int64_t rows = bounds[m + 1] - bounds[m];
    shares[m].read_bytes = rows * slices.columns * size_of(mask.dtype);
    shares[m].cost = static_cast<double>(shares[m].read_bytes);
    if (members > 1) shares[m].sent_bytes = (members - 1) * 4 * rows;
    shares[m].peak_bytes = segment_ids_bytes(mask);
  }
  return shares;
}

std::int64_t segment_mask_bytes(const ArrayType& q_ids, const ArrayType& kv_ids) {
  return core::bytes_of_estimate(
      3 * 8 *
      (static_cast<double>(element_count(q_ids.shape)) + static_cast<double>(element_count(kv_ids.shape))));
}

// For each row and column its id, a hash, and which came first.
std::int64_t segment_ids_bytes(const ArrayType& mask) {
  if (mask.rank() < 2) return 0;
  const std::int64_t longest = *std::max_element(mask.shape.begin(), mask.shape.end());
  const std::int64_t rows = element_count(mask.shape) / std::max<std::int64_t>(mask.shape.back(), 1);
  return core::bytes_of_estimate(3 * 8 * (static_cast<double>(rows) + static_cast<double>(longest)));
}

}  // namespace ejk
