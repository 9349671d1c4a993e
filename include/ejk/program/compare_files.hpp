// Comparison of two files, groups or folders, array by array, paired by name. A name on one side only is a
// difference, as are links of one name with different targets. Two single arrays are one pair.
//
// A decoded array (Member::element) beside one that was never quantised differs by the rounding of its
// elements. Unless a tolerance is given, the pair is close if its SNR is at least quantization_snr().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/compare.hpp"
#include "ejk/program/explain.hpp"
#include "ejk/quantize.hpp"
#include "ejk/report.hpp"

namespace ejk {

// Errors of the layers of a model, in order: the first layer out of tolerance, and the one that adds most.
//
// The order is that of the arrays in EXPECTED, or else in ACTUAL, unless they are merely sorted by name (arrays
// of each dtype by themselves, as safetensors' writer does): then the natural order of names, "layer.2" before
// "layer.10". The error of an array is rel, Σ (a − e)² / Σ (a²
// + e²) over finite pairs (DeepGEMM's calc_diff); a layer adds its error less that of the array before it.

/// Whether x is before y. Equal numbers with different leading zeros are ordered by bytes.
bool natural_less(std::string_view x, std::string_view y);

/// A map of names of one side to those of the other: "A*B=C*D". * matches any text, which is kept.
class NameMap {
 public:
  explicit NameMap(std::string_view text);

  std::optional<std::string> operator()(std::string_view name) const;
  std::string left() const { return before_ + "*" + behind_; }

 private:
  std::string before_, behind_, new_before_, new_behind_;
};

struct LayerErrors {
  struct Layer {
    /// 0 where both sides are 0; none for different shapes, and without a pair of finite elements.
    std::optional<double> rel, added;
  };
  std::vector<Layer> layers;
  std::optional<std::size_t> first;       // the first that is not close
  std::optional<std::size_t> most_added;  // the first that adds the most, if that is positive
};

/// `in_order`: comparisons in the order of the layers. A layer without an error is skipped.
LayerErrors layer_errors(std::span<const Comparison> in_order);

struct ArraySet {
  /// In the order of the file.
  struct Member {
    std::string name;       // within the file, group or folder
    std::string reference;  // of this array alone, for messages
    std::function<std::shared_ptr<const ArraySource>()> open;
    std::optional<ElementFormat> element = {};  // of numbers that are decoded
  };
  struct Link {
    std::string target;       // as stored
    std::string resolved;     // a name in the set, or FILE:/NAME outside of it
    bool is_outside = false;  // in another file, or of an unknown kind
  };
  std::string name;       // for messages
  bool is_whole = false;  // a file, group or folder, not an array in it
  std::vector<Member> arrays;
  std::map<std::string, Link> links = {};
};

/// Two arrays, an array without a partner, or two links with different targets.
struct ArrayPair {
  std::string name, expected_name;
  std::string why = {};                  // why it is not compared, which counts as a difference; else empty
  ArrayType actual = {}, expected = {};  // of pairs that are compared
  std::function<std::shared_ptr<const ArraySource>()> open_actual = {}, open_expected = {};
  std::optional<ElementFormat> actual_element = {}, expected_element = {};
  std::function<std::shared_ptr<const ArraySource>()> open_reference = {};  // of another implementation

  /// The format of the side that is decoded, where the other one is not.
  std::optional<ElementFormat> rounded_to() const {
    if (actual_element && expected_element) return std::nullopt;
    return actual_element ? actual_element : expected_element;
  }
  bool is_link() const { return !open_actual && !open_expected; }
};

/// Decibels between numbers and the same ones quantised, at least: 15 of e2m1, 21 of e5m2 and e3m2, 27 of
/// e4m3 and e2m3, 4 less than what rounding leaves of normally distributed numbers. Scales in another order
/// leave 10, a factor of 2 leaves 0 or 6.
double quantization_snr(ElementFormat element);

/// The actual array of `pair` is close to the expected one of another pair, `from`.
struct ArrayMove {
  std::size_t pair, from;
};

struct FilesComparison {
  std::vector<ArrayPair> pairs;
  std::vector<Explained>
      found;  // by pair; the comparison alone without explanations, empty where there is none
  bool close = true;
  std::string order_of = {};          // the file whose order pairs have; empty: that of names
  std::vector<ArrayMove> moves = {};  // with explanations, of pairs that differ
};

struct FilesOptions {
  std::vector<NameMap> maps = {};  // names of actual in expected: the first map that matches
  bool in_layers = false;          // pairs in the order of layers
  bool follow_links = false;       // links out of the file are followed: broken ones are no difference
  bool explain = false;
  std::optional<ArraySet> reference = {};  // of NoWorseThan, by the names of expected
  double factor = 2;
};

class FilesPlan {
 public:
  /// Opens each array for its type. Throws Error{usage} about "maps" where two names become one and for a map
  /// that matches none, Error{input} for one array beside several.
  FilesPlan(const ArraySet& actual, const ArraySet& expected, FilesOptions options = {});

  const std::vector<ArrayPair>& pairs() const { return pairs_; }
  std::int64_t bytes() const { return bytes_; }
  std::int64_t peak_bytes() const { return peak_; }

  /// `options`: the tolerance; the rest for explanations. Compressed and quantised arrays are decoded into
  /// `spare` bytes at most.
  FilesComparison run(const ExplainOptions& options = {}, std::int64_t spare = 0,
                      const std::function<void(std::int64_t done, std::int64_t all)>& progress = {}) const;

 private:
  FilesOptions options_;
  std::vector<ArrayPair> pairs_;
  std::string order_of_;
  std::int64_t bytes_ = 0, peak_ = 0, elements_ = 0;
};

/// Of an array that was decoded and compared without a tolerance: where nothing explains the differences, the other
/// one may be the numbers before they were quantised, and explanations that hold within the rounding of elements are
/// added.
void explain_decoded(ArrayPair pair, ElementFormat element, const ExplainOptions& options, std::int64_t spare,
                     Explained& found);

enum class ListedPairs { differing, all };
Report describe(const FilesComparison& files, ListedPairs listed = ListedPairs::differing);
Report describe_layers(const FilesComparison& files);

}  // namespace ejk
