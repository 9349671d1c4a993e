// The style sheet and the script of a page: page.css and page.js, as the build puts them into the library.
#pragma once

namespace ejk::report {

extern const char* const kPageStyle;
extern const char* const kPageScript;

}  // namespace ejk::report
