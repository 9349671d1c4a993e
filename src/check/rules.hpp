// Rules of every kind of artefact, one table a kind. Names are stable; texts state what holds, and fit a line
// of help.
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
    {"misaligned", kError, "no sequence with tokens is off the alignment"},
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
    {"counts-padding", kError, "with a mask, positions leave out padding"},
    {"length", kError, "each token of the sequences has a position"},
    {"padding-inside", kWarning, "no padding stands between tokens of a row"},
};

inline constexpr Rule kGroupSizes[] = {
    {"negative", kError, "no size is negative"},
    {"sum", kError, "the sizes sum to the number of rows"},
    {"int32", kWarning, "the offsets of the groups fit int32"},
    {"ends", kWarning, "the sizes are not where groups end"},
};

inline constexpr Rule kGroupMetadata[] = {
    {"shape", kError, "the lengths of the arrays go together"},
    {"begin", kError, "the first offset is 0"},
    {"decreasing", kError, "no offset is less than the one before it"},
    {"sizes", kError, "the offsets are those of the group sizes"},
    {"rows", kError, "the last offset is not beyond the rows"},
    {"misaligned", kError, "no group with rows is off the alignment"},
    {"num-tiles", kError, "there are as many labels as steps"},
    {"range", kError, "steps are of groups and tiles that there are"},
    {"order", kError, "neither groups nor tiles of steps decrease"},
    {"dropped", kError, "each row of the groups is computed"},
    {"twice", kError, "no row is computed twice"},
    {"empty-groups", kError, "all empty groups have a step, or none has"},
    {"int32", kWarning, "offsets fit int32, which kernels take"},
    {"idle", kWarning, "each step has rows, or is of an empty group"},
    {"unchecked", kWarning, "how many rows a tile has is known"},
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
    {"assumed", kWarning, "nothing is assumed: where query 0 stands"},
};

inline constexpr Rule kBlockTable[] = {
    {"length", kError, "no sequence has a negative length"},
    {"beyond", kError, "no sequence needs more pages than a row holds"},
    {"missing", kError, "each page that a sequence needs has an entry"},
    {"range", kError, "entries are pages that there are"},
    {"twice", kError, "no sequence has a page twice"},
    {"null", kError, "null pages stand before a sequence's others"},
    {"window", kWarning, "no page is null (a window is assumed)"},
    {"shared", kWarning, "no page is of several sequences"},
};

inline constexpr Rule kMask[] = {
    {"outside", kError, "no pair is seen that a claim hides"},
    {"missing", kError, "no pair is hidden that a claim shows"},
    {"between", kError, "an additive mask holds 0, or -1e4 and less"},
    {"ids", kError, "integers are 0 and one other value, no ids"},
    {"values", kWarning, "a stored mask holds 0 and 1 alone"},
    {"inverted", kWarning, "who sees later keys sees its own position"},
    {"no-keys", kWarning, "each query sees a key"},
    {"unseen", kWarning, "each key is seen by a query"},
    {"padding-mask", kWarning, "it is of queries x keys, not batch x tokens"},
    {"assumed", kWarning, "nothing is assumed: how queries meet keys"},
};

inline constexpr Rule kMaskInfo[] = {
    {"shape", kError, "shapes and types of the arrays go together"},
    {"state", kError, "a block is 0, 1 (partial) or 2 (full)"},
    {"range", kError, "indices name blocks that there are"},
    {"elements", kError, "partial blocks have elements"},
    {"twice", kError, "no head visits a block twice"},
    {"positions", kError, "q_sequence counts the queries from 0"},
    {"padding", kError, "no pair beyond the lengths is computed"},
    {"missing", kError, "each pair of the mask is computed"},
    {"outside", kError, "no pair is computed that the mask hides"},
    {"look-ahead", kWarning, "idle steps fetch what is needed next"},
    {"unused", kWarning, "each distinct partial block is used"},
    {"decided", kWarning, "no partial block is all True or all False"},
    {"dtype", kWarning, "indices are int8, int16 or int32"},
    {"assumed", kWarning, "nothing is assumed: elements, alignment"},
};

}  // namespace ejk::check
