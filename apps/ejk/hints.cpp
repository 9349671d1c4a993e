#include "hints.hpp"

#include <algorithm>
#include <iterator>
#include <string>

namespace ejk::app {

namespace {

using Code = Error::Code;

struct Hint {
  Code code;
  const char* text;  // SUBJECT is what the error is about
};

constexpr Hint kHints[] = {
    {Code::needs_floats, "ejk convert ... --dtype float32 makes it one of those"},
};

}  // namespace

void add_hint(Error& error) {
  const auto* const found = std::find_if(std::begin(kHints), std::end(kHints),
                                         [&](const Hint& hint) { return hint.code == error.code(); });
  if (found == std::end(kHints)) return;
  const std::string subject = "SUBJECT";
  std::string text = found->text;
  if (const std::size_t at = text.find(subject); at != std::string::npos)
    text.replace(at, subject.size(), error.subject());
  error.hint(std::move(text));
}

}  // namespace ejk::app
