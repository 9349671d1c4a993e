// SHA-256 (FIPS 180-4) and MD5 (RFC 1321) of texts in memory, as names: nothing here guards a secret.
//
// Two rounds of arithmetic each, and not a library's: whoever links the installed static library needs
// nothing more for them, and MD5, which one convention asks for, is there where OpenSSL runs in FIPS mode.
#pragma once

#include <string>
#include <string_view>

namespace ejk::settings {

/// 64 hex digits, in lower case.
std::string sha256_hex(std::string_view text);

/// 32 hex digits, in lower case.
std::string md5_hex(std::string_view text);

}  // namespace ejk::settings
