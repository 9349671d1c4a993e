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
    {Code::masks_of_heads, "one --mask serves all heads, else each head has its own"},
    {Code::padding_mask,
     "a padding mask (B, K) goes as segment ids, 1 for tokens and 0 for padding: --segment-ids SUBJECT"},
    {Code::float_mask,
     "numbers 0 and 1 become a bool mask: ejk convert IN -o OUT --dtype bool; added to scores: --mask-kind "
     "additive (0 attends, -1e4 and less hides)"},
    {Code::integer_mask, "--mask-kind keep: non-zero attends; --mask-kind drop: non-zero hides"},
    {Code::ones_in_mask, "numbers 0 and 1 become a bool mask: ejk convert IN -o OUT --dtype bool"},
    {Code::indivisible_mask, "--pad fills the mask up with False"},
    {Code::too_many_blocks, "use more --head-shards or --q-seq-shards"},
    {Code::too_many_patterns, "larger blocks have fewer partial ones; --max-memory sets the limit"},
    {Code::heads_of_mask, "--per-head makes ids for each head; or take one head with a slice: \"REF[:,0]\""},
    {Code::needs_integers, "ejk convert IN -o OUT --dtype int32"},
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
