// PNG of a block picture: whole pixels of indexed colours, through libpng; a text chunk has the command line.
// tests: tests/report/test_png.cpp
#include <png.h>
#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "core/checked.hpp"
#include "ejk/error.hpp"
#include "ejk/program/text.hpp"
#include "report/drawing.hpp"
#include "report/font.hpp"
#include "report/picture.hpp"

namespace ejk {

namespace report {

namespace {

constexpr std::int64_t kMostPixels = 4096;  // a side of the plot, where blocks share pixels
constexpr double kUsualPixels = 1024;       // the longer side, where a block has several

// Indices of colours behind those of the states. The hatch is ink of 45 % on the colour of partial cells.
enum Ink : std::uint8_t { paper = kCellStates, ink, hatch };
constexpr std::uint32_t kInks[] = {0xffffff, 0x222222, 0x895b27};

class PixelSurface final : public Surface {
 public:
  /// A letter has 10 pixels across where an SVG has 7.
  explicit PixelSurface(std::int64_t letter_scale)
      : letter_(letter_scale), scale_(static_cast<double>(kGlyphWidth * letter_scale) / 7) {}

  double scale() const { return scale_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  const std::vector<std::uint8_t>& pixels() const { return pixels_; }

  void begin(double width, double height) override {
    rows_ = pixel(height), columns_ = pixel(width);
    pixels_.assign(static_cast<std::size_t>(rows_ * columns_), paper);
  }

  void text(double x, double y, Lettering lettering, std::string_view text) override {
    // A character of several bytes is a question mark.
    std::string letters;
    for (const char c : text)
      if ((static_cast<unsigned char>(c) & 0xc0) != 0x80) letters += c >= ' ' && c <= '~' ? c : '?';
    const std::int64_t width = std::ssize(letters) * kGlyphWidth * letter_;
    const bool is_upward = lettering == Lettering::upward;
    std::int64_t along = lettering == Lettering::right                 ? -width
                         : lettering == Lettering::middle || is_upward ? -width / 2
                                                                       : 0;
    for (const char c : letters) {
      const std::string_view glyph =
          kGlyphs.substr(static_cast<std::size_t>(c - ' ') * 2 * kGlyphRows, 2 * kGlyphRows);
      for (int r = 0; r < kGlyphRows; ++r) {
        unsigned bits = 0;
        std::from_chars(glyph.data() + 2 * r, glyph.data() + 2 * r + 2, bits, 16);
        for (int b = 0; b < 8; ++b) {
          if ((bits & 0x80u >> b) == 0) continue;
          const std::int64_t right = along + b * letter_, down = (r - kGlyphAscent) * letter_;
          if (is_upward)
            fill(pixel(x) + down, pixel(y) - right - letter_, letter_, letter_, ink);
          else
            fill(pixel(x) + right, pixel(y) + down, letter_, letter_, ink);
        }
      }
      along += kGlyphWidth * letter_;
    }
  }

  void tick(double x, double y, bool is_left) override {
    const std::int64_t length = pixel(4);
    if (is_left)
      fill(pixel(x) - length, pixel(y), length, letter_, ink);
    else
      fill(pixel(x), pixel(y), letter_, length, ink);
  }

  void swatch(CellState state, double x, double y) override {
    const std::int64_t side = pixel(kSwatch);
    fill(pixel(x) - 1, pixel(y) - 1, side + 2, side + 2, ink);
    cell(state, pixel(x), pixel(y), side, side);
  }

  void plot(const CellGrid& grid, const Box& box, double width, double height) override {
    const std::int64_t left = pixel(box.x), top = pixel(box.y), all = pixel(box.width),
                       high = pixel(box.height);
    const std::int64_t across = pixel(width), down = pixel(height);
    const bool is_lined = static_cast<double>(std::min(across, down)) > kLinedCell;
    is_hatched_ = static_cast<double>(std::min(across, down)) >= kHatchedCell;
    fill(left - letter_, top - letter_, all + 2 * letter_, high + 2 * letter_, ink);
    for (std::int64_t r = 0; r < grid.rows; ++r)
      for (std::int64_t c = 0; c < grid.columns; ++c) {
        const std::int64_t x = c * across, y = r * down;
        const std::int64_t line_x = is_lined && c > 0, line_y = is_lined && r > 0;
        const std::int64_t w = std::min(across, all - x), h = std::min(down, high - y);
        if (is_lined) fill(left + x, top + y, w, h, paper);
        cell(grid.at(r, c), left + x + line_x, top + y + line_y, w - line_x, h - line_y);
      }
  }

 private:
  std::int64_t pixel(double at) const { return std::lround(at * scale_); }

  void fill(std::int64_t x, std::int64_t y, std::int64_t width, std::int64_t height, std::uint8_t color) {
    const std::int64_t begin = std::clamp<std::int64_t>(x, 0, columns_),
                       end = std::clamp<std::int64_t>(x + width, begin, columns_);
    for (std::int64_t r = std::max<std::int64_t>(y, 0); r < std::min(y + height, rows_); ++r)
      std::fill_n(pixels_.begin() + r * columns_ + begin, end - begin, color);
  }

  // With its hatch or mark where it is large enough.
  void cell(CellState state, std::int64_t x, std::int64_t y, std::int64_t width, std::int64_t height) {
    fill(x, y, width, height, static_cast<std::uint8_t>(state));
    if (!is_hatched_) return;
    const std::int64_t period = pixel(6);
    for (std::int64_t r = 0; r < height && state == CellState::partial; ++r)
      for (std::int64_t c = period - 1 - (x + y + r) % period; c < width; c += period)
        fill(x + c, y + r, 1, 1, hatch);
    if (!is_marked(state)) return;
    const std::int64_t thick = std::max(letter_, std::min(width, height) / 7),
                       steps = 2 * std::max(width, height);
    for (const Stroke& s : mark_of(state))
      for (std::int64_t i = 0; i <= steps; ++i) {
        const double share = static_cast<double>(i) / static_cast<double>(steps);
        const auto at = [&](double from, double to, std::int64_t side) {
          return std::lround((from + (to - from) * share) / 10 * static_cast<double>(side)) - thick / 2;
        };
        fill(x + at(s.x, s.to_x, width), y + at(s.y, s.to_y, height), thick, thick, paper);
      }
  }

  std::int64_t letter_;
  double scale_;
  bool is_hatched_ = false;
  std::int64_t rows_ = 0, columns_ = 0;
  std::vector<std::uint8_t> pixels_;
};

}  // namespace

}  // namespace report

namespace {

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
  if (picture.rows() < 1 || picture.columns() < 1)
    throw Error(Error::Kind::output, "the picture has no blocks");
  const auto cells_of = [](std::int64_t blocks) {
    return static_cast<double>(core::ceil_div(blocks, core::ceil_div(blocks, report::kMostPixels)));
  };
  const double rows = cells_of(picture.rows()), columns = cells_of(picture.columns());
  const auto [width, height] = report::plot_size(picture, std::max({rows, columns, report::kUsualPixels}));
  const double across = std::max(1.0, std::round(width / columns)),
               down = std::max(1.0, std::round(height / rows));
  report::PixelSurface surface(
      std::max<std::int64_t>(1, std::lround(std::max(width, height) / report::kUsualPixels)));
  report::DrawingStyle style;
  style.most_cells = report::kMostPixels;
  style.cell_width = across / surface.scale(), style.cell_height = down / surface.scale();
  report::draw(picture, report::counts_of(picture), style, surface);
  const std::vector<std::uint8_t>& pixels = surface.pixels();

  png_image image;
  std::memset(&image, 0, sizeof image);
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(surface.columns());
  image.height = static_cast<png_uint_32>(surface.rows());
  image.format = PNG_FORMAT_RGB_COLORMAP;
  std::vector<png_byte> colors;
  const auto add_color = [&](std::uint32_t color) {
    for (const int shift : {16, 8, 0}) colors.push_back(static_cast<png_byte>(color >> shift));
  };
  std::for_each(report::kColors.begin(), report::kColors.end(), add_color);
  std::for_each(std::begin(report::kInks), std::end(report::kInks), add_color);
  image.colormap_entries = static_cast<png_uint_32>(colors.size() / 3);

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
