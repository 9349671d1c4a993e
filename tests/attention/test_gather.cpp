// Attention over keys that queries name, some of them several times: a plain loop gathers them.
#include <cmath>

#include "ejk/attention.hpp"
#include "ejk/io.hpp"
#include "support/attention_tolerance.hpp"
#include "support/failure.hpp"
#include "support/random_mask.hpp"

using namespace ejk;

namespace gather {

namespace {

using Keys = std::vector<std::int64_t>;

std::shared_ptr<const ArraySource> indices_of(const Keys& keys, Shape shape) {
  return make_source(Array::from<std::int64_t>(std::move(shape), keys), "keys.npy");
}

}  // namespace

TEST_CASE("keys that are named several times count as often as in a loop that gathers them") {
  plain::Random random(71);
  constexpr std::int64_t kHeads = 4, kQueries = 9, kKeys = 40, kNamed = 24, kSize = 8;
  for (const DType type : plain::kFloats)
    for (const std::int64_t lists : {std::int64_t{1}, kHeads}) {  // for all heads, or of each
      CAPTURE(name_of(type));
      Keys keys(static_cast<std::size_t>(lists * kQueries * kNamed));
      for (auto& key : keys) key = plain::between(random, -1, 11) < 0 ? -1 : plain::between(random, 0, 15);
      const auto indices =
          lists == 1 ? indices_of(keys, {kQueries, kNamed}) : indices_of(keys, {lists, kQueries, kNamed});
      const Array q = plain::random(type, {1, kHeads, kQueries, kSize}, random),
                  k = plain::random(type, {1, kHeads, kKeys, kSize}, random),
                  v = plain::random(type, {1, kHeads, kKeys, kSize}, random);
      AttentionOptions options;
      options.layout = AttentionLayout::bhsd;
      options.dtype = DType::float32;
      if (type == DType::float64) options.dtype = DType::float64;
      const Array bias =
          read_all(*log_counts(indices, kKeys, type == DType::float64 ? DType::float64 : DType::float32));
      options.bias = bias.view();
      const auto once = without_duplicates(indices);
      std::vector<Mask> masks;
      for (std::int64_t list = 0; list < lists; ++list)
        masks.push_back(indices_mask(
            lists == 1 ? once : slice_array(once, fmt::format("[{}]", list), "keys.npy"), kKeys));
      options.masks.push_back(head_masks(masks));
      const Attention got = attention(q.view(), k.view(), v.view(), options);

      std::vector<double> out, lse;
      const auto at = [](const std::vector<double>& of, std::int64_t row) { return of.data() + row * kSize; };
      const auto queries = plain::doubles(q.view()), all_keys = plain::doubles(k.view()),
                 values = plain::doubles(v.view());
      for (std::int64_t h = 0; h < kHeads; ++h)
        for (std::int64_t i = 0; i < kQueries; ++i) {
          double sum = 0;
          std::vector<double> row(kSize);
          for (std::int64_t n = 0; n < kNamed; ++n) {
            const std::int64_t key =
                keys[static_cast<std::size_t>(((lists == 1 ? 0 : h) * kQueries + i) * kNamed + n)];
            if (key < 0) continue;
            double score = 0;
            for (std::int64_t d = 0; d < kSize; ++d)
              score += at(queries, h * kQueries + i)[d] * at(all_keys, h * kKeys + key)[d];
            const double weight = std::exp(score / std::sqrt(8.0));
            sum += weight;
            for (std::int64_t d = 0; d < kSize; ++d)
              row[static_cast<std::size_t>(d)] += weight * at(values, h * kKeys + key)[d];
          }
          for (const double value : row) out.push_back(value / sum);
          lse.push_back(std::log(sum));
        }
      const DType arithmetic = type == DType::float64 ? type : DType::float32;
      CHECK(plain::out_far_from(got.out, out, values, arithmetic) == "");
      CHECK(plain::lse_far_from(got.lse, lse, arithmetic) == "");
      // Counted once they are others.
      options.bias.reset();
      const Attention other = attention(q.view(), k.view(), v.view(), options);
      CHECK(plain::lse_far_from(other.lse, lse, arithmetic) != "");
    }
}

TEST_CASE("boxes of lists without duplicates and of their counts, and lists that are none") {
  const auto indices = indices_of({5, 2, 5, -1, 2, 5, /**/ 0, 1, 2, 3, 4, 5}, {2, 6});
  CHECK(plain::doubles(read_all(*without_duplicates(indices)).view()) ==
        std::vector<double>{5, 2, -1, -1, -1, -1, 0, 1, 2, 3, 4, 5});
  Array box(DType::int64, {1, 3});
  without_duplicates(indices)->read(std::array<std::int64_t, 2>{0, 1}, box.shape(), box.data());
  CHECK(plain::doubles(box.view()) == std::vector<double>{2, -1, -1});
  const auto logs = log_counts(indices, 8, DType::float64);
  CHECK(plain::doubles(read_all(*logs).view()) ==
        std::vector<double>{0, 0, std::log(2.0), 0, 0, std::log(3.0), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  Array part(DType::float64, {2, 2});
  logs->read(std::array<std::int64_t, 2>{0, 5}, part.shape(), part.data());
  CHECK(plain::doubles(part.view()) == std::vector<double>{std::log(3.0), 0, 0, 0});
  CHECK(plain::failure([&] { read_all(*log_counts(indices, 5, DType::float32)); }) ==
        "keys.npy: a query has key 5: there are 5 keys, and -1 is none");
  CHECK(plain::failure([&] {
          without_duplicates(indices_of({1, 2}, {2}));
        }) == "keys.npy is int64 (2,); the keys of each query are integers (queries, n)");
}

}  // namespace gather
