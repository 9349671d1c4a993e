// Sequences from the ids of their tokens, in one row and several, and the likely form of an integer array;
// against plain loops.
#include <doctest/doctest.h>

#include <random>

#include "ejk/sequence.hpp"
#include "support/failure.hpp"

using namespace ejk;

namespace {

using plain::failure;
using Ints = std::vector<std::int64_t>;

std::shared_ptr<const ArraySource> rows_of(std::int64_t rows, const Ints& values) {
  return make_source(
      Array::from<std::int64_t>({rows, std::ssize(values) / std::max<std::int64_t>(rows, 1)}, values),
      "ids.npy");
}
std::shared_ptr<const ArraySource> row_of(const Ints& values) {
  return make_source(Array::from<std::int64_t>({std::ssize(values)}, values), "ids.npy");
}

Ints ints_of(const Array& a) {
  REQUIRE(a.dtype() == DType::int64);
  const auto elements = a.elements<std::int64_t>();
  return {elements.begin(), elements.end()};
}

Ints from_segments(const std::shared_ptr<const ArraySource>& ids) {
  return ints_of(prepare_cu_seqlens_from_segment_ids(*ids, DType::int64));
}
Ints from_positions(const std::shared_ptr<const ArraySource>& ids) {
  return ints_of(prepare_cu_seqlens_from_position_ids(*ids, DType::int64));
}

std::optional<SequenceForm> form_of(const Ints& values) {
  const auto likely = likely_form(*row_of(values));
  return likely ? std::optional(likely->form) : std::nullopt;
}

}  // namespace

TEST_CASE("random sequences come back from their position and segment ids, however many rows they fill") {
  std::mt19937_64 random(3);
  for (int n = 0; n < 200; ++n) {
    const auto rows = static_cast<std::int64_t>(random() % 4) + 1,
               columns = static_cast<std::int64_t>(random() % 30);
    Ints cu{0}, segments, positions;
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t left = columns, id = 0; left > 0; ++id) {
        const std::int64_t length = std::min<std::int64_t>(left, static_cast<std::int64_t>(random() % 9) + 1);
        for (std::int64_t i = 0; i < length; ++i) segments.push_back(id % 3), positions.push_back(i);
        cu.push_back(cu.back() + length);
        left -= length;
      }
    CAPTURE(rows);
    CAPTURE(columns);
    CHECK(from_segments(rows_of(rows, segments)) == cu);
    CHECK(from_positions(rows_of(rows, positions)) == cu);
    if (rows == 1) CHECK(from_segments(row_of(segments)) == cu);
    if (rows == 1) CHECK(from_positions(row_of(positions)) == cu);
    // Padding between sequences and at the end of rows is left out.
    Ints padded;
    std::int64_t longest = 0;
    std::vector<Ints> lines(static_cast<std::size_t>(rows));
    for (std::int64_t r = 0; r < rows; ++r) {
      Ints& line = lines[static_cast<std::size_t>(r)];
      for (std::int64_t c = 0; c < columns; ++c) {
        const std::int64_t at = positions[static_cast<std::size_t>(r * columns + c)];
        if (at == 0 && random() % 2 == 0) line.push_back(-1);
        line.push_back(at);
      }
      longest = std::max(longest, std::ssize(line));
    }
    for (Ints& line : lines) {
      line.resize(static_cast<std::size_t>(longest), -1);
      padded.insert(padded.end(), line.begin(), line.end());
    }
    CHECK(from_positions(rows_of(rows, padded)) == cu);
  }
}

TEST_CASE("position ids that are none are refused with the index at fault") {
  const std::string rule = "; a position is 0, where a sequence begins, or one more than the one before it";
  CHECK(failure([] { from_positions(row_of({0, 1, 3})); }) == "ids.npy: position ids[2] is 3" + rule);
  CHECK(failure([] {
          from_positions(rows_of(2, {0, 1, 2, 3}));
        }) == "ids.npy: position ids[1, 0] is 2" + rule);
  CHECK(failure([] { from_positions(row_of({0, 1, -1, 2})); }) == "ids.npy: position ids[3] is 2" + rule);
  CHECK(failure([] { from_positions(row_of({0, 1, 1})); }) == "ids.npy: position ids[2] is 1" + rule);
  CHECK(
      plain::failure_and_hint([] {
        from_positions(make_source(Array::from<std::int64_t>({3, 1, 2}, Ints{0, 1, 0, 1, 0, 1}), "ids.npy"));
      }) ==
      "ids.npy: position ids are (tokens,) or (rows, tokens), not of shape (3, 1, 2) | take one of the first axis with "
      "a slice: \"ids.npy[0]\"");
}

TEST_CASE("the elements of an array say what it may be") {
  CHECK(form_of({0, 1, 2, 3, 0, 1, 0, 1, 2}) == SequenceForm::position_ids);
  CHECK(form_of({0, 1, 2, 0, 1, -1, -1}) == SequenceForm::position_ids);
  CHECK(form_of({0, 1, 2, 3}) == SequenceForm::position_ids);
  CHECK(form_of({1, 1, 1, 1, 2, 2, 1, 1, 3, 3}) == SequenceForm::segment_ids);
  CHECK(form_of({0, 0, 0, 1, 1}) == SequenceForm::segment_ids);
  CHECK(form_of({0, 4, 6, 9}) == SequenceForm::cu_seqlens);
  for (const Ints& lens : {Ints{5, 3, 7}, Ints{0, 1, 0}, Ints{0, 1, 0, 1}, Ints{1, 2, 1, 2}, Ints{0, 0, 0, 0},
                           Ints{3}, Ints{}, Ints{1, 1, 1, 1}, Ints{2, 2, 3, 3}, Ints{0, 2, 1, 0}})
    CHECK_FALSE(form_of(lens));

  CHECK(*likely_form(*row_of({0, 1, 2, 3, 0, 1}))->restart == 4);
  CHECK(*likely_form(*rows_of(2, {0, 1, 2, 0, 1, 2}))->restart == 3);
  CHECK_FALSE(likely_form(*row_of({0, 1, 2, 3}))->restart);
  // Sequences of two tokens at most may be lengths 0 and 1.
  CHECK_FALSE(likely_form(*row_of({0, 1, 0, 1, 2}))->restart);
}

TEST_CASE("integers of several values are no mask where that is asked, at any place and of any type") {
  const Ints good(70'000, 1);
  for (const std::size_t at : {std::size_t{1}, std::size_t{4'095}, std::size_t{4'096}, good.size() - 1})
    for (const DType dtype : {DType::int8, DType::int32, DType::uint16, DType::int64, DType::uint64}) {
      Array mask(dtype, {2, 35'000});
      dispatch(dtype, [&]<class T>(std::type_identity<T>) {
        if constexpr (std::is_integral_v<T>) {
          std::fill(mask.elements<T>().begin(), mask.elements<T>().end(), T{1});
          mask.elements<T>()[at] = T(7);
        }
      });
      CHECK(failure([&] { inspect_padding(*make_source(mask.view(), "m.npy"), MaskIntegers::one_value); }) ==
            "m.npy: element [" + std::to_string(at / 35'000) + ", " + std::to_string(at % 35'000) +
                "] is 7 and another is 1: a mask (batch, seq) of integers holds 0 and one other value");
    }
  const auto lens_of = [](const Array& mask) {
    return inspect_padding(*make_source(mask.view(), "m.npy"), MaskIntegers::one_value).lens[0];
  };
  CHECK(lens_of(Array::from<std::uint8_t>({1, 4}, std::vector<std::uint8_t>{255, 0, 255, 255})) == 3);
  CHECK(lens_of(Array::from<std::int8_t>({1, 2}, std::vector<std::int8_t>{-1, 0})) == 1);
  CHECK(
      failure([&] {
        lens_of(Array::from<std::int8_t>({1, 3}, std::vector<std::int8_t>{-1, 0, 1}));
      }) ==
      "m.npy: element [0, 2] is 1 and another is -1: a mask (batch, seq) of integers holds 0 and one other value");
  CHECK(inspect_padding(*rows_of(1, {0, 7, -1})).lens[0] == 2);

  const auto code_of = [](const Ints& row) {
    try {
      inspect_padding(*rows_of(1, row), MaskIntegers::one_value);
    } catch (const Error& error) {
      return error.code();
    }
    return Error::Code::other;
  };
  CHECK(code_of({0, 1, 2, 0, 1}) == Error::Code::position_ids);
  CHECK(code_of({1, 1, 2, 2, 0}) == Error::Code::segment_ids);
  CHECK(code_of({1, 1, 0, 1, 2}) == Error::Code::position_ids);  // padded at the left
}

TEST_CASE("rows without tokens are no sequences, however many there are") {
  const IntegerArray ids = make_source(Array(DType::int32, {std::int64_t{1} << 40, 0}), "ids");
  CHECK(prepare_cu_seqlens_from_segment_ids(ids, DType::int32).size() == 1);
  CHECK(prepare_cu_seqlens_from_position_ids(ids, DType::int32).size() == 1);
}

TEST_CASE("a row of position ids may begin within a text") {
  CHECK(from_positions(row_of({5, 6, 7, 8, 9})) == Ints{0, 5});
  CHECK(from_positions(row_of({9})) == Ints{0, 1});
  CHECK(from_positions(row_of({-1, 5, 6, 0, 1, 2, -1})) == Ints{0, 2, 5});
  CHECK(from_positions(rows_of(2, {5, 6, 7, 0, 0, 1, 2, 3})) == Ints{0, 3, 4, 8});
  CHECK(from_positions(rows_of(2, {5, 6, 9, 10})) == Ints{0, 2, 4});
  // A 1 before position 0 is left padding, and no number is skipped.
  CHECK(failure([] { from_positions(row_of({1, 0, 1, 2})); }).starts_with("ids.npy: position ids[0] is 1"));
  CHECK(failure([] { from_positions(row_of({5, 6, 8})); }).starts_with("ids.npy: position ids[0] is 5"));
  CHECK(failure([] { from_positions(row_of({0, 1, 5, 6})); }).starts_with("ids.npy: position ids[2] is 5"));
}

TEST_CASE("ids that grow by one from any number are position ids where a mask is needed") {
  const auto code_of = [](const std::shared_ptr<const ArraySource>& ids) {
    try {
      inspect_padding(*ids, MaskIntegers::one_value);
    } catch (const Error& error) {
      return error.code();
    }
    return Error::Code::other;
  };
  CHECK(code_of(rows_of(1, {5, 6, 7, 8, 9})) == Error::Code::position_ids);
  CHECK(code_of(rows_of(2, {5, 6, 7, 0, 0, 1, 2, 3})) == Error::Code::position_ids);
  CHECK(code_of(rows_of(1, {1, 1, 2, 2, 3})) == Error::Code::segment_ids);
}
