// Inputs of attention that reveal the faults of the catalogue. A fault moves an edge of the mask by a key, or changes the
// weights of keys a little: it shows where a query has large scores with keys at both sides of an edge, or two keys with
// weights of one size.
//
// Keys are normal numbers around 4 u, u = (1, ..., 1) / √D; values are normal numbers. Queries have four forms, in turn
// over positions, heads and entries. With n keys that it attends to, a query
//   1     points along −u, so that Σ e^s is about 1 and a key that counts with a score of 0 shows; with a soft cap c and a
//         mask all scores are −c, which a cap after the mask gives to masked keys
//   2, 3  has the score ln n + 3 with a key at an edge and with the masked one beside it
//   4     has the scores ln n + 3 and ln n + 1.5 with two keys; or with a soft cap scores of 0.75 c and 2.5 below, before
//         the cap; or in float32 equal ones that are differences of large products, whose rounding shows TF32
// The size of these products is raised, from 0, until TF32 shows: right kernels in float32 pay for it. Scores with other
// keys are those of random directions.
// Cost: the masks' pairs for each head, and the audits.
// tests: tests/verdict/audit/test_revealing.cpp
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "attention/numbers.hpp"
#include "attention/plan.hpp"
#include "ejk/audit.hpp"

namespace ejk {

namespace {

using Numbers = std::vector<double>;

constexpr double kMean = 4;  // of the keys, along u
constexpr double kProducts[] = {0, 64, 512, 2048};

// To sixty-fourths, which are the same with every C library.
double rounded_score(double score) { return std::round(64 * score) / 64; }

Numbers values_of_row(const ArrayView& array, std::int64_t b, std::int64_t i, std::int64_t h) {
  Numbers row(static_cast<std::size_t>(array.shape[3]));
  attn::load(array.dtype, array.data + b * array.strides[0] + i * array.strides[1] + h * array.strides[2],
             array.strides[3], array.shape[3], row.data());
  return row;
}

double dot(const Numbers& a, const Numbers& b) {
  double sum = 0;
  for (std::size_t d = 0; d < a.size(); ++d) sum += a[d] * b[d];
  return sum;
}

Array around_mean(const ArrayView& normal) {
  Array keys(normal.dtype, normal.shape);
  auto* to = static_cast<std::byte*>(keys.mutable_view().data);
  const std::int64_t size = normal.shape[3];
  for (std::int64_t b = 0; b < normal.shape[0]; ++b)
    for (std::int64_t j = 0; j < normal.shape[1]; ++j)
      for (std::int64_t h = 0; h < normal.shape[2]; ++h, to += size * size_of(normal.dtype)) {
        Numbers row = values_of_row(normal, b, j, h);
        for (double& value : row) value += kMean / std::sqrt(static_cast<double>(size));
        attn::store(row.data(), size, normal.dtype, to);
      }
  return keys;
}

// Keys of a query: all that it attends to, those of them at an edge, and the masked ones beside these.
struct Row {
  std::vector<std::int64_t> attended, inside, outside;

  Row(const std::optional<Mask>& mask, std::int64_t query, std::int64_t keys) {
    const auto pairs = std::make_unique<bool[]>(static_cast<std::size_t>(keys));
    bool* const allowed = pairs.get();
    std::fill_n(allowed, keys, true);
    if (mask) mask->read(query, query + 1, 0, keys, allowed);
    for (std::int64_t j = 0; j < keys; ++j) {
      const bool is_first = j == 0, is_last = j + 1 == keys;
      if (allowed[j]) attended.push_back(j);
      if (allowed[j] && (is_first || is_last || !allowed[j - 1] || !allowed[j + 1])) inside.push_back(j);
      if (!allowed[j] && ((!is_first && allowed[j - 1]) || (!is_last && allowed[j + 1])))
        outside.push_back(j);
    }
  }
};

// The keys of an entry's head: their parts along u, and the rest.
class Keys {
 public:
  Keys(const ArrayView& keys, std::int64_t entry, std::int64_t head) {
    const double root = std::sqrt(static_cast<double>(keys.shape[3]));
    for (std::int64_t j = 0; j < keys.shape[1]; ++j) {
      Numbers& row = rest_.emplace_back(values_of_row(keys, entry, j, head));
      double sum = 0;
      for (const double value : row) sum += value;
      for (double& value : row) value -= sum / (root * root);
      along_.push_back(sum / root);
    }
  }

  struct Score {
    std::int64_t key;
    double score;
  };
  /// A query with one score or two, of products that are `along` where keys have their mean.
  Numbers query(const std::vector<Score>& wanted, double along) const {
    const double back = along / kMean;
    Numbers q(rest_[0].size(), back / std::sqrt(static_cast<double>(rest_[0].size())));
    if (wanted.empty()) return q;
    const Numbers &x = rest(wanted[0].key), &y = rest(wanted.back().key);
    const double s = wanted[0].score - back * part(wanted[0].key),
                 t = wanted.back().score - back * part(wanted.back().key);
    const double xx = dot(x, x), xy = dot(x, y), yy = dot(y, y), det = xx * yy - xy * xy;
    if (xx == 0) return q;
    const bool is_one = det <= 0.1 * xx * yy;  // or keys of almost one direction
    const double a = is_one ? s / xx : (s * yy - t * xy) / det, b = is_one ? 0 : (t * xx - s * xy) / det;
    for (std::size_t d = 0; d < q.size(); ++d) q[d] += a * x[d] + b * y[d];
    return q;
  }

 private:
  const Numbers& rest(std::int64_t key) const { return rest_[static_cast<std::size_t>(key)]; }
  double part(std::int64_t key) const { return along_[static_cast<std::size_t>(key)]; }

  std::vector<Numbers> rest_;
  Numbers along_;
};

std::int64_t nth(const std::vector<std::int64_t>& of, std::int64_t n) {
  return of[static_cast<std::size_t>(n % std::ssize(of))];
}

class Queries {
 public:
  Queries(const attn::CheckedArguments& setup, bool has_mask, double products)
      : softcap_(setup.softcap), has_mask_(has_mask), products_(products) {}

  /// The query of a row, times the scale.
  Numbers query(const Keys& keys, const Row& row, std::int64_t b, std::int64_t h, std::int64_t i) const {
    constexpr double kHigh = 3, kLow = 1.5;
    if (row.attended.empty()) return keys.query({{0, kHigh}}, 0);
    const double size = rounded_score(std::log(static_cast<double>(row.attended.size())));
    const double high = uncapped(size + kHigh);
    const std::int64_t form = (i + h + 3 * b) % 4, n = i / 4 + h / 4 + b;
    const std::int64_t x = nth(row.inside, n);
    if (form == 0) {
      constexpr double kSaturated = 16;
      return keys.query({}, softcap_ > 0 && has_mask_ ? -kSaturated * softcap_ : -uncapped(size));
    }
    if (form < 3) {
      if (row.outside.empty()) return keys.query({{x, high}}, 0);
      return keys.query({{x, high}, {nth(row.outside, n / std::ssize(row.inside) + form), high}}, 0);
    }
    std::int64_t y = nth(row.inside, n + 1);
    for (std::int64_t other = n; y == x && other < n + 2; ++other) y = nth(row.attended, other);
    struct Pair {
      double x, y, along;
    };
    std::vector<Pair> pairs{{high, uncapped(size + kLow), 0}};
    if (softcap_ > 0) pairs.push_back({0.75 * softcap_, 0.75 * softcap_ - 2.5, 0});
    const double equal = softcap_ > 0 ? std::min(size + kHigh, softcap_ / 2) : size + kHigh;
    if (products_ > 0) pairs.push_back({equal, equal, -products_});
    const Pair& pair = pairs[static_cast<std::size_t>(n) % pairs.size()];
    return keys.query({{x, pair.x}, {y, pair.y}}, pair.along);
  }

 private:
  double uncapped(double score) const {
    constexpr double kMost = 0.96;
    if (softcap_ == 0) return score;
    return rounded_score(softcap_ * std::atanh(std::min(score / softcap_, kMost)));
  }

  double softcap_;
  bool has_mask_;
  double products_;
};

Array made_queries(const AttentionPlan& plan, const ArrayView& keys, double products) {
  const attn::CheckedArguments& setup = plan.internal().setup;
  const attn::Sizes& of = setup.shape;
  const ArrayType& type = *plan.internal().types.q;
  const std::int64_t rows = type.shape[1];
  const double scale = setup.scale == 0 ? 1 : setup.scale,
               most = type.dtype == DType::float16 ? 0x1p15 : 0x1p100;
  std::optional<JoinedMasks> masks;
  if (!plan.masks().empty()) masks = plan.masks().join();
  const Queries made(setup, masks.has_value(), products);
  Array queries(type.dtype, type.shape);
  auto* const to = static_cast<std::byte*>(queries.mutable_view().data);
  for (std::int64_t b = 0; b < of.entries && keys.shape[1] > 0; ++b)
    for (std::int64_t g = 0; g < of.kv_heads; ++g) {
      const Keys of_head(keys, b, g);
      for (std::int64_t h = g * setup.group(); h < (g + 1) * setup.group(); ++h)
        for (std::int64_t i = 0; i < rows; ++i) {
          const Row row(masks ? masks->of(b, h) : std::nullopt, i, keys.shape[1]);
          Numbers q = made.query(of_head, row, b, h, i);
          for (double& value : q) value = std::clamp(value / scale, -most, most);
          attn::store(q.data(), of.head_size, type.dtype,
                      to + ((b * rows + i) * of.heads + h) * of.head_size * size_of(type.dtype));
        }
    }
  return queries;
}

}  // namespace

RevealingInputs revealing_inputs(const AttentionPlan& plan, const ArrayView& key, const ArrayView& value,
                                 const AuditOptions& options) {
  const attn::CheckedArguments& setup = plan.internal().setup;
  if (setup.layout != AttentionLayout::bshd || setup.gradients)
    throw Error(Error::Kind::usage, "inputs that reveal faults are those of a padded forward pass");
  RevealingInputs made;
  made.key = around_mean(key);
  for (const double products : kProducts) {
    made.query = made_queries(plan, made.key.view(), products);
    made.audit = audit(plan, {made.query.view(), made.key.view(), value}, options);
    const std::vector<std::string> missed = made.audit.missed();
    if (std::find(missed.begin(), missed.end(), "inputs-tf32") == missed.end()) break;
  }
  return made;
}

}  // namespace ejk
