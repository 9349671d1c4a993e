// .npz archives: every member by its name. The mutator changes the archive, or the header of an .npy member.
#include "zip_mutation.hpp"

using namespace ejk;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::MemoryFile file(data, size);
  fuzz::read_container(file.reference(ArrayReference::Container::npz));
  return 0;
}

std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  return fuzz::mutate(data, size, most, seed, [](fuzz::Bytes& bytes, fuzz::Random& random) {
    fuzz::change_zip(bytes, random,
                     [](fuzz::Bytes& content, fuzz::Random& r) { fuzz::change_npy(content, 0, r); });
  });
}
