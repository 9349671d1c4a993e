// Rows of an array by index. A box is read as runs of neighbouring rows, of an array without random access
// (compressed data) from a copy that the first read makes. Cost: 8 bytes an index, a read for each run.
// tests: tests/arrays/test_take_rows.cpp
#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/checked.hpp"
#include "core/offsets.hpp"
#include "core/parallel.hpp"
#include "core/require.hpp"
#include "ejk/array_math.hpp"

namespace ejk {

namespace {

class TakenRows final : public ForwardingSource {
 public:
  TakenRows(const std::shared_ptr<const ArraySource>& x, std::vector<std::int64_t> rows,
            std::optional<std::string> name)
      : ForwardingSource(x, {x->dtype(), shape_of(*x, std::ssize(rows))},
                         ArrayAccess(ArrayAccess::Order::any), std::move(name)),
        rows_(std::move(rows)) {}

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    const std::int64_t elements = element_count(count);
    if (elements == 0) return;
    const auto rows =
        std::span(rows_).subspan(static_cast<std::size_t>(start[0]), static_cast<std::size_t>(count[0]));
    const std::int64_t bytes = elements / count[0] * size_of(dtype());
    std::call_once(is_held_, [&] {
      if (!inner().random_access()) resident_ = make_source(read_all(inner()), name());
    });
    const ArraySource& whole = resident_ ? *resident_ : inner();
    const auto read_rows = [&](std::int64_t begin, std::int64_t end) {
      Shape from(start.begin(), start.end()), extent(count.begin(), count.end());
      for (std::int64_t i = begin, next = begin; i < end; i = next) {
        from[0] = rows[static_cast<std::size_t>(i)];
        for (++next; next < end && rows[static_cast<std::size_t>(next)] == from[0] + next - i;) ++next;
        extent[0] = next - i;
        whole.read(from, extent, static_cast<std::byte*>(out) + i * bytes);
      }
    };
    const std::int64_t together = std::max<std::int64_t>(1, kTogether / bytes);
    core::parallel_for(
        core::ceil_div(count[0], together), static_cast<double>(elements),
        [&](std::int64_t piece) { read_rows(piece * together, std::min(count[0], (piece + 1) * together)); });
  }

 private:
  static constexpr std::int64_t kTogether = 1 << 18;  // bytes

  static Shape shape_of(const ArraySource& x, std::int64_t rows) {
    Shape shape = x.shape();
    shape[0] = rows;
    return shape;
  }

  std::vector<std::int64_t> rows_;
  mutable std::once_flag is_held_;
  mutable std::shared_ptr<const ArraySource> resident_;
};

}  // namespace

std::shared_ptr<const ArraySource> take_rows(const std::shared_ptr<const ArraySource>& x,
                                             const IntegerArray& rows, std::optional<std::string> name) {
  if (core::required(x).shape().empty()) throw core::invalid("a single number has no rows").at(x->name());
  std::vector<std::int64_t> indices = core::read_integers(*rows, "indices of rows");
  const std::int64_t n = x->shape()[0];
  for (std::size_t i = 0; i < indices.size(); ++i)
    if (indices[i] < 0 || indices[i] >= n)
      throw core::invalid("{}: element {} is {}; {} has {} rows", rows->name(), i, indices[i], x->name(), n);
  return std::make_shared<TakenRows>(x, std::move(indices), std::move(name));
}

}  // namespace ejk
