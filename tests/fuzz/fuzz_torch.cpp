// Files of torch.save: every tensor by its path. The mutator changes the archive, or the opcodes of the
// pickle: one for another, an argument, a part elsewhere or many times.
#include <algorithm>
#include <string>

#include "zip_mutation.hpp"

using namespace ejk;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::MemoryFile file(data, size);
  fuzz::read_container(file.reference(ArrayReference::Container::torch));
  return 0;
}

namespace {

void change_pickle(fuzz::Bytes& content, fuzz::Random& random) {
  using namespace std::string_view_literals;
  static const std::vector<std::string_view> words{"(",
                                                   ")",
                                                   "t",
                                                   "R",
                                                   "Q",
                                                   "]",
                                                   "}",
                                                   "a",
                                                   "e",
                                                   "s",
                                                   "u",
                                                   "d",
                                                   "l",
                                                   "b",
                                                   "0",
                                                   "1",
                                                   "2",
                                                   ".",
                                                   "N",
                                                   "\x88",
                                                   "\x85",
                                                   "\x86",
                                                   "\x87",
                                                   "\x93",
                                                   "\x81",
                                                   "\x92",
                                                   "cargparse\nNamespace\n",
                                                   "\x94",
                                                   "K\1",
                                                   "h\0"sv,
                                                   "q\0"sv,
                                                   "h\5",
                                                   "q\5",
                                                   "J\xff\xff\xff\xff",
                                                   "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f",
                                                   "\x8c\1a",
                                                   "X\0\0\0\0"sv,
                                                   "]q\0h\0a"sv,
                                                   "\x8b\xff\xff\xff\xff",
                                                   "ccollections\nOrderedDict\n",
                                                   "ctorch._utils\n_rebuild_tensor_v2\n",
                                                   "ctorch._utils\n_rebuild_parameter\n",
                                                   "ctorch\nFloatStorage\n",
                                                   "ctorch\nfloat8_e4m3fn\n",
                                                   "ctorch.storage\nUntypedStorage\n",
                                                   "ctorch\nSize\n",
                                                   "cos\nsystem\n"};
  std::string text(content.begin(), content.end());
  if (random.one_in(2) && !text.empty()) {  // a number of one byte: a length, a stride, a slot
    text[random.below(text.size())] = static_cast<char>(random.below(random.one_in(2) ? 8 : 256));
  } else {
    fuzz::change_text(text, words, random);
  }
  content.assign(text.begin(), text.end());
}

}  // namespace

std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  return fuzz::mutate(data, size, most, seed, [](fuzz::Bytes& bytes, fuzz::Random& random) {
    fuzz::change_zip(bytes, random, change_pickle);
  });
}
