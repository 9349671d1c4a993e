// Manual pages in roff. The actions of a command share a page.
//
// tests: tests/cli/test_documents.cpp

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "ejk/report.hpp"
#include "help.hpp"

namespace ejk::app {

namespace {

// Escapes text: backslashes and dashes are literal, and no line is a request.
std::string roff(std::string_view text) {
  std::string out;
  bool at_begin = true;
  for (const char c : text) {
    if (at_begin && (c == '.' || c == '\'')) out += "\\&";
    at_begin = c == '\n';
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out;
}

std::string upper(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::toupper(c); });
  return out;
}

std::string section(std::string_view title) { return fmt::format(".SH \"{}\"\n", roff(upper(title))); }

std::string paragraph(std::string_view text) { return ".PP\n" + roff(text) + "\n"; }

std::string verbatim(std::string_view text) { return ".nf\n" + roff(text) + "\n.fi\n"; }

std::string tagged(std::string_view term, std::string_view text, std::string_view more = "") {
  const std::string out = fmt::format(".TP\n\\fB{}\\fR\n{}\n", roff(term), roff(text));
  return more.empty() ? out : out + ".br\n" + roff(more) + "\n";
}

std::string page_head(std::string_view name, std::string_view summary) {
  // Without hyphenation and justification: names of options stay whole.
  return fmt::format(".TH {} 1 \"\" \"ejk {}\" \"User Commands\"\n.ad l\n.nh\n.SH NAME\n{} \\- {}\n",
                     roff(upper(name)), version(), roff(name), roff(summary));
}

std::string exit_status() { return fmt::format(".SH \"EXIT STATUS\"\n{}.\n", roff(kExitStatus)); }

std::string options_of(const OptionSet& set, const std::string& group) {
  std::string out = section(group);
  for (const Option& option : set.options()) {
    if (option.heading != group) continue;
    const std::size_t end = std::min(option.help.find('\n'), option.help.size());
    out += tagged(option_name(option), option.help.substr(0, end),
                  option.help.substr(std::min(end + 1, option.help.size())));
  }
  return out;
}

std::string arrays_of(const Command& command) {
  std::string out;
  for (const WrittenArray& array : command.all_outputs()) out += tagged(array.name, array.form, array.text);
  return out.empty()
             ? ""
             : section("Arrays written") + out + paragraph("In NumPy:") + ".PP\n" + verbatim(command.use);
}

}  // namespace

std::string manual_page(const Command& command) {
  std::string out = page_head(fmt::format("ejk-{}", command.name), command.summary);
  const bool has_actions = !command.actions.empty();
  const std::vector<const Command*> all = has_actions ? command.actions : std::vector{&command};
  out += ".SH SYNOPSIS\n.nf\n";
  for (const Command* action : all) out += roff(usage_of(*action, Parser(*action).set)) + "\n";
  out += fmt::format(".fi\n.SH EXAMPLE\n.nf\n{}\n.fi\n", roff(command.example));
  for (const Command* action : all) {
    const Parser parser(*action);
    if (has_actions) out += section(fmt::format("ejk {}", action->name)) + paragraph(action->summary);
    if (!parser.set.footer().empty())
      out += (has_actions ? ".PP\n" : ".SH DESCRIPTION\n") + verbatim(parser.set.footer());
    for (const std::string& group : groups_of(parser.set))
      if (group != kSharedGroup)
        out +=
            options_of(parser.set, group) + (topic_of(group).empty() ? "" : ".PP\nSee also\n.BR ejk (1).\n");
  }
  out += section(kSharedGroup) + roff(shared_names(Parser(*all.front()).set)) +
         "\n.PP\n.BR ejk (1)\ndescribes them.\n";
  out += arrays_of(command) + section("Keys of the JSON report");
  for (const ReportKey& key : keys_of(command.name))
    out += tagged(key.path, form_and_condition(key), key.text);
  out += ".PP\n.BR ejk (1)\ndescribes the object around them.\n";
  return out + section("Naming arrays") + roff(kReferences) + "\n" + exit_status() +
         ".SH \"SEE ALSO\"\n.BR ejk (1)\n";
}

std::string manual_page() {
  std::string out =
      page_head("ejk", "masks, segments, groups and reference results for attention and MoE kernels");
  out += ".SH SYNOPSIS\n" + verbatim("ejk COMMAND INPUT... [options] [-o OUTPUT]");
  out += ".SH DESCRIPTION\nEach command has its own page:\n";
  std::string_view group;
  for (const Command* command : commands()) {
    if (command->group != group) out += fmt::format(".SS {}\n", roff(group = command->group));
    out += fmt::format(".TP\n.BR ejk\\-{} (1)\n{}\n", roff(command->name), roff(command->summary));
  }
  out += options_of(Parser(*find_command("mask-info")).set, kSharedGroup);
  for (const std::string& topic : topics()) {
    if (topic == "layouts" || topic == "mpi" || topic == "options") continue;  // in other sections and pages
    const std::string text = topic_help(topic);                                // its first line is its title
    const std::size_t end = text.find('\n');
    out += section(text.substr(0, end)) + verbatim(text.substr(end + 2));
  }
  out += exit_status() + ".SH ENVIRONMENT\n";
  out += tagged("OMP_NUM_THREADS", "the number of threads, unless --threads is given");
  out += tagged("EJK_ISA", "the instruction set to use; --version --verbose lists them");
  return out + paragraph("NO_COLOR, TERM and COLUMNS have their usual meaning.");
}

std::string manual_page_of_mpi() {
  const std::string text = topic_help("mpi");
  return page_head("ejk-mpi", "the commands of ejk by several processes, on one machine or many") +
         ".SH SYNOPSIS\n" + verbatim("mpirun -n N ejk-mpi COMMAND INPUT... [options] [-o OUTPUT]") +
         ".SH DESCRIPTION\n" + verbatim(text.substr(text.find('\n') + 2)) + exit_status() +
         ".SH \"SEE ALSO\"\n.BR ejk (1),\n.BR mpirun (1)\n";
}

}  // namespace ejk::app
