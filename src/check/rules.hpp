// The rules of every kind of artefact: one table a kind. A name is stable; a text says what holds, in the
// length of a line of help.
// tests: tests/check/test_rules.cpp
#pragma once

#include "ejk/check.hpp"

namespace ejk::check {

inline constexpr auto kError = Severity::error, kWarning = Severity::warning;

inline constexpr Rule kCuSeqlens[] = {
    {"length", kError, "there is at least one offset"},
    {"begin", kError, "the first offset is 0"},
    {"decreasing", kError, "no offset is less than the one before it"},
    {"tokens", kError, "the last offset is the number of tokens"},
    {"too-long", kError, "no sequence has more than the most tokens"},
    {"misaligned", kError, "sequences begin at multiples of the alignment"},
    {"int32", kWarning, "offsets fit int32, which most kernels take"},
    {"empty", kWarning, "each sequence has a token"},
};

inline constexpr Rule kSegmentIds[] = {
    {"split", kError, "the tokens of a segment follow one another"},
    {"boundary", kError, "a sequence has one id, and not padding's"},
    {"repeated", kError, "no two sequences have the same id"},
    {"past-end", kError, "tokens past the last sequence are padding"},
    {"length", kError, "each token of the sequences has an id"},
    {"padding-inside", kWarning, "no padding stands between tokens of a row"},
};

inline constexpr Rule kPositionIds[] = {
    {"restart", kError, "a sequence, and a row, begins with position 0"},
    {"jump", kError, "a position is one more than the last, or 0"},
    {"length", kError, "each token of the sequences has a position"},
    {"padding-inside", kWarning, "no padding stands between tokens of a row"},
};

inline constexpr Rule kGroupSizes[] = {
    {"negative", kError, "no size is negative"},
    {"sum", kError, "the sizes sum to the number of rows"},
    {"int32", kWarning, "the offsets of the groups fit int32"},
};

inline constexpr Rule kGroupMetadata[] = {
    {"shape", kError, "the lengths of the arrays go together"},
    {"begin", kError, "the first offset is 0"},
    {"decreasing", kError, "no offset is less than the one before it"},
    {"sizes", kError, "the offsets are those of the group sizes"},
    {"rows", kError, "the last offset is not beyond the rows"},
    {"misaligned", kError, "groups begin at multiples of the alignment"},
    {"num-tiles", kError, "there are as many labels as steps"},
    {"range", kError, "steps are of groups and tiles that there are"},
    {"order", kError, "neither groups nor tiles of steps decrease"},
    {"dropped", kError, "each row of the groups is computed"},
    {"twice", kError, "no row is computed twice"},
    {"empty-groups", kError, "all empty groups have a step, or none has"},
    {"int32", kWarning, "offsets fit int32, which kernels take"},
    {"idle", kWarning, "each step has rows, or is of an empty group"},
};

inline constexpr Rule kTopkIds[] = {
    {"range", kError, "an entry is an expert that there is, or -1"},
    {"duplicate", kError, "no token has the same expert twice"},
    {"partial", kWarning, "a token's entries are all experts, or all -1"},
};

inline constexpr Rule kIndices[] = {
    {"range", kError, "an entry is a key that there is, or -1"},
    {"duplicate", kError, "no query has the same key twice"},
    {"future", kError, "no key is after its query"},
    {"gap", kWarning, "-1 stands behind the keys of a query"},
    {"empty", kWarning, "each query has a key"},
};

inline constexpr Rule kBlockTable[] = {
    {"length", kError, "no sequence has a negative length"},
    {"beyond", kError, "no sequence needs more pages than a row holds"},
    {"missing", kError, "each page that a sequence needs has an entry"},
    {"range", kError, "entries are pages that there are"},
    {"twice", kError, "no sequence has a page twice"},
    {"shared", kWarning, "no page is of several sequences"},
};

}  // namespace ejk::check
