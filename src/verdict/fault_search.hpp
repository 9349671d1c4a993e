// Fault search: which known faults of a computation explain the elements out of tolerance. A fault model
// predicts rows; it is accepted if its predictions match the actual rows within tolerance on a first sample
// and again on a larger second one. Both have rows of every head, entry or group with rows out of tolerance.
// A model may hold everywhere or in some of these; explained rows are removed and the search continues. Cost:
// a dozen rows for a model that fails, all sampled rows for one that holds.
// tests: tests/verdict/test_fault_search.cpp
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "verdict/against.hpp"

namespace ejk::verify {

struct FaultModel {
  std::string kind, text;
  /// Predicts columns of a row, and their tolerances; false: no prediction. Called by several threads.
  std::function<bool(std::int64_t row, std::span<const std::int64_t> columns, double* values,
                     double* allowed)>
      values;
  /// The axis whose parts the text names by itself.
  std::optional<std::size_t> names_axis = std::nullopt;
  /// Estimated time of a row; 0: that given to the search.
  double nanoseconds = 0;
  /// Its time is proportional to the columns: a row is given up after a few that fail.
  bool by_columns = false;
  /// It changes little, or has a fitted number: at most half of the differences may remain in each row (RMS),
  bool is_subtle = false;
  /// or this fraction.
  double most_left = 0.5;
  /// Rows of zeros, NaN or infinities alone are no evidence: unwritten rows agree with any model that leaves
  /// them without terms. False for a model of such values.
  bool needs_numbers = true;
  /// The same for all rows in less time, called once before many are counted; may be empty.
  std::function<std::function<bool(std::int64_t row, std::span<const std::int64_t> columns, double* values,
                                   double* allowed)>()>
      of_all = {};
};

struct Found {
  Explanation explanation;           // share: of the array's elements out of tolerance
  std::string where;                 // " in head 3", where it does not hold everywhere
  std::optional<std::size_t> model;  // none: unwritten elements
  std::size_t place = 0;             // among those accepted
};

std::string text_of_partners(const std::vector<std::int64_t>& from, const std::string& one,
                             const std::string& many, const std::string& what);
/// The result of partners() as permutations of parts, and the rest; neither is empty.
std::vector<std::vector<std::int64_t>> apart(const std::vector<std::int64_t>& from);
bool is_exchange(const std::vector<std::int64_t>& from);

class FaultSearch {
 public:
  /// `row_nanoseconds`: what a model takes for a row, about. All outlive this.
  FaultSearch(const ResultRows& result, const RowCounts& counts, double row_nanoseconds);

  /// A row agrees only if the RMS of its differences falls below this fraction.
  void set_most_left(double share) { most_left_ = share; }
  /// The models that hold, until nothing is unexplained. Their shares, over all calls, sum to at most 1.
  std::vector<Found> run(const std::vector<FaultModel>& models);
  /// Counts accepted models on rows out of tolerance, all or every n-th, and adds shares, scopes and the rest
  /// to `against`. An element counts for the first model that covers it; a model that covers none is dropped.
  void report(std::vector<Found> found, Against& against);
  /// Too much is unexplained, in all or in some part.
  bool is_open() const;
  /// Enough is unexplained to fit a number: several elements of several rows.
  bool is_enough_to_fit() const;
  std::vector<std::int64_t> some_rows(std::size_t most) const;
  /// For each index of an axis of parts: the candidate whose model makes the sampled rows of that part agree;
  /// −1: none, or it would take too long.
  std::vector<std::int64_t> partners(std::size_t axis, std::int64_t candidates,
                                     const std::function<FaultModel(std::int64_t candidate)>& model) const;

 private:
  struct Sampled {
    std::int64_t row = 0;
    std::vector<std::int64_t> place, columns;  // place: by axis, the last one that of Contents
    std::vector<double> given, expected;
    std::vector<bool> beyond;  // of the columns
    double weight = 0;         // elements that it represents
    bool left = true;
  };
  using Sample = std::vector<Sampled>;
  // Rows whose elements out of tolerance are all 0, or not numbers, are parts of their own.
  enum Contents : std::int64_t { numbers, zeros, not_numbers, kContents };
  struct Scope {
    std::vector<std::vector<bool>> parts;
    bool holds(const std::vector<std::int64_t>& place) const;
    bool everywhere() const { return parts.empty(); }
  };
  enum class Rows { beyond, within };
  enum class Answer { silent, no, yes };
  struct Skipped {
    bool zeros = false, not_numbers = false;
    bool operator()(double given) const;
  };
  // By sampled row: whether a model agrees. Not whole: given up, as none of the first rows did.
  struct Agreement {
    std::vector<char> agree;
    std::size_t looked = 0;
    bool whole = false;
  };
  // Of a part: weights, rows, and elements out of tolerance in the rows that agree.
  struct Share {
    double agreeing = 0, all = 0;
    int rows_agreeing = 0, rows = 0, elements = 0;
    int numbers = 0;  // rows of numbers that agree
  };

  // How the models of one call agree with the first sample, as far as was computed.
  struct Tested {
    const FaultSearch& search;
    const std::vector<FaultModel>& models;
    std::vector<Agreement> agreements;
    const Agreement& of(std::size_t h, std::size_t rows);
  };
  // Elements out of tolerance, by what was found: covered, of these near the reference, in rows where it may
  // hold, and the rows it covers.
  struct Counts {
    std::vector<std::int64_t> covered, near, looked;
    std::vector<std::vector<std::int64_t>> rows;
    std::int64_t elements = 0, left = 0;
    WorstElement worst = {};

    explicit Counts(std::size_t found) : covered(found), near(found), looked(found), rows(found) {}
  };

  void place_of(std::int64_t row, std::vector<std::int64_t>& place) const;
  std::int64_t length_of(std::size_t axis) const;
  bool is_of_parts(std::size_t axis) const;
  bool is_beyond(std::int64_t row) const { return counts_.beyond[static_cast<std::size_t>(row)] > 0; }
  struct Cells;
  std::vector<std::size_t> choose_cells(const Cells& cells, Rows rows, std::size_t most,
                                        std::int64_t seed) const;
  std::vector<std::vector<const Sampled*>> rows_by_part(std::size_t axis, std::size_t most) const;
  Sample choose(Rows rows, std::int64_t least, std::int64_t wanted, std::int64_t most,
                std::int64_t seed) const;
  Sampled sampled(std::int64_t row, std::int64_t seed) const;
  Answer answer(const FaultModel& model, const Sampled& sampled, Skipped skipped) const;
  void try_rows(const FaultModel& model, const Sample& sample, const Scope& scope, std::size_t first,
                Agreement& agreement) const;
  struct Contradicted {
    double same_parts = 0, other_parts = 0;
  };
  Contradicted contradicted(const FaultModel& model, const Scope& scope) const;
  bool is_off_by_factor(const FaultModel& model, const Sample& sample, const Agreement& agreement,
                        const Scope& scope) const;
  template <class F>
  void for_each_flagged(const std::vector<std::uint8_t>& elements, F&& f) const;
  void explain_by_values(std::vector<std::uint8_t> open, std::int64_t elements, Against::Unexplained& left,
                         std::vector<Against::Explained>& explained) const;
  std::vector<Share> shares_of(std::size_t axis, const Scope& scope, const Agreement& first,
                               const Agreement* second) const;
  Scope without_failing(const Agreement& first, const Agreement& second) const;
  std::optional<Scope> scope_of(const Agreement& first, const Agreement* second, const Scope& within,
                                bool needs_numbers, double& explained) const;
  std::optional<Found> accept(const FaultModel& model, const Agreement& first, std::optional<Scope> scope);
  std::optional<Found> count_out(Contents contents);
  const char* text_of_not_numbers() const;
  std::optional<std::size_t> best_everywhere(Tested& tested, const std::vector<bool>& refuted) const;
  double prepare_counting(const std::vector<Found>& found, std::int64_t rows);
  void count_row(std::int64_t row, const std::vector<Found>& found, std::span<const std::size_t> order,
                 Row& it, Counts& counts, std::vector<std::uint8_t>& open) const;
  Counts count(const std::vector<Found>& found, const std::vector<std::int64_t>& bad, std::int64_t counted,
               double nanoseconds, std::vector<std::uint8_t>& open) const;
  static bool is_chance(const Counts& counts, std::size_t f);
  double weight_left(const Sample& sample) const;
  std::vector<std::vector<bool>> flags_of(const std::function<bool(std::int64_t row)>& counts) const;
  std::string where(const std::vector<std::vector<bool>>& flags, bool positions,
                    std::optional<std::size_t> but) const;

  // What was accepted: where, and for elements that are counted out which.
  struct Accepted {
    std::optional<FaultModel> model;
    Scope scope;
    Contents contents = numbers;
    bool is_all = false, tells_positions = true;
  };
  bool covers(const Accepted& accepted, std::int64_t row, const std::vector<std::int64_t>& place,
              std::span<const std::int64_t> columns, const std::vector<double>& given,
              std::vector<char>& covered) const;

  const ResultRows& result_;
  const RowCounts& counts_;
  double row_nanoseconds_;
  std::vector<Accepted> accepted_;
  std::vector<bool> open_;  // unexplained rows out of tolerance
  Sample first_, second_;
  std::size_t parts_in_first_ = 0;                // the first rows of first_, one of each part
  Sample within_;                                 // rows within tolerance, which a model must not change
  std::vector<std::vector<bool>> bad_;            // by axis: indices with rows out of tolerance
  std::vector<std::vector<bool>> sampled_parts_;  // by axis: indices of sampled rows
  Skipped skipped_;
  double left_ = 1;
  double most_left_ = 0.95;
};

}  // namespace ejk::verify
