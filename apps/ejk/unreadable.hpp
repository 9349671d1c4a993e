// Inputs that cannot be read, which do not keep back what is said of the others: they are listed, and are an error in
// the end.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>

#include "ejk/error.hpp"
#include "ejk/report.hpp"
#include "ejk/text.hpp"

namespace ejk::app {

/// What could not be read, or held nothing that could.
class Unreadable {
 public:
  /// Runs f for what `name` names; false when that failed.
  template <class F>
  bool unless_failing(const std::string& name, F&& f) {
    try {
      f();
      return true;
    } catch (const Error& error) {
      if (error.kind() != Error::Kind::input) throw;
      if (!first_) first_ = error;
      table_.rows.push_back({printable(name), printable(error.why())});
      return false;
    }
  }

  /// The table `unreadable`; nothing where all was read.
  void add_to(Report& report) const {
    if (table_.rows.empty()) return;
    Table table = table_;
    if (table.rows.size() == 1) table.text_rows = 0;  // the error says it all
    report.add(std::move(table));
  }
  /// Throws the first error, with the number of all.
  void throw_if_any() const {
    if (first_ && table_.rows.size() == 1) throw Error(*first_);
    if (first_)
      throw Error(
          first_->kind(),
          fmt::format("{} inputs are unreadable, the first: {}", table_.rows.size(), first_->message()),
          first_->code())
          .hint(first_->hint());
  }

 private:
  std::optional<Error> first_;
  Table table_{"unreadable", "unreadable", {{"name", "what"}, {"why", "why"}}, {}, INT64_MAX};
};

}  // namespace ejk::app
