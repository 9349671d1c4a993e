// Masks of sparse attention and of reordered tokens: the keys of each query (indices), speculative trees
// (tree), and a mask whose queries and keys stand at other positions (positions).
//
// indices: the keys of a query, ascending; a block is classified by counting them. tree: a query sees the
// prefix, itself and its ancestors, which come before it. positions: elements of runs of consecutive positions
// are those of the other mask; a block is classified from its bands, if it has any.
// Cost: a few operations for each listed key, ancestor, or run.
// tests: tests/mask/test_mask.cpp, test_expression.cpp
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/checked.hpp"
#include "core/offsets.hpp"
#include "core/require.hpp"
#include "mask/node.hpp"

namespace ejk {

namespace {

using namespace mask;

void clear(const BitRows& out) {
  for (std::int64_t r = 0; r < out.rows; ++r)
    std::fill(out.row(r), out.row(r) + words_for(out.columns), Word{0});
}

class IndicesMask final : public MaskNode {
 public:
  /// Of query q the keys [begins[q], begins[q + 1]), ascending.
  IndicesMask(std::vector<std::int64_t> begins, std::vector<std::int32_t> keys, std::int64_t kv_length,
              std::string text)
      : MaskNode(std::ssize(begins) - 1, kv_length),
        begins_(std::move(begins)),
        keys_(std::move(keys)),
        text_(std::move(text)) {}

  std::string text() const override { return text_; }
  bool same_as(const MaskNode& other, IndexRange queries) const override {
    const auto& o = static_cast<const IndicesMask&>(other);
    for (std::int64_t q = queries.begin; q < queries.end; ++q)
      if (!std::ranges::equal(of(q), o.of(q))) return false;
    return true;
  }
  std::uint64_t stored_hash(IndexRange queries) const override {
    std::uint64_t hash = 1469598103934665603u;
    for (std::int64_t q = queries.begin; q < queries.end; ++q) {
      for (const std::int32_t key : of(q)) hash = (hash ^ static_cast<std::uint64_t>(key)) * 1099511628211u;
      hash = (hash ^ 0x80000000u) * 1099511628211u;
    }
    return hash;
  }
  std::unique_ptr<BlockClassifier> classifier(std::int64_t q_block, std::int64_t kv_block) const override;

  void fill(const Rectangle& where, const BitRows& out) const override {
    clear(out);
    for (std::int64_t q = where.q_begin; q < where.q_end; ++q) {
      const auto keys = of(q);
      for (auto key = std::lower_bound(keys.begin(), keys.end(), where.k_begin);
           key != keys.end() && *key < where.k_end; ++key) {
        const std::int64_t c = *key - where.k_begin;
        out.row(q - where.q_begin)[c / 64] |= Word{1} << (c % 64);
      }
    }
  }
  std::int64_t stored_bytes() const override { return 1; }

  std::span<const std::int32_t> of(std::int64_t q) const {
    const auto at = static_cast<std::size_t>(q);
    return std::span(keys_).subspan(static_cast<std::size_t>(begins_[at]),
                                    static_cast<std::size_t>(begins_[at + 1] - begins_[at]));
  }

 private:
  std::vector<std::int64_t> begins_;
  std::vector<std::int32_t> keys_;
  std::string text_;
};

class IndicesClassifier final : public BlockClassifier {
 public:
  IndicesClassifier(const IndicesMask& mask, std::int64_t kv_block) : mask_(mask), kv_block_(kv_block) {}

  IndexRange run(std::int64_t q_begin, std::int64_t q_end) const override {
    std::int64_t begin = INT64_MAX, end = 0;
    for (std::int64_t q = q_begin; q < q_end; ++q) {
      const auto keys = mask_.of(q);
      if (keys.empty()) continue;
      begin = std::min<std::int64_t>(begin, keys.front() / kv_block_);
      end = std::max<std::int64_t>(end, keys.back() / kv_block_ + 1);
    }
    return begin < end ? IndexRange{begin, end} : IndexRange{};
  }
  void classify(std::int64_t q_begin, std::int64_t q_end, IndexRange columns,
                BlockState* out) const override {
    std::vector<std::int64_t> count(static_cast<std::size_t>(std::max<std::int64_t>(columns.count(), 0)));
    for (std::int64_t q = q_begin; q < q_end; ++q)
      for (const std::int32_t key : mask_.of(q))
        if (const std::int64_t j = key / kv_block_; j >= columns.begin && j < columns.end)
          ++count[static_cast<std::size_t>(j - columns.begin)];
    for (std::int64_t j = columns.begin; j < columns.end; ++j, ++out) {
      const std::int64_t keys = std::min(kv_block_, mask_.kv_length() - j * kv_block_);
      const std::int64_t found = count[static_cast<std::size_t>(j - columns.begin)];
      *out = found == 0                          ? BlockState::empty
             : found == keys * (q_end - q_begin) ? BlockState::full
                                                 : BlockState::undecided;
    }
  }

 private:
  const IndicesMask& mask_;
  std::int64_t kv_block_;
};

std::unique_ptr<BlockClassifier> IndicesMask::classifier(std::int64_t, std::int64_t kv_block) const {
  return std::make_unique<IndicesClassifier>(*this, kv_block);
}

class TreeMask final : public MaskNode {
 public:
  TreeMask(std::vector<std::int64_t> parents, std::int64_t prefix, std::string text)
      : MaskNode(std::ssize(parents), prefix + std::ssize(parents)),
        parents_(std::move(parents)),
        prefix_(prefix),
        text_(std::move(text)) {}

  std::string text() const override { return text_; }
  bool same_as(const MaskNode& other, IndexRange queries) const override {
    const auto& o = static_cast<const TreeMask&>(other);
    return prefix_ == o.prefix_ && (queries.begin >= queries.end || parents_ == o.parents_);
  }
  std::unique_ptr<BlockClassifier> classifier(std::int64_t q_block, std::int64_t kv_block) const override;

  void fill(const Rectangle& where, const BitRows& out) const override {
    clear(out);
    for (std::int64_t q = where.q_begin; q < where.q_end; ++q) {
      Word* row = out.row(q - where.q_begin);
      set_bits(row, 0, std::min(prefix_, where.k_end) - where.k_begin);
      // Ancestors come before, so that the walk ends at the first one left of the rectangle.
      for (std::int64_t node = q; node >= 0 && prefix_ + node >= where.k_begin;
           node = parents_[static_cast<std::size_t>(node)]) {
        const std::int64_t c = prefix_ + node - where.k_begin;
        if (c < where.columns()) row[c / 64] |= Word{1} << (c % 64);
      }
    }
  }
  std::int64_t prefix() const { return prefix_; }

 private:
  std::vector<std::int64_t> parents_;
  std::int64_t prefix_;
  std::string text_;
};

class TreeClassifier final : public BlockClassifier {
 public:
  TreeClassifier(const TreeMask& mask, std::int64_t kv_block) : mask_(mask), kv_block_(kv_block) {}
  IndexRange run(std::int64_t, std::int64_t q_end) const override {
    return {0, core::ceil_div(mask_.prefix() + q_end, kv_block_)};
  }
  void classify(std::int64_t, std::int64_t q_end, IndexRange columns, BlockState* out) const override {
    for (std::int64_t j = columns.begin; j < columns.end; ++j)
      *out++ = std::min((j + 1) * kv_block_, mask_.kv_length()) <= mask_.prefix() ? BlockState::full
               : j * kv_block_ >= mask_.prefix() + q_end                          ? BlockState::empty
                                                                                  : BlockState::undecided;
  }

 private:
  const TreeMask& mask_;
  std::int64_t kv_block_;
};

std::unique_ptr<BlockClassifier> TreeMask::classifier(std::int64_t, std::int64_t kv_block) const {
  return std::make_unique<TreeClassifier>(*this, kv_block);
}

using Positions = std::vector<std::int64_t>;

class PositionsMask final : public MaskNode {
 public:
  /// Empty positions are those of the other mask.
  PositionsMask(Mask of, Positions q, Positions k, std::string text)
      : MaskNode(q.empty() ? of.q_length() : std::ssize(q), k.empty() ? of.kv_length() : std::ssize(k)),
        of_(std::move(of)),
        q_(std::move(q)),
        k_(std::move(k)),
        text_(std::move(text)) {}

  std::string text() const override { return text_; }
  bool same_as(const MaskNode& other, IndexRange queries) const override {
    const auto& o = static_cast<const PositionsMask&>(other);
    if (q_ != o.q_ || k_ != o.k_) return false;
    return queries.begin >= queries.end ? mask::same_as(of_, o.of_, {0, 0}) : of_.same_as(o.of_);
  }
  void add_bounds(std::span<const Rectangle> where, std::vector<MaskBound>& bounds) const override {
    std::vector<Rectangle> there;
    for (const Rectangle& here : where) {
      const IndexRange q = ends_of(q_, {here.q_begin, here.q_end}),
                       k = ends_of(k_, {here.k_begin, here.k_end});
      there.push_back({q.begin, q.end, k.begin, k.end});
    }
    of_.node().add_bounds(there, bounds);
  }
  bool random_access() const override { return of_.node().random_access(); }
  std::int64_t stored_bytes() const override { return of_.node().stored_bytes(); }
  std::unique_ptr<BlockClassifier> classifier(std::int64_t q_block, std::int64_t kv_block) const override;

  void fill(const Rectangle& where, const BitRows& out) const override {
    clear(out);
    BitBuffer buffer;  // not of the thread: the other mask may be of this kind
    for (std::int64_t q = where.q_begin; q < where.q_end;) {
      const std::int64_t q_end = end_of_run(q_, q, where.q_end), from = query(q);
      for (std::int64_t k = where.k_begin; k < where.k_end;) {
        const std::int64_t k_end = end_of_run(k_, k, where.k_end), key = this->key(k);
        const BitRows part = buffer.rows(q_end - q, k_end - k);
        of_.node().fill({from, from + part.rows, key, key + part.columns}, part);
        for (std::int64_t r = 0; r < part.rows; ++r)
          put_bits(out.row(q - where.q_begin + r), k - where.k_begin, part.row(r), part.columns);
        k = k_end;
      }
      q = q_end;
    }
  }

  const Mask& of() const { return of_; }
  std::int64_t query(std::int64_t q) const { return q_.empty() ? q : q_[static_cast<std::size_t>(q)]; }
  std::int64_t key(std::int64_t k) const { return k_.empty() ? k : k_[static_cast<std::size_t>(k)]; }

 private:
  // The least and largest of these positions.
  static IndexRange ends_of(const Positions& positions, IndexRange of) {
    if (positions.empty()) return of;
    const auto [least, most] = std::minmax_element(positions.begin() + of.begin, positions.begin() + of.end);
    return {*least, *most + 1};
  }

  static std::int64_t end_of_run(const Positions& positions, std::int64_t begin, std::int64_t end) {
    if (positions.empty()) return end;
    std::int64_t at = begin + 1;
    while (at < end &&
           positions[static_cast<std::size_t>(at)] == positions[static_cast<std::size_t>(at - 1)] + 1)
      ++at;
    return at;
  }

  Mask of_;
  Positions q_, k_;
  std::string text_;
};

// The ranges of positions of the keys of each column of blocks, which the bands of the queries cover or not.
class PositionsClassifier final : public BlockClassifier {
 public:
  PositionsClassifier(const PositionsMask& mask, std::int64_t kv_block) : mask_(mask) {
    for (std::int64_t k = 0; k < mask.kv_length(); ++k) {
      if (k % kv_block == 0) columns_.push_back({INT64_MAX, 0});
      const std::int64_t key = mask.key(k);
      columns_.back() = {std::min(columns_.back().begin, key), std::max(columns_.back().end, key + 1)};
    }
  }
  IndexRange run(std::int64_t, std::int64_t) const override { return {0, std::ssize(columns_)}; }
  void classify(std::int64_t q_begin, std::int64_t q_end, IndexRange columns,
                BlockState* out) const override {
    const MaskNode& of = mask_.of().node();
    std::fill(out, out + columns.count(), BlockState::undecided);
    if (of.bands() == 0) return;
    std::vector<bool> empty(static_cast<std::size_t>(columns.count()), true), full;
    for (std::int64_t b = 0; b < of.bands(); ++b) {
      full.assign(empty.size(), true);
      for (std::int64_t q = q_begin; q < q_end; ++q) {
        IndexRange keys;
        const std::int64_t query = mask_.query(q);
        of.band(b, {query, query + 1}, &keys);
        for (std::int64_t j = columns.begin; j < columns.end; ++j) {
          const IndexRange& here = columns_[static_cast<std::size_t>(j)];
          const auto n = static_cast<std::size_t>(j - columns.begin);
          const bool is_apart = keys.begin >= keys.end || keys.end <= here.begin || keys.begin >= here.end;
          if (!is_apart) empty[n] = false;
          if (keys.begin > here.begin || keys.end < here.end) full[n] = false;
        }
      }
      for (std::size_t n = 0; n < full.size(); ++n)
        if (full[n]) out[n] = BlockState::full;
    }
    for (std::size_t n = 0; n < empty.size(); ++n)
      if (empty[n]) out[n] = BlockState::empty;
  }

 private:
  const PositionsMask& mask_;
  std::vector<IndexRange> columns_;
};

std::unique_ptr<BlockClassifier> PositionsMask::classifier(std::int64_t, std::int64_t kv_block) const {
  return std::make_unique<PositionsClassifier>(*this, kv_block);
}

// f(row, keys) for all rows of the leading axes of a box of lists of keys, in C order.
template <class F>
void each_row_of_keys(const ArraySource& indices, std::span<const std::int64_t> start,
                      std::span<const std::int64_t> count, F&& f) {
  const std::size_t leading = count.size() - 1;
  const std::int64_t n = indices.shape()[leading];
  Shape at(start.begin(), start.end()), one(count.size(), 1);
  at[leading] = 0, one[leading] = n;
  std::vector<std::int64_t> keys(static_cast<std::size_t>(n));
  std::vector<std::byte> raw;
  const std::int64_t rows = element_count(Shape(count.begin(), count.begin() + std::ssize(count) - 1));
  for (std::int64_t row = 0; row < rows; ++row) {
    std::int64_t rest = row;
    for (std::size_t d = leading; d-- > 0; rest /= count[d]) at[d] = start[d] + rest % count[d];
    if (n > 0) core::read_integer_box(indices, at, one, raw, keys.data());
    f(row, keys);
  }
}

// A box of log_counts().
template <class Real>
void fill_log_counts(const ArraySource& indices, std::int64_t kv_length, std::span<const std::int64_t> start,
                     std::span<const std::int64_t> count, Real* out) {
  const std::int64_t first = start.back(), columns = count.back();
  each_row_of_keys(indices, start, count, [&](std::int64_t row, const std::vector<std::int64_t>& keys) {
    Real* const logs = out + row * columns;
    std::fill_n(logs, columns, Real{0});
    for (const std::int64_t key : keys) {
      if (key < -1 || key >= kv_length)
        throw core::invalid("{}: a query has key {}: there are {} keys, and -1 is none", indices.name(), key,
                            kv_length);
      if (key >= first && key < first + columns) logs[key - first] += 1;
    }
    for (std::int64_t k = 0; k < columns; ++k) logs[k] = logs[k] > 1 ? std::log(logs[k]) : Real{0};
  });
}

void require_lists_of_keys(const ArraySource& array) {
  if (array.shape().size() < 2 || !is_integer(array.dtype()))
    throw core::invalid("{} is {}; the keys of each query are integers (queries, n)", array.name(),
                        to_string(type_of(array)));
}

Positions positions_in(const IntegerArray& array, std::int64_t length, const char* what) {
  if (!array) return {};
  Positions positions = core::read_integers(*array, "positions");
  if (positions.empty()) throw core::invalid("{}: it has no position", array->name());
  for (std::size_t n = 0; n < positions.size(); ++n)
    if (positions[n] < 0 || positions[n] >= length)
      throw core::invalid("{}({}) is {}: the mask has {} {}", array->name(), n, positions[n], length, what);
  return positions;
}

}  // namespace

Mask indices_mask(const IntegerArray& indices, std::int64_t kv_length) {
  const ArraySource& array = *indices;
  if (array.shape().size() != 2 || !is_integer(array.dtype()) || element_count(array.shape()) == 0)
    throw core::invalid("{} is {}; the keys of each query are integers (queries, n)", array.name(),
                        to_string(type_of(array)));
  if (kv_length > INT32_MAX) throw core::invalid("{}: {} keys exceed int32", array.name(), kv_length);
  const std::int64_t queries = array.shape()[0], n = array.shape()[1];
  std::vector<std::int64_t> begins{0}, row(static_cast<std::size_t>(n));
  std::vector<std::int32_t> keys;
  std::vector<std::byte> raw;
  for (std::int64_t q = 0; q < queries; ++q) {
    core::read_integer_box(array, {q, 0}, {1, n}, raw, row.data());
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t key = row[static_cast<std::size_t>(i)];
      if (key < -1 || key >= kv_length)
        throw core::invalid("{}({}, {}) is {}: there are {} keys, and -1 is none", array.name(), q, i, key,
                            kv_length);
      if (key >= 0) keys.push_back(static_cast<std::int32_t>(key));
    }
    const auto begin = keys.begin() + begins.back();
    std::sort(begin, keys.end());
    if (const auto twice = std::adjacent_find(begin, keys.end()); twice != keys.end())
      throw Error(Error::Kind::input,
                  fmt::format("{}: query {} has key {} twice, which a kernel that gathers keys counts twice",
                              array.name(), q, *twice),
                  Error::Code::repeated_key);
    begins.push_back(std::ssize(keys));
  }
  return Mask(std::make_shared<IndicesMask>(std::move(begins), std::move(keys), kv_length,
                                            fmt::format("indices({})", array.name())));
}

std::shared_ptr<const ArraySource> without_duplicates(std::shared_ptr<const ArraySource> indices) {
  require_lists_of_keys(*indices);
  const ArraySource& array = *indices;  // what fills keeps it
  const auto fill = [indices = std::move(indices)](std::span<const std::int64_t> start,
                                                   std::span<const std::int64_t> count, void* out) {
    const std::int64_t first = start.back(), columns = count.back();
    each_row_of_keys(*indices, start, count, [&](std::int64_t row, const std::vector<std::int64_t>& keys) {
      std::vector<std::int64_t> order(keys.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
        return keys[static_cast<std::size_t>(a)] < keys[static_cast<std::size_t>(b)];
      });
      std::vector<std::int64_t> once = keys;
      for (std::size_t n = 1; n < order.size(); ++n)
        if (const auto at = static_cast<std::size_t>(order[n]);
            keys[at] == keys[static_cast<std::size_t>(order[n - 1])])
          once[at] = -1;
      std::copy_n(once.begin() + first, columns, static_cast<std::int64_t*>(out) + row * columns);
    });
  };
  return generated_source({DType::int64, array.shape()}, array.name(), fill,
                          ArrayAccess(array.access().order));
}

std::shared_ptr<const ArraySource> log_counts(std::shared_ptr<const ArraySource> indices,
                                              std::int64_t kv_length, DType dtype) {
  require_lists_of_keys(*indices);
  Shape shape = indices->shape();
  shape.back() = kv_length;
  const std::string name = indices->name();
  const ArrayAccess access(indices->access().order);
  const auto fill = [indices = std::move(indices), kv_length, dtype](
                        std::span<const std::int64_t> start, std::span<const std::int64_t> count, void* out) {
    if (dtype == DType::float64)
      fill_log_counts(*indices, kv_length, start, count, static_cast<double*>(out));
    else
      fill_log_counts(*indices, kv_length, start, count, static_cast<float*>(out));
  };
  return generated_source({dtype, std::move(shape)}, name, fill, access);
}

Mask tree_mask(const IntegerArray& parents, std::int64_t prefix) {
  const ArraySource& array = *parents;
  std::vector<std::int64_t> of = core::read_integers(array, "parents");
  if (of.empty()) throw core::invalid("{}: the tree has no node", array.name());
  if (prefix < 0 || prefix > kLongestMask) throw core::invalid("a prefix of {} keys is none", prefix);
  for (std::size_t n = 0; n < of.size(); ++n)
    if (of[n] < -1 || of[n] >= static_cast<std::int64_t>(n))
      throw core::invalid("{}({}) is {}: a parent comes before its child, and that of a root is -1",
                          array.name(), n, of[n]);
  return Mask(std::make_shared<TreeMask>(std::move(of), prefix,
                                         fmt::format("tree({}, prefix={})", array.name(), prefix)));
}

Mask positions_mask(Mask of, const IntegerArray& q, const IntegerArray& k) {
  Positions queries = positions_in(q, of.q_length(), "queries"),
            keys = positions_in(k, of.kv_length(), "keys");
  std::string text = fmt::format("positions({}", of.text());
  if (q) text += fmt::format(", q={}", q->name());
  if (k) text += fmt::format(", k={}", k->name());
  return Mask(
      std::make_shared<PositionsMask>(std::move(of), std::move(queries), std::move(keys), text + ")"));
}

}  // namespace ejk
