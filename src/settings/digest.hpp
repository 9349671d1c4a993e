// SHA-256 (FIPS 180-4) and MD5 (RFC 1321) of texts in memory, for names and not for security.
//
// Implemented here to avoid a dependency of the static library; OpenSSL's FIPS mode disables MD5.
#pragma once

#include <string>
#include <string_view>

namespace ejk::settings {

/// 64 hex digits, in lower case.
std::string sha256_hex(std::string_view text);

/// 32 hex digits, in lower case.
std::string md5_hex(std::string_view text);

}  // namespace ejk::settings
