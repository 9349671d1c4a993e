// Tiling tables: parsed; each row is found by its shape unless an earlier row matches.
#include "ejk/grouped_matmul.hpp"
#include "fuzz.hpp"

using namespace ejk;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::survives([&] {
    const TilingTable table = TilingTable::parse(fuzz::text_of(data, size));
    const TilingTable::Row* before = nullptr;
    for (const TilingTable::Row& row : table.rows()) {
      const TilingTable::Row* found = table.find(row.m.value_or(1), row.k.value_or(1), row.n.value_or(1));
      fuzz::require(found != nullptr && found <= &row, "a row is not found, nor one before it");
      fuzz::require(before == nullptr || before->line < row.line, "the lines of rows do not ascend");
      before = &row;
    }
    (void)table.find(INT64_MAX, 0, -1);
  });
  return 0;
}

std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  static const std::vector<std::string_view> words{"*",
                                                   "#",
                                                   "\n",
                                                   " ",
                                                   "\t",
                                                   "\r",
                                                   "128",
                                                   "0",
                                                   "-1",
                                                   "* * * 128 64 128\n",
                                                   "9223372036854775807",
                                                   "9223372036854775808"};
  return fuzz::mutate_text(data, size, most, seed, words);
}
