// Block pictures of pages against a count over the elements.
#include <doctest/doctest.h>

#include <memory>
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
