// Correction of partition specs, one dimension at a time; then the check for axes used twice.
// tests: tests/settings/test_sharding.cpp
#include "ejk/program/sharding.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "core/checked.hpp"
#include "core/json.hpp"
#include "core/require.hpp"
#include "core/utf8.hpp"
#include "ejk/error.hpp"
#include "ejk/program/text.hpp"
#include "settings/text_file.hpp"

namespace ejk {

namespace {

using core::usage;

// --- texts

// What a name without quotes may hold, and the names that then are none.
bool is_plain(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("_.-/:@").find(c) != std::string_view::npos ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool means_none(std::string_view name) { return name == "None" || name == "none" || name == "null"; }
bool means_unconstrained(std::string_view name) {
  return name == "UNCONSTRAINED" || name.ends_with(".UNCONSTRAINED");
}

class SpecParser {
 public:
  explicit SpecParser(std::string_view text) : text_(text) {}

  PartitionSpec spec() {
    for (const std::string_view name : {"PartitionSpec", "P"}) {
      skip_space();
      const std::size_t begin = at_;
      if (!text_.substr(at_).starts_with(name)) continue;
      at_ += name.size();
      if (take('(')) {
        PartitionSpec entries = entries_up_to(')');
        skip_space();
        if (at_ < text_.size()) fail("more text after the closing parenthesis");
        return entries;
      }
      at_ = begin;
    }
    return entries_up_to('\0');
  }

 private:
  [[noreturn]] void fail(std::string_view why) const {
    throw usage("'{}': {}", printable(text_), why).hint("such as dp,None,(mp,tp)");
  }

  void skip_space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }

  bool take(char c) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  // '\0' marks the end of the text.
  bool take_end(char end) {
    skip_space();
    return end == '\0' ? at_ == text_.size() : take(end);
  }

  PartitionSpec entries_up_to(char end) {
    PartitionSpec entries;
    while (!take_end(end)) {
      entries.push_back(take('(') ? tuple() : word());
      if (take(',')) continue;  // one may follow the last
      if (!take_end(end)) fail(end == '\0' ? "',' is missing between entries" : "')' is missing");
      break;
    }
    return entries;
  }

  SpecEntry tuple() {
    SpecEntry entry;
    while (!take(')')) {
      const SpecEntry name = word();
      if (name.axes.size() != 1) fail("a tuple holds names of axes alone");
      entry.axes.push_back(name.axes.front());
      if (take(',')) continue;
      if (!take(')')) fail("')' is missing");
      break;
    }
    return entry;
  }

  SpecEntry word() {
    skip_space();
    const char quote = at_ < text_.size() && (text_[at_] == '\'' || text_[at_] == '"') ? text_[at_] : '\0';
    if (quote != '\0') {
      const std::size_t end = text_.find(quote, at_ + 1);
      if (end == std::string_view::npos) fail("a quote is not closed");
      const std::string_view name = text_.substr(at_ + 1, end - at_ - 1);
      if (name.empty()) fail("an axis without a name");
      at_ = end + 1;
      return {{std::string(name)}};
    }
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_plain(text_[at_])) ++at_;
    const std::string_view name = text_.substr(begin, at_ - begin);
    if (name.empty()) fail("the name of an axis is missing");
    if (means_none(name)) return {};
    if (means_unconstrained(name)) return {{}, SpecEntry::Kind::unconstrained};
    return {{std::string(name)}};
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

// In quotes where it would be read as something else without.
std::string text_of_name(const std::string& name) {
  const bool is_plain_name = !name.empty() && std::all_of(name.begin(), name.end(), is_plain);
  if (is_plain_name && !means_none(name) && !means_unconstrained(name)) return name;
  const char quote = name.find('\'') == std::string::npos ? '\'' : '"';
  return quote + name + quote;
}

std::string text_of(const SpecEntry& entry) {
  if (entry.kind == SpecEntry::Kind::unconstrained) return "UNCONSTRAINED";
  if (entry.axes.empty()) return "None";
  if (entry.axes.size() == 1) return text_of_name(entry.axes.front());
  std::vector<std::string> names;
  for (const std::string& name : entry.axes) names.push_back(text_of_name(name));
  return fmt::format("({})", fmt::join(names, ","));
}

void put(core::JsonWriter& json, const SpecEntry& entry) {
  std::vector<std::string> names;
  for (const std::string& name : entry.axes) names.push_back(core::as_utf8(name));
  if (entry.kind == SpecEntry::Kind::unconstrained || names.empty())
    json.null();
  else if (names.size() == 1)
    json.put(names.front());
  else
    json.put(names);
}

// `put_all` writes the elements of a list.
template <class PutAll>
JsonField list_field(const char* key, PutAll&& put_all) {
  core::JsonWriter json(core::JsonStyle::report);
  json.list([&] { put_all(json); });
  return {key, json.take()};
}

// --- correcting

std::optional<std::int64_t> size_of_axis(const Mesh& mesh, const std::string& name) {
  for (const MeshAxis& axis : mesh)
    if (axis.name == name) return axis.size;
  return std::nullopt;
}

// "mp = 4", "dp x mp = 2 x 4".
std::string axes_text(const SpecEntry& entry, const Mesh& mesh) {
  std::string names, sizes;
  for (const std::string& axis : entry.axes) {
    names += (names.empty() ? "" : " x ") + printable(axis);
    sizes += fmt::format("{}{}", sizes.empty() ? "" : " x ", size_of_axis(mesh, axis).value_or(0));
  }
  return fmt::format("{} = {}", names, sizes);
}

std::int64_t check_mesh(const Mesh& mesh) {
  std::int64_t devices = 1;
  for (std::size_t i = 0; i < mesh.size(); ++i) {
    const std::string name = printable(mesh[i].name);
    if (mesh[i].name.empty()) throw usage("the mesh has an axis without a name");
    if (mesh[i].size < 1) throw usage("axis {} of the mesh has size {}", name, mesh[i].size);
    for (std::size_t j = 0; j < i; ++j)
      if (mesh[j].name == mesh[i].name) throw usage("the mesh has two axes {}", name);
    const auto more = core::checked_mul(devices, mesh[i].size);
    if (!more) throw usage("the mesh has more devices than 63 bits count");
    devices = *more;
  }
  return devices;
}

// Devices that share a dimension cut by these axes.
std::int64_t shards_of(const SpecEntry& entry, const Mesh& mesh) {
  std::int64_t shards = 1;
  for (const std::string& axis : entry.axes)
    shards = core::checked_mul(shards, size_of_axis(mesh, axis).value_or(1)).value_or(INT64_MAX);
  return shards;
}

// What keeps a dimension from being cut as asked.
std::optional<SpecCorrection> fault_of(std::int64_t dimension, std::int64_t length, const SpecEntry& entry,
                                       const Mesh& mesh) {
  using Reason = SpecCorrection::Reason;
  const std::int64_t shards = shards_of(entry, mesh);
  const auto fault = [&](Reason reason, const std::string& axis = "") {
    return SpecCorrection{reason, dimension, entry, axis, shards};
  };
  if (entry.kind == SpecEntry::Kind::unconstrained) return fault(Reason::unconstrained);
  for (const std::string& axis : entry.axes)
    if (!size_of_axis(mesh, axis)) return fault(Reason::unknown_axis, axis);
  if (length % shards != 0) return fault(Reason::not_divisible);
  return std::nullopt;
}

void refuse_axis_used_twice(const PartitionSpec& spec) {
  std::map<std::string, std::size_t> seen;
  for (std::size_t d = 0; d < spec.size(); ++d)
    for (const std::string& axis : spec[d].axes) {
      const auto [first, is_new] = seen.emplace(axis, d);
      if (is_new) continue;
      const std::string name = printable(axis);
      throw first->second == d
          ? usage("dimension {}: axis {} is used twice in {}", d, name, printable(text_of(spec[d])))
          : usage("axis {} is used twice: in dimensions {} and {}", name, first->second, d);
    }
}

// Which part of each dimension device number `device` holds: "[0:4, :, 512:1024]".
std::string part_of(const Sharding& sharding, const std::vector<std::int64_t>& place) {
  std::string text;
  for (std::size_t d = 0; d < sharding.shape.size(); ++d) {
    std::int64_t index = 0;
    if (d < sharding.spec.size())
      for (const std::string& axis : sharding.spec[d].axes)
        for (std::size_t a = 0; a < sharding.mesh.size(); ++a)
          if (sharding.mesh[a].name == axis) index = index * sharding.mesh[a].size + place[a];
    const std::int64_t length = sharding.local_shape[d];
    text += d == 0 ? "" : ", ";
    text += length == sharding.shape[d] ? ":" : fmt::format("{}:{}", index * length, (index + 1) * length);
  }
  return fmt::format("[{}]", text);
}

Table devices_of(const Sharding& sharding) {
  Table table{"parts", "what each device holds", {{"device", "device"}, {"part", "part"}}, {}, 16};
  for (std::int64_t device = 0; device < sharding.devices; ++device) {
    std::vector<std::int64_t> place(sharding.mesh.size());
    std::int64_t rest = device;
    for (std::size_t a = place.size(); a-- > 0;) {
      place[a] = rest % sharding.mesh[a].size;
      rest /= sharding.mesh[a].size;
    }
    std::string name;
    for (std::size_t a = 0; a < place.size(); ++a)
      name += fmt::format("{}{}={}", a == 0 ? "" : " ", printable(sharding.mesh[a].name), place[a]);
    table.rows.push_back({name.empty() ? "the only one" : name, part_of(sharding, place)});
  }
  return table;
}

}  // namespace

PartitionSpec parse_partition_spec(std::string_view text) { return SpecParser(text).spec(); }

Mesh parse_mesh(std::string_view text) {
  Mesh mesh;
  for (const std::string& axis : settings::split(trimmed(text), ',')) {
    const std::size_t equals = std::min(axis.find('='), axis.size());
    const std::string_view name = trimmed(std::string_view(axis).substr(0, equals));
    const auto size =
        parse_integer(trimmed(std::string_view(axis).substr(std::min(equals + 1, axis.size()))));
    if (!size || name.empty())
      throw usage("'{}' is not of the form NAME=SIZE", printable(axis)).hint("such as dp=2,mp=4");
    mesh.push_back({std::string(name), *size});
  }
  check_mesh(mesh);
  return mesh;
}

std::string to_string(const PartitionSpec& spec) {
  if (spec.empty()) return "P()";
  std::string text;
  for (const SpecEntry& entry : spec) text += (text.empty() ? "" : ",") + text_of(entry);
  return text;
}

std::string to_string(const SpecCorrection& correction, const Sharding& sharding) {
  using Reason = SpecCorrection::Reason;
  const Shape& shape = sharding.shape;
  if (correction.reason == Reason::unknown_axis)
    return fmt::format("the mesh has no axis {}", printable(correction.axis));
  if (correction.reason == Reason::not_divisible)
    return fmt::format("{} is not a multiple of {}", shape[static_cast<std::size_t>(correction.dimension)],
                       axes_text(correction.entry, sharding.mesh));
  if (correction.reason == Reason::unconstrained) return "neither an axis nor a tuple of axes";
  return fmt::format("the array has {} dimension{}", shape.size(), shape.size() == 1 ? "" : "s");
}

Sharding get_corrected_named_sharding(const Shape& shape, const PartitionSpec& spec, const Mesh& mesh) {
  Sharding sharding;
  sharding.shape = sharding.local_shape = shape;
  sharding.mesh = mesh;
  sharding.devices = check_mesh(mesh);
  for (std::size_t d = 0; d < shape.size(); ++d)
    if (shape[d] < 0) throw usage("dimension {} has length {}", d, shape[d]);

  if (!spec.empty()) {
    sharding.spec.resize(shape.size());
    for (std::size_t d = 0; d < spec.size(); ++d) {
      const auto dimension = static_cast<std::int64_t>(d);
      if (d >= shape.size()) {
        if (!spec[d].axes.empty())
          sharding.corrections.push_back(
              {SpecCorrection::Reason::no_dimension, dimension, spec[d], {}, shards_of(spec[d], mesh)});
      } else if (auto fault = fault_of(dimension, shape[d], spec[d], mesh)) {
        sharding.corrections.push_back(std::move(*fault));
      } else {
        sharding.spec[d] = spec[d];
      }
    }
    refuse_axis_used_twice(sharding.spec);
  }
  std::int64_t parts = 1;
  for (std::size_t d = 0; d < sharding.spec.size(); ++d) {
    const std::int64_t shards = shards_of(sharding.spec[d], mesh);
    sharding.local_shape[d] = shape[d] / shards;
    parts *= shards;  // axes are used once: at most as many as there are devices
  }
  sharding.copies = sharding.devices / parts;
  if (std::all_of(sharding.spec.begin(), sharding.spec.end(),
                  [](const SpecEntry& e) { return e.axes.empty(); }))
    sharding.spec.clear();
  return sharding;
}

Report describe(const Sharding& sharding, std::optional<DType> dtype) {
  constexpr std::int64_t most_devices = 64;
  Report report;
  report.add(Line{"spec_text", printable(to_string(sharding.spec))})
      .add(list_field("spec", [&](core::JsonWriter& json) {
        for (const SpecEntry& entry : sharding.spec) put(json, entry);
      }));

  Table dimensions{"dimensions",
                   "",
                   {{"dimension", "dim"},
                    {"length", "length"},
                    {"asked", "asked"},
                    {"spec", "spec"},
                    {"shards", "shards"},
                    {"local_length", "local"},
                    {"times_more", "", Unit::none, true},
                    {"why", "", Unit::none, true}},
                   {},
                   INT64_MAX};
  Shape wanted = sharding.local_shape;
  std::vector<Remark> remarks;
  for (std::size_t d = 0; d < sharding.shape.size(); ++d) {
    const SpecEntry kept = d < sharding.spec.size() ? sharding.spec[d] : SpecEntry{};
    const auto correction =
        std::find_if(sharding.corrections.begin(), sharding.corrections.end(),
                     [&](const SpecCorrection& c) { return c.dimension == static_cast<std::int64_t>(d); });
    const bool corrected = correction != sharding.corrections.end();
    if (corrected) wanted[d] = core::ceil_div(sharding.shape[d], correction->shards);
    const double more =
        wanted[d] == 0 ? 1 : static_cast<double>(sharding.local_shape[d]) / static_cast<double>(wanted[d]);
    if (corrected)
      remarks.push_back(
          {fmt::format("Dimension {} is not cut by {}: {}{}.", d, printable(text_of(correction->entry)),
                       to_string(*correction, sharding),
                       more > 1 ? fmt::format("; a device holds {:.3g} times as much of it", more) : "")});
    dimensions.rows.push_back({static_cast<std::int64_t>(d), sharding.shape[d],
                               printable(text_of(corrected ? correction->entry : kept)),
                               printable(text_of(kept)), shards_of(kept, sharding.mesh),
                               sharding.local_shape[d], more,
                               corrected ? ReportValue(to_string(*correction, sharding)) : ReportValue("")});
  }
  report.add(std::move(dimensions));

  report.add(list_field("left_out", [&](core::JsonWriter& json) {
    for (const SpecCorrection& correction : sharding.corrections) {
      if (correction.reason != SpecCorrection::Reason::no_dimension) continue;
      json.object([&] {
        json.key("asked");
        put(json, correction.entry);
        json.key("dimension").put(correction.dimension);
      });
      remarks.push_back({fmt::format("Entry {}, {}, was omitted: {}.", correction.dimension,
                                     printable(text_of(correction.entry)), to_string(correction, sharding))});
    }
  }));
  for (Remark& remark : remarks) report.add(std::move(remark));

  const std::int64_t elements = element_count(sharding.local_shape), could = element_count(wanted);
  report.add("corrections", "corrections", static_cast<std::int64_t>(sharding.corrections.size()))
      .add("shape", "shape", sharding.shape)
      .add("local_shape", "shape on each device", sharding.local_shape)
      .add("devices", "devices", sharding.devices, Unit::count)
      .add("copies", "devices that hold the same part", sharding.copies, Unit::count)
      .add("local_elements", "elements on each device", elements, Unit::count)
      .add("asked_elements", "if all were cut as asked", could, Unit::count);
  if (dtype)
    report.add("dtype", "dtype", std::string(name_of(*dtype)))
        .add("local", "memory on each device", byte_count(sharding.local_shape, *dtype), Unit::bytes)
        .add("asked", "if all were cut as asked", byte_count(wanted, *dtype), Unit::bytes);
  if (sharding.devices <= most_devices) report.add(devices_of(sharding));
  return report;
}

}  // namespace ejk
