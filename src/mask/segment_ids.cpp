// Segment ids from masks, and masks from segment ids.
// tests: tests/mask/test_segment_ids.cpp
#include "mask/segment_ids.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <utility>

#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "core/require.hpp"
#include "kernels/kernels.hpp"
#include "mask/labels.hpp"
#include "mask/node.hpp"

namespace ejk {

namespace {

using core::invalid;
using namespace mask;

template <class T>
struct Rows {
  std::int64_t batch, length;
  std::vector<T> values;

  const T* row(std::int64_t b) const { return values.data() + b * length; }
};
using IdRows = Rows<std::int64_t>;
using LabelRows = Rows<std::int32_t>;  // of to_labels

IdRows read_ids(const ArraySource& source, Convention convention) {
  if (source.shape().size() != 2)
    throw invalid("{}: segment ids are (batch, length), not of shape {}", source.name(),
                  to_string(source.shape()));
  if (!is_integer(source.dtype()))
    throw invalid("{}: segment ids must be integers, not {}", source.name(), name_of(source.dtype()));
  const Array raw = read_all(source);
  IdRows ids{source.shape()[0], source.shape()[1], {}};
  ids.values.reserve(static_cast<std::size_t>(raw.size()));
  dispatch(raw.dtype(), [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
      for (const T id : raw.elements<T>()) {
        // As negative numbers these would be padding.
        if (!std::in_range<std::int64_t>(id))
          throw invalid("{}: the id {} does not fit 63 bits", source.name(), id);
        const auto value = static_cast<std::int64_t>(id);
        ids.values.push_back(convention == Convention::document
                                 ? std::max<std::int64_t>(value, 0)
                                 : std::max<std::int64_t>(value, -1) + (value < INT64_MAX));
      }
  });
  return ids;
}

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
    std::vector<Word> bits(static_cast<std::size_t>(words_for(columns)));
    for (std::int64_t b = start[0]; b < start[0] + count[0]; ++b) {
      const std::int32_t* keys = kv_.row(b) + start[kv_axis];
      const std::int32_t* queries = q_.row(b) + start[q_axis];
      for (std::int64_t i = 0; i < count[q_axis]; ++i, to += row_bytes) {
        if (i > 0 && queries[i] == queries[i - 1]) {  // neighbouring queries mostly have equal rows
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
  std::vector<Word> bits(static_cast<std::size_t>(words_for(labels.length)));
  for (std::int64_t b = 0; b < labels.batch; ++b) {
    kernels::active().nonzero_bits_32(labels.row(b), labels.length, bits.data());
    expand(bits.data(), labels.length, dtype, result.data() + b * labels.length * size_of(dtype));
  }
  return result;
}

// Distinct rows of bits, numbered by position; rows without a bit have no number.
struct Classes {
  std::vector<std::int32_t> class_of;  // per run, -1 without a bit
  std::shared_ptr<PatternTable> patterns;

  std::int64_t count() const { return patterns->size(); }
};

// Groups `runs` rows of `bits` bits; read(first, n, out) reads n of them.
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
    BitBuffer buffer;
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
          // Neighbours are mostly equal, without hashing.
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

// Columns that are equal in the distinct rows are equal in all.
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
                        transpose_64(square);
                        for (std::int64_t k = std::max(c, first); k < std::min(c + 64, first + n); ++k)
                          out.row(k - first)[d / 64] = square[k - c];
                      }
                  });
}

// Elements of these rows in which equality of ids differs from the mask.
std::int64_t count_differences(const Classes& rows, const std::vector<std::int32_t>& kv_classes) {
  std::vector<std::int64_t> members(static_cast<std::size_t>(rows.count()));
  for (const std::int32_t c : rows.class_of)
    if (c >= 0) ++members[static_cast<std::size_t>(c)];
  std::int64_t differing = 0;
  const auto columns = static_cast<std::int64_t>(kv_classes.size());
  const double work = static_cast<double>(rows.count()) * static_cast<double>(columns) / 4;
  core::parallel_reduce(
      rows.count(), core::threads_for(rows.count(), work), [] { return std::int64_t{0}; },
      [&](std::int64_t& sum, std::int64_t r) {
        std::vector<Word> given(static_cast<std::size_t>(words_for(columns)));
        kernels::active().equal_bits_32(kv_classes.data(), columns, static_cast<std::int32_t>(r),
                                        given.data());
        const Word* wanted = rows.patterns->bits(r);
        for (std::size_t w = 0; w < given.size(); ++w) given[w] ^= wanted[w];
        sum += members[static_cast<std::size_t>(r)] *
               kernels::active().count_bits(given.data(), static_cast<std::int64_t>(given.size()));
      },
      [&](std::int64_t sum) { differing += sum; });
  return differing;
}

// The documented procedure: row and column classes are numbered separately, equal numbers get equal ids.
void write_ids(const std::vector<std::int32_t>& class_of, Convention convention, std::int32_t* out) {
  const std::int32_t first = convention == Convention::document ? 1 : 0;
  for (std::size_t i = 0; i < class_of.size(); ++i) out[i] = class_of[i] < 0 ? -1 : class_of[i] + first;
}

}  // namespace

SegmentMask segment_ids_to_mask(const ArraySource& q_ids, const ArraySource& kv_ids,
                                const SegmentMaskOptions& options) {
  const IdRows q = read_ids(q_ids, options.convention);
  const IdRows kv = &q_ids == &kv_ids ? q : read_ids(kv_ids, options.convention);
  if (q.batch != kv.batch) throw invalid("query ids have {} batch entries, key ids {}", q.batch, kv.batch);
  LabelRows q_labels{q.batch, q.length, {}}, kv_labels{kv.batch, kv.length, {}};
  to_labels(q.values, kv.values, q_labels.values, kv_labels.values);
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
                          PatternTable::Hash hash) {
  const Shape& shape = core::required(source).shape();
  if (shape.size() < 2 || shape.size() > 4)
    throw invalid("{}: a mask has two to four axes, ([batch, [heads,]] queries, keys), not the shape {}",
                  source->name(), to_string(shape));
  const bool merge_heads = shape.size() == 4 && !options.per_head;
  if (merge_heads && options.convention == Convention::document)
    throw Error(Error::Kind::input,
                fmt::format("{}: a mask of shape {} has an axis of heads, and no rule says how to merge them",
                            source->name(), to_string(shape)),
                Error::Code::heads_of_mask)
        .hint("make ids for each head, or take one head");
  if (merge_heads && shape[1] == 0)
    throw core::invalid("{}: a mask of shape {} has no heads; ids are made of head 0", source->name(),
                        to_string(shape));
  const Shape leading(shape.begin(), shape.end() - (merge_heads ? 3 : 2));
  const std::int64_t slices = element_count(leading), q = shape[shape.size() - 2], kv = shape.back();
  const auto with = [&](std::int64_t length) {
    Shape s = leading;
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
  ids.elements = slices * q * kv;
  for (std::int64_t s = 0; s < slices; ++s) {
    auto slice = source;
    if (shape.size() == 3) slice = slice_of(source, s);
    if (shape.size() == 4)
      slice = slice_of(slice_of(source, merge_heads ? s : s / shape[1]), merge_heads ? 0 : s % shape[1]);
    const Mask m = array_mask(slice, options.polarity);
    const MaskNode& node = m.node();
    const Access access = node.random_access() ? Access::any_order : Access::in_order;
    const Classes rows = classify(q, kv, access, options.max_pattern_bytes, hash,
                                  [&](std::int64_t from, std::int64_t n, const BitRows& out) {
                                    node.fill({from, from + n, 0, kv}, out);
                                  });
    const Classes columns = classify_columns(rows, kv, options.max_pattern_bytes, hash);
    ids.segments = std::max({ids.segments, rows.count(), columns.count()});
    ids.differing_elements += count_differences(rows, columns.class_of);
    write_ids(rows.class_of, options.convention, q_out + s * q);
    write_ids(columns.class_of, options.convention, kv_out + s * kv);
  }
  return ids;
}

}  // namespace mask

SegmentIds mask_to_segment_ids(const std::shared_ptr<const ArraySource>& source,
                               const SegmentIdsOptions& options) {
  return mask::segment_ids_of(source, options, mask::hash_words);
}

std::int64_t segment_mask_bytes(const ArrayType& q_ids, const ArrayType& kv_ids) {
  return core::bytes_of_estimate(
      3 * 8 *
      (static_cast<double>(element_count(q_ids.shape)) + static_cast<double>(element_count(kv_ids.shape))));
}

// Of each row and column the id, a hash, and the first appearance.
std::int64_t segment_ids_bytes(const ArrayType& mask) {
  if (mask.rank() < 2) return 0;
  const std::int64_t longest = *std::max_element(mask.shape.begin(), mask.shape.end());
  const std::int64_t rows = element_count(mask.shape) / std::max<std::int64_t>(mask.shape.back(), 1);
  return core::bytes_of_estimate(3 * 8 * (static_cast<double>(rows) + static_cast<double>(longest)));
}

}  // namespace ejk
