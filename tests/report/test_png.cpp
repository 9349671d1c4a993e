// Pictures as PNG, read back by libpng: each pixel has its block's colour.
#include <doctest/doctest.h>
#include <png.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "ejk/error.hpp"
#include "report/drawing.hpp"
#include "report/pictures.hpp"

using namespace ejk;

namespace {

struct Pixels {
  std::int64_t rows = 0, columns = 0;
  std::vector<std::uint32_t> colors;  // 0xRRGGBB
  std::uint32_t at(std::int64_t r, std::int64_t c) const {
    return colors[static_cast<std::size_t>(r * columns + c)];
  }
};

Pixels read(const std::string& file) {
  png_image image;
  std::memset(&image, 0, sizeof image);
  image.version = PNG_IMAGE_VERSION;
  REQUIRE(png_image_begin_read_from_memory(&image, file.data(), file.size()) != 0);
  image.format = PNG_FORMAT_RGB;
  std::vector<png_byte> bytes(PNG_IMAGE_SIZE(image));
  REQUIRE(png_image_finish_read(&image, nullptr, bytes.data(), 0, nullptr) != 0);
  Pixels pixels{image.height, image.width, {}};
  for (std::size_t i = 0; i < bytes.size(); i += 3)
    pixels.colors.push_back(static_cast<std::uint32_t>(bytes[i] << 16 | bytes[i + 1] << 8 | bytes[i + 2]));
  return pixels;
}

// The plot within the frame: the first line of ink of a quarter of the width is its upper edge.
Pixels plot_of(const Pixels& all) {
  constexpr std::uint32_t kInk = 0x222222;
  for (std::int64_t r = 0; r < all.rows; ++r)
    for (std::int64_t c = 0; c < all.columns; ++c) {
      std::int64_t end = c;
      while (end < all.columns && all.at(r, end) == kInk) ++end;
      if (end - c < 200) continue;
      std::int64_t top = r, bottom;
      while (all.at(top, c + (end - c) / 2) == kInk) ++top;
      const std::int64_t side = top - r;
      for (bottom = top; all.at(bottom, c) == kInk && bottom + 1 < all.rows;) ++bottom;
      Pixels plot{bottom - side - top, end - c - 2 * side, {}};
      for (std::int64_t y = top; y < bottom - side; ++y)
        for (std::int64_t x = c + side; x < end - side; ++x) plot.colors.push_back(all.at(y, x));
      return plot;
    }
  FAIL("no frame");
  return {};
}

}  // namespace

TEST_CASE(
    "a picture of few blocks has a square of pixels for each, in the block's colour, and lines between") {
  const BlockPicture picture = picture_of(2, 3, {0, 1, 2, 2, 1, 0});
  const Pixels pixels = plot_of(read(to_png(picture, "ejk mask-info")));
  constexpr std::int64_t side = 341;  // 1024 / 3
  CHECK(pixels.rows == doctest::Approx(2 * side).epsilon(0.01));
  CHECK(pixels.columns == doctest::Approx(3 * side).epsilon(0.01));
  for (std::int64_t r = 1; r < 2 * side; ++r)
    for (std::int64_t c = 1; c < 3 * side; ++c) {
      const std::uint32_t color = pixels.at(r, c);
      const std::uint8_t state = picture.states->at(r / side, c / side);
      if (r % side == 0 || c % side == 0
              ? color != 0xffffff
              : color != report::kColors[state] && (state != 1 || color != 0x895b27))
        FAIL("pixel (", r, ", ", c, ")");
    }
}

TEST_CASE(
    "past 4096 blocks a side a pixel stands for several, mixed where they differ; partial and marked ones stay") {
  constexpr std::int64_t n = 5000;
  std::vector<std::uint8_t> states(n * 2);
  states[0] = 2, states[n] = 2, states[1] = 2, states[n + 1] = 2;  // the first pixel is full
  states[2] = 2, states[4] = 1;                                    // the second is mixed, the third partial
  states[n + 7] = 3;                                               // the fourth has a marked block
  BlockPicture picture = picture_of(2, n, states);
  picture.marked_names[0] = "wrong";
  const Pixels pixels = plot_of(read(to_png(picture, "")));
  REQUIRE(pixels.rows == doctest::Approx(static_cast<double>(n) / 8).epsilon(0.01));  // no sliver
  REQUIRE(pixels.columns == n / 2);
  CHECK(pixels.at(0, 0) == report::kColors[2]);
  CHECK(pixels.at(0, 1) == report::kColors[3]);
  CHECK(pixels.at(0, 2) == report::kColors[1]);
  CHECK(pixels.at(400, 1) == report::kColors[0]);
  CHECK(pixels.at(400, 3) == report::kColors[4]);
}

TEST_CASE("the file says by which command it was made, and equal pictures are equal files") {
  const BlockPicture picture = picture_of(1, 1, {1});
  const std::string file = to_png(picture, "ejk mask-info --mask causal");
  CHECK(file.find("ejk mask-info --mask causal") != std::string::npos);
  CHECK(file == to_png(picture, "ejk mask-info --mask causal"));
  CHECK_THROWS_AS(to_png(picture_of(0, 0, {}), ""), Error);
}

TEST_CASE("colours differ in lightness, so that grey print tells them apart") {
  // Relative luminance of sRGB.
  const auto luminance = [](std::uint32_t color) {
    const auto linear = [](std::uint32_t byte) {
      const double c = byte / 255.0;
      return c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
    };
    return 0.2126 * linear(color >> 16 & 255) + 0.7152 * linear(color >> 8 & 255) +
           0.0722 * linear(color & 255);
  };
  for (const auto& colors : {report::kColors, report::kDarkColors}) {
    std::vector<double> all;
    for (const std::uint32_t color : colors) all.push_back(116 * std::cbrt(luminance(color)) - 16);
    std::sort(all.begin(), all.end());
    for (std::size_t i = 1; i < all.size(); ++i) CHECK(all[i] - all[i - 1] > 10);
  }
}
