// Attention over any split of the keys, joined, is attention over all of them.
#include "ejk/merge_states.hpp"

#include <numeric>

#include "support/attention_tolerance.hpp"
#include "support/failure.hpp"
#include "support/random_mask.hpp"
#include "support/threads.hpp"

using namespace ejk;

namespace {

using Keys = std::vector<std::int64_t>;

// Rows of an axis; the others whole.
Array rows_of(const Array& array, std::size_t axis, const Keys& rows) {
  Shape shape = array.shape();
  const std::int64_t before = std::accumulate(
      shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(axis), std::int64_t{1}, std::multiplies<>());
  const std::int64_t length = shape[axis];
  shape[axis] = std::ssize(rows);
  const std::vector<double> all = plain::doubles(array.view());
  const std::int64_t after = before * length == 0 ? 0 : std::ssize(all) / before / length;
  std::vector<double> some;
  for (std::int64_t b = 0; b < before; ++b)
    for (const std::int64_t row : rows)
      for (std::int64_t a = 0; a < after; ++a)
        some.push_back(all[static_cast<std::size_t>((b * length + row) * after + a)]);
  return plain::array_of(array.dtype(), shape, some);
}

struct Split {
  const char* name;
  std::vector<Keys> parts;
};
std::vector<Split> splits_of(std::int64_t keys) {
  const auto range = [](std::int64_t begin, std::int64_t end) {
    Keys some(static_cast<std::size_t>(end - begin));
    std::iota(some.begin(), some.end(), begin);
    return some;
  };
  std::vector<Split> splits{{"two", {range(0, keys / 3), range(keys / 3, keys)}},
                            {"an empty part", {range(0, keys), {}}},
                            {"each key", {}},
                            {"zig-zag", {}},
                            {"pages in any order", {}}};
  for (std::int64_t j = 0; j < keys; ++j) splits[2].parts.push_back({j});
  const std::int64_t ranks = 3, chunk = keys / (2 * ranks);
  for (std::int64_t r = 0; r < ranks; ++r) {
    Keys some = range(r * chunk, (r + 1) * chunk);
    const std::int64_t tail = 2 * ranks - 1 - r;
    for (const std::int64_t j : range(tail * chunk, r == 0 ? keys : (tail + 1) * chunk)) some.push_back(j);
    splits[3].parts.push_back(some);
  }
  for (std::int64_t page = (keys - 1) / 4; page >= 0; --page)
    splits[4].parts.push_back(range(page * 4, std::min(keys, page * 4 + 4)));
  return splits;
}

}  // namespace

TEST_CASE("attention over any split of the keys, joined, is attention over all of them") {
  plain::Random random(8);
  int failed_with_sinks = 0;
  for (const DType dtype : plain::kFloats)
    for (const auto layout : {AttentionLayout::bshd, AttentionLayout::bhsd, AttentionLayout::thd})
      for (const bool has_sinks : {false, true}) {
        const std::int64_t queries = 7, keys = 26, batch = layout == AttentionLayout::thd ? 1 : 2;
        const auto shape = [&](std::int64_t length, std::int64_t heads, std::int64_t size) {
          return layout == AttentionLayout::bshd   ? Shape{batch, length, heads, size}
                 : layout == AttentionLayout::bhsd ? Shape{batch, heads, length, size}
                                                   : Shape{length, heads, size};
        };
        const std::size_t axis = layout == AttentionLayout::bshd   ? 1
                                 : layout == AttentionLayout::bhsd ? 2
                                                                   : 0;
        const Array q = plain::random(dtype, shape(queries, 4, 8), random),
                    k = plain::random(dtype, shape(keys, 2, 8), random),
                    v = plain::random(dtype, shape(keys, 2, 5), random);
        const Array sinks = plain::random(DType::float32, {4}, random);
        // Causal from the top left: the last keys have no query, and query 0 one key.
        const auto run = [&](const Keys& own, bool counts_sinks) {
          AttentionOptions options;
          options.layout = layout;
          if (counts_sinks) options.sinks = make_source(sinks.view());
          if (layout == AttentionLayout::thd) {
            options.cu_seqlens_q = IntegerArray(std::vector<std::int64_t>{0, queries});
            options.cu_seqlens_kv = IntegerArray(std::vector<std::int64_t>{0, std::ssize(own)});
          }
          std::vector<bool> pairs;
          for (std::int64_t i = 0; i < queries; ++i)
            for (const std::int64_t j : own) pairs.push_back(j <= i);
          Array dense(DType::boolean, {queries, std::ssize(own)});
          for (std::size_t n = 0; n < pairs.size(); ++n) dense.elements<bool>()[n] = pairs[n];
          HeadMasks masks;
          masks.mask = [mask = pairs.empty() ? full_mask(1, 1) : array_mask(make_source(std::move(dense)))](
                           auto, auto, auto, auto) { return mask; };
          if (!pairs.empty()) options.masks.push_back(masks);
          const Array own_k = rows_of(k, axis, own), own_v = rows_of(v, axis, own);
          return attention(q.view(), own_k.view(), own_v.view(), options);
        };
        Keys all(static_cast<std::size_t>(keys));
        std::iota(all.begin(), all.end(), 0);
        const Attention whole = run(all, has_sinks);
        const std::vector<double> out = plain::doubles(whole.out.view()),
                                  lse = plain::doubles(whole.lse.view());
        const double unit = plain::rounding_of(dtype), most = plain::most_of(plain::doubles(v.view()));
        for (const Split& split : splits_of(keys)) {
          CAPTURE(split.name);
          for (const bool in_each : {false, true}) {
            if (in_each && !has_sinks) continue;
            std::vector<Attention> parts;
            std::vector<AttentionState> states;
            for (std::size_t n = 0; n < split.parts.size(); ++n)
              parts.push_back(run(split.parts[n], has_sinks && (n == 0 || in_each)));
            for (const Attention& part : parts) states.push_back({part.out.view(), part.lse.view()});
            MergeSettings settings;
            settings.layout = layout;
            const MergedStates one = [&] {
              const Threads threads(1);
              return merge_states(states, settings);
            }();
            CHECK(one.out.dtype() == dtype);
            CHECK(one.parts == std::ssize(parts));
            const MergedStates again = merge_states(states, settings);
            CHECK(plain::same_bytes(one.out, again.out));
            CHECK(plain::same_bytes(one.lse, again.lse));
            const std::string far_lse = plain::far_from(plain::doubles(one.lse.view()), lse, 1e-5, 1e-5);
            if (in_each) {
              failed_with_sinks += !far_lse.empty();
              continue;
            }
            CHECK(far_lse == "");
            CHECK(plain::far_from(plain::doubles(one.out.view()), out, 3e-5 + 2 * unit * most, 2 * unit) ==
                  "");
            CHECK(one.rows == batch * 4 * queries);
            CHECK(one.rows_without_key == 0);
          }
        }
      }
  CHECK(failed_with_sinks == 4 * 3 * 5);  // a sink that is counted in each part is noticed every time
}

TEST_CASE("bases, empty parts and axes of merged states are those of the settings") {
  const Array a = plain::array_of(DType::float32, {1, 2, 1, 1}, std::vector<double>{1, 2}),
              b = plain::array_of(DType::float32, {1, 2, 1, 1}, std::vector<double>{5, std::nan("")});
  const auto merged = [&](const std::vector<double>& of_a, const std::vector<double>& of_b,
                          const MergeSettings& settings, const Shape& shape = {1, 1, 2}) {
    const Array lse_a = plain::array_of(DType::float32, shape, of_a),
                lse_b = plain::array_of(DType::float32, shape, of_b);
    return merge_states({{a.view(), lse_a.view()}, {b.view(), lse_b.view()}}, settings);
  };
  MergeSettings two;
  two.lse_base = LseBase::two;
  // Weights 1 : 3, and a part without keys that holds NaN.
  MergedStates m = merged({0, 3}, {std::log2(3.0), -plain::kInfinity}, two);
  CHECK(plain::doubles(m.out.view())[0] == doctest::Approx(4));
  CHECK(plain::doubles(m.out.view())[1] == 2);
  CHECK(plain::doubles(m.lse.view())[0] == doctest::Approx(2));
  CHECK(plain::doubles(m.lse.view())[1] == doctest::Approx(3));
  MergeSettings infinite;
  infinite.lse_empty = LseEmpty::infinity;
  m = merged({plain::kInfinity, -plain::kInfinity}, {-plain::kInfinity, plain::kInfinity}, infinite);
  CHECK(plain::doubles(m.out.view()) == std::vector<double>{0, 0});
  CHECK(plain::doubles(m.lse.view()) == std::vector<double>{plain::kInfinity, plain::kInfinity});
  CHECK(m.rows_without_key == 2);
  CHECK(m.rows_not_finite == 0);
  // Without that convention +inf is no lse.
  m = merged({0, 0}, {0, plain::kInfinity}, {});
  CHECK(m.rows_not_finite == 1);
  CHECK(m.first_row_not_finite == Shape{0, 0, 1});
  // An lse far above the others, and equal ones of any size.
  m = merged({900, -2000}, {-900, -2000}, {});
  CHECK(plain::doubles(m.out.view())[0] == 1);
  CHECK(plain::doubles(m.lse.view())[1] == doctest::Approx(-2000 + std::log(2)));
  // The axes of lse.
  m = merged({0, 3}, {0, -plain::kInfinity}, {}, {1, 2, 1});
  CHECK(m.lse.shape() == Shape{1, 2, 1});
  CHECK(plain::doubles(m.out.view())[0] == 3);
  CHECK(plain::failure([&] {
          merged({0, 3}, {0, 0}, {}, {2, 1, 1});
        }) == "lse of part 1 has the shape (2, 1, 1); that of out (1, 2, 1, 1) has (1, 1, 2)");
  CHECK(plain::failure([&] { merge_states({}); }) == "there is no part to merge");
}

TEST_CASE("parts of a stacked array are those of its axis") {
  plain::Random random(9);
  const Array out = plain::random(DType::float32, {5, 3, 2, 4}, random),  // flashinfer: (tokens, parts, ...)
      lse = plain::random(DType::float32, {5, 3, 2}, random);
  const std::vector<AttentionState> parts = unstacked({out.view(), lse.view()}, 1);
  REQUIRE(parts.size() == 3);
  MergeSettings settings;
  settings.lse_layout = LseLayout::nh;
  const MergedStates got = merge_states(parts, settings);
  CHECK(got.out.shape() == Shape{5, 2, 4});
  CHECK(got.lse.shape() == Shape{5, 2});
  const std::vector<double> o = plain::doubles(out.view()), s = plain::doubles(lse.view());
  for (std::size_t t = 0; t < 5; ++t)
    for (std::size_t h = 0; h < 2; ++h) {
      double total = 0, sum = 0;
      for (std::size_t p = 0; p < 3; ++p) {
        const double w = std::exp(s[(t * 3 + p) * 2 + h]);
        total += w;
        sum += w * o[((t * 3 + p) * 2 + h) * 4 + 1];
      }
      CHECK(plain::doubles(got.out.view())[(t * 2 + h) * 4 + 1] == doctest::Approx(sum / total));
      CHECK(plain::doubles(got.lse.view())[t * 2 + h] == doctest::Approx(std::log(total)));
    }
  CHECK(plain::failure([&] {
          unstacked({out.view(), lse.view()}, 3);
        }).find("no axis 3") != std::string::npos);
}
