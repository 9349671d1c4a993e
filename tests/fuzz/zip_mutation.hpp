// Mutation of zip archives: fields of the central directory and of local headers, or the content of a member,
// with sizes and checksums that are then correct. Source of the fields: PKWARE's APPNOTE.TXT, sections 4.3.7,
// 4.3.12 and 4.3.16.
#pragma once

#include <functional>

#include "fuzz.hpp"

namespace ejk::fuzz {

/// Changes one field, one byte, or a member's content by `change_content`.
void change_zip(Bytes& bytes, Random& random,
                const std::function<void(Bytes& content, Random&)>& change_content);

}  // namespace ejk::fuzz
