// Digests against the tools of coreutils.
#include "settings/digest.hpp"

#include <doctest/doctest.h>

#include <random>
#include <string>

#include "io/support.hpp"
#include "support/shell.hpp"

namespace {

std::string output_of(const std::string& command) {
  const ejk::test::Printed printed = ejk::test::shell(command);
  CHECK(printed.status == 0);
  return printed.text;
}

}  // namespace

TEST_CASE("the digests of known texts are those of the standards") {
  using ejk::settings::md5_hex, ejk::settings::sha256_hex;
  CHECK(sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256_hex(std::string(1'000'000, 'a')) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  CHECK(md5_hex("") == "d41d8cd98f00b204e9800998ecf8427e");
  CHECK(md5_hex("abc") == "900150983cd24fb0d6963f7d28e17f72");
  CHECK(md5_hex("12345678901234567890123456789012345678901234567890123456789012345678901234567890") ==
        "57edf4a22be3c955ac49da2e2107b67a");
}

TEST_CASE("digests of every length around the blocks are those of sha256sum and md5sum") {
  const ejk::test::Folder folder;
  std::mt19937_64 random(3);
  std::string sha256, md5;
  for (int length = 0; length < 200; ++length) {
    std::string text;
    for (int i = 0; i < length; ++i) text += static_cast<char>(random());
    ejk::test::put(folder / std::to_string(1000 + length), text);
    sha256 += ejk::settings::sha256_hex(text) + "\n";
    md5 += ejk::settings::md5_hex(text) + "\n";
  }
  CHECK(output_of("cd '" + folder.path() + "' && sha256sum * | cut -c1-64") == sha256);
  CHECK(output_of("cd '" + folder.path() + "' && md5sum * | cut -c1-32") == md5);
}
