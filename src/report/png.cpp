// PNG of a block picture: indexed colours, through libpng; the command line is in a text chunk.
// tests: tests/report/test_png.cpp
#include <png.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "core/checked.hpp"
#include "ejk/error.hpp"
#include "ejk/program/text.hpp"
#include "report/drawing.hpp"
#include "report/picture.hpp"

namespace ejk {

namespace {

constexpr std::int64_t kMostPixels = 4096;   // a side, where blocks share pixels
constexpr std::int64_t kFewestPixels = 512;  // the longer side, where a block has several
constexpr std::int64_t kShortestSide = 16;   // in pixels: a row of a thousand blocks is still seen

void append_number(std::string& out, std::uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift & 0xff);
}

// An iTXt chunk: a keyword and a text in UTF-8.
std::string text_chunk(const std::string& keyword, const std::string& text) {
  const std::string data = std::string("iTXt") + keyword + std::string(5, '\0') + text;
  std::string chunk;
  append_number(chunk, static_cast<std::uint32_t>(data.size() - 4));
  chunk += data;
  append_number(chunk, static_cast<std::uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(data.data()),
                                                        static_cast<uInt>(data.size()))));
  return chunk;
}

}  // namespace

std::string to_png(const BlockPicture& picture, const std::string& command_line) {
  const report::CellGrid grid = report::shrink(picture, kMostPixels, kMostPixels);
  if (grid.cells.empty()) throw Error(Error::Kind::output, "the picture has no blocks");
  const std::int64_t scale = std::max<std::int64_t>(1, kFewestPixels / std::max(grid.rows, grid.columns));
  const auto scale_of = [&](std::int64_t cells) {
    return std::max(scale, core::ceil_div(kShortestSide, cells));
  };
  const std::int64_t down = scale_of(grid.rows), across = scale_of(grid.columns);

  std::vector<png_byte> pixels;
  pixels.reserve(static_cast<std::size_t>(grid.rows * down * grid.columns * across));
  for (std::int64_t r = 0; r < grid.rows * down; ++r)
    for (std::int64_t c = 0; c < grid.columns; ++c)
      pixels.insert(pixels.end(), static_cast<std::size_t>(across),
                    static_cast<png_byte>(grid.at(r / down, c)));

  png_image image;
  std::memset(&image, 0, sizeof image);
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(grid.columns * across);
  image.height = static_cast<png_uint_32>(grid.rows * down);
  image.format = PNG_FORMAT_RGB_COLORMAP;
  const std::size_t states = report::states_of(picture).size();
  image.colormap_entries = static_cast<png_uint_32>(states);
  std::vector<png_byte> colors;
  for (std::size_t state = 0; state < states; ++state)
    for (const int shift : {16, 8, 0})
      colors.push_back(static_cast<png_byte>(report::kColors[state] >> shift));

  png_alloc_size_t bytes = 0;
  std::string file;
  bool good = png_image_write_to_memory(&image, nullptr, &bytes, 0, pixels.data(), 0, colors.data()) != 0;
  if (good) {
    file.resize(bytes);
    good = png_image_write_to_memory(&image, file.data(), &bytes, 0, pixels.data(), 0, colors.data()) != 0;
    file.resize(bytes);
  }
  if (!good) throw Error(Error::Kind::internal, std::string("libpng: ") + image.message);

  // Behind the header: 8 bytes of signature, 25 of IHDR.
  constexpr std::size_t kHeader = 33;
  file.insert(kHeader, text_chunk("Software", std::string("ejk ") + version()) +
                           text_chunk("Title", printable(picture.title)) +
                           text_chunk("Description", command_line));
  return file;
}

}  // namespace ejk
