// Block pictures of pages against a count over the elements.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "ejk/mask_info.hpp"
#include "support/block_states.hpp"
#include "support/random_mask.hpp"

using namespace ejk;

namespace {

std::vector<char> dense(const Mask& mask) {
  const auto bytes = static_cast<std::size_t>(mask.q_length() * mask.kv_length());
  const auto out = std::make_unique<bool[]>(bytes);
  mask.read(0, mask.q_length(), 0, mask.kv_length(), out.get());
  return {out.get(), out.get() + bytes};
}

const BlockPicture& first_picture(const Report& report) { return *pictures_of(report).at(0); }

}  // namespace

TEST_CASE("densities are the shares of True elements, for any size of cells") {
  ProcessMaskOptions options;
  options.pad = true;
  for (const auto& [q, k, block] : {std::tuple{37, 50, BlockShape{8, 16}},
                                    {300, 301, BlockShape{2, 1}},
                                    {128, 128, BlockShape{16, 16}}}) {
    const Mask mask = causal_mask(q, k, 3) & local_mask(q, k, q / 3, std::nullopt);
    const Report report = describe(process_mask({mask}, block, options));
    const BlockPicture& picture = first_picture(report);
    const BlockDetails details = picture.details();
    const auto elements = dense(mask);
    const std::int64_t rows = details.blocks_per_cell * block.q, columns = details.blocks_per_cell * block.kv;
    const std::int64_t cells_across =
        (picture.columns() + details.blocks_per_cell - 1) / details.blocks_per_cell;
    const std::int64_t cells_down = (picture.rows() + details.blocks_per_cell - 1) / details.blocks_per_cell;
    CHECK(std::max(cells_across, cells_down) <= 128);
    REQUIRE(std::ssize(details.density) == cells_across * cells_down);
    for (std::int64_t i = 0; i < cells_down; ++i)
      for (std::int64_t j = 0; j < cells_across; ++j) {
        double all = 0, seen = 0;
        for (std::int64_t r = i * rows; r < std::min<std::int64_t>(q, (i + 1) * rows); ++r)
          for (std::int64_t c = j * columns; c < std::min<std::int64_t>(k, (j + 1) * columns); ++c)
            ++all, seen += elements[static_cast<std::size_t>(r * k + c)];
        if (all > 0)
          CHECK(details.density[static_cast<std::size_t>(i * cells_across + j)] ==
                doctest::Approx(seen / all));
      }
  }
}

TEST_CASE("an empty block names the terms that are empty in it") {
  // Blocks of 4 x 4 in 12 x 12. Causal empties those above the diagonal, the window those far below it; of
  // the last two terms the first keeps even keys, the second odd ones, so that together they empty what is
  // left.
  const Mask causal = causal_mask(12, 12), window = local_mask(12, 12, 3, std::nullopt);
  const auto even = plain::table(12, 12, [](auto, auto k) { return k % 2 == 0; });
  const Mask evens = array_mask(make_source(plain::array_of(12, 12, even), "even.npy"));
  const auto causes = [](const Mask& mask, std::int64_t row) {
    const Report report = describe(process_mask({mask}, {4, 4}));
    const BlockPicture& picture = first_picture(report);
    const BlockDetails details = picture.details();
    std::vector<std::uint32_t> of(static_cast<std::size_t>(picture.columns()));
    details.emptied_by(row, of.data());
    std::vector<std::string> texts;
    for (std::size_t c = 0; c < of.size(); ++c) {
      const bool empty = picture.states->at(row, static_cast<std::int64_t>(c)) == 0;
      CHECK((empty || of[c] == 0));
      std::string text = of[c] == BlockDetails::kNoTermAlone ? "no term alone" : "";
      for (std::size_t t = 0; t < details.terms.size(); ++t)
        if ((of[c] >> t & 1) != 0) text += (text.empty() ? "" : ", ") + details.terms[t];
      texts.push_back(!empty ? "-" : text.empty() ? "?" : text);
    }
    return texts;
  };
  CHECK(causes(causal & window, 0) == std::vector<std::string>{"-", "causal", "causal"});
  CHECK(causes(causal & window, 2) == std::vector<std::string>{window.text(), "-", "-"});
  CHECK(causes(causal, 0) == std::vector<std::string>{"-", "causal", "causal"});
  CHECK(causes(causal & ~causal, 1) == std::vector<std::string>{"~causal", "no term alone", "causal"});
  CHECK(causes(evens & ~evens, 1) == std::vector<std::string>(3, "no term alone"));
  // A stored term that is empty where the others are not is found by reading it.
  const auto hole = plain::table(12, 12, [](auto q, auto k) { return q < 8 || k >= 4; });
  const Mask holes = array_mask(make_source(plain::array_of(12, 12, hole), "hole.npy"));
  CHECK(causes(holes & causal & ~causal_mask(12, 12, -9), 2) ==
        std::vector<std::string>{holes.text(), "-", "-"});
}

TEST_CASE("a mask is drawn by elements while it is small, by blocks when it is not") {
  const Mask small = local_mask(5, 9, 1, 2);
  const BlockPicture elements = picture_of(small, "picture_0", "small");
  CHECK(elements.rows() == 5);
  CHECK(elements.columns() == 9);
  CHECK(elements.state_names[2] == "True");
  const auto want = dense(small);
  const auto drawn = test::all_states(*elements.states);
  for (std::size_t n = 0; n < want.size(); ++n) CHECK(drawn[n] == (want[n] ? 2 : 0));

  const BlockPicture blocks = picture_of(causal_mask(5000, 3000), "p", "large");
  CHECK(blocks.row_axis.block == 4);
  CHECK(blocks.rows() == 1250);
  CHECK(blocks.columns() == 750);
  CHECK(blocks.states->at(0, 0) == 1);
  CHECK(blocks.states->at(0, 1) == 0);
  CHECK(blocks.states->at(1, 0) == 2);
}
