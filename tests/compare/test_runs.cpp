// Repeated runs: plain loops over whole arrays for every dtype, NaN bits, mixed types, dependence on an axis.
#include "ejk/program/runs.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>

#include "io/support.hpp"
#include "support/arrays.hpp"
#include "support/counted_source.hpp"

using namespace ejk;

namespace {

using Sources = std::vector<std::shared_ptr<const ArraySource>>;

Sources sources_of(const std::vector<Array>& runs) {
  Sources sources;
  for (const Array& run : runs) sources.push_back(make_source(run.view(), "run"));
  return sources;
}

template <class T>
Array array_of(const std::vector<T>& values) {
  return Array::from<T>({std::ssize(values)}, values);
}

std::vector<std::string> names_of(std::size_t count) {
  std::vector<std::string> names;
  for (std::size_t r = 0; r < count; ++r) names.push_back("run " + std::to_string(r));
  return names;
}

// The whole report as text.
std::string told(const RunsComparison& found) {
  const RunsOfArray one{"", found, ""};
  return to_json(describe_runs({&one, 1}, names_of(found.runs.size())), {"compare"});
}

bool same_element(const Array& x, const Array& y, std::int64_t i) {
  const std::int64_t size = size_of(x.dtype());
  return std::memcmp(x.data() + i * size, y.data() + i * size, static_cast<std::size_t>(size)) == 0;
}

// What compare_runs says of runs of one dtype and shape, element by element.
void check_plainly(const std::vector<Array>& runs, const RunsComparison& got) {
  const std::int64_t n = runs[0].size();
  std::vector<std::vector<double>> values;
  for (const Array& run : runs) values.push_back(plain::doubles(run.view()));
  std::int64_t moving = 0, nonfinite = 0, first = -1, widest = -1;
  double spread = -1;
  std::vector<std::int64_t> differing(runs.size());
  std::vector<std::set<std::int64_t>> indices(runs[0].shape().size());
  for (std::int64_t i = 0; i < n; ++i) {
    bool moves = false, finite_everywhere = true;
    double least = INFINITY, largest = -INFINITY;
    int finite = 0;
    for (std::size_t r = 0; r < runs.size(); ++r) {
      const bool differs = !same_element(runs[r], runs[0], i);
      moves = moves || differs;
      differing[r] += differs;
      const double x = values[r][static_cast<std::size_t>(i)];
      if (!std::isfinite(x)) {
        finite_everywhere = false;
        continue;
      }
      ++finite;
      least = std::min(least, x), largest = std::max(largest, x);
    }
    if (!moves) continue;
    if (moving++ == 0) first = i;
    nonfinite += !finite_everywhere;
    std::int64_t rest = i;
    for (std::size_t d = indices.size(); d-- > 0; rest /= runs[0].shape()[d])
      indices[d].insert(rest % runs[0].shape()[d]);
    // Equal values of which two runs are finite have a spread of 0.
    if (finite >= 2 && largest - least > spread) spread = largest - least, widest = i;
  }
  const auto at = [&](std::int64_t flat) {
    Shape index(runs[0].shape().size());
    for (std::size_t d = index.size(); d-- > 0; flat /= runs[0].shape()[d])
      index[d] = flat % runs[0].shape()[d];
    return index;
  };
  std::vector<std::int64_t> groups;
  std::int64_t distinct = 0;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    std::size_t same = 0;
    while (!plain::same_bytes(runs[same], runs[r])) ++same;
    groups.push_back(same == r ? distinct++ : groups[same]);
  }
  CHECK(got.elements == n);
  CHECK(got.distinct == distinct);
  CHECK(got.equal == (distinct == 1));
  CHECK(got.moving == moving);
  CHECK(got.nonfinite == nonfinite);
  CHECK(got.first_moving == (first < 0 ? std::nullopt : std::optional(at(first))));
  REQUIRE(got.max_spread.has_value() == (widest >= 0));
  if (widest >= 0) {
    CHECK(got.max_spread->amount == spread);
    CHECK(got.max_spread->index == at(widest));
  }
  for (std::size_t r = 0; r < runs.size(); ++r) {
    CAPTURE(r);
    CHECK(got.runs[r].group == groups[r]);
    CHECK(got.runs[r].has_type);
    CHECK(got.runs[r].differing == differing[r]);
  }
  for (std::size_t d = 0; d < got.axes.size(); ++d) {
    std::set<std::int64_t> told;
    for (const auto [begin, end] : got.axes[d].ranges)
      for (std::int64_t i = begin; i < end; ++i) told.insert(i);
    CHECK(told == indices[d]);
  }
}

}  // namespace

TEST_CASE("runs of every dtype are what a plain loop says, read in any way") {
  std::mt19937_64 random(1);
  for (const DType dtype : test::kAllTypes)
    for (const Shape& shape : {Shape{70'001}, Shape{3, 25'000}, Shape{2, 3, 5}, Shape{}, Shape{4, 0}}) {
      CAPTURE(name_of(dtype));
      CAPTURE(to_string(shape));
      const std::int64_t n = element_count(shape);
      std::vector<double> values(static_cast<std::size_t>(n));
      const double most = is_float(dtype) ? 1000 : dtype == DType::boolean ? 1 : 100;
      for (double& x : values) x = std::floor(std::uniform_real_distribution<double>(0, most + 1)(random));
      std::vector<Array> runs;
      for (int r = 0; r < 5; ++r) {
        std::vector<double> moved = values;
        // Runs 1 and 3 are equal to runs 0 and 2.
        std::mt19937_64 of_run(static_cast<std::uint64_t>(r / 2));
        if (r / 2 > 0)
          for (std::int64_t k = 0; k < std::min<std::int64_t>(n, 40); ++k) {
            double& x = moved[of_run() % static_cast<std::uint64_t>(n)];
            x = dtype == DType::boolean ? 1 - x : static_cast<double>(of_run() % 101);
            if (is_float(dtype) && k % 8 == 0) x = k % 16 == 0 ? NAN : -INFINITY;
          }
        runs.push_back(plain::array_of(dtype, shape, moved));
      }
      const RunsComparison got = compare_runs(sources_of(runs));
      check_plainly(runs, got);
      if (n == 0 || shape.empty()) continue;
      Sources in_order;
      for (const Array& run : runs)
        in_order.push_back(std::make_shared<plain::CountedSource>(run, ArrayAccess::Order::sequential));
      CHECK(told(compare_runs(in_order)) == told(got));
      for (const auto& source : in_order) {
        const auto& counted = dynamic_cast<const plain::CountedSource&>(*source);
        CHECK(counted.elements == n);
        CHECK(counted.in_order);
      }
    }
}

TEST_CASE("equal is bit for bit: NaN of the same bits are equal, of others not, nor are 0 and -0") {
  const auto with = [](std::uint32_t bits) { return array_of<float>({1, std::bit_cast<float>(bits)}); };
  const auto distinct = [&](std::uint32_t x, std::uint32_t y) {
    const std::vector<Array> runs = [&] {
      std::vector<Array> both;
      both.push_back(with(x)), both.push_back(with(y));
      return both;
    }();
    return compare_runs(sources_of(runs));
  };
  CHECK(distinct(0x7FC00000, 0x7FC00000).equal);
  const RunsComparison nans = distinct(0x7FC00000, 0x7FC00001);
  CHECK(nans.distinct == 2);
  CHECK(nans.nonfinite == 1);
  CHECK_FALSE(nans.max_spread);
  const RunsComparison zeros = distinct(0, 0x80000000);
  CHECK(zeros.distinct == 2);
  CHECK(zeros.moving == 1);
  REQUIRE(zeros.max_spread);
  CHECK(zeros.max_spread->amount == 0);
}

TEST_CASE("the spread of integers is taken before it is rounded") {
  constexpr std::int64_t kLarge = std::int64_t{1} << 62;
  std::vector<Array> runs;
  for (const std::int64_t x : {kLarge + 1, kLarge, kLarge + 3}) runs.push_back(array_of<std::int64_t>({x}));
  const RunsComparison got = compare_runs(sources_of(runs));
  REQUIRE(got.max_spread);
  CHECK(got.max_spread->amount == 3);
  CHECK(got.max_spread->least == Extreme(kLarge));
  CHECK(got.max_spread->least_run == 1);
  CHECK(got.max_spread->largest_run == 2);
  std::vector<Array> ends;
  ends.push_back(array_of<std::int64_t>({INT64_MIN}));
  ends.push_back(array_of<std::int64_t>({INT64_MAX}));
  CHECK(compare_runs(sources_of(ends)).max_spread->amount == 0x1p64);
}

TEST_CASE("with a tolerance each run is held against the first") {
  std::vector<Array> runs;
  for (const float x : {1.0F, 1.001F, 0.999F}) runs.push_back(array_of<float>({x, NAN}));
  RunsOptions options;
  options.rtol = 2e-3;
  const RunsComparison within = compare_runs(sources_of(runs), options);
  CHECK(within.close);
  CHECK_FALSE(within.equal);
  CHECK(within.atol == 1e-8);
  CHECK(within.runs[2].beyond == 0);
  options.rtol = 5e-4;
  const RunsComparison beyond = compare_runs(sources_of(runs), options);
  CHECK_FALSE(beyond.close);
  CHECK(beyond.runs[0].beyond == 0);
  CHECK(beyond.runs[1].beyond == 1);
  CHECK(*beyond.runs[1].max_difference == doctest::Approx(1e-3).epsilon(1e-3));
  for (const double bad : {-1.0, static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    options.rtol = bad;
    CHECK(test::contains(test::error_of(Error::Kind::usage, [&] { compare_runs(sources_of(runs), options); }),
                         "tolerance"));
  }
}

TEST_CASE("runs of another dtype or shape, and those without the array, are distinct") {
  const Array x = plain::filled(DType::float32, {2, 3}, 1), y = plain::filled(DType::float16, {2, 3}, 1),
              z = plain::filled(DType::float16, {6}, 1), w = plain::filled(DType::float16, {6}, 2);
  const auto source = [](const Array& array) { return make_source(array.view()); };
  const Sources runs{nullptr, source(x), source(y), source(z), source(w), source(z), nullptr, source(x)};
  const RunsComparison got = compare_runs(runs);
  CHECK(got.distinct == 5);
  CHECK_FALSE(got.close);
  CHECK(got.shape == Shape{2, 3});
  CHECK(got.moving == 0);
  std::vector<std::int64_t> groups;
  for (const RunResult& run : got.runs) groups.push_back(run.group);
  CHECK(groups == std::vector<std::int64_t>{0, 1, 2, 3, 4, 3, 0, 1});
  CHECK(got.runs[7].has_type);
  CHECK_FALSE(got.runs[2].has_type);
  CHECK_FALSE(got.runs[6].has_array);
  RunsOptions options;
  options.rtol = 1;
  CHECK_FALSE(compare_runs(runs, options).close);
  CHECK(test::contains(test::error_of(Error::Kind::usage, [] { compare_runs(Sources{nullptr}); }), "no run"));
  CHECK(test::contains(test::error_of(Error::Kind::usage, [] { compare_runs(Sources{}); }), "no run"));
}

TEST_CASE("what moves follows heads, groups and tiles, and chance follows nothing") {
  std::mt19937_64 random(3);
  const Shape shape{2, 64, 8, 16};
  const auto two = [&](auto&& is_moved) {
    std::vector<Array> runs;
    runs.push_back(plain::filled(DType::bfloat16, shape, 1));
    std::vector<double> values(static_cast<std::size_t>(element_count(shape)), 1);
    for (std::int64_t i = 0; i < std::ssize(values); ++i)
      if (is_moved(i / (8 * 16) % 64, i / 16 % 8)) values[static_cast<std::size_t>(i)] = 2;
    runs.push_back(plain::array_of(DType::bfloat16, shape, values));
    return runs;
  };
  RunsOptions options;
  options.axes = {"b", "q", "h", "d"};
  const auto head = two([](std::int64_t, std::int64_t h) { return h == 3 || h == 4; });
  CHECK(compare_runs(sources_of(head), options).follows == "h 3 to 4");
  options.cu_seqlens = std::vector<std::int64_t>{0, 16, 40, 64};
  const auto sequence =
      two([&](std::int64_t q, std::int64_t) { return q >= 16 && q < 40 && random() % 2 == 0; });
  const RunsComparison in_sequence = compare_runs(sources_of(sequence), options);
  CHECK(in_sequence.follows == "sequence 1");
  REQUIRE(in_sequence.parts.size() == 1);
  CHECK(in_sequence.parts[0].index == 1);
  CHECK(in_sequence.parts[0].differing == in_sequence.moving);
  const auto anywhere = two([&](std::int64_t, std::int64_t) { return random() % 500 == 0; });
  const RunsComparison scattered = compare_runs(sources_of(anywhere), options);
  CHECK(scattered.moving > 4);
  CHECK(scattered.follows.empty());

  options.cu_seqlens = {};
  options.tile = {4, 8};
  const auto tiles = compare_runs(sources_of(head), options).tiles;
  REQUIRE(tiles);
  CHECK(tiles->rows == 2);
  CHECK(tiles->columns == 2);
  CHECK(tiles->states->at(0, 0) == 1);
  options.axes = {"b"};
  CHECK(test::contains(test::error_of(Error::Kind::usage, [&] { compare_runs(sources_of(head), options); }),
                       "names"));
}

TEST_CASE("of several arrays runs are equal where all of them are") {
  const Array x = plain::filled(DType::int32, {4}, 1), y = plain::filled(DType::int32, {4}, 2);
  const auto source = [](const Array& array) { return make_source(array.view()); };
  std::vector<RunsOfArray> arrays;
  arrays.push_back({"k", compare_runs(Sources{source(x), source(y), source(x)}), ""});
  arrays.push_back({"v", compare_runs(Sources{source(x), source(x), source(y)}), ""});
  const std::string report = to_json(describe_runs(arrays, names_of(3)), {"compare"});
  CHECK(test::contains(report, R"("close":false)"));
  CHECK(test::contains(report, R"("distinct":3)"));
  CHECK(test::contains(report, R"("moving":8)"));
  CHECK(test::contains(report, R"("max_spread_array":"k")"));
  arrays.erase(arrays.begin(), arrays.end());
  arrays.push_back({"k", compare_runs(Sources{source(x), source(x), source(x)}), ""});
  CHECK(test::contains(to_json(describe_runs(arrays, names_of(3)), {"compare"}), R"("close":true)"));
  arrays.push_back({"odd", {}, "not compared"});
  CHECK(test::contains(to_json(describe_runs(arrays, names_of(3)), {"compare"}), R"("close":false)"));
}
