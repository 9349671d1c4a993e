#include <ejk/ejk.hpp>

#include <iostream>

int main() try {
  // 4,096 tokens, each of which sees itself and the 511 before it, in blocks of 128 x 128.
  const ejk::Mask mask = ejk::causal_mask(4096, 4096) & ejk::local_mask(4096, 4096, 511, 0);
  const ejk::MaskInfo info = ejk::process_mask({mask}, {.q = 128, .kv = 128});
  std::cout << ejk::to_text(ejk::describe(info));
  ejk::write_arrays(ejk::parse_reference("window.h5"),
                    {{"data_next", ejk::make_source(info.data_next.view())},
                     {"block_mask", ejk::make_source(info.block_mask.view())},
                     {"partial_mask_blocks", info.partial_mask_blocks}});
  const auto block_mask = ejk::open_array("window.h5:/block_mask");
  std::cout << "block_mask " << ejk::to_string(block_mask->shape()) << "\n";
} catch (const ejk::Error& error) {
  std::cerr << error.message() << "\n";
  return 1;
}
